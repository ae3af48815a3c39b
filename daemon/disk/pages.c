/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/pages.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* ---- a memfd --------------------------------------------------------------------------------- */

/* Copies from the memfd to `to`, or from `from` to the memfd; the other pointer is NULL. */
static int host_copy(struct skv_disk_pages *p, uint64_t at, size_t bytes, char *to, const char *from)
{
	int fd = p->work->fds[SKV_DISK_FD_PAGES];

	for (size_t done = 0; done < bytes;) {
		ssize_t n = to ? pread(fd, to + done, bytes - done, (off_t)(at + done))
		               : pwrite(fd, from + done, bytes - done, (off_t)(at + done));

		if (n > 0)
			done += (size_t)n;
		else if (n == 0 || errno != EINTR)
			return skv_disk_refuse(p->work, n < 0 ? -errno : -EIO, "%s pages at byte %llu of their memory: %s",
			                       to ? "reading" : "writing", (unsigned long long)(at + done),
			                       n < 0 ? strerror(errno) : "it ends there");
	}
	return 0;
}

static int host_read(struct skv_disk_pages *p, uint64_t at, size_t bytes, void *to)
{
	return host_copy(p, at, bytes, to, NULL);
}

/* One thread writes at a time: the kernel serializes writes to a file anyway, and its waiting threads would spin. */
static int host_write(struct skv_disk_pages *p, uint64_t at, size_t bytes, const void *from)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int r;

	pthread_mutex_lock(&lock);
	r = host_copy(p, at, bytes, NULL, from);
	pthread_mutex_unlock(&lock);
	return r;
}

static int host_wait(struct skv_disk_pages *p)
{
	(void)p;
	return 0;
}

static void host_close(struct skv_disk_pages *p)
{
	(void)p;
}

static const struct skv_disk_pages_ops host = {.read = host_read, .write = host_write, .wait = host_wait, .close = host_close};

/* ---------------------------------------------------------------------------------------------- */

int skv_disk_pages_open(struct skv_disk_pages *p, struct skv_disk_work *work, void *staging, size_t bytes)
{
	const struct skv_disk_job *job = work->job;
	const uint32_t n = job->n_fds - SKV_DISK_FD_PAGES;

	*p = (struct skv_disk_pages){.work = work};
	if (job->n_pages && (job->model.device == SKV_DEVICE_HOST ? n != 1 : !n || !job->pages_per_segment))
		return skv_disk_refuse(work, -EINVAL, "the daemon's job has %u descriptors for the memory of pages", n);
	if (job->model.device != SKV_DEVICE_HOST)
		return job->n_pages ? skv_disk_pages_cuda_open(p, staging, bytes) : 0;
	p->ops = &host;
	p->any_thread = true;
	return 0;
}

/* Returns the page's offset in the memfd or in the range of segments. */
static uint64_t offset_of(const struct skv_disk_job *job, uint32_t id)
{
	uint64_t segment, first;

	if (job->model.device == SKV_DEVICE_HOST)
		return id * job->page_bytes;
	segment = id / job->pages_per_segment;
	first = (segment * job->segment_bytes + job->page_bytes - 1) / job->page_bytes;
	return (first + id % job->pages_per_segment) * job->page_bytes;
}

/* Returns how many of the n pages, from the first on, are contiguous in memory and in the same segment. */
static uint32_t side_by_side(const struct skv_disk_job *job, const uint32_t *ids, uint32_t n)
{
	bool one = job->model.device == SKV_DEVICE_HOST; /* all pages are in one memfd, without segments */
	uint32_t i = 1;

	while (i < n && ids[i] == ids[0] + i && (one || ids[i] / job->pages_per_segment == ids[0] / job->pages_per_segment))
		i++;
	return i;
}

/* Copies whole pages to `to`, or from `from` to the pages; the other pointer is NULL. */
static int copy(struct skv_disk_pages *p, const uint32_t *ids, uint32_t n, char *to, const char *from)
{
	const struct skv_disk_job *job = p->work->job;
	int r = 0, waited;

	for (uint32_t i = 0, some; r == 0 && i < n; i += some) {
		uint64_t at = offset_of(job, ids[i]), staged = i * job->page_bytes;

		some = side_by_side(job, ids + i, n - i);
		r = to ? p->ops->read(p, at, some * job->page_bytes, to + staged) : p->ops->write(p, at, some * job->page_bytes, from + staged);
	}
	waited = p->ops->wait(p);
	return r < 0 ? r : waited;
}

int skv_disk_pages_read(struct skv_disk_pages *p, const uint32_t *ids, uint32_t n, void *to)
{
	return copy(p, ids, n, to, NULL);
}

int skv_disk_pages_write(struct skv_disk_pages *p, const uint32_t *ids, uint32_t n, const void *from)
{
	return copy(p, ids, n, NULL, from);
}

int skv_disk_pages_read_some(struct skv_disk_pages *p, uint32_t id, uint32_t offset, uint32_t bytes, void *to)
{
	int r = p->ops->read(p, offset_of(p->work->job, id) + offset, bytes, to), waited = p->ops->wait(p);

	return r < 0 ? r : waited;
}

int skv_disk_pages_write_some(struct skv_disk_pages *p, uint32_t id, uint32_t offset, uint32_t bytes, const void *from)
{
	int r = p->ops->write(p, offset_of(p->work->job, id) + offset, bytes, from), waited = p->ops->wait(p);

	return r < 0 ? r : waited;
}
