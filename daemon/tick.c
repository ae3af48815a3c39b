/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/tick.c - the tick: once a second the daemon parks or drops unused sequences, checks waiting requests, and
 * measures the memory of clients. The tick is divided in steps, of which each turn of the loop runs one.
 */
#include "daemon/tick.h"

#include <string.h>

#include "common/clock.h"
#include "daemon/core/memory/memory.h"
#include "daemon/core/operations/turns.h"
#include "daemon/core/operations/views.h"
#include "daemon/parked/parking.h"
#include "daemon/prefix/prefix.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/report.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/log.h"
#include "daemon/sys/sd.h"

#define TICK_NS 1000000000u
static void update_status(struct skv_server *s)
{
	char status[sizeof(s->life.status)];

	skv_report_status_line(s, status, sizeof(status));
	if (s->life.serving && s->options.service && strcmp(status, s->life.status) != 0 && !s->life.reload_failed) {
		strcpy(s->life.status, status);
		skv_sd_status("%s", status);
	}
}

/*
 * Finds sequences that no client has held for so long that they are to be parked or dropped, and logs how many were
 * dropped for their age or to make room.
 */
static bool age(struct skv_server *s)
{
	const bool more = skv_core_age(s->core, skv_now_ns(), s->config.park_after, s->config.sequence_ttl,
	                               SKV_TURN_UNITS);
	uint64_t aged, for_room;

	skv_core_dropped(s->core, &aged, &for_room);
	if (aged > s->tick.told_aged)
		skv_log(LOG_INFO, "%llu sequences were dropped, since no client held them for sequence-ttl, %llu s",
		        (unsigned long long)(aged - s->tick.told_aged),
		        (unsigned long long)(s->config.sequence_ttl / 1000000000u));
	if (for_room > s->tick.told_for_room)
		skv_log(LOG_WARNING,
		        "%llu sequences that no client held were dropped: host or device memory is used up, and their "
		        "users had more than their share of it",
		        (unsigned long long)(for_room - s->tick.told_for_room));
	s->tick.told_aged = aged;
	s->tick.told_for_room = for_room;
	skv_loop_did(s->loop, "aging");
	return more;
}

static bool look_at_waiting(struct skv_server *s)
{
	skv_registry_collect(s->registry);
	skv_deferred_tick(s->ipc);
	skv_parking_tick(s);
	skv_parking_look_again(s);
	skv_prefix_tick(s);
	skv_loop_did(s->loop, "requests that wait");
	return false;
}

static bool trim(struct skv_server *s)
{
	if (s->tick.trim_in-- == 0) {
		skv_core_trim(s->core);
		s->tick.trim_in = SKV_TRIM_SECONDS - 1;
	}
	return false;
}

static void keep_counts(void *counts, uid_t uid)
{
	skv_counts_keep(counts, uid);
}

static bool keep_all_counts(struct skv_server *s)
{
	skv_core_users(s->core, keep_counts, s->counts);
	skv_counts_sweep(s->counts);
	skv_loop_did(s->loop, "counts");
	return false;
}

static bool measure_clients(struct skv_server *s)
{
	for (struct skv_conn *conn = skv_ipc_first(s->ipc); conn; conn = skv_conn_next(conn))
		if (skv_conn_client(conn))
			skv_core_client_holds(s->core, skv_conn_client(conn), skv_conn_bytes(conn));
	if (skv_core_room_is_used_up(s->core))
		skv_ipc_relieve(s->ipc);
	update_status(s);
	skv_loop_did(s->loop, "measuring clients");
	return false;
}

/*
 * Measures the memory of sequences and charges it to their users, because clients write to sequence memory without
 * asking the daemon.
 */
static bool measure(struct skv_server *s)
{
	skv_core_measure(s->core, &s->tick.measured, SKV_TURN_UNITS);
	skv_loop_did(s->loop, "measuring");
	return false;
}

/*
 * The steps of a tick, one per turn of the loop. A step returns true if it has more to do, and then runs again in the
 * next turn.
 */
static bool (*const steps[])(struct skv_server *) = {age,     look_at_waiting, trim,    keep_all_counts, measure_clients,
                                                     measure, measure,         measure,         measure,
                                                     measure, measure};
#define STEPS (sizeof(steps) / sizeof(*steps))

bool skv_tick_some(struct skv_server *s)
{
	if (s->tick.steps_left && !steps[STEPS - s->tick.steps_left](s))
		s->tick.steps_left--;
	return s->tick.steps_left > 0;
}

static void on_tick(struct skv_op *op, int res)
{
	struct skv_server *s = SKV_OP_OWNER(op, struct skv_server, tick.op);

	if (res < 0)
		return;
	if (!s->tick.steps_left) /* otherwise the steps of the previous tick have not ended, and continue */
		s->tick.steps_left = STEPS;
	skv_op_timer(s->loop, op, TICK_NS, on_tick);
}

void skv_tick_start(struct skv_server *s)
{
	skv_op_timer(s->loop, &s->tick.op, 0, on_tick);
}
