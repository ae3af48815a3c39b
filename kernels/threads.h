/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/threads.h - the threads of the host kernels: one pool for each process, in kernels/host/runtime/parallel.c.
 */
#ifndef SKV_THREADS_H
#define SKV_THREADS_H

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_MAX_THREADS 1024

/*
 * Returns the number in $OMP_NUM_THREADS, else the number of processors that the calling thread may run on; 1 to
 * SKV_MAX_THREADS.
 */
int skv_threads_default(void);

/*
 * Starts threads of the pool until there are threads - 1 besides the caller's, so that kernels need not start any. If
 * the system does not allow so many threads, kernels run on fewer, with the same results. Thread-safe.
 */
void skv_threads_ready(int threads);

#ifdef __cplusplus
}
#endif
#endif
