/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/threads.h - the threads that host kernels run on; one pool a process, in kernels/host/runtime/parallel.c.
 */
#ifndef SKV_THREADS_H
#define SKV_THREADS_H

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_MAX_THREADS 1024

/* $OMP_NUM_THREADS, else as many as there are processors that the calling thread may run on; 1 to SKV_MAX_THREADS. */
int skv_threads_default(void);

/*
 * Start what is missing of threads - 1 threads besides the caller's, so that the kernels need not. Where the system does
 * not give as many, kernels run on fewer, with the same results. Thread-safe.
 */
void skv_threads_ready(int threads);

#ifdef __cplusplus
}
#endif
#endif
