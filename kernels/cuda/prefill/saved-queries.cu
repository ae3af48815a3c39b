/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/saved-queries.cu - saves the queries that later calls of a prompt need, into the set that this
 * step writes.
 */
#include "kernels/cuda/prefill/weights.cuh"

/*
 * Copies queries in pieces of 16 bytes; each head has a whole number of pieces. The grid is saved rows (x) by sequences
 * (y).
 */
__global__ void __launch_bounds__(THREADS) save_queries_kernel(const __grid_constant__ struct weights_params c)
{
	const struct skv_kseq *s = &c.call.seq[blockIdx.y];
	const uint32_t last = s->len - 1, pieces = c.sh.head_dim * skv_dtype_bytes(c.sh.io_dtype) / 16;
	const uint32_t p = skv_first_row(s, last, c.sp.segment ? c.sp.segment : c.sp.tile) + blockIdx.x;

	if (!s->prompt_continues || p > last)
		return;
	for (uint32_t x = threadIdx.x; x < c.call.n_heads * pieces; x += THREADS) {
		const uint32_t head = x / pieces;
		const size_t row = ((size_t)blockIdx.x * c.call.n_heads + head) * pieces * 16;
		uint4 *to = (uint4 *)skv_saved_at(&c.sh, s, &c.sp, s->set,
		                                  skv_saved_queries_offset(&c.sh, &c.sp) + row);
		to[x % pieces] = ((const uint4 *)query_at(&c, s, p, head))[x % pieces];
	}
}

void skv_cuda_save_queries(const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                           const struct skv_sparse *sp, const struct skv_workspace *work)
{
	struct weights_params c = {};

	init_weights_params(&c, sh, b, q, sp);
	if (b->n > 0 && sp->n_saved_queries > 0)
		launch_grid(save_queries_kernel, dim3(sp->n_saved_queries, b->n), THREADS, 0, stream_of(work), c);
}
