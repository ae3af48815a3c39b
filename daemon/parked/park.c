/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/park.c - parks a sequence: from memory to a file.
 *
 * The core first lists and checks the entries, since the sequence's user may still write to its tables. When the file
 * is complete, the sequence is freed, unless a client has attached it meanwhile; then the file is removed. The file
 * of a sealed prefix stays and is used the next time.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/clock.h"
#include "daemon/core/pins.h"
#include "daemon/requests/lease.h"
#include "daemon/requests/reply.h"
#include "daemon/sys/log.h"

#define MARKED_IN_A_TURN 65536u /* entries */
#define TAKEN "a client has taken it meanwhile, or it was dropped"

static void turn(struct skv_parking_job *j);
static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer);

static const struct skv_parking_kind kind = {SKV_PARKING_OUT, turn, moved};

/*
 * A sealed prefix that has a file needs no job: its memory is freed (*ret). False: it is not a prefix, or has no
 * file.
 */
static bool is_known(struct skv_parking *k, uint32_t seq, const struct skv_core_location *at, struct skv_parking_ask *ask, int *ret)
{
	struct skv_parked *p = skv_files_find(&k->files, at->uid, at->model->name, at->model->rank, at->model->n_ranks, at->name);

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

int skv_parking_begin_park(struct skv_parking *k, uint32_t seq, struct skv_parking_ask *ask, char why[SKV_TEXT_MAX])
{
	struct skv_core *core = k->server->core;
	struct skv_parking_job *j;
	struct skv_core_location p;
	int r = skv_core_seq_location(core, seq, &p);

	if (r || is_known(k, seq, &p, ask, &r))
		return r ? refuse_core(k, r, why) : 0;
	if (p.pages_fd < 0 && k->server->config.ipc == SKV_IPC_LEGACY) {
		snprintf(why, SKV_TEXT_MAX,
		         "a sequence in device memory cannot be parked with ipc = legacy, as this memory belongs to "
		         "the worker alone");
		return -EOPNOTSUPP;
	}
	j = skv_parking_job_new(k, &kind, SKV_DISK_PARK, p.uid, why);
	if (!j)
		return -ENOMEM;
	j->seq = seq;
	skv_wire_from_model(&j->m.model, p.model);
	strcpy(j->m.name, p.name);
	j->m.max_tokens = p.max_tokens;
	j->m.commit = p.commit;
	j->m.page_bytes = p.page_bytes;
	skv_parked_file(p.model->name, p.model->rank, p.model->n_ranks, p.name, j->m.file);
	j->reserved = skv_files_reserve(&k->files, p.uid);
	j->list = memfd_create("skv-list", MFD_CLOEXEC);
	if (p.pages_fd < 0) {
		j->n_segments = (uint32_t)(p.max_pages / p.pages_per_segment);
		j->segments = calloc(j->n_segments, 1);
	}
	r = j->list < 0 ? -errno : !j->reserved || (p.pages_fd < 0 && !j->segments) ? -ENOMEM : skv_parking_wait(j, ask);
	if (r == 0)
		r = skv_core_list_begin(core, seq, j->list, &j->listing);
	if (r == 0)
		r = skv_core_pin_list(core, p.uid, j->listing.most_bytes, &j->pinned);
	if (r)
		return skv_parking_not_begun(j, r, why);
	skv_parking_enter(j, SKV_PARKING_TURNS);
	return 0;
}

static void park_failed(struct skv_parking_job *j, int error, const char *why)
{
	struct skv_server *s = j->parking->server;

	skv_core_park_failed(s->core, j->seq, skv_now_ns()); /* a prefix is then dropped when its memory is needed */
	if (error != -ECANCELED && error != -EBUSY)
		skv_log_peer(LOG_WARNING, "sequence %s of model %s, uid %u, cannot be parked and stays in memory: %s",
		             j->m.name, j->m.model.name,
		             j->m.uid, why);
	skv_parking_end(j, error, why);
	skv_lease_retry(s); /* requests that wait for its memory must wait for other memory, or fail */
}

/* Upper bound of the file's size. */
static uint64_t file_bytes(const struct skv_parking_job *j)
{
	struct skv_parked_header h = {
		.model = j->m.model,
		.max_tokens = j->m.max_tokens,
		.commit = j->m.commit,
		.state_bytes = SKV_SEQ_STATE_MAX,
		.n_entries = j->m.n_entries,
		.n_pages = j->m.n_pages,
		.page_bytes = j->m.page_bytes,
		.n_keys = j->m.n_keys,
	};

	skv_parked_lay_out(&h);
	return h.file_bytes;
}

int skv_parking_mark_segments(struct skv_parking_job *j, uint32_t pages_per_segment)
{
	const uint64_t left = j->segments ? j->m.n_entries - j->marked : 0, end = j->marked + (left < MARKED_IN_A_TURN ? left : MARKED_IN_A_TURN);
	skv_pte window[4096];

	while (j->marked < end) {
		const uint64_t n = end - j->marked < 4096 ? end - j->marked : 4096;

		if (pread(j->list, window, n * sizeof(*window), (off_t)(j->marked * sizeof(*window))) != (ssize_t)(n * sizeof(*window)))
			return -EIO;
		for (uint64_t i = 0; i < n; i++)
			if (skv_pte_kind(window[i]) == SKV_PTE_PRIVATE || skv_pte_kind(window[i]) == SKV_PTE_SHARED)
				j->segments[skv_pte_id(window[i]) / pages_per_segment] = 1;
		j->marked += n;
	}
	return j->segments && j->marked < j->m.n_entries;
}

/*
 * All is listed: hands the job to the worker, if there is room. Negative errno, -EDQUOT with a text. 1: another turn
 * is needed.
 */
static int write_file(struct skv_parking_job *j, char why[SKV_TEXT_MAX])
{
	struct skv_parking *k = j->parking;
	const struct skv_block_key *keys;
	struct skv_core_location p;
	uint64_t left;
	int r = 0;

	if (skv_core_seq_location(k->server->core, j->seq, &p))
		return -EBUSY;
	r = skv_parking_mark_segments(j, p.pages_per_segment);
	if (r)
		return r < 0 ? -EBUSY : r;
	if (j->m.name[0] == '/' && skv_core_prefix_keys(k->server->core, j->seq, &keys, &j->m.n_keys))
		return -EBUSY;
	j->m.keys_at = (j->m.n_entries + j->n_segments) * sizeof(skv_pte); /* numbers of segments come first */
	j->m.max_bytes = file_bytes(j);
	if (!skv_parking_quota_allows(k, j->m.uid, j->m.max_bytes, &left)) {
		snprintf(why, SKV_TEXT_MAX, "its file may take %llu bytes, and the user's quota (account-parked-bytes, account-sequences) leaves room for %llu",
		         (unsigned long long)j->m.max_bytes, (unsigned long long)left);
		return -EDQUOT;
	}
	if (j->m.n_keys)
		r = skv_parking_list_keys(j, keys);
	if (r == 0)
		r = skv_parking_move(j, j->m.n_entries * sizeof(skv_pte));
	if (r == 0)
		skv_parking_trim_prefixes(k, j->m.uid);
	return r == -ESTALE ? -EBUSY : r;
}

/*
 * All is listed: hands the job to the worker, once no file of its name, and none that makes room for it, is being
 * removed.
 */
static void park_listed(struct skv_parking_job *j)
{
	struct skv_parking *k = j->parking;
	struct skv_parked *old;
	char why[SKV_TEXT_MAX];
	int r;

	old = skv_files_find(&k->files, j->m.uid, j->m.model.name, j->m.model.rank, j->m.model.n_ranks, j->m.name);
	if (old && !old->leaving && !j->insisted) {
		j->insisted = true;
		skv_parking_remove(k, old);
	}
	if (old && !old->leaving) {
		park_failed(j, -EIO, "an earlier file of its name is in the way, and cannot be removed");
		return;
	}
	if (old || (j->again && skv_parking_frees_disk(k))) {
		skv_parking_enter(j, SKV_PARKING_FILE);
		return;
	}
	r = write_file(j, why);
	if (r > 0)
		skv_parking_enter(j, SKV_PARKING_TURNS);
	if (r == -EBUSY)
		snprintf(why, sizeof(why), TAKEN);
	else if (r == -EDQUOT && j->m.n_keys)
		r = -ECANCELED; /* not reported: a prefix can be computed again */
	else if (r < 0 && r != -EDQUOT)
		snprintf(why, sizeof(why), "%s", strerror(-r));
	if (r < 0)
		park_failed(j, r, why);
}

static void turn(struct skv_parking_job *j)
{
	struct skv_server *s = j->parking->server;
	uint32_t units = SKV_TURN_UNITS;
	char why[SKV_TEXT_MAX];
	int r;

	if (j->listed) {
		park_listed(j);
		return;
	}
	r = skv_core_list_some(s->core, &j->listing, &units);
	if (r == SKV_CORE_E_TURNS) {
		skv_parking_enter(j, SKV_PARKING_TURNS);
		return;
	}
	if (r < 0) {
		skv_server_fail(s, "parking", r);
		return;
	}
	if (r) {
		snprintf(why, sizeof(why), "%s", r == SKV_CORE_E_NOENT ? TAKEN : skv_core_why(s->core));
		park_failed(j, r == SKV_CORE_E_NOENT ? -EBUSY : -skv_core_errno((enum skv_core_error)r), why);
		return;
	}
	j->listed = true;
	j->m.n_entries = j->listing.n_entries;
	j->m.n_pages = j->listing.n_pages;
	park_listed(j);
}

/* The sequence is in memory: removes the file. */
static void remove_of(struct skv_parking_job *j)
{
	j->file->seq = j->seq;
	skv_parking_remove(j->parking, j->file);
}

/* The disk was full: a prefix is removed from it, and then the file is written again. False: that is not possible. */
static bool writes_again(struct skv_parking_job *j)
{
	struct skv_parking *k = j->parking;

	j->reserved = skv_files_reserve(&k->files, j->m.uid);
	if (!j->reserved || !skv_parking_free_disk(k))
		return false;
	free(j->fds);
	j->fds = NULL;
	j->file = NULL;
	j->insisted = j->again = true;
	skv_parking_enter(j, SKV_PARKING_FILE);
	return true;
}

/* The file is complete and listed: frees the sequence's memory. */
static void leave_memory(struct skv_parking_job *j)
{
	struct skv_parking *k = j->parking;
	const bool is_prefix = skv_parked_is_prefix(j->file);
	int r;

	if (is_prefix)
		(void)skv_parking_index_prefix(k, j->file);
	r = skv_core_park_done(k->server->core, &j->listing);
	if (r < 0) {
		skv_server_fail(k->server, "parking", r);
		return;
	}
	if (r && !is_prefix)
		remove_of(j);
	if (r) {
		park_failed(j, -EBUSY, TAKEN);
		return;
	}
	skv_count(k->server->counts, (uid_t)j->m.uid, is_prefix ? SKV_COUNT_PREFIXES_WRITTEN : SKV_COUNT_PARKED, 1);
	skv_count(k->server->counts, (uid_t)j->m.uid, SKV_COUNT_BYTES_WRITTEN, j->file->bytes);
	skv_parking_end(j, 0, "");
}

/* Of a sealed prefix: the keys of its file, as they were listed; the caller's. NULL: no memory. */
static struct skv_parked_keys *read_keys(const struct skv_parking_job *j)
{
	const size_t bytes = skv_parked_keys_bytes(j->m.n_keys);
	struct skv_parked_keys *keys = malloc(bytes);

	if (!keys || pread(j->list, keys, bytes, (off_t)j->m.keys_at) == (ssize_t)bytes)
		return keys;
	free(keys);
	return NULL;
}

/* The file has been written, or writing failed. */
static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer)
{
	struct skv_parking *k = j->parking;
	const struct skv_disk_answer *a = answer;
	struct skv_parked_keys *keys = NULL;

	if (error && error != -EBUSY && !k->closed) { /* the file may have been renamed already */
		skv_parking_written(j, NULL, NULL);
		remove_of(j);
		if (error == -ENOSPC && writes_again(j))
			return;
	}
	if (error == -ECANCELED && !k->closed)
		error = -EBUSY;
	if (error) {
		park_failed(j, error, error == -EBUSY ? TAKEN : why);
		return;
	}
	if (j->m.n_keys)
		keys = read_keys(j);
	skv_parking_written(j, &a->header, keys);
	if (j->m.n_keys && !keys) {
		remove_of(j);
		park_failed(j, -ENOMEM, strerror(ENOMEM));
		return;
	}
	leave_memory(j);
}
