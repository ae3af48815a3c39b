/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/task.h - work that the core does in turns. See task.c. */
#ifndef SKV_CORE_TASK_H
#define SKV_CORE_TASK_H

#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/detach.h"
#include "daemon/core/operations/fork.h"
#include "daemon/core/operations/reclaim.h"
#include "daemon/core/operations/reconnect.h"

struct skv_task {
	struct skv_queued queued;
	uid_t uid; /* the user whose turns it takes */
	enum skv_task_kind {
		SKV_TASK_DETACH, /* detaches a sequence that its client holds */
		SKV_TASK_ATTACH, /* hands over the pages of a sequence that its session holds already */
		SKV_TASK_FORK,
		SKV_TASK_DROP,    /* drops a sequence, held or not */
		SKV_TASK_SESSION, /* closes a session */
		SKV_TASK_CLIENT,  /* ends a client and reclaims everything it had */
		SKV_TASK_RECONNECT, /* releases what the client did not name */
		SKV_TASK_LOST,    /* does nothing any more: the device's memory is lost */
	} kind;
	uint32_t client; /* row, or SKV_NO_INDEX: no client waits for it */
	uint32_t id;     /* of the client */
	uint32_t row;    /* of the sequence, or the session */
	bool gone;       /* the client is gone: ending it is next */
	bool waits;      /* its last turn ended with SKV_WAITS */
	uint64_t since_ns;
	int result;
	char why[sizeof(((struct skv_core *)0)->why)];
	union {
		uint32_t at; /* progress of a drop or an attach */
		struct skv_detach detach;
		struct skv_fork fork;
		struct skv_reclaim reclaim;
		struct skv_reconnect *reconnect; /* owned */
	};
};

/*
 * Begins a task with a first turn; most tasks need no more. Returns the result, or E_TURNS if the task continues.
 * *ret_info: the attached sequence.
 */
int skv_task_begin(struct skv_core *, enum skv_task_kind, uint32_t client, uint32_t row,
                   struct skv_core_seq_info *ret_info);
/* The same for a fork of this parent. `what` says what the child is to be: skv_fork_begin(). *ret_info: the child. */
int skv_task_fork(struct skv_core *, uint32_t client, uint32_t parent, const struct skv_fork *what,
                  struct skv_core_seq_info *ret_info);
/*
 * Drops a sequence, which can no longer be found. `result` and skv_core_why() are what the client is told at the end,
 * as by skv_task_begin(). client SKV_NO_INDEX: no client is told; `result` must be 0, and no turn is made yet.
 */
int skv_task_drop(struct skv_core *, uint32_t seq, uint32_t client, int result);
/* Is there a task in progress that may bring memory back on the device? */
bool skv_task_frees(const struct skv_core *, uint32_t device);
/* The client's task, or NULL; does the client have a task; is it the client's end, or will that follow? */
static inline struct skv_task *skv_task_of(const struct skv_core *c, uint32_t client)
{
	SKV_QUEUE_EACH(e, &c->tasks) {
		struct skv_task *t = SKV_QUEUED_OWNER(e, struct skv_task, queued);

		if (t->client == client)
			return t;
	}
	return NULL;
}
static inline bool skv_task_is_of(const struct skv_core *c, uint32_t client)
{
	return skv_task_of(c, client) != NULL;
}
static inline bool skv_task_ends(const struct skv_core *c, uint32_t client)
{
	const struct skv_task *t = skv_task_of(c, client);

	return t && (t->gone || t->kind == SKV_TASK_CLIENT);
}
/* Is the sequence being forked? */
static inline bool skv_task_forks(const struct skv_core *c, uint32_t seq)
{
	SKV_QUEUE_EACH(e, &c->tasks) {
		const struct skv_task *t = SKV_QUEUED_OWNER(e, struct skv_task, queued);

		if (t->kind == SKV_TASK_FORK && t->row == seq)
			return true;
	}
	return false;
}
/* The device's memory is lost: abandons the work on sequences and sessions there. */
void skv_task_lose(struct skv_core *, uint32_t device);
void skv_task_free_all(struct skv_core *);

#endif
