/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/device/device.c - runs sessions whose pages are in a device's memory.
 *
 * The host plans steps, and the device runs them later, in the order of the stream. So each value belongs to one of two
 * times:
 *
 *   planned   skv_seq.len, skv_seq.epoch and the tables as the next step needs them: the host knows them at once, and
 *             never reads them back
 *   run       the commit word, token ids and the eviction journal's length: the step's last kernel stores them directly
 *             in the sequence's shared memory. After a death between the two times, planned values are lost.
 *
 * Tables (tables.c). Kernels read a copy of a sequence's page tables in the device's memory; entries of the copy have
 * page numbers from pool_kernel_page().
 *
 * Steps (steps.c). A step's changes to the tables, and the lengths of its sequences, are written to a staging buffer in
 * pinned memory; one small kernel copies them to the device. A staging buffer is free again when its step has run; if
 * all buffers are in use, the host waits.
 *
 * Pages. A page goes into the stock only when the device no longer uses it: an evicted page when the commit that
 * evicted it has been reported, any other page after a wait for the stream. So any later step may use the page. The
 * device gets the holes of an eviction with the next step, as kernels do in host memory, no matter when the host learns
 * of the commit. Before a sequence evicts again, the host waits for the commit that used the sequence's journal last.
 */
#include "libclient/device/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/conn/fence.h"
#include "libclient/error.h"
#include "libclient/session.h"

#define HOLES 64u

int device_failed(const struct device *d, int error, const char *what)
{
	return error_set(error, "%s: %s", what, d->backend->error());
}

int device_open(struct skv_session *s, device_finished_fn *finished)
{
	const struct skv_backend *b;
	char why[SKV_TEXT_MAX];
	struct device *d;
	int e;

	b = skv_backend_cuda(why, sizeof(why));
	if (!b)
		return error_set(-ENODEV, "model: device is cuda:%u, but %s", s->model.device - SKV_DEVICE_CUDA(0),
		                 why);
	d = calloc(1, sizeof(*d));
	if (!d)
		return error_set(-ENOMEM, "out of memory");
	d->backend = b;
	d->number = s->model.device - SKV_DEVICE_CUDA(0);
	e = b->info(d->number, &d->info);
	if (e < 0) {
		free(d);
		return error_set(e, "model: device is cuda:%u: %s", s->model.device - SKV_DEVICE_CUDA(0), b->error());
	}
	d->finished = finished;
	s->device = d;
	s->kernels = b->kernels;
	return 0;
}

int device_enter(struct skv_session *s, void **ret_was)
{
	int e = s->device ? s->device->backend->enter(s->device->number, ret_was) : 0;

	return e < 0 ? device_failed(s->device, e, "the device") : 0;
}

void device_leave(struct skv_session *s, void *was)
{
	if (s->device)
		s->device->backend->leave(was);
}

int device_lock(struct skv_session *s, void **ret_was)
{
	int e = fence_enter(s);

	if (e < 0)
		return e;
	e = device_enter(s, ret_was);
	if (e < 0)
		pthread_mutex_unlock(&s->lock);
	return e;
}

void device_unlock(struct skv_session *s, void *was)
{
	device_leave(s, was);
	pthread_mutex_unlock(&s->lock);
}

int device_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need)
{
	const struct skv_backend *b = s->device->backend;
	void *stream = s->step.work.stream, *more = NULL;
	int e;

	b->free(*mem); /* b->free() waits for all queued work */
	*mem = NULL;
	*bytes = 0;
	e = b->alloc(need, &more);
	if (e == 0)
		e = b->zero(more, need, stream);
	if (e < 0) {
		b->free(more);
		return device_failed(s->device, e, "scratch memory of the step");
	}
	*mem = more;
	*bytes = need;
	return 0;
}

int device_grow_batch(struct skv_session *s, uint32_t n, uint32_t n_kseq)
{
	struct device *d = s->device;
	size_t bytes = 0;
	void *kseq = d->kseq, *attended = d->attended, *holes = d->holes;
	uint32_t cap_kseq = n_kseq + n_kseq / 2, cap = n + n / 2;
	int e = holes ? 0 : device_grow(s, &holes, &bytes, HOLES * sizeof(*d->holes));

	d->holes = holes;
	if (n_kseq > d->cap_kseq && e == 0) {
		d->cap_kseq = 0;
		e = device_grow(s, &kseq, &bytes, cap_kseq * sizeof(*d->kseq));
		d->kseq = kseq;
		d->cap_kseq = e == 0 ? cap_kseq : 0;
	}
	if (n > d->cap && e == 0) {
		d->cap = 0;
		e = device_grow(s, &attended, &bytes, cap * sizeof(*d->attended));
		d->attended = attended;
		d->cap = e == 0 ? cap : 0;
	}
	return e;
}

int device_check(struct skv_session *s)
{
	int e = s->device->backend->check();

	return e < 0 ? device_failed(s->device, e, "attention") : 0;
}

int device_wait(struct skv_session *s)
{
	int e = s->device->backend->wait(s->step.work.stream);

	return e < 0 ? device_failed(s->device, e, "the step") : 0;
}

static void step_buffer_free(struct device *d, struct device_step *x)
{
	if (x->event)
		d->backend->event_free(x->event);
	if (x->mem)
		d->backend->free_host(x->mem);
	free(x->seqs);
}

void device_close(struct skv_session *s)
{
	struct device *d = s->device;
	void *was;

	if (!d)
		return;
	if (device_enter(s, &was) == 0) {
		for (uint32_t i = 0; i < DEVICE_STEPS; i++)
			step_buffer_free(d, &d->step[i]);
		device_free_closed(d);
		slab_free(d);
		d->backend->free(d->kseq);
		d->backend->free(d->attended);
		d->backend->free(d->holes);
		device_leave(s, was);
	}
	free(d->stale);
	free(d);
	s->device = NULL;
}

/* Copy between host memory and the pages' memory, and wait until the copy is done. `what` names the copy in errors. */
static int copy_now(struct skv_session *s, void *to, const void *from, size_t bytes, const char *what)
{
	const struct skv_backend *b = s->device ? s->device->backend : NULL;
	int e;

	if (!b) {
		memcpy(to, from, bytes);
		return 0;
	}
	e = b->copy(to, from, bytes, s->step.work.stream);
	if (e == 0)
		e = b->wait(s->step.work.stream);
	return e < 0 ? device_failed(s->device, e, what) : 0;
}

int device_put(struct skv_session *s, void *to, const void *from, size_t bytes)
{
	return copy_now(s, to, from, bytes, "what the model's layers have");
}

int device_fetch(struct skv_session *s, void *to, const void *from, size_t bytes)
{
	return copy_now(s, to, from, bytes, "what was computed");
}
