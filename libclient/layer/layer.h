/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/layer/layer.h - one layer of the open step for one policy batch: all that attention needs of it.
 *
 * It is assembled once a layer, on the stack. Features attend with it, and need neither the session nor the sequences.
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
	struct skv_shape rows;  /* of K and V as rows ... */
	struct skv_shape shape; /* ... and as the batch has them: with codes, if it compresses the layer */
	uint32_t window;        /* the model's, in tokens; 0: none */
	bool compresses;        /* are older tokens of the batch's sequences compressed in it? */
	bool bounds, sketches;  /* does it have page bounds? sketches of its keys? */
	struct skv_batch decode, prefill; /* the batch's sequences that decode; those with prompt rows */
	/* single rows of decoding sequences, [row][sequence]: each a sequence that ends with it */
	struct skv_batch each;
	struct skv_batch maker;           /* `prefill` in the layer that makes the tile lists used here */
	const struct skv_kseq *prompts;   /* `prefill` in host memory */
	struct selection *own, *source;   /* its selection, and that of the layer whose lists its decode rows use */
	struct policy_batch *batch;
	struct step *step;
};

struct layer layer_of(struct skv_session *s, struct policy_batch *pb, uint32_t number, const struct skv_attn *a);

/* Sequences [first, first + n) of a batch, with the batch's bounds, each as a sequence of its own. */
struct skv_batch batch_part(struct skv_batch b, uint32_t first, uint32_t n);
/* Sequences of a policy batch as the layer's kernels see them: decoding ones with padding; those with prompt rows. */
struct skv_batch batch_decoding(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);
struct skv_batch batch_prompts(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);
/* Decoding sequences row by row, [rows][n]: each a sequence that ends with its row. */
struct skv_batch batch_rows(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);
/* Of all policy batches: the sequences as the layer's kernels see them. */
const struct layer_class *layer_class(const struct skv_session *s, uint32_t layer);
/* Sequence number `at` of the step as the layer's kernels see it, in host memory. */
const struct skv_kseq *layer_kseq(const struct skv_session *s, uint32_t layer, uint32_t at);

/* Are older tokens of the batch's sequences compressed in the layer? */
bool batch_compresses(const struct policy_batch *pb, uint32_t layer);
/* The layer's shape for kernels: K and V as rows; as the batch has them, which is laid out. */
struct skv_shape layer_shape(const struct skv_session *s, uint32_t layer);
struct skv_shape batch_shape(const struct skv_session *s, const struct policy_batch *pb, uint32_t layer);

#endif
