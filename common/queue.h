/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/queue.h - a queue that several users share: users take turns, one entry each, and entries of one user keep their order.
 *
 * So a user with a thousand entries gets no more turns than a user with one, and an entry waits for one of each other user before each
 * entry of its own user that is ahead of it. Entries are embedded in what waits, and nothing is allocated: putting one in cannot fail.
 *
 * Not thread-safe. An entry is in one queue at a time, and stays where it is in memory meanwhile.
 */
#ifndef SKV_QUEUE_H
#define SKV_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct skv_queue;
struct skv_queued {
	uint32_t user;
	/* the queue's own */
	struct skv_queue *in; /* NULL: it waits in none */
	struct skv_queued *next; /* of the same user */
	struct skv_queued *next_user, *last; /* of a user's first entry alone: the user after it, the user's last entry */
};

/* Zeroed: empty. */
struct skv_queue {
	struct skv_queued *first; /* of the user who has the next turn */
};

/* As the last one of its user. A user who had none has the last turn. Time is proportional to the number of users. */
void skv_queue_put(struct skv_queue *, struct skv_queued *, uint32_t user);
/* As the next one of all: it had its turn, and could not use it. */
void skv_queue_put_first(struct skv_queue *, struct skv_queued *, uint32_t user);
/* The next one, which leaves the queue; then its user has the last turn. NULL: the queue is empty. */
struct skv_queued *skv_queue_take(struct skv_queue *);
/* It leaves its queue. Nothing happens when it is in none. */
void skv_queue_remove(struct skv_queued *);
/* All entries of `from` are put in, in their order: for a round in which each has one turn, and those that wait again are put in `from`. */
void skv_queue_move(struct skv_queue *, struct skv_queue *from);

/* Has the user an entry there? */
bool skv_queue_has(const struct skv_queue *, uint32_t user);

/* The struct that the entry is embedded in. */
#define SKV_QUEUED_OWNER(entry, type, member) ((type *)(void *)((char *)(entry)-offsetof(type, member)))

/* All entries, user by user. These are two loops: leave them by return. */
#define SKV_QUEUE_EACH(entry, queue) \
	for (struct skv_queued *entry##_first = (queue)->first; entry##_first; entry##_first = entry##_first->next_user) \
		for (struct skv_queued *entry = entry##_first; entry; entry = entry->next)

#endif
