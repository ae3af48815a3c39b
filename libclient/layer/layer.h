/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/layer/layer.h - one layer of the open step for one policy batch: the arguments of its attention.
 *
 * A struct layer is assembled once for each layer, on the stack. With it, the features' attention functions need
 * neither the session nor the sequences.
 */
#ifndef SKV_CLIENT_LAYER_H
#define SKV_CLIENT_LAYER_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/client.h>
#include <sparsekv/policy.h>

#include "kernels/evict.h"
#include "kernels/kernels.h"
#include "kernels/select.h"
#include "libclient/step.h"

struct skv_session;

struct layer {
	uint32_t number;
	const struct skv_attn *attn; /* q, k, v, out */
	const struct skv_plan *plan;
	const struct skv_kernels *kernels;
	const struct skv_workspace *work;
	struct skv_shape rows;  /* shape of the layer with K and V as rows */
	struct skv_shape shape; /* the same shape, with the codec if the batch compresses the layer */
	uint32_t window;        /* tokens of the model's sliding window in this layer; 0: none */
	bool compresses;        /* are older tokens of the batch's sequences compressed in this layer? */
	bool bounds, sketches;  /* does the plan keep page bounds of the layer? sketches of its keys? */
	struct skv_batch decode, prefill; /* the batch's sequences that decode; its sequences with prompt rows */
	/* [row][sequence]: the rows of decoding sequences, each as a sequence that ends with this row */
	struct skv_batch each;
	struct skv_batch maker;           /* `prefill` of the layer that makes the tile lists which this layer uses */
	const struct skv_kseq *prompts;   /* the sequences of `prefill`, in host memory */
	/* this layer's selection; the selection of the layer whose lists its decode rows use */
	struct selection *own, *source;
	struct policy_batch *batch;
	struct step *step;
};

struct layer layer_of(struct skv_session *s, struct policy_batch *pb, uint32_t number, const struct skv_attn *a);

/*
 * Returns sequences [first, first + n) of a batch, with the batch's bounds. Each counts as a sequence of its own (rows
 * = 0).
 */
struct skv_batch batch_part(struct skv_batch b, uint32_t first, uint32_t n);
/*
 * The sequences of a policy batch as the layer's kernels see them: batch_decoding() returns those that decode, with
 * padding; batch_prompts() those with prompt rows.
 */
struct skv_batch batch_decoding(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);
struct skv_batch batch_prompts(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);
/* [rows][n]: the rows of the policy batch's n decoding sequences, each as a sequence that ends with this row. */
struct skv_batch batch_rows(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);
/* The class of the layer, with the sequences of all policy batches as the layer's kernels see them. */
const struct layer_class *layer_class(const struct skv_session *s, uint32_t layer);
/* Sequence number `at` of the step as the layer's kernels see it, in host memory. */
const struct skv_kseq *layer_kseq(const struct skv_session *s, uint32_t layer, uint32_t at);

/* Are older tokens of the batch's sequences compressed in the layer? */
bool batch_compresses(const struct policy_batch *pb, uint32_t layer);
/*
 * The layer's shape for kernels: layer_shape() with K and V as rows, batch_shape() with the codec and the sketches of
 * the batch, after the step was laid out.
 */
struct skv_shape layer_shape(const struct skv_session *s, uint32_t layer);
struct skv_shape batch_shape(const struct skv_session *s, const struct policy_batch *pb, uint32_t layer);

#endif
