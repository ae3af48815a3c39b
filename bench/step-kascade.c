/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/step-kascade.c - sparsekv-bench step: compares the attention of a whole step under Kascade with dense attention
 * in every layer.
 *
 * Layer 0 uses dense attention, and selects tokens. Some layers after it are anchors: an anchor scores all keys, selects
 * tokens, and attends to these tokens. A layer that is not an anchor attends to the tokens that the last anchor before
 * it, or layer 0, selected. A selection has one list of tokens for each kv head. Each layer has its own pages, in random
 * order. The kernels select tokens by the weights that they compute. On a device all layers are recorded as one CUDA
 * graph.
 */
#include "bench/kernel-fixture.h"
#include "bench/step.h"
#include <omp.h>
#include <stdlib.h>

#define ANCHORS 4 /* number of anchor layers besides layer 0; they are evenly spaced */

struct kascade {
	struct kernel_fixture fixture; /* its list made_tokens is the last selection */
	struct skv_scores scores;
	struct skv_select select;
};

static bool anchor(const struct kascade *k, uint32_t layer)
{
	uint32_t n = k->fixture.layers;
	for (uint32_t i = 1; i <= ANCHORS; i++)
		if (layer == i * n / (ANCHORS + 1) && layer > 0)
			return true;
	return false;
}

static void dense_step(struct kascade *k)
{
	struct kernel_fixture *b = &k->fixture;
	for (b->sh.layer = 0; b->sh.layer < b->layers; b->sh.layer++)
		b->o->kern->decode_dense(&b->sh, &b->step, b->q, b->out, NULL, &b->work);
}

static void sparse_step(struct kascade *k)
{
	const struct skv_kernels *kern = k->fixture.o->kern;
	struct kernel_fixture *b = &k->fixture;
	for (b->sh.layer = 0; b->sh.layer < b->layers; b->sh.layer++) {
		if (b->sh.layer == 0) {
			kern->decode_dense(&b->sh, &b->step, b->q, b->out, &k->scores, &b->work);
			kern->select(&b->sh, &b->step, &k->scores, true, &k->select, &b->made_tokens, &b->work);
		} else if (anchor(k, b->sh.layer)) {
			kern->decode_topk(&b->sh, &b->step, b->q, b->out, &k->scores, &k->select,
			                    &b->made_tokens, &b->work);
		} else {
			kern->decode_tokens(&b->sh, &b->step, b->q, b->out, &b->made_tokens, &b->work);
		}
	}
}

/* Returns the milliseconds of a step. `graph` is the recording of the step; NULL on the host. */
static double timed(struct kascade *k, void (*step)(struct kascade *), void *graph)
{
	struct kernel_fixture *b = &k->fixture;
	fixture_start(b);
	if (graph)
		fixture_need(b, b->o->device->graph_launch(graph, b->work.stream));
	else
		step(k);
	return fixture_stop(b);
}

/* Runs a step once, then records it, so that work that the kernels do only at their first use is not recorded. */
static void *record(struct kascade *k, void (*step)(struct kascade *))
{
	const struct skv_backend *d = k->fixture.o->device;
	void *graph = NULL;
	step(k);
	if (!d)
		return NULL;
	fixture_need(&k->fixture, d->wait(k->fixture.work.stream));
	fixture_need(&k->fixture, d->begin_capture(k->fixture.work.stream));
	step(k);
	fixture_need(&k->fixture, d->end_capture(k->fixture.work.stream, &graph));
	return graph;
}

static void forget(struct kascade *k, void *graph)
{
	if (graph)
		fixture_need(&k->fixture, k->fixture.o->device->graph_free(graph));
}

static void kascade_init(struct kascade *k, const struct fixture_options *o, const struct step_options *step)
{
	struct skv_shape sh = fixture_shape(step->heads, step->kv_heads, (uint32_t)step->dim, SKV_F16);
	const char *why = o->kern->unsupported(&sh);

	if (why) {
		fprintf(stderr, "sparsekv-bench: step: %s\n", why);
		exit(1);
	}
	if (fixture_init(&k->fixture, o, sh, (uint32_t)step->tokens, omp_get_max_threads()))
		exit(1);
	k->scores = (struct skv_scores){.rows = sh.n_kv_heads, .sum = true, .token = k->fixture.token_weight,
	                                    .token_stride = k->fixture.pages * SKV_PAGE_TOKENS};
	k->select = (struct skv_select){.budget.count = (uint32_t)step->budget, .recent_floor = 1};
}

void step_kascade(struct report *r, const struct step_options *given)
{
	static struct step_times dense, sparse;
	struct step_options o = *given;
	struct fixture_options fixture;
	struct kascade k;

	step_defaults(&o, &(struct step_options){.heads = 32, .kv_heads = 8, .layers = 32, .dim = 128, .batch = 16,
	                                         .tokens = 32768});
	o.budget = o.budget ? o.budget : o.tokens / 10;
	fixture = (struct fixture_options){.batch = o.batch, .layers = o.layers, .budget = 0.1};
	if (fixture_enter(&fixture, o.device))
		exit(1);
	kascade_init(&k, &fixture, &o);
	void *graphs[] = {record(&k, dense_step), record(&k, sparse_step)};
	for (long i = 0; i < o.repeat; i++) {
		dense.device_ms[dense.n++] = timed(&k, dense_step, graphs[0]);
		sparse.device_ms[sparse.n++] = timed(&k, sparse_step, graphs[1]);
	}
	step_report(r, "kascade", &o, "dense", &dense, "kascade", &sparse);
	forget(&k, graphs[0]);
	forget(&k, graphs[1]);
	fixture_deinit(&k.fixture);
}
