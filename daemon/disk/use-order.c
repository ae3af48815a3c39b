/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/use-order.h"

#include <stdlib.h>

#include "daemon/disk/files.h"

bool skv_use_order_reserve(struct skv_use_order *o, size_t n)
{
	const size_t cap = n + n / 2 + 8;
	struct skv_parked **more;

	if (n <= o->cap)
		return true;
	more = realloc(o->entry, cap * sizeof(struct skv_parked *));
	if (!more)
		return false;
	o->entry = more;
	o->cap = cap;
	return true;
}

static void set(struct skv_use_order *o, size_t at, struct skv_parked *p)
{
	o->entry[at] = p;
	p->heap_at = at + 1;
}

/* Moves the entry towards the front until it is not older than its parent, then back until no child is older. */
static void settle(struct skv_use_order *o, size_t at, struct skv_parked *p)
{
	for (; at > 0 && p->used_ns < o->entry[(at - 1) / 2]->used_ns; at = (at - 1) / 2)
		set(o, at, o->entry[(at - 1) / 2]);
	for (size_t child; (child = 2 * at + 1) < o->n; at = child) {
		if (child + 1 < o->n && o->entry[child + 1]->used_ns < o->entry[child]->used_ns)
			child++;
		if (o->entry[child]->used_ns >= p->used_ns)
			break;
		set(o, at, o->entry[child]);
	}
	set(o, at, p);
}

void skv_use_order_put(struct skv_use_order *o, struct skv_parked *p)
{
	settle(o, p->heap_at ? p->heap_at - 1 : o->n++, p);
}

void skv_use_order_take(struct skv_use_order *o, struct skv_parked *p)
{
	const size_t at = p->heap_at - 1;

	if (!p->heap_at)
		return;
	p->heap_at = 0;
	o->n--;
	if (at < o->n)
		settle(o, at, o->entry[o->n]);
}
