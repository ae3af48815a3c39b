/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/task.c - tasks: work that the core does in turns, because it grows with tokens or pages.
 *
 * Users take turns, and so do the tasks of one user, so that no request waits until the million tokens of another user
 * are done. A client has at most one task in progress: the caller accepts no request of the client meanwhile. If the
 * client goes, its task is still completed; then everything that the client had is reclaimed.
 */
#include "daemon/core/memory/pages.h"
#include "daemon/core/sequences/idle.h"
#include "daemon/core/sequences/sequences.h"
#include "daemon/core/state/lookup.h"
#include "daemon/core/state/refuse.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/task.h"
#include "daemon/core/operations/turns.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {
	[SKV_TASK_DETACH] = "detaching",
	[SKV_TASK_ATTACH] = "attaching",
	[SKV_TASK_FORK] = "forking",
	[SKV_TASK_DROP] = "dropping",
	[SKV_TASK_SESSION] = "closing a session",
	[SKV_TASK_CLIENT] = "ending a client",
	[SKV_TASK_RECONNECT] = "reconnecting",
	[SKV_TASK_LOST] = "nothing",
};

/* ---- kinds of tasks -------------------------------------------------------------------------- */

static int prepare(struct skv_core *c, struct skv_task *t)
{
	switch (t->kind) {
	case SKV_TASK_DETACH: return skv_detach_begin(c, t->row, t->client, &t->detach);
	case SKV_TASK_SESSION:
	case SKV_TASK_CLIENT:
		skv_reclaim_begin(t->client, t->kind == SKV_TASK_SESSION ? t->row : SKV_NO_INDEX, &t->reclaim);
		break;
	case SKV_TASK_ATTACH:
	case SKV_TASK_DROP: t->at = 0; break;
	case SKV_TASK_RECONNECT: t->reconnect = skv_reconnect_take(c, t->client); break;
	case SKV_TASK_FORK: /* skv_task_fork() */
	case SKV_TASK_LOST: break;
	}
	return 0;
}

static enum skv_progress some(struct skv_core *c, struct skv_task *t, uint32_t *units)
{
	const struct skv_seq_row *q;

	switch (t->kind) {
	case SKV_TASK_DETACH: return skv_detach_some(c, &t->detach, units);
	case SKV_TASK_FORK: return skv_fork_some(c, &t->fork, units);
	case SKV_TASK_SESSION:
	case SKV_TASK_CLIENT: return skv_reclaim_some(c, &t->reclaim, units);
	case SKV_TASK_RECONNECT: return skv_reconnect_some(c, t->reconnect, units);
	case SKV_TASK_DROP: return skv_seq_remove_some(c, t->row, &t->at, units);
	case SKV_TASK_ATTACH:
		q = skv_seq_row(&c->state, t->row);
		return skv_pages_hand_over_some(c, q->pool, skv_owner_make(SKV_OWNER_SEQ, t->row),
		                                skv_owner_make(SKV_OWNER_LEASE, t->client), q->pages, &t->at, units)
		               ? SKV_DONE
		               : SKV_GOES_ON;
	case SKV_TASK_LOST: break;
	}
	return SKV_DONE;
}

/* Sets the result, the text and the sequence that the client is told at the end of the task. */
static void conclude(struct skv_core *c, struct skv_task *t, struct skv_core_seq_info *ret_info)
{
	if (t->kind == SKV_TASK_RECONNECT) {
		skv_reconnect_free(t->reconnect);
	} else if (t->kind == SKV_TASK_DETACH && t->detach.corrupt) {
		t->result = SKV_CORE_E_CORRUPT;
		snprintf(t->why, sizeof(t->why), "%s", t->detach.why);
	} else if (t->kind == SKV_TASK_FORK) {
		t->result = t->fork.result;
		snprintf(t->why, sizeof(t->why), "%s", t->fork.why);
	}
	if (t->result == 0 && t->kind == SKV_TASK_FORK && t->fork.session != SKV_NO_INDEX)
		*ret_info = skv_seq_info(c, t->fork.child);
	else if (t->result == 0 && t->kind == SKV_TASK_ATTACH)
		*ret_info = skv_seq_info(c, t->row);
}

/* Frees the memory of a task that is not completed. */
static void abandon(struct skv_task *t)
{
	if (t->kind == SKV_TASK_DETACH)
		skv_detach_end(&t->detach);
	else if (t->kind == SKV_TASK_FORK)
		skv_fork_end(&t->fork);
	else if (t->kind == SKV_TASK_RECONNECT)
		skv_reconnect_free(t->reconnect);
	else if (t->kind == SKV_TASK_SESSION || t->kind == SKV_TASK_CLIENT)
		skv_reclaim_end(&t->reclaim);
}

/* The device whose memory the task works on; host memory for tasks that are about a whole client. */
static uint32_t device_of(const struct skv_core *c, const struct skv_task *t)
{
	uint32_t pool;

	if (t->kind == SKV_TASK_CLIENT || t->kind == SKV_TASK_RECONNECT || t->kind == SKV_TASK_LOST)
		return SKV_DEVICE_HOST;
	pool = t->kind == SKV_TASK_SESSION ? skv_session_row(&c->state, t->row)->pool
	                                   : skv_seq_row(&c->state, t->row)->pool;
	return skv_pool_row(&c->state, pool)->device;
}

/* ---- beginning ------------------------------------------------------------------------------- */

static struct skv_task *task_new(const struct skv_core *c, enum skv_task_kind kind, uint32_t client, uint32_t row)
{
	struct skv_task *t = calloc(1, sizeof(*t));

	if (t) {
		t->kind = kind;
		t->client = client;
		if (client != SKV_NO_INDEX)
			t->id = skv_state_id(&c->state, SKV_TABLE_CLIENTS, client);
		t->row = row;
		t->uid = skv_account_row(&c->state, client == SKV_NO_INDEX ? skv_seq_row(&c->state, row)->account
		                                                           : skv_client_row(&c->state, client)->account)
		                 ->uid;
	}
	return t;
}

static struct skv_task *task_of(struct skv_queued *e)
{
	return SKV_QUEUED_OWNER(e, struct skv_task, queued);
}

static void append(struct skv_core *c, struct skv_task *t)
{
	skv_queue_put(&c->tasks, &t->queued, t->uid);
}

/* Does a task's first turn, and queues or concludes the task. */
static int begin(struct skv_core *c, struct skv_task *t, struct skv_core_seq_info *ret_info)
{
	uint32_t units = SKV_TURN_UNITS;
	enum skv_progress p = some(c, t, &units);
	int result;

	t->waits = p == SKV_WAITS;
	if (p == SKV_GOES_ON || p == SKV_FAILED || p == SKV_WAITS)
		append(c, t);
	if (p == SKV_FAILED)
		return c->failed;
	if (p == SKV_GOES_ON || p == SKV_WAITS)
		return skv_core_refuse(c, SKV_CORE_E_TURNS, "it takes more than a turn");
	conclude(c, t, ret_info);
	result = t->result;
	if (result)
		skv_set_why(c, "%s", t->why);
	free(t);
	return result;
}

int skv_task_begin(struct skv_core *c, enum skv_task_kind kind, uint32_t client, uint32_t row,
                   struct skv_core_seq_info *ret_info)
{
	struct skv_task *t = task_new(c, kind, client, row);
	int r = t ? prepare(c, t) : -ENOMEM;

	if (r) {
		free(t);
		return r;
	}
	return begin(c, t, ret_info);
}

int skv_task_fork(struct skv_core *c, uint32_t client, uint32_t parent, const struct skv_fork *what,
                  struct skv_core_seq_info *ret_info)
{
	struct skv_task *t = task_new(c, SKV_TASK_FORK, client, parent);
	int r = -ENOMEM;

	if (t) {
		t->fork = *what;
		r = skv_fork_begin(c, parent, &t->fork);
	}
	if (r) {
		free(t);
		return r;
	}
	return begin(c, t, ret_info);
}

int skv_task_drop(struct skv_core *c, uint32_t seq, uint32_t client, int result)
{
	struct skv_task *t = task_new(c, SKV_TASK_DROP, client, seq);

	if (!t)
		return -ENOMEM;
	skv_write_seq(&c->state, seq)->name[0] = 0;
	skv_idle_update(c, seq);
	t->result = result;
	snprintf(t->why, sizeof(t->why), "%s", c->why);
	if (client != SKV_NO_INDEX)
		return begin(c, t, NULL);
	append(c, t);
	return 0;
}

bool skv_task_frees(const struct skv_core *c, uint32_t device)
{
	SKV_QUEUE_EACH(e, &c->tasks) {
		const struct skv_task *t = task_of(e);

		if (t->waits) /* the task waits for a client, which may take any time */
			continue;
		if (t->kind == SKV_TASK_CLIENT ||
		    (t->kind == SKV_TASK_DROP && t->client == SKV_NO_INDEX && device_of(c, t) == device))
			return true;
	}
	return false;
}

/* ---- clients that end ------------------------------------------------------------------------ */

static void begin_end(struct skv_core *c, struct skv_task *t)
{
	t->kind = SKV_TASK_CLIENT;
	t->result = 0;
	(void)prepare(c, t);
	append(c, t);
}

int skv_core_client_gone(struct skv_core *c, uint32_t client_id, uint64_t since_ns)
{
	struct skv_task *t;
	uint32_t client;
	int r = skv_find_client(c, client_id, &client);

	if (r)
		return r;
	if (skv_task_ends(c, client))
		return 0; /* the client's end is in progress already */
	t = skv_task_of(c, client);
	if (t) {
		t->gone = true;
	} else {
		t = task_new(c, SKV_TASK_CLIENT, client, SKV_NO_INDEX);
		if (!t)
			return -ENOMEM;
		begin_end(c, t);
	}
	t->since_ns = since_ns;
	(void)skv_core_client_fence(c, client_id);
	return 0;
}

/*
 * Puts a task that continues at the end of the queue. If the cgroup has no room, the task goes to the head of the
 * queue: tasks then run one after the other, and fewer tasks have memory for marks at once.
 */
static void yield(struct skv_core *c, struct skv_task *t)
{
	if (skv_core_room_is_used_up(c))
		skv_queue_put_first(&c->tasks, &t->queued, t->uid);
	else
		append(c, t);
}

/*
 * Is there a task that does not wait for a client? A waiting task is tried again whenever the core works on tasks, at
 * least once a second.
 */
static bool any_runs(const struct skv_core *c)
{
	SKV_QUEUE_EACH(e, &c->tasks)
		if (!task_of(e)->waits)
			return true;
	return false;
}

/* ---- working --------------------------------------------------------------------------------- */

void skv_core_work(struct skv_core *c, uint32_t units, struct skv_core_done *ret)
{
	struct skv_queued *next = skv_queue_take(&c->tasks);
	struct skv_task *t = next ? task_of(next) : NULL;
	enum skv_progress p;

	*ret = (struct skv_core_done){.work = t ? names[t->kind] : "nothing", .more = t != NULL, .info = {.fd = -1}};
	if (!t)
		return;
	p = some(c, t, &units);
	ret->waits = p == SKV_WAITS && !t->waits;
	t->waits = p == SKV_WAITS;
	if (p == SKV_GOES_ON || p == SKV_FAILED || p == SKV_WAITS) {
		if (p == SKV_WAITS)
			append(c, t);
		else
			yield(c, t);
		ret->failed = p == SKV_FAILED ? c->failed : 0;
		ret->more = any_runs(c);
		return;
	}
	conclude(c, t, &ret->info);
	SKV_QUEUE_EACH(e, &c->tasks)
		task_of(e)->waits = false; /* the waiting tasks may have waited for this task */
	if (t->gone && t->kind != SKV_TASK_CLIENT) {
		ret->info = (struct skv_core_seq_info){.fd = -1};
		begin_end(c, t);
		return;
	}
	ret->more = any_runs(c);
	ret->through = true;
	ret->client = t->id;
	ret->uid = t->uid;
	ret->gone = t->kind == SKV_TASK_CLIENT;
	ret->since_ns = t->since_ns;
	ret->result = t->result;
	snprintf(ret->why, sizeof(ret->why), "%s", t->why);
	free(t);
}

void skv_core_work_all(struct skv_core *c)
{
	struct skv_core_done done;

	do
		skv_core_work(c, UINT32_MAX, &done);
	while (done.more && !done.failed);
}

void skv_task_lose(struct skv_core *c, uint32_t device)
{
	SKV_QUEUE_EACH(e, &c->tasks) {
		struct skv_task *t = task_of(e);

		if (device_of(c, t) == device) {
			abandon(t);
			t->kind = SKV_TASK_LOST;
			t->result = SKV_CORE_E_NOENT;
			snprintf(t->why, sizeof(t->why), "the device's memory is lost");
		} else if (t->kind == SKV_TASK_CLIENT) {
			skv_reclaim_lose(c, &t->reclaim, device);
		} else if (t->kind == SKV_TASK_RECONNECT) {
			skv_reconnect_lose(c, t->reconnect, device);
		}
	}
}

void skv_task_free_all(struct skv_core *c)
{
	struct skv_queued *e;

	while ((e = skv_queue_take(&c->tasks))) {
		abandon(task_of(e));
		free(task_of(e));
	}
}
