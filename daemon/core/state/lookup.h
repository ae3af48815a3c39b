/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/state/lookup.h - finds the rows for ids in a client's request, and checks other numbers in it. */
#ifndef SKV_CORE_LOOKUP_H
#define SKV_CORE_LOOKUP_H

#include "daemon/core/state/core-priv.h"

/* Find the row of an id. SKV_CORE_E_NOENT: the id names no live row, or a row of another client or session. */
int skv_find_client(struct skv_core *, uint32_t id, uint32_t *ret_index);
int skv_find_session(struct skv_core *, uint32_t client_id, uint32_t session_id, uint32_t *ret_client,
                     uint32_t *ret_session);
int skv_find_held(struct skv_core *, uint32_t client_id, uint32_t session_id, uint32_t seq_id,
                  uint32_t *ret_client, uint32_t *ret_seq);
/* Limits the number of pages that a request names in n runs: 0, or E_INVALID if there are more than SKV_CALL_PAGES. */
int skv_check_runs(struct skv_core *, const struct skv_wire_run *, uint32_t n);
/* Are the numbers of the pool and of the segment within the tables? 0, or E_INVALID. */
int skv_check_segment(struct skv_core *, uint32_t pool, uint32_t segment);

#endif
