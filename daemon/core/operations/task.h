/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/task.h - tasks: long work that the core does in turns of the loop. See task.c. */
#ifndef SKV_CORE_TASK_H
#define SKV_CORE_TASK_H

#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/detach.h"
#include "daemon/core/operations/fork.h"
#include "daemon/core/operations/reclaim.h"
#include "daemon/core/operations/reconnect.h"

struct skv_task {
	struct skv_queued queued;
	uid_t uid; /* UID of the user whose turns the task uses */
	enum skv_task_kind {
		SKV_TASK_DETACH, /* detaches a sequence that its client holds */
		SKV_TASK_ATTACH, /* gives the pages of a sequence to the client, whose session holds it already */
		SKV_TASK_FORK,
		SKV_TASK_DROP,    /* drops a sequence, held or not */
		SKV_TASK_SESSION, /* closes a session */
		SKV_TASK_CLIENT,  /* ends a client and reclaims everything that it had */
		SKV_TASK_RECONNECT, /* releases everything that a reconnecting client did not name */
		SKV_TASK_LOST,    /* has nothing left to do, because the device's memory is lost */
	} kind;
	uint32_t client; /* row of the client; SKV_NO_INDEX: no client waits for the task */
	uint32_t id;     /* id of the client */
	uint32_t row;    /* row of the sequence or session */
	bool gone;       /* the client is gone: after this task, a task to end the client follows */
	bool waits;      /* the task's last turn ended with SKV_WAITS */
	uint64_t since_ns;
	int result;
	char why[sizeof(((struct skv_core *)0)->why)];
	union {
		uint32_t at; /* progress of a drop or an attach */
		struct skv_detach detach;
		struct skv_fork fork;
		struct skv_reclaim reclaim;
		struct skv_reconnect *reconnect; /* owned by the task */
	};
};

/*
 * Creates a task and does its first turn; most tasks need no more turns. Returns the task's result, or E_TURNS if the
 * task continues. *ret_info is the sequence that was attached.
 */
int skv_task_begin(struct skv_core *, enum skv_task_kind, uint32_t client, uint32_t row,
                   struct skv_core_seq_info *ret_info);
/* skv_task_begin() for a fork. `what` describes the child as for skv_fork_begin(). *ret_info is the child. */
int skv_task_fork(struct skv_core *, uint32_t client, uint32_t parent, const struct skv_fork *what,
                  struct skv_core_seq_info *ret_info);
/*
 * Creates a task that drops a sequence; the sequence can no longer be found by name from now on. At the end the client
 * is told `result` and the current text of skv_core_why(). Does the first turn, as skv_task_begin() does. client
 * SKV_NO_INDEX: no client is told; `result` must be 0, and the first turn comes later.
 */
int skv_task_drop(struct skv_core *, uint32_t seq, uint32_t client, int result);
/* Is there a task in progress that may free memory of the device? */
bool skv_task_frees(const struct skv_core *, uint32_t device);
/*
 * skv_task_of(): the client's task, or NULL. skv_task_is_of(): does the client have a task? skv_task_ends(): does the
 * client's task end the client, or will such a task follow?
 */
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
/* Is the sequence the parent of a fork in progress? */
static inline bool skv_task_forks(const struct skv_core *c, uint32_t seq)
{
	SKV_QUEUE_EACH(e, &c->tasks) {
		const struct skv_task *t = SKV_QUEUED_OWNER(e, struct skv_task, queued);

		if (t->kind == SKV_TASK_FORK && t->row == seq)
			return true;
	}
	return false;
}
/* Called when a device's memory is lost: abandons the work on sequences and sessions of that device. */
void skv_task_lose(struct skv_core *, uint32_t device);
void skv_task_free_all(struct skv_core *);

#endif
