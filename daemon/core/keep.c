/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/keep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a change that is not committed yet. */
struct skv_keep_entry {
	int fd; /* -1: not to be kept any more */
	char name[SKV_KEEP_NAME];
};

void skv_keep_name(const struct skv_core *c, enum skv_table t, uint32_t row, char ret[SKV_KEEP_NAME])
{
	static const char *const of[SKV_TABLE_ROWS] = {
		[SKV_TABLE_CLIENTS] = "client", [SKV_TABLE_SESSIONS] = "session", [SKV_TABLE_SEQUENCES] = "seq", [SKV_TABLE_POOLS] = "pool"};

	snprintf(ret, SKV_KEEP_NAME, "%s-%x", of[t], skv_state_id(&c->state, t, row));
}

void skv_keep_segment_name(const struct skv_core *c, uint32_t pool, uint32_t segment, char ret[SKV_KEEP_NAME])
{
	/* serials are never used twice */
	snprintf(ret, SKV_KEEP_NAME, "segment-%llx", (unsigned long long)skv_segment_row(&c->state, pool, segment)->serial);
}

/* False: there is no memory for the entry. */
static bool note(struct skv_core *c, const char *name, int fd)
{
	if (c->n_keeping == c->cap_keeping) {
		uint32_t cap = 2 * c->cap_keeping + 16;
		struct skv_keep_entry *more = realloc(c->keeping, cap * sizeof(*more));

		if (!more)
			return false;
		c->keeping = more;
		c->cap_keeping = cap;
	}
	c->keeping[c->n_keeping].fd = fd;
	snprintf(c->keeping[c->n_keeping++].name, SKV_KEEP_NAME, "%s", name);
	return true;
}

void skv_keep_add(struct skv_core *c, const char *name, int fd)
{
	if (c->keeper.add && !note(c, name, fd))
		c->keeper.add(c->keeper.ctx, name, fd); /* it may as well be kept now */
}

void skv_keep_remove(struct skv_core *c, const char *name)
{
	if (!c->keeper.add)
		return;
	for (uint32_t i = 0; i < c->n_keeping; i++)
		if (c->keeping[i].fd >= 0 && strcmp(c->keeping[i].name, name) == 0) {
			c->keeping[i] = c->keeping[--c->n_keeping]; /* it came with the same change */
			return;
		}
	(void)note(c, name, -1); /* what is kept in vain nobody claims */
}

void skv_keep_give(struct skv_core *c)
{
	for (uint32_t i = 0; i < c->n_keeping; i++)
		if (c->keeping[i].fd >= 0)
			c->keeper.add(c->keeper.ctx, c->keeping[i].name, c->keeping[i].fd);
}

void skv_keep_take_back(struct skv_core *c)
{
	for (uint32_t i = 0; i < c->n_keeping; i++)
		if (c->keeping[i].fd < 0)
			c->keeper.remove(c->keeper.ctx, c->keeping[i].name);
	c->n_keeping = 0;
}

void skv_core_set_keeper(struct skv_core *c, const struct skv_core_keeper *keeper)
{
	c->keeper = *keeper;
	skv_keep_add(c, SKV_KEEP_STATE, c->state.fd);
}
