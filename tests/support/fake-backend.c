/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend for machines without a device: tests name this module in SPARSEKV_CUDA_MODULE. It runs the host's kernels
 * on the memory of tests/support/fake-libcuda.c. Thus what the client library does with a device - steps that run
 * later, recordings, pages that are free again once a commit is seen - is tested on any machine.
 *
 * Work is as late as it can be on a device: what is queued on a stream runs when the caller waits for it, not before
 * (fake-streams.c). The backend is single-threaded, as its tests are.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fake-backend.h"
#include "tests/support/fake-ipc.h"

#define API __attribute__((visibility("default")))

static const struct skv_kernels *host; /* run the queued work */
static char text[128] = "no error";

int fake_failed(int r, const char *what)
{
	snprintf(text, sizeof(text), "fake device: %s", what);
	return r;
}

/* ---- queued work ----------------------------------------------------------------------------- */

static void run_stage(const struct skv_stage *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		c->to[i] = c->from[i];
		if (c->from[i].attended)
			*c->from[i].attended = 0;
	}
	for (uint32_t i = 0; i < c->n_entries; i++)
		*c->entry[i].at = c->entry[i].entry;
}

static void run_publish(const struct skv_publish *one, uint32_t n, const int32_t *next)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct skv_publish *p = &one[i];

		if (!p->commit)
			continue;
		*p->next[0] = *p->next[1] = next ? next[p->item] : -1;
		if (p->token)
			*p->token = p->id;
		if (p->n_evict)
			*p->journal_n = p->n_evict;
		*p->about = p->about_is;
		*p->len = (uint32_t)p->word;
		memcpy(p->words, p->words_are, p->n_words * sizeof(*p->words));
		if (p->attended)
			*p->sum = *p->attended;
		__atomic_store_n(p->commit, p->word, __ATOMIC_RELEASE);
	}
}

void fake_run(const struct op *o)
{
	switch (o->what) {
	case STAGE:
		run_stage(&o->stage);
		break;
	case PUBLISH:
		run_publish(o->in[0], o->n, o->in[1]);
		break;
	case ZERO:
		memset(o->out, 0, o->bytes);
		break;
	case KERNEL:
		o->run(host, o);
		break;
	default:
		fake_run_queued(o);
	}
}

/* ---- the device ------------------------------------------------------------------------------ */

static const char *error(void)
{
	return text;
}

static int count(unsigned *ret_n)
{
	*ret_n = 1;
	return 0;
}

static int info(unsigned device, struct skv_device_info *ret)
{
	if (device > 0)
		return fake_failed(-ENODEV, "there is but one");
	*ret = (struct skv_device_info){.name = "fake", .multiprocessors = 1, .bytes = (size_t)256 << 20};
	memset(ret->uuid, 0x10, sizeof(ret->uuid)); /* as in tests/support/fake-libcuda.c */
	return 0;
}

static unsigned entered;

static int enter(unsigned device, void **ret_was)
{
	*ret_was = NULL;
	entered++;
	return device > 0 ? fake_failed(-ENODEV, "there is but one") : 0;
}

static int leave(void *was)
{
	(void)was;
	if (entered-- == 0)
		abort();
	return 0;
}

/* Like device memory, it is not zeroed. */
static int alloc(size_t bytes, void **ret)
{
	if (posix_memalign(ret, 256, bytes ? bytes : 1))
		return fake_failed(-ENOMEM, "no memory");
	memset(*ret, 0xa5, bytes);
	return 0;
}

/* Waits for all streams, as any of them may still use the memory; a real device waits, too. */
static int free_(void *p)
{
	fake_wait_for_all();
	free(p);
	return 0;
}

static int register_host(void *p, size_t bytes, void **ret)
{
	(void)bytes;
	*ret = p;
	return 0;
}

/* Waits as free_() does. */
static int unregister_host(void *p)
{
	(void)p;
	fake_wait_for_all();
	return 0;
}

static int reserve(size_t bytes, void **ret)
{
	void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return fake_failed(-ENOMEM, "no addresses");
	*ret = p;
	return 0;
}

static int release(void *at, size_t bytes)
{
	return munmap(at, bytes) ? -errno : 0;
}

static int map(void *at, size_t bytes, int fd, bool writable)
{
	void *p = mmap(at, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);

	return p == MAP_FAILED ? fake_failed(-errno, "mapping memory") : 0;
}

static int unmap(void *at, size_t bytes)
{
	void *p = mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	return p == MAP_FAILED ? fake_failed(-errno, "unmapping memory") : 0;
}

/* Lengths of opened handles, for close_ipc(). */
#define MAX_OPENED 64
static struct opened {
	void *at;
	size_t bytes;
} opened[MAX_OPENED];

/* Addresses are multiples of 2 MiB, as on a real device. */

static int open_ipc(const void *handle, void **ret)
{
	const size_t align = (size_t)2 << 20;
	struct opened *o = opened;
	struct fake_ipc ipc;
	void *taken = NULL;
	uintptr_t at;
	int fd, e;

	memcpy(&ipc, handle, sizeof(ipc));
	while (o->at && o < opened + MAX_OPENED - 1)
		o++;
	fd = o->at ? -1 : open(ipc.path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return fake_failed(-EIO, "opening a handle");
	e = reserve(ipc.bytes + align, &taken);
	at = ((uintptr_t)taken + align - 1) / align * align;
	e = e < 0 ? e : map((void *)at, ipc.bytes, fd, true);
	close(fd);
	if (e < 0)
		return e;
	*o = (struct opened){(void *)at, ipc.bytes};
	*ret = o->at;
	return 0;
}

/* The addresses stay reserved: a later read faults. */
static int close_ipc(void *at)
{
	for (struct opened *o = opened; o < opened + MAX_OPENED; o++)
		if (o->at == at) {
			o->at = NULL;
			return unmap(at, o->bytes);
		}
	return fake_failed(-EINVAL, "closing what is not open");
}

static int copy(void *dst, const void *src, size_t bytes, void *stream)
{
	int e = fake_wait(stream);

	if (e == 0)
		memcpy(dst, src, bytes);
	return e;
}

static int zero(void *p, size_t bytes, void *stream)
{
	struct op *o = fake_queue(stream, ZERO);

	o->out = p;
	o->bytes = bytes;
	return 0;
}

static int check(void)
{
	return entered ? 0 : fake_failed(-EIO, "no device was entered");
}

static int stage(const struct skv_stage *c, void *stream)
{
	fake_queue(stream, STAGE)->stage = *c;
	return 0;
}

static int publish(const struct skv_publish *one, uint32_t n, const int32_t *next, void *stream)
{
	struct op *o = fake_queue(stream, PUBLISH);

	o->in[0] = one;
	o->in[1] = next;
	o->n = n;
	return 0;
}

API const struct skv_backend *skv_cuda_backend(void);
API const struct skv_backend *skv_cuda_backend(void)
{
	static struct skv_backend backend = {
		.size = sizeof(backend),
		.abi = SKV_BACKEND_ABI,
		.name = "fake",
		.error = error,
		.count = count,
		.info = info,
		.enter = enter,
		.leave = leave,
		.alloc = alloc,
		.free = free_,
		.alloc_host = alloc,
		.free_host = free_,
		.register_host = register_host,
		.unregister_host = unregister_host,
		.reserve = reserve,
		.release = release,
		.map = map,
		.unmap = unmap,
		.open_ipc = open_ipc,
		.close_ipc = close_ipc,
		.copy = copy,
		.zero = zero,
		.wait = fake_wait,
		.check = check,
		.stage = stage,
		.publish = publish,
	};

	fake_streams(&backend);
	backend.kernels = fake_kernels(&host);
	return backend.kernels ? &backend : NULL;
}
