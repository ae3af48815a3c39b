/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/encode.c - compression at the end of a step.
 *
 * A decode step compresses the tokens that its commit will name as compressed: it writes codes and references beyond
 * those of the last commit, and its commit evicts the pages of the rows.
 */
#include "libclient/compress/encode.h"

#include "libclient/compress/compressor.h"
#include "libclient/compress/schedule.h"
#include "libclient/layer/layer.h"
#include "libclient/pages/pages.h"
#include "libclient/policy.h"
#include "libclient/ranks/exchange.h"
#include "libclient/seq.h"

void compress_evict_rows(struct skv_seq *q)
{
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		const struct skv_layer_slots *next = &q->next_slots[layer];
		uint32_t from = seq_compressed(q, layer) / SKV_PAGE_TOKENS;

		if (seq_next_compressed(q, layer) <= seq_compressed(q, layer))
			continue;
		if (!compress_any(q))
			compressor_sign(seq_policy(q)->compressor, q->mem);
		for (uint32_t page = from > next->form.first ? from : next->form.first;
		     page < next->n_compressed / SKV_PAGE_TOKENS; page++)
			pages_evict(q, layer, page);
	}
}

/* Does a sequence of the policy batch compress in this layer? */
static bool compresses_now(const struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	for (uint32_t i = 0; batch_compresses(pb, layer) && i < pb->n; i++)
		if (layer_kseq(s, layer, pb->first + i)->compress_to > layer_kseq(s, layer, pb->first + i)->n_compressed)
			return true;
	return false;
}

/* All layers of a class in one call. */
static void compress_class(struct skv_session *s, const struct policy_batch *pb, uint32_t class)
{
	struct skv_shape shapes[SKV_MAX_LAYERS];
	struct skv_batch batch;
	uint32_t n = 0, first = 0;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		if (s->step.class_of[layer] != class || !compresses_now(s, pb, layer))
			continue;
		first = n == 0 ? layer : first;
		shapes[n++] = batch_shape(s, pb, layer);
	}
	if (n == 0)
		return;
	batch = batch_decoding(s, pb, first);
	exchange_compress(s, shapes, n, &batch);
}

void compress_step_end(struct skv_session *s)
{
	for (uint32_t i = 0; i < s->step.n_batches; i++) {
		const struct policy_batch *pb = &s->step.batch[i];

		if (!pb->compresses)
			continue;
		for (uint32_t class = 0; class < s->step.n_classes; class++)
			compress_class(s, pb, class);
		for (uint32_t j = 0; j < pb->n; j++)
			if (s->step.seqs[pb->first + j]->n_new > 0)
				compress_evict_rows(s->step.seqs[pb->first + j]);
	}
}
