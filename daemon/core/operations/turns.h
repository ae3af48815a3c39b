/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/turns.h - long work, done in turns; and sequences without a holder, parked or dropped by age.
 */
#ifndef SKV_CORE_TURNS_H
#define SKV_CORE_TURNS_H

#include "daemon/core/core.h"

/*
 * Units of one piece of work in a turn of the daemon's loop. A turn does up to five pieces of work (a task, a list,
 * parking, keys, a tick) and serves requests; all of these together take less than 2 ms of processor time.
 */
#define SKV_TURN_UNITS 16000u

struct skv_core_done {
	const char *work; /* kind of the work, a static text; "nothing": there was no task */
	bool more;       /* there is a task that can continue now */
	/*
	 * `through`: a task has finished, so memory may have come free. `waits`: a task has begun to wait for a client,
	 * perhaps for long.
	 */
	bool through, waits;
	uint32_t client; /* id of the client whose task finished; 0: no task finished, or it had no client */
	int failed;      /* negative errno: out of memory for the task, fatal for the daemon */
	uid_t uid;       /* UID of the finished task's user */
	bool gone;       /* the finished task has ended its client */
	uint64_t since_ns; /* if `gone`: the time that was given to skv_core_client_gone() */
	int result;      /* result of the finished task: 0, or an error that `why` explains */
	char why[256];
	struct skv_core_seq_info info; /* the sequence that the task attached or forked; fd -1: the task did neither */
};
/* Does one turn of work on one task: about `units` units of some ten nanoseconds each. */
void skv_core_work(struct skv_core *, uint32_t units, struct skv_core_done *ret);
/* Works on the tasks until no task can continue. */
void skv_core_work_all(struct skv_core *);

/*
 * Queues named sequences that have had no holder for park_ns to be parked (skv_core_next_park()), and drops those that
 * have had none for ttl_ns. park_ns 0: none are parked; ttl_ns 0: none are dropped. Call skv_core_age() periodically. A
 * call does at most `units` of work; it returns true if the pass over all sequences continues with the next call.
 * now_ns is never 0 and does not go back.
 */
bool skv_core_age(struct skv_core *, uint64_t now_ns, uint64_t park_ns, uint64_t ttl_ns, uint32_t units);
/* Numbers of sequences dropped so far: by age, and to make room for users with less than their share of a memory. */
void skv_core_dropped(const struct skv_core *, uint64_t *ret_age, uint64_t *ret_room);
/* Sets a callback: called with the user of each sequence that is dropped. `cb` must not call into the core. */
void skv_core_on_dropped(struct skv_core *, void (*cb)(void *, uid_t, bool for_room), void *userdata);

#endif
