/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/parked-files.c - files of parked sequences and sealed prefixes: removal and quotas.
 *
 * A sealed prefix on disk can be computed again, a parked sequence cannot. So sequences take precedence in the user's
 * quota and on the disk: the quota check of a sequence does not count prefixes, and the least recently used prefixes
 * are removed to make room for the sequence's file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/core/memory/pins.h"
#include "daemon/core/operations/requests.h"
#include "daemon/parked/parking-priv.h"
#include "daemon/sys/log.h"

/* ---- removal ---------------------------------------------------------------------------------- */

struct removal {
	struct skv_worker_job work;
	struct skv_disk_job m;
	struct skv_parking *parking;
	struct skv_parked *file;
	int fds[2];
};

static void not_removed(const struct skv_parked *p, int error)
{
	skv_log_peer(LOG_ERR, "parked file %u/%s cannot be removed: %s", p->uid, p->file, strerror(-error));
}

void skv_parking_forget(struct skv_parking *k, struct skv_parked *p)
{
	if (p->indexed)
		skv_block_index_remove(&k->prefixes, (uintptr_t)p, p->keys->key, p->n_keys);
	skv_core_unpin(k->server->core, (uid_t)p->uid, &p->pinned);
	skv_files_forget(&k->files, p);
}

/*
 * Called when the worker has removed the file, or has failed to. A missing folder counts as a removed file. A removal
 * that fails because the workers are closed is left to skv_parking_remove_rest().
 */
static void removed(struct skv_worker_job *work, int error, const char *why, const void *answer)
{
	struct removal *x = SKV_JOB_OWNER(work, struct removal, work);
	struct skv_parked *p = x->file;

	(void)why, (void)answer;
	p->leaving = false;
	x->parking->n_leaving_prefixes -= skv_parked_is_prefix(p);
	x->parking->jobs->settled = true;
	if (error == 0 || error == -ENOENT)
		skv_parking_forget(x->parking, p);
	else if (!x->parking->jobs->closed)
		not_removed(p, error);
	free(x);
}

static void begin_removal(struct skv_parking *k, struct skv_parked *p)
{
	struct removal *x = malloc(sizeof(*x));

	if (!x) {
		not_removed(p, -ENOMEM);
		return;
	}
	*x = (struct removal){
		.work = {.job = &x->m,
	                 .bytes = sizeof(x->m),
	                 .fds = x->fds,
	                 .n_fds = 2,
	                 .user = p->uid,
	                 .done = removed},
		.m = {.kind = SKV_DISK_REMOVE, .n_fds = 2, .uid = p->uid},
		.parking = k,
		.file = p,
		.fds = {k->jobs->lock, k->files.folder},
	};
	memcpy(x->m.file, p->file, sizeof(x->m.file));
	p->leaving = true;
	k->n_leaving_prefixes += skv_parked_is_prefix(p);
	skv_worker_submit(k->jobs->workers[SKV_JOBS_REMOVE], &x->work);
}

/*
 * The list entry stays until the file is gone, so that a removal that fails is retried: the next daemon would take a
 * file that remains for a parked sequence.
 */
void skv_parking_remove(struct skv_parking *k, struct skv_parked *p)
{
	skv_files_set_going(p, true);
	begin_removal(k, p);
}

void skv_parking_remove_again(struct skv_parking *k, struct skv_parked *p)
{
	if (p->going && !p->leaving)
		begin_removal(k, p);
}

void skv_parking_remove_rest(struct skv_parking *k)
{
	for (size_t i = 0; i < k->files.n && !k->server->failure; i++) {
		const struct skv_parked *p = k->files.all[i];
		int user = p->going ? skv_files_user(k->files.folder, p->uid, false) : -1;
		int r = user < 0 ? user : skv_files_remove(user, p->file);

		if (p->going && r < 0 && r != -ENOENT)
			not_removed(p, r);
		skv_close_fd(user);
	}
}

/*
 * If a sequence is in memory and in a file, the memory is authoritative, and the file must be gone before the sequence
 * can be dropped. A sealed prefix never changes, so it may be in both.
 */
void skv_parking_remove_known(struct skv_parking *k)
{
	for (size_t i = k->files.n; i > 0; i--) {
		struct skv_parked *p = k->files.all[i - 1];
		struct skv_model m;

		skv_wire_to_model(&m, &p->model);
		if (!skv_parked_is_prefix(p) && !p->going && skv_core_seq_exists(k->server->core, p->uid, &m, p->name))
			skv_parking_remove(k, p);
	}
}

/* ---- what was written ------------------------------------------------------------------------- */

void skv_parking_used(struct skv_parked *p)
{
	skv_files_used(p, skv_real_ns());
	p->since_ns = skv_now_ns();
	p->age_ns = 0;
}

void skv_parking_enter(struct skv_parking *k, const struct skv_disk_job *m, struct skv_parked *reserved,
                       const struct skv_parked_header *h, struct skv_parked_keys *keys)
{
	struct skv_parked_header known = {.model = m->model};

	memcpy(known.name, m->name, sizeof(known.name));
	skv_files_put(&k->files, reserved, m->file, h ? h : &known, keys);
	skv_parking_used(reserved);
}

void skv_parking_written(struct skv_parking *k, const struct skv_disk_job *m, struct skv_parked *reserved,
                         const struct skv_parked_header *h, struct skv_parked_keys *keys)
{
	skv_parking_enter(k, m, reserved, h, keys);
	skv_parking_trim_prefixes(k, m->uid);
}

/* ---- quotas ---------------------------------------------------------------------------------- */

/*
 * Returns number and bytes of the files of the user's sequences, or of its sealed prefixes. Files that are being
 * written by PARK jobs count with their maximum size. Imports do not count until they are complete: their size is not
 * known.
 */
static void sum(const struct skv_parking *k, uint32_t uid, bool prefixes, uint64_t *ret_files, uint64_t *ret_bytes)
{
	skv_files_sum(&k->files, uid, prefixes, ret_files, ret_bytes);
	for (const struct skv_job *j = NULL; (j = skv_jobs_next(k->jobs, j, SKV_DISK_PARK, uid));)
		if (j->state == SKV_JOB_MOVING && (j->m.n_keys > 0) == prefixes) {
			*ret_files += 1;
			*ret_bytes += j->m.max_bytes;
		}
}

bool skv_parking_quota_allows(struct skv_parking *k, uint32_t uid, uint64_t more, uint64_t *ret_left)
{
	const struct skv_config *config = &k->server->config;
	uint64_t files, bytes;

	sum(k, uid, false, &files, &bytes);
	*ret_left = 0;
	if (bytes < config->account_parked_bytes && files < config->account_sequences)
		*ret_left = config->account_parked_bytes - bytes;
	return more <= *ret_left;
}

static void evict(struct skv_parking *k, struct skv_parked *p)
{
	skv_count(k->server->counts, (uid_t)p->uid, SKV_COUNT_PREFIXES_EVICTED, 1);
	skv_parking_remove(k, p);
}

void skv_parking_trim_prefixes(struct skv_parking *k, uint32_t uid)
{
	const struct skv_config *config = &k->server->config;
	uint64_t files, bytes, prefixes, prefix_bytes;
	struct skv_parked *p;

	sum(k, uid, false, &files, &bytes);
	for (;;) {
		sum(k, uid, true, &prefixes, &prefix_bytes);
		if (files + prefixes <= config->account_sequences &&
		    bytes + prefix_bytes <= config->account_parked_bytes)
			return;
		p = skv_files_oldest_prefix(&k->files, uid);
		if (!p)
			return;
		evict(k, p);
	}
}

bool skv_parking_free_disk(struct skv_parking *k)
{
	struct skv_parked *p = skv_files_oldest_prefix(&k->files, UINT32_MAX);

	if (p)
		evict(k, p);
	return p != NULL;
}

bool skv_parking_frees_disk(const struct skv_parking *k)
{
	return k->n_leaving_prefixes > 0;
}
