/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/queue.h - a queue shared by several users: users take turns, one entry each; entries of a user stay in order.
 *
 * So a user with a thousand entries gets no more turns than a user with one. Before each earlier entry of its own user,
 * an entry waits for at most one entry of every other user. Entries are embedded in their owners and nothing is
 * allocated, so putting an entry cannot fail.
 *
 * Not thread-safe. An entry is in at most one queue, and must not move in memory while it is queued.
 */
#ifndef SKV_QUEUE_H
#define SKV_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct skv_queue;
struct skv_queued {
	uint32_t user;
	/* private to the queue */
	struct skv_queue *in; /* NULL: not queued */
	struct skv_queued *next; /* next entry of the same user */
	/* only in a user's first entry: the next user, and the user's last entry */
	struct skv_queued *next_user, *last;
};

/* Zeroed: empty. */
struct skv_queue {
	struct skv_queued *first; /* of the user with the next turn */
};

/*
 * Appends an entry to those of its user. A new user gets the last turn. Takes time proportional to the number of users.
 */
void skv_queue_put(struct skv_queue *, struct skv_queued *, uint32_t user);
/* Puts an entry first: it had its turn, but could not use it. */
void skv_queue_put_first(struct skv_queue *, struct skv_queued *, uint32_t user);
/* Removes and returns the next entry; its user then has the last turn. NULL: the queue is empty. */
struct skv_queued *skv_queue_take(struct skv_queue *);
/* Removes an entry from its queue, if it is in one. */
void skv_queue_remove(struct skv_queued *);
/*
 * Moves all entries of `from`, in their order. For a round in which each entry has one turn: entries that wait again
 * are put into `from`.
 */
void skv_queue_move(struct skv_queue *, struct skv_queue *from);

/* Returns whether the user has an entry. */
bool skv_queue_has(const struct skv_queue *, uint32_t user);

/* The struct in which the entry is embedded. */
#define SKV_QUEUED_OWNER(entry, type, member) ((type *)(void *)((char *)(entry)-offsetof(type, member)))

/* Iterates over all entries, user by user. These are two nested loops: leave them with return. */
#define SKV_QUEUE_EACH(entry, queue) \
	for (struct skv_queued *entry##_first = (queue)->first; entry##_first; entry##_first = entry##_first->next_user) \
		for (struct skv_queued *entry = entry##_first; entry; entry = entry->next)

#endif
