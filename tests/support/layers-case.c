/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/layers-case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/attention.h"
#include "tests/support/reference-attention.h"

#define GAP 0xa5 /* fills the gaps between rows, and must not change */
#define ROWS_CHECKED 5u /* of a prompt's chunk */

/* ---- the model ------------------------------------------------------------------------------- */

/* Returns 1 + an earlier layer that has its own K and V, or 0. */
static uint32_t owner_before(const struct layers_model *x, uint32_t layer)
{
	const uint32_t from = layer > 0 ? rnd_below(layer) : 0;

	return layer > 0 && !x->layer[from].shares_kv ? 1 + from : 0;
}

void layers_model(struct layers_model *x, const char *name, bool shared, uint32_t max_tokens)
{
	struct skv_model *m = &x->model;

	*x = (struct layers_model){.model = SKV_MODEL_INIT};
	m->n_layers = 5 + rnd_below(LAYERS_MAX - 4);
	m->n_kv_heads = 1 + rnd_below(2);
	m->n_heads = m->n_kv_heads * (1 + rnd_below(3));
	m->head_dim = devmem_is_device() ? 64 : 32 * (1 + rnd_below(2));
	m->kv_dtype = devmem_is_device() ? 1 + rnd_below(3) : rnd_below(4);
	m->io_dtype = rnd_below(2) && m->kv_dtype != SKV_FP8 ? m->kv_dtype : SKV_F32;
	if ((!devmem_is_device() || m->kv_dtype == SKV_FP8) && rnd_below(2))
		m->io_dtype = rnd_below(3);
	m->device = devmem_is_device() ? SKV_DEVICE_CUDA(0) : SKV_DEVICE_HOST;
	m->max_tokens = max_tokens;
	m->scale = rnd_below(2) ? 0.4f : 0;
	strcpy(m->name, name);
	m->layers = x->layer;
	for (uint32_t i = 0; i < m->n_layers; i++) {
		struct skv_model_layer *l = &x->layer[i];

		*l = SKV_MODEL_LAYER(.window = 0);
		if (i + 1 == m->n_layers)
			break;
		if (rnd_below(2))
			l->window = rnd_below(4) ? 1 + rnd_below(90) : max_tokens + rnd_below(2);
		l->softcap = rnd_below(2) ? (float)(0.5 + 3 * rnd_unit()) : 0;
		l->scale = rnd_below(3) ? 0 : 0.7f;
		l->sinks = rnd_below(2) ? x->sinks[i] : NULL;
		for (uint32_t h = 0; h < m->n_heads; h++)
			x->sinks[i][h] = (float)(8 * rnd_unit() - 2);
		l->shares_kv = shared && rnd_below(3) == 0 ? owner_before(x, i) : 0;
	}
}

/* ---- sequences ------------------------------------------------------------------------------- */

void layers_seq_init(const struct layers_model *x, struct layers_seq *q, struct skv_seq *seq, uint64_t key, uint32_t cap)
{
	*q = (struct layers_seq){.seq = seq, .key = key, .cap = cap, .exact = true};
	for (uint32_t layer = 0; layer < x->model.n_layers; layer++) {
		const size_t floats = (size_t)cap * x->model.n_kv_heads * x->model.head_dim;

		q->k[layer] = calloc(floats, sizeof(float));
		q->v[layer] = calloc(floats, sizeof(float));
	}
}

void layers_seq_deinit(struct layers_seq *q)
{
	for (uint32_t layer = 0; layer < LAYERS_MAX; layer++) {
		free(q->k[layer]);
		free(q->v[layer]);
	}
	*q = (struct layers_seq){0};
}

/* A row of all heads of the token in the io dtype, as the engine passes it. */
static void make_row(const struct layers_model *x, const struct layers_seq *q, uint32_t at, uint32_t layer, enum what what,
                     float *to)
{
	const struct skv_model *m = &x->model;
	const uint32_t heads = what == ROW_Q ? m->n_heads : m->n_kv_heads;

	for (uint32_t h = 0; h < heads; h++)
		refmodel_row(refmodel_content(q->key, at), layer, what, h, m->head_dim, to + h * m->head_dim);
	for (uint32_t d = 0; d < heads * m->head_dim; d++)
		to[d] = ref_round(m->io_dtype, to[d] * (what == ROW_Q ? 4 : 1));
}

/* K and V of a token as pages store them. */
static void put(const struct layers_model *x, struct layers_seq *q, uint32_t at, uint32_t layer)
{
	const size_t width = x->model.n_kv_heads * x->model.head_dim;

	make_row(x, q, at, layer, ROW_K, q->k[layer] + at * width);
	make_row(x, q, at, layer, ROW_V, q->v[layer] + at * width);
	for (size_t d = at * width; d < (at + 1) * width; d += x->model.head_dim) {
		ref_round_row(x->model.kv_dtype, q->k[layer] + d, x->model.head_dim);
		ref_round_row(x->model.kv_dtype, q->v[layer] + d, x->model.head_dim);
	}
}

/* ---- rows in memory -------------------------------------------------------------------------- */

/* One matrix of a layer: rows of `width` elements, `stride` apart, starting at element `first` of its memory. */
struct matrix {
	uint32_t width, stride, first;
	size_t bytes;
	uint8_t *host, *placed; /* the memory; several matrices may share it */
};

struct rows {
	struct matrix q, k, v, out;
	bool fused, in_place, kv; /* kv: the layer has K and V */
	float *lse;
};

static struct matrix matrix_of(uint32_t width, uint32_t stride, uint32_t rows, size_t element)
{
	struct matrix x = {.width = width, .stride = stride, .bytes = (size_t)rows * stride * element};

	x.host = malloc(x.bytes);
	memset(x.host, GAP, x.bytes);
	x.placed = devmem_get(x.bytes);
	return x;
}

static struct matrix part_of(const struct matrix *x, uint32_t width, uint32_t first)
{
	struct matrix p = *x;

	p.width = width;
	p.first = first;
	return p;
}

/* q, k and v in separate memory or in one fused projection, contiguous or with gaps, out in place of q or not. */
static struct rows rows_new(const struct layers_model *x, uint32_t n, bool kv)
{
	const struct skv_model *m = &x->model;
	const uint32_t q = m->n_heads * m->head_dim, k = m->n_kv_heads * m->head_dim;
	const size_t element = skv_dtype_bytes(m->io_dtype);
	struct rows r = {.fused = kv && rnd_below(3) == 0, .in_place = rnd_below(3) == 0, .kv = kv};

	if (r.fused) {
		r.q = matrix_of(q, q + 2 * k + 8 * rnd_below(3), n, element);
		r.k = part_of(&r.q, k, q);
		r.v = part_of(&r.q, k, q + k);
	} else {
		r.q = matrix_of(q, q + 8 * rnd_below(3), n, element);
		r.k = matrix_of(k, k + 8 * rnd_below(3), n, element);
		r.v = matrix_of(k, k + 8 * rnd_below(3), n, element);
	}
	r.out = r.in_place ? r.q : matrix_of(q, q + 8 * rnd_below(3), n, element);
	r.lse = rnd_below(4) ? devmem_get((size_t)n * m->n_heads * sizeof(float)) : NULL;
	return r;
}

static void matrix_free(const struct matrix *x)
{
	free(x->host);
	devmem_put(x->placed);
}

static void rows_free(const struct rows *r)
{
	matrix_free(&r->q);
	if (!r->fused) {
		matrix_free(&r->k);
		matrix_free(&r->v);
	}
	if (!r->in_place)
		matrix_free(&r->out);
	devmem_put(r->lse);
}

static uint8_t *element_of(const struct skv_model *m, const struct matrix *x, uint32_t row, uint32_t d)
{
	return x->host + ((size_t)row * x->stride + x->first + d) * skv_dtype_bytes(m->io_dtype);
}

static void set_row(const struct skv_model *m, const struct matrix *x, uint32_t row, const float *from)
{
	for (uint32_t d = 0; d < x->width; d++)
		ref_store(m->io_dtype, element_of(m, x, row, d), from[d]);
}

static void *at_first(const struct skv_model *m, const struct matrix *x)
{
	return x->placed + (size_t)x->first * skv_dtype_bytes(m->io_dtype);
}

/* 0 also means contiguous rows. */
static uint32_t stride_of(const struct matrix *x)
{
	return x->stride == x->width && rnd_below(2) ? 0 : x->stride;
}

static void attend(const struct layers_model *x, struct skv_session *s, uint32_t layer, struct rows *r)
{
	const struct skv_model *m = &x->model;
	struct skv_attn a = SKV_ATTN(.q = at_first(m, &r->q), .out = at_first(m, &r->out), .q_stride = stride_of(&r->q),
	                             .out_stride = stride_of(&r->out), .lse = r->lse);

	if (r->kv) {
		a.k = at_first(m, &r->k);
		a.v = at_first(m, &r->v);
		a.k_stride = stride_of(&r->k);
		a.v_stride = stride_of(&r->v);
		devmem_to(r->k.placed, r->k.host, r->k.bytes);
		devmem_to(r->v.placed, r->v.host, r->v.bytes);
	}
	devmem_to(r->q.placed, r->q.host, r->q.bytes);
	if (!r->in_place)
		devmem_to(r->out.placed, r->out.host, r->out.bytes);
	OK(skv_attend(s, layer, &a));
	devmem_from(r->out.host, r->out.placed, r->out.bytes);
}

/* ---- the reference --------------------------------------------------------------------------- */

static struct ref_softmax softmax_of(const struct layers_model *x, uint32_t layer, uint32_t head)
{
	const struct skv_model_layer *l = &x->layer[layer];
	const double scale = l->scale > 0 ? l->scale : x->model.scale > 0 ? (double)x->model.scale : 1 / sqrt(x->model.head_dim);

	return (struct ref_softmax){.scale = scale, .softcap = (double)l->softcap, .sink = l->sinks ? l->sinks + head : NULL};
}

/* The tokens, of n, that a head of the item's layer attends to, as the library reports them. */
static void reported(const struct layers_model *x, struct skv_session *s, uint32_t layer, uint32_t item, uint32_t head,
                     uint32_t n, bool *visible)
{
	const uint32_t heads = x->model.n_heads;
	struct skv_selection_info info;
	uint32_t *ids = calloc(n, sizeof(*ids)), unit;

	skv_selection_info_init(&info, sizeof(info));
	OK(skv_selection(s, layer, item, 0, &info, ids, n));
	if (info.rows > 1)
		OK(skv_selection(s, layer, item, head / (heads / info.rows), &info, ids, n));
	unit = info.attend == SKV_ATTEND_DENSE || info.attend == SKV_ATTEND_PAGES ? SKV_PAGE_TOKENS : 1;
	memset(visible, 0, n);
	for (uint32_t i = 0; i < info.n; i++)
		for (uint32_t t = ids[i] * unit; t < (ids[i] + 1) * unit && t < n; t++)
			visible[t] = true;
	free(ids);
}

static void compare(const struct layers_model *x, const struct layers_item *it, uint32_t layer, uint32_t head, uint32_t at,
                    const bool *visible, const struct rows *r, uint32_t row)
{
	const struct skv_model *m = &x->model;
	const uint32_t dim = m->head_dim, kv = head / (m->n_heads / m->n_kv_heads), owner = skv_model_kv_layer(m, layer);
	const double rounding = m->io_dtype == SKV_F32 ? 0 : m->io_dtype == SKV_F16 ? 0x1p-11 : 0x1p-8;
	/* for the same reason as for the log-sum-exp below */
	const double tolerance = devmem_is_device() ? 4e-2 : 5e-5;
	double want[SKV_MAX_HEAD_DIM], lse;
	float q[SKV_MAX_HEADS * SKV_MAX_HEAD_DIM], got;

	make_row(x, it->q, at, layer, ROW_Q, q);
	lse = ref_attention(q + head * dim, it->q->k[owner] + kv * dim, it->q->v[owner] + kv * dim, at + 1, m->n_kv_heads * dim,
	                    dim, softmax_of(x, layer, head), visible, want, NULL);
	for (uint32_t d = 0; d < dim; d++) {
		got = ref_load(m->io_dtype, element_of(m, &r->out, row, head * dim + d));
		if (!(fabs((double)got - want[d]) <= tolerance + rounding * fabs(want[d])))
			ck_abort_msg("layer %u (window %u, softcap %g), token %u, head %u, element %u: %g, expected %g", layer,
			             x->layer[layer].window, (double)x->layer[layer].softcap, at, head, d, (double)got, want[d]);
	}
	if (!r->lse)
		return;
	devmem_from(&got, r->lse + (size_t)row * m->n_heads + head, sizeof(got));
	/* a device multiplies q and k in 16 bits: for scores up to 20 that leaves two digits */
	ck_assert_msg(fabs((double)got - lse) <= (devmem_is_device() ? 5e-2 : 1e-4), "layer %u, token %u, head %u: log-sum-exp is %g, expected %g",
	              layer, at, head, (double)got, lse);
}

/* Checks item number i, whose rows begin at `row`. */
static void check_item(const struct layers_model *x, struct skv_session *s, const struct layers_item *it, uint32_t i,
                       uint32_t layer, const struct rows *r, uint32_t row)
{
	const uint32_t n = it->q->len + it->n, window = skv_model_window(&x->model, layer);
	bool *visible = calloc(n, sizeof(*visible)), *there = calloc(n, sizeof(*there));

	for (uint32_t head = 0; head < x->model.n_heads && (window || it->q->exact); head++) {
		if (!window)
			reported(x, s, layer, i, head, n, there);
		for (uint32_t j = 0; j < it->n; j++) {
			const uint32_t at = it->q->len + j;

			if (it->n > ROWS_CHECKED && j + 1 < it->n && rnd_below(it->n) >= ROWS_CHECKED)
				continue;
			for (uint32_t t = 0; t <= at; t++)
				visible[t] = window ? t + window > at : there[t];
			compare(x, it, layer, head, at, visible, r, row + j);
		}
	}
	free(visible);
	free(there);
}

/* Bytes between the rows of out have not changed. */
static void check_gaps(const struct skv_model *m, const struct rows *r, uint32_t rows)
{
	const size_t element = skv_dtype_bytes(m->io_dtype);

	for (uint32_t i = 0; i < rows && !r->in_place; i++)
		for (size_t b = r->out.width * element; b < r->out.stride * element; b++)
			ck_assert_msg(r->out.host[i * r->out.stride * element + b] == GAP, "row %u: byte %zu after it was written", i, b);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void attend_layer(const struct layers_model *x, struct skv_session *s, const struct layers_item *items, uint32_t n,
                         uint32_t rows, uint32_t layer)
{
	const struct skv_model *m = &x->model;
	struct rows r = rows_new(x, rows, skv_model_kv_layer(m, layer) == layer);
	float *row = malloc((size_t)m->n_heads * m->head_dim * sizeof(*row));
	uint32_t at = 0;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < items[i].n; j++, at++) {
			struct layers_seq *q = items[i].q;

			make_row(x, q, q->len + j, layer, ROW_Q, row);
			set_row(m, &r.q, at, row);
			if (!r.kv)
				continue;
			put(x, q, q->len + j, layer);
			make_row(x, q, q->len + j, layer, ROW_K, row);
			set_row(m, &r.k, at, row);
			make_row(x, q, q->len + j, layer, ROW_V, row);
			set_row(m, &r.v, at, row);
		}
	attend(x, s, layer, &r);
	at = 0;
	for (uint32_t i = 0; i < n; at += items[i++].n)
		check_item(x, s, &items[i], i, layer, &r, at);
	check_gaps(m, &r, rows);
	free(row);
	rows_free(&r);
}

void layers_step(const struct layers_model *x, struct skv_session *s, const struct layers_item *items, uint32_t n)
{
	struct skv_step_item *step = calloc(n, sizeof(*step));
	uint32_t rows = 0;

	for (uint32_t i = 0; i < n; i++) {
		step[i] = SKV_STEP_ITEM(.seq = items[i].q->seq, .n_tokens = items[i].n, .n_prompt_remaining = items[i].remaining,
		                        .flags = items[i].prompt ? SKV_STEP_PROMPT : 0);
		rows += items[i].n;
	}
	OK(skv_step_begin(s, step, n, devmem_stream()));
	for (uint32_t layer = 0; layer < x->model.n_layers; layer++)
		attend_layer(x, s, items, n, rows, layer);
	OK(skv_step_end(s, NULL, NULL));
	for (uint32_t i = 0; i < n; i++)
		items[i].q->len += items[i].n;
	free(step);
}
