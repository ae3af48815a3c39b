/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/compress.cuh - how the kernels of packing see each other.
 *
 * A launch is about `room` tokens, from the first ones that are to be packed plus `skip` on, of n sequences in some layers.
 * Token i of them has row i of what the kernels hand on, in scratch. References among the tokens have rows, too, which
 * nobody looks at.
 */
#ifndef SKV_CUDA_PACK_CUH
#define SKV_CUDA_PACK_CUH

#include "kernels/cuda/compress/records.cuh"

#define PACK_LAYERS 32u   /* of one launch: what fits its parameters */
#define PACK_ROWS 4096u   /* rows of one launch, at most */
#define SLICES_MOST 64u   /* that references are searched in, each by a block */
#define SEARCHED 128u     /* references that are compared with at a time */

/* The nearest references of a token among some: the best first, of equals the lower number. */
struct nearest {
	float score[SKV_NEAR_MOST];
	uint32_t id[SKV_NEAR_MOST];
};

/* What layers do not have in common. */
struct pack_layer {
	const void *in, *down;
	uint32_t layer, codes, refs;
};

struct pack_call {
	struct coding k;
	struct pack_layer layer[PACK_LAYERS];
	const struct skv_kseq *seq;
	uint32_t n;          /* sequences: row r is of token r % room of sequence r / room % n in layer r / room / n */
	uint32_t skip, room;
	uint32_t slices;
	__nv_bfloat16 *x, *b; /* [row][d] */
	__nv_bfloat16 *h;     /* [row][hidden] */
	struct nearest *near; /* [row][slices] */
};

/* What a block, or a warp, works on. */
struct pack_job {
	struct coding k;
	const struct pack_layer *layer;
	const struct skv_kseq *s;
	uint32_t from, n; /* the first token; how many there are */
	size_t row;       /* of the first one */
};

/* Of the call's sequence `which` (of the first layer; then of the next). */
DEVICE struct pack_job pack_job(const struct pack_call *c, uint32_t which)
{
	struct pack_job j;
	j.layer = &c->layer[which / c->n];
	j.k = c->k;
	j.k.sh.layer = j.layer->layer;
	j.k.sh.codes = j.layer->codes;
	j.k.sh.refs = j.layer->refs;
	j.s = &c->seq[which % c->n];
	j.from = pack_from(&j.k, j.s) + c->skip;
	j.n = j.s->pack > j.from ? min(j.s->pack - j.from, c->room) : 0;
	j.row = (size_t)which * c->room;
	return j;
}

/* ---- the nearest ------------------------------------------------------------------------------- */

/* The first reference, where no score is a number. */
DEVICE struct nearest nearest_none()
{
	return {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {0, 0, 0, 0}};
}

DEVICE bool nearer(float score, uint32_t id, float than, uint32_t than_id)
{
	return score > than || (score == than && id < than_id);
}

/* They come in any order. A NaN is never near. */
DEVICE void nearest_consider(struct nearest *best, float score, uint32_t id)
{
#pragma unroll
	for (int i = SKV_NEAR_MOST - 1; i >= 0; i--) {
		if (!nearer(score, id, best->score[i], best->id[i]))
			return;
		if (i + 1 < (int)SKV_NEAR_MOST) {
			best->score[i + 1] = best->score[i];
			best->id[i + 1] = best->id[i];
		}
		best->score[i] = score;
		best->id[i] = id;
	}
}

DEVICE void nearest_merge(struct nearest *best, const struct nearest *other)
{
#pragma unroll
	for (uint32_t i = 0; i < SKV_NEAR_MOST; i++)
		nearest_consider(best, other->score[i], other->id[i]);
}

/* ---- fewer bits ------------------------------------------------------------------------------ */

/* A group's numbers: least + q * scale. */
struct grid {
	__nv_bfloat16 scale, least;
};

DEVICE struct grid grid_of(float least, float most, uint32_t bits)
{
	return {__float2bfloat16_rn((most - least) / (float)((1u << bits) - 1)), __float2bfloat16_rn(least)};
}

/* 0 where the scale is, and where something is no number. */
DEVICE uint32_t grid_number(struct grid g, float x, uint32_t bits)
{
	const float scale = __bfloat162float(g.scale), y = rintf((x - __bfloat162float(g.least)) / scale);
	return y > 0 && scale > 0 ? (uint32_t)fminf(y, (float)((1u << bits) - 1)) : 0;
}

/* `at` is a multiple of 2. */
DEVICE void grid_store(struct grid g, uint8_t *at)
{
	((__nv_bfloat16 *)at)[0] = g.scale;
	((__nv_bfloat16 *)at)[1] = g.least;
}

/* ---- launches -------------------------------------------------------------------------------- */

/*
 * On `layers` layers of the call. A tile of few rows is for few tokens: room of up to 64. What the results are does not
 * depend on it.
 */
void skv_cuda_search(const struct pack_call *, uint32_t layers, cudaStream_t);
void skv_cuda_encode(const struct pack_call *, uint32_t layers, cudaStream_t);

#endif
