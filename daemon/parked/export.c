/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/export.c - exports parked files to other machines, through pipes whose readers may be arbitrarily slow.
 *
 *   a worker writes part of the file (disk/send.c) → the daemon waits until the pipe has room → the worker writes the
 *   next part, after exports of other users had their turns
 *
 * So a slow reader delays only its own export. A user has one export at a time. The worker opens the file again for
 * each part: if the sequence has been dropped or resumed since the last part, the export ends, and its reader gets a
 * file that is too short.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/fd.h"

struct export {
	struct skv_job job;
	struct skv_parking *parking;
	int pipe;
	struct skv_op op;          /* poll of the pipe, which completes when the pipe has room */
	uint64_t patient_until_ns; /* if the pipe has no room until this time, the export ends */
};

static struct export *export_of(struct skv_job *j)
{
	return SKV_JOB_OWNER(j, struct export, job);
}

static void free_export(struct skv_job *j)
{
	struct export *x = export_of(j);

	skv_close_fd(x->pipe);
	free(x);
}

static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer);

static const struct skv_job_kind kind = {SKV_JOBS_EXPORT, NULL, moved, free_export};

static void be_patient(struct export *x)
{
	x->patient_until_ns = skv_now_ns() + x->parking->server->config.disk_timeout;
}

int skv_parking_begin_export(struct skv_parking *k, struct skv_parked *p, int fd, char why[SKV_TEXT_MAX])
{
	const bool waits = skv_jobs_has(k->jobs, &kind, p->uid);
	struct export *x = waits ? NULL : calloc(1, sizeof(*x));
	int r;

	if (!x) {
		snprintf(why, SKV_TEXT_MAX,
		         waits ? "another sequence of this user is being exported" : "the daemon is out of memory");
		skv_close_fd(fd);
		return waits ? -EBUSY : -ENOMEM;
	}
	x->parking = k;
	x->pipe = fd;
	skv_job_begin(&x->job, k->jobs, &kind, SKV_DISK_SEND, p->uid);
	x->job.work.once = true;
	x->job.m.max_bytes = p->bytes;
	memcpy(x->job.m.file, p->file, sizeof(x->job.m.file));
	strcpy(x->job.m.name, p->name);
	x->job.m.model = p->model;
	be_patient(x);
	r = skv_job_move(&x->job, k->files.folder, x->pipe);
	return r < 0 ? skv_job_not_begun(&x->job, r, why) : 0;
}

/* Resumes an export whose pipe has room. If the reader has closed the pipe, the worker's write fails. */
static void on_writable(struct skv_op *op, int res)
{
	struct export *x = SKV_OP_OWNER(op, struct export, op);

	if (x->job.jobs->closed)
		skv_job_end(&x->job, -ECANCELED, "the daemon is stopping", 0);
	else if (res < 0) /* skv_parking_end_exports() has cancelled the poll */
		skv_job_end(&x->job, -ETIMEDOUT, "the pipe of the export was not read for too long", 0);
	else
		skv_job_move_fds(&x->job, x->job.fds, x->job.m.n_fds);
}

static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer)
{
	struct export *x = export_of(j);
	const uint64_t bytes = answer ? answer->bytes : 0;

	j->m.offset += bytes;
	if (error || j->m.offset >= j->m.max_bytes) {
		skv_job_end(j, error, why, 0);
		return;
	}
	j->m.inode = answer->inode;
	j->m.changed_ns = answer->changed_ns;
	if (bytes)
		be_patient(x);
	skv_op_poll(j->jobs->config.loop, &x->op, x->pipe, POLLOUT, on_writable);
}

void skv_parking_end_exports(struct skv_parking *k)
{
	for (struct skv_job *j = k->jobs->all; j; j = j->next)
		if (j->kind == &kind && j->state == SKV_JOB_HELD && skv_now_ns() > export_of(j)->patient_until_ns)
			skv_op_cancel(j->jobs->config.loop, &export_of(j)->op);
}
