/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 without a device: allocations are memfds, device addresses are addresses of the process. It keeps the
 * rules of the real driver that the daemon depends on: fresh memory has undefined contents (0xa5 here), and calls that
 * need a context fail without one.
 *
 * Tests load it through LD_LIBRARY_PATH and control it with files in $FAKE_CUDA_DIR, which apply to all processes that
 * have it loaded: FILE applies as long as it exists, FILE-once only the first time that it matters.
 *
 *   one-device     there is one device, else two           no-export  devices cannot export descriptors
 *   oom            allocations fail                        slow       a memset takes half a second
 *   hang           a memset does not return                fault      a memset or copy fails, as after a bad access
 *   huge           devices of 512 GiB, else of 256 MiB
 *
 * A process that makes a context leaves a file context-PID there.
 *
 * If fail-nth.c is preloaded, calls also fail as fail-nth.h says. After a fault every call that needs a context fails.
 */
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fail-nth.h"
#include "tests/support/fake-ipc.h"

#define MEMORY ((size_t)256 << 20) /* of one device */
#define GRANULARITY ((size_t)2 << 20)

static bool initialised, context, faulted;

struct allocation {
	int fd;
	size_t bytes;
};

static bool steered(const char *what)
{
	const char *dir = getenv("FAKE_CUDA_DIR");
	char path[512];

	if (!dir)
		return false;
	snprintf(path, sizeof(path), "%s/%s", dir, what);
	if (access(path, F_OK) == 0)
		return true;
	strcat(path, "-once");
	return unlink(path) == 0;
}

static void *map(int fd, size_t bytes, int prot, void *at)
{
	void *p = mmap(at, bytes, prot, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Returns a memfd with arbitrary contents; -1: no memory. */
static int dirty_memfd(size_t bytes)
{
	/* without close-on-exec: the real driver does not guarantee that flag */
	int fd = steered("oom") ? -1 : memfd_create("fake-cuda", 0);
	void *p;

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || !(p = map(fd, bytes, PROT_WRITE, NULL))) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	memset(p, 0xa5, bytes);
	munmap(p, bytes);
	return fd;
}

static CUresult failure(void)
{
	CUresult r = fail_nth_of_driver ? (CUresult)fail_nth_of_driver() : CUDA_SUCCESS;

	faulted |= r == CUDA_ERROR_ILLEGAL_ADDRESS;
	return r;
}

#define NEED(what)                                  \
	do {                                        \
		if (!(what))                        \
			return CUDA_ERROR_UNKNOWN;  \
	} while (0)
#define NEED_INIT                                            \
	do {                                                 \
		if (!initialised)                            \
			return CUDA_ERROR_NOT_INITIALIZED;   \
	} while (0)
#define NEED_CONTEXT                                         \
	do {                                                 \
		if (!context)                                \
			return CUDA_ERROR_INVALID_CONTEXT;   \
		if (faulted)                                 \
			return CUDA_ERROR_ILLEGAL_ADDRESS;   \
	} while (0)
#define MAY_FAIL                                             \
	do {                                                 \
		CUresult failed_ = failure();                \
                                                             \
		if (failed_ != CUDA_SUCCESS)                 \
			return failed_;                      \
	} while (0)

CUresult cuInit(unsigned flags)
{
	MAY_FAIL;
	initialised = flags == 0;
	return initialised ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult r, const char **name)
{
	*name = r == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
	return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult r, const char **text)
{
	*text = r == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "something fake went wrong";
	return CUDA_SUCCESS;
}

/* ---- devices ---- */

CUresult cuDeviceGetCount(int *count)
{
	MAY_FAIL;
	NEED_INIT;
	*count = steered("one-device") ? 1 : 2;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	MAY_FAIL;
	int count;

	NEED(cuDeviceGetCount(&count) == CUDA_SUCCESS);
	if (ordinal < 0 || ordinal >= count)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
	MAY_FAIL;
	snprintf(name, (size_t)len, "Fake %d", device);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	MAY_FAIL;
	memset(uuid, 0x10 + device, sizeof(*uuid));
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	MAY_FAIL;
	(void)device;
	*bytes = steered("huge") ? (size_t)512 << 30 : MEMORY;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	MAY_FAIL;
	(void)device;
	*value = attribute != CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED ||
	         !steered("no-export");
	return CUDA_SUCCESS;
}

/* ---- allocations, without a context ---- */

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags flags)
{
	MAY_FAIL;
	(void)prop, (void)flags;
	*bytes = GRANULARITY;
	return CUDA_SUCCESS;
}

/* Takes over fd. */
static CUresult handle_of(int fd, size_t bytes, CUmemGenericAllocationHandle *ret)
{
	struct allocation *a = malloc(sizeof(*a));

	if (!a) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*a = (struct allocation){fd, bytes};
	*ret = (CUmemGenericAllocationHandle)(uintptr_t)a;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
	MAY_FAIL;
	int fd;

	NEED_INIT;
	NEED(!flags && bytes && bytes % GRANULARITY == 0);
	NEED(prop->type == CU_MEM_ALLOCATION_TYPE_PINNED);
	NEED(prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
	NEED(prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	fd = dirty_memfd(bytes);
	if (fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return handle_of(fd, bytes, handle);
}

CUresult cuMemExportToShareableHandle(void *to, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
	MAY_FAIL;
	struct allocation *a = (struct allocation *)(uintptr_t)handle;

	NEED(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags);
	*(int *)to = dup(a->fd);
	return *(int *)to < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	MAY_FAIL;
	struct allocation *a = (struct allocation *)(uintptr_t)handle;

	close(a->fd);
	free(a);
	return CUDA_SUCCESS;
}

/* ---- with a context ---- */

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
	MAY_FAIL;
	(void)device, (void)flags;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device)
{
	MAY_FAIL;
	char path[512];
	int fd;

	NEED_INIT;
	snprintf(path, sizeof(path), "%s/context-%d", getenv("FAKE_CUDA_DIR"), (int)getpid());
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	NEED(fd >= 0);
	close(fd);
	*ret = (CUcontext)(uintptr_t)(device + 1);
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext c)
{
	MAY_FAIL;
	context = c != NULL;
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	MAY_FAIL;
	NEED_CONTEXT;
	return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type)
{
	MAY_FAIL;
	int fd = (int)(intptr_t)os_handle, copy;
	struct stat st;

	NEED_CONTEXT;
	NEED(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && fstat(fd, &st) == 0);
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	NEED(copy >= 0);
	return handle_of(copy, (size_t)st.st_size, handle);
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags)
{
	MAY_FAIL;
	void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	(void)alignment, (void)hint, (void)flags;
	NEED_CONTEXT;
	NEED(p != MAP_FAILED);
	*at = (CUdeviceptr)(uintptr_t)p;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
	MAY_FAIL;
	return munmap((void *)(uintptr_t)at, bytes) < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
	MAY_FAIL;
	struct allocation *a = (struct allocation *)(uintptr_t)handle;

	NEED(!offset && !flags && bytes <= a->bytes);
	NEED(map(a->fd, bytes, PROT_NONE, (void *)(uintptr_t)at));
	return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	MAY_FAIL;
	void *p = mmap((void *)(uintptr_t)at, bytes, PROT_NONE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	return p == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t n)
{
	MAY_FAIL;
	NEED(n == 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	NEED(mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) == 0);
	return CUDA_SUCCESS;
}

CUresult cuMemsetD8(CUdeviceptr at, unsigned char value, size_t bytes)
{
	MAY_FAIL;
	NEED_CONTEXT;
	if (steered("hang"))
		for (;;)
			pause();
	if (steered("slow"))
		usleep(500000);
	if (steered("fault"))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	memset((void *)(uintptr_t)at, value, bytes);
	return CUDA_SUCCESS;
}

/* ---- copies: run when the caller waits for them, not before ---- */

static struct copy {
	void *to;
	const void *from;
	size_t bytes;
} copies[65536];
static size_t n_copies;
static char stream; /* its address is the stream handle */

CUresult cuStreamCreate(CUstream *ret, unsigned flags)
{
	MAY_FAIL;
	NEED_CONTEXT;
	NEED(flags == CU_STREAM_NON_BLOCKING);
	*ret = (CUstream)&stream;
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream s)
{
	MAY_FAIL;
	NEED(s == (CUstream)&stream && n_copies == 0);
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream s)
{
	MAY_FAIL;
	NEED(s == (CUstream)&stream);
	for (size_t i = 0; i < n_copies; i++)
		memcpy(copies[i].to, copies[i].from, copies[i].bytes);
	n_copies = 0;
	return steered("fault") ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

static CUresult copy_later(CUstream s, void *to, const void *from, size_t bytes)
{
	NEED_CONTEXT;
	NEED(s == (CUstream)&stream && n_copies < sizeof(copies) / sizeof(*copies));
	copies[n_copies++] = (struct copy){to, from, bytes};
	return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
	MAY_FAIL;
	return copy_later(s, to, (void *)(uintptr_t)from, bytes);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
	MAY_FAIL;
	return copy_later(s, (void *)(uintptr_t)to, from, bytes);
}

CUresult cuMemHostRegister(void *p, size_t bytes, unsigned flags)
{
	MAY_FAIL;
	NEED_CONTEXT;
	NEED(p && bytes && !flags);
	return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *p)
{
	MAY_FAIL;
	NEED(p);
	return CUDA_SUCCESS;
}

/* ---- CUDA IPC: a handle says where to find the memfd ---- */

_Static_assert(sizeof(struct fake_ipc) == sizeof(CUipcMemHandle), "fits exactly");

static struct known {
	struct known *next;
	struct allocation a;
	void *at;
} *known;

CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
	MAY_FAIL;
	struct known *k;

	NEED_CONTEXT;
	k = malloc(sizeof(*k));
	if (!k)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*k = (struct known){known, {dirty_memfd(bytes), bytes}, NULL};
	if (k->a.fd < 0) {
		free(k);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	k->at = map(k->a.fd, bytes, PROT_READ | PROT_WRITE, NULL);
	NEED(k->at);
	known = k;
	*at = (CUdeviceptr)(uintptr_t)k->at;
	return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr at)
{
	MAY_FAIL;
	for (struct known **k = &known; *k; k = &(*k)->next)
		if ((*k)->at == (void *)(uintptr_t)at) {
			struct known *gone = *k;

			*k = gone->next;
			munmap(gone->at, gone->a.bytes);
			close(gone->a.fd);
			free(gone);
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at)
{
	MAY_FAIL;
	for (const struct known *k = known; k; k = k->next)
		if (k->at == (void *)(uintptr_t)at) {
			struct fake_ipc ipc = {.at = at, .bytes = k->a.bytes};

			snprintf(ipc.path, sizeof(ipc.path), "/proc/%d/fd/%d", (int)getpid(), k->a.fd);
			memcpy(handle, &ipc, sizeof(ipc));
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}
