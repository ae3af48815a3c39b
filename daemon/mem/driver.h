/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/mem/driver.h - the functions of libcuda.so.1 that are used, found at run time. */
#ifndef SKV_DRIVER_H
#define SKV_DRIVER_H

#include <cuda.h>
#include "daemon/mem/cuda.h"

/* Those that need no context, then those for the workers alone, of a device and of disks. */
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

/* Named as in cuda.h, where some names are macros for a later version of a function. */
#define SKV_CU_MEMBER(f) __typeof__(&f) f;
struct skv_cu {
	SKV_CU_FUNCTIONS(SKV_CU_MEMBER)
};
extern struct skv_cu skv_cu; /* after skv_cuda_load() */

/* What the driver answered, as negative errno; 0 for success. `what` was being done. */
int skv_cu_error(CUresult r, const char *what, char why[SKV_CUDA_TEXT_MAX]);

/* How segments are allocated: on this device, to be exported as a file descriptor. */
CUmemAllocationProp skv_cu_prop(CUdevice device);

#endif
