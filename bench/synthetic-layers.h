/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/synthetic-layers.h - a small synthetic attention model in which neighbouring rows attend to similar tokens.
 *
 * A token's vector has three parts: a topic, which changes slowly from row to row; a position, which changes quickly;
 * and a random content of its own. A query depends on topic and position, a key on content and position, and a value on
 * the content, each by random projections of the layer and head. So a row attends to neighbouring rows, whose positions
 * are similar, and to tokens anywhere whose content matches its topic. In the first eighth of the prompt one token in
 * eight is a landmark: it has a larger content and no position. So attention to a window misses the contribution of a
 * few distant tokens, and this missing part is nearly the same for the next row. Delta Attention measured this locality
 * in models (Figure 6b of the paper). If each row gets a new random topic, there is no locality, and everything else
 * stays the same.
 *
 * The output of a layer is projected randomly and added to the vectors of the tokens. So if a row's attention misses
 * tokens, its query, key and value in the next layer are different.
 */
#ifndef SKV_BENCH_SYNTHETIC_LAYERS_H
#define SKV_BENCH_SYNTHETIC_LAYERS_H

#include "kernels/kernels.h"
#include "kernels/prefill.h"

struct synthetic_shape {
	uint32_t tokens, heads, kv_heads, dim, layers;
	double topic; /* cosine between the topics of rows 64 apart; 0: each row has its own topic */
	uint64_t seed;
	int threads;
	const struct skv_kernels *kern;
};

/*
 * How a prompt is read: by a prefill plan; for a plan with a correction, `tail` tells whether the last rows of the
 * prompt are dense.
 */
struct synthetic_method {
	const char *name;
	struct skv_prefill plan;
	bool tail;
};

struct synthetic_layers;

/* Returns NULL if there is no memory. */
struct synthetic_layers *synthetic_layers_new(const struct synthetic_shape *);
void synthetic_layers_free(struct synthetic_layers *); /* NULL is ignored */

/* Inputs and output of one layer, [tokens][heads or kv_heads][dim]. */
struct synthetic_layer {
	float *q, *k, *v, *out;
};

/* Runs all layers, each on the tokens as changed by the layers before it. Returns [layers]; NULL: no memory. */
struct synthetic_layer *synthetic_run(struct synthetic_layers *, const struct synthetic_method *);
void synthetic_outputs_free(const struct synthetic_layers *, struct synthetic_layer *);

/* Computes the outputs of one layer from the given inputs by another method. Returns false if there is no memory. */
bool synthetic_attend(struct synthetic_layers *, const struct synthetic_layer *, const struct synthetic_method *,
                      float *out);

/* Returns the first row of a method's dense tail, or the number of tokens if the method has no dense tail. */
uint32_t synthetic_tail(const struct synthetic_shape *, const struct synthetic_method *);

#endif
