/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/synthetic-layers.h - a small synthetic attention model in which neighbouring rows attend to similar tokens.
 *
 * A token's vector has three parts: a topic, which drifts slowly from row to row; a position, which drifts quickly;
 * and a content of its own. A query depends on topic and position, a key on content and position, a value on the
 * content, each by random projections of the layer and head. So a row attends to its neighbourhood, which has similar
 * positions, and to tokens anywhere that match its topic. In the first eighth of the prompt one token in eight is a
 * landmark: its content is larger, and it has no position. So a window cuts off the contribution of a few distant
 * tokens, which is nearly the same for the next row: this is the locality that Delta Attention measured (its Figure
 * 6b). If each row draws a new topic, there is no locality, and everything else is equal.
 *
 * A layer's output is added to the vectors by a random projection. So a row whose attention misses tokens has other
 * queries, keys and values in the next layer.
 */
#ifndef SKV_BENCH_SYNTHETIC_LAYERS_H
#define SKV_BENCH_SYNTHETIC_LAYERS_H

#include "kernels/kernels.h"
#include "kernels/prefill.h"

struct synthetic_shape {
	uint32_t tokens, heads, kv_heads, dim, layers;
	double topic; /* cosine of the topics of rows 64 apart; 0: each row has its own topic */
	uint64_t seed;
	int threads;
	const struct skv_kernels *kern;
};

/* How a prompt is read: a plan; with a correction, `tail` says whether it ends with dense rows. */
struct synthetic_method {
	const char *name;
	struct skv_prefill plan;
	bool tail;
};

struct synthetic_layers;

/* NULL: out of memory. */
struct synthetic_layers *synthetic_layers_new(const struct synthetic_shape *);
void synthetic_layers_free(struct synthetic_layers *); /* NULL is ignored */

/* Inputs and output of one layer, [tokens][heads or kv_heads][dim]. */
struct synthetic_layer {
	float *q, *k, *v, *out;
};

/* Runs all layers, each on the outputs of those before; returns [layers]. NULL: out of memory. */
struct synthetic_layer *synthetic_run(struct synthetic_layers *, const struct synthetic_method *);
void synthetic_outputs_free(const struct synthetic_layers *, struct synthetic_layer *);

/* Computes one layer's outputs from the given inputs by another method. False: out of memory. */
bool synthetic_attend(struct synthetic_layers *, const struct synthetic_layer *, const struct synthetic_method *,
                      float *out);

/* Returns the first row of a method's dense tail; the number of tokens, if it has none. */
uint32_t synthetic_tail(const struct synthetic_shape *, const struct synthetic_method *);

#endif
