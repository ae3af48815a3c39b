/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/import.c - imports parked files from other machines.
 *
 * The sender of a file may be slow. So imports have a disk worker of their own, which limits how long it waits for data
 * (disk/import.c). An import that fails is not retried.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/fd.h"
#include "daemon/core/operations/requests.h"
#include "daemon/sys/log.h"

struct import {
	struct skv_job job;
	struct skv_parking *parking;
	struct skv_parked *reserved; /* list entry for the file; NULL once the file is written and in the list */
	int source;                  /* descriptor to read from; of a LOOK job: memfd for its results */
	int error;                   /* LOOK: error of the import that failed before, whose text is in `why` */
	char why[SKV_TEXT_MAX];
};

static struct import *import_of(struct skv_job *j)
{
	return SKV_JOB_OWNER(j, struct import, job);
}

/* Closes a descriptor in a thread of the ring: the close of an operator's file may take long (FUSE). */
static void close_source(const struct skv_jobs *jobs, int fd)
{
	if (jobs->closed)
		skv_close_fd(fd);
	else if (fd >= 0)
		skv_loop_close_fd(jobs->config.loop, fd);
}

static void free_import(struct skv_job *j)
{
	struct import *x = import_of(j);

	skv_files_unreserve(&x->parking->files, x->reserved);
	close_source(j->jobs, x->source);
	free(x);
}

static void look(struct skv_job *j);
static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer);

static const struct skv_job_kind kind = {SKV_JOBS_IMPORT, look, moved, free_import};

int skv_parking_begin_import(struct skv_parking *k, uint32_t uid, int fd, struct skv_job_ask *ask,
                             char why[SKV_TEXT_MAX])
{
	const bool waits = skv_jobs_has(k->jobs, &kind, uid);
	struct import *x = waits ? NULL : calloc(1, sizeof(*x));
	bool has_room;
	int r;

	if (!x) {
		snprintf(why, SKV_TEXT_MAX,
		         waits ? "another sequence of this user is being imported" : "the daemon is out of memory");
		close_source(k->jobs, fd);
		return waits ? -EBUSY : -ENOMEM;
	}
	x->parking = k;
	x->source = fd;
	skv_job_begin(&x->job, k->jobs, &kind, SKV_DISK_IMPORT, uid);
	x->job.work.once = true;
	x->job.m.patience_ms = k->server->config.disk_timeout / 1000000u;
	x->reserved = skv_files_reserve(&k->files, uid);
	has_room = skv_parking_quota_allows(k, uid, 1, &x->job.m.max_bytes);
	r = !x->reserved ? -ENOMEM : !has_room ? -EDQUOT : skv_job_wait(&x->job, ask);
	if (r == 0)
		r = skv_job_move(&x->job, k->files.folder, x->source);
	if (r < 0)
		(void)skv_job_not_begun(&x->job, r, why);
	if (r == -EDQUOT)
		snprintf(why, SKV_TEXT_MAX,
		         "the user's quota for parked sequences is used up (account-parked-bytes, account-sequences)");
	return r;
}

/*
 * The LOOK job for a file that the import may have left has failed. Answers the request for the import, unless that is
 * done already. The LOOK job is retried each second.
 */
static void look_failed(struct import *x, int error)
{
	if (x->job.asked)
		skv_log(LOG_ERR, "user %u: a failed import may have left a file, but the user's folder cannot be "
		                 "searched: %s; the search is retried",
		        x->job.m.uid, strerror(-error));
	close_source(x->job.jobs, x->source);
	x->source = -1;
	skv_job_answer_all(&x->job, x->error, x->why, 0);
	skv_job_enter(&x->job, SKV_JOB_OTHERS);
}

/* Is a sequence of the user being parked? Its file counts as known, but stays unknown if the PARK job fails. */
static bool is_parking(const struct import *x)
{
	return skv_jobs_next(x->job.jobs, NULL, SKV_DISK_PARK, x->job.m.uid) != NULL;
}

static void look(struct skv_job *j)
{
	struct import *x = import_of(j);
	int r;

	if (is_parking(x)) {
		skv_job_enter(j, SKV_JOB_OTHERS);
		return;
	}
	r = skv_parking_look_move(x->parking, j, &x->source);
	if (r < 0)
		look_failed(x, r);
}

/*
 * After an import that may have left a file: begins a LOOK job, which removes files of the user's folder that are not
 * in the list. A worker that answers with an error has left no file, or names the file in its answer; a worker that
 * does not answer may have given the file its name already. Until the LOOK job ends, the user cannot begin another
 * import.
 */
static void look_for_rest(struct import *x, int error, const char *why)
{
	x->error = error;
	snprintf(x->why, sizeof(x->why), "%s", why);
	x->job.m.kind = SKV_DISK_LOOK;
	x->job.m.file[0] = 0;
	x->job.work.once = false;
	close_source(x->job.jobs, x->source);
	x->source = -1;
	look(&x->job);
}

static void looked(struct import *x, int error)
{
	if (error == 0)
		error = skv_parking_look_found(x->parking, x->job.m.uid, x->source, true);
	if (error == -ENOENT)
		error = 0; /* the user has no folder, and so no file */
	if (error && !x->job.jobs->closed)
		look_failed(x, error);
	else
		skv_job_end(&x->job, x->error, x->why, 0);
}

/*
 * Enters an imported file into the list. The file is complete and has the name that follows from its header. If a
 * sequence in memory has the name of the imported one, or the quota has no room any more, the file is removed again.
 */
static void imported(struct import *x, const struct skv_parked_header *h)
{
	static const char in_memory[] = "a sequence of this name is in memory already";
	struct skv_parking *k = x->parking;
	struct skv_parked *file = x->reserved;
	const uint32_t uid = x->job.m.uid;
	struct skv_model m;
	uint64_t left;
	int r = 0;

	skv_wire_to_model(&m, &h->model);
	if (skv_core_seq_exists(k->server->core, uid, &m, h->name))
		r = -EEXIST;
	else if (!skv_parking_quota_allows(k, uid, h->file_bytes, &left)) /* other sequences were parked meanwhile */
		r = -EDQUOT;
	if (r == -EEXIST && is_parking(x)) { /* the sequence's own file may have replaced this one, or is about to */
		look_for_rest(x, r, in_memory);
		return;
	}
	x->reserved = NULL;
	if (r == 0) {
		skv_parking_written(k, &x->job.m, file, h, NULL);
	} else {
		skv_parking_enter(k, &x->job.m, file, h, NULL);
		skv_parking_remove(k, file);
	}
	skv_job_end(&x->job, r, r == 0 ? "" : r == -EEXIST ? in_memory : strerror(-r), file->bytes);
}

static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer)
{
	struct import *x = import_of(j);

	if (j->m.kind == SKV_DISK_LOOK) {
		looked(x, error);
		return;
	}
	if (error) {
		if (!j->jobs->closed && (!answer || *answer->file))
			look_for_rest(x, error, why);
		else
			skv_job_end(j, error, why, 0);
		return;
	}
	snprintf(j->m.file, sizeof(j->m.file), "%.*s", (int)sizeof(answer->file) - 1, answer->file);
	imported(x, &answer->header);
}
