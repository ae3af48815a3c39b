/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/mem/driver.h - the functions of libcuda.so.1 in use, resolved at run time. */
#ifndef SKV_DRIVER_H
#define SKV_DRIVER_H

#include <cuda.h>
#include "daemon/mem/cuda.h"

/* First the functions that need no context, then those that only the workers of devices and disks use. */
#define SKV_CU_FUNCTIONS(F)               \
	F(cuInit)                         \
	F(cuGetErrorName)                 \
	F(cuGetErrorString)               \
	F(cuDeviceGet)                    \
	F(cuDeviceGetCount)               \
	F(cuDeviceGetName)                \
	F(cuDeviceGetUuid)                \
	F(cuDeviceGetAttribute)           \
	F(cuDeviceTotalMem)               \
	F(cuMemGetAllocationGranularity)  \
	F(cuMemCreate)                    \
	F(cuMemExportToShareableHandle)   \
	F(cuMemRelease)                   \
	F(cuDevicePrimaryCtxSetFlags)     \
	F(cuDevicePrimaryCtxRetain)       \
	F(cuCtxSetCurrent)                \
	F(cuCtxSynchronize)               \
	F(cuMemImportFromShareableHandle) \
	F(cuMemAddressReserve)            \
	F(cuMemAddressFree)               \
	F(cuMemMap)                       \
	F(cuMemUnmap)                     \
	F(cuMemSetAccess)                 \
	F(cuMemsetD8)                     \
	F(cuMemAlloc)                     \
	F(cuMemFree)                      \
	F(cuIpcGetMemHandle)              \
	F(cuStreamCreate)                 \
	F(cuStreamDestroy)                \
	F(cuStreamSynchronize)            \
	F(cuMemHostRegister)              \
	F(cuMemHostUnregister)            \
	F(cuMemcpyDtoHAsync)              \
	F(cuMemcpyHtoDAsync)

/* The types are those of cuda.h, where some names are macros for a later version of the function. */
#define SKV_CU_MEMBER(f) __typeof__(&f) f;
struct skv_cu {
	SKV_CU_FUNCTIONS(SKV_CU_MEMBER)
};
extern struct skv_cu skv_cu; /* valid after skv_cuda_load() */

/* Translates a driver's result to a negative errno, or 0 for success. `what` describes the failed operation. */
int skv_cu_error(CUresult r, const char *what, char why[SKV_CUDA_TEXT_MAX]);

/* Properties of segments: on this device, exportable as a file descriptor. */
CUmemAllocationProp skv_cu_prop(CUdevice device);

#endif
