/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/cuda-worker.c - the worker process of a CUDA device. See cuda.h.
 *
 * The worker process has the CUDA context that the daemon must not have. The worker receives one job at a time, and
 * answers each job, also one that failed. The daemon decides whether a worker is still usable after an error. Usually
 * it is not, since a CUDA context does not recover from a fault.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/fd.h"
#include "common/process.h"
#include "daemon/mem/driver.h"

/* A segment that this process has allocated (ipc = legacy), with the handle that identifies it in jobs. */
struct allocation {
	struct allocation *next;
	CUdeviceptr at;
	CUipcMemHandle handle;
};

static CUdevice device;
static bool ready; /* the CUDA context exists */
static struct allocation *allocations;

_Static_assert(sizeof(CUipcMemHandle) == SKV_IPC_HANDLE_BYTES, "as the wire has it");

static int get_ready(unsigned ordinal, char *why)
{
	CUcontext context;
	int r = ready ? 0 : skv_cuda_load(why);

	if (ready || r < 0)
		return r;
	r = skv_cu_error(skv_cu.cuDeviceGet(&device, (int)ordinal), "the device", why);
	if (r == 0) /* while waiting for the device, sleep instead of spinning: latency does not matter in a worker */
		r = skv_cu_error(skv_cu.cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_BLOCKING_SYNC),
		                 "the context's flags", why);
	if (r == 0)
		r = skv_cu_error(skv_cu.cuDevicePrimaryCtxRetain(&context, device), "making a context", why);
	if (r == 0)
		r = skv_cu_error(skv_cu.cuCtxSetCurrent(context), "using a context", why);
	ready = r == 0;
	return r;
}

static int fill(CUdeviceptr at, size_t bytes, char *why)
{
	int r = skv_cu_error(skv_cu.cuMemsetD8(at, 0, bytes), "filling with zeros", why);

	return r < 0 ? r : skv_cu_error(skv_cu.cuCtxSynchronize(), "filling with zeros", why);
}

/* Maps an allocation at the device address `at`, zeroes it, and unmaps it. */
static int zero_mapped(CUdeviceptr at, CUmemGenericAllocationHandle handle, size_t bytes, char *why)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	int r = skv_cu_error(skv_cu.cuMemMap(at, bytes, 0, handle, 0), "mapping a segment", why);

	if (r < 0)
		return r;
	r = skv_cu_error(skv_cu.cuMemSetAccess(at, bytes, &access, 1), "access to a segment", why);
	if (r == 0)
		r = fill(at, bytes, why);
	if (r == 0)
		return skv_cu_error(skv_cu.cuMemUnmap(at, bytes), "unmapping a segment", why);
	skv_cu.cuMemUnmap(at, bytes);
	return r;
}

static int zero(int fd, size_t bytes, char *why)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	int r = skv_cu_error(skv_cu.cuMemImportFromShareableHandle(
				     &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	                     "importing a segment", why);

	if (r < 0)
		return r;
	r = skv_cu_error(skv_cu.cuMemAddressReserve(&at, bytes, 0, 0, 0), "reserving addresses", why);
	if (r == 0) {
		r = zero_mapped(at, handle, bytes, why);
		skv_cu.cuMemAddressFree(at, bytes);
	}
	skv_cu.cuMemRelease(handle);
	return r;
}

static int allocate(size_t bytes, uint8_t ret_ipc[SKV_IPC_HANDLE_BYTES], char *why)
{
	struct allocation *a = calloc(1, sizeof(*a));
	int r;

	if (!a) {
		snprintf(why, SKV_CUDA_TEXT_MAX, "out of host memory");
		return -EIO; /* not -ENOMEM, which means device memory */
	}
	r = skv_cu_error(skv_cu.cuMemAlloc(&a->at, bytes), "allocating a segment", why);
	if (r < 0) {
		free(a);
		return r;
	}
	r = fill(a->at, bytes, why);
	if (r == 0)
		r = skv_cu_error(skv_cu.cuIpcGetMemHandle(&a->handle, a->at), "exporting a segment", why);
	if (r < 0) {
		skv_cu.cuMemFree(a->at);
		free(a);
		return r;
	}
	memcpy(ret_ipc, &a->handle, SKV_IPC_HANDLE_BYTES);
	a->next = allocations;
	allocations = a;
	return 0;
}

static int release(const uint8_t ipc[SKV_IPC_HANDLE_BYTES], char *why)
{
	for (struct allocation **a = &allocations; *a; a = &(*a)->next)
		if (memcmp(&(*a)->handle, ipc, SKV_IPC_HANDLE_BYTES) == 0) {
			struct allocation *gone = *a;
			int r = skv_cu_error(skv_cu.cuMemFree(gone->at), "freeing a segment", why);

			*a = gone->next;
			free(gone);
			return r;
		}
	snprintf(why, SKV_CUDA_TEXT_MAX, "there is no allocation of this handle");
	return -ENOENT;
}

static void work(unsigned ordinal, const struct skv_cuda_job *job, int fd, struct skv_cuda_answer *answer)
{
	answer->error = get_ready(ordinal, answer->why);
	if (answer->error)
		return;
	switch (job->kind) {
	case SKV_CUDA_ZERO:
		answer->error = zero(fd, job->bytes, answer->why);
		return;
	case SKV_CUDA_ALLOC:
		answer->error = allocate(job->bytes, answer->ipc, answer->why);
		return;
	case SKV_CUDA_FREE:
		answer->error = release(job->ipc, answer->why);
		return;
	default:
		snprintf(answer->why, sizeof(answer->why), "job %u is unknown", job->kind);
		answer->error = -EINVAL;
	}
}

/*
 * Receives the next job. Returns false if the daemon has closed its end of the socket or sent an invalid packet.
 * *ret_fd is the descriptor that came with the job, or -1.
 */
static bool next_job(struct skv_cuda_job *job, int *ret_fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {job, sizeof(*job)};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c;
	ssize_t n;

	do
		n = recvmsg(SKV_CUDA_WORKER_FD, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	*ret_fd = -1;
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
	return n == (ssize_t)sizeof(*job);
}

int skv_cuda_worker_main(unsigned ordinal)
{
	struct skv_cuda_job job;
	int fd;

	skv_process_conceal();
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	(void)prctl(PR_SET_NAME, "sparsekvd-cuda");
	skv_process_serve();
	while (next_job(&job, &fd)) {
		struct skv_cuda_answer answer = {.error = 0};

		work(ordinal, &job, fd, &answer);
		skv_close_fd(fd);
		if (send(SKV_CUDA_WORKER_FD, &answer, sizeof(answer), MSG_NOSIGNAL) < 0)
			return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}
