/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/import.c - imports parked files from other machines.
 *
 * The sender of a file may be slow. So imports have a worker of their own, which limits how long it waits
 * (disk/import.c). An import is not retried.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/sys/log.h"


static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer);

static const struct skv_parking_kind kind = {SKV_PARKING_IMPORT, NULL, moved};

int skv_parking_begin_import(struct skv_parking *k, uint32_t uid, int fd, struct skv_parking_ask *ask, char why[SKV_TEXT_MAX])
{
	const bool waits = skv_parking_has_job(k, &kind, uid);
	struct skv_parking_job *j = waits ? NULL : skv_parking_job_new(k, &kind, SKV_DISK_IMPORT, uid, why);
	int r = 0;

	if (waits)
		snprintf(why, SKV_TEXT_MAX, "another sequence of this user is being imported");
	if (!j) {
		skv_close_fd(fd);
		return waits ? -EBUSY : -ENOMEM;
	}
	j->other = fd;
	j->work.once = true;
	j->m.patience_ms = k->server->config.disk_timeout / 1000000u;
	j->reserved = skv_files_reserve(&k->files, uid);
	if (!j->reserved) {
		r = -ENOMEM;
	} else if (!skv_parking_quota_allows(k, uid, 1, &j->m.max_bytes)) {
		r = -EDQUOT;
		snprintf(why, SKV_TEXT_MAX, "the user's quota for parked sequences is used up (account-parked-bytes, account-sequences)");
	}
	if (r == 0)
		r = skv_parking_wait(j, ask);
	if (r == 0)
		r = skv_parking_move(j, 0);
	if (r < 0) {
		if (r != -EDQUOT)
			snprintf(why, SKV_TEXT_MAX, "%s", strerror(-r));
		if (j->asked)
			ask->jobs--;
		free(j->asked);
		skv_parking_job_free(j);
	}
	return r;
}

/*
 * A worker that answers with an error has left no file, or names it. One that does not answer may have renamed the
 * file already. Then another job looks at the folder and removes what is not known; until it ends this user can begin
 * no other import. False: the job could not be started.
 */
static bool look_for_rest(struct skv_parking_job *j, int error, const char *why)
{
	j->error = error;
	snprintf(j->why, sizeof(j->why), "%s", why);
	j->m.kind = SKV_DISK_LOOK;
	j->m.file[0] = 0;
	j->work.once = false;
	j->other = skv_close_fd(j->other);
	free(j->fds);
	j->fds = NULL;
	return skv_parking_look_move(j) == 0;
}

static void looked(struct skv_parking_job *j, int error)
{
	if (error == 0)
		error = skv_parking_look_found(j, true);
	if (error && !j->parking->closed)
		skv_log(LOG_ERR, "user %u: an import may have left a file, but the folder cannot be searched: %s",
		        j->m.uid, strerror(-error));
	skv_parking_end(j, j->error, j->why);
}

/*
 * The file is complete, under the name that its header gives, which no parked sequence had. A sequence in memory may
 * have that name.
 */
static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer)
{
	const struct skv_disk_answer *a = answer;
	struct skv_parking *k = j->parking;
	const struct skv_parked_header *h;
	char text[SKV_TEXT_MAX];
	struct skv_model m;
	uint64_t left;
	int r = 0;

	if (j->m.kind == SKV_DISK_LOOK) {
		looked(j, error);
		return;
	}
	if (error && !k->closed && (!a || *a->file) && look_for_rest(j, error, why))
		return;
	if (error) {
		skv_parking_end(j, error, why);
		return;
	}
	snprintf(j->m.file, sizeof(j->m.file), "%.*s", (int)sizeof(a->file) - 1, a->file);
	h = &a->header;
	skv_wire_to_model(&m, &h->model);
	if (skv_core_seq_exists(k->server->core, j->m.uid, &m, h->name)) {
		r = -EEXIST;
		why = "there is a sequence of this name in memory";
	} else if (!skv_parking_quota_allows(k, j->m.uid, h->file_bytes, &left)) { /* others were parked meanwhile */
		r = -EDQUOT;
	}
	skv_parking_written(j, h, NULL);
	if (r < 0)
		skv_parking_remove(k, j->file);
	snprintf(text, sizeof(text), "%s", r == 0 ? "" : r == -EEXIST ? why : strerror(-r));
	skv_parking_end(j, r, text);
}
