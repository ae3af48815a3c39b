/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/encode.c - compresses tokens, and decompresses them into rows: between steps, and at the end of a
 * step.
 *
 * Between steps, maintenance transactions compress the tokens of a prompt before the first decode step after the
 * prompt. They also decompress tokens whose form is not that in which the policy compresses. At its end, a decode step
 * compresses the tokens that its commit will record as compressed: the step writes codes and references after those of
 * the last commit, and the commit evicts the pages of the tokens' rows.
 */
#include "libclient/compress/encode.h"

#include "libclient/compress/attend.h"
#include "libclient/compress/compressed-lengths.h"
#include "libclient/compress/compressor.h"
#include "libclient/compress/schedule.h"
#include "libclient/device/steps.h"
#include "libclient/device/tables.h"
#include "libclient/feature.h"
#include "libclient/layer/layer.h"
#include "libclient/pages/pages.h"
#include "libclient/policy.h"
#include "libclient/ranks/exchange.h"
#include "libclient/ranks/joint.h"
#include "libclient/seq.h"
#include "libclient/step/maintenance.h"

/* ---- between steps --------------------------------------------------------------------------- */

/* From here on the sequence records the number of slots for each layer separately (SKV_ABOUT_SLOTS). */
static void begin_slots(struct skv_seq *q)
{
	const struct skv_layer_slots all = {.live = q->len, .slot_end = q->len, .n_active = q->len};

	for (uint32_t layer = 0; !(q->about & SKV_ABOUT_SLOTS) && layer < q->layout.n_layers; layer++)
		q->slots[layer] = all;
	q->about |= SKV_ABOUT_SLOTS;
}

/*
 * Drop pages that a step without a commit left in the tables. This needs the form of the compressed tokens, which is
 * known now.
 */
static int trim(struct skv_seq *q)
{
	bool any = pages_trim(q);
	int e = pages_check(q);

	return e == 0 && any && q->session->device ? device_seq_refresh(q) : e;
}

static int decompress(struct skv_session *s, struct skv_seq *q)
{
	int e = compressor_of_seq(q, &q->compress.from);

	if (e < 0)
		return e;
	e = trim(q);
	if (e == 0)
		e = maintenance_run(s, q, MAINTENANCE_DECOMPRESS);
	compressor_free(q->compress.from);
	q->compress.from = NULL;
	return e;
}

/*
 * Before a step, decompress the sequence's tokens if their form is not that of its policy, or if the policy cannot
 * compress the sequence.
 */
static int decompress_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	(void)n_tokens, (void)prompt;
	if (q->compress.known || !compress_any(q) || (compress_as_planned(q) && compress_possible(q)))
		return 0;
	return decompress(q->session, q);
}

const struct feature decompress_feature = {.ready = decompress_ready};

/* The number of pages whose tokens are compressed, summed over all layers. */
static int32_t count_compressed(const struct skv_seq *q)
{
	int32_t n = 0;

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		n += (int32_t)(seq_compressed(q, layer) / SKV_PAGE_TOKENS);
	return n;
}

/*
 * Ranks that compress together must have compressed equally many tokens. If a rank died, the daemon has made sure of
 * that. If policies were swapped meanwhile, the ranks' numbers may differ: then each rank decompresses its compressed
 * tokens, and compression begins anew in all ranks.
 */
static int agree(struct skv_session *s, struct skv_seq *q)
{
	int32_t own = count_compressed(q), least, most;
	int e = device_settle(s); /* queued confirmations use the same buffers */

	if (e == 0)
		e = joint_compare(s, own, &least, &most);

	return e < 0 || least == most || own == 0 ? e : decompress(s, q);
}

/*
 * Decide whether the sequence compresses under its policy. Tokens that are compressed already have the policy's form
 * here, since decompress_ready() runs before.
 */
static int decide(struct skv_session *s, struct skv_seq *q)
{
	int e = exchange_has(q) ? agree(s, q) : 0;

	q->compress.on = compress_possible(q);
	return e == 0 && q->compress.on ? trim(q) : e;
}

/* Has a layer fewer compressed tokens than a decode step expects? */
static bool behind(const struct skv_seq *q)
{
	const struct policy *p = seq_policy(q);

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		if (seq_compressed(q, layer) < compress_end(&p->plan[layer].compress, q->len))
			return true;
	return false;
}

/*
 * Before a decode step, compress all tokens that the step expects to be compressed. Before a step with prompt rows,
 * compress none.
 */
static int compress_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	struct skv_session *s = q->session;
	int e = 0;

	(void)n_tokens;
	if (!q->compress.known) {
		e = decide(s, q);
		if (e < 0)
			return e;
		q->compress.known = true;
	}
	if (!q->compress.on)
		return 0;
	begin_slots(q);
	while (!prompt && e == 0 && behind(q))
		e = maintenance_run(s, q, MAINTENANCE_COMPRESS);
	return e;
}

/* ---- at the end of a step -------------------------------------------------------------------- */

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

/* Does the open step compress tokens in this layer, in any decoding sequence of the policy batch? */
static bool compresses_now(const struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	for (uint32_t i = 0; batch_compresses(pb, layer) && i < pb->n; i++)
		if (layer_kseq(s, layer, pb->first + i)->compress_to > layer_kseq(s, layer, pb->first + i)->n_compressed)
			return true;
	return false;
}

/* Queue the compression of a policy batch's tokens in all layers of a class, with one call. */
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

/*
 * Compress the tokens of decoding sequences that the step's commits will record as compressed: run the kernels, and
 * evict the pages of the tokens' rows.
 */
static void compress_end_of_step(struct skv_session *s)
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

const struct feature compress_feature = {
	.make = compressor_make,
	.unmake = compressor_unmake,
	.close = compress_close,
	.ready = compress_ready,
	.prepare = compress_prepare,
	.end = compress_end_of_step,
};
