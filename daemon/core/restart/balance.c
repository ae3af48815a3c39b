/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recounts the state. The state balances if every count agrees with the owner words, the reference bits and the rows;
 * unless rows alone are checked, descriptors of segments and sets of segments must agree with the rows, too.
 */
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/refs.h"
#include "daemon/core/restart/balance.h"
#include "daemon/core/restart/life.h"
#include "daemon/core/sequences/idle.h"
#include "daemon/core/operations/task.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[200];

static const char *off(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *off(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return text;
}

/* The counts of one pool, recounted from its owner words and reference bits. */
struct recount {
	bool bare; /* rows alone are checked: fds do not exist yet, and it is unknown which work was in progress */
	uint64_t count[SKV_OWNER_KINDS];
	uint32_t segments, empty, pending, wanted, leaving;
	uint32_t *refs;     /* [page]: number of sequences that refer to the page */
	uint32_t *by_owner; /* [clients]: number of pages on lease; then [sequences]: number of pages with that owner */
};

/*
 * Is the pool in host memory? The answer is taken from the pool's row, unlike in skv_pool_is_whole(): when rows alone
 * are checked, the core does not know the devices yet.
 */
static bool is_whole(const struct skv_core *c, uint32_t pool)
{
	return skv_pool_row(&c->state, pool)->device == SKV_DEVICE_HOST;
}

static const char *recount_page(const struct skv_core *c, const struct recount *t, uint32_t pool, uint32_t page)
{
	const struct skv_geometry *g = &c->state.header->geometry;
	skv_owner o = *skv_owner_word(&c->state, pool, page);
	uint32_t value = skv_owner_value(o);

	switch (skv_owner_kind(o)) {
	case SKV_OWNER_FREE: return value ? off("page %u of pool %u: owner word %#x", page, pool, o) : NULL;
	case SKV_OWNER_LEASE:
		if (value >= g->max_clients || !skv_client_row(&c->state, value)->row.live)
			return off("page %u of pool %u is on lease to client row %u, which is not there",
			           page, pool, value);
		t->by_owner[value]++;
		return NULL;
	case SKV_OWNER_SEQ:
		if (value >= g->max_sequences || !skv_seq_row(&c->state, value)->row.live ||
		    skv_seq_row(&c->state, value)->pool != pool)
			return off("page %u of pool %u is of sequence row %u, which is not there", page, pool,
			           value);
		t->by_owner[g->max_clients + value]++;
		return NULL;
	case SKV_OWNER_SHARED:
		if (value == 0 || t->refs[page] != value)
			return off("page %u of pool %u: %u references counted, %u found", page, pool, value,
			           t->refs[page]);
		return NULL;
	}
	return NULL;
}

static bool has_handle(const struct skv_core *c, uint32_t pool, uint32_t segment)
{
	static const struct skv_mem_handle none = SKV_MEM_HANDLE_NULL;
	const struct skv_mem_handle *h = &c->pools[pool].handles[segment];

	if (c->memory[skv_pool_row(&c->state, pool)->device].mem->handle_kind == SKV_HANDLE_CUDA_IPC)
		return memcmp(h->ipc, none.ipc, sizeof(none.ipc)) != 0;
	return h->fd >= 0;
}

/* Is the segment in exactly those sets (segment-sets.h) in which its row says that it must be? */
static bool is_filed(const struct skv_core *c, uint32_t pool, uint32_t segment)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	const struct skv_segment_row *s = skv_segment_row(&c->state, pool, segment);
	const struct skv_pool_local *l = &c->pools[pool];
	bool live = s->state == SKV_SEGMENT_LIVE;

	for (uint32_t i = 0; i < SKV_RUN_CLASSES; i++)
		if (skv_bitset_has(&l->runs[i], segment) != (live && s->free && s->longest >> i))
			return false;
	return skv_bitset_has(&l->empty, segment) == (live && s->free == p->pages_per_segment) &&
	       skv_bitset_has(&l->vacant, segment) == (s->state == SKV_SEGMENT_NONE);
}

static const char *recount_segment(const struct skv_core *c, struct recount *t, uint32_t pool, uint32_t segment)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	const struct skv_segment_row *s = skv_segment_row(&c->state, pool, segment);
	uint32_t first = segment * p->pages_per_segment, n_free = 0, waiting = 0, run = 0, longest = 0;

	if (!t->bare && !is_whole(c, pool) && (s->state == SKV_SEGMENT_LIVE) != has_handle(c, pool, segment))
		return off("segment %u of pool %u: its handle does not match its state", segment, pool);
	for (uint32_t i = first; i < first + p->pages_per_segment; i++) {
		skv_owner o = *skv_owner_word(&c->state, pool, i);
		const char *problem;

		if (s->state != SKV_SEGMENT_LIVE) {
			if (o || t->refs[i])
				return off("page %u of pool %u has an owner (%#x) but no memory", i, pool, o);
			continue;
		}
		problem = recount_page(c, t, pool, i);
		if (problem)
			return problem;
		t->count[skv_owner_kind(o)]++;
		n_free += skv_owner_kind(o) == SKV_OWNER_FREE;
		run = skv_owner_kind(o) == SKV_OWNER_FREE ? run + 1 : 0;
		longest = run > longest ? run : longest;
	}
	SKV_EACH(i, &c->state, SKV_TABLE_CLIENTS) {
		uint8_t told = *skv_told(&c->state, pool, i, segment);

		waiting += skv_member_row(&c->state, pool, i)->sessions &&
		           (told == SKV_TOLD_GONE_DUE || told == SKV_TOLD_GONE);
	}
	if (s->state == SKV_SEGMENT_LIVE) {
		t->segments++;
		t->empty += n_free == p->pages_per_segment;
	}
	t->leaving += s->state == SKV_SEGMENT_LEAVING && is_whole(c, pool);
	t->pending += s->state == SKV_SEGMENT_WANTED || s->state == SKV_SEGMENT_STARTED;
	t->wanted += s->state == SKV_SEGMENT_WANTED;
	if (longest > s->longest || (!t->bare && !is_filed(c, pool, segment)))
		return off("segment %u of pool %u: a search would not find its free pages", segment, pool);
	if (s->free != n_free)
		return off("segment %u of pool %u: %u free pages, %u found", segment, pool, s->free, n_free);
	if (s->waiting != waiting || (!is_whole(c, pool) && (s->state == SKV_SEGMENT_LEAVING) != (waiting > 0)))
		return off("segment %u of pool %u waits for %u clients, %u found", segment, pool, s->waiting,
		           waiting);
	return NULL;
}

/* Recounts references to the pool's pages. References to pages without memory are found later, in recount_segment(). */
static const char *recount_refs(const struct skv_core *c, struct recount *t, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	SKV_EACH(seq, &c->state, SKV_TABLE_SEQUENCES) {
		const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
		const uint32_t end = p->high * p->pages_per_segment;
		uint64_t n = 0;

		if (q->pool != pool)
			continue;
		/* reads no row of bits that never had a reference: reading its holes would allocate memory */
		for (uint32_t page = 0; q->referred && page < end; page += SKV_REF_BITS)
			for (uint64_t bits = skv_ref_bits(c, seq, page); bits; bits &= bits - 1, n++)
				t->refs[page + (uint32_t)__builtin_ctzll(bits)]++;
		if (q->refs != n)
			return off("sequence row %u: %u references counted, %llu found", seq, q->refs,
			           (unsigned long long)n);
	}
	return NULL;
}

/* May a held sequence own pages, because an attach or a detach is handing them over? */
static bool is_between(const struct skv_core *c, const struct recount *t, const struct skv_seq_row *q)
{
	return t->bare || skv_task_is_of(c, skv_session_row(&c->state, q->session)->client);
}

static const char *check_owners(const struct skv_core *c, const struct recount *t, uint32_t pool)
{
	uint32_t n_clients = c->state.header->geometry.max_clients;

	SKV_EACH(i, &c->state, SKV_TABLE_CLIENTS) {
		const struct skv_member *m = skv_member_row(&c->state, pool, i);

		if (m->lease != t->by_owner[i] || (m->lease && !m->sessions))
			return off("client row %u: %u pages on lease in pool %u, %u found", i, m->lease, pool,
			           t->by_owner[i]);
	}
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
		const struct skv_seq_row *q = skv_seq_row(&c->state, i);

		if (q->pool == pool && (q->pages != t->by_owner[n_clients + i] ||
		                        (q->pages && q->session != SKV_NO_INDEX && !is_between(c, t, q))))
			return off("sequence row %u: %u pages of its own, %u found", i, q->pages,
			           t->by_owner[n_clients + i]);
	}
	return NULL;
}

static const char *recount_pool(const struct skv_core *c, struct recount *t, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	const char *problem = recount_refs(c, t, pool);

	for (uint32_t s = 0; !problem && s < p->high; s++)
		problem = recount_segment(c, t, pool, s);
	if (!problem)
		problem = check_owners(c, t, pool);
	if (problem)
		return problem;
	for (int k = 0; k < SKV_OWNER_KINDS; k++)
		if (p->count[k] != t->count[k])
			return off("pool %u: %llu pages of kind %d, %llu found", pool,
			           (unsigned long long)p->count[k], k, (unsigned long long)t->count[k]);
	if (p->leaving != t->leaving)
		return off("pool %u: %u segments leave, %u found", pool, p->leaving, t->leaving);
	if (p->segments != t->segments || p->empty != t->empty)
		return off("pool %u: %u segments, %u empty; %u and %u found", pool, p->segments, p->empty,
		           t->segments, t->empty);
	if (p->pending != t->pending || p->wanted != t->wanted)
		return off("pool %u: %u segments pending, %u of them wanted; %u and %u found", pool, p->pending,
		           p->wanted, t->pending, t->wanted);
	return NULL;
}

static const char *check_pool(const struct skv_core *c, uint32_t pool, bool bare)
{
	const struct skv_geometry *g = &c->state.header->geometry;
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint32_t sessions = 0, sequences = 0;
	struct recount t = {
		.bare = bare,
		.refs = calloc((size_t)p->max_segments * p->pages_per_segment, sizeof(uint32_t)),
		.by_owner = calloc((size_t)g->max_clients + g->max_sequences, sizeof(uint32_t)),
	};
	const char *problem = t.refs && t.by_owner ? recount_pool(c, &t, pool) : skv_no_memory;

	free(t.refs);
	free(t.by_owner);
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS)
		sessions += skv_session_row(&c->state, i)->pool == pool;
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES)
		sequences += skv_seq_row(&c->state, i)->pool == pool;
	if (!problem && (p->sessions != sessions || p->sequences != sequences || (!sessions && !sequences)))
		problem = off("pool %u: %u sessions, %u sequences; %u and %u found", pool, p->sessions,
		              p->sequences, sessions, sequences);
	return problem;
}

static const char *check_account(const struct skv_core *c, uint32_t account)
{
	const struct skv_account_row *a = skv_account_row(&c->state, account);
	uint32_t clients = 0, sessions = 0, sequences = 0, pools = 0;
	uint64_t bytes[SKV_MEMORY_KINDS] = {0}, other = 0, copied = 0;

	SKV_EACH(i, &c->state, SKV_TABLE_CLIENTS) {
		clients += skv_client_row(&c->state, i)->account == account;
		other += skv_client_row(&c->state, i)->account == account ? skv_client_row(&c->state, i)->bytes : 0;
	}
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS)
		sessions +=
			skv_client_row(&c->state, skv_session_row(&c->state, i)->client)->account == account;
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
		sequences += skv_seq_row(&c->state, i)->account == account;
		other += skv_seq_row(&c->state, i)->account == account ? skv_seq_row(&c->state, i)->bytes : 0;
		copied += skv_seq_row(&c->state, i)->account == account ? skv_seq_row(&c->state, i)->copied : 0;
	}
	SKV_EACH(i, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, i);

		if (p->account != account)
			continue;
		pools++;
		other += p->stray_bytes;
		bytes[p->device] += (p->count[SKV_OWNER_LEASE] + p->count[SKV_OWNER_SEQ] +
		                     p->count[SKV_OWNER_SHARED]) *
		                    p->page_bytes;
	}
	if (a->clients != clients || a->sessions != sessions || a->sequences != sequences ||
	    a->pools != pools)
		return off("UID %u: %u clients, %u sessions, %u sequences, %u pools; %u, %u, %u and %u found",
		           a->uid, a->clients, a->sessions, a->sequences, a->pools, clients, sessions,
		           sequences, pools);
	other += (uint64_t)sessions * SKV_SESSION_BYTES;
	if (a->copied_bytes != copied)
		return off("UID %u has %llu bytes of copies, %llu found", a->uid, (unsigned long long)a->copied_bytes,
		           (unsigned long long)copied);
	if (a->other_bytes != other)
		return off("UID %u is charged for %llu bytes beside its pages, %llu found", a->uid,
		           (unsigned long long)a->other_bytes, (unsigned long long)other);
	for (uint32_t i = 0; i < SKV_MEMORY_KINDS; i++)
		if (a->page_bytes[i] != bytes[i])
			return off("UID %u is charged for %llu bytes of memory %u, %llu found", a->uid,
			           (unsigned long long)a->page_bytes[i], i, (unsigned long long)bytes[i]);
	if (!clients && !sequences)
		return off("UID %u has an account with nothing in it", a->uid);
	return NULL;
}

static uint32_t notices_of(const struct skv_core *c, uint32_t client)
{
	uint32_t n = 0;

	SKV_EACH(pool, &c->state, SKV_TABLE_POOLS) {
		if (!skv_member_row(&c->state, pool, client)->sessions)
			continue;
		if (is_whole(c, pool)) {
			n += *skv_told(&c->state, pool, client, 0) != SKV_TOLD_LIVE;
			continue;
		}
		for (uint32_t s = 0; s < skv_pool_row(&c->state, pool)->high; s++) {
			uint8_t told = *skv_told(&c->state, pool, client, s);
			uint32_t state = skv_segment_row(&c->state, pool, s)->state;
			bool due = told == SKV_TOLD_GONE_DUE || told == SKV_TOLD_AGAIN ||
			           (state == SKV_SEGMENT_LIVE && told == SKV_TOLD_NOTHING);

			/* an announcement before first_untold would never be found, so it is not counted */
			n += due && s >= skv_member_row(&c->state, pool, client)->first_untold;
		}
	}
	return n;
}

static const char *check_client(const struct skv_core *c, uint32_t client)
{
	const struct skv_client_row *row = skv_client_row(&c->state, client);
	uint32_t sessions = 0, members = 0, notices = notices_of(c, client);

	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS)
		sessions += skv_session_row(&c->state, i)->client == client;
	SKV_EACH(i, &c->state, SKV_TABLE_POOLS)
		members += skv_member_row(&c->state, i, client)->sessions;
	if (row->sessions != sessions || members != sessions)
		return off("client row %u: %u sessions, %u in pools, %u found", client, row->sessions,
		           members, sessions);
	if (row->notices != notices)
		return off("client row %u: %u segments to be told of, %u found", client, row->notices,
		           notices);
	return NULL;
}

static const char *check_session(const struct skv_core *c, uint32_t session)
{
	uint32_t sequences = 0, stated = skv_session_row(&c->state, session)->sequences;

	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES)
		sequences += skv_seq_row(&c->state, i)->session == session;
	return stated == sequences
	               ? NULL
	               : off("session row %u: %u sequences, %u found", session, stated, sequences);
}

/* Checks that the table's count of live rows is right, and that its free list has as many rows as are not live. */
static const char *check_rows(const struct skv_core *c, enum skv_table t)
{
	const struct skv_state_header *h = c->state.header;
	uint32_t live = 0, n_free = 0;

	SKV_EACH(i, &c->state, t)
		live++;
	for (uint32_t at = h->free[t]; at && n_free <= h->high[t]; n_free++)
		at = ((const struct skv_row *)skv_state_at(&c->state, t, at - 1))->next_free;
	if (h->live[t] != live || n_free + live != h->high[t])
		return off("table %d: %u rows live, %u found, %u free of %u", t, h->live[t], live, n_free,
		           h->high[t]);
	return NULL;
}

static const char *check_global(const struct skv_core *c)
{
	const struct skv_state_header *h = c->state.header;
	uint64_t segment_bytes[SKV_MEMORY_KINDS] = {0};

	SKV_EACH(i, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, i);

		segment_bytes[p->device] += (p->segments + p->pending) * p->segment_bytes;
	}
	for (uint32_t i = 0; i < SKV_MEMORY_KINDS; i++)
		if (h->segment_bytes[i] != segment_bytes[i])
			return off("%llu bytes in segments of memory %u, %llu found",
			           (unsigned long long)h->segment_bytes[i], i,
			           (unsigned long long)segment_bytes[i]);
	return NULL;
}

static const char *check_empty(const struct skv_core *c)
{
	static const char *const names[SKV_TABLE_ROWS] = {"accounts", "clients", "sessions", "sequences",
	                                                  "pools"};
	const struct skv_state_header *h = c->state.header;

	for (int t = 0; t < SKV_TABLE_ROWS; t++)
		if (h->live[t])
			return off("%u %s are left", h->live[t], names[t]);
	for (uint32_t i = 0; i < SKV_MEMORY_KINDS; i++)
		if (h->segment_bytes[i])
			return off("%llu bytes of segments of memory %u are left",
			           (unsigned long long)h->segment_bytes[i], i);
	return NULL;
}

/* Checks that the lists of idle sequences are complete and in the order of last use. */
static const char *check_idle(const struct skv_core *c)
{
	uint32_t n = 0, found = 0;

	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES)
		n += skv_seq_row(&c->state, i)->session == SKV_NO_INDEX && skv_seq_row(&c->state, i)->name[0];
	SKV_EACH(a, &c->state, SKV_TABLE_ACCOUNTS) {
		uint64_t used = 0;

		for (uint32_t i = skv_idle_first(c, a); i != SKV_NO_INDEX; i = skv_idle_after(c, i), found++) {
			const struct skv_seq_row *q = skv_seq_row(&c->state, i);

			if (q->account != a || q->session != SKV_NO_INDEX || !q->name[0] || q->used < used)
				return off("sequence %u is out of place in account %u's list of idle sequences", i, a);
			used = q->used;
		}
	}
	return n == found ? NULL : off("%u sequences are idle, %u are in the lists of idle sequences", n, found);
}

static const char *balance(const struct skv_core *c, bool bare)
{
	const char *problem = NULL;

	for (int t = 0; !problem && t < SKV_TABLE_ROWS; t++)
		problem = check_rows(c, t);
	SKV_EACH(i, &c->state, SKV_TABLE_POOLS)
		problem = problem ? problem : check_pool(c, i, bare);
	SKV_EACH(i, &c->state, SKV_TABLE_ACCOUNTS)
		problem = problem ? problem : check_account(c, i);
	SKV_EACH(i, &c->state, SKV_TABLE_CLIENTS)
		problem = problem ? problem : check_client(c, i);
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS)
		problem = problem ? problem : check_session(c, i);
	problem = problem ? problem : check_idle(c);
	return problem ? problem : check_global(c);
}

const char *skv_balance_rows(const struct skv_core *c)
{
	return balance(c, true);
}

const char *skv_core_balance(struct skv_core *c, bool empty)
{
	const char *problem;

	if (c->given_up)
		return NULL;
	problem = balance(c, false);
	if (problem == skv_no_memory)
		skv_core_give_up(c); /* out of memory: the state may be right, so the next process checks it again */
	return problem || !empty ? problem : check_empty(c);
}
