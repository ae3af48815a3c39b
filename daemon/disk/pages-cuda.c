/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/pages-cuda.c - copies pages from and to segments of a CUDA device.
 *
 * The context of a device is created for its first job and kept for later jobs. The job's segments are mapped during
 * the job into one range of addresses, each at the position of its number; segments that the job does not have leave
 * gaps. Staging buffers are pinned during the job, so that copies are asynchronous; all copies run on one stream.
 */
#include "daemon/disk/pages.h"

#include <errno.h>
#include <stdlib.h>
#include "daemon/disk/list.h"
#include "daemon/mem/driver.h"

_Static_assert(SKV_DISK_TEXT_MAX == SKV_CUDA_TEXT_MAX, "a text of the driver is one of ours");

static CUcontext contexts[SKV_MAX_DEVICES];

struct cuda_pages {
	CUdevice device;
	CUdeviceptr range;
	uint64_t n; /* number of segments that the range has room for */
	bool *mapped; /* [n] */
	void *pinned; /* the staging buffers; NULL: they could not be pinned */
	CUstream stream;
};

static int get_ready(uint32_t ordinal, CUdevice *ret, char *why)
{
	CUcontext *context = &contexts[ordinal];
	int r = skv_cuda_load(why);

	if (r == 0)
		r = skv_cu_error(skv_cu.cuDeviceGet(ret, (int)ordinal), "the device", why);
	if (r == 0 && !*context) {
		/* copies are short: a thread that blocks in place of yielding would wait for them twice as long */
		r = skv_cu_error(skv_cu.cuDevicePrimaryCtxSetFlags(*ret, CU_CTX_SCHED_YIELD), "the context's flags", why);
		if (r == 0)
			r = skv_cu_error(skv_cu.cuDevicePrimaryCtxRetain(context, *ret), "making a context", why);
	}
	return r < 0 ? r : skv_cu_error(skv_cu.cuCtxSetCurrent(*context), "using a context", why);
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Maps a segment of the job at the position of its number; the descriptor is borrowed. */
static int map_segment(struct skv_disk_pages *p, uint32_t segment, int fd)
{
	struct cuda_pages *c = p->device;
	const size_t bytes = p->work->job->segment_bytes;
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = c->device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUdeviceptr at = c->range + segment * bytes;
	CUmemGenericAllocationHandle handle;
	int r;

	if (c->mapped[segment])
		return skv_disk_refuse(p->work, -EINVAL, "the daemon's list has segment %u twice", segment);
	r = skv_cu_error(skv_cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	                 "importing a segment", p->work->why);
	if (r < 0)
		return r;
	r = skv_cu_error(skv_cu.cuMemMap(at, bytes, 0, handle, 0), "mapping a segment", p->work->why);
	c->mapped[segment] = r == 0;
	skv_cu.cuMemRelease(handle); /* the mapping keeps the memory alive */
	return r < 0 ? r : skv_cu_error(skv_cu.cuMemSetAccess(at, bytes, &access, 1), "access to a segment", p->work->why);
}

/* Reads the numbers of segments, which follow the entries or page ids in the list. */
static int list_segments(struct skv_disk_work *work, uint32_t n, uint32_t *ret)
{
	const struct skv_disk_job *job = work->job;
	const uint64_t first = skv_disk_list_has_entries(job) ? job->n_entries : job->n_pages;
	const uint64_t most = job->max_pages / job->pages_per_segment + 1;
	struct skv_disk_list list;
	int r = 0;

	skv_disk_list_begin(&list, work, first, first + n);
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		r = skv_disk_list_next(&list, &ret[i]);
		if (r == 0 && ret[i] >= most)
			r = skv_disk_refuse(work, -EINVAL, "the daemon's list has segment %u, its pages are in %llu", ret[i], (unsigned long long)most);
	}
	return r;
}

static int map_all(struct skv_disk_pages *p, const uint32_t *segments, uint32_t n)
{
	struct cuda_pages *c = p->device;
	int r;

	for (uint32_t i = 0; i < n; i++)
		if (segments[i] >= c->n)
			c->n = segments[i] + UINT64_C(1);
	c->mapped = calloc(c->n, sizeof(*c->mapped));
	if (!c->mapped)
		return -ENOMEM;
	r = skv_cu_error(skv_cu.cuMemAddressReserve(&c->range, c->n * p->work->job->segment_bytes, 0, 0, 0), "reserving addresses", p->work->why);
	for (uint32_t i = 0; r == 0 && i < n; i++)
		r = map_segment(p, segments[i], p->work->fds[SKV_DISK_FD_PAGES + i]);
	return r;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Checks that the segment at `at`, the start of a copy, is mapped. A copy lies in one segment (see side_by_side()). */
static int check_mapped(struct skv_disk_pages *p, uint64_t at)
{
	struct cuda_pages *c = p->device;
	uint64_t segment = at / p->work->job->segment_bytes;

	if (segment < c->n && c->mapped[segment])
		return 0;
	return skv_disk_refuse(p->work, -EINVAL, "the daemon's list has a page in segment %llu, which it did not pass", (unsigned long long)segment);
}

static int cuda_read(struct skv_disk_pages *p, uint64_t at, size_t bytes, void *to)
{
	struct cuda_pages *c = p->device;
	int r = check_mapped(p, at);

	return r < 0 ? r : skv_cu_error(skv_cu.cuMemcpyDtoHAsync(to, c->range + at, bytes, c->stream), "copying pages from the device", p->work->why);
}

static int cuda_write(struct skv_disk_pages *p, uint64_t at, size_t bytes, const void *from)
{
	struct cuda_pages *c = p->device;
	int r = check_mapped(p, at);

	return r < 0 ? r : skv_cu_error(skv_cu.cuMemcpyHtoDAsync(c->range + at, from, bytes, c->stream), "copying pages to the device", p->work->why);
}

static int cuda_wait(struct skv_disk_pages *p)
{
	struct cuda_pages *c = p->device;

	return skv_cu_error(skv_cu.cuStreamSynchronize(c->stream), "copying pages", p->work->why);
}

static void cuda_close(struct skv_disk_pages *p)
{
	const uint64_t bytes = p->work->job->segment_bytes;
	struct cuda_pages *c = p->device;
	bool fine = true;

	if (c->stream) {
		fine &= skv_cu.cuStreamSynchronize(c->stream) == CUDA_SUCCESS;
		fine &= skv_cu.cuStreamDestroy(c->stream) == CUDA_SUCCESS;
	}
	if (c->pinned)
		fine &= skv_cu.cuMemHostUnregister(c->pinned) == CUDA_SUCCESS;
	for (uint64_t i = 0; i < c->n && c->range; i++)
		if (c->mapped[i])
			fine &= skv_cu.cuMemUnmap(c->range + i * bytes, bytes) == CUDA_SUCCESS;
	if (c->range)
		fine &= skv_cu.cuMemAddressFree(c->range, c->n * bytes) == CUDA_SUCCESS;
	p->work->broken |= !fine;
	free(c->mapped);
	free(c);
}

static const struct skv_disk_pages_ops cuda = {.read = cuda_read, .write = cuda_write, .wait = cuda_wait, .close = cuda_close};

int skv_disk_pages_cuda_open(struct skv_disk_pages *p, void *staging, size_t bytes)
{
	const uint32_t n = p->work->job->n_fds - SKV_DISK_FD_PAGES;
	struct cuda_pages *c = calloc(1, sizeof(*c));
	uint32_t *segments = malloc(n * sizeof(*segments));
	int r = c && segments ? get_ready(p->work->job->model.device - SKV_DEVICE_CUDA(0), &c->device, p->work->why) : -ENOMEM;

	p->device = c;
	if (r == 0)
		r = skv_cu_error(skv_cu.cuStreamCreate(&c->stream, CU_STREAM_NON_BLOCKING), "making a stream", p->work->why);
	if (r == 0)
		r = list_segments(p->work, n, segments);
	if (r == 0)
		r = map_all(p, segments, n);
	free(segments);
	if (r < 0) {
		if (c)
			cuda_close(p);
		return r;
	}
	/* if pinning fails, copies are slower, but correct */
	c->pinned = skv_cu.cuMemHostRegister(staging, bytes, 0) == CUDA_SUCCESS ? staging : NULL;
	p->ops = &cuda;
	return 0;
}
