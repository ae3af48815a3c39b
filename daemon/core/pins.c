/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/pins.c - a list of the users for whom the daemon holds memory now: few at a time. */
#include "daemon/core/pins.h"

#include <errno.h>
#include <stdlib.h>
#include "daemon/core/accounts.h"
#include "daemon/core/charge.h"

struct skv_pin {
	struct skv_pin *next;
	uid_t uid;
	uint64_t bytes; /* not 0 */
};

/* Where the user's is, or where a new one goes: then it is NULL. */
static struct skv_pin **find(struct skv_pin **at, uid_t uid)
{
	while (*at && (*at)->uid != uid)
		at = &(*at)->next;
	return at;
}

uint64_t skv_pinned(const struct skv_core *c, uid_t uid)
{
	const struct skv_pin *p = c->pins;

	while (p && p->uid != uid)
		p = p->next;
	return p ? p->bytes : 0;
}

/* May the user have them? */
static int allows(struct skv_core *c, uid_t uid, uint64_t bytes)
{
	const uint32_t account = skv_account_get(c, uid);
	int r = skv_charge_allows(c, account, bytes);

	if (r == 0)
		r = skv_room_allows(c, account, bytes);
	skv_account_put(c, account);
	return r;
}

int skv_core_pin(struct skv_core *c, uid_t uid, uint64_t bytes, uint64_t *pinned)
{
	struct skv_pin **at = find(&c->pins, uid);
	int r = bytes ? allows(c, uid, bytes) : 0;

	if (r || !bytes)
		return r;
	if (!*at) {
		*at = calloc(1, sizeof(**at));
		if (!*at)
			return -ENOMEM;
		(*at)->uid = uid;
	}
	(*at)->bytes += bytes;
	*pinned += bytes;
	return 0;
}

void skv_core_unpin(struct skv_core *c, uid_t uid, uint64_t *pinned)
{
	struct skv_pin **at = c && *pinned ? find(&c->pins, uid) : NULL;

	if (at) {
		struct skv_pin *p = *at;

		p->bytes -= *pinned;
		if (!p->bytes) {
			*at = p->next;
			free(p);
		}
	}
	*pinned = 0;
}

void skv_pins_free_all(struct skv_core *c)
{
	while (c->pins) {
		struct skv_pin *p = c->pins;

		c->pins = p->next;
		free(p);
	}
}
