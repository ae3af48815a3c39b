/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/fdstore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a change that is not committed yet. */
struct skv_fdstore_change {
	int fd; /* -1: removed */
	char name[SKV_FDSTORE_NAME];
};

void skv_fdstore_name(const struct skv_core *c, enum skv_table t, uint32_t row, char ret[SKV_FDSTORE_NAME])
{
	static const char *const of[SKV_TABLE_ROWS] = {
		[SKV_TABLE_CLIENTS] = "client", [SKV_TABLE_SESSIONS] = "session", [SKV_TABLE_SEQUENCES] = "seq", [SKV_TABLE_POOLS] = "pool"};

	snprintf(ret, SKV_FDSTORE_NAME, "%s-%x", of[t], skv_state_id(&c->state, t, row));
}

void skv_fdstore_segment_name(const struct skv_core *c, uint32_t pool, uint32_t segment, char ret[SKV_FDSTORE_NAME])
{
	/* serials are never used twice */
	snprintf(ret, SKV_FDSTORE_NAME, "segment-%llx", (unsigned long long)skv_segment_row(&c->state, pool, segment)->serial);
}

/* False: there is no memory for the entry. */
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
	snprintf(c->fd_changes[c->n_fd_changes++].name, SKV_FDSTORE_NAME, "%s", name);
	return true;
}

void skv_fdstore_add(struct skv_core *c, const char *name, int fd)
{
	if (c->fdstore.add && !remember(c, name, fd))
		c->fdstore.add(c->fdstore.ctx, name, fd); /* it may as well be stored now */
}

void skv_fdstore_remove(struct skv_core *c, const char *name)
{
	if (!c->fdstore.add)
		return;
	for (uint32_t i = 0; i < c->n_fd_changes; i++)
		if (c->fd_changes[i].fd >= 0 && strcmp(c->fd_changes[i].name, name) == 0) {
			c->fd_changes[i] = c->fd_changes[--c->n_fd_changes]; /* it came with the same change */
			return;
		}
	(void)remember(c, name, -1); /* without memory for it: what is stored in vain nobody claims */
}

void skv_fdstore_before_commit(struct skv_core *c)
{
	for (uint32_t i = 0; i < c->n_fd_changes; i++)
		if (c->fd_changes[i].fd >= 0)
			c->fdstore.add(c->fdstore.ctx, c->fd_changes[i].name, c->fd_changes[i].fd);
}

void skv_fdstore_after_commit(struct skv_core *c)
{
	for (uint32_t i = 0; i < c->n_fd_changes; i++)
		if (c->fd_changes[i].fd < 0)
			c->fdstore.remove(c->fdstore.ctx, c->fd_changes[i].name);
	c->n_fd_changes = 0;
}

void skv_core_set_fdstore(struct skv_core *c, const struct skv_core_fdstore *store)
{
	c->fdstore = *store;
	skv_fdstore_add(c, SKV_FDSTORE_STATE, c->state.fd);
}
