/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/restart/verify.c - verifies the rows of a state that another process left.
 *
 * The first check is which rows are live. After that clients, pools, sessions and sequences are checked in this order,
 * since the rows of each table refer only to rows of earlier tables. Values that are merely odd (an order of use, a
 * text for display) are accepted, because everything in a rejected state is lost.
 */
#include "daemon/core/restart/verify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[200];

const char *skv_verify_off(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return text;
}
#define off skv_verify_off

static const char *const tables[SKV_TABLE_ROWS] = {"account", "client", "session", "sequence", "pool"};

static bool lives(const struct skv_state *s, enum skv_table t, uint32_t i)
{
	return i < s->header->high[t] && ((const struct skv_row *)skv_state_at(s, t, i))->live;
}

static bool ends(const char *string, size_t size)
{
	return memchr(string, 0, size) != NULL;
}

/* ---- which rows are live ----------------------------------------------------------------------- */

/*
 * Checks that a table's free list contains each free row once. A free list does so if it has as many entries as there
 * are free rows, contains no live row, and has an end.
 */
static const char *check_free(const struct skv_state *s, enum skv_table t)
{
	const struct skv_state_header *h = s->header;
	uint32_t at = h->free[t], n = 0;

	for (; at && n < h->high[t] - h->live[t]; n++) {
		if (at > h->high[t] || lives(s, t, at - 1))
			return off("%s rows: the free list has row %u, which is not free", tables[t], at - 1);
		at = ((const struct skv_row *)skv_state_at(s, t, at - 1))->next_free;
	}
	return at || n < h->high[t] - h->live[t]
	               ? off("%s rows: the free list does not have each free row once", tables[t])
	               : NULL;
}

static const char *check_rows(const struct skv_state *s, enum skv_table t)
{
	const struct skv_state_header *h = s->header;
	uint32_t live = 0;

	if (h->high[t] > h->elements[t] || h->live[t] > h->high[t])
		return off("%s rows: more than the table holds", tables[t]);
	for (uint32_t i = 0; i < h->high[t]; i++) {
		const struct skv_row *row = skv_state_at(s, t, i);

		if (row->live > 1 || (row->live && (row->generation == 0 || row->generation > 0xffff)))
			return off("%s row %u: neither free nor in use", tables[t], i);
		live += row->live;
	}
	if (live != h->live[t])
		return off("%s rows: %u in use, %u found", tables[t], h->live[t], live);
	return check_free(s, t);
}

/* ---- rows that must be unique ------------------------------------------------------------------ */

struct key {
	uint64_t a, b;
	uint32_t row;
};

static int by_key(const void *a, const void *b)
{
	const struct key *x = a, *y = b;

	if (x->a != y->a)
		return x->a < y->a ? -1 : 1;
	return x->b < y->b ? -1 : x->b > y->b;
}

static struct key key_of(const struct skv_state *s, enum skv_table t, uint32_t i)
{
	switch ((int)t) {
	case SKV_TABLE_ACCOUNTS: return (struct key){.a = skv_account_row(s, i)->uid, .row = i};
	case SKV_TABLE_SESSIONS:
		return (struct key){.a = skv_session_row(s, i)->pool, .b = skv_session_row(s, i)->client, .row = i};
	case SKV_TABLE_POOLS: break;
	}
	return (struct key){
		.a = (uint64_t)skv_pool_row(s, i)->account << 32 | skv_pool_row(s, i)->device,
		.b = skv_pool_row(s, i)->page_bytes,
		.row = i,
	};
}

/* Returns the keys of a table's live rows, sorted, in memory of malloc(); NULL: out of memory. */
static struct key *sorted(const struct skv_state *s, enum skv_table t, uint32_t *ret_n)
{
	struct key *keys = malloc((s->header->live[t] + 1) * sizeof(*keys));

	*ret_n = 0;
	if (!keys)
		return NULL;
	SKV_EACH(i, s, t)
		keys[(*ret_n)++] = key_of(s, t, i);
	qsort(keys, *ret_n, sizeof(*keys), by_key);
	return keys;
}

/*
 * Checks that no two accounts have the same UID, and no two pools the same account, memory and page size: rows are
 * found by these.
 */
static const char *check_twins(const struct skv_state *s, enum skv_table t)
{
	uint32_t n;
	struct key *keys = sorted(s, t, &n);
	const char *problem = keys ? NULL : skv_no_memory;

	for (uint32_t i = 1; keys && !problem && i < n; i++)
		if (by_key(&keys[i - 1], &keys[i]) == 0)
			problem = off("%s rows %u and %u are the same", tables[t], keys[i - 1].row, keys[i].row);
	free(keys);
	return problem;
}

/*
 * Checks that the member row of each client with sessions on a pool has the number of these sessions. That no other
 * member row has sessions follows from the sum, which skv_balance_rows() checks.
 */
static const char *check_memberships(const struct skv_state *s)
{
	uint32_t n, first = 0;
	struct key *keys = sorted(s, SKV_TABLE_SESSIONS, &n);
	const char *problem = keys ? NULL : skv_no_memory;

	for (uint32_t i = 1; keys && !problem && i <= n; i++) {
		const struct skv_member *m = skv_member_row(s, (uint32_t)keys[first].a, (uint32_t)keys[first].b);

		if (i < n && by_key(&keys[first], &keys[i]) == 0)
			continue;
		if (m->sessions != i - first)
			problem = off("member row of client row %u in pool row %u: %u sessions, %u found",
			              (uint32_t)keys[first].b, (uint32_t)keys[first].a, m->sessions, i - first);
		first = i;
	}
	free(keys);
	return problem;
}

/* ---- each table ------------------------------------------------------------------------------ */

static const char *check_client(const struct skv_state *s, uint32_t i)
{
	const struct skv_client_row *c = skv_client_row(s, i);

	if (!lives(s, SKV_TABLE_ACCOUNTS, c->account))
		return off("client row %u: its account row %u is not there", i, c->account);
	if (c->fenced > 1 || c->kept > 1)
		return off("client row %u: its connection is in an unknown state", i);
	return ends(c->program, sizeof(c->program)) ? NULL
	                                            : off("client row %u: the name of its program has no end", i);
}

static const char *check_segments(const struct skv_state *s, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(s, pool);
	const bool host = p->device == SKV_DEVICE_HOST;

	for (uint32_t i = 0; i < p->high; i++) {
		const struct skv_segment_row *g = skv_segment_row(s, pool, i);
		const bool pending = g->state == SKV_SEGMENT_WANTED || g->state == SKV_SEGMENT_STARTED;

		if (g->state > SKV_SEGMENT_STARTED || (host && pending))
			return off("segment row %u of pool row %u is in state %u", i, pool, g->state);
		if (g->serial > s->header->segment_serial)
			return off("segment row %u of pool row %u: serial %llu was not given yet", i, pool,
			           (unsigned long long)g->serial);
		if (g->free > p->pages_per_segment || (host && g->waiting))
			return off("segment row %u of pool row %u: %u pages free, %u clients to acknowledge", i, pool,
			           g->free, g->waiting);
	}
	return NULL;
}

/*
 * Are the sizes of a pool possible? A segment of host memory consists of pages without gaps. A segment of a device may
 * have up to two pages' bytes more (pools.c).
 */
static bool is_shape(const struct skv_geometry *g, const struct skv_pool_row *p)
{
	uint64_t pages = p->pages_per_segment;

	if (!pages || !p->max_segments || p->max_segments > g->max_segments || pages * p->max_segments > g->max_pages ||
	    !p->page_bytes || p->page_bytes > UINT32_MAX)
		return false;
	if (p->device == SKV_DEVICE_HOST)
		return p->segment_bytes == pages * p->page_bytes && p->segment_bytes <= g->pool_bytes / p->max_segments;
	return p->segment_bytes >= pages * p->page_bytes && p->segment_bytes < (pages + 2) * p->page_bytes;
}

static const char *check_pool(const struct skv_state *s, uint32_t i)
{
	const struct skv_pool_row *p = skv_pool_row(s, i);

	if (!lives(s, SKV_TABLE_ACCOUNTS, p->account))
		return off("pool row %u: its account row %u is not there", i, p->account);
	if (p->device >= SKV_MEMORY_KINDS)
		return off("pool row %u: there is no memory %u", i, p->device);
	if (!is_shape(&s->header->geometry, p))
		return off("pool row %u: %u segments of %u pages are not possible", i, p->max_segments,
		           p->pages_per_segment);
	if (p->high > p->max_segments)
		return off("pool row %u: %u segments in use of %u", i, p->high, p->max_segments);
	return check_segments(s, i);
}

/* Checks that a model is valid, and that its memory and page size are those of the pool. NULL or an error text. */
static const char *check_model(const struct skv_state *s, const struct skv_model *m, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(s, pool);
	const char *problem = skv_model_check(m);

	if (problem)
		return problem;
	return m->device == p->device && skv_page_bytes(m) == p->page_bytes && !m->layers
	               ? NULL
	               : "model: its pages are not those of the pool";
}

static const char *check_session(const struct skv_state *s, uint32_t i)
{
	const struct skv_session_row *e = skv_session_row(s, i);
	const char *problem;

	if (!lives(s, SKV_TABLE_CLIENTS, e->client))
		return off("session row %u: its client row %u is not there", i, e->client);
	if (!lives(s, SKV_TABLE_POOLS, e->pool) ||
	    skv_pool_row(s, e->pool)->account != skv_client_row(s, e->client)->account)
		return off("session row %u: its pool row %u is not one of its user", i, e->pool);
	if (!ends(e->wanted.spec, SKV_SPEC_MAX) || !ends(e->given.spec, SKV_SPEC_MAX) ||
	    !ends(e->running.spec, SKV_SPEC_MAX) || !ends(e->error, SKV_TEXT_MAX))
		return off("session row %u: a spec or a text has no end", i);
	problem = check_model(s, &e->model, e->pool);
	return problem ? off("session row %u: %s", i, problem) : NULL;
}

static const char *check_seq(const struct skv_state *s, uint32_t i)
{
	const struct skv_seq_row *q = skv_seq_row(s, i);

	if (!lives(s, SKV_TABLE_ACCOUNTS, q->account))
		return off("sequence row %u: its account row %u is not there", i, q->account);
	if (!lives(s, SKV_TABLE_POOLS, q->pool) || skv_pool_row(s, q->pool)->account != q->account)
		return off("sequence row %u: its pool row %u is not one of its user", i, q->pool);
	if (q->session != SKV_NO_INDEX &&
	    (!lives(s, SKV_TABLE_SESSIONS, q->session) || skv_session_row(s, q->session)->pool != q->pool))
		return off("sequence row %u: its session row %u is not one on its pool", i, q->session);
	if (q->referred > 1 || q->fresh > 1)
		return off("sequence row %u: it is neither new nor old", i);
	return NULL;
}

const char *skv_verify_seq(const struct skv_state *s, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(s, seq);
	const char *problem = check_model(s, &q->model, q->pool);

	if (problem)
		return problem;
	if (!ends(q->name, sizeof(q->name)) ||
	    (q->name[0] && !skv_name_valid(q->name) && !skv_prefix_name_valid(q->name)))
		return "its name is not valid";
	if (q->max_tokens < 1 || q->max_tokens > SKV_MAX_TOKENS ||
	    (uint64_t)q->model.n_layers * skv_pages_of(q->max_tokens) > SKV_SEQ_MAX_ENTRIES)
		return "its length is not possible";
	return NULL;
}

/* ---- all of it ------------------------------------------------------------------------------- */

const char *skv_verify(const struct skv_state *s)
{
	static const struct {
		enum skv_table table;
		const char *(*check)(const struct skv_state *, uint32_t row);
	} checks[] = {{SKV_TABLE_CLIENTS, check_client},
	              {SKV_TABLE_POOLS, check_pool},
	              {SKV_TABLE_SESSIONS, check_session},
	              {SKV_TABLE_SEQUENCES, check_seq}};
	const char *problem = NULL;

	for (int t = 0; !problem && t < SKV_TABLE_ROWS; t++)
		problem = check_rows(s, (enum skv_table)t);
	for (size_t k = 0; !problem && k < sizeof(checks) / sizeof(*checks); k++)
		for (uint32_t i = skv_state_next(s, checks[k].table, 0); !problem && i != SKV_NO_INDEX;
		     i = skv_state_next(s, checks[k].table, i + 1))
			problem = checks[k].check(s, i);
	if (!problem)
		problem = check_twins(s, SKV_TABLE_ACCOUNTS);
	if (!problem)
		problem = check_twins(s, SKV_TABLE_POOLS);
	if (!problem)
		problem = check_memberships(s);
	return problem ? problem : skv_verify_sparse(s);
}
