/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/output.cuh - which rows of q a block has, and how their outputs are stored. A sparse row's
 * output may be corrected by the difference, dense - sparse, of its representative row (delta correction).
 */
#ifndef SKV_CUDA_PREFILL_OUTPUT_CUH
#define SKV_CUDA_PREFILL_OUTPUT_CUH

#include "kernels/cuda/prefill/tiles.cuh"
#include "kernels/cuda/runtime/barrier.cuh"

/*
 * A (row, head) pair of the block. p: the row's position, clamped if the pair does not exist. at: its index in the
 * call, row * n_heads + head; 0xffffffff if the pair does not exist. q: index of the query's first element in c->q.
 */
struct pair_row {
	uint32_t p, at;
	size_t q;
};
template <bool SPARSE, int ROWS>
__device__ static struct pair_row pair_row(const struct prefill_params *c, const struct work_item *x, uint32_t pair)
{
	const struct skv_kseq *s = x->s;
	const uint32_t f = first_of(s), heads = SPARSE ? c->heads : c->group, of = SPARSE ? pair : x->first + pair;
	const uint32_t row = of / heads, head = x->head + of % heads;
	const uint32_t p = SPARSE ? x->first + row : row_position(c, s, x->kind, row);
	const bool exists = SPARSE ? row < rows_per_block(c, ROWS) && p >= f && p < min(s->len, s->dense_from)
	                           : row_in_launch(c, s, x->kind, row, p);
	struct pair_row r;
	const uint32_t in_call = s->row + (p - f);
	r.p = min(max(p, f), s->len - 1);
	r.at = exists ? in_call * c->n_heads + head : 0xffffffff;
	r.q = exists ? (size_t)in_call * c->q_stride + head * c->shape.head_dim : 0;
	return r;
}

/*
 * A thread's part of two of a warp's 16 rows: row lane / 4 (y = 0), and the row 8 after it (y = 1). Columns 8 a + 2
 * (lane % 4) and the next one are o[4 a + 2 y] and o[4 a + 2 y + 1].
 */
template <int D> struct out_rows {
	float o[D / 2];
	float max[2], sum[2]; /* maximum of scores and sum of weights, without the sink's */
	uint32_t p[2], low[2], at[2];
};

/* Returns the factor for row y's weighted sum of V: the inverse of its sum of weights, including the sink's. */
template <int D> DEVICE float row_share(const struct prefill_params *c, const struct out_rows<D> *r, int y)
{
	const float *sinks = c->shape.sinks;
	float sum = r->sum[y];
	if (sinks && r->at[y] != 0xffffffff && sum > 0)
		sum += sink_term(sinks, r->at[y] % c->n_heads, r->max[y]);
	return sum > 0 ? 1 / sum : 0;
}

/* Writes row y's log-sum-exp, if the caller wants it; the first of the four lanes that share the row does so. */
template <int D> DEVICE void store_lse(const struct prefill_params *c, const struct out_rows<D> *r, int y)
{
	if (c->shape.lse && threadIdx.x % 4 == 0)
		c->shape.lse[r->at[y]] = log_sum(r->max[y], r->sum[y]);
}

/* Returns the index in `out` of the first element of a (row, head) pair's output. */
template <int D> DEVICE size_t output_at(const struct prefill_params *c, uint32_t at)
{
	return (size_t)(at / c->n_heads) * c->out_stride + at % c->n_heads * D;
}

/*
 * row_block() gives a lane eight consecutive columns of a row. Four lanes share a row, and each has two of every eight
 * columns. row_block() exchanges the blocks of eight columns 4 g to 4 g + 3 so that lane l gets all of block 4 g + l,
 * for memory accesses of 16 bytes and more.
 */
DEVICE void swap_halves(float2 *a, float2 *b, uint32_t with)
{
	const bool upper = threadIdx.x & with;
	const float2 give = upper ? *a : *b;
	float2 get;
	get.x = __shfl_xor_sync(~0u, give.x, with);
	get.y = __shfl_xor_sync(~0u, give.y, with);
	if (upper)
		*a = get;
	else
		*b = get;
}
template <int D> DEVICE void row_block(const struct out_rows<D> *r, int y, int g, float2 (&b)[4])
{
#pragma unroll
	for (int l = 0; l < 4; l++)
		b[l] = make_float2(r->o[4 * (4 * g + l) + 2 * y], r->o[4 * (4 * g + l) + 2 * y + 1]);
	swap_halves(&b[0], &b[1], 1);
	swap_halves(&b[2], &b[3], 1);
	swap_halves(&b[0], &b[2], 2);
	swap_halves(&b[1], &b[3], 2);
}

DEVICE void read_block(const float *from, float2 (&b)[4])
{
	const float4 x = ((const float4 *)from)[0], y = ((const float4 *)from)[1];
	b[0] = make_float2(x.x, x.y);
	b[1] = make_float2(x.z, x.w);
	b[2] = make_float2(y.x, y.y);
	b[3] = make_float2(y.z, y.w);
}
DEVICE void write_block(float *to, const float2 (&b)[4])
{
	((float4 *)to)[0] = make_float4(b[0].x, b[0].y, b[1].x, b[1].y);
	((float4 *)to)[1] = make_float4(b[2].x, b[2].y, b[3].x, b[3].y);
}

template <int D> DEVICE float *dense_output_at(const struct prefill_params *c, const struct work_item *x, uint32_t p,
                                               uint32_t at)
{
	const uint32_t k = representative_number(x->s, &c->sparse, p);
	return c->dense_outputs + (((size_t)x->i * c->n_representatives + k) * c->n_heads + at % c->n_heads) * D;
}

/* Returns the address of a q head's saved correction in set `set`. */
template <int D>
DEVICE float *saved_correction_at(const struct prefill_params *c, const struct work_item *x, uint32_t set,
                                  uint32_t at)
{
	return (float *)skv_saved_at(&c->shape, x->s, &c->sparse, set,
	                            (size_t)(at % c->n_heads) * D * sizeof(float));
}

template <int D> __device__ static void store_dense(const struct prefill_params *c, const struct work_item *x,
                                                    const struct out_rows<D> *r)
{
	const uint32_t lane = threadIdx.x % 4;
#pragma unroll
	for (int y = 0; y < 2; y++) {
		const bool exists = r->at[y] != 0xffffffff;
		const size_t out = output_at<D>(c, r->at[y]);
		float *dense = exists && x->kind == ROWS_REPRESENTATIVES
		                       ? dense_output_at<D>(c, x, r->p[y], r->at[y]) : NULL;
		if (exists)
			store_lse<D>(c, r, y);
#pragma unroll
		for (int g = 0; g < D / 32; g++) {
			const uint32_t column = 8 * (4 * g + lane);
			float2 b[4];
			row_block<D>(r, y, g, b);
			if (dense)
				write_block(dense + column, b);
			else if (exists)
				io_store8(c->io_dtype, c->out, out + column, b);
		}
	}
}

/*
 * Completes representative rows, whose dense outputs are in the workspace. Writes the outputs to `out`, replaces them
 * in the workspace by the corrections, and saves the correction that the first rows of the prompt's next call need.
 */
template <int D>
__device__ static void store_representatives(const struct prefill_params *c, const struct work_item *x,
                                             const struct out_rows<D> *r)
{
	const struct skv_kseq *s = x->s;
	const uint32_t lane = threadIdx.x % 4, last = representative_number(s, &c->sparse, s->len - 1);
#pragma unroll
	for (int y = 0; y < 2; y++) {
		const bool exists = r->at[y] != 0xffffffff && is_representative(s, &c->sparse, r->p[y]);
		if (!__any_sync(~0u, exists))
			continue;
		float *output = exists ? dense_output_at<D>(c, x, r->p[y], r->at[y]) : NULL;
		const size_t out = output_at<D>(c, r->at[y]);
		float *saved = NULL;
		if (exists && c->sparse.delta && s->prompt_continues &&
		    representative_number(s, &c->sparse, r->p[y]) == last)
			saved = saved_correction_at<D>(c, x, s->set, r->at[y]);
#pragma unroll
		for (int g = 0; g < D / 32; g++) {
			const uint32_t column = 8 * (4 * g + lane);
			float2 b[4], dense[4];
			row_block<D>(r, y, g, b);
			if (!exists)
				continue;
			read_block(output + column, dense);
			io_store8(c->io_dtype, c->out, out + column, dense);
#pragma unroll
			for (int k = 0; k < 4; k++)
				b[k] = make_float2(dense[k].x - b[k].x, dense[k].y - b[k].y);
			if (c->sparse.delta)
				write_block(output + column, b);
			if (saved)
				write_block(saved + column, b);
		}
	}
}

/* Returns the correction of row p: that of its representative row, from this call or an earlier one. */
template <int D> __device__ static const float *correction(const struct prefill_params *c, const struct work_item *x,
                                                           uint32_t p, uint32_t at)
{
	if (representative_row(x->s, &c->sparse, representative_number(x->s, &c->sparse, p)) >= first_of(x->s))
		return dense_output_at<D>(c, x, p, at);
	return saved_correction_at<D>(c, x, x->s->set ^ 1, at);
}

template <int D, int THREADS>
__device__ static void store_sparse(const struct prefill_params *c, const struct work_item *x,
                                    const struct out_rows<D> *r)
{
	const uint32_t lane = threadIdx.x % 4;
	if (c->sparse.gamma)
		store_representatives<D>(c, x, r);
	if (c->sparse.delta) {
		__threadfence_block();
		warps_sync(2, THREADS);
	}
#pragma unroll
	for (int y = 0; y < 2; y++) {
		const bool exists = r->at[y] != 0xffffffff && !skv_row_dense(x->s, &c->sparse, r->p[y]);
		const float *add = exists && c->sparse.delta ? correction<D>(c, x, r->p[y], r->at[y]) : NULL;
		const size_t out = output_at<D>(c, r->at[y]);
		if (exists)
			store_lse<D>(c, r, y);
#pragma unroll
		for (int g = 0; g < D / 32; g++) {
			const uint32_t column = 8 * (4 * g + lane);
			float2 b[4], d[4];
			row_block<D>(r, y, g, b);
			if (!exists)
				continue;
			if (add) {
				read_block(add + column, d);
#pragma unroll
				for (int k = 0; k < 4; k++)
					b[k] = make_float2(b[k].x + d[k].x, b[k].y + d[k].y);
			}
			io_store8(c->io_dtype, c->out, out + column, b);
		}
	}
}

#endif
