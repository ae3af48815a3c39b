/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/driver.h - the functions of the CUDA driver library (libcuda.so.1) that the daemon and its workers use,
 * found by dlsym().
 */
#ifndef SKV_DRIVER_H
#define SKV_DRIVER_H

#include <cuda.h>
#include "daemon/mem/cuda.h"

/*
 * The functions up to cuMemRelease need no CUDA context; those after it are used only by the workers of devices and
 * disks.
 */
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

/*
 * The function types are those of cuda.h, where the names of some functions are macros for a later version of the
 * function.
 */
#define SKV_CU_MEMBER(f) __typeof__(&f) f;
struct skv_cu {
	SKV_CU_FUNCTIONS(SKV_CU_MEMBER)
};
extern struct skv_cu skv_cu; /* valid after skv_cuda_load() */

/*
 * Translates a result of the CUDA driver to 0 or a negative errno. After a failure `why` says which operation (`what`)
 * failed, and how.
 */
int skv_cu_error(CUresult r, const char *what, char why[SKV_CUDA_TEXT_MAX]);

/* Returns the properties with which segments are allocated: memory of this device, exportable as a file descriptor. */
CUmemAllocationProp skv_cu_prop(CUdevice device);

#endif
