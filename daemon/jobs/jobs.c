/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/jobs/jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/fd.h"
#include "daemon/core/memory/pins.h"
#include "daemon/core/restart/life.h"
#include "daemon/disk/lock.h"
#include "daemon/jobs/ask.h"

#define IDLE_NS 30000000000u /* idle time after which a worker ends */

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Called when the worker has ended the job: calls the kind's moved(). */
static void done(struct skv_worker_job *work, int error, const char *why, const void *answer)
{
	struct skv_job *j = SKV_JOB_OWNER(work, struct skv_job, work);

	skv_job_enter(j, SKV_JOB_HELD);
	j->kind->moved(j, j->jobs->closed ? -ECANCELED : error, why, answer);
}

void skv_job_begin(struct skv_job *j, struct skv_jobs *jobs, const struct skv_job_kind *kind,
                   enum skv_disk_job_kind disk_kind, uint32_t uid)
{
	*j = (struct skv_job){
		.kind = kind,
		.jobs = jobs,
		.next = jobs->all,
		.m = {.kind = disk_kind, .uid = uid},
		.work = {.job = &j->m, .bytes = sizeof(j->m), .user = uid, .done = done},
	};
	jobs->all = j;
	skv_queue_put(&jobs->in[SKV_JOB_HELD], &j->queued, uid);
}

void skv_job_enter(struct skv_job *j, enum skv_job_state state)
{
	skv_queue_remove(&j->queued);
	j->state = state;
	skv_queue_put(&j->jobs->in[state], &j->queued, j->m.uid);
}

void skv_job_free(struct skv_job *j)
{
	struct skv_jobs *jobs = j->jobs;
	struct skv_job **at = &jobs->all;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	skv_queue_remove(&j->queued);
	skv_core_unpin(jobs->config.core, (uid_t)j->m.uid, &j->pinned);
	free(j->fds);
	jobs->settled = true;
	j->kind->free(j);
}

void skv_job_move_fds(struct skv_job *j, int *fds, uint32_t n_fds)
{
	if (fds != j->fds) /* the job has been moved before, with another array */
		free(j->fds);
	j->fds = fds;
	j->fds[SKV_DISK_FD_LOCK] = j->jobs->lock;
	j->m.n_fds = n_fds;
	j->work.fds = fds;
	j->work.n_fds = n_fds;
	skv_job_enter(j, SKV_JOB_MOVING);
	skv_worker_submit(j->jobs->workers[j->kind->worker], &j->work);
}

int skv_job_move(struct skv_job *j, int user, int other)
{
	int *fds = malloc((SKV_DISK_FD_OTHER + 1) * sizeof(*fds));

	if (!fds)
		return -ENOMEM;
	fds[SKV_DISK_FD_USER] = user;
	fds[SKV_DISK_FD_OTHER] = other;
	skv_job_move_fds(j, fds, other < 0 ? SKV_DISK_FD_OTHER : SKV_DISK_FD_OTHER + 1);
	return 0;
}

static bool is_for(const struct skv_job *j, enum skv_disk_job_kind kind)
{
	return j->m.kind == (uint32_t)kind;
}

struct skv_job *skv_jobs_next(const struct skv_jobs *jobs, const struct skv_job *after, enum skv_disk_job_kind kind,
                              uint32_t uid)
{
	struct skv_job *j = after ? after->next : jobs->all;

	while (j && (!is_for(j, kind) || j->m.uid != uid))
		j = j->next;
	return j;
}

struct skv_job *skv_jobs_any(const struct skv_jobs *jobs, enum skv_disk_job_kind kind)
{
	struct skv_job *j = jobs->all;

	while (j && !is_for(j, kind))
		j = j->next;
	return j;
}

bool skv_jobs_has(const struct skv_jobs *jobs, const struct skv_job_kind *kind, uint32_t uid)
{
	const struct skv_job *j = jobs->all;

	while (j && (j->kind != kind || j->m.uid != uid))
		j = j->next;
	return j != NULL;
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Runs a turn of the next job in a queue. The turn may end other jobs, and may call this function again. */
static void run(struct skv_queue *q)
{
	struct skv_queued *e = skv_queue_take(q);
	struct skv_job *j = e ? SKV_QUEUED_OWNER(e, struct skv_job, queued) : NULL;

	if (!j)
		return;
	skv_job_enter(j, SKV_JOB_HELD);
	j->kind->turn(j);
}

void skv_jobs_work(struct skv_jobs *jobs)
{
	if (!jobs->closed)
		run(&jobs->in[SKV_JOB_TURNS]);
}

bool skv_jobs_has_work(const struct skv_jobs *jobs)
{
	return !jobs->closed && jobs->in[SKV_JOB_TURNS].first;
}

bool skv_jobs_settle(struct skv_jobs *jobs)
{
	const bool settled = jobs->settled;
	struct skv_queued *e;

	jobs->settled = false;
	while (settled && (e = skv_queue_take(&jobs->in[SKV_JOB_OTHERS])))
		skv_job_enter(SKV_QUEUED_OWNER(e, struct skv_job, queued), SKV_JOB_TURNS);
	return settled;
}

/*
 * Runs turns of the jobs that wait for memory now, not in a later turn of the loop: memory of a pool that nothing takes
 * now is given back (lease.c). At most one job per user is run in vain: when it finds no memory, the user's other jobs
 * go on waiting behind it (skv_job_memory_take()).
 */
void skv_jobs_retry(struct skv_jobs *jobs)
{
	struct skv_queue round = {0};

	if (!jobs)
		return;
	skv_queue_move(&round, &jobs->in[SKV_JOB_MEMORY]);
	while (round.first)
		run(&round);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int start_workers(struct skv_jobs *jobs)
{
	const struct skv_worker_config config = {
		.program = jobs->config.program,
		.option = "disk",
		.name = "disk",
		.answer_bytes = sizeof(struct skv_disk_answer),
		.why_at = offsetof(struct skv_disk_answer, why),
		.timeout_ns = jobs->config.timeout_ns,
		.idle_ns = IDLE_NS,
	};
	int r = 0;

	for (unsigned i = 0; i < SKV_JOBS_WORKERS && r == 0; i++)
		r = skv_worker_new(jobs->config.loop, &config, &jobs->workers[i]);
	return r;
}

/*
 * Opens the file of the daemon's state read-only for the workers, which need it only for its lock, and waits until no
 * worker of the previous daemon holds the lock.
 */
static int lock_out(struct skv_jobs *jobs, char why[SKV_TEXT_MAX])
{
	char path[32];
	int r;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", skv_core_state_fd(jobs->config.core));
	jobs->lock = open(path, O_RDONLY | O_CLOEXEC);
	r = jobs->lock < 0 ? -errno : skv_disk_lock_out(jobs->lock);
	if (r < 0)
		snprintf(why, SKV_TEXT_MAX, "the file of the state, %s, cannot be locked: %s", path,
		         r == -EWOULDBLOCK ? "a worker of the previous daemon is still at work on the memory of "
		                             "sequences"
		                           : strerror(-r));
	return r;
}

int skv_jobs_new(const struct skv_jobs_config *config, struct skv_jobs **ret, char why[SKV_TEXT_MAX])
{
	struct skv_jobs *jobs = calloc(1, sizeof(*jobs));
	int r;

	snprintf(why, SKV_TEXT_MAX, "%s", strerror(ENOMEM));
	if (!jobs)
		return -ENOMEM;
	jobs->config = *config;
	jobs->lock = -1;
	*ret = jobs;
	r = start_workers(jobs);
	return r < 0 ? r : lock_out(jobs, why);
}

void skv_jobs_set_timeout(struct skv_jobs *jobs, uint64_t timeout_ns)
{
	for (unsigned i = 0; i < SKV_JOBS_WORKERS; i++)
		skv_worker_set_times(jobs->workers[i], timeout_ns, IDLE_NS);
}

void skv_jobs_close(struct skv_jobs *jobs)
{
	jobs->closed = true;
	for (unsigned i = 0; i < SKV_JOBS_WORKERS; i++)
		skv_worker_close(jobs->workers[i]);
}

struct skv_jobs *skv_jobs_free(struct skv_jobs *jobs, struct skv_core *core)
{
	if (!jobs)
		return NULL;
	jobs->config.core = core;
	jobs->closed = true;
	while (jobs->all)
		skv_job_end(jobs->all, -ECANCELED, "the daemon is stopping", 0);
	for (unsigned i = 0; i < SKV_JOBS_WORKERS; i++)
		skv_worker_free(jobs->workers[i]);
	skv_close_fd(jobs->lock);
	free(jobs);
	return NULL;
}
