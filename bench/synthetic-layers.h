/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/synthetic-layers.h - a few layers of attention over rows whose needs move slowly, made to order.
 *
 * A token's vector has three parts: a topic, the same for rows near to each other but for a slow drift; a position,
 * which drifts quickly; and content of its own. A query is the topic's and the position's, a key the content's and
 * the position's, a value the content's, each by random projections of the layer and head. So a row attends to its
 * neighbourhood, whose positions are as its own, and to whatever its topic asks for, wherever that is. In the first
 * eighth of the prompt one token in eight is a landmark: its content is larger, it has no position. So what a window
 * cuts off is what few far tokens say to this topic, and nearly the same for the next row: the locality that Delta
 * Attention measured (its Figure 6b). With topics that each row draws anew there is none, and all else is equal.
 *
 * What a layer gives is added to the vectors, by a random projection. So a row to which something was not said has
 * other queries, keys and values in the next layer.
 */
#ifndef SKV_BENCH_SYNTHETIC_LAYERS_H
#define SKV_BENCH_SYNTHETIC_LAYERS_H

#include "kernels/kernels.h"
#include "kernels/prefill.h"

struct synthetic_shape {
	uint32_t tokens, heads, kv_heads, dim, layers;
	double topic; /* cosine of the topics of rows 64 apart; 0: each row has its own */
	uint64_t seed;
	int threads;
	const struct skv_kernels *kern;
};

/* How prompts are read: a plan, but that with a correction there need not be a tail of dense rows. */
struct synthetic_method {
	const char *name;
	struct skv_prefill plan;
	bool tail;
};

struct synthetic_layers;

/* NULL: out of memory. */
struct synthetic_layers *synthetic_layers_new(const struct synthetic_shape *);
void synthetic_layers_free(struct synthetic_layers *); /* NULL is ignored */

/* What one layer is given and gives, [tokens][heads or kv_heads][dim]. */
struct synthetic_layer {
	float *q, *k, *v, *out;
};

/* All layers [layers], each with what those before it gave; NULL: out of memory. */
struct synthetic_layer *synthetic_run(struct synthetic_layers *, const struct synthetic_method *);
void synthetic_outputs_free(const struct synthetic_layers *, struct synthetic_layer *);

/* One layer's outputs, of the same inputs, another way. False: out of memory. */
bool synthetic_attend(struct synthetic_layers *, const struct synthetic_layer *, const struct synthetic_method *,
                      float *out);

/* Rows of a way from here on are its dense tail; the tokens, if it has none. */
uint32_t synthetic_tail(const struct synthetic_shape *, const struct synthetic_method *);

#endif
