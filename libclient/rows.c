/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/rows.c - sequences that decode several rows in a step, as a speculative decoder verifies its candidates.
 *
 * All rows are appended before any attends. Kernels and the policy's selections then see each row as a sequence of its
 * own that ends with it (layout.c): it scores, selects and attends as in a step of its own, so speculation changes no
 * result. Sequences with a single row are in other policy batches.
 *
 * How many rows count is known at the end of the step. What was computed for the others lies beyond the commit, like
 * all that a step writes, and the next step overwrites it: rows, page bounds, sketches, codes. Only pages that the
 * others alone needed must be found. What a row added to accumulated scores could not be taken back, so policies that
 * evict by them decode one row.
 */
#include "libclient/rows.h"

#include <errno.h>
#include <string.h>

#include "libclient/compress/schedule.h"
#include "libclient/error.h"
#include "libclient/policy.h"
#include "libclient/seq.h"
#include "libclient/session.h"

const char *rows_refused(const struct policy *p)
{
	if (p->n_evicting > 0)
		return "evicts by scores that a rejected row would have added to";
	return p->block->seq_state_bytes > 0 ? "keeps a state that knows of no rejected rows" : NULL;
}

int rows_check_accepted(const struct step *st, const uint32_t *n_accepted)
{
	for (uint32_t i = 0; n_accepted && i < st->n; i++) {
		uint32_t n = n_accepted[st->item[i]], rows = st->seqs[i]->n_rows;

		if (n > rows)
			return error_set(-EINVAL, "n_accepted of item %u is %u, expected at most its %u rows", st->item[i], n, rows);
		if (n > 0 && n < rows && i >= st->n_decode)
			return error_set(-EINVAL, "n_accepted of item %u is %u, expected 0 or all %u rows of a prompt", st->item[i],
			                 n, rows);
	}
	return 0;
}

/* Update what the commit says of the layers: fewer rows count than the step was laid out for. */
static void cut(struct skv_seq *q)
{
	const uint32_t less = q->n_rows - q->n_new;

	for (uint32_t layer = 0; seq_by_layer(q) && layer < q->layout.n_layers; layer++) {
		struct skv_layer_slots *next = &q->next_slots[layer];

		next->live -= less;
		next->slot_end -= less;
		next->n_active -= less;
		compress_next(q, layer, true, next);
	}
}

bool rows_accept(struct skv_session *s, const uint32_t *n_accepted)
{
	struct step *st = &s->step;
	bool rejected = false;

	for (uint32_t i = 0; n_accepted && i < st->n; i++) {
		struct skv_seq *q = st->seqs[i];

		q->n_new = n_accepted[st->item[i]];
		rejected |= q->n_new < q->n_rows;
		q->steady &= q->n_new == q->n_rows;
		if (q->n_new == 0 && i < st->recall.n)
			st->recall.layers[i] = (struct skv_layer_set){0};
		else if (q->n_new > 0 && q->n_new < q->n_rows)
			cut(q);
	}
	return rejected;
}
