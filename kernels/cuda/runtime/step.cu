/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/step.cu - the kernels that begin and end a step: see struct skv_stage, struct skv_publish.
 *
 * Both kernels read their input directly from pinned host memory: the input is a few KiB, read once, and one launch
 * takes less time than a copy and a launch.
 */
#include "kernels/cuda/runtime/module.h"

#define THREADS 128u

__global__ void __launch_bounds__(THREADS) stage_kernel(const __grid_constant__ struct skv_stage c)
{
	const uint32_t at = blockIdx.x * THREADS + threadIdx.x;

	if (at < c.n) {
		const struct skv_kseq s = c.from[at];
		c.to[at] = s;
		if (s.attended)
			*s.attended = 0;
	}
	if (at < c.n_entries) {
		const struct skv_pte_update e = c.entry[at];
		*e.at = e.entry;
	}
}

/*
 * Publishes the end of a step, one warp per sequence. A reader that sees the commit word also sees everything else
 * published for the sequence's step, and knows that all earlier kernels of the step have ended.
 */
__global__ void __launch_bounds__(THREADS) publish_kernel(const struct skv_publish *one, uint32_t n,
                                                          const int32_t *next)
{
	const uint32_t at = (blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
	if (at >= n)
		return;
	const struct skv_publish p = one[at];
	if (!p.commit)
		return;
	const int32_t id = next ? next[p.item] : -1;

	for (uint32_t i = lane; i < p.n_words; i += 32)
		((volatile uint32_t *)p.words)[i] = p.words_are[i];
	if (p.n_words)
		__threadfence_system();
	__syncwarp();
	if (lane > 0)
		return;
	*(volatile uint32_t *)p.about = p.about_is;
	*(volatile uint32_t *)p.len = (uint32_t)p.word;
	*(volatile int32_t *)p.next[0] = id;
	*(volatile int32_t *)p.next[1] = id;
	if (p.token)
		*(volatile int32_t *)p.token = p.id;
	if (p.n_evict)
		*(volatile uint32_t *)p.journal_n = p.n_evict;
	if (p.attended)
		*(volatile uint64_t *)p.sum = *p.attended;
	__threadfence_system();
	*(volatile uint64_t *)p.commit = p.word;
}

int skv_cuda_stage(const struct skv_stage *c, void *stream)
{
	const uint32_t n = c->n > c->n_entries ? c->n : c->n_entries;
	stage_kernel<<<(n + THREADS - 1) / THREADS, THREADS, 0, (cudaStream_t)stream>>>(*c);
	return skv_cuda_result(cudaGetLastError(), "beginning a step");
}

int skv_cuda_publish(const struct skv_publish *one, uint32_t n, const int32_t *next, void *stream)
{
	publish_kernel<<<(n * 32 + THREADS - 1) / THREADS, THREADS, 0, (cudaStream_t)stream>>>(one, n, next);
	return skv_cuda_result(cudaGetLastError(), "ending a step");
}
