/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/state/fdstore.h"
#include "daemon/core/state/refuse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A descriptor added to or removed from the store by the current change, or earlier if the store could not be told. */
struct skv_fdstore_change {
	int fd; /* the added descriptor; -1: the name is removed */
	bool told; /* the store has been told */
	char name[SKV_FDSTORE_NAME];
};

/* Makes a name of a letter and four base-64 digits: short, because all names go into one environment variable. */
static void name_of(char letter, uint64_t number, char ret[SKV_FDSTORE_NAME])
{
	static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-";

	ret[0] = letter;
	for (int i = 4; i > 0; i--, number /= 64)
		ret[i] = digits[number % 64];
	ret[5] = 0;
}

/*
 * The four digits have room for the row (16 bits of the id) and 8 bits of its generation. Within one change no row is
 * given back and taken again so often that a name repeats.
 */
void skv_fdstore_name(const struct skv_state *s, enum skv_table t, uint32_t row, char ret[SKV_FDSTORE_NAME])
{
	static const char of[SKV_TABLE_ROWS] = {[SKV_TABLE_CLIENTS] = 'c',
	                                        [SKV_TABLE_SESSIONS] = 'o',
	                                        [SKV_TABLE_SEQUENCES] = 's',
	                                        [SKV_TABLE_POOLS] = 'p'};

	name_of(of[t], skv_state_id(s, t, row), ret);
}

void skv_fdstore_segment_name(const struct skv_state *s, uint32_t pool, uint32_t segment, char ret[SKV_FDSTORE_NAME])
{
	/* serials are never reused, and no pool has 2^24 segments */
	name_of('g', skv_segment_row(s, pool, segment)->serial, ret);
}

struct skv_file_id skv_fdstore_file(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? (struct skv_file_id){.dev = st.st_dev, .ino = st.st_ino} : (struct skv_file_id){0};
}

bool skv_fdstore_is_file(int fd, const struct skv_file_id *file)
{
	const struct skv_file_id is = skv_fdstore_file(fd);

	return is.dev == file->dev && is.ino == file->ino;
}

/* Number of descriptors that the state refers to, that of the state memfd included. */
static size_t descriptors(const struct skv_core *c)
{
	const uint32_t *live = c->state.header->live;
	size_t n = (size_t)live[SKV_TABLE_CLIENTS] + live[SKV_TABLE_SESSIONS] + live[SKV_TABLE_SEQUENCES] +
	           live[SKV_TABLE_POOLS];

	SKV_EACH(i, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, i);

		n += p->device == SKV_DEVICE_HOST ? 0 : p->segments + p->pending;
	}
	return 1 + n;
}

int skv_fdstore_allows(struct skv_core *c)
{
	const size_t n = c->fdstore.add ? descriptors(c) : 0;

	if (n <= SKV_MAX_STORED)
		return 0;
	return skv_core_refuse(c, SKV_CORE_E_NOSPC,
	                       "the service manager keeps %zu descriptors for the daemon, and can pass no more to the "
	                       "next one",
	                       n);
}

/* Remembers an added descriptor, or a removed one (fd -1), until the commit. False: out of memory. */
static bool remember(struct skv_core *c, const char *name, int fd)
{
	if (c->n_fd_changes == c->cap_fd_changes) {
		uint32_t cap = 2 * c->cap_fd_changes + 16;
		struct skv_fdstore_change *more = realloc(c->fd_changes, cap * sizeof(*more));

		if (!more)
			return false;
		c->fd_changes = more;
		c->cap_fd_changes = cap;
	}
	c->fd_changes[c->n_fd_changes].fd = fd;
	c->fd_changes[c->n_fd_changes].told = false;
	snprintf(c->fd_changes[c->n_fd_changes++].name, SKV_FDSTORE_NAME, "%s", name);
	return true;
}

void skv_fdstore_add(struct skv_core *c, const char *name, int fd)
{
	if (c->fdstore.add && !remember(c, name, fd))
		(void)c->fdstore.add(c->fdstore.ctx, name, fd); /* no memory to remember it: stores it at once */
}

void skv_fdstore_remove(struct skv_core *c, const char *name)
{
	if (!c->fdstore.add)
		return;
	for (uint32_t i = 0; i < c->n_fd_changes; i++)
		if (c->fd_changes[i].fd >= 0 && strcmp(c->fd_changes[i].name, name) == 0) {
			c->fd_changes[i] = c->fd_changes[--c->n_fd_changes]; /* added by this change: the two cancel */
			return;
		}
	(void)remember(c, name, -1); /* without memory for this, the store keeps a descriptor that is never claimed */
}

void skv_fdstore_before_commit(struct skv_core *c)
{
	for (uint32_t i = 0; i < c->n_fd_changes; i++) {
		struct skv_fdstore_change *f = &c->fd_changes[i];

		if (f->fd >= 0)
			f->told = c->fdstore.add(c->fdstore.ctx, f->name, f->fd) || f->name[0] == 'c';
	}
}

void skv_fdstore_after_commit(struct skv_core *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_fd_changes; i++) {
		struct skv_fdstore_change *f = &c->fd_changes[i];

		if (f->fd < 0)
			f->told = c->fdstore.remove(c->fdstore.ctx, f->name);
		if (!f->told)
			c->fd_changes[n++] = *f;
	}
	c->n_fd_changes = n;
}

void skv_core_set_fdstore(struct skv_core *c, const struct skv_core_fdstore *store)
{
	c->fdstore = *store;
	skv_fdstore_add(c, SKV_FDSTORE_STATE, c->state.fd);
}
