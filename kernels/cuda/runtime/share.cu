/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/share.cu - map memory that another process allocated: see kernels/device.h.
 *
 * The CUDA runtime API has no functions for this, so this file calls driver functions, which it looks up by name.
 * Callers have entered a device, so the driver is loaded.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include "kernels/cuda/runtime/module.h"

static struct driver {
	decltype(&cuCtxGetDevice) current;
	decltype(&cuGetErrorString) string;
	decltype(&cuMemAddressReserve) reserve;
	decltype(&cuMemAddressFree) release;
	decltype(&cuMemImportFromShareableHandle) import;
	decltype(&cuMemMap) map;
	decltype(&cuMemSetAccess) allow;
	decltype(&cuMemUnmap) unmap;
	decltype(&cuMemRelease) drop;
	decltype(&cuIpcOpenMemHandle) open;
	decltype(&cuIpcCloseMemHandle) close;
} driver;

template <class F> static bool find(void *lib, const char *name, F *ret)
{
	*ret = (F)dlsym(lib, name);
	return *ret;
}

static bool load(struct driver *d)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	return lib && find(lib, "cuCtxGetDevice", &d->current) && find(lib, "cuGetErrorString", &d->string) &&
	       find(lib, "cuMemAddressReserve", &d->reserve) && find(lib, "cuMemAddressFree", &d->release) &&
	       find(lib, "cuMemImportFromShareableHandle", &d->import) && find(lib, "cuMemMap", &d->map) &&
	       find(lib, "cuMemSetAccess", &d->allow) && find(lib, "cuMemUnmap", &d->unmap) &&
	       find(lib, "cuMemRelease", &d->drop) && find(lib, "cuIpcOpenMemHandle_v2", &d->open) &&
	       find(lib, "cuIpcCloseMemHandle", &d->close);
}

static int need(void)
{
	static const bool loaded = load(&driver);
	return loaded ? 0 : skv_cuda_failed(-ENODEV, "shared memory of the device", "the driver is too old for it");
}

static int result(CUresult e, const char *what)
{
	const char *why = NULL;
	if (e == CUDA_SUCCESS)
		return 0;
	driver.string(e, &why);
	const int r = e == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : e == CUDA_ERROR_INVALID_VALUE ? -EINVAL : -EIO;
	return skv_cuda_failed(r, what, why ? why : "unknown error");
}

int skv_cuda_reserve(size_t bytes, void **ret)
{
	CUdeviceptr at = 0;
	int r = need();
	if (r == 0)
		r = result(driver.reserve(&at, bytes, 0, 0, 0), "reserving addresses of the device");
	if (r == 0)
		*ret = (void *)at;
	return r;
}

int skv_cuda_release(void *at, size_t bytes)
{
	return result(driver.release((CUdeviceptr)at, bytes), "releasing addresses of the device");
}

int skv_cuda_map(void *at, size_t bytes, int fd, bool writable)
{
	CUmemGenericAllocationHandle handle;
	CUmemAccessDesc access = {};
	CUdevice device;
	int r = need();
	if (r == 0)
		r = result(driver.current(&device), "the current device");
	if (r == 0)
		r = result(driver.import(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		           "importing memory");
	if (r < 0)
		return r;
	r = result(driver.map((CUdeviceptr)at, bytes, 0, handle, 0), "mapping memory");
	if (r == 0) {
		access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		access.location.id = device;
		access.flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
		r = result(driver.allow((CUdeviceptr)at, bytes, &access, 1), "access to mapped memory");
		if (r < 0)
			driver.unmap((CUdeviceptr)at, bytes);
	}
	driver.drop(handle); /* the mapping keeps the memory alive */
	return r;
}

int skv_cuda_unmap(void *at, size_t bytes)
{
	return result(driver.unmap((CUdeviceptr)at, bytes), "unmapping memory");
}

int skv_cuda_open_ipc(const void *handle, void **ret)
{
	CUipcMemHandle h;
	CUdeviceptr at;
	int r = need();
	memcpy(&h, handle, sizeof h);
	if (r == 0)
		r = result(driver.open(&at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "opening memory");
	if (r == 0)
		*ret = (void *)at;
	return r;
}

int skv_cuda_close_ipc(void *at)
{
	return result(driver.close((CUdeviceptr)at), "closing memory");
}
