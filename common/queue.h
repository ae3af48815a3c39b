/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/queue.h - a queue shared by several users: users take turns, one entry each; entries of a user stay in order.
 *
 * So a user with a thousand entries gets no more turns than a user with one entry. Every time an entry's user has a
 * turn, every other user has had at most one turn since the previous one. An entry is a struct embedded in the object
 * that is queued. The queue allocates nothing, so putting an entry into a queue cannot fail.
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
	/* set only in a user's first entry: first entry of the next user; last entry of this user */
	struct skv_queued *next_user, *last;
};

/* A zeroed struct is an empty queue. */
struct skv_queue {
	struct skv_queued *first; /* first entry of the user that has the next turn */
};

/*
 * Puts an entry after the other entries of its user. A user without entries in the queue gets the last turn. The call
 * takes time proportional to the number of users.
 */
void skv_queue_put(struct skv_queue *, struct skv_queued *, uint32_t user);
/* Puts an entry at the head of the queue: for an entry that had its turn, but could not be served. */
void skv_queue_put_first(struct skv_queue *, struct skv_queued *, uint32_t user);
/* Removes and returns the next entry; the entry's user then has the last turn. Returns NULL if the queue is empty. */
struct skv_queued *skv_queue_take(struct skv_queue *);
/* Removes an entry from its queue, if it is in one. */
void skv_queue_remove(struct skv_queued *);
/*
 * Moves all entries of the queue `from` to the other queue, in their order. The caller then serves each moved entry
 * once, and puts an entry that has to wait again back into `from`, where it is not served a second time in the same
 * round.
 */
void skv_queue_move(struct skv_queue *, struct skv_queue *from);

/* Returns the struct in which the queue entry is embedded as `member`. */
#define SKV_QUEUED_OWNER(entry, type, member) ((type *)(void *)((char *)(entry)-offsetof(type, member)))

/*
 * Iterates over all entries of a queue, user by user. The macro consists of two nested loops, so `break` does not end
 * it: leave it with return.
 */
#define SKV_QUEUE_EACH(entry, queue) \
	for (struct skv_queued *entry##_first = (queue)->first; entry##_first; entry##_first = entry##_first->next_user) \
		for (struct skv_queued *entry = entry##_first; entry; entry = entry->next)

#endif
