/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/queue.c - see queue.h.
 *
 * The queue is a list of users in the order of their turns. A user is represented in the list by its first entry, which
 * links to the user's other entries.
 */
#include "common/queue.h"

/* Returns the pointer that points to the user's first entry, or the end of the list if the user has no entry. */
static struct skv_queued **user_of(struct skv_queue *q, uint32_t user)
{
	struct skv_queued **at = &q->first;

	while (*at && (*at)->user != user)
		at = &(*at)->next_user;
	return at;
}

static struct skv_queued **end_of(struct skv_queue *q)
{
	struct skv_queued **at = &q->first;

	while (*at)
		at = &(*at)->next_user;
	return at;
}

void skv_queue_put(struct skv_queue *q, struct skv_queued *e, uint32_t user)
{
	struct skv_queued **at = user_of(q, user), *first = *at;

	*e = (struct skv_queued){.user = user, .in = q, .last = e};
	if (first) {
		first->last->next = e;
		first->last = e;
	} else {
		*at = e;
	}
}

void skv_queue_put_first(struct skv_queue *q, struct skv_queued *e, uint32_t user)
{
	struct skv_queued **at = user_of(q, user), *first = *at;

	if (first)
		*at = first->next_user;
	*e = (struct skv_queued){.user = user, .in = q, .next = first, .next_user = q->first, .last = first ? first->last : e};
	q->first = e;
}

struct skv_queued *skv_queue_take(struct skv_queue *q)
{
	struct skv_queued *e = q->first;

	if (!e)
		return NULL;
	q->first = e->next_user;
	if (e->next) {
		e->next->last = e->last;
		e->next->next_user = NULL;
		*end_of(q) = e->next;
	}
	e->in = NULL;
	return e;
}

void skv_queue_remove(struct skv_queued *e)
{
	struct skv_queued **at = e->in ? user_of(e->in, e->user) : NULL, *before;

	if (!at)
		return;
	e->in = NULL;
	if (*at != e) {
		for (before = *at; before->next != e; before = before->next)
			;
		before->next = e->next;
		if ((*at)->last == e)
			(*at)->last = before;
	} else if (e->next) {
		e->next->last = e->last;
		e->next->next_user = e->next_user;
		*at = e->next;
	} else {
		*at = e->next_user;
	}
}

void skv_queue_move(struct skv_queue *q, struct skv_queue *from)
{
	struct skv_queued *e;

	while ((e = skv_queue_take(from)))
		skv_queue_put(q, e, e->user);
}
