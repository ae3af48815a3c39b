/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/compress.cuh - parameters and functions that the kernels of latent compression share.
 *
 * A launch processes `max_tokens` tokens of each of n sequences in some layers: those that follow the first `skip`
 * tokens to compress. Each of these tokens has a row of intermediate results in the workspace. References among the
 * tokens also have rows, which are not used.
 */
#ifndef SKV_CUDA_COMPRESS_CUH
#define SKV_CUDA_COMPRESS_CUH

#include "kernels/cuda/compress/records.cuh"

#define MAX_LAYERS 32u   /* max layers of one launch: as many as fit into its parameters */
#define MAX_ROWS 4096u   /* max rows of intermediate results of one launch */
#define MAX_SLICES 64u   /* max slices into which references are divided; a block searches one slice */
#define REFS_PER_TILE 128u     /* number of references that tokens are compared with at a time */

/*
 * The nearest references of a token among some references, the nearest first; of equally near ones, the lower number
 * first.
 */
struct nearest {
	float score[SKV_MAX_REFS];
	uint32_t id[SKV_MAX_REFS];
};

/* Parameters of a launch that differ from layer to layer. */
struct compress_layer {
	const void *in, *down;
	uint32_t layer, codes, refs;
};

struct compress_params {
	struct codec k;
	struct compress_layer layer[MAX_LAYERS];
	const struct skv_kseq *seq;
	/* NULL, or x of the tokens at n_compressed and after it, for the heads of all ranks: [n][given_rows][d]. */
	const float *given;
	uint32_t given_rows;
	/*
	 * Number of sequences. Row r is for token r % max_tokens of sequence r / max_tokens % n, in layer r /
	 * max_tokens / n.
	 */
	uint32_t n;
	uint32_t skip, max_tokens;
	uint32_t slices;
	__nv_bfloat16 *x, *b; /* [row][d] x, and the mean b, of tokens */
	__nv_bfloat16 *h;     /* [row][hidden] hidden units */
	struct nearest *near; /* [row][slices] nearest references of tokens */
};

/* The tokens of one sequence and layer that a launch processes. */
struct compress_item {
	struct codec k;
	const struct compress_layer *layer;
	const struct skv_kseq *s;
	const float *given; /* x of the sequence's tokens, or NULL */
	uint32_t from, n; /* index of the first token; number of tokens */
	size_t row;       /* index of the first token's row of intermediate results */
};

/*
 * Returns item number `which`: the sequences of the call in the first layer come first, then those in the next layer.
 */
DEVICE struct compress_item compress_item_of(const struct compress_params *c, uint32_t which)
{
	struct compress_item j;
	j.layer = &c->layer[which / c->n];
	j.k = c->k;
	j.k.sh.layer = j.layer->layer;
	j.k.sh.codes = j.layer->codes;
	j.k.sh.refs = j.layer->refs;
	j.s = &c->seq[which % c->n];
	j.given = c->given ? c->given + (size_t)(which % c->n) * c->given_rows * j.k.d : NULL;
	j.from = compress_from(&j.k, j.s) + c->skip;
	j.n = j.s->compress_to > j.from ? min(j.s->compress_to - j.from, c->max_tokens) : 0;
	j.row = (size_t)which * c->max_tokens;
	return j;
}

/* ---- nearest references ------------------------------------------------------------------------ */

/* Returns a list that names the first reference, which stays in it if no score is a number. */
DEVICE struct nearest nearest_none()
{
	return {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {0, 0, 0, 0}};
}

DEVICE bool nearer(float score, uint32_t id, float than, uint32_t than_id)
{
	return score > than || (score == than && id < than_id);
}

/*
 * Inserts a candidate if it is near enough. Candidates come in any order. A candidate whose score is NaN is never near.
 */
DEVICE void nearest_consider(struct nearest *best, float score, uint32_t id)
{
#pragma unroll
	for (int i = SKV_MAX_REFS - 1; i >= 0; i--) {
		if (!nearer(score, id, best->score[i], best->id[i]))
			return;
		if (i + 1 < (int)SKV_MAX_REFS) {
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
	for (uint32_t i = 0; i < SKV_MAX_REFS; i++)
		nearest_consider(best, other->score[i], other->id[i]);
}

/* ---- quantization ---------------------------------------------------------------------------- */

/* The parameters of a scale block: a quantized number q has the value least + q * scale. */
struct quant_scale {
	__nv_bfloat16 scale, least;
};

DEVICE struct quant_scale quant_scale_of(float least, float most, uint32_t bits)
{
	return {__float2bfloat16_rn((most - least) / (float)((1u << bits) - 1)), __float2bfloat16_rn(least)};
}

/* Quantizes x; returns 0 if the scale is 0 or a value is NaN. */
DEVICE uint32_t quantize_number(struct quant_scale g, float x, uint32_t bits)
{
	const float scale = __bfloat162float(g.scale), y = rintf((x - __bfloat162float(g.least)) / scale);
	return y > 0 && scale > 0 ? (uint32_t)fminf(y, (float)((1u << bits) - 1)) : 0;
}

/* Stores the parameters of a scale block; `at` is a multiple of 2. */
DEVICE void store_quant_scale(struct quant_scale g, uint8_t *at)
{
	((__nv_bfloat16 *)at)[0] = g.scale;
	((__nv_bfloat16 *)at)[1] = g.least;
}

/* ---- launches -------------------------------------------------------------------------------- */

/*
 * Queue the search for nearest references, and the encoding, for `layers` layers. If there are few tokens (max_tokens
 * of up to 64) small tiles are used. The results do not depend on the tiles.
 */
void skv_cuda_nearest_refs(const struct compress_params *, uint32_t layers, cudaStream_t);
void skv_cuda_encode(const struct compress_params *, uint32_t layers, cudaStream_t);

#endif
