/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/cuda/backend.cu - a CUDA device as a backend: memory, copies, products, recordings. See engine/backend.h.
 *
 * One stream has everything, the library's kernels included. cuBLAS gets its workspace here and once: what it would
 * allocate for itself could not be recorded.
 */
#include <cublas_v2.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/cuda/rows.h"

#define STAGING_BUFFERS 16u              /* copies to the device that may be on their way ... */
#define STAGING_BYTES (256u << 10) /* ... and what one takes at a time */
#define WORKSPACE_BYTES ((size_t)32 << 20) /* what NVIDIA recommends for Hopper */

struct cuda_backend {
	struct eng_backend base;
	cudaStream_t stream;
	cublasHandle_t blas;
	void *workspace;
	uint8_t *staging; /* [STAGING_BUFFERS][STAGING_BYTES], pinned */
	cudaEvent_t sent[STAGING_BUFFERS];
	unsigned next; /* buffer */
	cudaEvent_t fetched;
	cublasStatus_t bad; /* the first product that failed since the last check */
};

extern "C" __attribute__((visibility("default"))) const struct eng_backend_ops *eng_cuda_ops(void);

static thread_local char text[256] = "no error";

static int failed(int r, const char *what, const char *why)
{
	snprintf(text, sizeof text, "CUDA: %s: %s", what, why);
	return r;
}

static int result(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return 0;
	cudaGetLastError(); /* reported here: the next check is not about it */
	switch (e) {
	case cudaErrorMemoryAllocation:
		return failed(-ENOMEM, what, cudaGetErrorString(e));
	case cudaErrorNoDevice:
	case cudaErrorInvalidDevice:
	case cudaErrorInsufficientDriver:
		return failed(-ENODEV, what, cudaGetErrorString(e));
	default:
		return failed(-EIO, what, cudaGetErrorString(e));
	}
}

static int blas_result(cublasStatus_t s, const char *what)
{
	return s == CUBLAS_STATUS_SUCCESS ? 0 : failed(s == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO, what,
	                                               cublasGetStatusString(s));
}

static const char *error(void)
{
	return text;
}

static struct cuda_backend *cuda_of(struct eng_backend *p)
{
	return (struct cuda_backend *)p;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int alloc(struct eng_backend *, size_t bytes, void **ret)
{
	return result(cudaMalloc(ret, bytes ? bytes : 1), "allocating memory of the device");
}

static void free_(struct eng_backend *p, void *at)
{
	if (at) {
		cudaStreamSynchronize(cuda_of(p)->stream); /* what is queued may use it */
		cudaFree(at);
	}
}

static int alloc_host(struct eng_backend *, size_t bytes, void **ret)
{
	return result(cudaHostAlloc(ret, bytes ? bytes : 1, 0), "allocating pinned memory");
}

static void free_host(struct eng_backend *p, void *at)
{
	if (at) {
		cudaStreamSynchronize(cuda_of(p)->stream);
		cudaFreeHost(at);
	}
}

static int put(struct eng_backend *p, void *dst, const void *src, size_t bytes)
{
	struct cuda_backend *c = cuda_of(p);
	cudaError_t e = cudaSuccess;
	for (size_t at = 0; !e && at < bytes; at += STAGING_BYTES) {
		const unsigned s = c->next++ % STAGING_BUFFERS;
		const size_t n = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
		uint8_t *buffer = c->staging + (size_t)s * STAGING_BYTES;
		e = cudaEventSynchronize(c->sent[s]); /* the copy before has left the buffer */
		if (e)
			break;
		memcpy(buffer, (const uint8_t *)src + at, n);
		e = cudaMemcpyAsync((uint8_t *)dst + at, buffer, n, cudaMemcpyHostToDevice, c->stream);
		e = e ? e : cudaEventRecord(c->sent[s], c->stream);
	}
	return result(e, "copying to the device");
}

static int fetch(struct eng_backend *p, void *dst, const void *src, size_t bytes)
{
	struct cuda_backend *c = cuda_of(p);
	cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, c->stream);
	return result(e ? e : cudaEventRecord(c->fetched, c->stream), "copying from the device");
}

static void copy_rows(struct eng_backend *p, void *dst, size_t dst_apart, const void *src, size_t src_apart, size_t bytes, uint32_t n)
{
	cudaMemcpy2DAsync(dst, dst_apart, src, src_apart, bytes, n, cudaMemcpyDeviceToDevice, cuda_of(p)->stream); /* check() sees errors */
}

static int fetched(struct eng_backend *p)
{
	return result(cudaEventSynchronize(cuda_of(p)->fetched), "waiting for the device");
}

static int check(struct eng_backend *p)
{
	struct cuda_backend *c = cuda_of(p);
	const cublasStatus_t bad = c->bad;
	const int r = result(cudaGetLastError(), "launching a kernel");
	c->bad = CUBLAS_STATUS_SUCCESS;
	return r ? r : blas_result(bad, "a product");
}

/* ---- open and close -------------------------------------------------------------------------- */

static void close_backend(struct eng_backend *p)
{
	struct cuda_backend *c = cuda_of(p);
	if (c->stream)
		cudaStreamSynchronize(c->stream);
	if (c->blas)
		cublasDestroy(c->blas);
	for (unsigned i = 0; i < STAGING_BUFFERS; i++)
		if (c->sent[i])
			cudaEventDestroy(c->sent[i]);
	if (c->fetched)
		cudaEventDestroy(c->fetched);
	if (c->stream)
		cudaStreamDestroy(c->stream);
	cudaFreeHost(c->staging);
	cudaFree(c->workspace);
	free(c);
}

static int find_device(uint32_t i)
{
	char there[64];
	int n = 0;
	int r = result(cudaGetDeviceCount(&n), "looking for devices");
	if (r == 0 && i >= (uint32_t)n) {
		snprintf(there, sizeof there, n == 1 ? "there is %d" : "there are %d", n);
		r = failed(-ENODEV, "no such device", there);
	}
	return r ? r : result(cudaSetDevice((int)i), "using the device");
}

static int make_blas(struct cuda_backend *c)
{
	int r = blas_result(cublasCreate(&c->blas), "starting cuBLAS");
	r = r ? r : blas_result(cublasSetStream(c->blas, c->stream), "cuBLAS");
	/* after the stream, which would put the default in its place */
	r = r ? r : blas_result(cublasSetWorkspace(c->blas, c->workspace, WORKSPACE_BYTES), "cuBLAS");
	/* sums of split products in fp32 too */
	const cublasMath_t mode = CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
	return r ? r : blas_result(cublasSetMathMode(c->blas, mode), "cuBLAS");
}

static int open_backend(uint32_t i, struct eng_backend **ret)
{
	struct cuda_backend *c;
	int r = find_device(i);
	if (r < 0)
		return r;
	c = (struct cuda_backend *)calloc(1, sizeof *c);
	if (!c)
		return failed(-ENOMEM, "opening the device", "no memory");
	r = result(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "making a stream");
	for (unsigned s = 0; r == 0 && s < STAGING_BUFFERS; s++)
		r = result(cudaEventCreateWithFlags(&c->sent[s], cudaEventDisableTiming), "making an event");
	r = r ? r : result(cudaEventCreateWithFlags(&c->fetched, cudaEventDisableTiming), "making an event");
	r = r ? r : alloc_host(NULL, (size_t)STAGING_BUFFERS * STAGING_BYTES, (void **)&c->staging);
	r = r ? r : alloc(NULL, WORKSPACE_BYTES, &c->workspace);
	r = r ? r : make_blas(c);
	if (r < 0) {
		close_backend(&c->base);
		return r;
	}
	c->base.ops = eng_cuda_ops();
	c->base.device = SKV_DEVICE_CUDA(i);
	c->base.stream = c->stream;
	*ret = &c->base;
	return 0;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* Row-major y = x · wᵀ is column-major yᵀ = w · xᵀ, w being transposed as it lies. It is added to the bias. */
static void matmul(struct eng_backend *p, float *y, const void *x, const void *w, const float *bias, uint32_t dtype,
                   uint32_t rows, uint32_t n_in, uint32_t n_out)
{
	struct cuda_backend *c = cuda_of(p);
	const cudaDataType_t type = dtype == SKV_BF16 ? CUDA_R_16BF : CUDA_R_32F;
	const float one = 1, keep = bias ? 1 : 0;
	if (bias)
		eng_cuda_repeat(c->stream, y, bias, rows, n_out);
	const cublasStatus_t s = cublasGemmEx(c->blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n_out, (int)rows, (int)n_in, &one,
	                                      w, type, (int)n_in, x, type, (int)n_in, &keep, y, CUDA_R_32F,
	                                      (int)n_out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
	if (c->bad == CUBLAS_STATUS_SUCCESS)
		c->bad = s;
}

static void fill(struct eng_backend *p, void *to, size_t n, uint32_t dtype, float scale, uint32_t seed)
{
	eng_cuda_fill(cuda_of(p)->stream, to, n, dtype, scale, seed);
}

static void embed(struct eng_backend *p, float *x, const void *embedding, uint32_t dtype, const int32_t *id,
                  uint32_t rows, uint32_t n)
{
	eng_cuda_embed(cuda_of(p)->stream, x, embedding, dtype, id, rows, n);
}

static void add_norm(struct eng_backend *p, void *out, uint32_t dtype, float *x, const float *y, const float *weight,
                     float eps, const uint32_t *from, uint32_t rows, uint32_t n)
{
	eng_cuda_add_norm(cuda_of(p)->stream, out, dtype, x, y, weight, eps, from, rows, n);
}

static void rope_split(struct eng_backend *p, void *q, void *k, void *v, uint32_t dtype, const float *qkv,
                       const struct eng_heads *heads, const float *table, const uint32_t *position, uint32_t rows)
{
	eng_cuda_rope_split(cuda_of(p)->stream, q, k, v, dtype, qkv, heads, table, position, rows);
}

static void swiglu(struct eng_backend *p, void *y, uint32_t dtype, const float *gate_up, uint32_t rows, uint32_t n)
{
	eng_cuda_swiglu(cuda_of(p)->stream, y, dtype, gate_up, rows, n);
}

static void choose(struct eng_backend *p, int32_t *id, uint32_t *position, const float *logits, uint32_t rows,
                   uint32_t vocab)
{
	eng_cuda_choose(cuda_of(p)->stream, id, position, logits, rows, vocab);
}

/* ---- recordings ------------------------------------------------------------------------------ */

static int record(struct eng_backend *p)
{
	return result(cudaStreamBeginCapture(cuda_of(p)->stream, cudaStreamCaptureModeThreadLocal), "recording");
}

static int recorded(struct eng_backend *p, void **ret_recording)
{
	cudaGraph_t graph = NULL;
	int r = result(cudaStreamEndCapture(cuda_of(p)->stream, &graph), "recording");
	if (r < 0)
		return r;
	r = result(cudaGraphInstantiateWithFlags((cudaGraphExec_t *)ret_recording, graph, 0), "preparing a recording");
	cudaGraphDestroy(graph);
	return r;
}

static int launch(struct eng_backend *p, void *recording)
{
	return result(cudaGraphLaunch((cudaGraphExec_t)recording, cuda_of(p)->stream), "launching a recording");
}

static void forget(struct eng_backend *p, void *recording)
{
	cudaStreamSynchronize(cuda_of(p)->stream); /* it may be running */
	cudaGraphExecDestroy((cudaGraphExec_t)recording);
}

static const struct eng_backend_ops ops = {
	.size = sizeof ops,
	.abi = ENG_BACKEND_ABI,
	.error = error,
	.open = open_backend,
	.close = close_backend,
	.alloc = alloc,
	.free = free_,
	.alloc_host = alloc_host,
	.free_host = free_host,
	.put = put,
	.fetch = fetch,
	.fetched = fetched,
	.copy_rows = copy_rows,
	.check = check,
	.fill = fill,
	.embed = embed,
	.add_norm = add_norm,
	.matmul = matmul,
	.rope_split = rope_split,
	.swiglu = swiglu,
	.choose = choose,
	.record = record,
	.recorded = recorded,
	.launch = launch,
	.forget = forget,
};

const struct eng_backend_ops *eng_cuda_ops(void)
{
	return &ops;
}
