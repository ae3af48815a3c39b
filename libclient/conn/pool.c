/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/conn/pool.c - maps the segments of pools, and keeps the addresses of their pages.
 *
 * Pages keep their addresses for the life of the connection. A pool in host memory is one memfd, which is mapped whole.
 * On a device the addresses of a pool are reserved once, without access; an announced segment is mapped at its place,
 * and becomes inaccessible again when it is withdrawn. The daemon withdraws a segment only if no client holds a page of
 * it. The counters pool_segment.held verify this, because a kernel must never access an unmapped page.
 *
 * On a device every segment is mapped twice: writable, and again read-only, after all writable mappings. Kernels read
 * shared pages through the read-only mapping: a kernel that writes to a shared prefix by mistake faults, and no tokens
 * are lost. Segments are contiguous, and kernels number pages from the first byte of the pool's mapping. If a segment's
 * size is not a multiple of the page's, a page that would span two segments is not used: a segment's first page is the
 * first one that begins in it. With CUDA's older (IPC) handles the driver chooses the addresses, and there is only one
 * mapping; kernels then number pages from an address far below the mapping, which needs pages of 2^n bytes.
 * pool_kernel_page() handles all these cases.
 *
 * The functions run with client->lock held. Faults that break the connection are returned to conn.c, which breaks the
 * connection and sends the acknowledgements.
 */
#include "libclient/conn/pool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/fd.h"

/* Maximum distance in bytes between the first and the last address of a pool on a device. */
#define DEVICE_SPAN (2 * SKV_DEVICE_POOL_MAX)
#define MOST_PAGE_BYTES (1u << 24) /* maximum bytes of a page: fp32, 256 kv heads, head_dim 256 */

static void fault_set(struct pool_fault *fault, int error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fault_set(struct pool_fault *fault, int error, const char *fmt, ...)
{
	va_list ap;

	fault->error = error;
	va_start(ap, fmt);
	vsnprintf(fault->text, sizeof(fault->text), fmt, ap);
	va_end(ap);
}

/* A segment that the daemon announced before it described the segment's pool in a reply. */
struct early_segment {
	struct early_segment *next;
	struct skv_msg_segment_ipc m;
	int fd;
};

static struct pool *pools_find(struct pools *pools, uint32_t id)
{
	struct pool *p = pools->first;

	while (p && p->id != id)
		p = p->next;
	return p;
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Bytes of address space that a pool takes: on a device, those of both mappings. */
static size_t addresses(const struct pool *p)
{
	return p->max_segments * p->segment_bytes + p->again;
}

/*
 * Offset of the read-only mapping of a device's pool: a multiple of both the page size and the segments' granule, so
 * that pages begin at the same offsets in both mappings.
 */
static uint64_t second_mapping(const struct skv_msg_open_ok *ok)
{
	const uint64_t granules = ok->segment_bytes & -ok->segment_bytes, bytes = ok->segment_bytes * ok->max_segments;
	uint64_t unit = ok->page_bytes;

	while (unit % granules)
		unit *= 2;
	return (bytes + unit - 1) / unit * unit;
}

static uint8_t *segment_at(const struct pool *p, uint32_t segment)
{
	return p->base + segment * p->segment_bytes;
}

/* Map the pool's whole host memory. Returns 0, or a negative errno with the reason in `why`. */
static int map_host(struct pool *p, int fd, const char **why)
{
	void *at;
	int e = skv_map_fd(fd, addresses(p), PROT_READ | PROT_WRITE, true, &at);

	*why = strerror(-e);
	if (e < 0)
		return e == -EBADMSG ? -EPROTO : e;
	/* a child of the engine must not share pages that are being written, and does not need them */
	madvise(at, addresses(p), MADV_DONTFORK);
	madvise(at, addresses(p), MADV_DONTDUMP);
	p->base = at;
	p->reserved = true;
	return 0;
}

static int map_cuda(struct pool *p, uint32_t segment, int fd)
{
	uint8_t *at = segment_at(p, segment), *again = at + p->again;
	uint64_t first = (segment * p->segment_bytes + p->page_bytes - 1) / p->page_bytes;
	int e = p->backend->map(at, p->segment_bytes, fd, true);

	if (e < 0)
		return e;
	e = p->backend->map(again, p->segment_bytes, fd, false);
	if (e < 0) {
		p->backend->unmap(at, p->segment_bytes);
		return e;
	}
	p->segments[segment].own = (uint32_t)first;
	p->segments[segment].shared = (uint32_t)(first + p->again / p->page_bytes);
	return 0;
}

static int map_ipc(struct pool *p, uint32_t segment, const uint8_t *handle, const char **why)
{
	intptr_t away;
	void *at;
	int e = p->backend->open_ipc(handle, &at);

	if (e < 0)
		return e;
	if (p->reserved) {
		p->backend->release(p->base, addresses(p));
		p->reserved = false;
		/* segments that are mapped later may get lower or higher addresses */
		p->base = (uint8_t *)((uintptr_t)at - DEVICE_SPAN / 2 / p->page_bytes * p->page_bytes);
	}
	away = (intptr_t)((uintptr_t)at - (uintptr_t)p->base);
	if (away < 0 || (uintptr_t)away % p->page_bytes != 0 || (uintptr_t)away + p->segment_bytes > DEVICE_SPAN ||
	    (uintptr_t)away / p->page_bytes + p->pages_per_segment > SKV_PTE_ID_MASK) {
		*why = "with ipc = legacy the driver chooses addresses, and this one is no whole number of pages from "
		       "the first, or further away than 256 GiB: expected pages whose bytes are a power of two, or "
		       "ipc = vmm";
		p->backend->close_ipc(at);
		return -EOPNOTSUPP;
	}
	p->segments[segment].own = p->segments[segment].shared = (uint32_t)((uintptr_t)away / p->page_bytes);
	p->segments[segment].ipc = at;
	return 0;
}

/* Map a segment by either kind of handle (CUDA fd or IPC); makes the pool's device current meanwhile. */
static int map_device(struct pool *p, const struct skv_msg_segment_ipc *m, int fd, const char **why)
{
	void *was;
	int e = p->backend->enter(p->device, &was);

	*why = p->backend->error();
	if (e < 0)
		return e;
	if (m->segment.handle == SKV_HANDLE_CUDA_FD)
		e = map_cuda(p, m->segment.segment, fd);
	else
		e = map_ipc(p, m->segment.segment, m->ipc_handle, why);
	p->backend->leave(was);
	return e;
}

/* Unmap a segment of a device. */
static int unmap_segment(struct pool *p, uint32_t segment)
{
	uint8_t *at = segment_at(p, segment);
	void *was;
	int e, e2;

	e = p->backend->enter(p->device, &was);
	if (e < 0)
		return e;
	if (p->segments[segment].ipc) {
		e = p->backend->close_ipc(p->segments[segment].ipc);
		p->segments[segment].ipc = NULL;
	} else {
		e = p->backend->unmap(at, p->segment_bytes);
		e2 = p->backend->unmap(at + p->again, p->segment_bytes);
		e = e < 0 ? e : e2;
	}
	p->backend->leave(was);
	return e;
}

/*
 * Does the pool, on a device, accept this kind of handle? The kind of the first mapped segment is that of all others.
 */
static bool handle_fits(const struct pool *p, uint32_t handle)
{
	bool any = false;

	for (uint32_t i = 0; i < p->announced && !any; i++)
		any = p->segments[i].mapped;
	if (handle == SKV_HANDLE_CUDA_FD)
		return p->reserved;
	return handle == SKV_HANDLE_CUDA_IPC && !(any && p->reserved);
}

/* Map an announced segment of a known pool. fd is borrowed. */
static void map_segment(struct pool *p, const struct skv_msg_segment_ipc *ipc, int fd, struct pool_fault *fault)
{
	const struct skv_msg_segment *m = &ipc->segment;
	const uint64_t bytes = p->backend ? p->segment_bytes : addresses(p);
	const char *why = "";
	int e;

	if (m->segment >= p->announced || m->bytes != bytes) {
		fault_set(fault, -EPROTO,
			"segment %u of %llu bytes does not fit pool %u: expected below %u, %llu bytes",
			m->segment, (unsigned long long)m->bytes, p->id, p->announced,
			(unsigned long long)bytes);
		return;
	}
	if (p->segments[m->segment].mapped) {
		if (!p->segments[m->segment].uncertain)
			fault_set(fault, -EPROTO, "segment %u of pool %u was announced twice", m->segment, p->id);
		p->segments[m->segment].uncertain = false;
		return;
	}
	if (p->backend ? !handle_fits(p, m->handle) : m->handle != SKV_HANDLE_MEMFD) {
		fault_set(fault, -EPROTO, "segment %u of pool %u has handle kind %u, expected %s", m->segment,
		                  m->pool, m->handle, p->backend ? "one of a device" : "a memfd");
		return;
	}
	e = p->backend ? map_device(p, ipc, fd, &why) : map_host(p, fd, &why);
	if (e < 0) {
		fault_set(fault, e, "cannot map segment %u of pool %u: %s", m->segment, p->id, why);
		return;
	}
	p->segments[m->segment].mapped = true;
	p->segments[m->segment].uncertain = false;
}

void pool_segment_add(struct pools *pools, const struct skv_msg_segment_ipc *m, int fd, struct pool_fault *fault)
{
	struct pool *p = pools_find(pools, m->segment.pool);
	struct early_segment *e;

	if (p) {
		map_segment(p, m, fd, fault);
		skv_close_fd(fd);
		return;
	}
	for (e = pools->early; e; e = e->next)
		if (e->m.segment.pool == m->segment.pool && e->m.segment.segment == m->segment.segment) {
			/* from a session that could not be opened here: it was closed, and another session opened */
			skv_close_fd(e->fd);
			e->m = *m;
			e->fd = fd;
			return;
		}
	e = malloc(sizeof(*e));
	if (!e) {
		skv_close_fd(fd);
		fault_set(fault, -ENOMEM, "out of memory for a segment of pool %u", m->segment.pool);
		return;
	}
	*e = (struct early_segment){.next = pools->early, .m = *m, .fd = fd};
	pools->early = e;
}

void pool_segment_gone(struct pools *pools, const struct skv_msg_segment *m, struct pool_fault *fault)
{
	struct pool *p = pools_find(pools, m->pool);
	int r;

	for (struct early_segment **e = &pools->early; *e; e = &(*e)->next)
		if ((*e)->m.segment.pool == m->pool && (*e)->m.segment.segment == m->segment) {
			struct early_segment *gone = *e;

			*e = gone->next;
			skv_close_fd(gone->fd);
			free(gone);
			return;
		}
	if (p && !p->backend) {
		fault_set(fault, -EPROTO, "the daemon withdraws host memory, of pool %u, as if it were a device's", m->pool);
		return;
	}
	if (p && m->segment < p->announced && p->segments[m->segment].uncertain && !p->segments[m->segment].mapped) {
		/* the withdrawal was reported to the previous daemon, not to this one */
		p->segments[m->segment].uncertain = false;
		return;
	}
	if (!p || m->segment >= p->announced || !p->segments[m->segment].mapped) {
		fault_set(fault, -EPROTO,
		                  "the daemon withdraws segment %u of pool %u, which it never announced",
		                  m->segment, m->pool);
		return;
	}
	if (p->segments[m->segment].held > 0) {
		fault_set(fault, -EPROTO,
		                  "the daemon withdraws segment %u of pool %u, of which %llu pages are in use",
		                  m->segment, m->pool, (unsigned long long)p->segments[m->segment].held);
		return;
	}
	r = unmap_segment(p, m->segment);
	if (r < 0) {
		fault_set(fault, r, "cannot unmap segment %u of pool %u: %s", m->segment, m->pool,
		                  p->backend->error());
		return;
	}
	p->segments[m->segment].mapped = p->segments[m->segment].uncertain = false;
}

/* ---- pools ----------------------------------------------------------------------------------- */

/*
 * Do the pages fill the segment? On a device, where pages may be numbered across segments, a segment may also have one
 * page less than fits into it.
 */
static bool is_filled(const struct skv_msg_open_ok *ok, uint32_t device)
{
	const uint64_t fit = ok->segment_bytes / ok->page_bytes;

	if (ok->segment_bytes % ok->page_bytes == 0)
		return fit == ok->pages_per_segment;
	return device != SKV_DEVICE_HOST && fit == ok->pages_per_segment + 1ull;
}

/* Why the library cannot use a pool of this shape, or NULL if it can. */
static const char *shape_wrong(const struct skv_msg_open_ok *ok, uint32_t device)
{
	uint64_t pages;

	if (ok->page_bytes == 0 || ok->pages_per_segment == 0 || ok->max_segments == 0)
		return "a size of zero";
	if (!is_filled(ok, device))
		return "segments that are not exactly filled by their pages";
	if (ok->segment_bytes > (uint64_t)INT64_MAX / ok->max_segments)
		return "more bytes than there are addresses";
	if (device != SKV_DEVICE_HOST && (ok->segment_bytes * ok->max_segments > SKV_DEVICE_POOL_MAX || ok->page_bytes > MOST_PAGE_BYTES))
		return "more bytes than kernels of a device can address";
	pages = device == SKV_DEVICE_HOST ? (uint64_t)ok->pages_per_segment * ok->max_segments
	                                  : (second_mapping(ok) + ok->segment_bytes * ok->max_segments) / ok->page_bytes;
	return pages > SKV_PTE_ID_MASK + 1u ? "more pages than a page table entry can name" : NULL;
}

static void map_early(struct pools *pools, struct pool *p, struct pool_fault *fault)
{
	for (struct early_segment **e = &pools->early; *e;) {
		struct early_segment *s = *e;

		if (s->m.segment.pool != p->id) {
			e = &s->next;
			continue;
		}
		*e = s->next;
		map_segment(p, &s->m, s->fd, fault);
		skv_close_fd(s->fd);
		free(s);
	}
}

static struct pool *pool_free(struct pool *p)
{
	void *was;

	for (uint32_t i = 0; p->backend && p->segments && i < p->announced; i++)
		if (p->segments[i].mapped)
			unmap_segment(p, i);
	if (p->reserved && !p->backend) {
		munmap(p->base, addresses(p));
	} else if (p->reserved && p->backend->enter(p->device, &was) == 0) {
		p->backend->release(p->base, addresses(p));
		p->backend->leave(was);
	}
	free(p->on_lease);
	free(p->segments);
	free(p);
	return NULL;
}

/* Reserve the pool's address space on its device. */
static bool reserve(struct pool *p)
{
	void *base = NULL, *was;
	int e;

	e = p->backend->enter(p->device, &was);
	if (e < 0)
		return false;
	if (p->backend->reserve(addresses(p), &base) == 0)
		p->base = base;
	p->backend->leave(was);
	return p->base;
}

/* Allocate a pool; NULL: out of memory or of addresses. */
static struct pool *pool_new(const struct skv_msg_open_ok *ok, uint32_t device)
{
	struct pool *p = calloc(1, sizeof(*p));
	char why[SKV_TEXT_MAX];

	if (!p)
		return NULL;
	*p = (struct pool){
	        .id = ok->pool,
	        .pages_per_segment = ok->pages_per_segment,
	        .max_segments = ok->max_segments,
	        .page_bytes = ok->page_bytes,
	        .segment_bytes = ok->segment_bytes,
	        .again = device != SKV_DEVICE_HOST ? second_mapping(ok) : 0,
	        .announced = device != SKV_DEVICE_HOST ? ok->max_segments : 1,
	};
	p->segments = calloc(p->announced, sizeof(*p->segments));
	p->on_lease = calloc(((uint64_t)p->max_segments * p->pages_per_segment + 63) / 64, sizeof(*p->on_lease));
	if (!p->segments || !p->on_lease)
		return pool_free(p);
	if (device == SKV_DEVICE_HOST)
		return p;
	p->device = device - SKV_DEVICE_CUDA(0);
	p->backend = skv_backend_cuda(why, sizeof(why));
	p->reserved = p->backend && reserve(p);
	return p->reserved ? p : pool_free(p);
}

int pool_open(struct pools *pools, const struct skv_msg_open_ok *ok, uint32_t device, struct pool **ret,
              struct pool_fault *fault)
{
	struct pool *p = pools_find(pools, ok->pool);
	const char *wrong = shape_wrong(ok, device);

	if (wrong) {
		fault_set(fault, -EPROTO, "the daemon describes pool %u with %s", ok->pool, wrong);
		return fault->error;
	}
	if (p && (p->page_bytes != ok->page_bytes || p->segment_bytes != ok->segment_bytes ||
	          p->pages_per_segment != ok->pages_per_segment || p->max_segments != ok->max_segments)) {
		fault_set(fault, -EPROTO, "the daemon describes pool %u in two ways", ok->pool);
		return fault->error;
	}
	if (!p) {
		p = pool_new(ok, device);
		if (!p) {
			fault_set(fault, -ENOMEM, "cannot reserve %llu bytes of addresses for pool %u",
			          (unsigned long long)(ok->max_segments * ok->segment_bytes), ok->pool);
			return fault->error;
		}
		p->next = pools->first;
		pools->first = p;
	}
	p->sessions++;
	map_early(pools, p, fault);
	*ret = p;
	return 0;
}

void pool_close(struct pools *pools, struct pool *p)
{
	struct pool **at = &pools->first;

	if (!p || --p->sessions > 0)
		return;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	pool_free(p);
}

/* The segment that contains the page, or NULL. */
static struct pool_segment *segment_of(const struct pool *p, uint32_t page)
{
	uint32_t segment = page / p->pages_per_segment;

	return segment >= p->max_segments ? NULL : &p->segments[p->backend ? segment : 0];
}

bool pool_has(const struct pool *p, uint32_t page)
{
	const struct pool_segment *s = segment_of(p, page);

	return s && s->mapped;
}

bool pool_hold(struct pool *p, uint32_t page)
{
	if (!pool_has(p, page))
		return false;
	segment_of(p, page)->held++;
	return true;
}

uint32_t pool_kernel_page(const struct pool *p, uint32_t page, bool shared)
{
	const struct pool_segment *s = segment_of(p, page);

	if (!p->backend)
		return page;
	return (shared ? s->shared : s->own) + page % p->pages_per_segment;
}

void pool_unhold(struct pool *p, uint32_t page)
{
	segment_of(p, page)->held--;
}

/* ---- on lease -------------------------------------------------------------------------------- */

static uint64_t pages_of(const struct pool *p)
{
	return (uint64_t)p->max_segments * p->pages_per_segment;
}

void pool_lease(struct pool *p, uint32_t first, uint64_t n)
{
	for (uint64_t page = first; page < first + n && page < pages_of(p); page++) {
		p->on_lease[page / 64] |= UINT64_C(1) << page % 64;
		if (page / 64 >= p->on_lease_words)
			p->on_lease_words = page / 64 + 1;
	}
}

void pool_unlease(struct pool *p, uint32_t page)
{
	if (page < pages_of(p))
		p->on_lease[page / 64] &= ~(UINT64_C(1) << page % 64);
}

static bool is_on_lease(const struct pool *p, uint64_t page)
{
	return p->on_lease[page / 64] >> page % 64 & 1;
}

bool pool_next_lease(const struct pool *p, uint64_t *page, uint32_t most, struct skv_wire_run *ret)
{
	const uint64_t end = p->on_lease_words * 64;
	uint64_t at = *page;

	while (at < end && !is_on_lease(p, at))
		at += p->on_lease[at / 64] >> at % 64 ? 1 : 64 - at % 64;
	*ret = (struct skv_wire_run){.first = (uint32_t)at};
	for (; at < end && ret->count < most && is_on_lease(p, at); at++)
		ret->count++;
	*page = at;
	return ret->count > 0;
}

/* ---- the end --------------------------------------------------------------------------------- */

void pools_forget_early(struct pools *pools)
{
	while (pools->early) {
		struct early_segment *e = pools->early;

		pools->early = e->next;
		skv_close_fd(e->fd);
		free(e);
	}
}

void pools_uncertain(struct pools *pools)
{
	pools_forget_early(pools);
	for (struct pool *p = pools->first; p; p = p->next)
		for (uint32_t i = 0; i < p->announced; i++)
			p->segments[i].uncertain = true;
}

void pools_free(struct pools *pools)
{
	pools_forget_early(pools);
	while (pools->first) {
		struct pool *p = pools->first;

		pools->first = p->next;
		pool_free(p);
	}
}
