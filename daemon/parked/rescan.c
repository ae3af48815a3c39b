/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/rescan.c - a worker looks at files whose state is not known: after a reload those that the disk could not
 * deliver, and those that an import may have left whose worker did not answer.
 *
 * An import that is under way may create a file of a name that is not known yet, so results of a look are ignored
 * while one runs.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "daemon/sys/log.h"

static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer);

static const struct skv_parking_kind kind = {SKV_PARKING_IN, NULL, moved};

static bool is_under_way(const struct skv_parking *k, uint32_t disk_kind)
{
	const struct skv_parking_job *j = k->jobs;

	while (j && j->m.kind != disk_kind)
		j = j->next;
	return j != NULL;
}

/* Reads the keys at *at and advances *at. 0, or -ENOMEM. */
static int read_keys(const struct skv_parking_job *j, uint32_t n, off_t *at, struct skv_parked_keys **ret)
{
	const size_t bytes = skv_parked_keys_bytes(n);

	*ret = n ? malloc(bytes) : NULL;
	if (n && (!*ret || pread(j->other, *ret, bytes, *at) != (ssize_t)bytes)) {
		free(*ret);
		return -ENOMEM;
	}
	*at += (off_t)bytes;
	return 0;
}

int skv_parking_look_found(struct skv_parking_job *j, bool unknown_goes)
{
	struct skv_parking *k = j->parking;
	struct skv_files_found found;
	int r = 0;

	for (off_t at = 0; r == 0 && pread(j->other, &found, sizeof(found), at) == (ssize_t)sizeof(found);) {
		const size_t n = k->files.n;
		struct skv_parked_keys *keys;

		at += (off_t)sizeof(found);
		r = read_keys(j, found.header.n_keys, &at, &keys);
		if (r < 0)
			break;
		if (skv_files_is_listed(&k->files, j->m.uid, &found) || skv_parking_is_about_to_be(k, j->m.uid, found.file)) {
			free(keys); /* it was in memory, and was parked again */
			continue;
		}
		r = skv_files_enter(&k->files, j->m.uid, &found, keys, skv_parking_odd);
		if (unknown_goes && k->files.n > n)
			skv_parking_remove(k, k->files.all[n]);
	}
	return r;
}

static void all_looked_at(struct skv_parking *k)
{
	unsigned gone;

	skv_log(LOG_NOTICE, "parked-path: %zu sequences and sealed prefixes are known after another look; %zu files and folders cannot be read",
	        k->files.n, k->files.n_unread);
	skv_parking_remove_known(k);
	(void)skv_parking_index_prefixes(k->server, &gone);
}

static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer)
{
	struct skv_parking *k = j->parking;

	(void)why, (void)answer;
	if (is_under_way(k, SKV_DISK_IMPORT)) {
		k->look_again = true;
	} else if (!k->closed) {
		skv_files_looked(&k->files, j->m.uid, j->m.file, error == -ENOENT ? 0 : error, skv_parking_odd);
		if (error == 0 && skv_parking_look_found(j, false) < 0)
			skv_log(LOG_ERR, "parked-path: no memory for what was found in the folder of user %u: reload once more", j->m.uid);
	}
	skv_parking_job_free(j);
	if (!k->closed && !is_under_way(k, SKV_DISK_LOOK))
		all_looked_at(k);
}

int skv_parking_look_move(struct skv_parking_job *j)
{
	const int to = memfd_create("skv-found", MFD_CLOEXEC);

	if (to < 0)
		return -errno;
	j->other = to;
	return skv_parking_move(j, 0);
}

static int begin(struct skv_parking *k, const struct skv_unread *u)
{
	char why[SKV_TEXT_MAX];
	struct skv_parking_job *j = skv_parking_job_new(k, &kind, SKV_DISK_LOOK, u->uid, why);
	int r = j ? 0 : -ENOMEM;

	if (r == 0) {
		memcpy(j->m.file, u->file, sizeof(j->m.file));
		r = skv_parking_look_move(j);
	}
	if (r < 0 && j)
		skv_parking_job_free(j);
	return r;
}

void skv_parking_look_again(struct skv_server *s)
{
	struct skv_parking *k = s->parking;
	int r = 0;

	if (!k || !k->look_again || is_under_way(k, SKV_DISK_IMPORT) || is_under_way(k, SKV_DISK_LOOK))
		return;
	k->look_again = false;
	for (size_t i = 0; i < k->files.n_unread && r == 0; i++)
		r = begin(k, &k->files.unread[i]);
	if (r < 0) {
		skv_log(LOG_ERR, "parked-path: what could not be read cannot be looked at again: %s; it is retried",
		        strerror(-r));
		k->look_again = true;
	}
}
