/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/prefix/store-transfer.c - fetches sealed prefixes from the prefix store and sends them to it, with jobs of
 * disk workers.
 *
 *   fetch   ask the store which blocks it has (worker) → create a sequence without a name, and take pages for the
 *           blocks (core) → read the blocks (worker) → seal the sequence (core)
 *   send    list the prefix's page table entries (core) → send the blocks that the store lacks (worker)
 *
 * One prefix is sent at a time, and users take turns: while a prefix is sent, its memory cannot be freed, and a store
 * may not answer for long. A prefix that waits to be sent may be dropped or parked.
 *
 * A failure of the store only means that more tokens must be computed: no request of a client fails.
 */
#include "daemon/prefix/prefix-priv.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"
#include "common/records.h"
#include "daemon/core/memory/pins.h"
#include "daemon/core/operations/parking.h"
#include "daemon/jobs/memory.h"
#include "daemon/requests/lease.h"
#include "daemon/store/values.h"
#include "daemon/sys/log.h"

#define TURN_BLOCKS 128u /* blocks whose token ids are copied in a turn, which takes well below a millisecond */
#define SEND_MS 60000u /* maximum time to send one prefix; the worker reports progress meanwhile */
_Static_assert(SKV_STORE_NAME == SKV_PREFIX_KEY && SKV_STORE_KEY == SKV_PREFIX_KEY, "one size");

/* A job of one of three kinds: find and get (both for fetching), or send. */
struct transfer {
	struct skv_job job;
	struct skv_job_memory memory;
	struct skv_prefix_ask *ask; /* request that the job belongs to */
	int told;                   /* memfd with struct skv_store_what, names and token ids for the worker; -1: none */
};

static struct transfer *transfer_of(struct skv_job *j)
{
	return SKV_JOB_OWNER(j, struct transfer, job);
}

static void free_transfer(struct skv_job *j)
{
	struct transfer *t = transfer_of(j);

	skv_job_memory_free(j, &t->memory);
	skv_close_fd(t->told);
	free(t);
}

static void found(struct skv_job *, int error, const char *why, const struct skv_disk_answer *answer);
static void got_turn(struct skv_job *);
static void got(struct skv_job *, int error, const char *why, const struct skv_disk_answer *answer);
static void send_turn(struct skv_job *);
static void sent(struct skv_job *, int error, const char *why, const struct skv_disk_answer *answer);

static const struct skv_job_kind find_kind = {SKV_JOBS_FETCH, NULL, found, free_transfer};
static const struct skv_job_kind get_kind = {SKV_JOBS_FETCH, got_turn, got, free_transfer};
static const struct skv_job_kind send_kind = {SKV_JOBS_SEND, send_turn, sent, free_transfer};

/* ---- input of the store's workers ------------------------------------------------------------- */

/* Converts an error of the core to a negative errno. */
static int negative(int r)
{
	return r > 0 ? -skv_core_errno((enum skv_core_error)r) : r;
}

static off_t ids_at(uint32_t n_blocks)
{
	return (off_t)(sizeof(struct skv_store_what) + (uint64_t)n_blocks * SKV_PREFIX_KEY);
}

/*
 * Creates the job's memfd and writes the input of the store's worker, except for the token ids of a GET, which
 * tell_ids() writes (`ids`: with room for them). The memory is charged to the user first. Returns 0 or a negative
 * errno.
 */
static int tell(struct transfer *t, uint32_t n_blocks, uint64_t timeout_ms, bool ids)
{
	const struct skv_prefix_ask *a = t->ask;
	const struct skv_config *config = &a->server->config;
	struct skv_store_what what = {.n_blocks = n_blocks,
	                              .timeout_ms = (uint32_t)timeout_ms,
	                              .ttl_ms = config->prefix_store_ttl / 1000000u};
	const size_t names = n_blocks * sizeof(*a->names);
	const uint64_t bytes = (uint64_t)ids_at(n_blocks) +
	                       (ids ? (uint64_t)n_blocks * SKV_BLOCK_TOKENS * sizeof(int32_t) : 0);
	int r = negative(skv_core_pin(a->server->core, a->uid, bytes, &t->job.pinned));

	if (r < 0)
		return r;
	t->told = memfd_create("skv-store", MFD_CLOEXEC);
	if (t->told < 0)
		return -errno;
	snprintf(what.url, sizeof(what.url), "%s", config->prefix_store);
	snprintf(what.nixl, sizeof(what.nixl), "%s", config->prefix_store_nixl);
	what.nixl_window = config->prefix_store_nixl_window;
	what.made = a->made;
	skv_prefix_value(a->tenant, what.key);
	skv_prefix_agents(a->server->prefix->secret, what.agents_key);
	if (pwrite(t->told, &what, sizeof(what), 0) != sizeof(what) ||
	    pwrite(t->told, a->names, names, sizeof(what)) != (ssize_t)names)
		r = -ENOSPC;
	OPENSSL_cleanse(&what, sizeof(what));
	return r;
}

/*
 * Writes token ids of some more blocks to the memfd of a GET, read from the client's memory. Returns 0: all are
 * written; 1: more are left; -ESTALE: the client does not have the sequence any more; -ENOSPC.
 */
static int tell_ids(struct transfer *t)
{
	struct skv_prefix_ask *a = t->ask;
	const uint32_t n_blocks = t->job.m.max_tokens / SKV_BLOCK_TOKENS;
	int32_t ids[SKV_BLOCK_TOKENS];

	for (uint32_t i = 0; i < TURN_BLOCKS && a->told < n_blocks; i++, a->told++)
		if (skv_core_prefix_ids(a->server->core, a->client, a->m.session, a->m.seq, false,
		                        a->told * SKV_BLOCK_TOKENS, SKV_BLOCK_TOKENS, ids))
			return -ESTALE;
		else if (pwrite(t->told, ids, sizeof(ids), ids_at(n_blocks) + (off_t)(a->told * sizeof(ids))) !=
		         sizeof(ids))
			return -ENOSPC;
	return a->told < n_blocks;
}

static uint64_t left_ms(const struct skv_prefix_ask *a)
{
	const uint64_t now = skv_now_ns();

	return now < a->deadline_ns ? (a->deadline_ns - now) / 1000000u : 0;
}

static struct transfer *transfer_new(struct skv_prefix_ask *a, const struct skv_job_kind *kind,
                                     enum skv_disk_job_kind disk_kind)
{
	struct transfer *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	*t = (struct transfer){.memory = SKV_JOB_MEMORY_NULL, .ask = a, .told = -1};
	skv_job_begin(&t->job, a->server->jobs, kind, disk_kind, (uint32_t)a->uid);
	skv_wire_from_model(&t->job.m.model, &a->model);
	t->job.m.page_bytes = skv_page_bytes(&a->model);
	return t;
}

static void say_failed(struct skv_prefix_ask *a, const char *what, int error, const char *why)
{
	if (error != -ECANCELED)
		skv_count(a->server->counts, a->uid, SKV_COUNT_STORE_FAILED, 1);
	if (error != -ECANCELED && error != -EHOSTDOWN) /* -EHOSTDOWN repeats a failure that was logged before */
		skv_log_peer(LOG_WARNING, "a prefix of model %s, uid %u, cannot be %s: %s", a->model.name,
		             (unsigned)a->uid, what, *why ? why : strerror(-error));
}

/* ---- from the store -------------------------------------------------------------------------- */

int skv_fetch_begin(struct skv_prefix_ask *a)
{
	struct transfer *t = transfer_new(a, &find_kind, SKV_DISK_STORE_FIND);
	int r;

	if (!t)
		return -ENOMEM;
	r = tell(t, a->n_blocks, left_ms(a), false);
	if (r == 0)
		r = skv_job_move(&t->job, t->told, -1);
	if (r < 0)
		skv_job_free(&t->job);
	return r;
}

/* Begins a GET of n blocks: creates a sequence, for which pages are then taken. Negative errno: nothing was begun. */
static int begin_get(struct skv_prefix_ask *a, uint32_t n)
{
	struct transfer *t = transfer_new(a, &get_kind, SKV_DISK_STORE_GET);
	int r;

	if (!t)
		return -ENOMEM;
	t->job.m.max_tokens = n * SKV_BLOCK_TOKENS;
	t->job.m.n_pages = skv_made_pages(&a->made, &a->model, t->job.m.max_tokens);
	a->told = 0;
	r = tell(t, n, left_ms(a), true);
	if (r == 0)
		r = skv_job_memory_prepare(&t->job, &t->memory);
	if (r == 0)
		r = skv_core_restore_new(a->server->core, a->uid, &a->model, "", t->job.m.max_tokens, &t->memory.seq);
	if (r)
		skv_job_free(&t->job);
	else
		skv_job_enter(&t->job, SKV_JOB_TURNS);
	return negative(r);
}

static void found(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *said)
{
	struct skv_prefix_ask *a = transfer_of(j)->ask;
	const uint32_t n = error || !said || said->n_blocks > a->n_blocks ? 0 : said->n_blocks;

	if (error)
		say_failed(a, "looked for in the store", error, why);
	skv_job_free(j);
	if (n <= a->n_local || error == -ECANCELED || begin_get(a, n) < 0)
		skv_prefix_fetched(a);
}

/* Ends a GET without result: drops its incomplete sequence, and answers the request with the blocks in memory. */
static void give_up(struct transfer *t)
{
	struct skv_prefix_ask *a = t->ask;
	int r = skv_core_restore_drop(a->server->core, t->memory.seq);

	if (r < 0)
		skv_server_fail(a->server, "reading a prefix from the store", r);
	skv_job_free(&t->job);
	skv_prefix_fetched(a);
}

static void got_turn(struct skv_job *j)
{
	struct transfer *t = transfer_of(j);
	char why[SKV_TEXT_MAX] = "";
	int r = skv_now_ns() > t->ask->deadline_ns ? -ETIME : tell_ids(t);

	if (r > 0) {
		skv_job_enter(j, SKV_JOB_TURNS);
		return;
	}
	if (r == 0)
		r = skv_job_memory_take(j, &t->memory, t->told, why);
	if (r < 0)
		give_up(t);
}

/*
 * Returns whether the job sends a prefix whose memory the core needs, so that the job must be canceled, which kills its
 * worker. With NIXL it is not canceled, and goes on until its timeout: other hosts read values from the worker's
 * memory, which would be lost.
 */
static bool is_in_the_way(struct skv_job *j, const struct skv_server *s)
{
	return j->kind == &send_kind && j->state == SKV_JOB_MOVING && !*s->config.prefix_store_nixl &&
	       skv_core_prefix_is_wanted(s->core, transfer_of(j)->memory.seq);
}

void skv_fetch_tick(struct skv_server *s)
{
	struct skv_job *j = s->jobs->all;

	while (j)
		if (j->kind == &get_kind && j->state == SKV_JOB_MEMORY &&
		    skv_now_ns() > transfer_of(j)->ask->deadline_ns) {
			give_up(transfer_of(j));
			j = s->jobs->all; /* from the start, since other jobs may have ended as well */
		} else if (is_in_the_way(j, s)) {
			skv_worker_cancel(s->jobs->workers[SKV_JOBS_SEND], &j->work);
			return; /* only one prefix is sent at a time; canceling may have freed other jobs of the list */
		} else {
			j = j->next;
		}
}

/* Gives back the pages of the job's list from index `from` on, which no block that was read uses. False: it failed. */
static bool put_back(const struct transfer *t, uint64_t from)
{
	const uint64_t n_pages = t->job.m.n_pages;
	struct skv_wire_run runs[512];
	uint32_t ids[512];

	for (uint64_t at = from; at < n_pages;) {
		const uint32_t n = n_pages - at < 512 ? (uint32_t)(n_pages - at) : 512;

		if (pread(t->memory.list, ids, n * sizeof(*ids), (off_t)(at * sizeof(*ids))) !=
		    (ssize_t)(n * sizeof(*ids)))
			return false;
		for (uint32_t i = 0; i < n; i++)
			runs[i] = (struct skv_wire_run){ids[i], 1};
		if (skv_core_prefix_put_back(t->ask->server->core, t->memory.seq, runs, n))
			return false;
		at += n;
	}
	return true;
}

/* Called when the worker has read the first blocks that the store has intact, or has failed to: seals the sequence. */
static void got(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *said)
{
	struct transfer *t = transfer_of(j);
	struct skv_prefix_ask *a = t->ask;
	struct skv_counts *counts = a->server->counts;
	const uint32_t asked = j->m.max_tokens / SKV_BLOCK_TOKENS;
	const uint32_t n = error || !said || said->n_blocks > asked ? 0 : said->n_blocks;
	int r;

	if (error)
		say_failed(a, "read from the store", error, why);
	skv_count(counts, a->uid, SKV_COUNT_NIXL_VALUES, said && !error ? said->n_nixl : 0);
	skv_count(counts, a->uid, SKV_COUNT_NIXL_BYTES, said && !error ? said->nixl_bytes : 0);
	if (n == 0 || !put_back(t, skv_made_pages(&a->made, &a->model, n * SKV_BLOCK_TOKENS))) {
		give_up(t);
		return;
	}
	r = skv_core_prefix_restored(a->server->core, t->memory.seq, a->origin, a->keys, n);
	if (r) { /* E_EXIST: a client has sealed the same prefix meanwhile */
		if (r < 0)
			skv_server_fail(a->server, "reading a prefix from the store", r);
		give_up(t);
		return;
	}
	skv_count(counts, a->uid, SKV_COUNT_FETCHED, 1);
	skv_count(counts, a->uid, SKV_COUNT_FETCHED_TOKENS, (uint64_t)n * SKV_BLOCK_TOKENS);
	skv_count_time(counts, a->uid, SKV_COUNT_FETCH_NS, skv_now_ns() - a->begun_ns);
	skv_job_free(j);
	skv_prefix_fetched(a);
}

/* ---- to the store ---------------------------------------------------------------------------- */

int skv_fetch_send(struct skv_prefix_ask *a)
{
	if (skv_core_prefix_seq(a->server->core, a->client, a->m.session, a->keys, a->n_blocks, &a->seq))
		return -ENOENT;
	free(a->keys);
	a->keys = NULL;
	skv_queue_put(&a->server->prefix->sends, &a->queued, (uint32_t)a->uid);
	return 0;
}

/* Begins to send a prefix, which stays in memory until it is sent. Negative errno: it is not sent. */
static int begin_send(struct skv_prefix_ask *a)
{
	struct skv_core *core = a->server->core;
	struct skv_core_location p;
	struct transfer *t;
	int r = skv_core_prefix_read(core, a->seq);

	if (r)
		return -EBUSY;
	t = transfer_new(a, &send_kind, SKV_DISK_STORE_PUT);
	r = t ? skv_core_seq_location(core, a->seq, &p) : -ENOMEM;
	if (r == 0 && p.pages_fd < 0 && a->server->config.ipc == SKV_IPC_LEGACY)
		r = -EOPNOTSUPP; /* device memory belongs to its worker alone */
	if (r == 0) {
		t->job.m.max_tokens = p.max_tokens;
		t->job.m.commit = p.commit;
		r = tell(t, a->n_blocks, SEND_MS, false);
	}
	if (r == 0)
		r = skv_job_memory_list(&t->job, &t->memory, a->seq, &p);
	if (r == 0) {
		skv_job_enter(&t->job, SKV_JOB_TURNS);
		return 0;
	}
	if (t)
		skv_job_free(&t->job);
	skv_core_prefix_read_end(core, a->seq);
	return -EBUSY;
}

bool skv_fetch_work(struct skv_server *s)
{
	struct skv_prefix *p = s->prefix;
	struct skv_queued *e = p->sending ? NULL : skv_queue_take(&p->sends);
	struct skv_prefix_ask *a = e ? SKV_QUEUED_OWNER(e, struct skv_prefix_ask, queued) : NULL;

	if (!a)
		return false;
	p->sending = begin_send(a) == 0;
	if (!p->sending)
		skv_prefix_ask_end(a);
	return true;
}

static void end_send(struct transfer *t)
{
	struct skv_prefix_ask *a = t->ask;
	struct skv_server *s = a->server;

	skv_core_prefix_read_end(s->core, t->memory.seq);
	s->prefix->sending = false;
	skv_job_free(&t->job);
	skv_prefix_ask_end(a);
	skv_lease_retry(s); /* retries requests that wait for memory: that of the prefix can be freed now */
}

/* Marks the segments of the pages of a job whose entries are all listed, in turns; then hands it to the worker. */
static void send_listed(struct transfer *t)
{
	struct skv_core_location p;
	int r = skv_core_seq_location(t->ask->server->core, t->memory.seq, &p)
	                ? -ESTALE
	                : skv_job_memory_mark(&t->job, &t->memory, p.pages_per_segment);

	if (r > 0)
		skv_job_enter(&t->job, SKV_JOB_TURNS);
	else if (r < 0 || skv_job_memory_move(&t->job, &t->memory, t->told, t->job.m.n_entries * sizeof(skv_pte)) < 0)
		end_send(t);
}

/* Runs a turn of a send job: lists some of the prefix's page table entries. */
static void send_turn(struct skv_job *j)
{
	struct transfer *t = transfer_of(j);
	const int r = skv_job_memory_list_some(j, &t->memory);

	if (r == 0)
		send_listed(t);
	else if (r != SKV_CORE_E_TURNS)
		end_send(t);
}

static void sent(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *said)
{
	struct skv_prefix_ask *a = transfer_of(j)->ask;
	struct skv_counts *counts = a->server->counts;

	if (error) {
		say_failed(a, "sent to the store", error, why);
	} else {
		skv_count(counts, a->uid, SKV_COUNT_SENT, 1);
		skv_count(counts, a->uid, SKV_COUNT_SENT_BYTES, said ? said->bytes : 0);
	}
	end_send(transfer_of(j));
}
