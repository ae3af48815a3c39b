/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/parallel.c - a parallel loop over independent items.
 *
 * With one thread the caller runs all items: no OpenMP region is entered, so no threads are started.
 */
#include "kernels/host/runtime/host.h"
#ifdef _OPENMP
#include <omp.h>
#endif

void skv_run(int threads, uint32_t n, skv_item_fn *fn, void *ctx)
{
#ifdef _OPENMP
	if (threads > 1 && n > 1) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
		for (uint32_t i = 0; i < n; i++)
			fn(ctx, i, omp_get_thread_num());
		return;
	}
#endif
	(void)threads;
	for (uint32_t i = 0; i < n; i++)
		fn(ctx, i, 0);
}
