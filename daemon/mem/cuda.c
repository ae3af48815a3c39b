/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/mem/cuda.c - the daemon's access to CUDA devices, for which it needs no CUDA context. See cuda.h. */
#include "daemon/mem/cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include "common/fd.h"
#include "daemon/mem/driver.h"

/* Sets *has to false if the device lacks the attribute, or if the driver is too old to know the attribute. */
static int look_at_attribute(CUdevice device, CUdevice_attribute attribute, bool *has, char why[SKV_CUDA_TEXT_MAX])
{
	int value = 0;
	CUresult r = skv_cu.cuDeviceGetAttribute(&value, attribute, device);

	*has = *has && r == CUDA_SUCCESS && value;
	return r == CUDA_ERROR_INVALID_VALUE ? 0 : skv_cu_error(r, "the device's capabilities", why);
}

static int look(CUdevice device, struct skv_cuda_info *info, char why[SKV_CUDA_TEXT_MAX])
{
	CUmemAllocationProp prop = skv_cu_prop(device);
	char name[SKV_CUDA_NAME_MAX] = "";
	CUuuid uuid;
	int r = skv_cu_error(skv_cu.cuDeviceGetName(name, sizeof(name), device), "its name", why);

	if (r == 0)
		r = skv_cu_error(skv_cu.cuDeviceGetUuid(&uuid, device), "its UUID", why);
	if (r == 0)
		r = skv_cu_error(skv_cu.cuDeviceTotalMem(&info->bytes, device), "its memory", why);
	if (r < 0)
		return r;
	skv_wire_string(info->name, sizeof(info->name), name);
	memcpy(info->uuid, uuid.bytes, sizeof(info->uuid));
	info->exports = true;
	r = look_at_attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &info->exports, why);
	if (r == 0)
		r = look_at_attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &info->exports, why);
	if (r < 0)
		return r;
	/* cuMemAlloc() may place smaller allocations in one block of this size */
	info->granularity = 2u << 20;
	if (!info->exports)
		return 0;
	return skv_cu_error(skv_cu.cuMemGetAllocationGranularity(&info->granularity, &prop,
	                                                         CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
	                    "the granularity of its memory", why);
}

int skv_cuda_info(unsigned device, struct skv_cuda_info *ret, char why[SKV_CUDA_TEXT_MAX])
{
	struct skv_cuda_info info = {.bytes = 0};
	int r = skv_cuda_load(why), count;
	CUdevice d;

	if (r == 0)
		r = skv_cu_error(skv_cu.cuDeviceGetCount(&count), "counting CUDA devices", why);
	if (r < 0)
		return r;
	if (device >= (unsigned)count) {
		snprintf(why, SKV_CUDA_TEXT_MAX, "there is no CUDA device %u, there are %d", device, count);
		return -ENODEV;
	}
	r = skv_cu_error(skv_cu.cuDeviceGet(&d, (int)device), "the device", why);
	if (r == 0)
		r = look(d, &info, why);
	if (r == 0)
		*ret = info;
	return r;
}

int skv_cuda_create(unsigned device, size_t bytes, int *ret_fd, char why[SKV_CUDA_TEXT_MAX])
{
	CUmemAllocationProp prop = skv_cu_prop((CUdevice)device);
	CUmemGenericAllocationHandle handle;
	int fd = -1, r;

	r = skv_cu_error(skv_cu.cuMemCreate(&handle, bytes, &prop, 0), "allocating a segment", why);
	if (r < 0)
		return r;
	r = skv_cu_error(skv_cu.cuMemExportToShareableHandle(
				 &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	                 "exporting a segment", why);
	skv_cu.cuMemRelease(handle); /* the exported descriptor keeps the memory alive */
	if (r < 0)
		return r;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
		r = -errno;
		snprintf(why, SKV_CUDA_TEXT_MAX, "exporting a segment: %s", strerror(errno));
		skv_close_fd(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}
