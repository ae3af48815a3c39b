/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server/device.c - CUDA devices of the daemon: creates the segments of device memory for which the core waits.
 *
 * A device is opened when a session first needs it, and stays open. A pending segment is created in one of two ways, as
 * the setting `ipc` says:
 *
 *   ipc = vmm      The daemon creates and exports the segment (mem/cuda.c, without a CUDA context). The device's worker
 *                  process fills the segment with zeros before the core gets it, since device memory contains what its
 *                  last user left.
 *   ipc = legacy   The worker process allocates the segment, zeroes it and keeps it. These segments live as long as the
 *                  worker: if the worker dies, all connections with sessions on the device are closed and their
 *                  sequences are lost.
 */
#include "daemon/server/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/fd.h"
#include "daemon/core/memory/memory.h"
#include "daemon/core/restart/life.h"
#include "daemon/core/operations/clients.h"
#include "daemon/requests/lease.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/log.h"

/* A segment that the core waits for, while it is created and zeroed. */
struct pending {
	struct skv_worker_job job; /* must be first: the function `done` gets a pointer to the job */
	struct skv_cuda_job cuda;
	struct skv_device *device;
	struct skv_core_pending m;
	struct skv_mem_handle handle;
};

/* ---- segments ---- */

static void made(struct skv_worker_job *job, int error, const char *why, const void *answer)
{
	const struct skv_cuda_answer *a = answer;
	struct pending *x = (struct pending *)job;
	struct skv_device *d = x->device;
	struct skv_server *s = d->server;

	if (error == 0) {
		if (a && d->legacy) {
			memcpy(x->handle.ipc, a->ipc, sizeof(x->handle.ipc));
			skv_worker_keep(d->worker, ++d->kept > 0);
		}
		skv_core_segment_made(s->core, &x->m, &x->handle);
		skv_lease_arrived(s, x->m.pool);
	} else {
		if (error != -ECANCELED)
			skv_log_peer(LOG_WARNING, "%s: a segment of %llu bytes cannot be created: %s", d->name,
			             (unsigned long long)x->m.bytes, why);
		skv_core_segment_failed(s->core, &x->m);
		skv_close_fd(x->handle.fd);
		skv_lease_failed(s, x->m.pool, error == -ENOMEM ? ENOSPC : EIO, d->name, why);
	}
	s->requests.notices_due = true;
	free(x);
}

static void make(struct skv_device *d, const struct skv_core_pending *m)
{
	struct pending *x = calloc(1, sizeof(*x));
	char why[SKV_CUDA_TEXT_MAX] = "";
	int r = 0;

	if (!x) {
		skv_core_segment_failed(d->server->core, m);
		skv_lease_failed(d->server, m->pool, ENOMEM, d->name, "the daemon is out of memory");
		return;
	}
	x->device = d;
	x->m = *m;
	x->handle = (struct skv_mem_handle)SKV_MEM_HANDLE_NULL;
	x->job.done = made;
	x->job.job = &x->cuda;
	x->job.bytes = sizeof(x->cuda);
	x->job.user = m->uid;
	x->cuda.bytes = m->bytes;
	x->cuda.kind = d->legacy ? SKV_CUDA_ALLOC : SKV_CUDA_ZERO;
	if (!d->legacy)
		r = skv_cuda_create(d->ordinal, m->bytes, &x->handle.fd, why);
	x->job.fds = &x->handle.fd;
	x->job.n_fds = x->handle.fd >= 0;
	if (r < 0)
		made(&x->job, r, why, NULL);
	else
		skv_worker_submit(d->worker, &x->job);
}

void skv_device_make(struct skv_server *s)
{
	struct skv_core_pending m;

	while (skv_core_next_pending(s->core, &m))
		make(s->devices[m.device], &m);
}

/* A job for a legacy device's worker, which frees a segment that it has allocated. */
struct freeing {
	struct skv_worker_job job; /* must be first */
	struct skv_cuda_job cuda;
};

static void freed(struct skv_worker_job *job, int error, const char *why, const void *answer)
{
	/* errors are ignored: a worker that cannot free memory is ended, and its memory is freed with it */
	(void)error, (void)why, (void)answer;
	free(job);
}

/*
 * Frees a segment of a device. A VMM allocation lives until its last fd is closed and its last mapping is gone: a
 * client that keeps the fd keeps the memory, but no other process gets the same memory.
 */
static void destroy(const struct skv_mem_ops *ops, struct skv_mem_handle *handle, size_t bytes)
{
	struct skv_device *d = (struct skv_device *)ops;
	struct freeing *x;

	handle->fd = skv_close_fd(handle->fd);
	if (!d->legacy)
		return;
	skv_worker_keep(d->worker, --d->kept > 0);
	x = calloc(1, sizeof(*x));
	if (!x) {
		skv_log(LOG_ERR, "%s: out of memory: %zu bytes of the device cannot be freed before its worker process "
		                 "ends",
		        d->name, bytes);
		return;
	}
	x->job = (struct skv_worker_job){
		.job = &x->cuda, .bytes = sizeof(x->cuda), .user = SKV_WORKER_NOBODY, .frees = true, .done = freed};
	x->cuda.kind = SKV_CUDA_FREE;
	x->cuda.bytes = bytes;
	memcpy(x->cuda.ipc, handle->ipc, sizeof(x->cuda.ipc));
	skv_worker_submit(d->worker, &x->job);
}

/*
 * Called when a device's worker process has died. With ipc = legacy, all segments that the worker kept are lost with
 * it.
 */
static void lost(void *device)
{
	struct skv_device *d = device;
	struct skv_server *s = d->server;
	struct skv_conn *next;

	if (!d->legacy || !d->kept)
		return;
	skv_log(LOG_ERR, "%s: the worker process has ended, and the memory of all sequences on the device is lost with "
	                 "it (ipc = legacy)",
	        d->name);
	for (struct skv_conn *c = skv_ipc_first(s->ipc); c; c = next) {
		next = skv_conn_next(c);
		if (skv_core_client_uses(s->core, skv_conn_client(c), d->number))
			skv_conn_close(c, LOG_WARNING, "the device memory of the client's sessions is lost");
	}
	skv_core_device_lost(s->core, d->number);
	s->requests.notices_due = true;
}

/* ---- devices ---- */

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/*
 * Returns the bytes that a setting allows of a device's memory: a setting of at most 100 is a percentage, a larger one
 * is a number of bytes, cut at the device's memory.
 */
static uint64_t share(uint64_t setting, uint64_t bytes)
{
	return setting <= 100 ? bytes / 100 * setting : min64(setting, bytes);
}

static void limit(struct skv_device *d)
{
	const struct skv_config *c = &d->server->config;

	d->limits = (struct skv_core_memory_limits){
		.pool_bytes = min64(share(c->cuda_pool_bytes, d->info.bytes), SKV_DEVICE_POOL_MAX),
		.account_bytes = share(c->account_cuda_bytes, d->info.bytes),
		.segment_bytes = c->cuda_segment_bytes,
		.most_bytes = min64(d->info.bytes, SKV_DEVICE_POOL_MAX),
	};
	skv_core_set_device(d->server->core, d->number, &d->ops, &d->limits);
	skv_worker_set_times(d->worker, c->cuda_worker_timeout, c->cuda_worker_idle);
}

static int device_new(struct skv_server *s, uint32_t number, const struct skv_cuda_info *info)
{
	struct skv_device *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return -ENOMEM;
	d->ordinal = number - SKV_DEVICE_CUDA(0);
	snprintf(d->name, sizeof(d->name), "cuda:%u", d->ordinal);
	r = skv_worker_new(s->loop,
	                   &(struct skv_worker_config){
				   .program = s->worker,
				   .option = "cuda",
				   .argument = d->name + strlen("cuda:"),
				   .name = d->name,
				   .answer_bytes = sizeof(struct skv_cuda_answer),
				   .why_at = offsetof(struct skv_cuda_answer, why),
				   .frail = true,
				   .lost = lost,
				   .ctx = d,
			   },
	                   &d->worker);
	if (r < 0) {
		free(d);
		return r;
	}
	d->server = s;
	d->number = number;
	d->legacy = s->config.ipc == SKV_IPC_LEGACY;
	d->info = *info;
	d->ops = (struct skv_mem_ops){
		.granularity = info->granularity,
		.handle_kind = d->legacy ? SKV_HANDLE_CUDA_IPC : SKV_HANDLE_CUDA_FD,
		.destroy = destroy,
	};
	s->devices[number] = d;
	limit(d);
	skv_log(LOG_NOTICE, "%s: opened the device %s, %.1f GiB, ipc = %s", d->name, info->name,
	        (double)info->bytes / (1u << 30), d->legacy ? "legacy" : "vmm");
	return 0;
}

/*
 * Finds the device with this UUID. Returns 0; -ENODEV if there is no such device; or another negative errno with a text
 * if the driver failed.
 */
static int find(const uint8_t uuid[SKV_UUID_BYTES], uint32_t *ret, char why[SKV_CUDA_TEXT_MAX])
{
	struct skv_cuda_info info;

	for (uint32_t i = 0; i < SKV_MAX_DEVICES; i++) {
		const int r = skv_cuda_info(i, &info, why);

		if (r < 0)
			return r;
		if (!memcmp(info.uuid, uuid, sizeof(info.uuid))) {
			*ret = SKV_DEVICE_CUDA(i);
			return 0;
		}
	}
	return -ENODEV;
}

/*
 * Clients name devices by UUID, because a client's numbers may differ from the daemon's: a container may have only some
 * of the devices.
 */
int skv_device_resolve(struct skv_server *s, const uint8_t uuid[SKV_UUID_BYTES], uint32_t *number,
                       char why[SKV_TEXT_MAX])
{
	static const uint8_t none[SKV_UUID_BYTES];
	char text[SKV_DEVICE_UUID_TEXT], reason[SKV_CUDA_TEXT_MAX];
	int r;

	if (*number == SKV_DEVICE_HOST || s->config.cuda == SKV_CUDA_OFF || !memcmp(uuid, none, sizeof(none)))
		return 0;
	r = skv_cuda_load(reason);
	if (r < 0) {
		snprintf(why, SKV_TEXT_MAX, "%s", reason);
		return -r;
	}
	r = find(uuid, number, reason);
	if (r == -ENODEV)
		snprintf(why, SKV_TEXT_MAX, "the daemon has no CUDA device %s", skv_device_uuid_text(uuid, text));
	else if (r < 0)
		snprintf(why, SKV_TEXT_MAX, "%s", reason);
	return -r;
}

const char *skv_device_uuid_text(const uint8_t uuid[SKV_UUID_BYTES], char to[SKV_DEVICE_UUID_TEXT])
{
	size_t at = (size_t)sprintf(to, "GPU");

	for (size_t i = 0; i < SKV_UUID_BYTES; i++) {
		bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;

		at += (size_t)sprintf(to + at, "%s%02x", dash ? "-" : "", uuid[i]);
	}
	return to;
}

int skv_device_need(struct skv_server *s, uint32_t number, char why[SKV_TEXT_MAX])
{
	char reason[SKV_CUDA_TEXT_MAX] = "";
	struct skv_cuda_info info;
	int r;

	if (number == SKV_DEVICE_HOST || number >= SKV_MEMORY_KINDS || s->devices[number])
		/* host memory and open devices need no opening; an invalid number is refused later, by the core */
		return 0;
	if (s->config.cuda == SKV_CUDA_OFF) {
		snprintf(why, SKV_TEXT_MAX, "device memory is turned off (cuda = off)");
		return EOPNOTSUPP;
	}
	r = skv_cuda_info(number - SKV_DEVICE_CUDA(0), &info, reason);
	if (r == 0 && !info.exports && s->config.ipc == SKV_IPC_VMM) {
		r = -EOPNOTSUPP;
		snprintf(reason, sizeof(reason), "%s cannot export memory as a descriptor: set ipc = legacy",
		         info.name);
	}
	if (r == 0)
		r = device_new(s, number, &info);
	if (r < 0)
		snprintf(why, SKV_TEXT_MAX, "cuda:%u: %s", number - SKV_DEVICE_CUDA(0),
		         *reason ? reason : strerror(-r));
	return -r;
}

void skv_device_reconfigure(struct skv_server *s)
{
	for (uint32_t i = 0; i < SKV_MEMORY_KINDS; i++)
		if (s->devices[i])
			limit(s->devices[i]);
}

void skv_device_close_all(struct skv_server *s)
{
	for (uint32_t i = 0; i < SKV_MEMORY_KINDS; i++)
		if (s->devices[i])
			skv_worker_close(s->devices[i]->worker);
}

void skv_device_free_all(struct skv_server *s)
{
	for (uint32_t i = 0; i < SKV_MEMORY_KINDS; i++)
		if (s->devices[i]) {
			skv_worker_free(s->devices[i]->worker);
			free(s->devices[i]);
			s->devices[i] = NULL;
		}
}
