/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/prefix/prefix.c - requests about sealed prefixes.
 *
 *   PREFIX_SEAL   compute the keys of the sequence's blocks → the core seals the blocks → send the blocks that the
 *                 prefix store lacks
 *   PREFIX_NEW    compute the keys of the prompt's blocks → find the longest prefix in memory, on disk or in the store
 *                 → the core creates a sequence that begins with it
 *
 * For a PREFIX_NEW, blocks on disk are read before the store is asked for further blocks, so a slow store never delays
 * local blocks. After prefix-store-wait the client gets a sequence with the longest prefix that is in memory by then;
 * the transfer continues for later requests.
 *
 * Keys are computed in turns, from token ids in memory that the client can write to. Until the reply, no other request
 * of the connection is received. A client that changes its token ids meanwhile spoils only the prefixes of its own
 * user. Keys and names of a prompt's blocks are charged to the user before they are allocated: the client chooses the
 * prompt's length, and the memory with the ids may be a sparse file, which costs the client nothing.
 */
#include "daemon/prefix/prefix-priv.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/spec.h"
#include "daemon/core/memory/pins.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/policies.h"
#include "daemon/jobs/jobs.h"
#include "daemon/parked/parking.h"
#include "daemon/requests/tasks.h"
#include "daemon/store/config.h"
#include "daemon/store/nixl.h"
#include "daemon/sys/log.h"

#define TURN_BLOCKS 64u /* blocks whose keys are computed in a turn: takes a fraction of a millisecond */
/* maximum number of a user's requests that use the store at a time, since all users share its workers */
#define ASKS_OF_USER 64u

static bool has_store(const struct skv_server *s)
{
	return *s->config.prefix_store != 0;
}

/* ---- requests --------------------------------------------------------------------------------- */

void skv_prefix_ask_end(struct skv_prefix_ask *a)
{
	struct skv_prefix_ask **at = &a->server->prefix->asks;

	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	skv_deferred_end(&a->request);
	skv_queue_remove(&a->queued);
	OPENSSL_cleanse(a->tenant, sizeof(a->tenant));
	free(a->names);
	free(a->keys);
	skv_core_unpin(a->server->core, a->uid, &a->pinned);
	free(a);
}

static bool is_seal(const struct skv_prefix_ask *a)
{
	return a->request.header.type == SKV_MSG_PREFIX_SEAL;
}

/* Sends an error and ends the request. */
static void refuse(struct skv_prefix_ask *a, int error, const char *why)
{
	skv_deferred_error(&a->request, error, "%s", why);
	skv_prefix_ask_end(a);
}

static void refuse_core(struct skv_prefix_ask *a, int r)
{
	char why[SKV_TEXT_MAX];

	snprintf(why, sizeof(why), "%s", r < 0 ? strerror(-r) : skv_core_why(a->server->core));
	refuse(a, r < 0 ? -r : skv_core_errno((enum skv_core_error)r), why);
}

/* Returns whether the request may use the store: there is one, and the user's ASKS_OF_USER are not exceeded. */
static bool has_turn(const struct skv_prefix_ask *ask)
{
	unsigned n = 0;

	for (const struct skv_prefix_ask *a = ask->server->prefix->asks; a; a = a->next)
		n += a->uid == ask->uid && (a->state == SKV_PREFIX_FETCHES || a->state == SKV_PREFIX_SENDS);
	return has_store(ask->server) && ask->names && n <= ASKS_OF_USER;
}

/*
 * Computes the origin of the keys: what K and V of the session's sequences depend on besides tokens. False: the request
 * was refused and has ended.
 */
static bool find_origin(struct skv_prefix_ask *a)
{
	struct skv_core *core = a->server->core;
	struct skv_msg_policy policy;
	const struct skv_model *model;
	uint64_t fingerprint;
	int r = skv_core_session_model(core, a->client, a->m.session, &model);

	if (r == 0)
		r = skv_core_session_policy(core, a->client, a->m.session, &policy);
	if (r == 0)
		r = skv_core_prefix_made(core, a->client, a->m.session, a->m.seq, &a->made);
	if (r) {
		refuse_core(a, r);
		return false;
	}
	fingerprint = skv_spec_fingerprint(policy.spec);
	if (is_seal(a) && a->made.policy != fingerprint) {
		refuse(a, ESTALE, "the sequence has tokens that were not computed under the policy that its session "
		                  "has now");
		return false;
	}
	a->made.policy = fingerprint;
	a->model = *model;
	skv_prefix_tenant(a->server->prefix->secret, a->uid, a->tenant);
	skv_prefix_origin(a->tenant, model, policy.spec, &a->made, a->origin);
	memcpy(a->last, a->origin, sizeof(a->last));
	return true;
}

/*
 * Charges and allocates the keys of the request's blocks and, with a store, their names. The keys of a SEAL are charged
 * twice, since the core copies them. Returns 0, -ENOMEM or an error of the core.
 */
static int take_memory(struct skv_prefix_ask *a)
{
	const size_t keys = a->n_blocks * sizeof(*a->keys);
	const size_t names = has_store(a->server) ? a->n_blocks * sizeof(*a->names) : 0;
	int r = skv_core_pin(a->server->core, a->uid, (is_seal(a) ? 2 : 1) * keys + names, &a->pinned);

	if (r)
		return r;
	a->keys = malloc(keys + 1);
	a->names = names ? malloc(names) : NULL;
	return !a->keys || (names && !a->names) ? -ENOMEM : 0;
}

void skv_prefix_request(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                        int *fds)
{
	const bool seals = h->type == SKV_MSG_PREFIX_SEAL;
	const struct skv_msg_seal *seal = body;
	const struct skv_msg_seq_name *new = body;
	struct skv_prefix_ask *a = calloc(1, sizeof(*a));
	int r;

	(void)fds;
	if (!a) {
		skv_conn_error(conn, h->serial, ENOMEM, "the daemon is out of memory");
		return;
	}
	*a = (struct skv_prefix_ask){
		.next = s->prefix->asks, .server = s, .client = skv_conn_client(conn), .uid = skv_conn_peer(conn)->uid};
	s->prefix->asks = a;
	if (seals) {
		a->m.session = seal->session;
		a->m.seq = seal->seq;
		a->n_blocks = seal->n_tokens / SKV_BLOCK_TOKENS;
	} else {
		a->m = *new;
		/* the last token is in no block: the engine must compute at least one token to get the next one */
		a->n_blocks = new->n_tokens > 0 ? (new->n_tokens - 1) / SKV_BLOCK_TOKENS : 0;
	}
	skv_deferred_begin(&a->request, conn, h, true);
	if (!find_origin(a))
		return;
	if ((seals ? seal->n_tokens : new->n_tokens) > a->model.max_tokens) {
		refuse(a, EINVAL, "got more tokens than a sequence of the model can have");
		return;
	}
	r = take_memory(a);
	if (r)
		refuse_core(a, r);
	else
		skv_queue_put(&s->prefix->hashes, &a->queued, (uint32_t)a->uid);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Computes the keys of up to TURN_BLOCKS blocks. Returns true if blocks remain. *ret is 0 or an error of the core. */
static bool hash_some(struct skv_prefix_ask *a, int *ret)
{
	int32_t ids[SKV_BLOCK_TOKENS];

	*ret = 0;
	for (uint32_t i = 0; i < TURN_BLOCKS && a->at < a->n_blocks && *ret == 0; i++) {
		*ret = skv_core_prefix_ids(a->server->core, a->client, a->m.session, a->m.seq, is_seal(a),
		                           a->at * SKV_BLOCK_TOKENS, SKV_BLOCK_TOKENS, ids);
		if (*ret)
			break;
		skv_prefix_block(a->tenant, a->last, ids, a->last);
		skv_prefix_short(a->last, &a->keys[a->at]);
		if (a->names)
			memcpy(a->names[a->at], a->last, sizeof(a->last));
		a->at++;
	}
	return *ret == 0 && a->at < a->n_blocks;
}

/* ---- PREFIX_NEW ------------------------------------------------------------------------------ */

/* Creates the sequence of a NEW, which begins with the blocks that are in memory, and answers the client. */
static void open_seq(struct skv_prefix_ask *a)
{
	struct skv_server *s = a->server;
	struct skv_conn *conn = a->request.conn;
	struct skv_core_seq_info info = {.fd = -1};
	uint32_t n = 0;
	int r;

	if (!conn)
		return;
	r = skv_core_prefix_open(s->core, a->client, a->m.session, *a->m.name ? a->m.name : NULL, a->m.max_tokens,
	                         a->keys, a->n_blocks, &info, &n);
	skv_count(s->counts, a->uid, SKV_COUNT_ASKED, 1);
	skv_count(s->counts, a->uid, SKV_COUNT_ASKED_TOKENS, a->m.n_tokens);
	skv_count(s->counts, a->uid, SKV_COUNT_HITS, n > 0);
	skv_count(s->counts, a->uid, SKV_COUNT_HIT_TOKENS, (uint64_t)n * SKV_BLOCK_TOKENS);
	skv_tasks_answer(s, conn, &a->request.header, r, &info);
	skv_deferred_end(&a->request); /* last: if the answer takes turns, the connection stays paused throughout */
}

void skv_prefix_fetched(struct skv_prefix_ask *a)
{
	open_seq(a);
	skv_prefix_ask_end(a);
}

/* Called when all blocks of a NEW that the disk has are in memory: asks the store for more blocks. */
static void ask_store(struct skv_prefix_ask *a)
{
	int r = skv_core_prefix_find(a->server->core, a->client, a->m.session, a->keys, a->n_blocks, &a->n_local);

	if (r) {
		refuse_core(a, r);
		return;
	}
	a->state = SKV_PREFIX_FETCHES;
	if (a->n_local < a->n_blocks && skv_now_ns() < a->deadline_ns && has_turn(a) && skv_fetch_begin(a) == 0)
		return;
	skv_prefix_fetched(a);
}

/*
 * Begins to read a prefix from disk if it has more blocks of the request than memory. Returns whether one is being
 * read; several requests may wait for the same one.
 */
static bool restores(struct skv_prefix_ask *a)
{
	const uint32_t most = a->m.max_tokens ? a->m.max_tokens / SKV_BLOCK_TOKENS : a->n_blocks;
	const uint32_t n = a->n_blocks < most ? a->n_blocks : most;

	if (!skv_parking_read_prefix(a->server, a->uid, &a->model, a->keys, n, a->n_local + 1, a->awaits))
		return false;
	a->state = SKV_PREFIX_RESTORES;
	return true;
}

static void have_keys_of_new(struct skv_prefix_ask *a)
{
	int r = skv_core_prefix_find(a->server->core, a->client, a->m.session, a->keys, a->n_blocks, &a->n_local);

	if (r) {
		refuse_core(a, r);
		return;
	}
	a->begun_ns = skv_now_ns();
	a->deadline_ns = a->begun_ns + a->server->config.prefix_store_wait;
	if (!restores(a))
		ask_store(a);
}

static bool awaits(const struct skv_prefix_ask *a, uid_t uid, const char *name)
{
	return a->state == SKV_PREFIX_RESTORES && a->uid == uid && !strcmp(a->awaits, name);
}

void skv_prefix_restored(struct skv_server *s, uid_t uid, const char *name)
{
	for (struct skv_prefix_ask *a = s->prefix->asks, *next; a; a = next) {
		next = a->next;
		if (awaits(a, uid, name) && a->request.conn)
			ask_store(a);
		else if (awaits(a, uid, name))
			skv_prefix_ask_end(a);
	}
}

static bool is_awaited(const struct skv_server *s, uid_t uid, const char *name)
{
	const struct skv_prefix_ask *a = s->prefix->asks;

	while (a && !awaits(a, uid, name))
		a = a->next;
	return a != NULL;
}

/* ---- PREFIX_SEAL ----------------------------------------------------------------------------- */

/*
 * Called when the core has sealed the blocks, or has refused to. Queues sealed blocks for being sent to the store.
 * Returns the result that the client gets: 0 or an error of the core.
 */
static int sealed(struct skv_server *s, const struct skv_conn *conn, const struct skv_msg_header *h, int r)
{
	struct skv_prefix_ask *a = s->prefix->asks;

	while (a && (a->request.conn != conn || a->request.header.serial != h->serial))
		a = a->next;
	if (!a)
		return r;
	skv_count(s->counts, a->uid, SKV_COUNT_SEALED, r == 0 && a->n_blocks > 0);
	skv_deferred_end(&a->request);
	a->state = SKV_PREFIX_SENDS;
	if ((r == 0 || r == SKV_CORE_E_EXIST) && a->n_blocks && has_turn(a) && skv_fetch_send(a) == 0)
		return 0;
	skv_prefix_ask_end(a);
	return r == SKV_CORE_E_EXIST ? 0 : r;
}

static void have_keys_of_seal(struct skv_prefix_ask *a)
{
	struct skv_server *s = a->server;
	struct skv_conn *conn = a->request.conn;
	const struct skv_msg_header h = a->request.header; /* a copy: sealed() may free `a` before the reply is sent */
	int r;

	a->state = SKV_PREFIX_SEALS;
	r = a->n_blocks ? skv_core_prefix_seal(s->core, a->client, a->m.session, a->m.seq, a->origin, &a->made, a->keys,
	                                       a->n_blocks)
	                : 0;
	skv_tasks_answer_settled(s, conn, &h, r, sealed);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void turn(struct skv_prefix_ask *a)
{
	int r;

	if (!a->request.conn)
		skv_prefix_ask_end(a);
	else if (hash_some(a, &r))
		skv_queue_put(&a->server->prefix->hashes, &a->queued, (uint32_t)a->uid);
	else if (r)
		refuse_core(a, r);
	else if (is_seal(a))
		have_keys_of_seal(a);
	else
		have_keys_of_new(a);
}

/* Runs one turn of one request. */
bool skv_prefix_work(struct skv_server *s)
{
	struct skv_queued *e = skv_queue_take(&s->prefix->hashes);

	if (e)
		turn(SKV_QUEUED_OWNER(e, struct skv_prefix_ask, queued));
	return skv_fetch_work(s) || s->prefix->hashes.first;
}

void skv_prefix_tick(struct skv_server *s)
{
	skv_fetch_tick(s);
	for (struct skv_prefix_ask *a = s->prefix->asks, *next; a; a = next) {
		const bool waits = a->state == SKV_PREFIX_RESTORES || a->state == SKV_PREFIX_FETCHES;

		next = a->next;
		if (waits && a->request.conn && skv_now_ns() > a->deadline_ns)
			open_seq(a); /* with the blocks that are in memory; the transfer continues */
		if (!a->request.conn && (a->state == SKV_PREFIX_RESTORES || a->state == SKV_PREFIX_SEALS))
			skv_prefix_ask_end(a); /* it is answered, or its client is gone; no job refers to the request */
	}
	skv_parking_give_up_prefixes(s, is_awaited);
}

/* ---- life ------------------------------------------------------------------------------------ */

_Static_assert(SKV_PARKED_TAG == SKV_PREFIX_KEY, "one size");

void skv_prefix_file_tag(const struct skv_server *s, uid_t uid, const struct skv_block_key *keys, uint32_t n,
                         uint8_t ret[])
{
	uint8_t tenant[SKV_PREFIX_KEY];

	skv_prefix_tenant(s->prefix->secret, uid, tenant);
	skv_prefix_tag(tenant, keys, n, ret);
	OPENSSL_cleanse(tenant, sizeof(tenant));
}

/*
 * Computes the keys of a sealed prefix that the previous daemon has left in memory. Returns 1: the prefix is indexed;
 * 0: it is dropped, since it was sealed with another secret; or a negative errno.
 */
static int index_one(struct skv_server *s, uint32_t seq, uid_t uid, uint32_t n)
{
	uint8_t tenant[SKV_PREFIX_KEY], key[SKV_PREFIX_KEY];
	struct skv_block_key *keys = malloc(n * sizeof(*keys) + 1);
	int32_t ids[SKV_BLOCK_TOKENS];
	int r = keys ? skv_core_prefix_origin(s->core, seq, key) : -ENOMEM;

	skv_prefix_tenant(s->prefix->secret, uid, tenant);
	for (uint32_t i = 0; i < n && r == 0; i++) {
		r = skv_core_prefix_sealed_ids(s->core, seq, i * SKV_BLOCK_TOKENS, SKV_BLOCK_TOKENS, ids);
		if (r == 0) {
			skv_prefix_block(tenant, key, ids, key);
			skv_prefix_short(key, &keys[i]);
		}
	}
	if (r == 0)
		r = skv_core_prefix_add(s->core, seq, keys, n);
	free(keys);
	OPENSSL_cleanse(tenant, sizeof(tenant));
	return r;
}

/* Indexes the sealed prefixes that the previous daemon has left on disk. */
static void index_parked(struct skv_server *s)
{
	unsigned gone;
	const unsigned found = skv_parking_index_prefixes(s, &gone);

	if (found || gone)
		skv_log(LOG_NOTICE,
		        "%u sealed prefixes on disk can be used again, %u are removed: they were sealed with another "
		        "secret, or exceed their users' quotas",
		        found, gone);
}

static int index_all(struct skv_server *s)
{
	uint32_t row = 0, seq, n, found = 0, gone = 0;
	uid_t uid;
	int r = 0;

	while (r >= 0 && skv_core_prefix_next(s->core, &row, &seq, &uid, &n)) {
		r = index_one(s, seq, uid, n);
		found += r == 1;
		gone += r == 0;
	}
	if (r < 0)
		skv_log(LOG_ERR, "the sealed prefixes in memory cannot be indexed: %s", strerror(-r));
	else if (found || gone)
		skv_log(LOG_NOTICE, "%u sealed prefixes in memory can be used again, %u are dropped: they were sealed "
		                    "with another secret", found,
		        gone);
	return r < 0 ? r : 0;
}

static int check_store(const struct skv_server *s)
{
	struct skv_store_config store;
	char why[SKV_STORE_TEXT];

	if (!*s->config.prefix_store)
		return 0;
	if (!*s->config.prefix_secret_file) {
		skv_log(LOG_ERR,
		        "prefix-store: expected prefix-secret-file, too: without a secret all users of the store "
		        "could read and write prefixes");
		return -EINVAL;
	}
	if (skv_store_config_parse(&store, s->config.prefix_store, why) < 0) {
		skv_log(LOG_ERR, "prefix-store: %s", why);
		return -EINVAL;
	}
	skv_store_config_wipe(&store);
	return 0;
}

/* With NIXL, the store's workers are kept running: their agents and registered memory are gone when they exit. */
static int check_nixl(const struct skv_server *s)
{
	char why[SKV_STORE_TEXT];

	if (!*s->config.prefix_store_nixl)
		return 0;
	if (!*s->config.prefix_store) {
		skv_log(LOG_ERR, "prefix-store-nixl: expected prefix-store, too: the store says on which host values "
		                 "are");
		return -EINVAL;
	}
	if (skv_nixl_check(s->config.prefix_store_nixl, why) < 0) {
		skv_log(LOG_ERR, "prefix-store-nixl: %s", why);
		return -EINVAL;
	}
	skv_worker_keep(s->jobs->workers[SKV_JOBS_FETCH], true);
	skv_worker_keep(s->jobs->workers[SKV_JOBS_SEND], true);
	return 0;
}

int skv_prefix_start(struct skv_server *s)
{
	char why[256];
	int r;

	s->prefix = calloc(1, sizeof(*s->prefix));
	if (!s->prefix)
		return -ENOMEM;
	r = check_store(s);
	if (r == 0)
		r = check_nixl(s);
	if (r == 0 && *s->config.prefix_secret_file) {
		r = skv_prefix_secret(s->config.prefix_secret_file, s->prefix->secret, why);
		if (r < 0)
			skv_log(LOG_ERR, "prefix-secret-file %s", why);
	}
	if (r < 0)
		return r;
	index_parked(s);
	return index_all(s);
}

void skv_prefix_free(struct skv_server *s)
{
	if (!s->prefix)
		return;
	while (s->prefix->asks)
		skv_prefix_ask_end(s->prefix->asks);
	OPENSSL_cleanse(s->prefix->secret, sizeof(s->prefix->secret));
	free(s->prefix);
	s->prefix = NULL;
}
