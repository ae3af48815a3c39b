/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/module.h - the parts of the CUDA module other than the attention kernels.
 *
 *   device.cu  devices, their memory, streams and graphs; the module's one exported symbol
 *   share.cu   memory of other processes, mapped into this one
 *   step.cu    kernels that begin and end a step
 */
#ifndef SKV_CUDA_MODULE_H
#define SKV_CUDA_MODULE_H

#include <cuda_runtime.h>
#include "kernels/device.h"

/*
 * skv_cuda_failed() sets the thread's error text and returns r. skv_cuda_result() turns the result of a runtime call
 * into 0 or a negative errno, and sets the error text.
 */
int skv_cuda_failed(int r, const char *what, const char *why);
int skv_cuda_result(cudaError_t e, const char *what);

/* Functions that implement the members of the same names in struct skv_backend. */
int skv_cuda_reserve(size_t bytes, void **ret);
int skv_cuda_release(void *at, size_t bytes);
int skv_cuda_map(void *at, size_t bytes, int fd, bool writable);
int skv_cuda_unmap(void *at, size_t bytes);
int skv_cuda_open_ipc(const void *handle, void **ret);
int skv_cuda_close_ipc(void *at);
int skv_cuda_stage(const struct skv_stage *, void *stream);
int skv_cuda_publish(const struct skv_publish *, uint32_t n, const int32_t *next, void *stream);

#endif
