/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/park.c - parks a sequence: from memory to a file.
 *
 * The core first lists and checks the page table entries, since the sequence's user may still write to its page tables.
 * When the file is complete, the sequence's memory is freed. If a client has attached the sequence meanwhile, the file
 * is removed instead, except that of a sealed prefix: it never changes, and the prefix is parked without writing next
 * time.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "daemon/core/operations/parking.h"
#include "daemon/core/operations/prefix.h"
#include "daemon/jobs/memory.h"
#include "daemon/requests/lease.h"
#include "daemon/requests/reply.h"
#include "daemon/sys/log.h"

#define TAKEN "a client has attached the sequence meanwhile, or the sequence was dropped"

struct park {
	struct skv_job job;
	struct skv_job_memory memory;
	struct skv_parking *parking;
	struct skv_parked *reserved; /* list entry for the file; NULL once the file is written and in the list */
	struct skv_parked *file;     /* list entry of the file that was written; NULL: none yet */
	bool insisted; /* this job has begun to remove an earlier file of the same name */
	bool again;    /* the disk was full: the file is written again when a sealed prefix is removed from the disk */
};

static struct park *park_of(struct skv_job *j)
{
	return SKV_JOB_OWNER(j, struct park, job);
}

static void free_park(struct skv_job *j)
{
	struct park *p = park_of(j);

	skv_job_memory_free(j, &p->memory);
	skv_files_unreserve(&p->parking->files, p->reserved);
	free(p);
}

static void turn(struct skv_job *j);
static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer);

static const struct skv_job_kind kind = {SKV_JOBS_WRITE, turn, moved, free_park};

/*
 * Parks a sealed prefix that has a file already, without a job: frees its memory, with the result in *ret. Returns
 * false if the sequence has no such file, or is not a sealed prefix.
 */
static bool is_known(struct skv_parking *k, uint32_t seq, const struct skv_core_location *at, struct skv_job_ask *ask,
                     int *ret)
{
	struct skv_parked *p = skv_files_find(&k->files, at->uid, at->model->name, at->model->rank, at->model->n_ranks,
	                                      at->name);

	if (!p || !p->indexed || p->going)
		return false;
	skv_parking_used(p);
	*ret = skv_core_park_known(k->server->core, seq);
	if (ask)
		ask->done += *ret == 0;
	return true;
}

static int refuse_core(const struct skv_parking *k, int r, char why[SKV_TEXT_MAX])
{
	snprintf(why, SKV_TEXT_MAX, "%s", r < 0 ? strerror(-r) : skv_core_why(k->server->core));
	return r < 0 ? r : -EBUSY;
}

/* Creates the job that parks the sequence at this location. Returns 0 or -ENOMEM; *ret may be set even then. */
static int begin(struct skv_parking *k, const struct skv_core_location *at, struct park **ret)
{
	struct park *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	*p = (struct park){.memory = SKV_JOB_MEMORY_NULL, .parking = k};
	skv_job_begin(&p->job, k->jobs, &kind, SKV_DISK_PARK, (uint32_t)at->uid);
	skv_wire_from_model(&p->job.m.model, at->model);
	strcpy(p->job.m.name, at->name);
	p->job.m.max_tokens = at->max_tokens;
	p->job.m.commit = at->commit;
	p->job.m.page_bytes = at->page_bytes;
	skv_parked_file(at->model->name, at->model->rank, at->model->n_ranks, at->name, p->job.m.file);
	p->reserved = skv_files_reserve(&k->files, (uint32_t)at->uid);
	*ret = p;
	return p->reserved ? 0 : -ENOMEM;
}

int skv_parking_begin_park(struct skv_parking *k, uint32_t seq, struct skv_job_ask *ask, char why[SKV_TEXT_MAX])
{
	struct skv_core_location at;
	struct park *p = NULL;
	int r = skv_core_seq_location(k->server->core, seq, &at);

	if (r || is_known(k, seq, &at, ask, &r))
		return r ? refuse_core(k, r, why) : 0;
	if (at.pages_fd < 0 && k->server->config.ipc == SKV_IPC_LEGACY) {
		snprintf(why, SKV_TEXT_MAX,
		         "a sequence in device memory cannot be parked with ipc = legacy, as this memory belongs to "
		         "the worker alone");
		return -EOPNOTSUPP;
	}
	r = begin(k, &at, &p);
	if (r == 0)
		r = skv_job_wait(&p->job, ask);
	if (r == 0)
		r = skv_job_memory_list(&p->job, &p->memory, seq, &at);
	if (r && p)
		return skv_job_not_begun(&p->job, r, why);
	if (r)
		snprintf(why, SKV_TEXT_MAX, "the daemon is out of memory");
	else
		skv_job_enter(&p->job, SKV_JOB_TURNS);
	return r;
}

static void park_failed(struct park *p, int error, const char *why)
{
	const struct skv_disk_job *m = &p->job.m;
	struct skv_server *s = p->parking->server;

	skv_core_park_failed(s->core, p->memory.seq,
	                     skv_now_ns()); /* a sealed prefix is then dropped, not parked, when its memory is needed */
	if (error != -ECANCELED && error != -EBUSY) {
		skv_log_peer(LOG_WARNING, "sequence %s of model %s, uid %u, cannot be parked and stays in memory: %s",
		             m->name, m->model.name, m->uid, why);
		skv_count(s->counts, (uid_t)m->uid, SKV_COUNT_PARKING_FAILED, 1);
	}
	skv_job_end(&p->job, error, why, 0);
	skv_lease_retry(s); /* requests that wait for this sequence's memory must wait for other memory, or fail */
}

/* Returns an upper bound of the file's size: the size of the policy's state is not known yet. */
static uint64_t file_bytes(const struct skv_disk_job *m)
{
	struct skv_parked_header h = {
		.model = m->model,
		.max_tokens = m->max_tokens,
		.commit = m->commit,
		.state_bytes = SKV_SEQ_STATE_MAX,
		.n_entries = m->n_entries,
		.n_pages = m->n_pages,
		.page_bytes = m->page_bytes,
		.n_keys = m->n_keys,
	};

	skv_parked_lay_out(&h);
	return h.file_bytes;
}

/* Writes a sealed prefix's block keys and their tag to the list, at m.keys_at. Returns 0 or -ENOSPC. */
static int list_keys(struct park *p, const struct skv_block_key *keys)
{
	const struct skv_disk_job *m = &p->job.m;
	const size_t bytes = m->n_keys * sizeof(*keys);
	const off_t at = (off_t)m->keys_at;
	uint8_t tag[SKV_PARKED_TAG];

	p->parking->ops->tag(p->parking->server, (uid_t)m->uid, keys, m->n_keys, tag);
	return pwrite(p->memory.list, tag, sizeof(tag), at) == sizeof(tag) &&
	                       pwrite(p->memory.list, keys, bytes, at + (off_t)sizeof(tag)) == (ssize_t)bytes
	               ? 0
	               : -ENOSPC;
}

/*
 * Hands a job whose entries are all listed to the worker, if the user's quota has room for the file. Returns 0, 1 if
 * the job needs another turn, or a negative errno; -EDQUOT with a text.
 */
static int write_file(struct park *p, char why[SKV_TEXT_MAX])
{
	struct skv_parking *k = p->parking;
	struct skv_disk_job *m = &p->job.m;
	const struct skv_block_key *keys;
	struct skv_core_location at;
	uint64_t left;
	int r = 0;

	if (skv_core_seq_location(k->server->core, p->memory.seq, &at))
		return -EBUSY;
	r = skv_job_memory_mark(&p->job, &p->memory, at.pages_per_segment);
	if (r)
		return r < 0 ? -EBUSY : r;
	if (m->name[0] == '/' && skv_core_prefix_keys(k->server->core, p->memory.seq, &keys, &m->n_keys))
		return -EBUSY;
	m->keys_at = (m->n_entries + p->memory.n_segments) * sizeof(skv_pte); /* after the numbers of segments */
	m->max_bytes = file_bytes(m);
	if (!skv_parking_quota_allows(k, m->uid, m->max_bytes, &left)) {
		snprintf(why, SKV_TEXT_MAX,
		         "its file may take %llu bytes, and the user's quota (account-parked-bytes, account-sequences) "
		         "leaves room for %llu",
		         (unsigned long long)m->max_bytes, (unsigned long long)left);
		return -EDQUOT;
	}
	if (m->n_keys)
		r = list_keys(p, keys);
	if (r == 0)
		r = skv_job_memory_move(&p->job, &p->memory, k->files.folder, m->n_entries * sizeof(skv_pte));
	if (r == 0)
		skv_parking_trim_prefixes(k, m->uid);
	return r == -ESTALE ? -EBUSY : r;
}

/*
 * Called when all entries of the sequence are listed: hands the job to the worker. But while a file of the same name,
 * or a prefix whose removal makes room on a full disk, is being removed, the job waits.
 */
static void park_listed(struct park *p)
{
	const struct skv_disk_job *m = &p->job.m;
	struct skv_parking *k = p->parking;
	struct skv_parked *old;
	char why[SKV_TEXT_MAX];
	int r;

	old = skv_files_find(&k->files, m->uid, m->model.name, m->model.rank, m->model.n_ranks, m->name);
	if (old && !old->leaving && !p->insisted) {
		p->insisted = true;
		skv_parking_remove(k, old);
	}
	if (old && !old->leaving) {
		park_failed(p, -EIO, "an earlier file of this sequence cannot be removed");
		return;
	}
	if (old || (p->again && skv_parking_frees_disk(k))) {
		skv_job_enter(&p->job, SKV_JOB_OTHERS);
		return;
	}
	r = write_file(p, why);
	if (r > 0)
		skv_job_enter(&p->job, SKV_JOB_TURNS);
	if (r == -EBUSY)
		snprintf(why, sizeof(why), TAKEN);
	else if (r == -EDQUOT && m->n_keys)
		r = -ECANCELED; /* an error that is not logged: a sealed prefix can be computed again */
	else if (r < 0 && r != -EDQUOT)
		snprintf(why, sizeof(why), "%s", strerror(-r));
	if (r < 0)
		park_failed(p, r, why);
}

static void turn(struct skv_job *j)
{
	struct park *p = park_of(j);
	char why[SKV_TEXT_MAX];
	int r = skv_job_memory_list_some(j, &p->memory);

	if (r == 0) {
		park_listed(p);
	} else if (r != SKV_CORE_E_TURNS) {
		snprintf(why, sizeof(why), "%s",
		         r == SKV_CORE_E_NOENT ? TAKEN : skv_core_why(p->parking->server->core));
		park_failed(p, r == SKV_CORE_E_NOENT ? -EBUSY : -skv_core_errno((enum skv_core_error)r), why);
	}
}

/* Enters the file into the list: it was written, or may have been written by a worker that failed. */
static void put_file(struct park *p, const struct skv_parked_header *h, struct skv_parked_keys *keys)
{
	p->file = p->reserved;
	p->reserved = NULL;
	skv_parking_written(p->parking, &p->job.m, p->file, h, keys);
}

/* Removes the file that was written, since the sequence stays in memory. */
static void remove_file(struct park *p)
{
	p->file->seq = p->memory.seq;
	skv_parking_remove(p->parking, p->file);
}

/* The disk was full: begins to remove a sealed prefix, after which the file is written again. False: there is none. */
static bool writes_again(struct park *p)
{
	struct skv_parking *k = p->parking;

	p->reserved = skv_files_reserve(&k->files, p->job.m.uid);
	if (!p->reserved || !skv_parking_free_disk(k))
		return false;
	p->file = NULL;
	p->insisted = p->again = true;
	skv_job_enter(&p->job, SKV_JOB_OTHERS);
	return true;
}

/* Frees the memory of the sequence, whose file is complete and in the list. */
static void leave_memory(struct park *p)
{
	const uid_t uid = (uid_t)p->job.m.uid;
	struct skv_parking *k = p->parking;
	const bool is_prefix = skv_parked_is_prefix(p->file);
	int r;

	if (is_prefix)
		(void)skv_parking_index_prefix(k, p->file);
	r = skv_core_park_done(k->server->core, &p->memory.listing);
	if (r < 0) {
		skv_server_fail(k->server, "parking a sequence", r);
		return;
	}
	if (r && !is_prefix)
		remove_file(p);
	if (r) {
		park_failed(p, -EBUSY, TAKEN);
		return;
	}
	skv_count(k->server->counts, uid, is_prefix ? SKV_COUNT_PREFIXES_WRITTEN : SKV_COUNT_PARKED, 1);
	skv_count(k->server->counts, uid, SKV_COUNT_BYTES_WRITTEN, p->file->bytes);
	skv_job_end(&p->job, 0, "", p->file->bytes);
}

/* Returns the block keys of a sealed prefix's file, read from the job's list; the caller owns them. NULL: no memory. */
static struct skv_parked_keys *read_keys(const struct park *p)
{
	const size_t bytes = skv_parked_keys_bytes(p->job.m.n_keys);
	struct skv_parked_keys *keys = malloc(bytes);

	if (!keys || pread(p->memory.list, keys, bytes, (off_t)p->job.m.keys_at) == (ssize_t)bytes)
		return keys;
	free(keys);
	return NULL;
}

/* Called when the worker has written the file, or has failed to. */
static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer)
{
	struct park *p = park_of(j);
	struct skv_parked_keys *keys = NULL;

	if (error && error != -EBUSY && !j->jobs->closed) { /* the worker may have given the file its name already */
		put_file(p, NULL, NULL);
		remove_file(p);
		if (error == -ENOSPC && writes_again(p))
			return;
	}
	if (error == -ECANCELED && !j->jobs->closed)
		error = -EBUSY;
	if (error) {
		park_failed(p, error, error == -EBUSY ? TAKEN : why);
		return;
	}
	if (j->m.n_keys)
		keys = read_keys(p);
	put_file(p, &answer->header, keys);
	if (j->m.n_keys && !keys) {
		remove_file(p);
		park_failed(p, -ENOMEM, strerror(ENOMEM));
		return;
	}
	leave_memory(p);
}

/* ---- from outside ----------------------------------------------------------------------------- */

bool skv_parking_cancel_park(struct skv_job *j, uint32_t seq)
{
	if (j->state != SKV_JOB_MOVING || (seq && park_of(j)->memory.seq != seq))
		return false;
	skv_worker_cancel(j->jobs->workers[kind.worker], &j->work);
	return true;
}
