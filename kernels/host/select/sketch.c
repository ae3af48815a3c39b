/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/select/sketch.c - sketches of keys; kernels/select.h says what they are. */
#include "kernels/host/select/sketch.h"

struct update_params {
	const struct skv_shape *sh;
	struct sketch_layout layout;
	const struct skv_batch *batch;
	float *mean;     /* [seq][kv head][head_dim] */
	uint32_t *first; /* items before sequence i; an item is a page */
};

/* A sequence's first token that gets a sketch: with the first page full, all of its tokens do. */
static uint32_t sketched_from(const struct skv_kseq *s)
{
	const uint32_t from = s->len - s->n_bounds;

	return s->len < SKV_PAGE_TOKENS ? s->len : from < SKV_PAGE_TOKENS ? 0 : from;
}

/* The mean of a head's first page of keys; zeros if that was evicted. */
static void mean_item(void *ctx, uint32_t item, int thread)
{
	const struct update_params *u = ctx;
	const struct skv_shape *sh = u->sh;
	const skv_pte entry = skv_layer_table(sh, &u->batch->seq[item / sh->n_kv_heads])[0];
	float *mean = u->mean + (size_t)item * sh->head_dim, key[SKV_MAX_HEAD_DIM];
	(void)thread;

	memset(mean, 0, sh->head_dim * sizeof *mean);
	if (u->batch->seq[item / sh->n_kv_heads].len < SKV_PAGE_TOKENS || !skv_pte_resident(entry))
		return;
	for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) {
		load_key(sh, skv_key_row(sh, entry, item % sh->n_kv_heads, t), key);
		for (uint32_t d = 0; d < sh->head_dim; d++)
			mean[d] += key[d] / SKV_PAGE_TOKENS;
	}
}

/* `width` bits of each code from bit `shift` on. */
static void pack(uint8_t *to, const uint8_t *code, uint32_t dim, uint32_t width, uint32_t shift)
{
	const uint32_t stride = dim * width / 8, mask = (1u << width) - 1;

	memset(to, 0, stride);
	for (uint32_t at = 0; at * width < 8; at++)
		for (uint32_t i = 0; i < stride; i++)
			to[i] |= (uint8_t)((code[at * stride + i] >> shift & mask) << at * width);
}

static uint16_t to_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof u);
	return x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Of a rotated key; the scale is not a number where an element is none. */
static void encode(const struct skv_shape *sh, const float *x, uint8_t *row, uint16_t *scale)
{
	static const float steps[] = {0, 0, 1, 0.586f, 0.335f};
	const uint32_t dim = sh->head_dim, bits = sh->sketch_bits;
	const int half = 1 << (bits - 1);
	float squares = 0, dot = 0, norm = 0, step;
	uint8_t code[SKV_MAX_HEAD_DIM];

	for (uint32_t d = 0; d < dim; d++)
		squares += x[d] * x[d];
	step = steps[bits] * sqrtf(squares / (float)dim);
	for (uint32_t d = 0; d < dim; d++) {
		const float nearest = bits == 1 ? copysignf(0.5f, x[d]) - 0.5f : rintf(x[d] / step - 0.5f);
		const int u = nearest > (float)-half ? nearest < (float)half ? (int)nearest + half : 2 * half - 1 : 0;
		const float value = (float)u + 0.5f - (float)half;
		code[d] = (uint8_t)u;
		dot += x[d] * value;
		norm += value * value;
	}
	pack(row, code, dim, bits == 3 ? 2 : bits, 0);
	if (bits == 3)
		pack(row + dim / 4, code, dim, 1, 2);
	*scale = to_bf16(dot / norm);
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
	float key[SKV_MAX_HEAD_DIM];
	(void)thread;

	if (!skv_pte_resident(entry) || !skv_pte_resident(state))
		return;
	for (uint32_t h = 0; h < sh->n_kv_heads; h++)
		for (uint32_t t = from; t < to; t++) {
			const float *mean = u->mean + ((size_t)i * sh->n_kv_heads + h) * dim;
			load_key(sh, skv_key_row(sh, entry, h, t), key);
			for (uint32_t d = 0; d < dim; d++)
				key[d] -= mean[d];
			rotate(dim, key);
			uint8_t *part = sh->pool + skv_pte_id(state) * sh->page_bytes + h * l->head_bytes;
			encode(sh, key, part + t % l->tokens * l->row, (uint16_t *)(part + l->scales) + t % l->tokens);
		}
}

void ISA(update_sketches)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct update_params u = {.sh = sh, .layout = sketch_layout_of(sh), .batch = batch};

	u.first = carve(&c, (n + 1) * sizeof *u.first);
	u.mean = carve(&c, (size_t)n * sh->n_kv_heads * sh->head_dim * sizeof *u.mean);
	u.first[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		u.first[i + 1] = u.first[i] + skv_pages_of(batch->seq[i].len) -
		                 skv_min(sketched_from(&batch->seq[i]) / SKV_PAGE_TOKENS, skv_pages_of(batch->seq[i].len));
	skv_run(1, n * sh->n_kv_heads, mean_item, &u);
	skv_run(u.first[n] > 4 ? work->threads : 1, u.first[n], update_item, &u);
}

size_t ISA(update_sketches_bytes)(const struct skv_shape *sh, uint32_t n_seqs)
{
	return carve_size((n_seqs + 1) * sizeof(uint32_t)) +
	       carve_size((size_t)n_seqs * sh->n_kv_heads * sh->head_dim * sizeof(float));
}
