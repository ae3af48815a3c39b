/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/prefix/store-transfer.c - fetches sealed prefixes from the store and sends them to it, with jobs of workers, as parking
 * does.
 *
 *   fetch   the store says which blocks it has (worker) → an anonymous sequence and pages for them (core) → read them
 *           (worker) → seal the sequence (core)
 *   send    list what the prefix names (core) → send what the store lacks (worker)
 *
 * One prefix is sent at a time, and users take turns: while a prefix is sent, its memory cannot be freed, and a store
 * may be silent for long. A prefix that waits to be sent may leave memory.
 *
 * A failure only means that more tokens are computed: no request is refused.
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
#include "daemon/requests/lease.h"
#include "daemon/store/values.h"
#include "daemon/sys/log.h"

#define TURN_BLOCKS 128u /* blocks whose ids are copied per turn; keeps a turn well below a millisecond */
#define SEND_MS 60000u /* for one prefix; workers report that they go on */
_Static_assert(SKV_STORE_NAME == SKV_PREFIX_KEY && SKV_STORE_KEY == SKV_PREFIX_KEY, "one size");

static void found(struct skv_parking_job *, int error, const char *why, const void *answer);
static void got_turn(struct skv_parking_job *);
static void got(struct skv_parking_job *, int error, const char *why, const void *answer);
static void send_turn(struct skv_parking_job *);
static void sent(struct skv_parking_job *, int error, const char *why, const void *answer);

static const struct skv_parking_kind find_kind = {SKV_PARKING_FETCH, NULL, found};
static const struct skv_parking_kind get_kind = {SKV_PARKING_FETCH, got_turn, got};
static const struct skv_parking_kind send_kind = {SKV_PARKING_SEND, send_turn, sent};

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
 * Creates the job's memfd and writes the worker's input; token ids of a GET follow later. The memory is charged
 * first. 0, or negative errno.
 */
static int tell(struct skv_parking_job *j, uint32_t n_blocks, uint64_t timeout_ms, bool ids)
{
	const struct skv_prefix_ask *a = j->prefix;
	const struct skv_config *config = &a->server->config;
	struct skv_store_what what = {.n_blocks = n_blocks, .timeout_ms = (uint32_t)timeout_ms, .ttl_ms = config->prefix_store_ttl / 1000000u};
	const size_t names = n_blocks * sizeof(*a->names);
	const uint64_t bytes = (uint64_t)ids_at(n_blocks) + (ids ? (uint64_t)n_blocks * SKV_BLOCK_TOKENS * sizeof(int32_t) : 0);
	int r = negative(skv_core_pin(a->server->core, a->uid, bytes, &j->pinned));

	if (r < 0)
		return r;
	j->store = memfd_create("skv-store", MFD_CLOEXEC);
	if (j->store < 0)
		return -errno;
	snprintf(what.url, sizeof(what.url), "%s", config->prefix_store);
	snprintf(what.nixl, sizeof(what.nixl), "%s", config->prefix_store_nixl);
	what.nixl_window = config->prefix_store_nixl_window;
	what.made = a->made;
	skv_prefix_value(a->tenant, what.key);
	skv_prefix_agents(a->server->prefix->secret, what.agents_key);
	if (pwrite(j->store, &what, sizeof(what), 0) != sizeof(what) || pwrite(j->store, a->names, names, sizeof(what)) != (ssize_t)names)
		r = -ENOSPC;
	OPENSSL_cleanse(&what, sizeof(what));
	return r;
}

/*
 * GET: appends some token ids, as the client has them now. 0: all are written; 1: more are left; -ESTALE: the client
 * does not have them any more; -ENOSPC.
 */
static int tell_ids(struct skv_parking_job *j)
{
	struct skv_prefix_ask *a = j->prefix;
	const uint32_t n_blocks = j->m.max_tokens / SKV_BLOCK_TOKENS;
	int32_t ids[SKV_BLOCK_TOKENS];

	for (uint32_t i = 0; i < TURN_BLOCKS && a->told < n_blocks; i++, a->told++)
		if (skv_core_prefix_ids(a->server->core, a->client, a->m.session, a->m.seq, false, a->told * SKV_BLOCK_TOKENS, SKV_BLOCK_TOKENS, ids))
			return -ESTALE;
		else if (pwrite(j->store, ids, sizeof(ids), ids_at(n_blocks) + (off_t)(a->told * sizeof(ids))) != sizeof(ids))
			return -ENOSPC;
	return a->told < n_blocks;
}

static uint64_t left_ms(const struct skv_prefix_ask *a)
{
	const uint64_t now = skv_now_ns();

	return now < a->deadline_ns ? (a->deadline_ns - now) / 1000000u : 0;
}

static struct skv_parking_job *job_new(struct skv_prefix_ask *a, const struct skv_parking_kind *kind, uint32_t disk_kind)
{
	char why[SKV_TEXT_MAX];
	struct skv_parking_job *j = skv_parking_job_new(a->server->parking, kind, disk_kind, (uint32_t)a->uid, why);

	if (!j)
		return NULL;
	j->prefix = a;
	skv_wire_from_model(&j->m.model, &a->model);
	j->m.page_bytes = skv_page_bytes(&a->model);
	return j;
}

static void say_failed(struct skv_prefix_ask *a, const char *what, int error, const char *why)
{
	if (error != -ECANCELED)
		skv_count(a->server->counts, a->uid, SKV_COUNT_STORE_FAILED, 1);
	if (error != -ECANCELED && error != -EHOSTDOWN) /* logged when the store went down */
		skv_log_peer(LOG_WARNING, "a prefix of model %s, uid %u, cannot be %s: %s", a->model.name, (unsigned)a->uid, what,
		             *why ? why : strerror(-error));
}

/* ---- from the store -------------------------------------------------------------------------- */

int skv_fetch_begin(struct skv_prefix_ask *a)
{
	struct skv_parking_job *j = job_new(a, &find_kind, SKV_DISK_STORE_FIND);
	int r;

	if (!j)
		return -ENOMEM;
	r = tell(j, a->n_blocks, left_ms(a), false);
	if (r == 0)
		r = skv_parking_move(j, 0);
	if (r < 0)
		skv_parking_job_free(j);
	return r;
}

/* Creates a sequence for n blocks, for which pages are then taken. Negative errno: it was not begun. */
static int begin_get(struct skv_prefix_ask *a, uint32_t n)
{
	struct skv_parking_job *j = job_new(a, &get_kind, SKV_DISK_STORE_GET);
	int r;

	if (!j)
		return -ENOMEM;
	j->m.max_tokens = n * SKV_BLOCK_TOKENS;
	j->m.n_pages = skv_made_pages(&a->made, &a->model, j->m.max_tokens);
	a->told = 0;
	r = tell(j, n, left_ms(a), true);
	if (r == 0)
		r = negative(skv_core_pin_list(a->server->core, a->uid, j->m.n_pages * sizeof(uint32_t), &j->pinned));
	j->list = r == 0 ? memfd_create("skv-list", MFD_CLOEXEC) : -1;
	j->segments = a->model.device != SKV_DEVICE_HOST ? calloc(1, 1) : NULL;
	if (r == 0)
		r = j->list < 0 ? -EMFILE : a->model.device != SKV_DEVICE_HOST && !j->segments ? -ENOMEM : 0;
	if (r == 0)
		r = skv_core_restore_new(a->server->core, a->uid, &a->model, "", j->m.max_tokens, &j->seq);
	if (r)
		skv_parking_job_free(j);
	else
		skv_parking_enter(j, SKV_PARKING_TURNS);
	return negative(r);
}

static void found(struct skv_parking_job *j, int error, const char *why, const void *answer)
{
	const struct skv_disk_answer *said = answer;
	struct skv_prefix_ask *a = j->prefix;
	const uint32_t n = error || !said || said->n_blocks > a->n_blocks ? 0 : said->n_blocks;

	if (error)
		say_failed(a, "looked for in the store", error, why);
	skv_parking_job_free(j);
	if (n <= a->n_local || error == -ECANCELED || begin_get(a, n) < 0)
		skv_prefix_fetched(a);
}

/* Drops what there is of the sequence. */
static void give_up(struct skv_parking_job *j)
{
	struct skv_prefix_ask *a = j->prefix;
	int r = skv_core_restore_drop(a->server->core, j->seq);

	if (r < 0)
		skv_server_fail(a->server, "a prefix from the store", r);
	skv_parking_job_free(j);
	skv_prefix_fetched(a);
}

static void got_turn(struct skv_parking_job *j)
{
	char why[SKV_TEXT_MAX] = "";
	int r = skv_now_ns() > j->prefix->deadline_ns ? -ETIME : tell_ids(j);

	if (r == 0)
		r = skv_parking_take_pages(j, why);
	if (r < 0)
		give_up(j);
}

/*
 * Is the memory that is being sent wanted? Then the worker is ended. Not with NIXL: the worker's memory holds values
 * that other hosts read, and ending it would lose them; so the job continues until its timeout.
 */
static bool is_in_the_way(const struct skv_parking_job *j)
{
	const struct skv_server *s = j->parking->server;

	return j->kind == &send_kind && j->state == SKV_PARKING_MOVING && !*s->config.prefix_store_nixl && skv_core_prefix_is_wanted(s->core, j->seq);
}

void skv_fetch_tick(struct skv_server *s)
{
	struct skv_parking_job *j = s->parking ? s->parking->jobs : NULL;

	while (j)
		if (j->kind == &get_kind && j->state == SKV_PARKING_MEMORY && skv_now_ns() > j->prefix->deadline_ns) {
			give_up(j);
			j = s->parking->jobs; /* other jobs may have ended as well */
		} else if (is_in_the_way(j)) {
			skv_worker_cancel(s->parking->workers[SKV_PARKING_SEND], &j->work);
			return; /* only one prefix is sent at a time; its job may have ended */
		} else {
			j = j->next;
		}
}

/* Frees the pages from number `from` of the list on; no block uses them. */
static bool put_back(struct skv_parking_job *j, uint64_t from)
{
	struct skv_wire_run runs[512];
	uint32_t ids[512];

	for (uint64_t at = from; at < j->m.n_pages;) {
		const uint32_t n = j->m.n_pages - at < 512 ? (uint32_t)(j->m.n_pages - at) : 512;

		if (pread(j->list, ids, n * sizeof(*ids), (off_t)(at * sizeof(*ids))) != (ssize_t)(n * sizeof(*ids)))
			return false;
		for (uint32_t i = 0; i < n; i++)
			runs[i] = (struct skv_wire_run){ids[i], 1};
		if (skv_core_prefix_put_back(j->parking->server->core, j->seq, runs, n))
			return false;
		at += n;
	}
	return true;
}

/* The worker has read as many blocks as the store had intact. */
static void got(struct skv_parking_job *j, int error, const char *why, const void *answer)
{
	const struct skv_disk_answer *said = answer;
	struct skv_prefix_ask *a = j->prefix;
	struct skv_counts *counts = a->server->counts;
	const uint32_t asked = j->m.max_tokens / SKV_BLOCK_TOKENS, n = error || !said || said->n_blocks > asked ? 0 : said->n_blocks;
	int r;

	if (error)
		say_failed(a, "read from the store", error, why);
	skv_count(counts, a->uid, SKV_COUNT_NIXL_VALUES, said && !error ? said->n_nixl : 0);
	skv_count(counts, a->uid, SKV_COUNT_NIXL_BYTES, said && !error ? said->nixl_bytes : 0);
	if (n == 0 || !put_back(j, skv_made_pages(&a->made, &a->model, n * SKV_BLOCK_TOKENS))) {
		give_up(j);
		return;
	}
	r = skv_core_prefix_restored(a->server->core, j->seq, a->origin, a->keys, n);
	if (r) { /* E_EXIST: the prefix was sealed meanwhile */
		if (r < 0)
			skv_server_fail(a->server, "a prefix from the store", r);
		give_up(j);
		return;
	}
	skv_count(counts, a->uid, SKV_COUNT_FETCHED, 1);
	skv_count(counts, a->uid, SKV_COUNT_FETCHED_TOKENS, (uint64_t)n * SKV_BLOCK_TOKENS);
	skv_count_time(counts, a->uid, SKV_COUNT_FETCH_NS, skv_now_ns() - a->begun_ns);
	skv_parking_job_free(j);
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

/* Begins to send; from now on the prefix stays in memory. Negative errno: it is not sent. */
static int begin_send(struct skv_prefix_ask *a)
{
	struct skv_core *core = a->server->core;
	struct skv_core_location p;
	struct skv_parking_job *j;
	int r = skv_core_prefix_read(core, a->seq);

	if (r)
		return -EBUSY;
	j = job_new(a, &send_kind, SKV_DISK_STORE_PUT);
	r = j ? skv_core_seq_location(core, a->seq, &p) : -ENOMEM;
	if (r == 0 && p.pages_fd < 0 && a->server->config.ipc == SKV_IPC_LEGACY)
		r = -EOPNOTSUPP; /* device memory belongs to its worker alone */
	if (r == 0) {
		j->seq = a->seq;
		j->m.max_tokens = p.max_tokens;
		j->m.commit = p.commit;
		r = tell(j, a->n_blocks, SEND_MS, false);
	}
	if (r == 0) {
		j->list = memfd_create("skv-list", MFD_CLOEXEC);
		j->n_segments = p.pages_fd < 0 ? (uint32_t)(p.max_pages / p.pages_per_segment) : 0;
		j->segments = j->n_segments ? calloc(j->n_segments, 1) : NULL;
		r = j->list < 0 ? -EMFILE : j->n_segments && !j->segments ? -ENOMEM : 0;
	}
	if (r == 0)
		r = skv_core_list_begin(core, a->seq, j->list, &j->listing);
	if (r == 0)
		r = skv_core_pin_list(core, a->uid, j->listing.most_bytes, &j->pinned);
	if (r == 0) {
		skv_parking_enter(j, SKV_PARKING_TURNS);
		return 0;
	}
	if (j)
		skv_parking_job_free(j);
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

static void end_send(struct skv_parking_job *j)
{
	struct skv_prefix_ask *a = j->prefix;
	struct skv_server *s = a->server;

	skv_core_prefix_read_end(s->core, j->seq);
	s->prefix->sending = false;
	skv_parking_job_free(j);
	skv_prefix_ask_end(a);
	skv_lease_retry(s); /* requests that wait for its memory */
}

/* All entries are listed: marks the segments of their pages, then hands the job to the worker. */
static void send_listed(struct skv_parking_job *j)
{
	struct skv_core_location p;
	int r = skv_core_seq_location(j->parking->server->core, j->seq, &p) ? -ESTALE : skv_parking_mark_segments(j, p.pages_per_segment);

	if (r > 0)
		skv_parking_enter(j, SKV_PARKING_TURNS);
	else if (r < 0 || skv_parking_move(j, j->m.n_entries * sizeof(skv_pte)) < 0)
		end_send(j);
}

/* A turn: lists some of the entries. */
static void send_turn(struct skv_parking_job *j)
{
	struct skv_server *s = j->parking->server;
	uint32_t units = SKV_TURN_UNITS;
	int r = j->listed ? 0 : skv_core_list_some(s->core, &j->listing, &units);

	if (r == SKV_CORE_E_TURNS) {
		skv_parking_enter(j, SKV_PARKING_TURNS);
		return;
	}
	if (r < 0) {
		skv_server_fail(s, "a prefix for the store", r);
		return;
	}
	if (!j->listed) {
		j->m.n_entries = j->listing.n_entries;
		j->m.n_pages = j->listing.n_pages;
	}
	j->listed = true;
	if (r)
		end_send(j);
	else
		send_listed(j);
}

static void sent(struct skv_parking_job *j, int error, const char *why, const void *answer)
{
	const struct skv_disk_answer *said = answer;
	struct skv_counts *counts = j->parking->server->counts;

	if (error) {
		say_failed(j->prefix, "sent to the store", error, why);
	} else {
		skv_count(counts, (uid_t)j->m.uid, SKV_COUNT_SENT, 1);
		skv_count(counts, (uid_t)j->m.uid, SKV_COUNT_SENT_BYTES, said ? said->bytes : 0);
	}
	end_send(j);
}
