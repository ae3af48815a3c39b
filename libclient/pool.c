/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/pool.c - where the pages of a pool are.
 *
 * A pool's addresses are reserved once, without access; announced segments are mapped in place, so a
 * page id times the page size is an address for the life of the connection. A withdrawn segment goes
 * back to no access. The daemon withdraws only segments of which nobody holds a page; the counts here
 * make sure of it, because a kernel must never meet an unmapped page.
 *
 * Everything here runs with client->lock held.
 */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/fd.h"

/* A segment that was announced before the reply that tells the pool's shape. */
struct early_segment {
	struct early_segment *next;
	struct skv_msg_segment m;
	int fd;
};

static struct pool *find(struct skv_client *c, uint32_t id)
{
	struct pool *p = c->pools;

	while (p && p->id != id)
		p = p->next;
	return p;
}

/* Map an announced segment of a known pool; fd is borrowed. */
static void map_segment(struct skv_client *c, struct pool *p, const struct skv_msg_segment *m, int fd)
{
	void *at, *to;
	int e;

	if (m->handle != SKV_HANDLE_MEMFD) {
		conn_break_locked(c, -EPROTO, "segment %u of pool %u has handle kind %u, expected a memfd",
		                  m->segment, m->pool, m->handle);
		return;
	}
	if (m->segment >= p->max_segments || m->bytes != p->segment_bytes) {
		conn_break_locked(
			c, -EPROTO,
			"segment %u of %llu bytes does not fit pool %u: expected below %u, %llu bytes",
			m->segment, (unsigned long long)m->bytes, p->id, p->max_segments,
			(unsigned long long)p->segment_bytes);
		return;
	}
	if (p->segments[m->segment].mapped) {
		conn_break_locked(c, -EPROTO, "segment %u of pool %u was announced twice", m->segment, p->id);
		return;
	}
	e = skv_map_fd(fd, p->segment_bytes, PROT_READ | PROT_WRITE, true, &at);
	if (e < 0) {
		conn_break_locked(c, e == -EBADMSG ? -EPROTO : e, "cannot map segment %u of pool %u: %s",
		                  m->segment, p->id, strerror(-e));
		return;
	}
	to = p->base + m->segment * p->segment_bytes;
	if (mremap(at, p->segment_bytes, p->segment_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
		e = -errno;
		munmap(at, p->segment_bytes);
		conn_break_locked(c, e, "cannot move segment %u of pool %u into place: %s", m->segment, p->id,
		                  strerror(-e));
		return;
	}
	/* an engine's child must not share what is being written; it has no use for it either */
	madvise(to, p->segment_bytes, MADV_DONTFORK);
	p->segments[m->segment].mapped = true;
}

void pool_segment_add(struct skv_client *c, const struct skv_msg_segment *m, int fd)
{
	struct pool *p = find(c, m->pool);
	struct early_segment *e;

	if (p) {
		map_segment(c, p, m, fd);
		skv_close_fd(fd);
		return;
	}
	e = malloc(sizeof(*e));
	if (!e) {
		skv_close_fd(fd);
		conn_break_locked(c, -ENOMEM, "out of memory for a segment of pool %u", m->pool);
		return;
	}
	*e = (struct early_segment){.next = c->early, .m = *m, .fd = fd};
	c->early = e;
}

void pool_segment_gone(struct skv_client *c, const struct skv_msg_segment *m)
{
	struct pool *p = find(c, m->pool);
	struct skv_msg_segment ack = *m;

	for (struct early_segment **e = &c->early; *e; e = &(*e)->next)
		if ((*e)->m.pool == m->pool && (*e)->m.segment == m->segment) {
			struct early_segment *gone = *e;

			*e = gone->next;
			skv_close_fd(gone->fd);
			free(gone);
			conn_post_locked(c, SKV_MSG_SEGMENT_ACK, &ack, sizeof(ack), NULL);
			return;
		}
	if (!p || m->segment >= p->max_segments || !p->segments[m->segment].mapped) {
		conn_break_locked(c, -EPROTO,
		                  "the daemon withdraws segment %u of pool %u, which it never announced",
		                  m->segment, m->pool);
		return;
	}
	if (p->segments[m->segment].held > 0) {
		conn_break_locked(c, -EPROTO,
		                  "the daemon withdraws segment %u of pool %u, of which %u pages are in use",
		                  m->segment, m->pool, p->segments[m->segment].held);
		return;
	}
	if (mmap(p->base + m->segment * p->segment_bytes, p->segment_bytes, PROT_NONE,
	         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
		conn_break_locked(c, -errno, "cannot unmap segment %u of pool %u: %s", m->segment, m->pool,
		                  strerror(errno));
		return;
	}
	p->segments[m->segment].mapped = false;
	conn_post_locked(c, SKV_MSG_SEGMENT_ACK, &ack, sizeof(ack), NULL);
}

/* Shapes that the rest of the library can trust. */
static const char *shape_wrong(const struct skv_msg_open_ok *ok)
{
	uint64_t pages;

	if (ok->page_bytes == 0 || ok->pages_per_segment == 0 || ok->max_segments == 0)
		return "a size of zero";
	if (ok->segment_bytes / ok->page_bytes != ok->pages_per_segment ||
	    ok->segment_bytes % ok->page_bytes != 0)
		return "segments that are not exactly filled by their pages";
	pages = (uint64_t)ok->pages_per_segment * ok->max_segments;
	if (pages > SKV_PTE_ID_MASK + 1u)
		return "more pages than a page table entry can name";
	if (ok->segment_bytes > (uint64_t)INT64_MAX / ok->max_segments)
		return "more bytes than there are addresses";
	return NULL;
}

/* What was announced of the pool before its shape was known. */
static void map_early(struct skv_client *c, struct pool *p)
{
	for (struct early_segment **e = &c->early; *e;) {
		struct early_segment *s = *e;

		if (s->m.pool != p->id) {
			e = &s->next;
			continue;
		}
		*e = s->next;
		map_segment(c, p, &s->m, s->fd);
		skv_close_fd(s->fd);
		free(s);
	}
}

static struct pool *pool_free(struct pool *p)
{
	if (p->base)
		munmap(p->base, p->max_segments * p->segment_bytes);
	free(p->segments);
	free(p);
	return NULL;
}

/* The fallible part of making a pool. */
static struct pool *pool_new(const struct skv_msg_open_ok *ok)
{
	struct pool *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	*p = (struct pool){
	        .id = ok->pool,
	        .pages_per_segment = ok->pages_per_segment,
	        .max_segments = ok->max_segments,
	        .page_bytes = ok->page_bytes,
	        .segment_bytes = ok->segment_bytes,
	        .segments = calloc(ok->max_segments, sizeof(*p->segments)),
	};
	p->base = mmap(NULL, p->max_segments * p->segment_bytes, PROT_NONE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p->base == MAP_FAILED)
		p->base = NULL;
	return p->segments && p->base ? p : pool_free(p);
}

int pool_open(struct skv_client *c, const struct skv_msg_open_ok *ok, struct pool **ret, char *err,
              size_t err_len)
{
	struct pool *p = find(c, ok->pool);
	const char *wrong = shape_wrong(ok);

	if (wrong) {
		snprintf(err, err_len, "the daemon describes pool %u with %s", ok->pool, wrong);
		return -EPROTO;
	}
	if (p && (p->page_bytes != ok->page_bytes || p->segment_bytes != ok->segment_bytes ||
	          p->pages_per_segment != ok->pages_per_segment || p->max_segments != ok->max_segments)) {
		snprintf(err, err_len, "the daemon describes pool %u in two ways", ok->pool);
		return -EPROTO;
	}
	if (!p) {
		p = pool_new(ok);
		if (!p) {
			snprintf(err, err_len, "cannot reserve %llu bytes of addresses for pool %u",
			         (unsigned long long)(ok->max_segments * ok->segment_bytes), ok->pool);
			return -ENOMEM;
		}
		p->next = c->pools;
		c->pools = p;
		map_early(c, p);
	}
	p->sessions++;
	*ret = p;
	return 0;
}

void pool_close(struct skv_client *c, struct pool *p)
{
	struct pool **at = &c->pools;

	if (!p || --p->sessions > 0)
		return;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	pool_free(p);
}

bool pool_has(const struct pool *p, uint32_t page)
{
	uint32_t segment = page / p->pages_per_segment;

	return segment < p->max_segments && p->segments[segment].mapped;
}

bool pool_hold(struct pool *p, uint32_t page)
{
	if (!pool_has(p, page))
		return false;
	p->segments[page / p->pages_per_segment].held++;
	return true;
}

void pool_unhold(struct pool *p, uint32_t page)
{
	p->segments[page / p->pages_per_segment].held--;
}

void pools_free(struct skv_client *c)
{
	while (c->early) {
		struct early_segment *e = c->early;

		c->early = e->next;
		skv_close_fd(e->fd);
		free(e);
	}
	while (c->pools) {
		struct pool *p = c->pools;

		c->pools = p->next;
		pool_free(p);
	}
}
