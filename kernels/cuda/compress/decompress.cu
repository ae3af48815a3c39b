/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decompress.cu - decompresses tokens to rows of K and V; see kernels/compress.h.
 *
 * First all rows are located and their codes are dequantized. Then a block takes a tile of a sequence's rows, for the K
 * or V of a head. The block decodes codes by one matrix product, to which it adds the means of the references, and it
 * copies the tile's uncompressed rows and references.
 */
#include "kernels/cuda/runtime/gemm.cuh"
#include "kernels/cuda/compress/decompress.cuh"

#define MAX_ROWS 16384u /* max rows of one launch; their locations are in the workspace */
#define MAX_SEQS 64u    /* max sequences of one launch */
#define MAX_HEADS_PER_BLOCK 8u    /* max heads that a block processes, one after the other */
#define WIDE_TILE 128

struct decompress_params {
	struct codec k;
	struct wanted_rows want;
	uint32_t first;          /* index of the launch's first sequence */
	uint32_t skip, max_rows; /* the launch decompresses rows [skip, skip + max_rows) of each sequence */
	/* Intermediate results; those of row skip + i of sequence first + s are at index s * max_rows + i. */
	struct row *row;
	__nv_bfloat16 *z, *dec_hidden;
	float2 *turn; /* cosine and sine of each rotary pair's angle, times RoPE's factor */
};

enum kind { NOTHING, ROW, REFERENCE, CODE };

struct alignas(16) row {
	enum kind kind;
	uint32_t token;
	/* Address of the row of head 0's K, or of the token's record. */
	const uint8_t *from;
	uint8_t *to;
	/* References of a code; for a reference, the reference itself; for other rows, any readable address. */
	const uint8_t *ref[SKV_MAX_REFS];
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* Locates row `row` of sequence i, which has `rows` rows. */
DEVICE struct row row_of(const struct decompress_params *c, uint32_t i, uint32_t row, uint32_t rows)
{
	const struct codec *k = &c->k;
	const struct skv_kseq *s = &c->want.seq[i];
	const skv_pte *table = skv_layer_table(&k->sh, s);
	struct row r = {NOTHING};
#pragma unroll
	for (uint32_t n = 0; n < SKV_MAX_REFS; n++)
		r.ref[n] = k->sh.pool;
	if (row >= rows)
		return r;
	r.token = token_of(&c->want, i, row);
	const uint32_t own = skv_pte_id(table[r.token / SKV_PAGE_TOKENS]);
	r.to = c->want.to.pool ? page_row(&k->sh, c->want.to.pool, i * c->want.to.pages + row / SKV_PAGE_TOKENS, row)
	                       : page_row(&k->sh, k->sh.pool, own, r.token);
	if (r.token < k->c.first || r.token >= s->n_compressed) {
		r.kind = ROW;
		r.from = page_row(&k->sh, k->sh.pool, own, r.token);
		return r;
	}
	const uint32_t usable = refs_before(k, r.token + 1);
	r.kind = is_ref(k, r.token) ? REFERENCE : CODE;
	r.from = r.kind == REFERENCE ? ref_at(k, s, usable - 1) : code_at(k, s, r.token);
#pragma unroll
	for (uint32_t n = 0; n < SKV_MAX_REFS; n++)
		if (n < k->c.n_refs)
			r.ref[n] = r.kind == REFERENCE ? r.from : ref_at(k, s, id_of(k, r.from, n, usable));
	return r;
}

/*
 * Locates rows, one warp each. Also computes dequantized codes and rotations, which are the same for all heads. The
 * grid is groups of ROWS_PER_BLOCK rows (x) by sequences (y).
 */
#define ROWS_PER_BLOCK (GEMM_THREADS / 32)
__global__ void __launch_bounds__(GEMM_THREADS)
locate_rows_kernel(const __grid_constant__ struct decompress_params c)
{
	const struct codec *k = &c.k;
	const uint32_t i = c.first + blockIdx.y, n = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / 32;
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t rows = rows_of(&c.want, i), pairs = k->c.rope_dims / 2;
	const size_t at = (size_t)blockIdx.y * c.max_rows + n;
	if (n >= c.max_rows)
		return;
	if (c.want.to.pool && lane == 0)
		make_table_entry(&c.want, i, c.skip + n, rows);
	const struct row r = row_of(&c, i, c.skip + n, rows);
	if (lane == 0)
		c.row[at] = r;
	if (r.kind == CODE) {
		const struct stored_format f = code_format(k);
		for (uint32_t e = lane * 8; e < k->c.width && k->c.bits; e += 32 * 8) {
			const struct numbers z = load_numbers(&f, r.from + k->code_from, e);
			*(uint4 *)(c.z + at * k->c.width + e) = numbers_bf16(&f, &z);
		}
	}
	for (uint32_t p = lane; p < pairs && r.kind >= REFERENCE; p += 32) {
		float sin, cos;
		__sincosf(rope_angle(r.token, rope_turns(k, p)), &sin, &cos); /* exact enough for up to half a turn */
		c.turn[at * pairs + p] = make_float2(cos * k->c.rope_scale, sin * k->c.rope_scale);
	}
}

/* ---- a head of a tile's rows ------------------------------------------------------------------- */

template <int D> constexpr int tile_rows = D == 256 ? 64 : 128;
template <int D> constexpr int tile_cols = D == 96 ? 128 : D;
template <int D> using product = struct gemm<tile_rows<D>, tile_cols<D>>;
#define TILES(D) gemm_tiles<tile_rows<D>, tile_cols<D>>

/*
 * Returns the two pieces of eight elements that a lane has of each of its rows in a product. Which elements of a head a
 * lane has is free to choose: the decoder's rows are read in such an order that the two pieces are each other's rotary
 * pairs. Lane number u of those that share a row has piece .x in columns below 32 of its warp's 64, and piece .y in the
 * other columns.
 */
DEVICE uint2 pieces_of(const struct codec *k, uint32_t u)
{
	const uint32_t pairs = k->c.rope_dims / 16;
	return u < pairs && !k->c.interleaved ? make_uint2(u, u + pairs) : make_uint2(2 * u, 2 * u + 1);
}

/*
 * Does the head have this piece? All heads but those of 96 elements have as many pieces as their products have columns
 * for.
 */
template <int D> DEVICE bool has_piece(uint32_t piece)
{
	return tile_cols<D> == D || piece < D / 8;
}

/* Returns the index, in a head, of the element that is in column `col` of a product. */
DEVICE uint32_t element_of(const struct codec *k, uint32_t col)
{
	const uint2 pieces = pieces_of(k, col / 64 * 4 + col % 8 / 2);
	return (col % 64 < 32 ? pieces.x : pieces.y) * 8 + col / 8 % 4 * 2 + col % 2;
}

/* Returns the thread's index among the threads that share a row. */
template <int D> DEVICE uint32_t part_of_row(void)
{
	return threadIdx.x / 32 % (tile_cols<D> / 64) * 4 + threadIdx.x % 4;
}

/* Returns element i, counted piece by piece, of row x of a tile of the product. */
DEVICE float *element(float c[8][4], int x, int i)
{
	return &c[i / 2][2 * x + i % 2];
}

/* Returns the row that the accumulators of row x of tile m belong to. */
template <int D> DEVICE const struct row *row_at(const struct row *row, int m, int x)
{
	return &row[gemm_row<tile_rows<D>, tile_cols<D>>(m, x)];
}

/*
 * Initializes the accumulators: for codes, with the mean of the token's references; for references, with the reference
 * itself, which is listed n_refs times in row.ref.
 */
template <int D, bool plain>
DEVICE void init_rows(const struct codec *k, const struct row *row, uint32_t e, product<D> *g)
{
	const uint2 pieces = pieces_of(k, part_of_row<D>());
#pragma unroll
	for (int m = 0; m < TILES(D); m++)
#pragma unroll
		for (int x = 0; x < 2; x++)
#pragma unroll
			for (int p = 0; p < 2; p++) {
				const uint32_t piece = p ? pieces.y : pieces.x;
				float y[8];
				mean_of<plain>(k, row_at<D>(row, m, x)->ref,
				               e + (has_piece<D>(piece) ? piece : 0) * 8, y);
#pragma unroll
				for (int i = 0; i < 8; i++)
					*element(g->c[m], x, 8 * p + i) = y[i];
			}
}

/* Adds Dec(z) to the accumulators, for elements [e, e + D) of x. */
template <int D>
DEVICE void decode(const struct decompress_params *c, const struct row *row, uint32_t e, product<D> *g,
                   uint8_t *shared)
{
	constexpr int BM = tile_rows<D>, BN = tile_cols<D>;
	const struct codec *k = &c->k;
	const uint32_t all = k->c.dec_hidden ? k->c.dec_hidden : k->c.width, deep = all / k->parts;
	const __nv_bfloat16 *z = (k->c.dec_hidden ? c->dec_hidden : c->z) + ((size_t)blockIdx.z * c->max_rows + blockIdx.x * BM) * all;
	struct gemm_operand<BM, true> a = {{}, e / (k->d / k->parts) * deep, deep};
	struct gemm_operand<BN, true> b = {{}, 0, deep};
#pragma unroll
	for (int i = 0; i < (int)(BM / GEMM_LOADS); i++)
		a.at[i] = row[operand_row(i)].kind == CODE ? (const uint8_t *)(z + (size_t)operand_row(i) * all) : NULL;
#pragma unroll
	for (int i = 0; i < (int)(BN / GEMM_LOADS); i++) {
		const uint32_t at = element_of(k, operand_row(i));
		b.at[i] = at < D ? (const uint8_t *)k->c.dec_out + (size_t)(e + at) * deep * 2 : NULL;
	}
	gemm_add<false>(g, &a, &b, shared);
}

/*
 * Restores K's norm: K becomes K / rms(K / w), with w = k_norm. `part` is shared memory for the sums of a row's warps.
 */
template <int D>
DEVICE void renormalize_keys(const struct codec *k, const struct row *row, product<D> *g, float *part)
{
	constexpr uint32_t warps = tile_cols<D> / 64;
	const float *w = k->c.k_norm;
	const uint2 pieces = pieces_of(k, part_of_row<D>());
	float by[16];
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const uint32_t at = (i < 8 ? pieces.x : pieces.y) * 8 + i % 8;
		by[i] = at < D ? w[at] : 0;
	}
	__syncthreads(); /* the sums of the last head are no longer needed */
#pragma unroll
	for (int m = 0; m < TILES(D); m++)
#pragma unroll
		for (int x = 0; x < 2; x++) {
			float sum = 0;
#pragma unroll
			for (int i = 0; i < 16; i++) {
				const float u = by[i] != 0 ? *element(g->c[m], x, i) / by[i] : 0;
				sum = fmaf(u, u, sum);
			}
			sum += __shfl_xor_sync(~0u, sum, 1);
			sum += __shfl_xor_sync(~0u, sum, 2);
			if (threadIdx.x % 4 == 0)
				part[gemm_row<tile_rows<D>, tile_cols<D>>(m,
				                                          x) * warps + threadIdx.x / 32 % warps] = sum;
		}
	__syncthreads();
#pragma unroll
	for (int m = 0; m < TILES(D); m++)
#pragma unroll
		for (int x = 0; x < 2; x++) {
			const uint32_t r = gemm_row<tile_rows<D>, tile_cols<D>>(m, x);
			float sum = 0;
			for (uint32_t n = 0; n < warps; n++)
				sum += part[r * warps + n];
			const float scale = sum > 0 ? 1 / sqrtf(sum / D) : 0;
#pragma unroll
			for (int i = 0; i < 16 && row[r].kind == CODE; i++)
				*element(g->c[m], x, i) = by[i] != 0 ? *element(g->c[m], x, i) * scale : 0;
		}
}

DEVICE void rope_rotate(float *a, float *b, float2 turn)
{
	const float p = *a, q = *b;
	*a = p * turn.x - q * turn.y;
	*b = q * turn.x + p * turn.y;
}

/* Applies RoPE: rotates K to its position. turn[row][pair] has the rotations. */
template <int D> DEVICE void rope_rows(const struct codec *k, const float2 *turn, product<D> *g)
{
	const uint32_t u = part_of_row<D>(), pairs = k->c.rope_dims / 2;
	if (8 * u >= pairs)
		return;
#pragma unroll
	for (int m = 0; m < TILES(D); m++)
#pragma unroll
		for (int x = 0; x < 2; x++) {
			const float4 *t = (const float4 *)(turn + (size_t)gemm_row<tile_rows<D>,
			                                   tile_cols<D>>(m, x) * pairs + 8 * u);
#pragma unroll
			/* Pair i: elements i of both pieces or, if interleaved, elements 2 i and 2 i + 1 of the 16. */
			for (int i = 0; i < 8; i += 2) {
				const float4 two = t[i / 2];
#pragma unroll
				for (int o = i; o < i + 2; o++) {
					const float2 by = o == i ? make_float2(two.x,
					                                       two.y) : make_float2(two.z, two.w);
					if (k->c.interleaved)
						rope_rotate(element(g->c[m], x, 2 * o),
						            element(g->c[m], x, 2 * o + 1), by);
					else
						rope_rotate(element(g->c[m], x, o), element(g->c[m], x, o + 8), by);
				}
			}
		}
}

template <int D> DEVICE void store_rows(const struct codec *k, const struct row *row, size_t head, product<D> *g)
{
	const uint2 pieces = pieces_of(k, part_of_row<D>());
#pragma unroll
	for (int m = 0; m < TILES(D); m++)
#pragma unroll
		for (int x = 0; x < 2; x++) {
			const struct row *r = row_at<D>(row, m, x);
#pragma unroll
			for (int p = 0; p < 2; p++) {
				const uint32_t piece = p ? pieces.y : pieces.x;
				float y[8];
				if (r->kind == NOTHING || !has_piece<D>(piece))
					continue;
#pragma unroll
				for (int i = 0; i < 8; i++)
					y[i] = *element(g->c[m], x, 8 * p + i);
				*(uint4 *)(r->to + head + piece * 16) =
				        r->kind == ROW              ? *(const uint4 *)(r->from + head + piece * 16)
				        : k->sh.dtype == SKV_BF16 ? bf16_of(y)
				                                  : f16_of(y);
			}
		}
}

/*
 * Decompresses tiles of rows. The grid is tiles of rows (x) by groups of heads' K and V (y) by sequences (z). A block's
 * heads are those whose number modulo the grid's size is blockIdx.y.
 */
template <int D>
__global__ void __launch_bounds__(GEMM_THREADS,
                                  2) decompress_kernel(const __grid_constant__ struct decompress_params c)
{
	SHARED_MEMORY(uint8_t, shared, 16);
	__shared__ struct row row[tile_rows<D>];
	__shared__ float part[tile_rows<D> * (tile_cols<D> / 64)];
	const struct codec *k = &c.k;
	const size_t first = (size_t)blockIdx.z * c.max_rows + blockIdx.x * tile_rows<D>;
	if (c.row[first].kind == NOTHING)
		return;
	if (threadIdx.x < tile_rows<D>)
		row[threadIdx.x] = c.row[first + threadIdx.x];
	__syncthreads();
	for (uint32_t h = blockIdx.y; h < 2 * k->sh.n_kv_heads; h += gridDim.y) {
		/* `e` is the index of the head's first element in x, which has the heads of all ranks. */
		const uint32_t v = h / k->sh.n_kv_heads, e = v * (k->half - k->own_half) + k->own + h * D;
		product<D> g;
		if (refs_are_bf16(k))
			init_rows<D, true>(k, row, e, &g);
		else
			init_rows<D, false>(k, row, e, &g);
		if (k->c.bits)
			decode<D>(&c, row, e, &g, shared);
		if (!v && k->c.k_norm)
			renormalize_keys<D>(k, row, &g, part);
		if (!v)
			rope_rows<D>(k, c.turn + first * (k->c.rope_dims / 2), &g);
		store_rows<D>(k, row,
		              v * (k->sh.page_bytes / 2) + (size_t)(h % k->sh.n_kv_heads) * SKV_PAGE_TOKENS * D * 2, &g);
	}
}

/* ---- the decoder's hidden layer ------------------------------------------------------------------ */

/*
 * Computes the decoder's hidden units, silu(dec_in z). The grid is columns (x) by tiles of rows (y) by sequences (z).
 */
__global__ void __launch_bounds__(GEMM_THREADS,
                                  2) decoder_hidden_kernel(const __grid_constant__ struct decompress_params c)
{
	SHARED_MEMORY(uint8_t, shared, 16);
	const uint32_t width = c.k.c.width, hidden = c.k.c.dec_hidden, col = blockIdx.x * WIDE_TILE;
	const size_t first = (size_t)blockIdx.z * c.max_rows + blockIdx.y * WIDE_TILE;
	if (c.row[first].kind == NOTHING)
		return;
	struct gemm_operand<WIDE_TILE, true> a = {{}, 0, width}, b = {{}, 0, width};
	struct gemm<WIDE_TILE, WIDE_TILE> g = {};
#pragma unroll
	for (int n = 0; n < (int)(WIDE_TILE / GEMM_LOADS); n++) {
		const uint32_t to = col + operand_row(n);
		a.at[n] = c.row[first + operand_row(n)].kind == CODE ? (const uint8_t *)(c.z + (first + operand_row(n)) * width) : NULL;
		b.at[n] = to < hidden ? (const uint8_t *)c.k.c.dec_in + (size_t)to * width * 2 : NULL;
	}
	gemm_add<false>(&g, &a, &b, shared);
	const float *x = gemm_to_shared(&g, shared);
	for (uint32_t n = threadIdx.x; n < WIDE_TILE * WIDE_TILE; n += GEMM_THREADS) {
		const uint32_t r = n / WIDE_TILE, o = n % WIDE_TILE;
		if (col + o < hidden)
			c.dec_hidden[(first + r) * hidden + col + o] = __float2bfloat16_rn(silu(x[r * GEMM_PITCH(WIDE_TILE) + o]));
	}
}

/* ---- decompression of a batch ---------------------------------------------------------------- */

/*
 * Launches decompress_kernel(). A block reads a tile's rows once for many heads, but there must be enough blocks for
 * all SMs.
 */
template <int D> static void launch(const struct decompress_params *c, uint32_t n, cudaStream_t stream)
{
	const uint32_t tiles = c->max_rows / tile_rows<D>, heads = 2 * c->k.sh.n_kv_heads;
	uint32_t each = 1;

	while (each < MAX_HEADS_PER_BLOCK && heads % (2 * each) == 0 &&
	       (uint64_t)tiles * n * heads / (2 * each) >= 8 * skv_cuda_sms())
		each *= 2;
	launch_grid(decompress_kernel<D>, dim3(tiles, heads / each, n), GEMM_THREADS, gemm_bytes<tile_rows<D>, tile_cols<D>>, stream, *c);
}

/* Decompresses rows [skip, skip + max_rows) of n sequences, beginning with sequence `first`. */
static void decompress_rows(const struct decompress_params *c, uint32_t n, cudaStream_t stream)
{
	launch_grid(locate_rows_kernel, dim3(c->max_rows / ROWS_PER_BLOCK, n), GEMM_THREADS, 0, stream, *c);
	if (c->k.c.dec_hidden && c->k.c.bits)
		launch_grid(decoder_hidden_kernel, dim3(ceil_div(c->k.c.dec_hidden, WIDE_TILE), c->max_rows / WIDE_TILE, n), GEMM_THREADS,
		            gemm_bytes_with_c<WIDE_TILE, WIDE_TILE>, stream, *c);
	switch (c->k.sh.head_dim) {
	case 64:
		launch<64>(c, n, stream);
		break;
	case 96:
		launch<96>(c, n, stream);
		break;
	case 128:
		launch<128>(c, n, stream);
		break;
	default:
		launch<256>(c, n, stream);
	}
}

static size_t decompress_layout(const struct skv_shape *sh, struct decompress_params *c, uint8_t *mem)
{
	const size_t rows = MAX_ROWS;
	size_t at = 0;

	c->row = (struct row *)(mem + at);
	at += rows * sizeof(struct row);
	c->z = (__nv_bfloat16 *)(mem + at);
	at += rows * sh->codec->width * 2;
	c->turn = (float2 *)(mem + at);
	at += rows * (sh->codec->rope_dims / 2) * sizeof(float2);
	c->dec_hidden = (__nv_bfloat16 *)(mem + at);
	return at + rows * sh->codec->dec_hidden * 2;
}

size_t skv_cuda_decompress_bytes(const struct skv_shape *sh)
{
	struct decompress_params c;
	return sh->codec->kind == SKV_COMPRESS_QUANT ? 0 : decompress_layout(sh, &c, NULL);
}

void skv_cuda_decompress(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_index_list *list,
                         const struct skv_decompressed *to, const struct skv_workspace *work)
{
	const uint32_t rows = list ? list->max_count : batch->max_len, tiles = rows > 0 ? ceil_div(rows, WIDE_TILE) : 1;
	struct decompress_params c = {};

	if (batch->n == 0)
		return;
	if (sh->codec->kind == SKV_COMPRESS_QUANT) {
		skv_cuda_dequantize(sh, batch, list, to, work);
		return;
	}
	decompress_layout(sh, &c, (uint8_t *)work->mem + skv_cuda_workspace_offset(sh));
	c.k = codec_of(sh);
	c.want = wanted_rows_of(batch, list, to, c.k.c.first);
	const uint32_t at_once = batch->n < MAX_SEQS ? batch->n : MAX_SEQS, most = MAX_ROWS / at_once / WIDE_TILE;
	c.max_rows = (tiles < most ? tiles : most) * WIDE_TILE;
	for (c.first = 0; c.first < batch->n; c.first += at_once)
		for (c.skip = 0; c.skip == 0 || c.skip < rows; c.skip += c.max_rows)
			decompress_rows(&c, batch->n - c.first < at_once ? batch->n - c.first : at_once,
			                stream_of(work));
}

template <int D> static cudaError_t init()
{
	return cudaFuncSetAttribute(decompress_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            gemm_bytes<tile_rows<D>, tile_cols<D>>);
}

cudaError_t skv_cuda_decompress_init(void)
{
	cudaError_t e = cudaFuncSetAttribute(decoder_hidden_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                     gemm_bytes_with_c<WIDE_TILE, WIDE_TILE>);
	e = e ? e : init<64>();
	e = e ? e : init<96>();
	e = e ? e : init<128>();
	return e ? e : init<256>();
}
