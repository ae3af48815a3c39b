/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/turns.h - work that takes turns, and what is done by age. */
#ifndef SKV_CORE_TURNS_H
#define SKV_CORE_TURNS_H

#include "daemon/core/core.h"

/*
 * Units of one piece of work in a turn of the daemon's loop. A turn makes up to five pieces (a task, a list, parking,
 * keys, a tick), and serves requests: together they stay below 2 ms of processor time.
 */
#define SKV_TURN_UNITS 16000u

struct skv_core_done {
	const char *work; /* kind of the work (static); "nothing" */
	bool more;       /* more work can be done now */
	/*
	 * `through`: a task finished, so memory may have come back. `waits`: a task began to wait for a client, perhaps
	 * for long.
	 */
	bool through, waits;
	uint32_t client; /* client whose task finished; 0: none */
	int failed;      /* negative errno: out of memory for the task, fatal for the daemon */
	uid_t uid;       /* user of the finished task */
	bool gone;       /* the task was the end of its client */
	uint64_t since_ns; /* of a client that ended: as given to skv_core_client_gone() */
	int result;      /* of the finished task: 0, or an error explained by `why` */
	char why[256];
	struct skv_core_seq_info info; /* the sequence that was attached or forked; else its fd is -1 */
};
/* Does one turn of work, about `units` work units of some ten nanoseconds each. */
void skv_core_work(struct skv_core *, uint32_t units, struct skv_core_done *ret);
/* Makes turns until no task can continue. */
void skv_core_work_all(struct skv_core *);

/*
 * Call periodically. Named sequences without a holder are parked after park_ns (skv_core_next_park()) and dropped after
 * ttl_ns, in turns; 0 disables either. A call does at most `units` of work; returns true if the pass over all sequences
 * continues with the next call. now_ns is never 0 and does not go back.
 */
bool skv_core_age(struct skv_core *, uint64_t now_ns, uint64_t park_ns, uint64_t ttl_ns, uint32_t units);
/* Sequences dropped so far: because of age, and to make room for users that have less than their share of a memory. */
void skv_core_dropped(const struct skv_core *, uint64_t *ret_age, uint64_t *ret_room);
/* Calls `cb` with the user of each dropped sequence. `cb` must not call into the core. */
void skv_core_on_dropped(struct skv_core *, void (*cb)(void *, uid_t, bool for_room), void *userdata);

#endif
