/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/packing.c - how layers pack, as the kernels are told: by a policy's plans or by what a sequence says of
 * itself, by a compressor, and by how the model turns keys.
 *
 * On a device the compressor's numbers are there, once for each policy, or sequence that is unpacked; the host's are gone.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec.h"

#define PARTS 5u /* of a layer: matrices, k_norm */

/* ---- the compressor -------------------------------------------------------------------------- */

static bool needs_codec(uint32_t kind, uint32_t bits)
{
	return kind == SKV_PACK_DELTA && bits > 0;
}

/* The policy's parameter of this type, or NULL. */
static const struct skv_codec_file *codec_param(const struct policy *p)
{
	for (uint32_t i = 0; i < p->block->n_params; i++)
		if (p->block->params[i].type == SKV_PARAM_CODEC)
			return (const void *)((const char *)p->config + p->block->params[i].offset);
	return NULL;
}

/* Where the policy's compressor is, into k->path. */
static int find_codec(const struct skv_session *s, const struct policy *p, struct packing *k)
{
	const struct skv_codec_file *file = codec_param(p);
	const char *name = p->block->name;
	int n;

	if (!file)
		return fail(-EBADMSG, "%s: its layers pack by codes, but it has no parameter that names a compressor", name);
	if (!file->path[0] && !s->model.files[0])
		return fail(-EINVAL, "%s: the compressor is to be beside the model, but the engine has not said where that is: "
		            "name a file", name);
	n = file->path[0] ? snprintf(k->path, sizeof(k->path), "%s", file->path)
	                  : snprintf(k->path, sizeof(k->path), "%s/%s.safetensors", s->model.files, name);
	return n >= 0 && (size_t)n < sizeof(k->path) ? 0 : fail(-ENAMETOOLONG, "%s: the path of the compressor is too long",
	                                                        name);
}

static int read_codec(const struct skv_session *s, const struct skv_layer_set *coded, struct packing *k)
{
	char text[SKV_TEXT_MAX];
	int e = codec_read(k->path, skv_token_dims(&s->shape), s->model.head_dim, s->model.n_layers, coded, &k->codec, text,
	                   sizeof(text));

	return e < 0 ? fail(e, "%s", text) : 0;
}

/* ---- on a device ----------------------------------------------------------------------------- */

/* A copy of so many bytes in the device's memory, until packing_free(). */
static int to_device(struct packing *k, const void *from, size_t bytes, const void **ret)
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
		return fail(e, "compressor %.150s: %zu bytes on the device: %s", k->path, bytes, b->error());
	*ret = there;
	return 0;
}

static uint16_t to_bf16(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits)); /* finite: the file was looked at */
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A matrix of n numbers, if there is one, in place of the host's. */
static int matrix_to_device(struct packing *k, const void **matrix, size_t n)
{
	const float *from = *matrix;
	uint16_t *narrow;
	int e;

	if (!from)
		return 0;
	narrow = malloc(n * sizeof(*narrow));
	if (!narrow)
		return fail(-ENOMEM, "compressor %.150s: no memory for %zu numbers", k->path, n);
	for (size_t i = 0; i < n; i++)
		narrow[i] = to_bf16(from[i]);
	e = to_device(k, narrow, n * sizeof(*narrow), matrix);
	free(narrow);
	return e;
}

/* The kernels take it as it is. */
static int norm_to_device(struct packing *k, const float **norm, size_t n)
{
	const void *there = NULL;
	int e = *norm ? to_device(k, *norm, n * sizeof(**norm), &there) : 0;

	*norm = there;
	return e;
}

static int code_to_device(struct packing *k, struct skv_codes *c, size_t d, size_t head_dim)
{
	const size_t parts = c->spans ? 2 * c->spans : 1, from = c->hidden ? c->hidden : d, to = c->wide ? c->wide : c->width;
	int e = matrix_to_device(k, &c->in, 2 * c->hidden * d);

	if (e == 0)
		e = matrix_to_device(k, &c->down, c->width * from / parts);
	if (e == 0)
		e = matrix_to_device(k, &c->open, (size_t)c->wide * c->width);
	if (e == 0)
		e = norm_to_device(k, &c->k_norm, head_dim);
	return e < 0 ? e : matrix_to_device(k, &c->out, d * to / parts);
}

/* All that the kernels are told of. The device is entered. */
static int all_to_device(const struct skv_session *s, struct packing *k)
{
	const uint32_t layers = s->model.n_layers;
	const void *turn = NULL;
	int e;

	k->held = calloc(1 + (size_t)layers * PARTS, sizeof(*k->held));
	if (!k->held)
		return fail(-ENOMEM, "out of memory");
	k->backend = s->device->backend;
	k->device = s->device->number;
	e = to_device(k, k->turn, s->model.head_dim / 2 * sizeof(*k->turn), &turn);
	for (uint32_t layer = 0; layer < layers && e == 0; layer++) {
		k->layer[layer].code.turn = turn;
		e = code_to_device(k, &k->layer[layer].code, skv_token_dims(&s->shape), s->model.head_dim);
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

/* `turns`: the compressor takes keys as they are before rotary positions. */
static struct packing *packing_new(const struct skv_session *s, bool turns)
{
	const struct skv_model *m = &s->model;
	struct packing *k = calloc(1, sizeof(*k) + m->n_layers * sizeof(*k->layer));
	double scale = skv_rope_scale(&m->rope);

	if (!k)
		return NULL;
	k->turn = calloc(m->head_dim / 2, sizeof(*k->turn));
	if (!k->turn) {
		free(k);
		return NULL;
	}
	for (uint32_t i = 0; i < m->head_dim / 2; i++)
		k->turn[i] = skv_rope_frequency(&m->rope, m->head_dim, i);
	if (!turns)
		return k;
	k->rope = hash(14695981039346656037u, k->turn, m->head_dim / 2 * sizeof(*k->turn));
	k->rope = hash(k->rope, &scale, sizeof(scale));
	k->rope = hash(k->rope, &m->rope.dims, sizeof(m->rope.dims));
	k->rope = hash(k->rope, &m->rope.interleaved, sizeof(m->rope.interleaved));
	return k;
}

void packing_free(struct packing *k)
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

static int fits(const struct packing *k, const struct skv_form *f)
{
	const struct codec *c = k->codec;

	if (c->stride != f->stride || c->near != f->near)
		return fail(-EINVAL, "compressor %.150s was made for stride=%u and refs=%u, not for %u and %u", k->path, c->stride,
		            c->near, f->stride, f->near);
	if (c->width % f->group != 0)
		return fail(-EINVAL, "compressor %.150s has codes of %u numbers, expected a multiple of scale_block=%u", k->path,
		            c->width, f->group);
	return 0;
}

/*
 * A table has as many entries as the layer's rows take pages, so codes may not take more of these than the rows did. Of
 * `stride` tokens all but one have a code. References never take more: they are rows, or less.
 */
static int fits_table(const struct packing *k, const struct skv_shape *shape)
{
	const struct skv_codes *c = shape->code;
	uint64_t each = shape->page_bytes / skv_code_record_bytes(shape);

	if (c->kind == SKV_PACK_LOW) /* half as much as its rows, at most */
		return 0;
	if (c->stride ? each * c->stride >= (uint64_t)SKV_PAGE_TOKENS * (c->stride - 1) : each >= SKV_PAGE_TOKENS)
		return 0;
	return fail(-ENOTSUP, "compressor %.150s makes codes of %u bytes, which with stride=%u are more than the rows that they "
	            "are for: %llu codes in a page of %u", k->path, skv_code_bytes(c), c->stride,
	            (unsigned long long)each, SKV_PAGE_TOKENS);
}

/* Of residuals. */
static struct skv_codes codes_of(const struct skv_session *s, const struct packing *k, uint32_t layer, struct skv_form f)
{
	const struct codec *c = f.bits ? k->codec : NULL;
	const struct skv_rope *rope = &s->model.rope;

	return (struct skv_codes){
	        .kind = f.kind,
	        .first = f.first * SKV_PAGE_TOKENS,
	        .stride = f.stride,
	        .near = f.near,
	        .ref_bits = f.ref_bits,
	        .id_bytes = f.id_bytes,
	        .bits = f.bits,
	        .group = f.group,
	        .width = c ? c->width : 0,
	        .hidden = c ? c->hidden : 0,
	        .wide = c ? c->wide : 0,
	        .in = c ? c->layer[layer].in : NULL,
	        .down = c ? c->layer[layer].down : NULL,
	        .open = c ? c->layer[layer].open : NULL,
	        .out = c ? c->layer[layer].out : NULL,
	        .k_norm = c ? c->layer[layer].k_norm : NULL,
	        .turn = k->turn,
	        .turn_scale = (float)skv_rope_scale(rope),
	        .turn_dims = rope->type == SKV_ROPE_NONE ? 0 : rope->dims ? rope->dims : s->model.head_dim,
	        .interleaved = rope->interleaved,
	};
}

/* What the kernels are told of a layer, into k->layer[]; in host memory. */
static int describe(const struct skv_session *s, struct packing *k, uint32_t layer, struct skv_form f)
{
	const bool low = f.kind == SKV_PACK_LOW;
	struct skv_shape shape = layer_shape(s, layer);
	const char *wrong;
	int e = needs_codec(f.kind, f.bits) ? fits(k, &f) : 0;

	if (e < 0)
		return e;
	k->layer[layer].code = low ? (struct skv_codes){.kind = f.kind, .bits = f.bits, .group = f.group}
	                           : codes_of(s, k, layer, f);
	shape.code = &k->layer[layer].code;
	wrong = s->kernels->unsupported_codes(&shape);
	return wrong ? fail(-ENOTSUP, "layer %u cannot be packed so: %s", layer, wrong) : fits_table(k, &shape);
}

/* Of all layers that have a form; and brought to where the kernels are. */
static int describe_all(struct skv_session *s, struct packing *k, const struct skv_form *forms)
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
		e = all_to_device(s, k);
		device_leave(s, was);
	}
	return e;
}

struct skv_shape coded_shape(const struct skv_session *s, uint32_t layer, const struct packing *k)
{
	struct skv_shape shape = layer_shape(s, layer);

	shape.code = &k->layer[layer].code;
	return shape;
}

struct skv_shape group_shape(const struct skv_session *s, const struct group *g, uint32_t layer)
{
	return group_packs(g, layer) ? coded_shape(s, layer, g->policy->packing) : layer_shape(s, layer);
}

/* ---- what its hooks select ------------------------------------------------------------------- */

static void note_select(const struct skv_policy_ctx *ctx, const struct skv_select *select)
{
	struct policy *p = ctx->host;

	if (select->layer < ctx->model->n_layers)
		p->packing->layer[select->layer].select = *select;
}
static void no_select(const struct skv_policy_ctx *ctx, const struct skv_select *select)
{
	(void)ctx, (void)select;
}
static void no_layer(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	(void)ctx, (void)layer;
}
static void no_keep(const struct skv_policy_ctx *ctx, const struct skv_keep_best *keep)
{
	(void)ctx, (void)keep;
}
static void no_stamp(const struct skv_policy_ctx *ctx, const struct skv_stamp_pages *stamp)
{
	(void)ctx, (void)stamp;
}

/* Hooks ask for the same in every step: how much they select is known before the first one, and with it the room for it. */
static void listen(const struct skv_session *s, struct policy *p)
{
	static const struct skv_prims prims = {
	        .size = sizeof(prims),
	        .select_pages = no_select,
	        .select_tokens = note_select,
	        .select_union = no_select,
	        .score_pages = no_layer,
	        .tally = no_layer,
	        .keep_best = no_keep,
	        .stamp_pages = no_stamp,
	};
	const struct skv_policy_ctx ctx = {
	        .size = sizeof(ctx),
	        .n_seqs = 1,
	        .prims = &prims,
	        .model = &s->model,
	        .config = p->config,
	        .host = p,
	};

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		if (p->block->before)
			p->block->before(&ctx, layer);
		if (p->block->after)
			p->block->after(&ctx, layer);
	}
}

uint32_t packing_most(const struct policy *p, uint32_t layer, uint32_t len)
{
	const struct skv_plan *plan = &p->plan[layer];
	struct skv_choice x;

	if (plan->attend != SKV_ATTEND_TOKENS)
		return len;
	x = skv_choice_of(&p->packing->layer[plan->source].select, len);
	return x.pin + x.recent + x.want < len ? x.pin + x.recent + x.want : len;
}

/* ---- of a policy, of a sequence -------------------------------------------------------------- */

/* Is it known how keys turn, where that matters? */
static int check_turns(const struct skv_session *s, bool turns)
{
	if (!turns || s->model.rope.type != SKV_ROPE_UNKNOWN)
		return 0;
	return fail(-EINVAL, "keys are packed as they are before rotary positions, but the engine has not said how its model "
	            "turns them");
}

int packing_make(struct skv_session *s, struct policy *p)
{
	struct skv_form forms[SKV_MAX_LAYERS] = {0};
	struct skv_layer_set coded = {0};
	bool turns = false;
	int e;

	if (p->n_pack == 0)
		return 0;
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		const struct skv_pack *plan = &p->plan[layer].pack;

		if (plan->kind)
			forms[layer] = packs_form(plan, s->model.max_tokens);
		turns |= plan->kind == SKV_PACK_DELTA;
		if (needs_codec(plan->kind, plan->bits))
			coded.bits[layer / 64] |= (uint64_t)1 << layer % 64;
	}
	e = check_turns(s, turns);
	if (e < 0)
		return e;
	p->packing = packing_new(s, turns); /* policy_put() frees it */
	if (!p->packing)
		return fail(-ENOMEM, "out of memory");
	if (!skv_layer_set_empty(&coded)) {
		e = find_codec(s, p, p->packing);
		e = e < 0 ? e : read_codec(s, &coded, p->packing);
	}
	if (e == 0)
		e = describe_all(s, p->packing, forms);
	if (e == 0)
		listen(s, p);
	return e;
}

int packing_of(struct skv_seq *q, struct packing **ret)
{
	struct skv_session *s = q->session;
	const struct skv_seqmem *m = q->mem;
	struct skv_form forms[SKV_MAX_LAYERS] = {0};
	struct skv_layer_set coded = {0};
	struct packing *k;
	bool turns = false;
	int e;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		struct skv_form *f = &forms[layer];

		if (seq_coded(q, layer) > 0)
			*f = q->slots[layer].form;
		turns |= f->kind == SKV_PACK_DELTA;
		if (needs_codec(f->kind, f->bits))
			coded.bits[layer / 64] |= (uint64_t)1 << layer % 64;
	}
	e = check_turns(s, turns);
	if (e < 0)
		return e;
	k = packing_new(s, turns);
	if (!k)
		return fail(-ENOMEM, "out of memory");
	snprintf(k->path, sizeof(k->path), "%.*s", (int)sizeof(m->codec_path) - 1, m->codec_path);
	if (!skv_layer_set_empty(&coded))
		e = read_codec(s, &coded, k);
	if (e == 0 && ((k->codec && m->codec != k->codec->fingerprint) || (turns && m->rope != k->rope)))
		e = fail(-ENOTSUP, "sequence %u was packed by another content of %.150s, or its keys were turned in another way",
		         q->id, k->path);
	if (e == 0)
		e = describe_all(s, k, forms);
	if (e < 0)
		packing_free(k);
	else
		*ret = k;
	return e;
}

bool packing_is(const struct packing *k, const struct skv_seqmem *m)
{
	return m->codec == (k->codec ? k->codec->fingerprint : 0) && m->rope == k->rope;
}

void packing_sign(const struct packing *k, struct skv_seqmem *m)
{
	m->codec = k->codec ? k->codec->fingerprint : 0;
	m->rope = k->rope;
	memset(m->codec_path, 0, sizeof(m->codec_path));
	skv_wire_string(m->codec_path, sizeof(m->codec_path), k->path);
}
