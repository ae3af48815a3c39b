/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decode-latent-load.cuh - the load pipeline, from an index list to shared memory: see
 * decode-latent.cuh.
 *
 * Each function is one stage of the pipeline for one tile. A stage's inputs have arrived before the barrier at which
 * the current tile began; the data that the stage begins to load will have arrived before the barrier of the next tile.
 * Work that is the same for all warps is done by one warp.
 */
#ifndef SKV_CUDA_COMPRESS_DECODE_LATENT_LOAD_CUH
#define SKV_CUDA_COMPRESS_DECODE_LATENT_LOAD_CUH

#include "kernels/cuda/compress/decode-latent.cuh"

/* ---- tiles ----------------------------------------------------------------------------------- */

/*
 * Begins the chunk of a work item; returns false if the item's list has no such chunk. Consecutive items are of
 * different sequences, so that the chunks of a long list go to different blocks.
 */
DEVICE bool chunk_begin(const struct latent_params *c, struct cursor *u, uint32_t item)
{
	const uint32_t chunk = item / c->n, i = (item + chunk) % c->n;
	const uint32_t tiles = n_listed_tiles(c, i), each = chunk_tiles(tiles), first = chunk * each;
	const struct skv_kseq *s = &c->seq[i];

	if (first >= tiles)
		return false;
	u->tile.ids = c->list.ids + (size_t)i * c->list.stride + first * TILE;
	u->tile.pages = s->table + (size_t)c->k.sh.layer * s->layer_stride;
	u->tile.codes = s->table + (size_t)c->k.sh.codes * s->layer_stride;
	u->tile.refs = s->table + (size_t)c->k.sh.refs * s->layer_stride;
	u->tile.len = s->len;
	u->tile.n_compressed = s->n_compressed;
	u->tile.i = i;
	u->tile.chunk = chunk;
	u->tile.begins = true;
	u->left = min(each, tiles - first);
	u->end = c->list.ids + (size_t)i * c->list.stride + c->list.count[i];
	return true;
}

/* Sets *to to the block's next tile. Called by one thread. */
__device__ static void next_tile(const struct latent_params *c, struct cursor *u, struct tile *to)
{
	if (u->left > 0) {
		u->tile.ids += TILE;
		u->tile.begins = false;
	} else {
		while (u->item < u->items && !chunk_begin(c, u, u->item))
			u->item += u->step;
		u->item += u->step;
		if (u->left == 0) {
			to->n = 0;
			return;
		}
	}
	u->left--;
	u->tile.n = min(TILE, (uint32_t)(u->end - u->tile.ids));
	u->tile.ends = u->left == 0;
	*to = u->tile;
}

/* ---- pipeline stages --------------------------------------------------------------------------- */

/* Begins to load the listed token ids of tile k. */
template <int D, int W> __device__ static void read_list(struct latent_smem<D, W> *s, uint32_t k)
{
	const uint32_t lane = threadIdx.x % 32;
	const struct tile *t = &s->tile[k % 8];

	if (lane < t->n)
		cp_async4(shared_address(&s->token[k % 8][lane]), t->ids + lane);
	else
		s->token[k % 8][lane] = UINT32_MAX;
}

/* Begins to load the page table entries of the pages that have the rows or records of tile k's tokens. */
template <int D, int W>
__device__ static void read_entries(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k)
{
	const uint32_t lane = threadIdx.x % 32, token = s->token[k % 8][lane];
	const struct tile *t = &s->tile[k % 8];
	const skv_pte *from = NULL;

	switch (t->n ? kind_of(c, t, token) : ABSENT) {
	case ROW:
		from = t->pages + token / SKV_PAGE_TOKENS;
		break;
	case REFERENCE:
		from = t->refs + quotient(refs_before(&c->k, token), c->k.refs_each);
		break;
	case CODE:
		from = t->codes + quotient(codes_before(&c->k, token), c->k.codes_each);
		break;
	default:
		break;
	}
	if (from)
		cp_async4(shared_address(&s->entry[k % 4][lane]), from);
}

/* Returns the record of a token's code. `page` is the entry of the record's page, which must have arrived. */
DEVICE const uint8_t *code_in(const struct latent_params *c, skv_pte page, uint32_t token)
{
	return record_in(&c->k, page, codes_before(&c->k, token), c->k.code_bytes, c->k.codes_each);
}

/* Begins to load the first bytes of tile k's records, which are the numbers of their references. */
template <int D, int W>
__device__ static void read_heads(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k)
{
	const uint32_t lane = threadIdx.x % 32, token = s->token[k % 8][lane];
	const struct tile *t = &s->tile[k % 8];

	if (t->n && kind_of(c, t, token) == CODE)
		cp_async16(shared_address(&s->head[k % 4][lane]), code_in(c, s->entry[k % 4][lane], token), true);
}

DEVICE uint32_t ref_number_of(const struct latent_params *c, const uint4 *head, uint32_t row, uint32_t token)
{
	return id_of(&c->k, (const uint8_t *)head, row, refs_before(&c->k, token + 1));
}

/* Begins to load the page table entries of the references of tile k's tokens, one warp per reference. */
template <int D, int W>
__device__ static void read_ref_entries(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k,
                                        uint32_t row)
{
	const uint32_t lane = threadIdx.x % 32, token = s->token[k % 8][lane];
	const struct tile *t = &s->tile[k % 8];

	if (t->n && row < c->k.c.n_refs && kind_of(c, t, token) == CODE)
		cp_async4(shared_address(&s->near[k % 2][row][lane]),
		          t->refs + quotient(ref_number_of(c, &s->head[k % 4][lane], row, token), c->k.refs_each));
}

/* ---- addresses ----------------------------------------------------------------------------------- */

DEVICE struct token_info token_info_of(const struct latent_params *c, enum kind kind, uint32_t token)
{
	const bool turns = kind == REFERENCE || kind == CODE;
	const float share = kind == CODE ? c->k.c.n_refs ? 1.0f / (float)c->k.c.n_refs : 0 : 1;

	return {turns ? token : 0, turns ? c->k.c.rope_scale : 1, share, kind};
}

#define QUANTIZED_REF 1u /* flag of an address: record of a reference with ref_bits 8 or 4 */

/*
 * Returns the address of row `row` of a token, its K or V, for kv head h. For a quantized reference, returns the
 * address of its record.
 */
template <int D>
__device__ static const uint8_t *row_from(const struct latent_params *c, uint32_t h, enum kind kind, uint32_t token,
                                          skv_pte entry, uint32_t near, skv_pte near_entry, uint32_t v)
{
	const uint8_t *record;

	if (kind == ROW)
		return c->k.sh.pool + skv_pte_id(entry) * c->k.sh.page_bytes + v * (c->k.sh.page_bytes / 2) +
		       (h * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS) * (D * 2);
	if (kind == REFERENCE)
		record = record_in(&c->k, entry, refs_before(&c->k, token), c->k.ref_bytes, c->k.refs_each);
	else
		record = record_in(&c->k, near_entry, near, c->k.ref_bytes, c->k.refs_each);
	return c->k.c.ref_bits == 16 ? record + head_in_x(c, v, h, D) * 2 : record + QUANTIZED_REF;
}

/*
 * Computes all addresses that the copies of tile k need. The tile's entries have arrived. A thread computes the address
 * of the K or V of one row of a token.
 */
template <int D, int W>
__device__ static void locate_rows(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k, uint32_t h)
{
	const uint32_t at = threadIdx.x % TILE, row = threadIdx.x / TILE % ROWS, v = threadIdx.x / (TILE * ROWS);
	const struct tile *t = &s->tile[k % 8];
	if (v > 1) /* there are more threads than rows */
		return;
	const uint32_t token = s->token[k % 8][at];
	const enum kind kind = t->n ? kind_of(c, t, token) : ABSENT;
	const skv_pte entry = s->entry[k % 4][at];
	const bool exists = kind == CODE ? row < c->k.c.n_refs : kind != ABSENT && row == 0;
	const uint32_t near = exists && kind == CODE ? ref_number_of(c, &s->head[k % 4][at], row, token) : 0;

	s->row_from[v][row][at] =
		exists ? row_from<D>(c, h, kind, token, entry, near, s->near[k % 2][row][at], v) : NULL;
	if (row == 0 && v == 0) {
		s->record_from[at] = kind == CODE ? code_in(c, entry, token) : NULL;
		s->about[k % 2][at] = token_info_of(c, kind, token);
	}
}

/*
 * Runs one pipeline stage for each of the tiles after tile k, the current one. k = -PIPELINE_DEPTH is before the first
 * tile.
 */
template <int D, int W>
__device__ static void advance_pipeline(const struct latent_params *c, struct latent_smem<D, W> *s, int k, uint32_t h)
{
	const uint32_t warp = threadIdx.x / 32;

	if (threadIdx.x == 0)
		next_tile(c, &s->cursor, &s->tile[(k + 6) % 8]);
	if (warp == 1 && k >= -5)
		read_list(s, k + 5);
	if (warp == 2 && k >= -4)
		read_entries(c, s, k + 4);
	if (warp == 3 && k >= -3)
		read_heads(c, s, k + 3);
	if (warp >= 4 && k >= -2)
		read_ref_entries(c, s, k + 2, warp - 4);
	if (k >= -1)
		locate_rows(c, s, k + 1, h);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Dequantizes eight 4-bit numbers q to scale * q + least, in bf16. */
DEVICE uint4 numbers4(uint32_t q, __nv_bfloat162 scale, __nv_bfloat162 least)
{
	const __nv_bfloat162 base = __floats2bfloat162_rn(128, 128);
	uint32_t two[4];
#pragma unroll
	/* Numbers k and k + 4: 128 + q is exact in bf16, and the last bits of this sum are q. */
	for (int k = 0; k < 4; k++) {
		const uint32_t bits = (q >> 4 * k & 0x000f000f) | 0x43004300;
		const __nv_bfloat162 x = __hfma2(__hsub2(*(const __nv_bfloat162 *)&bits, base), scale, least);
		two[k] = *(const uint32_t *)&x;
	}
	return make_uint4(__byte_perm(two[0], two[1], 0x5410), __byte_perm(two[2], two[3], 0x5410),
	                  __byte_perm(two[0], two[1], 0x7632), __byte_perm(two[2], two[3], 0x7632));
}

/*
 * Dequantizes z of tile k, whose records have arrived. z is 0 for tokens without a code, and past the width. A thread
 * has the same piece of some tokens.
 */
template <int D, int W, bool four>
__device__ static void dequantize_some(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k)
{
	constexpr uint32_t pieces = W / 8, at_once = threads<D> / pieces, turns = at_once < TILE ? TILE / at_once : 1;
	constexpr uint32_t unrolled = four ? turns : 1;
	const uint32_t p = threadIdx.x % pieces, first = threadIdx.x / pieces;
	const struct stored_format f = code_format(&c->k);
	const uint32_t shared = c->k.code_from + (8 * p >> f.shift) * 4, numbers = c->k.code_from + f.behind + 4 * p;
#pragma unroll unrolled
	for (uint32_t i = 0; i < turns; i++) {
		const uint32_t t = first + at_once * i;
		if (at_once > TILE && t >= TILE)
			break;
		const uint8_t *record = s->record[t];
		uint4 z = make_uint4(0, 0, 0, 0);
		if (s->about[k % 2][t].kind != CODE || 8 * p >= c->width) {
		} else if (four) {
			const uint32_t word = *(const uint32_t *)(record + shared);
			const uint32_t q = *(const uint32_t *)(record + numbers);
			const uint32_t scale = __byte_perm(word, word, 0x1010);
			const uint32_t least = __byte_perm(word, word, 0x3232);
			z = numbers4(q, *(const __nv_bfloat162 *)&scale, *(const __nv_bfloat162 *)&least);
		} else {
			const struct numbers x = load_numbers(&f, record + c->k.code_from, 8 * p);
			z = numbers_bf16(&f, &x);
		}
		*(uint4 *)(s->z + piece_at<W * 2>(t, p)) = z;
	}
}

template <int D, int W>
__device__ static void dequantize_latents(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k)
{
	if (c->k.c.bits == 4)
		dequantize_some<D, W, true>(c, s, k);
	else
		dequantize_some<D, W, false>(c, s, k);
}

/* Returns elements [8 p, 8 p + 8) of a head's K or V, dequantized from a reference's record. */
template <class T, int D>
__device__ static uint4 dequantized_row(const struct latent_params *c, const uint8_t *record, uint32_t v,
                                        uint32_t h, uint32_t p)
{
	const struct stored_format f = ref_format(&c->k);
	const struct numbers x = load_numbers(&f, record, head_in_x(c, v, h, D) + 8 * p);
	float y[8];

	decode_numbers(&f, &x, y);
	return make_uint4(T::pair(y[0], y[1]), T::pair(y[2], y[3]), T::pair(y[4], y[5]), T::pair(y[6], y[7]));
}

/*
 * Begins to copy the rows of tile k; rows that do not exist become zeros. A warp copies one K and one V row at a time,
 * or two of each.
 */
template <class T, int D, int W, bool plain>
__device__ static void copy_rows_as(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k,
                                    uint32_t h)
{
	constexpr uint32_t pieces = D / 8, at_once = warps<D> * 16 / pieces;
	constexpr uint32_t rows_unrolled = plain ? ROWS : 1, unrolled = plain ? TILE / at_once : 1;
	const uint32_t lane = threadIdx.x % 32, p = lane % pieces, v = lane / pieces % 2;
	const uint32_t first = threadIdx.x / 32 * (16 / pieces) + lane / (2 * pieces);
#pragma unroll rows_unrolled
	for (uint32_t row = 0; row < ROWS; row++) {
		if (row >= c->rows)
			break;
#pragma unroll unrolled
		for (uint32_t i = 0; i < TILE / at_once; i++) {
			const uint32_t t = first + i * at_once;
			const uint8_t *from = s->row_from[v][row][t];
			uint8_t *to = s->rows[k % 2][row][v] + piece_at<D * 2>(t, p);
			if (!plain && (uintptr_t)from & QUANTIZED_REF)
				*(uint4 *)to = dequantized_row<T, D>(c, from - QUANTIZED_REF, v, h, p);
			else
				cp_async16(shared_address(to), from ? from + p * 16 : c->k.sh.pool, from);
		}
	}
}

template <class T, int D, int W>
__device__ static void copy_rows(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k, uint32_t h)
{
	if (c->k.c.ref_bits == 4 || c->k.c.ref_bits == 8)
		copy_rows_as<T, D, W, false>(c, s, k, h);
	else
		copy_rows_as<T, D, W, true>(c, s, k, h);
}

template <int D, int W>
__device__ static void copy_records(const struct latent_params *c, struct latent_smem<D, W> *s)
{
	for (uint32_t t = threadIdx.x / 32; t < TILE; t += warps<D>) {
		const uint8_t *from = s->record_from[t];
		for (uint32_t p = threadIdx.x % 32; from && p < c->k.code_bytes / 16; p += 32)
			cp_async16(shared_address(s->record[t] + p * 16), from + p * 16, true);
	}
}

/* Waits until all copies begun so far have arrived and are visible to the block. */
DEVICE void await_copies(void)
{
	cp_async_commit();
	cp_async_wait<0>();
	__syncthreads();
}

#endif
