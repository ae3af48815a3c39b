/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/seqfile.h - the memfd of a sequence, as the daemon holds it: made, mapped, copied. */
#ifndef SKV_CORE_SEQFILE_H
#define SKV_CORE_SEQFILE_H

#include "daemon/core/core-priv.h"

/* A fresh memfd with its header, mapped up to the state area. Negative errno, with nothing left behind. */
int skv_seqfile_new(struct skv_seq_local *, uint32_t index, const struct skv_model *, uint32_t max_tokens);
void skv_seqfile_free(struct skv_seq_local *);
/* Everything that was ever written in `from`, at the same offsets of `to`; holes stay holes. */
int skv_seqfile_copy(const struct skv_seq_local *to, const struct skv_seq_local *from);

#endif
