/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/emulate/runtime.cpp - what kernels/cuda/ needs beside its kernels: the queue, which is the fake device's
 * (fake-backend.h), and what a device is. It has no clusters, and as many multiprocessors as $SKV_EMULATE_SMS says.
 */
#include "kernels/device.h"
#include "tests/emulate/emulate.h"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/prefill/prefill.h"

extern "C" {
#include "tests/support/fake-backend.h"

const struct skv_kernels *skv_kernels_cuda(void);
}

/* ---- the queue --------------------------------------------------------------------------------- */

static void run_work(const struct skv_kernels *, const struct op *o)
{
	struct emulate_work *w = (struct emulate_work *)o->own;

	w->run(w);
}

void emulate_queue(cudaStream_t stream, struct emulate_work *w)
{
	struct op *o = fake_queue(stream, KERNEL);

	o->run = run_work;
	o->own = w;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
	emulate_later(stream, [=]() { memset(p, value, bytes); });
	return cudaSuccess;
}

/* ---- the device -------------------------------------------------------------------------------- */

uint32_t skv_cuda_sms(void)
{
	const char *sms = getenv("SKV_EMULATE_SMS");

	return sms ? (uint32_t)atoi(sms) : 3;
}

bool skv_cuda_overlaps(void)
{
	return false;
}

uint32_t skv_cuda_max_shared_memory(void)
{
	return EMULATE_SHARED;
}

cudaError_t cudaGetDevice(int *ret)
{
	*ret = 0;
	return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *ret, cudaDeviceAttr what, int)
{
	*ret = what == cudaDevAttrComputeCapabilityMajor ? 8 : 0;
	return cudaSuccess;
}

/* The kernel with wgmma is Hopper's: not emulated, and not asked for. */
cudaError_t skv_cuda_prefill_sm90_init(void)
{
	return cudaErrorInvalidValue;
}

void skv_cuda_prefill_sm90(const struct prefill_params *, dim3, cudaStream_t)
{
	emulate_wrong("wgmma is not emulated");
}

const struct skv_kernels *fake_kernels(const struct skv_kernels **ret_host)
{
	const cudaError_t e[] = {
		skv_cuda_decode_init(), skv_cuda_decode_latent_init(EMULATE_SHARED), skv_cuda_prefill_init(),
		skv_cuda_select_init(), skv_cuda_accumulate_init(), skv_cuda_kascade_init(), skv_cuda_hip_init(),
		skv_cuda_minference_init(), skv_cuda_nearest_refs_init(), skv_cuda_encode_init(),
		skv_cuda_decompress_init(),
	};

	*ret_host = NULL; /* none of these runs here */
	for (cudaError_t x : e)
		if (x)
			emulate_wrong("a kernel needs more shared memory than a block may have");
	return skv_kernels_cuda();
}
