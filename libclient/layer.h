/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/layer.h - one layer of the open step for one policy batch: all that attention needs of it.
 *
 * It is put together once a layer, on the stack. The features attend by it, and need neither the session nor
 * the sequences.
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

struct compressor;
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
	bool compresses;        /* does it keep older tokens of the batch's sequences compressed? */
	bool bounds, sketches;  /* does it keep bounds of its pages, or sketches of its keys? */
	struct skv_batch decode, prefill; /* the batch's sequences that decode, and those with rows of prompts */
	struct skv_batch each;            /* single rows of those that decode: [row][sequence], each up to its own token */
	struct skv_batch maker;           /* `prefill` in the layer whose tile lists this one uses */
	const struct skv_kseq *prompts;   /* `prefill` in host memory */
	struct selection *own, *source;   /* its selection, and that of the layer whose lists its decode rows use */
	struct policy_batch *batch;
	struct step *step;
};

struct layer layer_of(struct skv_session *s, struct policy_batch *pb, uint32_t number, const struct skv_attn *a);

/* Some of a batch's sequences, under the same bounds, each by itself. */
struct skv_batch batch_part(struct skv_batch b, uint32_t first, uint32_t n);
/*
 * Sequences of a policy batch that decode, empty ones behind them, and those with rows of prompts, as the layer's kernels see
 * them.
 */
struct skv_batch batch_decoding(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);
struct skv_batch batch_prompts(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);
/* Those that decode, row by row: [rows][n], each row a sequence that ends with it. */
struct skv_batch batch_rows(struct skv_session *s, const struct policy_batch *pb, uint32_t layer);
/* And all sequences of the step. */
struct skv_batch layer_decoding(struct skv_session *s, uint32_t layer);
struct skv_batch layer_all(struct skv_session *s, uint32_t layer);
/* Number `at` of the step as the kernels of the layer see it, in host memory. */
const struct skv_kseq *layer_kseq(const struct skv_session *s, uint32_t layer, uint32_t at);

/* Does the layer keep older tokens of the batch's sequences compressed? */
bool batch_compresses(const struct policy_batch *pb, uint32_t layer);
/* The layer for kernels: its K and V as rows, compressed, or as the batch has them. */
struct skv_shape layer_shape(const struct skv_session *s, uint32_t layer);
struct skv_shape compressed_shape(const struct skv_session *s, uint32_t layer, const struct compressor *k);
struct skv_shape batch_shape(const struct skv_session *s, const struct policy_batch *pb, uint32_t layer);

#endif
