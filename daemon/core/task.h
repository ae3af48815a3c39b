/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/task.h - what the core does in turns. See task.c. */
#ifndef SKV_CORE_TASK_H
#define SKV_CORE_TASK_H

#include "daemon/core/core-priv.h"
#include "daemon/core/detach.h"
#include "daemon/core/fork.h"
#include "daemon/core/reclaim.h"
#include "daemon/core/reconnect.h"

struct skv_task {
	struct skv_task *next;
	enum skv_task_kind {
		SKV_TASK_DETACH, /* a sequence that its client holds */
		SKV_TASK_ATTACH, /* one that its session holds already: its pages follow */
		SKV_TASK_FORK,
		SKV_TASK_DROP,    /* a sequence, held or not */
		SKV_TASK_SESSION, /* close it */
		SKV_TASK_CLIENT,  /* all that the client had, and itself */
		SKV_TASK_RECONNECT, /* let go of what the client did not name */
		SKV_TASK_LOST,    /* nothing any more: a device's memory is lost */
	} kind;
	uint32_t client; /* row, or SKV_NO_INDEX: nobody waits for it */
	uint32_t id;     /* of the client ... */
	uid_t uid;       /* ... whose it is; else not set */
	uint32_t row;    /* of the sequence, or the session */
	bool gone;       /* so is the client: its end is next */
	bool waits;      /* at its last turn there was nothing to do: SKV_WAITS */
	uint64_t since_ns;
	int result;
	char why[sizeof(((struct skv_core *)0)->why)];
	union {
		uint32_t at; /* of a drop, an attach */
		struct skv_detach detach;
		struct skv_fork fork;
		struct skv_reclaim reclaim;
		struct skv_reconnect *reconnect; /* owned */
	};
};

/*
 * Begin it, with a turn's worth: most need no more. The result; or E_TURNS, and it goes on. *ret_info: of an attached
 * sequence.
 */
int skv_task_begin(struct skv_core *, enum skv_task_kind, uint32_t client, uint32_t row,
                   struct skv_core_seq_info *ret_info);
/* The same for a fork of this parent's, of which `what` says what it is to be, see skv_fork_begin(). *ret_info: of the child. */
int skv_task_fork(struct skv_core *, uint32_t client, uint32_t parent, const struct skv_fork *what, struct skv_core_seq_info *ret_info);
/*
 * A sequence is dropped, and cannot be found any more. `result` and skv_core_why() are what the client is told at the end,
 * as of skv_task_begin(). SKV_NO_INDEX: no client; then it is 0, and all turns are to come.
 */
int skv_task_drop(struct skv_core *, uint32_t seq, uint32_t client, int result);
/* Does something end that may bring memory back there? */
bool skv_task_frees(const struct skv_core *, uint32_t device);
/* Something of the client's is under way. Is it its end, or will be? */
static inline struct skv_task *skv_task_of(const struct skv_core *c, uint32_t client)
{
	struct skv_task *t = c->tasks;

	while (t && t->client != client)
		t = t->next;
	return t;
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
	for (const struct skv_task *t = c->tasks; t; t = t->next)
		if (t->kind == SKV_TASK_FORK && t->row == seq)
			return true;
	return false;
}
/* The memory of a device is lost: nothing of a sequence or session there is worked on any more. */
void skv_task_lose(struct skv_core *, uint32_t device);
void skv_task_free_all(struct skv_core *);

#endif
