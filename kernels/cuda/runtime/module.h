/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/module.h - how the parts of the module that are not attention see each other.
 *
 *   device.cu  devices, their memory, streams and graphs; the one symbol of the module
 *   share.cu   memory of other processes at addresses of ours
 *   step.cu    what begins and ends a step
 */
#ifndef SKV_CUDA_MODULE_H
#define SKV_CUDA_MODULE_H

#include <cuda_runtime.h>
#include "kernels/device.h"

/* Set the thread's error text and return r, or what became of a call to the runtime: 0 or a negative errno. */
int skv_cuda_failed(int r, const char *what, const char *why);
int skv_cuda_result(cudaError_t e, const char *what);

/* The members of struct skv_backend that have these names. */
int skv_cuda_reserve(size_t bytes, void **ret);
int skv_cuda_release(void *at, size_t bytes);
int skv_cuda_map(void *at, size_t bytes, int fd, bool writable);
int skv_cuda_unmap(void *at, size_t bytes);
int skv_cuda_open_ipc(const void *handle, void **ret);
int skv_cuda_close_ipc(void *at);
int skv_cuda_stage(const struct skv_stage *, void *stream);
int skv_cuda_publish(const struct skv_publish *, uint32_t n, const int32_t *next, void *stream);

#endif
