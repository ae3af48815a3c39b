/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/compress.c - tokens become references and codes; see codes.h.
 *
 * First all new references are stored, then codes are made, in tiles of TOKENS tokens, from what is stored alone: so what
 * rebuild() starts from is the very same. Both are independent items, so it does not matter who does them, nor in which
 * calls.
 */
#include "kernels/host/runtime/gemm.h"
#include "kernels/host/compress/records.h"

#define SEEN 64u   /* references that a tile is compared with at a time */
#define HIDDEN 64u /* rows of gate and up that are done at a time */

struct pack {
	const struct skv_shape *sh; /* [n_layers] */
	const struct skv_batch *batch;
	uint32_t *first; /* tiles before sequence i, of one layer */
	uint8_t *scratch;
	size_t scratch_stride;
};

/* Scratch of a thread. */
struct tile {
	float *x, *b;   /* [TOKENS][d] */
	float *row;     /* [d] */
	float *seen;    /* [SEEN][d] */
	float *score;   /* [TOKENS][SEEN] */
	float *h;       /* [TOKENS][hidden] */
	float *gate, *up; /* [TOKENS][HIDDEN] */
	float *z;       /* [TOKENS][width] */
};

static size_t tile_bytes(const struct coding *k)
{
	const size_t floats = 2 * TOKENS * k->d + k->d + SEEN * k->d + TOKENS * SEEN + TOKENS * k->c->hidden +
	                      2 * TOKENS * HIDDEN + TOKENS * k->c->width;

	return carve_size(floats * sizeof(float) + 9 * 64);
}

static struct tile tile_of(const struct pack *p, const struct coding *k, int thread)
{
	uint8_t *at = p->scratch + thread * p->scratch_stride;
	struct carve c = {at, at + p->scratch_stride};

	return (struct tile){
		.x = carve(&c, TOKENS * k->d * sizeof(float)),
		.b = carve(&c, TOKENS * k->d * sizeof(float)),
		.row = carve(&c, k->d * sizeof(float)),
		.seen = carve(&c, SEEN * k->d * sizeof(float)),
		.score = carve(&c, TOKENS * SEEN * sizeof(float)),
		.h = carve(&c, TOKENS * k->c->hidden * sizeof(float)),
		.gate = carve(&c, TOKENS * HIDDEN * sizeof(float)),
		.up = carve(&c, TOKENS * HIDDEN * sizeof(float)),
		.z = carve(&c, TOKENS * k->c->width * sizeof(float)),
	};
}

size_t ISA(pack_bytes)(const struct skv_shape *sh, uint32_t n_seqs, int threads)
{
	const struct coding k = coding_of(sh);

	return carve_size((n_seqs + 1) * sizeof(uint32_t)) + threads * tile_bytes(&k);
}

/* The first token that the call packs. */
static uint32_t pack_from(const struct skv_codes *c, const struct skv_kseq *s)
{
	return skv_max(s->coded, c->first);
}

/* x of a token that is a row in a page. */
static void gather(const struct coding *k, const struct skv_kseq *s, uint32_t token, float *x)
{
	const struct skv_shape *sh = k->sh;
	const uint32_t dim = sh->head_dim;
	const skv_pte e = skv_layer_table(sh, s)[token / SKV_PAGE_TOKENS];
	struct angles a;

	for (uint32_t h = 0; h < sh->n_kv_heads; h++) {
		const uint8_t *row = skv_key_row(sh, e, h, token);
		for (uint32_t i = 0; i < dim; i += VL) {
			const size_t at = i * skv_dtype_bytes(sh->dtype);
			v_storef(x + h * dim + i, v_load(sh->dtype, row + at));
			v_storef(x + k->half + h * dim + i, v_load(sh->dtype, row + skv_v_offset(sh) + at));
		}
	}
	angles_at(k, token, -1, 1 / k->c->turn_scale, &a);
	turn(k, &a, x);
}

/* ---- fewer bits ------------------------------------------------------------------------------ */

/* Each group's scale and least, and its numbers; see codes.h. */
static void quantise(const float *x, uint32_t n, uint32_t bits, uint32_t group, uint8_t *to)
{
	memset(to + n / group * 4, 0, n * bits / 8);
	for (uint32_t g = 0; g < n; g += group)
		pack_group(x + g, 1, group, bits, to + g / group * 4, to + n / group * 4, g, 1);
}

static void store_numbers(const float *x, uint32_t n, uint32_t bits, uint32_t group, uint32_t dtype, uint8_t *to)
{
	if (bits == 16)
		for (uint32_t i = 0; i < n; i += VL)
			v_store(dtype, to + i * skv_dtype_bytes(dtype), v_loadf(x + i));
	else if (bits)
		quantise(x, n, bits, group, to);
}

/* ---- references ------------------------------------------------------------------------------ */

static void store_ref(const struct coding *k, const struct skv_kseq *s, uint32_t token, float *x)
{
	uint8_t *to = ref_at(k, s, skv_refs_before(k->c, token));

	gather(k, s, token, x);
	memset(to, 0, k->ref_bytes);
	store_numbers(x, k->d, k->c->ref_bits, SKV_REF_GROUP, k->sh->dtype, to);
}

/* An item: a sequence in a layer. */
static void refs_item(void *ctx, uint32_t item, int thread)
{
	const struct pack *p = ctx;
	const struct skv_kseq *s = &p->batch->seq[item % p->batch->n];
	const struct coding k = coding_of(&p->sh[item / p->batch->n]);
	const struct tile t = tile_of(p, &k, thread);

	if (s->pack <= pack_from(k.c, s) || !k.c->stride)
		return;
	for (uint32_t token = s->coded ? s->coded : 0; token < s->pack; token++)
		if (skv_is_ref(k.c, token))
			store_ref(&k, s, token, t.x);
}

/* The nearest references of a token so far: the best first. */
struct nearest {
	float score[SKV_NEAR_MOST];
	uint32_t id[SKV_NEAR_MOST];
};

/* References come in ascending order: an equal one comes too late. */
static void consider(struct nearest *best, uint32_t near, float score, uint32_t id)
{
	uint32_t at = near;

	while (at > 0 && score > best->score[at - 1])
		at--;
	if (at == near)
		return;
	for (uint32_t i = near - 1; i > at; i--) {
		best->score[i] = best->score[i - 1];
		best->id[i] = best->id[i - 1];
	}
	best->score[at] = score;
	best->id[at] = id;
}

static float square_of(const float *x, uint32_t n)
{
	vf sum = {0};

	for (uint32_t i = 0; i < n; i += VL)
		sum = v_fma(v_loadf(x + i), v_loadf(x + i), sum);
	return v_fold_runs(V_SUM, sum, VL)[0];
}

/* For m tokens, the last of which may refer to the first `most` references. */
static void search(const struct coding *k, const struct skv_kseq *s, const struct tile *t, const uint32_t *token,
                   uint32_t m, struct nearest *best)
{
	const uint32_t most = skv_refs_before(k->c, token[m - 1] + 1);

	for (uint32_t i = 0; i < m; i++) /* the first one, where no score is a number */
		best[i] = (struct nearest){.score = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
	for (uint32_t r0 = 0; r0 < most; r0 += SEEN) {
		const uint32_t n = skv_min(SEEN, most - r0);
		float norm[SEEN];
		for (uint32_t r = 0; r < n; r++) {
			read_ref(k, s, r0 + r, t->seen + r * k->d);
			norm[r] = square_of(t->seen + r * k->d, k->d);
		}
		dots(t->x, k->d, m, t->seen, k->d, n, k->d, t->score, SEEN);
		for (uint32_t i = 0; i < m; i++) {
			const uint32_t usable = skv_refs_before(k->c, token[i] + 1);
			for (uint32_t r = 0; r < n && r0 + r < usable; r++)
				consider(&best[i], k->c->near, 2 * t->score[i * SEEN + r] - norm[r], r0 + r);
		}
	}
}

static void store_ids(const struct coding *k, struct nearest *best, uint8_t *record)
{
	for (uint32_t i = 1; i < k->c->near; i++) /* ascending */
		for (uint32_t j = i; j > 0 && best->id[j] < best->id[j - 1]; j--) {
			const uint32_t id = best->id[j];
			best->id[j] = best->id[j - 1];
			best->id[j - 1] = id;
		}
	for (uint32_t i = 0; i < k->c->near; i++) {
		const uint16_t small = (uint16_t)best->id[i];
		if (k->c->id_bytes == 2)
			memcpy(record + 2 * i, &small, sizeof small);
		else
			memcpy(record + 4 * i, &best->id[i], sizeof best->id[i]);
	}
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* h[m][hidden] = (b: h -) silu(gate x) * up x; x[m][d]. */
static void hidden(const struct coding *k, const struct tile *t, const float *x, uint32_t m, bool b)
{
	const float *in = k->c->in;
	const uint32_t n = k->c->hidden, d = k->d;

	for (uint32_t j0 = 0; j0 < n; j0 += HIDDEN) {
		dots(x, d, m, in + (size_t)2 * j0 * d, 2 * d, HIDDEN, d, t->gate, HIDDEN);
		dots(x, d, m, in + (size_t)(2 * j0 + 1) * d, 2 * d, HIDDEN, d, t->up, HIDDEN);
		for (uint32_t i = 0; i < m; i++)
			for (uint32_t j = 0; j < HIDDEN; j += VL) {
				float *h = t->h + i * n + j0 + j;
				const vf y = v_silu(v_loadf(t->gate + i * HIDDEN + j)) *
				             v_loadf(t->up + i * HIDDEN + j);
				v_storef(h, b ? v_loadf(h) - y : y);
			}
	}
}

/* z[m][width] of x and b. `down` is linear, so the difference may be taken before it. */
static void encode(const struct coding *k, const struct tile *t, uint32_t m)
{
	const float *from = t->x, *down = k->c->down;
	uint32_t n = k->d;

	if (k->c->hidden) {
		hidden(k, t, t->x, m, false);
		if (k->c->near)
			hidden(k, t, t->b, m, true);
		from = t->h;
		n = k->c->hidden;
	} else {
		for (uint32_t i = 0; i < m * n; i += VL)
			v_storef(t->x + i, v_loadf(t->x + i) - v_loadf(t->b + i));
	}
	const uint32_t rows = k->c->width / k->parts, cols = n / k->parts;
	for (uint32_t i = 0; i < k->parts; i++)
		dots(from + i * cols, n, m, down + (size_t)i * rows * cols, cols, rows, cols, t->z + i * rows,
		     k->c->width);
}

static void codes_tile(const struct coding *k, const struct skv_kseq *s, const struct tile *t, uint32_t from, uint32_t to)
{
	const struct skv_codes *c = k->c;
	struct nearest best[TOKENS];
	uint32_t token[TOKENS], m = 0;

	for (uint32_t x = from; x < to; x++)
		if (!skv_is_ref(c, x)) {
			gather(k, s, x, t->x + m * k->d);
			token[m++] = x;
		}
	if (m == 0)
		return;
	if (c->near)
		search(k, s, t, token, m, best);
	for (uint32_t i = 0; i < m; i++) {
		uint8_t *record = code_at(k, s, token[i]);
		uint32_t ids[SKV_NEAR_MOST];

		memset(record, 0, k->code_bytes);
		store_ids(k, &best[i], record);
		read_ids(k, record, skv_refs_before(c, token[i] + 1), ids);
		mean_of(k, s, ids, t->row, t->b + i * k->d);
	}
	if (c->bits == 0)
		return;
	encode(k, t, m);
	for (uint32_t i = 0; i < m; i++)
		store_numbers(t->z + i * c->width, c->width, c->bits, c->group, SKV_BF16,
		              code_at(k, s, token[i]) + c->near * c->id_bytes);
}

/* An item: TOKENS tokens of a sequence in a layer. */
static void codes_item(void *ctx, uint32_t item, int thread)
{
	const struct pack *p = ctx;
	const uint32_t tiles = p->first[p->batch->n], i = skv_owner(p->first, p->batch->n, item % tiles);
	const struct skv_kseq *s = &p->batch->seq[i];
	const struct coding k = coding_of(&p->sh[item / tiles]);
	const struct tile t = tile_of(p, &k, thread);
	const uint32_t from = pack_from(k.c, s) + (item % tiles - p->first[i]) * TOKENS;

	codes_tile(&k, s, &t, from, skv_min(from + TOKENS, s->pack));
}

void ISA(pack)(const struct skv_shape *sh, uint32_t n_layers, const struct skv_batch *batch, const struct skv_work *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct pack p = {.sh = sh, .batch = batch};

	if (sh->code->kind == SKV_COMPRESS_QUANT) {
		ISA(pack_low)(sh, n_layers, batch, work);
		return;
	}

	p.first = carve(&c, (n + 1) * sizeof *p.first);
	p.scratch = c.at;
	p.scratch_stride = (size_t)(c.end - c.at) / work->threads & ~(size_t)63;
	p.first[0] = 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t from = pack_from(sh->code, &batch->seq[i]), to = batch->seq[i].pack;
		p.first[i + 1] = p.first[i] + (to > from ? (to - from + TOKENS - 1) / TOKENS : 0);
	}
	skv_run(work->threads, n_layers * n, refs_item, &p);
	skv_run(work->threads, n_layers * p.first[n], codes_item, &p);
}
