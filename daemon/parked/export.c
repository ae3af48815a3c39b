/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/export.c - exports parked files to other machines, through pipes whose readers may be arbitrarily slow.
 *
 *   a worker writes one turn's worth → the pipe is full: this waits for its reader → the next turn, after those of
 *   other users
 *
 * So a slow reader delays only itself. A user has one export at a time. The worker opens the file anew in each turn:
 * if the sequence is dropped or resumed meanwhile, the export ends, and its reader gets a short file.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/fd.h"

static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer);

static const struct skv_parking_kind kind = {SKV_PARKING_EXPORT, NULL, moved};

int skv_parking_begin_export(struct skv_parking *k, struct skv_parked *p, int fd, char why[SKV_TEXT_MAX])
{
	const bool waits = skv_parking_has_job(k, &kind, p->uid);
	struct skv_parking_job *j = waits ? NULL : skv_parking_job_new(k, &kind, SKV_DISK_SEND, p->uid, why);
	int r;

	if (waits)
		snprintf(why, SKV_TEXT_MAX, "another sequence of this user is being exported");
	if (!j) {
		skv_close_fd(fd);
		return waits ? -EBUSY : -ENOMEM;
	}
	j->other = fd;
	j->work.once = true;
	j->m.max_bytes = p->bytes;
	memcpy(j->m.file, p->file, sizeof(j->m.file));
	strcpy(j->m.name, p->name);
	j->m.model = p->model;
	j->patient_until_ns = skv_now_ns() + k->server->config.disk_timeout;
	r = skv_parking_move(j, 0);
	if (r < 0) {
		snprintf(why, SKV_TEXT_MAX, "%s", strerror(-r));
		skv_parking_job_free(j);
	}
	return r;
}

/* The pipe has room, or its reader is gone, which the worker finds out. */
static void on_writable(struct skv_op *op, int res)
{
	struct skv_parking_job *j = SKV_OP_OWNER(op, struct skv_parking_job, op);
	struct skv_parking *k = j->parking;

	if (k->closed) {
		skv_parking_end(j, -ECANCELED, "the daemon is stopping");
	} else if (res < 0) { /* cancelled by the tick */
		skv_parking_end(j, -ETIMEDOUT, "its pipe was not read for too long");
	} else {
		skv_parking_enter(j, SKV_PARKING_MOVING);
		skv_worker_submit(k->workers[SKV_PARKING_EXPORT], &j->work);
	}
}

static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer)
{
	const struct skv_disk_answer *a = answer;
	const uint64_t bytes = a ? a->bytes : 0;

	j->m.offset += bytes;
	if (error || j->m.offset >= j->m.max_bytes) {
		skv_parking_end(j, error, why);
		return;
	}
	j->m.inode = a->inode;
	j->m.changed_ns = a->changed_ns;
	if (bytes)
		j->patient_until_ns = skv_now_ns() + j->parking->server->config.disk_timeout;
	skv_parking_enter(j, SKV_PARKING_READER);
	skv_op_poll(j->parking->server->loop, &j->op, j->other, POLLOUT, on_writable);
}
