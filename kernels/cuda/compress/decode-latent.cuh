/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decode-latent.cuh - attention of one query row to listed tokens of a layer that packs
 * (kernels/compress.h): what is rebuilt of them never goes to memory.
 *
 *   decode-codes.cuh        calls, tiles and what shared memory holds
 *   decode-codes-ahead.cuh  from the list to shared memory
 *   decode-codes-tile.cuh   what the warps make of a tile
 *   decode-codes.cu         the kernel, merging of chunks, the launch
 *
 * A token's row is K = R(p) (W_K z + b_K) and V = W_V z + b_V, b the mean of its references. Of K every token's must
 * be made, since what turns it stands between the weights and q. Of V none is:
 *
 *   Σ α V = W_V u + r,  u = Σ α z,  r = Σ α b_V
 *
 * so a chunk leaves u and r, and W_V is applied once, where the chunks of a sequence are merged. Rows in pages and
 * references go the same way as tokens with codes: their z is 0, and their one row stands for b.
 *
 * A block works for one kv head (for up to eight of its q heads, a head tile) all its life, since it has the head's
 * W_K in registers: so much of it is there that nothing else has room for it, 128 KiB with 128 dimensions and a width
 * of 512. It is the left factor of K = W_K zᵀ, whose other side all warps read from shared memory. A warp has 16
 * dimensions of W_K and half of the width: twice 8 that turn together, the pairs (i, i + turn_dims / 2), so that a
 * lane has both of a pair. What the halves of the width give is added up across warps; each warp ends up with its
 * dimensions of half of the tokens, adds the references' mean, turns them, and multiplies them with q there and then:
 * K is never written anywhere.
 *
 * Sums of rows that lie in shared memory are products too: of references with a matrix of ones and zeros.
 *
 * What a tile of 32 tokens needs hangs on a chain of reads, each of which takes a microsecond: its list, the entries
 * of its records' pages, the records' numbers of references, the entries of these, the references. So a block is on
 * its way with six tiles at a time, at a different link of the chain with each; all is copied to shared memory in the
 * background, and one wait a tile sees to it that it has come.
 *
 * A list is cut into chunks by its own length, and a chunk into tiles from its first token on: so the bits of a
 * result depend on the sequence alone.
 */
#ifndef SKV_CUDA_DECODE_CODES_CUH
#define SKV_CUDA_DECODE_CODES_CUH

#include "kernels/cuda/compress/records.cuh"
#include "kernels/cuda/runtime/async-copy.cuh"

#define LOG2E 1.44269504088896340736f
#define TILE 32u   /* tokens */
#define BLOCKS 4u  /* of 8 tokens in a tile */
#define ROWS SKV_NEAR_MOST /* that a token's b is made of, at most */
#define AHEAD 6    /* tiles that a block is on its way with */
#define LISTED_CHUNKS 16u /* of a list, at most ... */
#define CHUNK_LEAST 4u    /* ... of at least so many tiles */

struct call {
	struct coding k;
	const struct skv_kseq *seq;
	uint32_t n;
	const void *q;
	void *out;
	float scale;
	struct skv_list list;
	uint32_t width; /* of z; 0: there is none */
	uint32_t rows;  /* of a token, at most */
	uint32_t group, wide;   /* q heads of a kv head; of a head tile, at most */
	uint32_t per_kv, heads; /* head tiles of a kv head; of a sequence */
	float *part; /* what chunks leave: see part_at() */
};

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Tiles of each chunk of a list that has so many. */
DEVICE uint32_t chunk_tiles(uint32_t tiles)
{
	return max(CHUNK_LEAST, (tiles + LISTED_CHUNKS - 1) / LISTED_CHUNKS);
}

DEVICE uint32_t listed_tiles(const struct call *c, uint32_t i)
{
	return (c->list.count[i] + TILE - 1) / TILE;
}

/* A tile on its way, and the sequence that it is of. */
struct tile {
	const uint32_t *ids;
	const skv_pte *pages, *codes, *refs; /* the sequence's tables */
	uint32_t n;                          /* tokens; 0: there are no more tiles */
	uint32_t len, coded, i, chunk;
	bool begins, ends; /* its chunk */
};

/* Where a block is in what it has to do. */
struct cursor {
	uint32_t job, step, jobs; /* the next chunk; it takes every step-th */
	uint32_t left;            /* tiles of its chunk after this one */
	const uint32_t *end;      /* of its list */
	struct tile tile;
};

/* What follows from where a token is kept. */
enum kind { ABSENT, ROW, REFERENCE, CODED };

struct about {
	uint32_t position; /* that its K is turned to; 0 where it is already */
	float size;        /* that turning gives it */
	float share;       /* of each of its rows in b */
	enum kind kind;
};

DEVICE enum kind kind_of(const struct call *c, const struct tile *t, uint32_t token)
{
	if (token >= t->len)
		return ABSENT;
	if (token < c->k.c.first || token >= t->coded)
		return ROW;
	return is_ref(&c->k, token) ? REFERENCE : CODED;
}

/* ---- shared memory --------------------------------------------------------------------------- */

/* Warps that share the width, and those that share the dimensions; each of the former finishes some of a tile's blocks. */
#define SLICES 2u
#define MINE (BLOCKS / SLICES)
template <int D> static constexpr uint32_t spans = D / 16;
template <int D> static constexpr uint32_t warps = SLICES * spans<D>;
template <int D> static constexpr uint32_t threads = 32 * warps<D>;

/* Rows of `bytes` bytes, whose 16-byte pieces lie so that those of eight rows are in different banks. */
template <uint32_t bytes> DEVICE uint32_t piece_at(uint32_t row, uint32_t piece)
{
	return row * bytes + (piece ^ row % 8) * 16;
}

#define WEIGHTS_PITCH (TILE / 2 + 4) /* words of a head's softmax weights, two tokens each */

template <int D, int W> struct room {
	uint8_t rows[2][ROWS][2][TILE * D * 2]; /* [tile][row of a token][K, V]; before the first tile W_K */
	uint8_t z[TILE * W * 2];
	uint8_t record[TILE][W * 2 + 16];
	float4 slice[BLOCKS][spans<D>][32]; /* half of K, on its way to who finishes a block; then his scores: score_at() */
	uint32_t weight[HEAD_TILE][WEIGHTS_PITCH]; /* of z, in bf16 */
	uint32_t rows_weight[HEAD_TILE][WEIGHTS_PITCH]; /* of each of a token's rows, in the pool's dtype */
	float fix[HEAD_TILE]; /* what brings earlier sums to the maximum that there is now */
	struct about about[2][TILE];
	/* of the next tile: where it is copied from; NULL: nowhere */
	const uint8_t *row_from[2][ROWS][TILE];
	const uint8_t *record_from[TILE];
	struct cursor cursor;
	/* of tiles on their way, each as long as it is needed */
	uint4 head[4][TILE];             /* first bytes of a record: its numbers of references */
	struct tile tile[8];
	uint32_t token[8][TILE];
	skv_pte entry[4][TILE];          /* of the page with its row or record */
	skv_pte near[2][ROWS][TILE];     /* and with its references */
};

/* Where one of the warps that share the dimensions leaves the scores of tokens 8 b … 8 b + 7: a row each head, in banks of its own. */
template <int D, int W> DEVICE float *score_at(struct room<D, W> *s, uint32_t b, uint32_t span, uint32_t head)
{
	return (float *)s->slice[b][span] + 8 * (head + b);
}

/* ---- results --------------------------------------------------------------------------------- */

/* HEAD_TILE maxima and sums, then u and r of each head. */
static inline __host__ __device__ uint32_t chunk_floats(uint32_t heads, uint32_t width, uint32_t head_dim)
{
	return 2 * HEAD_TILE + heads * (width + head_dim);
}

DEVICE float *part_at(const struct call *c, uint32_t i, uint32_t x, uint32_t chunk, uint32_t head_dim)
{
	return c->part + (((size_t)i * c->heads + x) * LISTED_CHUNKS + chunk) * chunk_floats(c->wide, c->width, head_dim);
}

#endif
