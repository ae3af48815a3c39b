/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/model.h - the model of a session: what skv_open was given, copied and checked. */
#ifndef SKV_CLIENT_SESSION_MODEL_H
#define SKV_CLIENT_SESSION_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <sparsekv/types.h>

/*
 * Copy `from`, with its layers and their sinks, to `to`; model_free() frees the copy. -EINVAL with a text, or -ENOMEM.
 */
int model_copy(struct skv_model *to, const struct skv_model *from);
void model_free(struct skv_model *m);

#endif
