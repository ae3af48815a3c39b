/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/stats.c - counters of a session and its sequences, kept for the engine and in the session's page. */
#include "libclient/step/stats.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/seq.h"

/* Find the different sliding windows of the model, and the number of layers that have each. */
static int stats_open(struct skv_session *s)
{
	const uint32_t n = s->model.n_layers;

	s->windows.all = calloc(n, sizeof(*s->windows.all));
	if (!s->windows.all)
		return error_set(-ENOMEM, "out of memory");
	for (uint32_t layer = 0; layer < n; layer++) {
		const uint32_t window = skv_model_window(&s->model, layer);
		uint32_t i = 0;

		while (i < s->windows.n && s->windows.all[i].tokens != window)
			i++;
		s->windows.n += i == s->windows.n;
		s->windows.all[i].tokens = window;
		s->windows.all[i].layers++;
	}
	return 0;
}

static void stats_close(struct skv_session *s)
{
	free(s->windows.all);
}

const struct feature stats_feature = {.open = stats_open, .close = stats_close};

/*
 * The number of tokens, over all layers, that these rows of a sequence would attend to without a policy; `first` tokens
 * precede the rows.
 */
static uint64_t causal_tokens(const struct skv_session *s, uint32_t first, uint32_t rows)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->windows.n; i++) {
		const uint32_t window = s->windows.all[i].tokens;

		for (uint32_t len = first + 1; len <= first + rows; len++)
			n += (uint64_t)s->windows.all[i].layers * (window && window < len ? window : len);
	}
	return n;
}

void stats_attended(struct skv_seq *q, uint32_t first, uint32_t rows, uint64_t tokens)
{
	struct skv_session *s = q->session;
	uint64_t attended = tokens / s->model.n_heads, causal = causal_tokens(s, first, rows);

	q->attended += attended;
	q->causal += causal;
	s->stats.attended_tokens += attended;
	s->stats.causal_tokens += causal;
}

/*
 * Add a layer's measured recall to the counters. Returns the value for the session's page: 1 + the mean over the
 * measured sequences in millionths, or 0 if none was measured in this layer.
 */
static uint32_t take_layer(struct skv_session *s, struct skv_seq *const *seqs, const float *share, uint32_t n,
                           const struct skv_layer_set *layers, uint32_t layer)
{
	double sum = 0;
	uint32_t had = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!skv_layer_in(&layers[i], layer))
			continue;
		seqs[i]->recall.sum += share[i];
		seqs[i]->recall.layers++;
		sum += share[i];
		had++;
	}
	s->stats.recall_sum += sum;
	s->stats.recall_layers += had;
	return had ? 1 + (uint32_t)(sum / had * 1e6 + 0.5) : 0;
}

void stats_recall(struct skv_session *s, struct skv_seq *const *seqs, const float *share, uint32_t n,
                 const struct skv_layer_set *layers)
{
	for (uint32_t layer = 0; layer < s->model.n_layers && n > 0; layer++)
		atomic_store_explicit(&s->page->recall[layer],
		                      take_layer(s, seqs, share + (size_t)layer * RECALL_SEQS, n, layers, layer),
		                      memory_order_relaxed);
	if (n > 0)
		atomic_fetch_add_explicit(&s->page->recall_steps, 1, memory_order_relaxed);
}

void stats_step(struct skv_session *s)
{
	struct skv_session_page *p = s->page;
	struct skv_stats *t = &s->stats;
	struct step *st = &s->step;

	t->steps++;
	for (uint32_t i = 0; i < st->n; i++) {
		struct skv_seq *q = st->seqs[i];

		*(i < st->n_decode ? &t->decode_tokens : &t->prompt_tokens) += q->n_new;
		if (i < st->n_decode && q->n_new > 0 && !s->device) /* on a device, transaction_finished() counts */
			stats_attended(q, q->len - q->n_new, q->n_rows, q->step_attended);
		q->step_attended = 0;
	}
	if (!s->device)
		stats_recall(s, st->seqs, st->recall.share, st->recall.n, st->recall.layers);
	t->stock_pages = s->stock.n;
	atomic_store_explicit(&p->steps, t->steps, memory_order_relaxed);
	atomic_store_explicit(&p->prompt_tokens, t->prompt_tokens, memory_order_relaxed);
	atomic_store_explicit(&p->decode_tokens, t->decode_tokens, memory_order_relaxed);
	atomic_store_explicit(&p->attended_tokens, t->attended_tokens, memory_order_relaxed);
	atomic_store_explicit(&p->causal_tokens, t->causal_tokens, memory_order_relaxed);
	atomic_store_explicit(&p->evicted_pages, t->evicted_pages, memory_order_relaxed);
	atomic_store_explicit(&p->stock_pages, t->stock_pages, memory_order_relaxed);
	atomic_store_explicit(&p->policy_generation, s->policy->generation, memory_order_relaxed);
}
