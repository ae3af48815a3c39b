/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/attend.c - one layer of a step: append, then attend as the policy planned.
 *
 * Attention makes no allocation, because skv_step_begin has laid out all memory, and no system call except those that
 * wake the kernels' threads. Sequences that decode attend first: the policy's hooks run for them, and the kernels get
 * one batch for each policy. On a device this part of a layer is replayed from a recording, if there is one (replay.c).
 * Then rows of prompts attend as the plan says (prefill/attend.c).
 */
#include <errno.h>
#include <string.h>

#include "common/spec.h"
#include "libclient/compress/attend.h"
#include "libclient/device/device.h"
#include "libclient/error.h"
#include "libclient/evict/slot-mapping.h"
#include "libclient/feature.h"
#include "libclient/layer/attn.h"
#include "libclient/layer/fp8.h"
#include "libclient/layer/hooks.h"
#include "libclient/layer/layer.h"
#include "libclient/layer/recall.h"
#include "libclient/prefill/attend.h"
#include "libclient/ranks/ranks.h"
#include "libclient/seq.h"
#include "libclient/step/replay.h"
#include "libclient/struct-size.h"

/* Call the decode kernel for the attention mode `how`: the plan's mode, or dense if nothing was selected. */
static void decode_kernel(const struct layer *l, uint32_t how, const struct skv_index_list *list)
{
	const bool weighs = l->plan->scores & (SKV_SCORES_TOKENS | SKV_SCORES_PAGES) && !l->sketches;
	const struct skv_scores *scores = weighs ? &l->own->scores : NULL;
	const struct skv_kernels *k = l->kernels;
	const struct skv_attn *a = l->attn;

	switch (how) {
	case SKV_ATTEND_WINDOW:
		k->decode_window(&l->shape, &l->each, a->q, a->out, &l->plan->window, l->work);
		break;
	case SKV_ATTEND_PAGES:
		k->decode_pages(&l->shape, &l->each, a->q, a->out, list, l->work);
		break;
	case SKV_ATTEND_TOKENS:
		if (l->plan->value_bits)
			k->decode_sketches(&l->shape, &l->each, a->q, a->out, list, l->work);
		else if (!skv_plan_chooses(l->plan, l->number))
			k->decode_tokens(&l->shape, &l->each, a->q, a->out, list, l->work);
		else
			k->decode_topk(&l->shape, &l->each, a->q, a->out, &l->own->scores, &l->own->select, &l->own->list,
			               l->work);
		break;
	default:
		k->decode_dense(&l->shape, &l->each, a->q, a->out, scores, l->work);
		l->own->has_scores |= scores != NULL;
	}
}

/*
 * Attention of decode rows, between the policy's two hooks. Lists of the source layer are read with this layer's map of
 * kv heads.
 */
static void decode_rows(const struct layer *l, uint32_t how)
{
	struct skv_index_list list = l->source->list;

	list.mapped = l->plan->mapped;
	if (list.mapped)
		memcpy(list.map, l->plan->map, sizeof(list.map));
	if (l->compresses && l->plan->compress.kind == SKV_COMPRESS_LATENT) {
		compress_decode(l, how == SKV_ATTEND_TOKENS ? &list : NULL);
		return;
	}
	if (how != SKV_ATTEND_DENSE)
		recall_weigh(l, &list);
	decode_kernel(l, how, &list);
	if (how != SKV_ATTEND_DENSE)
		recall_measure(l, &list);
}

/*
 * Append the batch's new rows of K and V before the layer attends. A layer that shares another layer's K and V appends
 * no rows.
 */
static void append(const struct layer *l, const struct skv_batch *b)
{
	if (b->n == 0)
		return;
	if (l->attn->k) /* append() makes sketches, too */
		l->kernels->append(&l->rows, b, NULL, l->attn->k, l->attn->v, l->work);
	else if (l->sketches)
		l->kernels->update_sketches(&l->rows, b, l->work);
	if (l->bounds)
		l->kernels->update_bounds(&l->rows, b, NULL, l->work);
}

/* ---- sequences that decode ------------------------------------------------------------------- */

static void decode(struct skv_session *s, const struct layer *l)
{
	const struct skv_plan *plan = l->plan;
	uint32_t how = plan->attend;
	bool scored;

	s->hook.batch = l->batch;
	s->hook.q = l->attn->q;
	if (plan->evict.granularity)
		slots_append(l, false);
	else
		append(l, &l->decode);
	if (l->window) { /* the policy does not manage layers with a sliding window */
		decode_kernel(l, SKV_ATTEND_WINDOW, NULL);
		return;
	}
	policy_hook(s, l->batch, PHASE_BEFORE, l->number);
	if (plan->evict.max_head_ratio > 0) {
		/*
		 * heads that share a budget attend to active tokens and accumulate their scores, before attention
		 * writes `out`, which may be q
		 */
		l->kernels->list_active(&l->shape, &l->decode, &l->own->list, l->work);
		l->kernels->accumulate_list(&l->shape, &l->decode, l->attn->q, &l->own->list, l->work);
		l->own->made = SKV_ATTEND_TOKENS;
	}
	if ((how == SKV_ATTEND_PAGES || how == SKV_ATTEND_TOKENS) && l->source->made != how) {
		policy_misuse(s, "layer %u attends to what layer %u selects, but it selected nothing", l->number,
		              plan->source);
		if (l->compresses)
			return; /* the step will fail, and there is no memory to decompress all tokens of the layer */
		how = SKV_ATTEND_DENSE;
	}
	scored = l->own->has_scores;
	decode_rows(l, how);
	if (l->own->has_scores && !scored)
		ranks_reduce_scores(s, l->batch, l->number, &l->each);
	policy_hook(s, l->batch, PHASE_AFTER, l->number);
}

/* From now on, work on the branches runs after all work that is queued on the step's stream so far. */
static int fork_branches(struct skv_session *s)
{
	const struct step *st = &s->step;
	struct device *d = s->device;
	int e = st->n_branches > 1 ? d->backend->event_record(d->fork, st->work.stream) : 0;

	for (uint32_t i = 1; i < st->n_branches && e == 0; i++)
		e = d->backend->stream_wait(d->branch[i].work.stream, d->fork);
	return e < 0 ? device_failed(d, e, "policies side by side") : 0;
}

/* From now on, work on the step's stream runs after all work that is queued on the branches so far. */
static int join_branches(struct skv_session *s)
{
	const struct step *st = &s->step;
	struct device *d = s->device;
	int e = 0;

	for (uint32_t i = 1; i < st->n_branches && e == 0; i++) {
		e = d->backend->event_record(d->branch[i].end, d->branch[i].work.stream);
		if (e == 0)
			e = d->backend->stream_wait(st->work.stream, d->branch[i].end);
	}
	return e < 0 ? device_failed(d, e, "policies side by side") : 0;
}

/*
 * Decode attention of a layer for all policy batches; on a device, batches with branches of their own run concurrently.
 */
static int decode_batches(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	struct step *st = &s->step;
	const struct skv_workspace own = st->work;
	int e = fork_branches(s);

	for (uint32_t i = 0; i < st->n_batches && e == 0; i++) {
		const struct layer l = layer_of(s, &st->batch[i], layer, a);

		if (l.batch->n == 0)
			continue;
		if (l.batch->branch > 0)
			st->work = s->device->branch[l.batch->branch].work;
		decode(s, &l);
		st->work = own;
	}
	if (e == 0)
		e = join_branches(s);
	return e < 0 ? e : s->step.ranks_error;
}

/* ---- rows of prompts ------------------------------------------------------------------------- */

static void prefill(const struct layer *l)
{
	if (l->plan->evict.granularity)
		slots_append(l, true);
	else
		append(l, &l->prefill);
	if (!l->attn->q)
		return;
	if (l->compresses) {
		compress_prefill(l);
		return;
	}
	if (l->plan->evict.accumulate) /* before attention writes `out`, which may be q */
		l->kernels->accumulate_prompt(&l->rows, &l->prefill, l->attn->q, l->plan->evict.window, l->work);
	prefill_attend(l);
}

static void prefill_batches(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	struct step *st = &s->step;

	for (uint32_t i = 0; i < st->n_batches; i++) {
		const struct layer l = layer_of(s, &st->batch[i], layer, a);

		if (l.prefill.n > 0)
			prefill(&l);
	}
	for (uint32_t i = st->n_decode; i < st->n && !a->q; i++)
		/* without q, no queries are saved for later rows of these prompts */
		st->seqs[i]->next_about &= ~SKV_ABOUT_PREFILL;
}

/* ---- a layer --------------------------------------------------------------------------------- */

/*
 * Append rows and attend as planned. `decoded`: the decoding sequences were replayed already; only rows of prompts are
 * left.
 */
static int attend_layer(struct skv_session *s, uint32_t layer, const struct skv_attn *given, bool decoded)
{
	const struct skv_attn rows = attn_take(s, given);
	int e = decoded || s->step.n_decode == 0 ? 0 : decode_batches(s, layer, &rows);

	if (e == 0 && s->step.n > s->step.n_decode)
		prefill_batches(s, layer, &rows);
	attn_give(s, given, &rows);
	return e;
}

static void replay_begin(struct skv_session *s)
{
	replay_record(s, decode_batches);
}

const struct feature replay_feature = {.open = replay_open, .close = replay_close, .begin = replay_begin};

/*
 * May the engine give a layer of the open step only k and v, without q and out? Not if a sequence decodes, or if a
 * policy accumulates scores of prompts.
 */
static int check_append(const struct skv_session *s, uint32_t layer)
{
	const struct step *st = &s->step;

	if (st->n_decode > 0)
		return error_set(-EINVAL, "layer %u: q and out may be missing in a step of prompts alone, but %u sequences decode", layer,
		            st->n_decode);
	for (uint32_t i = 0; i < st->n_batches; i++)
		if (st->batch[i].policy->plan[layer].evict.accumulate)
			return error_set(-EINVAL, "layer %u: q and out are missing, but policy %s accumulates attention scores of prompts", layer,
			            st->batch[i].policy->block->name);
	return 0;
}

static int attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	struct step *st = &s->step;
	struct skv_attn given;
	bool decoded = false;
	int e;

	if (!st->open)
		return error_set(-EINVAL, "no step is open");
	if (layer != st->next_layer || layer >= s->model.n_layers)
		return error_set(-EINVAL, "layer %u, expected %u of %u", layer, st->next_layer, s->model.n_layers);
	if (!a)
		return error_set(-EINVAL, "layer %u: attn is NULL", layer);
	e = sized_get(&given, sizeof(given), a, sizeof(given), "attn");
	if (e < 0)
		return e;
	a = &given;
	e = attn_check(s, layer, a);
	if (e == 0 && !a->q)
		e = check_append(s, layer);
	if (e == 0 && s->model.kv_dtype == SKV_FP8) {
		const struct skv_shape shape = layer_shape(s, layer);

		e = fp8_check(s, layer, &shape, a);
	}
	if (e == 0 && s->device && st->n_decode > 0)
		e = replay_attend(s, layer, a, &decoded);
	if (e == 0)
		e = attend_layer(s, layer, a, decoded);
	if (e < 0)
		return e;
	st->next_layer++;
	return s->device && !(decoded && st->n_decode == st->n) ? device_check(s) : 0;
}

int skv_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	void *was;
	int e = device_lock(s, &was);

	if (e == 0) {
		e = attend(s, layer, a);
		device_unlock(s, was);
	}
	return e;
}
