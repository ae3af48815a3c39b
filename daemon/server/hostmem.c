/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server/hostmem.c - frees ranges of host memory in the background.
 *
 * The kernel frees a memfd's pages one by one: 64 MiB take some milliseconds, during which the loop would serve no
 * request. So worker threads of the ring do that. Clients take longer to fill memory than the kernel takes to free it,
 * so little memory is ever waiting to be freed.
 */
#include "daemon/server/hostmem.h"

#include <errno.h>
#include <stdlib.h>
#include "daemon/core/memory/memory.h"

/* part of a cgroup's memory limit that is not given out, and covers growth of clients' memory until the next check */
#define RESERVED(limit) ((limit) / 4)
/* maximum of ranges that are freed as one hole; limits the work of the turn in which the core is told of them */
#define MERGED_MOST 1024u

struct discard {
	struct discard *next;
	struct skv_mem_range range;
};

/* The memfd of a pool with ranges that wait to be freed. One hole at a time is punched into the memfd. */
struct skv_hostfile {
	struct skv_op op; /* must be first */
	struct skv_hostfile *next;
	struct skv_hostmem *memory;
	int fd;
	bool closing; /* close `fd` when the last range has been freed */
	struct discard *first, **end;
	uint32_t punching; /* number of ranges, from the first one on, in the hole that is being punched */
};

static void forget(struct skv_hostfile *f)
{
	struct skv_hostfile **at = &f->memory->files;

	while (*at != f)
		at = &(*at)->next;
	*at = f->next;
	if (f->closing)
		skv_loop_close_fd(f->memory->loop, f->fd);
	free(f);
}

static void punched(struct skv_op *op, int res);

/* Punches the next hole into the memfd: as many ranges from the front of the queue as are adjacent in the file. */
static void punch(struct skv_hostfile *f)
{
	uint64_t at = f->first->range.offset, bytes = f->first->range.bytes;

	f->punching = 1;
	for (const struct discard *d = f->first->next; d && f->punching < MERGED_MOST; d = d->next) {
		if (d->range.offset + d->range.bytes == at)
			at = d->range.offset;
		else if (d->range.offset != at + bytes)
			break;
		bytes += d->range.bytes;
		f->punching++;
	}
	skv_op_punch(f->memory->loop, &f->op, f->fd, at, bytes, punched);
}

static void punched(struct skv_op *op, int res)
{
	struct skv_hostfile *f = (struct skv_hostfile *)op;

	for (; f->punching > 0; f->punching--) {
		struct discard *d = f->first;

		f->first = d->next;
		if (!f->first)
			f->end = &f->first;
		/* a loop that is being drained cancels the punch; the range counts as freed nevertheless */
		if (res == 0 || res == -ECANCELED || skv_mem_host.discard(&skv_mem_host, f->fd, &d->range))
			skv_core_segment_discarded(f->memory->core, &d->range);
		free(d);
	}
	if (f->first)
		punch(f);
	else
		forget(f);
}

static struct skv_hostfile *find(const struct skv_hostmem *h, int fd)
{
	struct skv_hostfile *f = h->files;

	while (f && f->fd != fd)
		f = f->next;
	return f;
}

static bool discard(const struct skv_mem_ops *ops, int fd, const struct skv_mem_range *range)
{
	struct skv_hostmem *h = (struct skv_hostmem *)ops;
	struct skv_hostfile *f = find(h, fd);
	struct discard *d = h->loop ? calloc(1, sizeof(*d)) : NULL;
	bool idle = !f;

	if (d && !f) {
		f = calloc(1, sizeof(*f));
		if (f) {
			f->memory = h;
			f->fd = fd;
			f->end = &f->first;
			f->next = h->files;
			h->files = f;
		}
	}
	if (!d || !f) {
		free(d);
		return skv_mem_host.discard(&skv_mem_host, fd, range);
	}
	d->range = *range;
	*f->end = d;
	f->end = &d->next;
	if (idle)
		punch(f);
	return false;
}

static void close_memfd(const struct skv_mem_ops *ops, int fd)
{
	const struct skv_hostmem *h = (const struct skv_hostmem *)ops;
	struct skv_hostfile *f = find(h, fd);

	if (f)
		f->closing = true;
	else if (h->loop)
		skv_loop_close_fd(h->loop, fd);
	else
		skv_mem_host.close(&skv_mem_host, fd);
}

static uint64_t left(const struct skv_mem_ops *ops)
{
	uint64_t limit, bytes = skv_cgroup_left(&((struct skv_hostmem *)ops)->cgroup, &limit);

	return bytes == UINT64_MAX ? bytes : bytes > RESERVED(limit) ? bytes - RESERVED(limit) : 0;
}

void skv_hostmem_init(struct skv_hostmem *h, struct skv_loop *loop)
{
	h->ops = skv_mem_host;
	h->ops.discard = discard;
	h->ops.close = close_memfd;
	h->ops.left = left;
	h->loop = loop;
	skv_cgroup_open(&h->cgroup);
}

void skv_hostmem_deinit(struct skv_hostmem *h)
{
	skv_cgroup_close(&h->cgroup);
}
