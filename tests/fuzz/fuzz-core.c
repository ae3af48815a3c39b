/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the daemon under any order of calls. Clients of two users end in the middle of turns, keep mappings of
 * memory that is no longer theirs, and write to the tables and journals of their sequences while the core reads them.
 * The input is the list of calls. In the end the state must balance, and must be empty when everything is dropped.
 */
#include <errno.h>
#include <sys/mman.h>

#include "common/fd.h"
#include "daemon/core/memory/memory.h"
#include "daemon/core/restart/life.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/parking.h"
#include "daemon/core/operations/policies.h"
#include "daemon/core/operations/requests.h"
#include "daemon/core/operations/turns.h"
#include "daemon/mem/mem.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "core";
const int fuzz_copies = 20;

#define CLIENTS 4u
#define SESSIONS 2u
#define SEQS 4u /* per client */
#define MAPS 24u
#define STOCK 256u

struct client {
	uint32_t id; /* 0: unused */
	bool busy;   /* a call in several turns is in progress */
	bool ending; /* is being removed, in turns */
	struct skv_core_session_info sessions[SESSIONS];
	struct {
		uint32_t id, session;
		struct skv_seqmem *mem;
		uint64_t bytes;
	} seqs[SEQS];
	uint32_t stock[STOCK], n_stock;
};

static struct skv_core *core;
static struct client clients[CLIENTS];
/* Mappings of sequence memory, which are written to at any later time. */
static struct {
	void *at;
	uint64_t bytes;
} maps[MAPS];
static uint32_t n_maps;
static uint32_t restored; /* sequence being restored from a file; 0: none */

static struct skv_model a_model(uint32_t which)
{
	struct skv_model m = SKV_MODEL_INIT;

	m.n_layers = 1 + which % 3;
	m.n_heads = m.n_kv_heads = 1;
	m.head_dim = 16;
	m.kv_dtype = SKV_F16;
	m.max_tokens = 4096;
	snprintf(m.name, sizeof(m.name), "m%u", which % 2);
	return m;
}

static const char *a_name(struct fuzz_input *in)
{
	static const char *const names[] = {"", "a", "b", "c"};

	return names[fuzz_u8(in) % 4];
}

/* Returns mostly a session of the client, sometimes an arbitrary number. */
static uint32_t session_of(struct client *c, struct fuzz_input *in)
{
	uint8_t which = fuzz_u8(in);

	return which < 250 ? c->sessions[which % SESSIONS].session : fuzz_u32(in);
}

static uint32_t seq_of(struct client *c, struct fuzz_input *in, uint32_t *ret_session)
{
	uint8_t which = fuzz_u8(in);

	*ret_session = which < 250 ? c->seqs[which % SEQS].session : session_of(c, in);
	return which < 250 ? c->seqs[which % SEQS].id : fuzz_u32(in);
}

static void seq_made(struct client *c, uint32_t session, const struct skv_core_seq_info *info)
{
	uint32_t slot = 0;
	void *at;

	while (slot < SEQS - 1 && c->seqs[slot].id)
		slot++;
	c->seqs[slot].id = info->seq;
	c->seqs[slot].session = session;
	c->seqs[slot].mem = NULL;
	if (n_maps == MAPS || skv_map_fd(info->fd, info->bytes, PROT_READ | PROT_WRITE, 1, &at) < 0)
		return;
	maps[n_maps].at = at;
	maps[n_maps++].bytes = info->bytes;
	c->seqs[slot].mem = at;
	c->seqs[slot].bytes = info->bytes;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void join(struct client *c, struct fuzz_input *in)
{
	uid_t uid = 1000 + fuzz_u8(in) % 2;

	if (skv_core_client_add(core, uid, 1, "fuzz", &c->id) != 0)
		c->id = 0;
}

static void open_session(struct client *c, struct fuzz_input *in)
{
	struct skv_model m = a_model(fuzz_u8(in));
	struct skv_core_session_info info;

	if (skv_core_session_open(core, c->id, &m, "full", 1, &info) == 0)
		c->sessions[c->sessions[0].session ? 1 : 0] = info;
}

static int sequence(struct client *c, struct fuzz_input *in, uint8_t call)
{
	struct skv_core_seq_info info;
	uint32_t session, seq = seq_of(c, in, &session);
	int r = 0;

	switch (call % 5) {
	case 0:
		session = session_of(c, in);
		r = skv_core_seq_new(core, c->id, session, a_name(in), fuzz_u16(in) % 8192, &info);
		break;
	case 1:
		session = session_of(c, in);
		r = skv_core_seq_attach(core, c->id, session, a_name(in), &info);
		break;
	case 2: r = skv_core_seq_fork(core, c->id, session, seq, a_name(in), SKV_ALL, &info); break;
	case 3: return skv_core_seq_detach(core, c->id, session, seq);
	case 4: return skv_core_seq_drop(core, c->id, session, seq);
	}
	if (r == 0)
		seq_made(c, session, &info);
	return r;
}

static uint32_t some_runs(struct fuzz_input *in, struct skv_wire_run *runs)
{
	uint32_t n = fuzz_u8(in) % 4;

	for (uint32_t i = 0; i < n; i++)
		runs[i] = (struct skv_wire_run){fuzz_u16(in) % 2048, 1 + fuzz_u8(in) % 32};
	return n;
}

static int pages(struct client *c, struct fuzz_input *in, uint8_t call)
{
	struct skv_wire_run runs[16];
	uint32_t session = session_of(c, in), seq, n;

	switch (call % 3) {
	case 0:
		if (skv_core_lease_get(core, c->id, session, fuzz_u8(in), fuzz_u16(in), runs, 16, &n) != 0)
			return 0;
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < runs[i].count && c->n_stock < STOCK; k++)
				c->stock[c->n_stock++] = runs[i].first + k;
		return 0;
	case 1:
		n = some_runs(in, runs);
		return skv_core_lease_put(core, c->id, session, runs, n);
	default:
		seq = seq_of(c, in, &session);
		n = some_runs(in, runs);
		return skv_core_seq_release(core, c->id, session, seq, runs, n);
	}
}

/* A correct step. */
static void append(struct client *c, struct fuzz_input *in)
{
	struct skv_seqmem *s = c->seqs[fuzz_u8(in) % SEQS].mem;
	uint32_t pages = 1 + fuzz_u8(in) % 8, len;
	struct skv_seqmem_layout l;
	struct skv_model m;

	if (!s || s->n_layers > 3 || !s->n_layers || s->max_tokens > 8192)
		return;
	m = a_model(s->n_layers - 1);
	skv_seqmem_layout(&m, s->max_tokens, &l);
	len = skv_commit_len(s->commit);
	if (skv_seqmem_check(s, &l) || len + pages * SKV_PAGE_TOKENS > l.max_tokens || c->n_stock < pages * m.n_layers)
		return;
	for (uint32_t t = 0; t < m.n_layers; t++)
		for (uint32_t i = 0; i < pages; i++)
			skv_seqmem_table(s, &l, t)[skv_pages_of(len) + i] = skv_pte_make(SKV_PTE_PRIVATE, c->stock[--c->n_stock]);
	s->commit = (uint64_t)(skv_commit_epoch(s->commit) + 1) << 32 | (skv_pages_of(len) + pages) * SKV_PAGE_TOKENS;
}

/*
 * Writes words to a mapping, whose memory may belong to another client by now: to the header, the journal, tables or
 * anywhere.
 */
static void scribble(struct fuzz_input *in)
{
	uint32_t which = fuzz_u8(in), kind = fuzz_u8(in), at = fuzz_u16(in) * 4u, n = 1 + fuzz_u8(in) % 4;
	uint64_t begin = kind % 4 == 0 ? 0 : kind % 4 == 1 ? sizeof(struct skv_seqmem) : fuzz_u16(in) * 64u;

	for (uint32_t i = 0; i < n && n_maps; i++) {
		uint64_t to = begin + at % (kind % 4 == 0 ? 128 : 4096) + 4 * i;
		uint32_t word = kind & 64 ? fuzz_u32(in) : kind & 32 ? fuzz_u8(in) : (fuzz_u8(in) & 3u) << 28 | fuzz_u8(in);

		if (to + 4 <= maps[which % n_maps].bytes)
			memcpy((char *)maps[which % n_maps].at + to, &word, sizeof(word));
	}
}

static void hear(struct client *c)
{
	struct skv_core_segment s;

	while (skv_core_next_segment(core, c->id, &s))
		if (s.gone)
			skv_core_segment_ack(core, c->id, s.pool, s.segment);
}

static void done(const struct skv_core_done *d)
{
	for (uint32_t i = 0; i < CLIENTS && d->client; i++) {
		struct client *c = &clients[i];

		if (c->id != d->client)
			continue;
		c->busy = false;
		if (d->gone)
			*c = (struct client){0};
		else if (d->info.fd >= 0 && d->result == 0)
			seq_made(c, c->sessions[0].session, &d->info);
		return;
	}
}

static void work(uint32_t units)
{
	struct skv_core_done d = {0};

	skv_core_work(core, units, &d);
	done(&d);
}

static void leave(struct client *c, struct fuzz_input *in)
{
	skv_core_client_fence(core, c->id);
	if (fuzz_u8(in) % 4 == 0)
		return; /* stays fenced for a while */
	MUST(skv_core_client_gone(core, c->id, 1) == 0);
	c->ending = true;
}

/* Parks and restores sequences. */
static void park(struct fuzz_input *in)
{
	const uint8_t what = fuzz_u8(in);
	const struct skv_model m = a_model(what / 4);
	struct skv_wire_run runs[4];
	struct skv_core_listing l;
	uint32_t seq, n, row = UINT32_MAX, held = 0, units = fuzz_u16(in);
	int fd;

	skv_core_set_parking(core, what & 128);
	if (what % 4 == 0 && (skv_core_next_park(core, &seq) || skv_core_park_name(core, 1000, "m0", a_name(in), &row, &seq, &held))) {
		fd = memfd_create("list", MFD_CLOEXEC);
		MUST(fd >= 0);
		if (skv_core_list_begin(core, seq, fd, &l) == 0) {
			while (skv_core_list_some(core, &l, &units) == SKV_CORE_E_TURNS)
				work(units = 1 + fuzz_u16(in));
			skv_core_list_end(&l);
			if (what & 64)
				skv_core_park_failed(core, seq, 1);
			else
				(void)skv_core_park_done(core, &l);
		}
		close(fd);
	} else if (what % 4 == 1) {
		if (!restored && skv_core_restore_new(core, 1000 + units % 2, &m, a_name(in), 64, &seq) == 0)
			restored = seq;
	} else if (what % 4 == 2) {
		(void)skv_core_restore_take(core, restored, 1 + units % 40, runs, 4, &n);
	} else if (restored) {
		if (what & 64 || skv_core_restore_done(core, restored, a_name(in)))
			(void)skv_core_restore_drop(core, restored);
		restored = 0; /* from now on it is a sequence as any other, or gone */
	}
}

/* Calls that no client makes. */
static void other(struct fuzz_input *in, uint8_t call)
{
	static uint64_t now = 1;
	uint32_t at = 0, units = fuzz_u8(in);

	switch (call % 7) {
	case 0: work(1 + fuzz_u16(in)); break;
	case 1: (void)skv_core_age(core, now += units * 1000, 0, 5000, units); break;
	case 2: skv_core_measure(core, &at, units * 1000); break;
	case 3: skv_core_seq_drop_name(core, 1000 + units % 2, units & 2 ? "m0" : "m1", a_name(in)); break;
	case 4:
		skv_core_swap(core, &(struct skv_core_scope){
		                      .session = units & 4 ? clients[units % CLIENTS].sessions[0].session : 0,
		                      .uid = 1000, .model = units & 8 ? "m0" : ""}, "full", units % 2);
		break;
	case 5: scribble(in); break;
	case 6: park(in); break;
	}
}

static void call(struct client *c, struct fuzz_input *in, uint8_t what)
{
	struct skv_msg_policy policy;
	int r = 0;

	if (!c->id) {
		join(c, in);
		return;
	}
	if (c->ending)
		return;
	if (what % 16 == 0 || c->busy) { /* a client with a call in progress may only end */
		if (what % 16 == 0)
			leave(c, in);
		return;
	}
	switch (what % 16) {
	case 1: open_session(c, in); break;
	case 2: r = skv_core_session_close(core, c->id, session_of(c, in)); break;
	case 3: hear(c); break;
	case 4: skv_core_segment_ack(core, c->id, fuzz_u8(in), fuzz_u16(in)); break;
	case 5: skv_core_session_policy(core, c->id, session_of(c, in), &policy); break;
	case 6: skv_core_policy_ack(core, c->id, session_of(c, in), fuzz_u8(in), fuzz_u8(in) % 8, "no"); break;
	case 7: skv_core_client_holds(core, c->id, fuzz_u16(in)); break;
	case 8: case 9: append(c, in); break;
	case 10: case 11: case 12: r = pages(c, in, fuzz_u8(in)); break;
	default: r = sequence(c, in, fuzz_u8(in)); break;
	}
	MUST(r >= 0);
	if (r == SKV_CORE_E_TURNS)
		c->busy = true;
}

/* ---- an input -------------------------------------------------------------------------------- */

static void on_corrupt(void *data, uid_t uid, const char *model, const char *name, const char *why)
{
	(void)data, (void)uid;
	MUST(model && name && why && *why);
}

static void must_balance(bool empty)
{
	const char *problem = skv_core_balance(core, empty);

	if (problem)
		fprintf(stderr, "%s\n", problem);
	MUST(!problem);
}

void fuzz_one(const uint8_t *data, size_t size)
{
	struct skv_core_config config = {
		.pool_bytes = 4 << 20, .segment_bytes = 64 << 10, .account_bytes = 2 << 20, .account_clients = 3,
		.account_sequences = 6, .max_clients = CLIENTS, .max_sequences = 10, .max_sessions = 8, .max_pools = 6,
		.account_pools = 2, .client_sessions = SESSIONS,
	};
	struct fuzz_input in = {data, size};

	MUST(skv_core_new(&config, &skv_mem_host, &core) == 0);
	skv_core_on_corrupt(core, on_corrupt, NULL);
	while (in.left) {
		uint8_t who = fuzz_u8(&in), what = fuzz_u8(&in);

		if (who & 0x80)
			other(&in, what);
		else
			call(&clients[who % CLIENTS], &in, what);
		if (who & 0x40)
			must_balance(false);
	}
	must_balance(false);
	skv_core_work_all(core);
	must_balance(false);
	skv_core_drop_all(core);
	must_balance(true);
	core = skv_core_free(core);
	for (uint32_t i = 0; i < n_maps; i++)
		munmap(maps[i].at, maps[i].bytes);
	n_maps = restored = 0;
	memset(clients, 0, sizeof(clients));
}
