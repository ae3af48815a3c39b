/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/select/sketch.c - makes sketches of keys, and quantizes values to 2 bits (see kernels/select.h). */
#include "kernels/host/select/sketch.h"

struct update_params {
	const struct skv_shape *sh;
	struct sketch_layout layout;
	const struct skv_batch *batch;
	float *mean;     /* [seq][kv head][head_dim]: means of the first page's keys */
	uint32_t *first; /* [n + 1]: number of work items before those of sequence i; an item is a page */
	float signs[SKV_MAX_HEAD_DIM];
};

/*
 * Returns the first token of a sequence whose sketch this call makes. Tokens of the first page get their sketches when
 * that page is full.
 */
static uint32_t sketched_from(const struct skv_kseq *s)
{
	const uint32_t from = s->len - s->n_state;

	return s->len < SKV_PAGE_TOKENS ? s->len : from < SKV_PAGE_TOKENS ? 0 : from;
}

INLINE void mean_of(uint32_t dtype, const struct skv_shape *sh, const uint8_t *row, float *ret)
{
	const uint32_t dim = sh->head_dim;
	float unit[SKV_PAGE_TOKENS];

	for (uint32_t t = 0; dtype == SKV_FP8 && t < SKV_PAGE_TOKENS; t++)
		unit[t] = skv_row_unit(sh, row + t * dim);
	for (uint32_t d = 0; d < dim; d += VL) {
		vf sum = {0};
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) {
			const vf x = v_load(dtype, row + ((size_t)t * dim + d) * skv_dtype_bytes(dtype));
			sum += (dtype == SKV_FP8 ? x * unit[t] : x) / SKV_PAGE_TOKENS;
		}
		v_storef(ret + d, sum);
	}
}

/* A work item: computes the mean of the keys in a head's first page; zeros if that page was evicted or is not full. */
static void mean_item(void *ctx, uint32_t item, int thread)
{
	const struct update_params *u = ctx;
	const struct skv_shape *sh = u->sh;
	const struct skv_kseq *s = &u->batch->seq[item / sh->n_kv_heads];
	const skv_pte entry = s->len < SKV_PAGE_TOKENS ? 0 : skv_layer_table(sh, s)[0];
	float *mean = u->mean + (size_t)item * sh->head_dim;
	(void)thread;

	if (!skv_pte_resident(entry))
		memset(mean, 0, sh->head_dim * sizeof *mean);
	else
		BY_DTYPE(sh->dtype, mean_of, sh, skv_page_k(sh, entry, item % sh->n_kv_heads), mean);
}

/*
 * Packs `width` bits of each code, from bit `shift` of the code on, into dim * width / 8 bytes; 4 codes are packed at a
 * time, as a word.
 */
INLINE void pack(uint8_t *to, const uint8_t *code, uint32_t dim, const uint32_t width, const uint32_t shift)
{
	const uint32_t stride = dim * width / 8, mask = ((1u << width) - 1) * 0x01010101u;

	for (uint32_t i = 0; i < stride; i += 4) {
		uint32_t all = 0;
		for (uint32_t at = 0; at < 8 / width; at++) {
			uint32_t four;
			memcpy(&four, code + at * stride + i, sizeof four);
			all |= (four >> shift & mask) << at * width;
		}
		memcpy(to + i, &all, sizeof all);
	}
}

/*
 * Returns the codes of VL elements of a rotated key, and the values of the codes in *ret_value. Adding `magic` leaves
 * no room for fraction bits, so the sum's lowest bits are the code. The code of a NaN is 0; with 1 bit, it is the NaN's
 * sign.
 */
INLINE vi codes_of(vf x, const int bits, float inverse, vf *ret_value)
{
	const float half = (float)(1 << (bits - 1)), magic = 0x1.8p23f + half;
	vi code;

	if (bits == 1) {
		code = ((vi)x >> 31) + 1;
	} else {
		x = v_max(x * inverse - 0.5f, v_set(-half));
		code = (vi)(magic - v_max(-x, v_set(1 - half))) & 15;
	}
	*ret_value = __builtin_convertvector(code, vf) + (0.5f - half);
	return code;
}

/* Encodes a rotated key as a sketch: a row of codes and a scale. The scale is a NaN if an element of the key is one. */
INLINE void encode(const vf *x, uint32_t dim, const int bits, uint8_t *row, uint16_t *scale)
{
	static const float steps[] = {0, 0, 1, 0.586f, 0.335f};
	vf squares = {0}, dot = {0}, norm = {0}, value;
	uint8_t code[SKV_MAX_HEAD_DIM];

	for (uint32_t i = 0; i < dim / VL; i++)
		squares = v_fma(x[i], x[i], squares);
	const float step = steps[bits] * sqrtf(v_fold_runs(V_SUM, squares, VL)[0] / (float)dim);
	for (uint32_t i = 0; i < dim / VL; i++) {
		v_store_u8(code + i * VL, codes_of(x[i], bits, 1 / step, &value));
		dot = v_fma(x[i], value, dot);
		norm = v_fma(value, value, norm);
	}
	pack(row, code, dim, bits == 3 ? 2 : (uint32_t)bits, 0);
	if (bits == 3)
		pack(row + dim / 4, code, dim, 1, 2);
	*scale = to_bf16(v_fold_runs(V_SUM, dot, VL)[0] / v_fold_runs(V_SUM, norm, VL)[0]);
}

/*
 * Quantizes a group of a value row. Writes each element's 2-bit code to a byte of `code`, and the group's least value and
 * step to `steps`. If an element is a NaN or infinite, all elements become NaNs.
 */
INLINE void encode_group(const vf *x, uint8_t *code, uint16_t *steps)
{
	vf least = x[0], most = x[0], odd = {0};

	for (uint32_t i = 0; i < SKV_VALUE_GROUP / VL; i++) {
		least = -v_max(-x[i], -least);
		most = v_max(x[i], most);
		odd += x[i] * 0; /* a NaN or an infinity makes a NaN */
	}
	least = -v_fold_runs(V_MAX, -least, VL) + v_fold_runs(V_SUM, odd, VL);
	steps[0] = to_bf16(least[0]);
	steps[1] = to_bf16((v_fold_runs(V_MAX, most, VL)[0] - least[0]) / 3);
	const float step = from_bf16(steps[1]), inverse = step > 0 ? 1 / step : 0;
	for (uint32_t i = 0; i < SKV_VALUE_GROUP / VL; i++) {
		const vf y = v_max((x[i] - from_bf16(steps[0])) * inverse, v_set(0));
		v_store_u8(code + i * VL, (vi)(0x1.8p23f - v_max(-y, v_set(-3))) & 3);
	}
}

INLINE void encode_value(const vf *x, uint32_t dim, uint8_t *row, uint16_t *steps)
{
	uint8_t code[SKV_MAX_HEAD_DIM];

	for (uint32_t d = 0; d < dim; d += SKV_VALUE_GROUP, steps += 2)
		encode_group(x + d / VL, code + d, steps);
	pack(row, code, dim, 2, 0);
}

INLINE void update_values(uint32_t dtype, const struct update_params *u, const uint8_t *value, uint32_t n, uint8_t *row,
                          uint8_t *steps)
{
	const uint32_t dim = u->sh->head_dim;
	vf x[SKV_MAX_HEAD_DIM / VL];

	for (uint32_t t = 0; t < n; t++) {
		const float unit = dtype == SKV_FP8 ? skv_row_unit(u->sh, value) : 1;
		for (uint32_t i = 0; i < dim / VL; i++)
			x[i] = v_load(dtype, value + i * VL * skv_dtype_bytes(dtype)) * unit;
		encode_value(x, dim, row, (uint16_t *)steps);
		value += dim * skv_dtype_bytes(dtype);
		row += u->layout.value_row;
		steps += u->layout.value_steps;
	}
}

/*
 * Makes the sketches of n consecutive keys; the codes and the scale of the first key are written to `row` and `scale`.
 */
INLINE void update_rows(uint32_t dtype, const struct update_params *u, const uint8_t *key, uint32_t n, const float *mean, uint8_t *row,
                        uint16_t *scale)
{
	const uint32_t dim = u->sh->head_dim;
	vf x[SKV_MAX_HEAD_DIM / VL];

	for (uint32_t t = 0; t < n; t++, key += dim * skv_dtype_bytes(dtype), row += u->layout.row, scale++) {
		const float unit = dtype == SKV_FP8 ? skv_row_unit(u->sh, key) : 1;
		for (uint32_t i = 0; i < dim / VL; i++) {
			x[i] = v_load(dtype, key + i * VL * skv_dtype_bytes(dtype));
			x[i] = (dtype == SKV_FP8 ? x[i] * unit : x[i]) - v_loadf(mean + i * VL);
		}
		rotate(dim, u->signs, x);
		switch (u->sh->sketch_bits) {
		case 1: encode(x, dim, 1, row, scale); break;
		case 2: encode(x, dim, 2, row, scale); break;
		case 3: encode(x, dim, 3, row, scale); break;
		default: encode(x, dim, 4, row, scale);
		}
	}
}

static void update_item(void *ctx, uint32_t item, int thread)
{
	const struct update_params *u = ctx;
	const struct skv_shape *sh = u->sh;
	const struct sketch_layout *l = &u->layout;
	const uint32_t i = skv_range_of(u->first, u->batch->n, item), dim = sh->head_dim;
	const struct skv_kseq *s = &u->batch->seq[i];
	const uint32_t begin = sketched_from(s), page = begin / SKV_PAGE_TOKENS + item - u->first[i];
	const uint32_t from = skv_max(begin, page * SKV_PAGE_TOKENS), to = skv_min(s->len, (page + 1) * SKV_PAGE_TOKENS);
	const skv_pte entry = skv_layer_table(sh, s)[page], state = skv_state_table(sh, s)[from / l->tokens];
	(void)thread;

	if (!skv_pte_resident(entry) || !skv_pte_resident(state))
		return;
	for (uint32_t h = 0; h < sh->n_kv_heads; h++) {
		const float *mean = u->mean + ((size_t)i * sh->n_kv_heads + h) * dim;
		uint8_t *part = sh->pool + skv_pte_id(state) * sh->page_bytes + h * l->head_bytes;
		uint8_t *row = part + from % l->tokens * l->row;
		uint16_t *scale = (uint16_t *)(part + l->scales) + from % l->tokens;
		const uint8_t *key = skv_key_row(sh, entry, h, from);
		BY_DTYPE(sh->dtype, update_rows, u, key, to - from, mean, row, scale);
		if (sh->value_bits)
			BY_DTYPE(sh->dtype, update_values, u, key + skv_v_offset(sh), to - from,
			         part + l->values + from % l->tokens * l->value_row,
			         part + l->steps + from % l->tokens * l->value_steps);
	}
}

void ISA(update_sketches)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct update_params u = {.sh = sh, .layout = sketch_layout_of(sh), .batch = batch};

	signs_of(sh->head_dim, u.signs);
	u.first = carve(&c, (n + 1) * sizeof *u.first);
	u.mean = carve(&c, (size_t)n * sh->n_kv_heads * sh->head_dim * sizeof *u.mean);
	u.first[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		u.first[i + 1] = u.first[i] + skv_pages_of(batch->seq[i].len) -
		                 skv_min(sketched_from(&batch->seq[i]) / SKV_PAGE_TOKENS, skv_pages_of(batch->seq[i].len));
	skv_run(n > 4 ? work->threads : 1, n * sh->n_kv_heads, mean_item, &u);
	skv_run(u.first[n] > 4 ? work->threads : 1, u.first[n], update_item, &u);
}

size_t ISA(update_sketches_bytes)(const struct skv_shape *sh, uint32_t n_seqs)
{
	return carve_size((n_seqs + 1) * sizeof(uint32_t)) +
	       carve_size((size_t)n_seqs * sh->n_kv_heads * sh->head_dim * sizeof(float));
}
