/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decode-latent.cuh - fused decode for latent compression (kernels/compress.h): attention of one
 * query row per sequence to listed tokens. No decompressed row goes to memory.
 *
 *   decode-latent.cuh       parameters, tiles and shared memory
 *   decode-latent-load.cuh  the load pipeline, from the list to shared memory
 *   decode-latent-tile.cuh  the computation of the warps for a tile
 *   decode-latent.cu        the kernel, the merge of chunks, the launch
 *
 * A token's row is K = R(p) (W_K z + b_K) and V = W_V z + b_V. Here b is the mean of the token's references, and R(p)
 * is RoPE at its position. K must be computed for every token, since RoPE is between the weights and q. V need not be
 * computed:
 *
 *   Σ α V = W_V u + r,  u = Σ α z,  r = Σ α b_V
 *
 * So a chunk stores u and r, and W_V is applied once, when the chunks of a sequence are merged. Uncompressed rows and
 * references are processed like tokens with codes: their z is 0, and their only row is b.
 *
 * A block works for one kv head (for up to eight of its q heads, a head tile) for its whole lifetime, since it keeps
 * the head's W_K in registers: 128 KiB with 128 dimensions and a width of 512, more than any other memory has room for.
 * W_K is the left factor of K = W_K zᵀ; all warps read the right factor from shared memory. A warp has 16 dimensions of
 * W_K and half of the width. The dimensions are two blocks of 8 that RoPE rotates together, the pairs (i, i + rope_dims
 * / 2), so a lane has both elements of a pair. The products over the two halves of the width are added up across warps.
 * Each warp then has its dimensions of K for half of the tokens, adds the references' mean, applies RoPE, and
 * multiplies with q immediately: K is never written to memory.
 *
 * Rows in shared memory are added up by products, too: the rows of references are multiplied by the identity matrix.
 *
 * The loads of a tile of 32 tokens depend on each other, and each of them takes a microsecond: first the list, then the
 * page table entries of the tokens' records, the numbers of references in the records, the page table entries of the
 * references, and last the references. So the loads are a software pipeline: six tiles are in flight at a time, each at
 * another stage. All loads are asynchronous copies to shared memory, and one wait per tile suffices.
 *
 * A list is split into chunks by its own length, and a chunk into tiles from the chunk's first token on, so the bits of
 * a result depend on the sequence alone.
 */
#ifndef SKV_CUDA_COMPRESS_DECODE_LATENT_CUH
#define SKV_CUDA_COMPRESS_DECODE_LATENT_CUH

#include "kernels/cuda/compress/records.cuh"
#include "kernels/cuda/runtime/async-copy.cuh"
#include "kernels/cuda/runtime/softmax.cuh"

#define TILE 32u   /* tokens of a tile */
#define BLOCKS 4u  /* blocks of 8 tokens in a tile */
#define ROWS SKV_MAX_REFS /* max references of a token, whose rows have the mean b */
#define PIPELINE_DEPTH 6    /* number of tiles in flight */
#define MAX_CHUNKS_OF_LIST 16u /* max chunks of a list */
#define MIN_CHUNK_TILES 4u    /* min tiles of a chunk, except the last chunk of a list */

struct latent_params {
	struct codec k;
	const struct skv_kseq *seq;
	uint32_t n;
	const void *q;
	void *out;
	uint32_t q_stride, out_stride; /* elements from one row to the next, of q and of out */
	struct score_scale scale;
	struct skv_index_list list;
	uint32_t width;                    /* elements of z; 0: there is no z */
	uint32_t rows;                     /* max rows of a token: its references, or 1 */
	uint32_t group, tile_heads;        /* q heads of a kv head; max q heads of a head tile */
	uint32_t tiles_per_kv_head, heads; /* head tiles of a kv head; head tiles of a sequence */
	float *part;                       /* partial results of chunks, at partial_at() */
};

/*
 * Returns the index in x, which has the heads of all ranks, of the first element of the K (v = 0) or V (v = 1) of this
 * rank's kv head h. This is also the index of a row of W_K or W_V.
 */
DEVICE uint32_t head_in_x(const struct latent_params *c, uint32_t v, uint32_t h, uint32_t head_dim)
{
	return v * c->k.half + c->k.own + h * head_dim;
}

/* ---- work items ------------------------------------------------------------------------------ */

/* Returns the number of tiles of a chunk, for a list of `tiles` tiles. */
DEVICE uint32_t chunk_tiles(uint32_t tiles)
{
	return max(MIN_CHUNK_TILES, (tiles + MAX_CHUNKS_OF_LIST - 1) / MAX_CHUNKS_OF_LIST);
}

DEVICE uint32_t n_listed_tiles(const struct latent_params *c, uint32_t i)
{
	return (c->list.count[i] + TILE - 1) / TILE;
}

/* A tile of listed tokens, while it is in flight, and its sequence. */
struct tile {
	const uint32_t *ids;
	const skv_pte *pages, *codes, *refs; /* the sequence's tables of pages, codes and references */
	uint32_t n;                          /* number of tokens; 0: there are no more tiles */
	uint32_t len, n_compressed, i, chunk;
	bool begins, ends; /* is it the first tile of its chunk, and is it the last one? */
};

/* A block's position in the chunks and tiles that it processes. */
struct cursor {
	/* `item` is the next chunk, `items` the number of chunks; the block takes every step-th chunk. */
	uint32_t item, step, items;
	uint32_t left;              /* number of tiles of the chunk after this tile */
	const uint32_t *end;        /* end of the chunk's list */
	struct tile tile;
};

/* How a token is stored, and the properties that depend on it. */
enum kind { ABSENT, ROW, REFERENCE, CODE };

struct token_info {
	uint32_t position; /* position for RoPE; 0 if K is already rotated */
	float size;        /* RoPE's factor for K */
	float share;       /* weight of each of the token's rows in its mean b */
	enum kind kind;
};

DEVICE enum kind kind_of(const struct latent_params *c, const struct tile *t, uint32_t token)
{
	if (token >= t->len)
		return ABSENT;
	if (token < c->k.c.first || token >= t->n_compressed)
		return ROW;
	return is_ref(&c->k, token) ? REFERENCE : CODE;
}

/* ---- shared memory --------------------------------------------------------------------------- */

/*
 * A warp processes one of SLICES slices of the width and one of `spans` spans of the dimensions. The warps of each
 * slice complete K for OWN_BLOCKS of a tile's blocks of tokens.
 */
#define SLICES 2u
#define OWN_BLOCKS (BLOCKS / SLICES)
template <int D> static constexpr uint32_t spans = D / 16;
template <int D> static constexpr uint32_t warps = SLICES * spans<D>;
template <int D> static constexpr uint32_t threads = 32 * warps<D>;

/* Byte offset of a piece in swizzled rows of `bytes` bytes: the 16-byte pieces of eight rows lie in different banks. */
template <uint32_t bytes> DEVICE uint32_t piece_at(uint32_t row, uint32_t piece)
{
	return row * bytes + (piece ^ row % 8) * 16;
}

#define WEIGHTS_PITCH (TILE / 2 + 4) /* words of a head's softmax weights, two tokens per word */

template <int D, int W> struct latent_smem {
	/* [tile][row of a token][K, V] rows of tokens; before the first tile, W_K is stored here. */
	uint8_t rows[2][ROWS][2][TILE * D * 2];
	uint8_t z[TILE * W * 2];
	uint8_t record[TILE][W * 2 + 16];
	/* Partial sums of K for the warp that completes them; later, scores of that warp: score_at(). */
	float4 slice[BLOCKS][spans<D>][32];
	uint32_t weight[HEAD_TILE][WEIGHTS_PITCH]; /* softmax weights, in bf16, that multiply z */
	/* Weights that multiply each of a token's rows, in the pool's dtype. */
	uint32_t rows_weight[HEAD_TILE][WEIGHTS_PITCH];
	float fix[HEAD_TILE]; /* factors that rescale earlier sums to the current maximum */
	struct token_info about[2][TILE];
	/* Source addresses of the next tile's rows and records; NULL: there is none. */
	const uint8_t *row_from[2][ROWS][TILE];
	const uint8_t *record_from[TILE];
	struct cursor cursor;
	/* Data of tiles in flight, each of which is kept as long as it is needed. */
	/* First bytes of codes' records, which are the numbers of the codes' references. */
	uint4 head[4][TILE];
	struct tile tile[8];
	uint32_t token[8][TILE];
	skv_pte entry[4][TILE];          /* entries of pages with tokens' rows or records */
	skv_pte near[2][ROWS][TILE];     /* entries of pages with tokens' references */
};

/*
 * Returns the address of the scores of tokens 8 b … 8 b + 7 for a head, over one span of the dimensions: rows of heads
 * lie in different banks.
 */
template <int D, int W> DEVICE float *score_at(struct latent_smem<D, W> *s, uint32_t b, uint32_t span, uint32_t head)
{
	return (float *)s->slice[b][span] + 8 * (head + b);
}

/* ---- results --------------------------------------------------------------------------------- */

/* Number of floats of a partial result: HEAD_TILE maxima and HEAD_TILE sums, then u and r of each head. */
static inline __host__ __device__ uint32_t chunk_floats(uint32_t heads, uint32_t width, uint32_t head_dim)
{
	return 2 * HEAD_TILE + heads * (width + head_dim);
}

DEVICE float *partial_at(const struct latent_params *c, uint32_t i, uint32_t x, uint32_t chunk, uint32_t head_dim)
{
	return c->part + (((size_t)i * c->heads + x) * MAX_CHUNKS_OF_LIST + chunk) *
	                 chunk_floats(c->tile_heads, c->width, head_dim);
}

#endif
