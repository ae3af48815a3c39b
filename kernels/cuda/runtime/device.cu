/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/device.cu - CUDA devices, memory, streams and graphs: see kernels/device.h.
 *
 * The CUDA runtime is linked statically, so its per-thread state is private to this module. The driver's current
 * context, however, is shared with the rest of the process; enter() saves it and leave() restores it. They use the
 * driver API because the runtime API can only name a device: restoring device 0 in a thread that had no current context
 * would create a context, which takes half a gigabyte of memory.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <cuda.h>
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/module.h"
#include "kernels/cuda/runtime/read.h"

extern "C" const struct skv_kernels *skv_kernels_cuda(void);

static thread_local char error_text[256] = "no error";

int skv_cuda_failed(int r, const char *what, const char *why)
{
	snprintf(error_text, sizeof error_text, "CUDA: %s: %s", what, why);
	return r;
}

static int errno_of(cudaError_t e)
{
	switch (e) {
	case cudaErrorMemoryAllocation:
		return -ENOMEM;
	case cudaErrorInvalidValue:
	case cudaErrorInvalidConfiguration:
		return -EINVAL;
	case cudaErrorNoDevice:
	case cudaErrorInvalidDevice:
	case cudaErrorInsufficientDriver:
		return -ENODEV;
	default:
		return -EIO;
	}
}

int skv_cuda_result(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return 0;
	cudaGetLastError(); /* clears the error, which is reported here: the next check must not report it again */
	return skv_cuda_failed(errno_of(e), what, cudaGetErrorString(e));
}

static const char *error(void)
{
	return error_text;
}

/* ---- devices --------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Driver functions, which are looked up by name because the module does not link libcuda. */
static struct {
	decltype(&cuCtxGetCurrent) get_current;
	decltype(&cuCtxSetCurrent) set_current;
} driver;

static struct {
	/* The device's primary context; NULL until a thread has entered the device. */
	CUcontext context;
	uint32_t multiprocessors, shared_memory; /* shared_memory: max bytes of a block's shared memory */
	bool overlaps;
} devices[SKV_BACKEND_MAX_DEVICES];

/* Looks up the driver functions. Called with the lock held. */
static int load_driver(void)
{
	if (driver.set_current)
		return 0;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return skv_cuda_failed(-ENODEV, "there is no driver", dlerror());
	driver.get_current = (decltype(driver.get_current))dlsym(lib, "cuCtxGetCurrent");
	driver.set_current = (decltype(driver.set_current))dlsym(lib, "cuCtxSetCurrent");
	if (driver.get_current && driver.set_current)
		return 0;
	driver.set_current = NULL;
	return skv_cuda_failed(-ENODEV, "the driver lacks cuCtxGetCurrent or cuCtxSetCurrent", "not a CUDA driver?");
}

static int count(unsigned *ret_n)
{
	int n = 0;
	pthread_mutex_lock(&lock);
	int r = load_driver();
	pthread_mutex_unlock(&lock);
	if (r == 0)
		r = skv_cuda_result(cudaGetDeviceCount(&n), "counting devices");
	if (r == 0 && n == 0)
		r = skv_cuda_failed(-ENODEV, "counting devices", "there is none");
	if (r == 0)
		*ret_n = (unsigned)n < SKV_BACKEND_MAX_DEVICES ? (unsigned)n : SKV_BACKEND_MAX_DEVICES;
	return r;
}

static int check_device(unsigned device)
{
	unsigned n;
	const int r = count(&n);
	return r < 0 || device < n ? r : skv_cuda_failed(-ENODEV, "choosing the device", "there is no such one");
}

static int info(unsigned device, struct skv_device_info *ret)
{
	struct cudaDeviceProp prop;
	int r = check_device(device);
	if (r == 0)
		r = skv_cuda_result(cudaGetDeviceProperties(&prop, (int)device),
		                    "reading the properties of the device");
	if (r < 0)
		return r;
	memset(ret, 0, sizeof *ret);
	snprintf(ret->name, sizeof ret->name, "%s", prop.name);
	memcpy(ret->uuid, prop.uuid.bytes, sizeof ret->uuid);
	ret->multiprocessors = (uint32_t)prop.multiProcessorCount;
	ret->bytes = prop.totalGlobalMem;
	return 0;
}

/* Initializes a device. Called when the first thread enters the device, with the lock held. */
static int prepare(unsigned device)
{
	CUcontext context;
	int sms, shared_memory, clusters;
	cudaError_t e = cudaSetDevice((int)device);
	e = e ? e : cudaFree(NULL); /* older runtimes create the context only here */
	e = e ? e : cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, (int)device);
	e = e ? e : cudaDeviceGetAttribute(&shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)device);
	e = e ? e : cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, (int)device);
	if (e == cudaSuccess) {
		devices[device].multiprocessors = (uint32_t)sms;
		devices[device].shared_memory = (uint32_t)shared_memory;
		devices[device].overlaps = clusters;
	}
	e = e ? e : skv_cuda_decode_init();
	e = e ? e : skv_cuda_decode_latent_init((uint32_t)shared_memory);
	e = e ? e : skv_cuda_prefill_init();
	e = e ? e : skv_cuda_select_init();
	e = e || !clusters ? e : skv_cuda_sketch_topk_init(device, (uint32_t)shared_memory);
	e = e || !clusters ? e : skv_cuda_topk_scores_init(device, (uint32_t)shared_memory);
	e = e ? e : skv_cuda_accumulate_init();
	e = e ? e : skv_cuda_kascade_init();
	e = e ? e : skv_cuda_hip_init();
	e = e ? e : skv_cuda_minference_init();
	e = e ? e : skv_cuda_nearest_refs_init();
	e = e ? e : skv_cuda_encode_init();
	e = e ? e : skv_cuda_decompress_init();
	const int r = skv_cuda_result(e, "preparing the device");
	if (r < 0)
		return r;
	if (driver.get_current(&context))
		return skv_cuda_failed(-EIO, "preparing the device", "it has no context");
	__atomic_store_n(&devices[device].context, context, __ATOMIC_RELEASE);
	return 0;
}

static int enter(unsigned device, void **ret_was)
{
	const bool ready = device < SKV_BACKEND_MAX_DEVICES &&
	                   __atomic_load_n(&devices[device].context, __ATOMIC_ACQUIRE);
	CUcontext was;
	int r = ready ? 0 : check_device(device);
	if (r < 0)
		return r;
	if (driver.get_current(&was))
		return skv_cuda_failed(-EIO, "entering the device", "the driver does not work");
	if (!ready) {
		pthread_mutex_lock(&lock);
		if (!devices[device].context)
			r = prepare(device);
		pthread_mutex_unlock(&lock);
	}
	if (r == 0 && was != devices[device].context && driver.set_current(devices[device].context))
		r = skv_cuda_failed(-EIO, "entering the device", "its context is gone");
	if (r == 0)
		*ret_was = was;
	else
		driver.set_current(was);
	return r;
}

static int leave(void *was)
{
	CUcontext now;
	if (!driver.get_current(&now) && now == (CUcontext)was)
		return 0;
	if (driver.set_current((CUcontext)was))
		return skv_cuda_failed(-EIO, "leaving the device", "the context before is gone");
	return 0;
}

uint32_t skv_cuda_sms(void)
{
	int device;
	return cudaGetDevice(&device) ? 1 : devices[device].multiprocessors;
}

bool skv_cuda_overlaps(void)
{
	int device;
	return !cudaGetDevice(&device) && devices[device].overlaps;
}

uint32_t skv_cuda_max_shared_memory(void)
{
	int device;
	return cudaGetDevice(&device) ? 0 : devices[device].shared_memory;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int alloc(size_t bytes, void **ret)
{
	return skv_cuda_result(cudaMalloc(ret, bytes ? bytes : 1), "allocating memory of the device");
}

static int free_(void *p)
{
	return skv_cuda_result(cudaFree(p), "freeing memory of the device");
}

static int alloc_host(size_t bytes, void **ret)
{
	return skv_cuda_result(cudaHostAlloc(ret, bytes ? bytes : 1, cudaHostAllocPortable),
	              "allocating pinned memory");
}

static int free_host(void *p)
{
	return skv_cuda_result(cudaFreeHost(p), "freeing pinned memory");
}

static int register_host(void *p, size_t bytes, void **ret)
{
	cudaError_t e = cudaHostRegister(p, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
	if (!e) {
		e = cudaHostGetDevicePointer(ret, p, 0);
		if (e)
			cudaHostUnregister(p);
	}
	return skv_cuda_result(e, "registering memory of the host");
}

static int unregister_host(void *p)
{
	return skv_cuda_result(cudaHostUnregister(p), "unregistering memory of the host");
}

static int copy(void *dst, const void *src, size_t bytes, void *stream)
{
	return skv_cuda_result(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)stream), "copying");
}

static int zero(void *p, size_t bytes, void *stream)
{
	return skv_cuda_result(cudaMemsetAsync(p, 0, bytes, (cudaStream_t)stream), "zeroing memory");
}

/* ---- streams and graphs ---------------------------------------------------------------------- */

static int stream_new(void **ret_stream)
{
	return skv_cuda_result(cudaStreamCreateWithFlags((cudaStream_t *)ret_stream, cudaStreamNonBlocking),
	              "making a stream");
}

static int stream_free(void *stream)
{
	return skv_cuda_result(cudaStreamDestroy((cudaStream_t)stream), "freeing a stream");
}

static int check(void)
{
	return skv_cuda_result(cudaGetLastError(), "launching a kernel");
}

static int wait(void *stream)
{
	const int launched = check();
	const int r = skv_cuda_result(cudaStreamSynchronize((cudaStream_t)stream), "waiting for the device");
	return launched < 0 ? launched : r;
}

static int recording(void *stream, bool *ret)
{
	cudaStreamCaptureStatus status;
	const int r = skv_cuda_result(cudaStreamIsCapturing((cudaStream_t)stream, &status), "the stream");
	if (r == 0)
		*ret = status != cudaStreamCaptureStatusNone;
	return r;
}

static int begin_capture(void *stream)
{
	return skv_cuda_result(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal),
	              "recording a graph");
}

static int end_capture(void *stream, void **ret_graph)
{
	cudaGraph_t graph = NULL;
	int r = skv_cuda_result(cudaStreamEndCapture((cudaStream_t)stream, &graph), "recording a graph");
	if (r < 0)
		return r;
	r = skv_cuda_result(cudaGraphInstantiateWithFlags((cudaGraphExec_t *)ret_graph, graph, 0),
	           "preparing a graph");
	cudaGraphDestroy(graph);
	return r;
}

static int graph_launch(void *graph, void *stream)
{
	return skv_cuda_result(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream), "launching a graph");
}

static int graph_free(void *graph)
{
	return skv_cuda_result(cudaGraphExecDestroy((cudaGraphExec_t)graph), "freeing a graph");
}

/* ---- events ---------------------------------------------------------------------------------- */

static int event_new(void **ret_event)
{
	return skv_cuda_result(cudaEventCreate((cudaEvent_t *)ret_event), "making an event");
}

static int event_free(void *event)
{
	return skv_cuda_result(cudaEventDestroy((cudaEvent_t)event), "freeing an event");
}

static int stream_wait(void *stream, void *event)
{
	return skv_cuda_result(cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0), "waiting for an event");
}

static int event_record(void *event, void *stream)
{
	return skv_cuda_result(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "recording an event");
}

static int event_done(void *event, bool *ret_done)
{
	const cudaError_t e = cudaEventQuery((cudaEvent_t)event);
	const int r = e == cudaErrorNotReady ? 0 : skv_cuda_result(e, "asking for an event");
	if (r == 0)
		*ret_done = e == cudaSuccess;
	return r;
}

static int event_wait(void *event)
{
	return skv_cuda_result(cudaEventSynchronize((cudaEvent_t)event), "waiting for an event");
}

static int event_elapsed(void *from, void *to, float *ret_ms)
{
	cudaError_t e = cudaEventSynchronize((cudaEvent_t)from);
	e = e ? e : cudaEventSynchronize((cudaEvent_t)to);
	return skv_cuda_result(e ? e : cudaEventElapsedTime(ret_ms, (cudaEvent_t)from, (cudaEvent_t)to), "timing");
}

static int read(const void *p, size_t bytes, void *stream)
{
	skv_cuda_read(p, bytes, (cudaStream_t)stream);
	return check();
}

extern "C" __attribute__((visibility("default"))) const struct skv_backend *skv_cuda_backend(void)
{
	static struct skv_backend backend = {
		.size = sizeof backend,
		.abi = SKV_BACKEND_ABI,
		.name = "cuda",
		.kernels = NULL, /* set below, because the table of kernels is defined in another file */
		.error = error,
		.count = count,
		.info = info,
		.enter = enter,
		.leave = leave,
		.alloc = alloc,
		.free = free_,
		.alloc_host = alloc_host,
		.free_host = free_host,
		.register_host = register_host,
		.unregister_host = unregister_host,
		.reserve = skv_cuda_reserve,
		.release = skv_cuda_release,
		.map = skv_cuda_map,
		.unmap = skv_cuda_unmap,
		.open_ipc = skv_cuda_open_ipc,
		.close_ipc = skv_cuda_close_ipc,
		.copy = copy,
		.zero = zero,
		.stream_new = stream_new,
		.stream_free = stream_free,
		.wait = wait,
		.check = check,
		.stage = skv_cuda_stage,
		.publish = skv_cuda_publish,
		.recording = recording,
		.begin_capture = begin_capture,
		.end_capture = end_capture,
		.graph_launch = graph_launch,
		.graph_free = graph_free,
		.event_new = event_new,
		.event_free = event_free,
		.event_record = event_record,
		.event_done = event_done,
		.event_wait = event_wait,
		.stream_wait = stream_wait,
		.event_elapsed = event_elapsed,
		.read = read,
	};
	backend.kernels = skv_kernels_cuda();
	return &backend;
}
