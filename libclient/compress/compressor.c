/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/compressor.c - makes compressors: how each layer compresses, in the structs that the kernels read.
 * The sources are a policy's plans or a sequence's memory, a codec's file, and the model's RoPE.
 *
 * If the session is on a device, the codec's weights are copied to device memory, once for each policy or each sequence
 * that is being decompressed; the host's copy is freed.
 */
#include "libclient/compress/compressor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/records.h"
#include "kernels/compress.h"
#include "libclient/compress/codec.h"
#include "libclient/compress/compressed-lengths.h"
#include "libclient/device/device.h"
#include "libclient/error.h"
#include "libclient/layer/layer.h"
#include "libclient/seq.h"

/* ---- the codec ------------------------------------------------------------------------------- */

static bool needs_codec(uint32_t kind, uint32_t bits)
{
	return kind == SKV_COMPRESS_LATENT && bits > 0;
}

/* The policy's parameter of type SKV_PARAM_CODEC, or NULL. */
static const struct skv_codec_file *codec_param(const struct policy *p)
{
	for (uint32_t i = 0; i < p->block->n_params; i++)
		if (p->block->params[i].type == SKV_PARAM_CODEC)
			return (const void *)((const char *)p->config + p->block->params[i].offset);
	return NULL;
}

/*
 * Set k->path to the path of the policy's codec: the file that the parameter names, or NAME.safetensors beside the
 * model.
 */
static int find_codec(const struct skv_session *s, const struct policy *p, struct compressor *k)
{
	const struct skv_codec_file *file = codec_param(p);
	const char *name = p->block->name;
	int n;

	if (!file)
		return error_set(-EBADMSG, "%s: its layers compress with a codec, but it has no parameter that names a compressor", name);
	if (!file->path[0] && !s->model.files[0])
		return error_set(-EINVAL, "%s: the compressor is to be beside the model, but the engine has not said where that is: "
		            "name a file", name);
	n = file->path[0] ? snprintf(k->path, sizeof(k->path), "%s", file->path)
	                  : snprintf(k->path, sizeof(k->path), "%s/%s.safetensors", s->model.files, name);
	return n >= 0 && (size_t)n < sizeof(k->path) ? 0 : error_set(-ENAMETOOLONG, "%s: the path of the compressor is too long",
	                                                        name);
}

static int read_codec(const struct skv_session *s, const struct skv_layer_set *coded, struct compressor *k)
{
	char text[SKV_TEXT_MAX];
	int e = codec_read(k->path, skv_token_dims(&s->shape) * s->model.n_ranks, s->model.head_dim, s->model.n_layers, coded, &k->codec, text,
	                   sizeof(text));

	return e < 0 ? error_set(e, "%s", text) : 0;
}

/* ---- on a device ----------------------------------------------------------------------------- */

#define PARTS 5u /* arrays of a layer at most: four matrices and k_norm */

/* Copy `bytes` bytes to the device's memory; compressor_free() frees the copy. */
static int to_device(struct compressor *k, const void *from, size_t bytes, const void **ret)
{
	const struct skv_backend *b = k->backend;
	void *there;
	int e = b->alloc(bytes, &there);

	if (e == 0) {
		k->held[k->n_held++] = there;
		e = b->copy(there, from, bytes, NULL);
	}
	if (e == 0)
		e = b->wait(NULL);
	if (e < 0)
		return error_set(e, "compressor %.150s: %zu bytes on the device: %s", k->path, bytes, b->error());
	*ret = there;
	return 0;
}

static uint16_t to_bf16(float x)
{
	uint32_t bits;

	/* x is finite, because the file was checked */
	memcpy(&bits, &x, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Replace the matrix, which has n numbers, by a bf16 copy in the device's memory; does nothing if *matrix is NULL. */
static int matrix_to_device(struct compressor *k, const void **matrix, size_t n)
{
	const float *from = *matrix;
	uint16_t *narrow;
	int e;

	if (!from)
		return 0;
	narrow = malloc(n * sizeof(*narrow));
	if (!narrow)
		return error_set(-ENOMEM, "compressor %.150s: no memory for %zu numbers", k->path, n);
	for (size_t i = 0; i < n; i++)
		narrow[i] = to_bf16(from[i]);
	e = to_device(k, narrow, n * sizeof(*narrow), matrix);
	free(narrow);
	return e;
}

/* Replace the vector k_norm, which has n numbers, by an fp32 copy in the device's memory; NULL stays NULL. */
static int norm_to_device(struct compressor *k, const float **norm, size_t n)
{
	const void *there = NULL;
	int e = *norm ? to_device(k, *norm, n * sizeof(**norm), &there) : 0;

	*norm = there;
	return e;
}

static int code_to_device(struct compressor *k, struct skv_codec *c, size_t d, size_t head_dim)
{
	const size_t parts = c->spans ? 2 * c->spans : 1, from = c->enc_hidden ? c->enc_hidden : d, to = c->dec_hidden ? c->dec_hidden : c->width;
	int e = matrix_to_device(k, &c->enc_in, 2 * c->enc_hidden * d);

	if (e == 0)
		e = matrix_to_device(k, &c->enc_out, c->width * from / parts);
	if (e == 0)
		e = matrix_to_device(k, &c->dec_in, (size_t)c->dec_hidden * c->width);
	if (e == 0)
		e = norm_to_device(k, &c->k_norm, head_dim);
	return e < 0 ? e : matrix_to_device(k, &c->dec_out, d * to / parts);
}

/* Copy all arrays of the compressor that kernels read to the session's device, which must be entered. */
static int to_session_device(const struct skv_session *s, struct compressor *k)
{
	const uint32_t layers = s->model.n_layers;
	const void *turn = NULL;
	int e;

	k->held = calloc(1 + (size_t)layers * PARTS, sizeof(*k->held));
	if (!k->held)
		return error_set(-ENOMEM, "out of memory");
	k->backend = s->device->backend;
	k->device = s->device->number;
	e = to_device(k, k->turn, s->model.head_dim / 2 * sizeof(*k->turn), &turn);
	for (uint32_t layer = 0; layer < layers && e == 0; layer++) {
		k->layer[layer].code.rope_freq = turn;
		e = code_to_device(k, &k->layer[layer].code, skv_token_dims(&s->shape) * s->model.n_ranks, s->model.head_dim);
	}
	codec_forget(k->codec);
	return e;
}

/* ---- for the kernels ------------------------------------------------------------------------- */

static uint64_t hash(uint64_t h, const void *bytes, size_t n)
{
	const uint8_t *p = bytes;

	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * 1099511628211u; /* FNV-1a */
	return h;
}

static uint64_t hash_of_rope(const struct skv_rope *rope, const double *turn, size_t n)
{
	double scale = skv_rope_scale(rope);
	uint64_t h = hash(14695981039346656037u, turn, n * sizeof(*turn));

	h = hash(h, &scale, sizeof(scale));
	h = hash(h, &rope->dims, sizeof(rope->dims));
	return hash(h, &rope->interleaved, sizeof(rope->interleaved));
}

/*
 * Make a compressor without codec for layers of these forms. *ret_coded: the layers that need a codec. Latent
 * compression stores keys as they are before RoPE, so it needs the model's RoPE.
 */
static int compressor_new(const struct skv_session *s, const struct skv_form *forms, struct skv_layer_set *ret_coded,
                          struct compressor **ret)
{
	const struct skv_model *m = &s->model;
	struct compressor *k;
	bool turns = false;

	*ret_coded = (struct skv_layer_set){0};
	for (uint32_t layer = 0; layer < m->n_layers; layer++) {
		turns |= forms[layer].kind == SKV_COMPRESS_LATENT;
		if (needs_codec(forms[layer].kind, forms[layer].bits))
			ret_coded->bits[layer / 64] |= (uint64_t)1 << layer % 64;
	}
	if (turns && m->rope.type == SKV_ROPE_UNKNOWN)
		return error_set(-EINVAL, "keys are compressed as they are before rotary positions, but the engine "
		                 "has not said how its model turns them");
	k = calloc(1, sizeof(*k) + m->n_layers * sizeof(*k->layer));
	if (k)
		k->turn = calloc(m->head_dim / 2, sizeof(*k->turn));
	if (!k || !k->turn) {
		free(k);
		return error_set(-ENOMEM, "out of memory");
	}
	for (uint32_t i = 0; i < m->head_dim / 2; i++)
		k->turn[i] = skv_rope_frequency(&m->rope, m->head_dim, i);
	k->rope = turns ? hash_of_rope(&m->rope, k->turn, m->head_dim / 2) : 0;
	*ret = k;
	return 0;
}

void compressor_free(struct compressor *k)
{
	void *was;

	if (!k)
		return;
	if (k->n_held > 0 && k->backend->enter(k->device, &was) == 0) {
		while (k->n_held > 0)
			k->backend->free(k->held[--k->n_held]);
		k->backend->leave(was);
	}
	free(k->held);
	codec_free(k->codec);
	free(k->turn);
	free(k);
}

static int fits(const struct compressor *k, const struct skv_form *f)
{
	const struct codec *c = k->codec;

	if (c->stride != f->stride || c->near != f->n_refs)
		return error_set(-EINVAL, "compressor %.150s was made for stride=%u and n_refs=%u, not for %u and %u", k->path, c->stride,
		            c->near, f->stride, f->n_refs);
	if (c->width % f->scale_block != 0)
		return error_set(-EINVAL, "compressor %.150s has codes of %u numbers, expected a multiple of scale_block=%u", k->path,
		            c->width, f->scale_block);
	return 0;
}

/*
 * Returns an error if a layer's codes or references could take more pages than the tokens' K and V rows did: a table
 * has only one entry for each page of rows. Of `stride` tokens, all but one have a code. With one rank, references
 * never take more pages, since a reference is at most as large as its token's rows.
 */
static int fits_table(const struct compressor *k, const struct skv_shape *shape, uint32_t max_tokens)
{
	const struct skv_codec *c = shape->codec;
	uint64_t each = shape->page_bytes / skv_code_record_bytes(shape);

	if (c->kind == SKV_COMPRESS_QUANT) /* a quantized token takes at most half the bytes of its rows */
		return 0;
	if (c->stride && skv_refs_before(c, max_tokens) > shape->page_bytes / skv_ref_bytes(c, skv_codec_dims(shape), shape->dtype) *
	                                                           skv_pages_of(max_tokens))
		return error_set(-ENOTSUP, "references of all %u ranks' heads, every %u tokens, are more than the rows of this one's",
		                 c->n_ranks, c->stride);
	if (c->stride ? each * c->stride >= (uint64_t)SKV_PAGE_TOKENS * (c->stride - 1) : each >= SKV_PAGE_TOKENS)
		return 0;
	return error_set(-ENOTSUP, "compressor %.150s makes codes of %u bytes, which with stride=%u are more than the rows that they "
	            "are for: %llu codes in a page of %u", k->path, skv_code_bytes(c), c->stride,
	            (unsigned long long)each, SKV_PAGE_TOKENS);
}

/* The codec struct with which the kernels do latent compression of form f in this layer. */
static struct skv_codec codes_of(const struct skv_session *s, const struct compressor *k, uint32_t layer,
                                 struct skv_form f)
{
	const struct codec *c = f.bits ? k->codec : NULL;
	const struct skv_rope *rope = &s->model.rope;

	return (struct skv_codec){
	        .kind = f.kind,
	        .first = f.first * SKV_PAGE_TOKENS,
	        .stride = f.stride,
	        .n_refs = f.n_refs,
	        .ref_bits = f.ref_bits,
	        .id_bytes = f.id_bytes,
	        .bits = f.bits,
	        .scale_block = f.scale_block,
	        .width = c ? c->width : 0,
	        .enc_hidden = c ? c->hidden : 0,
	        .dec_hidden = c ? c->wide : 0,
	        .enc_in = c ? c->layer[layer].in : NULL,
	        .enc_out = c ? c->layer[layer].down : NULL,
	        .dec_in = c ? c->layer[layer].open : NULL,
	        .dec_out = c ? c->layer[layer].out : NULL,
	        .k_norm = c ? c->layer[layer].k_norm : NULL,
	        .rope_freq = k->turn,
	        .rope_scale = (float)skv_rope_scale(rope),
	        .rope_dims = rope->type == SKV_ROPE_NONE ? 0 : rope->dims ? rope->dims : s->model.head_dim,
	        .interleaved = rope->interleaved,
	        .rank = s->model.rank,
	        .n_ranks = s->model.n_ranks,
	};
}

/* Fill k->layer[layer] with the layer's codec for the kernels and its form; all pointers lead to host memory. */
static int describe(const struct skv_session *s, struct compressor *k, uint32_t layer, struct skv_form f)
{
	const bool low = f.kind == SKV_COMPRESS_QUANT;
	struct skv_shape shape = layer_shape(s, layer);
	const char *wrong;
	int e = needs_codec(f.kind, f.bits) ? fits(k, &f) : 0;

	if (e < 0)
		return e;
	k->layer[layer].code = low ? (struct skv_codec){.kind = f.kind, .bits = f.bits, .scale_block = f.scale_block}
	                           : codes_of(s, k, layer, f);
	shape.codec = &k->layer[layer].code;
	wrong = s->kernels->unsupported_codec(&shape);
	k->layer[layer].form = f;
	k->layer[layer].form.code_size = (uint16_t)(skv_code_record_bytes(&shape) / SKV_RECORD_UNIT);
	k->layer[layer].form.ref_size =
	        (uint16_t)(f.stride ? skv_ref_bytes(shape.codec, skv_codec_dims(&shape), shape.dtype) / SKV_RECORD_UNIT : 0);
	return wrong ? error_set(-ENOTSUP, "layer %u cannot be compressed so: %s", layer, wrong)
	             : fits_table(k, &shape, s->model.max_tokens);
}

/*
 * Fill k->layer[] for all layers that have a form, and copy the codec's arrays to the session's device, if there is
 * one.
 */
static int describe_all(struct skv_session *s, struct compressor *k, const struct skv_form *forms)
{
	void *was;
	int e = 0;

	for (uint32_t layer = 0; layer < s->model.n_layers && e == 0; layer++)
		if (forms[layer].kind)
			e = describe(s, k, layer, forms[layer]);
	if (e < 0 || !s->device)
		return e;
	e = device_enter(s, &was);
	if (e == 0) {
		e = to_session_device(s, k);
		device_leave(s, was);
	}
	return e;
}

/* ---- what its hooks select ------------------------------------------------------------------- */

static void record_select(const struct skv_policy_ctx *ctx, const struct skv_select *select)
{
	struct policy *p = ctx->library;

	if (select->layer < ctx->model->n_layers)
		p->compressor->layer[select->layer].select = *select;
}

static void no_select(const struct skv_policy_ctx *ctx, const struct skv_select *select)
{
	(void)ctx, (void)select;
}

static void no_layer(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	(void)ctx, (void)layer;
}

static void no_keep(const struct skv_policy_ctx *ctx, const struct skv_evict_to_budget *keep)
{
	(void)ctx, (void)keep;
}

static void no_stamp(const struct skv_policy_ctx *ctx, const struct skv_touch_pages *stamp)
{
	(void)ctx, (void)stamp;
}

/*
 * Run the policy's hooks once, with primitives that only record what select_tokens() requests. Hooks request the same
 * selections in every step, so the size of selections, and of the scratch memory for decompressing them, is known
 * before the first step.
 */
static void listen(const struct skv_session *s, struct policy *p)
{
	static const struct skv_prims prims = {
	        .size = sizeof(prims),
	        .select_pages = no_select,
	        .select_tokens = record_select,
	        .select_union = no_select,
	        .score_pages = no_layer,
	        .accumulate_scores = no_layer,
	        .evict_to_budget = no_keep,
	        .touch_pages = no_stamp,
	};
	const struct skv_policy_ctx ctx = {
	        .size = sizeof(ctx),
	        .n_seqs = 1,
	        .prims = &prims,
	        .model = &s->model,
	        .config = p->config,
	        .library = p,
	};

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		if (p->block->before)
			p->block->before(&ctx, layer);
		if (p->block->after)
			p->block->after(&ctx, layer);
	}
}

/* ---- of a policy, of a sequence -------------------------------------------------------------- */

int compressor_make(struct skv_session *s, struct policy *p)
{
	struct skv_form forms[SKV_MAX_LAYERS] = {0};
	struct skv_layer_set coded;
	int e;

	if (p->n_compress == 0)
		return 0;
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		if (p->plan[layer].compress.kind)
			forms[layer] = compress_form(&p->plan[layer].compress, s->model.max_tokens);
	/* compressor_unmake() frees p->compressor, also after an error */
	e = compressor_new(s, forms, &coded, &p->compressor);
	if (e < 0)
		return e;
	if (!skv_layer_set_empty(&coded)) {
		e = find_codec(s, p, p->compressor);
		e = e < 0 ? e : read_codec(s, &coded, p->compressor);
	}
	if (e == 0)
		e = describe_all(s, p->compressor, forms);
	if (e == 0)
		listen(s, p);
	return e;
}

void compressor_unmake(struct policy *p)
{
	compressor_free(p->compressor);
}

int compressor_of_seq(struct skv_seq *q, struct compressor **ret)
{
	struct skv_session *s = q->session;
	const struct skv_seqmem *m = q->mem;
	struct skv_form forms[SKV_MAX_LAYERS] = {0};
	struct skv_layer_set coded;
	struct compressor *k;
	int e;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		if (seq_compressed(q, layer) > 0)
			forms[layer] = q->slots[layer].form;
	e = compressor_new(s, forms, &coded, &k);
	if (e < 0)
		return e;
	snprintf(k->path, sizeof(k->path), "%.*s", (int)sizeof(m->codec_path) - 1, m->codec_path);
	if (!skv_layer_set_empty(&coded))
		e = read_codec(s, &coded, k);
	if (e == 0 && ((k->codec && m->codec != k->codec->fingerprint) || (k->rope && m->rope != k->rope)))
		e = error_set(-ENOTSUP, "sequence %u was compressed by another content of %.150s, or its keys were turned in another way",
		         q->id, k->path);
	if (e == 0)
		e = describe_all(s, k, forms);
	if (e < 0)
		compressor_free(k);
	else
		*ret = k;
	return e;
}

bool compressor_matches(const struct compressor *k, const struct skv_seqmem *m)
{
	return m->codec == (k->codec ? k->codec->fingerprint : 0) && m->rope == k->rope;
}

bool compressor_equal(const struct compressor *a, const struct compressor *b)
{
	if (!a || !b)
		return a == b;
	return (a->codec ? a->codec->fingerprint : 0) == (b->codec ? b->codec->fingerprint : 0) && a->rope == b->rope;
}

void compressor_sign(const struct compressor *k, struct skv_seqmem *m)
{
	m->codec = k->codec ? k->codec->fingerprint : 0;
	m->rope = k->rope;
	memset(m->codec_path, 0, sizeof(m->codec_path));
	skv_wire_string(m->codec_path, sizeof(m->codec_path), k->path);
}

bool compressor_seals(const struct skv_session *s, const struct compressor *k)
{
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		if (k->layer[layer].form.first * SKV_PAGE_TOKENS >= SKV_BLOCK_TOKENS)
			return false;
	return true;
}

void compressor_announce(const struct skv_session *s, struct skv_seqmem *m)
{
	const struct policy *p = s->policy;

	if (!p->compressor || !compressor_seals(s, p->compressor))
		return;
	compressor_sign(p->compressor, m);
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		m->lay[0].slots[layer].form = p->compressor->layer[layer].form;
	m->about[0] = SKV_ABOUT_SLOTS;
}
