/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/pins.c - pins, in a short list: how many bytes the daemon holds now for each user. */
#include "daemon/core/memory/pins.h"

#include <errno.h>
#include <stdlib.h>
#include "daemon/core/memory/accounts.h"
#include "daemon/core/memory/charge.h"

struct skv_pin {
	struct skv_pin *next;
	uid_t uid;
	uint64_t bytes; /* bytes pinned for this user; never 0 */
};

/* Returns the link to the user's pin in the list; without a pin, the list's last link, which is NULL. */
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

/*
 * May `bytes` more be pinned for the user? Pins may exceed the user's quota only as long as all pins of the user
 * together are at most most_beyond bytes.
 */
static int allows(struct skv_core *c, uid_t uid, uint64_t bytes, uint64_t most_beyond)
{
	const uint32_t account = skv_account_get(c, uid);
	int r = skv_charge_allows(c, account, bytes);

	if (r == SKV_CORE_E_QUOTA && skv_pinned(c, uid) + bytes <= most_beyond)
		r = 0;
	if (r == 0)
		r = skv_room_allows(c, account, bytes);
	skv_account_put(c, account);
	return r;
}

static int pin(struct skv_core *c, uid_t uid, uint64_t bytes, uint64_t most_beyond, uint64_t *pinned)
{
	struct skv_pin **at = find(&c->pins, uid);
	int r = bytes ? allows(c, uid, bytes, most_beyond) : 0;

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

int skv_core_pin(struct skv_core *c, uid_t uid, uint64_t bytes, uint64_t *pinned)
{
	return pin(c, uid, bytes, 0, pinned);
}

int skv_core_pin_list(struct skv_core *c, uid_t uid, uint64_t bytes, uint64_t *pinned)
{
	return pin(c, uid, bytes, c->memory[SKV_DEVICE_HOST].limits.account_bytes / 16, pinned);
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
