/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/rows.h - sequences that decode several rows in a step: selection and attention, and which of them count. */
#ifndef SKV_CLIENT_ROWS_H
#define SKV_CLIENT_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/layer.h"

struct policy;

/* Why sequences under the policy decode one row a step, or NULL: they may decode several. */
const char *rows_refused(const struct policy *p);

/* A request for sequences of so many rows: all of these are selected, too. Unchanged for one row. */
struct skv_select rows_select(const struct skv_select *sel, uint32_t rows, bool tokens);
/* Scores of pages by their bounds, of the open layer's q. */
void rows_score_pages(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);

/* The kernels of the same names, for each row of the layer's sequences. `out` NULL: scores alone. */
void rows_decode_dense(const struct layer *l, void *out, const struct skv_scores *scores);
void rows_decode_pages(const struct layer *l, const struct skv_index_list *list);
void rows_decode_tokens(const struct layer *l, const struct skv_index_list *list);
void rows_decode_topk(const struct layer *l);

/* Is n_accepted, the caller's, [items] or NULL, within what the step has? */
int rows_check_accepted(const struct step *st, const uint32_t *n_accepted);
/* From here on the step's sequences have as many new tokens as are accepted. Are there rows that are not? */
bool rows_accept(struct skv_session *s, const uint32_t *n_accepted);

#endif
