/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/counts.c - a hash table of users' counts, by UID. */
#include "daemon/sys/counts.h"

#include <stdbool.h>
#include <stdlib.h>

#define LISTS 1024u

struct user {
	struct user *next;
	uid_t uid;
	bool kept;
	uint64_t n[SKV_COUNTS];
};

struct skv_counts {
	uint64_t total[SKV_COUNTS];
	struct user *users[LISTS];
};

static struct user *find(const struct skv_counts *c, uid_t uid)
{
	struct user *u = c->users[uid % LISTS];

	while (u && u->uid != uid)
		u = u->next;
	return u;
}

/* Finds or makes the counts of a user. Returns NULL for SKV_NO_UID, or if there is no memory. */
static struct user *get(struct skv_counts *c, uid_t uid)
{
	struct user *u = find(c, uid);

	if (u || uid == SKV_NO_UID)
		return u;
	u = calloc(1, sizeof(*u));
	if (!u)
		return NULL;
	u->uid = uid;
	u->kept = true;
	u->next = c->users[uid % LISTS];
	c->users[uid % LISTS] = u;
	return u;
}

struct skv_counts *skv_counts_new(void)
{
	return calloc(1, sizeof(struct skv_counts));
}

struct skv_counts *skv_counts_free(struct skv_counts *c)
{
	for (int i = 0; c && i < 2; i++) /* twice, since a sweep keeps users that are new */
		skv_counts_sweep(c);
	free(c);
	return NULL;
}

void skv_count(struct skv_counts *c, uid_t uid, enum skv_count what, uint64_t n)
{
	struct user *u = get(c, uid);

	c->total[what] += n;
	if (u)
		u->n[what] += n;
}

static void set_time(uint64_t *n, enum skv_count last, uint64_t ns)
{
	n[last] = ns;
	if (ns > n[last + 1])
		n[last + 1] = ns;
}

void skv_count_time(struct skv_counts *c, uid_t uid, enum skv_count last, uint64_t ns)
{
	struct user *u = get(c, uid);

	set_time(c->total, last, ns);
	if (u)
		set_time(u->n, last, ns);
}

const uint64_t *skv_counts_of(const struct skv_counts *c, uid_t uid)
{
	static const uint64_t none[SKV_COUNTS];
	const struct user *u = find(c, uid);

	return u ? u->n : none;
}

const uint64_t *skv_counts_total(const struct skv_counts *c)
{
	return c->total;
}

void skv_counts_keep(struct skv_counts *c, uid_t uid)
{
	struct user *u = find(c, uid);

	if (u)
		u->kept = true;
}

void skv_counts_sweep(struct skv_counts *c)
{
	for (uint32_t i = 0; i < LISTS; i++)
		for (struct user **at = &c->users[i], *u; (u = *at);) {
			if (!u->kept) {
				*at = u->next;
				free(u);
				continue;
			}
			u->kept = false;
			at = &u->next;
		}
}
