/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/export.c - parked files leave for other machines: into pipes, whose readers may be slow for ever.
 *
 *   a worker writes a turn's worth → the pipe is full: this waits for its reader → the next turn, behind those of other users
 *
 * So a slow reader keeps nobody waiting but itself. A user has one export at a time, and its file stays open: if it goes meanwhile, it counts
 * towards the user's quota until the export ends (parked-files.c).
 */
#include "daemon/parking-priv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include "common/fd.h"
#include "daemon/sys/clock.h"

static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer);

static const struct skv_parking_kind kind = {SKV_PARKING_EXPORT, NULL, moved};

/* The file in the place of its folder. Negative errno, with a text. */
static int open_file(struct skv_parking_job *j, const struct skv_parked *p, char why[SKV_TEXT_MAX])
{
	const int file = openat(j->user, p->file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), r = file < 0 ? -errno : 0;

	skv_close_fd(j->user);
	j->user = file;
	if (r < 0)
		snprintf(why, SKV_TEXT_MAX, "the file of sequence '%s', %s: %s", p->name, p->file, strerror(-r));
	return r;
}

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
	strcpy(j->m.name, p->name);
	j->m.model = p->model;
	j->patient_until_ns = skv_now_ns() + k->server->config.disk_timeout;
	r = open_file(j, p, why);
	if (r == 0) {
		r = skv_parking_move(j, 0);
		if (r < 0)
			snprintf(why, SKV_TEXT_MAX, "%s", strerror(-r));
	}
	if (r < 0)
		skv_parking_job_free(j);
	return r;
}

/* Its reader has read something, or is gone, which the worker finds out. */
static void on_writable(struct skv_op *op, int res)
{
	struct skv_parking_job *j = SKV_OP_OWNER(op, struct skv_parking_job, op);
	struct skv_parking *k = j->parking;

	if (k->closed) {
		skv_parking_end(j, -ECANCELED, "the daemon is stopping");
	} else if (res < 0) { /* canceled by the tick */
		skv_parking_end(j, -ETIMEDOUT, "nobody reads from its pipe");
	} else {
		skv_parking_enter(j, SKV_PARKING_MOVING);
		skv_worker_submit(k->workers[SKV_PARKING_EXPORT], &j->work);
	}
}

static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer)
{
	const struct skv_disk_answer *a = answer;
	const uint64_t bytes = a ? a->bytes : 0;

	j->taken += bytes;
	if (error || j->taken >= j->m.max_bytes) {
		skv_parking_end(j, error, why);
		return;
	}
	if (bytes)
		j->patient_until_ns = skv_now_ns() + j->parking->server->config.disk_timeout;
	skv_parking_enter(j, SKV_PARKING_READER);
	skv_op_poll(j->parking->server->loop, &j->op, j->other, POLLOUT, on_writable);
}
