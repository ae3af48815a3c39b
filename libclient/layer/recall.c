/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/layer/recall.c - attention recall, measured while a policy runs.
 *
 * Attention recall (DELTA, Eq. 9) is the share of full attention's softmax weight that falls on the tokens to which a
 * layer attends. In one of every so many steps, the first few decoding sequences additionally compute full attention's
 * weights in each measured layer. The mean over heads and sequences goes to the session's page, layer by layer. Full
 * attention is over resident tokens: evicted tokens have no weight. Layers with the model's sliding window are not
 * measured, since no policy changes them.
 *
 * Attention may overwrite q, because `out` may be q, so the weights are computed before a layer attends. A step that
 * measures recall is not replayed from a recording. On a device, its figures are known when the step has run.
 */
#include "libclient/layer/recall.h"

#include <string.h>

#include "libclient/conn/conn.h"
#include "libclient/conn/fence.h"
#include "libclient/device/scratch.h"
#include "libclient/device/steps.h"
#include "libclient/feature.h"
#include "libclient/layer/layer.h"
#include "libclient/seq.h"
#include "libclient/session.h"

/* The number of rows of weights that the measurement needs: 1 for a window, else one for each list of the sequence. */
static uint32_t rows_of(const struct skv_plan *plan, const struct skv_index_list *list)
{
	return plan->attend == SKV_ATTEND_WINDOW ? 1 : list->rows;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static uint32_t interval(const struct skv_session *s)
{
	return s->recall_every >= 0 ? (uint32_t)s->recall_every
	                            : atomic_load_explicit(&s->client->control->recall_every, memory_order_relaxed);
}

/*
 * The largest number of rows of weights that a measured layer needs; 0: all layers attend to everything that the model
 * lets them.
 */
static uint32_t most_rows(const struct skv_session *s)
{
	const struct step *st = &s->step;
	uint32_t most = 0;

	for (uint32_t i = 0; i < st->n_batches && st->batch[i].first < RECALL_SEQS; i++)
		for (uint32_t layer = 0; layer < s->model.n_layers && st->batch[i].n > 0; layer++) {
			const struct skv_plan *plan = &st->batch[i].policy->plan[layer];
			const struct skv_index_list *list = &st->batch[i].selection[plan->source].list;
			bool all = plan->attend == SKV_ATTEND_DENSE || skv_model_window(&s->model, layer);
			uint32_t rows = all ? 0 : rows_of(plan, list);

			most = rows > most ? rows : most;
		}
	return most;
}

/*
 * Make room for a measurement of recall: shares [n_layers][RECALL_SEQS], then weights of tokens, then weights of pages.
 */
static int lay_out(struct skv_session *s, uint32_t rows)
{
	struct recall *r = &s->step.recall;
	struct skv_scores *scores = &r->scores;
	size_t shares = (size_t)s->model.n_layers * RECALL_SEQS, tokens, pages;
	uint32_t longest = 0;
	int e;

	for (uint32_t c = 0; c < s->step.n_classes; c++)
		longest = s->step.class[c].decoding.max_len > longest ? s->step.class[c].decoding.max_len : longest;
	*scores = (struct skv_scores){
	        .sum = true,
	        .token_stride = (longest + 63) / 64 * 64,
	};
	scores->page_stride = scores->token_stride / SKV_PAGE_TOKENS;
	tokens = (size_t)RECALL_SEQS * rows * scores->token_stride;
	pages = (size_t)RECALL_SEQS * rows * scores->page_stride;
	e = scratch_grow(s, &r->mem, &r->bytes, (shares + tokens + pages) * sizeof(float));
	r->share = r->mem;
	scores->token = r->share + shares;
	scores->page = scores->token + tokens;
	return e;
}

/* If recall is to be measured in this step, make room for it. */
static int recall_prepare(struct skv_session *s)
{
	struct recall *r = &s->step.recall;
	uint32_t every = interval(s), rows;

	r->n = 0;
	memset(r->layers, 0, sizeof(r->layers));
	if (every == 0 || s->step.n_decode == 0 || ++r->steps % every != 0)
		return 0;
	rows = most_rows(s);
	if (rows == 0)
		return 0;
	r->n = s->step.n_decode < RECALL_SEQS ? s->step.n_decode : RECALL_SEQS;
	return lay_out(s, rows);
}

static void recall_close(struct skv_session *s)
{
	scratch_free(s, s->step.recall.mem);
}

const struct feature recall_feature = {.prepare = recall_prepare, .close = recall_close};

/* ---- a layer --------------------------------------------------------------------------------- */

/* The sequences of the policy batch that are measured. Of a sequence with several rows, the last row is measured. */
static struct skv_batch measured(const struct layer *l)
{
	uint32_t n = l->step->recall.n, first = l->batch->first;
	uint32_t left = n > first ? n - first : 0;
	struct skv_batch b = batch_part(l->each, (l->batch->rows - 1) * l->batch->n, l->batch->n);

	b.n = left < b.n ? left : b.n;
	return b;
}

/* The lists of sequence `first` and of the sequences after it. */
static struct skv_index_list index_list_from(const struct skv_index_list *list, uint32_t first)
{
	struct skv_index_list x = *list;

	x.ids += (size_t)first * list->rows * list->stride;
	x.count += (size_t)first * list->rows;
	return x;
}

void recall_weigh(const struct layer *l, const struct skv_index_list *list)
{
	const struct skv_batch b = measured(l);
	struct recall *r = &l->step->recall;

	if (b.n == 0)
		return;
	r->scores.rows = rows_of(l->plan, list);
	l->kernels->decode_dense(&l->rows, &b, l->attn->q, NULL, &r->scores, l->work);
}

void recall_measure(const struct layer *l, const struct skv_index_list *list)
{
	const struct skv_plan *plan = l->plan;
	const struct skv_batch b = measured(l);
	const struct skv_index_list of_last = index_list_from(list, (l->batch->rows - 1) * l->batch->n);
	const struct skv_attended seen = {
	        .window = plan->attend == SKV_ATTEND_WINDOW ? &plan->window : NULL,
	        .list = &of_last,
	        .tokens = plan->attend == SKV_ATTEND_TOKENS,
	};
	const uint32_t layer = l->number, first = l->batch->first;
	struct recall *r = &l->step->recall;

	if (b.n == 0)
		return;
	l->kernels->recall(&l->rows, &b, &r->scores, &seen, r->share + (size_t)layer * RECALL_SEQS + first, l->work);
	for (uint32_t i = 0; i < b.n; i++)
		r->layers[first + i].bits[layer / 64] |= (uint64_t)1 << (layer % 64);
}

/* ---- public ---------------------------------------------------------------------------------- */

void skv_seq_recall(const struct skv_seq *q, uint64_t *ret_layers, double *ret_sum)
{
	*ret_layers = 0;
	*ret_sum = 0;
	if (fence_enter(q->session) < 0)
		return;
	device_settle(q->session);
	*ret_layers = q->recall.layers;
	*ret_sum = q->recall.sum;
	pthread_mutex_unlock(&q->session->lock);
}

void skv_set_recall(struct skv_session *s, int64_t every)
{
	if (fence_enter(s) < 0)
		return;
	s->recall_every = every < 0 ? -1 : every > UINT32_MAX ? UINT32_MAX : every;
	pthread_mutex_unlock(&s->lock);
}
