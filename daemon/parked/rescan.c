/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/rescan.c - LOOK jobs: a disk worker reads headers of parked files whose state the daemon does not know.
 *
 * After a reload of the settings, these are the files that the disk could not read before. The functions also serve
 * import.c, whose worker may have left a file if it did not answer.
 *
 * An import that is running may create a file whose name the daemon does not know yet. So the results of a LOOK job
 * after a reload are ignored while an import runs, and the files are read again later.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/sys/log.h"

struct look {
	struct skv_job job;
	struct skv_parking *parking;
	int found; /* memfd for the worker's results; -1: none yet */
};

static struct look *look_of(struct skv_job *j)
{
	return SKV_JOB_OWNER(j, struct look, job);
}

static void free_look(struct skv_job *j)
{
	skv_close_fd(look_of(j)->found);
	free(look_of(j));
}

static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer);

static const struct skv_job_kind kind = {SKV_JOBS_READ, NULL, moved, free_look};

/* Reads n block keys at offset *at of the results, and advances *at. *ret is NULL if n is 0. Returns 0 or -ENOMEM. */
static int read_keys(int found, uint32_t n, off_t *at, struct skv_parked_keys **ret)
{
	const size_t bytes = skv_parked_keys_bytes(n);

	*ret = n ? malloc(bytes) : NULL;
	if (n && (!*ret || pread(found, *ret, bytes, *at) != (ssize_t)bytes)) {
		free(*ret);
		return -ENOMEM;
	}
	*at += (off_t)bytes;
	return 0;
}

/* Returns whether the found file is in the list, or is being written by a job that parks the sequence. */
static bool is_known(const struct skv_parking *k, uint32_t uid, const struct skv_files_found *found)
{
	const struct skv_job *j = NULL;

	while ((j = skv_jobs_next(k->jobs, j, SKV_DISK_PARK, uid)) && strcmp(j->m.file, found->file))
		;
	return j || skv_files_is_listed(&k->files, uid, found);
}

int skv_parking_look_found(struct skv_parking *k, uint32_t uid, int fd, bool unknown_goes)
{
	struct skv_files_found found;
	int r = 0;

	for (off_t at = 0; r == 0 && pread(fd, &found, sizeof(found), at) == (ssize_t)sizeof(found);) {
		const size_t n = k->files.n;
		struct skv_parked_keys *keys;

		at += (off_t)sizeof(found);
		r = read_keys(fd, found.header.n_keys, &at, &keys);
		if (r < 0)
			break;
		/* files that could not be read before are the user's sequences: only a reload's look enters them */
		if (is_known(k, uid, &found) || (unknown_goes && skv_files_is_unread(&k->files, uid, found.file))) {
			free(keys);
			continue;
		}
		r = skv_files_enter(&k->files, uid, &found, keys, skv_parking_odd);
		if (unknown_goes && k->files.n > n)
			skv_parking_remove(k, k->files.all[n]);
	}
	return r;
}

void skv_parking_odd(const char *file, const char *why)
{
	skv_log_peer(LOG_WARNING, "parked-path: %s is left alone: %s", file, why);
}

/* Is one of the jobs that a reload has begun under way? */
static bool looks(const struct skv_parking *k)
{
	const struct skv_job *j = k->jobs->all;

	while (j && j->kind != &kind)
		j = j->next;
	return j != NULL;
}

/* Is an import of the user under way, or its search for what it left? */
static bool imports(const struct skv_parking *k, uint32_t uid)
{
	const struct skv_job *j = k->jobs->all;

	while (j && (j->m.uid != uid || j->kind == &kind || (j->m.kind != SKV_DISK_IMPORT && j->m.kind != SKV_DISK_LOOK)))
		j = j->next;
	return j != NULL;
}

static void all_looked_at(struct skv_parking *k)
{
	unsigned gone;

	skv_log(LOG_NOTICE,
	        "parked-path was searched again: %zu sequences and sealed prefixes are known; %zu files and folders "
	        "cannot be read",
	        k->files.n, k->files.n_unread);
	skv_parking_remove_known(k);
	(void)skv_parking_index_prefixes(k->server, &gone);
}

static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer)
{
	struct skv_parking *k = look_of(j)->parking;
	const bool closed = j->jobs->closed;

	(void)why, (void)answer;
	if (imports(k, j->m.uid)) {
		k->look_again = true;
	} else if (!closed) {
		skv_files_looked(&k->files, j->m.uid, j->m.file, error == -ENOENT ? 0 : error, skv_parking_odd);
		if (error == 0 && skv_parking_look_found(k, j->m.uid, look_of(j)->found, false) < 0)
			skv_log(LOG_ERR,
			        "parked-path: out of memory for the files that were found in the folder of user %u: "
			        "reload the daemon again",
			        j->m.uid);
	}
	skv_job_free(j);
	if (!closed && !looks(k))
		all_looked_at(k);
}

int skv_parking_look_move(struct skv_parking *k, struct skv_job *j, int *ret_found)
{
	*ret_found = memfd_create("skv-found", MFD_CLOEXEC);
	return *ret_found < 0 ? -errno : skv_job_move(j, k->files.folder, *ret_found);
}

static int begin(struct skv_parking *k, const struct skv_unread *u)
{
	struct look *x = calloc(1, sizeof(*x));
	int r;

	if (!x)
		return -ENOMEM;
	x->parking = k;
	skv_job_begin(&x->job, k->jobs, &kind, SKV_DISK_LOOK, u->uid);
	memcpy(x->job.m.file, u->file, sizeof(x->job.m.file));
	r = skv_parking_look_move(k, &x->job, &x->found);
	if (r < 0)
		skv_job_free(&x->job);
	return r;
}

void skv_parking_look_again(struct skv_server *s)
{
	struct skv_parking *k = s->parking;
	int r = 0;

	if (!k || !k->look_again || skv_jobs_any(k->jobs, SKV_DISK_IMPORT) || looks(k))
		return;
	k->look_again = false;
	for (size_t i = 0; i < k->files.n_unread && r == 0; i++)
		r = begin(k, &k->files.unread[i]);
	if (r < 0) {
		skv_log(LOG_ERR, "parked-path: files that could not be read cannot be searched for again now: %s; the "
		                 "search is retried",
		        strerror(-r));
		k->look_again = true;
	}
}
