/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/views.c - read-only views of the core's tables, for status, lists and metrics. */
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pins.h"
#include "daemon/core/memory/segment-sets.h"
#include "daemon/core/sequences/sequence-file.h"
#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/views.h"

#include <string.h>

void skv_core_users(const struct skv_core *c, void (*cb)(void *, uid_t), void *data)
{
	SKV_EACH(i, &c->state, SKV_TABLE_ACCOUNTS)
		cb(data, (uid_t)skv_account_row(&c->state, i)->uid);
}

static bool is_of(const struct skv_core *c, uint32_t account, bool all, uid_t uid)
{
	return all || skv_account_row(&c->state, account)->uid == uid;
}

void skv_core_totals(const struct skv_core *c, bool all, uid_t uid, struct skv_core_totals *ret)
{
	*ret = (struct skv_core_totals){0};
	SKV_EACH(i, &c->state, SKV_TABLE_ACCOUNTS) {
		const struct skv_account_row *a = skv_account_row(&c->state, i);

		if (!all && a->uid != uid)
			continue;
		ret->clients += a->clients;
		ret->sessions += a->sessions;
		ret->sequences += a->sequences;
		ret->other_bytes += a->other_bytes + skv_pinned(c, a->uid);
		for (uint32_t memory = 0; memory < SKV_MEMORY_KINDS; memory++)
			ret->page_bytes[memory] += a->page_bytes[memory];
	}
	SKV_EACH(i, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, i);

		if (is_of(c, p->account, all, uid))
			ret->segment_bytes[p->device] += (p->segments + p->pending) * p->segment_bytes;
	}
}

/* ---- walks ------------------------------------------------------------------------------------ */

#define POOL_UNITS 5u /* cost of looking at a pool on behalf of another row, in units of work */
#define FSTAT_UNITS 60u

/* Moves the walk to the next live row of the table. False: there are no more rows, or *units are used up. */
static bool next_row(const struct skv_core *c, struct skv_core_walk *w, enum skv_table table, uint32_t *units)
{
	if (!skv_units_take(units, 5))
		return false;
	w->row = skv_state_next(&c->state, table, w->row);
	return w->row != SKV_NO_INDEX;
}

bool skv_core_accounts_some(const struct skv_core *c, struct skv_core_walk *w, uint32_t *units,
                            void (*cb)(void *, const struct skv_core_account_view *), void *data)
{
	for (; next_row(c, w, SKV_TABLE_ACCOUNTS, units); w->row++) {
		const struct skv_account_row *a = skv_account_row(&c->state, w->row);
		struct skv_core_account_view v = {
			.uid = a->uid,
			.clients = a->clients,
			.sessions = a->sessions,
			.sequences = a->sequences,
			.pools = a->pools,
			.other_bytes = a->other_bytes + skv_pinned(c, a->uid),
		};

		if (!w->all && a->uid != w->uid)
			continue;
		memcpy(v.page_bytes, a->page_bytes, sizeof(v.page_bytes));
		SKV_EACH(j, &c->state, SKV_TABLE_POOLS) {
			const struct skv_pool_row *p = skv_pool_row(&c->state, j);

			(void)skv_units_take(units, POOL_UNITS);
			if (p->account == w->row)
				v.segment_bytes[p->device] += (p->segments + p->pending) * p->segment_bytes;
		}
		cb(data, &v);
	}
	return w->row == SKV_NO_INDEX;
}

bool skv_core_clients_some(const struct skv_core *c, struct skv_core_walk *w, uint32_t *units,
                           void (*cb)(void *, const struct skv_core_client_view *), void *data)
{
	for (; next_row(c, w, SKV_TABLE_CLIENTS, units); w->row++) {
		const struct skv_client_row *row = skv_client_row(&c->state, w->row);
		struct skv_core_client_view v = {
			.client = skv_state_id(&c->state, SKV_TABLE_CLIENTS, w->row),
			.uid = skv_account_row(&c->state, row->account)->uid,
			.pid = row->pid,
			.program = row->program,
			.sessions = row->sessions,
			.fenced = row->fenced,
		};

		if (!w->all && v.uid != w->uid)
			continue;
		SKV_EACH(j, &c->state, SKV_TABLE_POOLS) {
			(void)skv_units_take(units, POOL_UNITS);
			if (skv_pool_row(&c->state, j)->account == row->account) /* others have no members of this user */
				v.lease_pages += skv_member_row(&c->state, j, w->row)->lease;
		}
		cb(data, &v);
	}
	return w->row == SKV_NO_INDEX;
}

static void view_session(const struct skv_core *c, uint32_t i, struct skv_core_session_view *ret)
{
	const struct skv_session_row *s = skv_session_row(&c->state, i);

	*ret = (struct skv_core_session_view){
		.session = skv_state_id(&c->state, SKV_TABLE_SESSIONS, i),
		.client = skv_state_id(&c->state, SKV_TABLE_CLIENTS, s->client),
		.pool = s->pool,
		.uid = skv_account_row(&c->state, skv_pool_row(&c->state, s->pool)->account)->uid,
		.model = &s->model,
		.spec = s->running.spec,
		.error = s->error,
		.generation = s->wanted.generation,
		.running_generation = s->running.generation,
		.plugin = s->wanted.plugin,
		.given_plugin = s->given.plugin,
		.running_plugin = s->running.plugin,
		.page = c->sessions[i].page,
		.sequences = s->sequences,
	};
}

bool skv_core_sessions_some(const struct skv_core *c, struct skv_core_walk *w, uint32_t *units,
                            void (*cb)(void *, const struct skv_core_session_view *), void *data)
{
	for (; next_row(c, w, SKV_TABLE_SESSIONS, units); w->row++) {
		struct skv_core_session_view v;

		view_session(c, w->row, &v);
		if (!w->all && v.uid != w->uid)
			continue;
		cb(data, &v);
	}
	return w->row == SKV_NO_INDEX;
}

void skv_core_sessions(const struct skv_core *c, void (*cb)(void *, const struct skv_core_session_view *), void *data)
{
	struct skv_core_walk w = {.all = true};
	uint32_t units = UINT32_MAX;

	while (!skv_core_sessions_some(c, &w, &units, cb, data))
		units = UINT32_MAX;
}

/* ---- sequences ------------------------------------------------------------------------------- */

#define WALK_ENTRIES ((uint64_t)1 << 23) /* number of table entries that one walk reads, at most */
#define WINDOW 1024u /* number of table entries that are read at a time */
#define WINDOW_UNITS 200u /* cost of reading a window, in units of work */

static void view_seq(const struct skv_core *c, uint32_t i, struct skv_core_seq_view *ret)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, i);

	*ret = (struct skv_core_seq_view){
		.seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, i),
		.uid = skv_account_row(&c->state, q->account)->uid,
		.name = q->name,
		.model = q->model.name,
		.tokens = skv_seqfile_len(&c->seqs[i]),
		.max_tokens = q->max_tokens,
		.page_bytes = skv_pool_row(&c->state, q->pool)->page_bytes,
	};
	ret->pages_total = (uint64_t)q->model.n_layers * skv_pages_of(ret->tokens);
	if (q->session != SKV_NO_INDEX) {
		ret->session = skv_state_id(&c->state, SKV_TABLE_SESSIONS, q->session);
		ret->client = skv_state_id(&c->state, SKV_TABLE_CLIENTS,
		                           skv_session_row(&c->state, q->session)->client);
	}
}

/* Begins to count the pages of the walk's sequence. Skips counting if its tables have more entries than are left. */
static void begin_count(const struct skv_core *c, struct skv_core_walk *w)
{
	const struct skv_seqmem_layout *l = &c->seqs[w->row].layout;
	uint64_t entries = 0;

	w->len = skv_seqfile_len(&c->seqs[w->row]);
	for (uint32_t t = 0; t < l->n_tables; t++)
		entries += skv_seqmem_entries(l, t, w->len);
	w->seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, w->row);
	w->counted = entries <= WALK_ENTRIES - w->read;
	w->read += w->counted ? entries : 0;
	w->table = w->counted ? 0 : l->n_tables;
	w->index = 0;
	memset(w->pages, 0, sizeof(w->pages));
	w->shared = 0;
}

/* Counts the sequence's pages as far as *units go. True: all tables are counted. */
static bool count_some(const struct skv_core *c, struct skv_core_walk *w, uint32_t *units)
{
	const struct skv_seq_local *l = &c->seqs[w->row];
	skv_pte window[WINDOW];

	for (; w->table < l->layout.n_tables; w->table++, w->index = 0) {
		const enum skv_page_kind kind = skv_table_page_kind(l->layout.n_layers, w->table);
		uint32_t end = skv_seqmem_entries(&l->layout, w->table, w->len), n;

		for (; w->index < end; w->index += n) {
			n = end - w->index < WINDOW ? end - w->index : WINDOW;
			if (!skv_units_take(units, WINDOW_UNITS))
				return false;
			if (skv_seqfile_read(l, w->table, w->index, n, window) < 0)
				break;
			for (uint32_t i = 0; i < n; i++) {
				w->pages[kind] += skv_pte_resident(window[i]);
				w->shared += skv_pte_kind(window[i]) == SKV_PTE_SHARED;
			}
		}
	}
	return true;
}

bool skv_core_seqs_some(const struct skv_core *c, struct skv_core_walk *w, uint32_t *units,
                        void (*cb)(void *, const struct skv_core_seq_view *), void *data)
{
	for (; next_row(c, w, SKV_TABLE_SEQUENCES, units); w->row++, w->seq = 0) {
		struct skv_core_seq_view v;

		view_seq(c, w->row, &v);
		if (!w->all && v.uid != w->uid)
			continue;
		if (w->seq != v.seq) /* a new row, or the sequence that was being counted is gone */
			begin_count(c, w);
		if (!count_some(c, w, units))
			return false;
		v.counted = w->counted;
		memcpy(v.pages, w->pages, sizeof(v.pages));
		v.pages_shared = w->shared;
		cb(data, &v);
	}
	return w->row == SKV_NO_INDEX;
}

bool skv_core_pools_some(const struct skv_core *c, struct skv_core_walk *w, uint32_t *units,
                         void (*cb)(void *, const struct skv_core_pool_view *), void *data)
{
	for (; next_row(c, w, SKV_TABLE_POOLS, units); w->row++) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, w->row);
		struct skv_core_pool_view v = {
			.pool = w->row,
			.uid = skv_account_row(&c->state, p->account)->uid,
			.device = p->device,
			.page_bytes = p->page_bytes,
			.segment_bytes = p->segment_bytes,
			.segments = p->segments,
			.pending = p->pending,
			.pages = (uint64_t)p->segments * p->pages_per_segment,
			.free = p->count[SKV_OWNER_FREE],
			.lease = p->count[SKV_OWNER_LEASE],
			.seq = p->count[SKV_OWNER_SEQ],
			.shared = p->count[SKV_OWNER_SHARED],
		};

		if (w->all || v.uid == w->uid)
			cb(data, &v);
	}
	return w->row == SKV_NO_INDEX;
}

/* ---- memory ----------------------------------------------------------------------------------- */

/* Adds the bytes of the file of the walk's row, if it is of the walk's user. Returns the units of work that it took. */
static uint32_t add_file(const struct skv_core *c, const struct skv_core_walk *w, enum skv_table table,
                         struct skv_core_held *sum)
{
	const uint32_t i = w->row;
	uint32_t account;

	if (table == SKV_TABLE_SEQUENCES)
		account = skv_seq_row(&c->state, i)->account;
	else
		account = skv_pool_row(&c->state, table == SKV_TABLE_POOLS ? i : skv_session_row(&c->state, i)->pool)->account;
	if (!is_of(c, account, w->all, w->uid))
		return 0;
	if (table == SKV_TABLE_SEQUENCES)
		sum->sequences += skv_file_bytes(c->seqs[i].fd);
	else if (table == SKV_TABLE_SESSIONS)
		sum->sessions += skv_file_bytes(c->sessions[i].fd);
	else if (skv_pool_is_whole(c, i))
		sum->pools += skv_file_bytes(c->pools[i].fd);
	return FSTAT_UNITS;
}

bool skv_core_held_some(const struct skv_core *c, struct skv_core_walk *w, uint32_t *units, struct skv_core_held *sum)
{
	static const enum skv_table tables[] = {SKV_TABLE_POOLS, SKV_TABLE_SEQUENCES, SKV_TABLE_SESSIONS};

	for (; w->table < sizeof(tables) / sizeof(tables[0]); w->table++, w->row = 0) {
		for (; next_row(c, w, tables[w->table], units); w->row++)
			(void)skv_units_take(units, add_file(c, w, tables[w->table], sum));
		if (w->row != SKV_NO_INDEX)
			return false;
	}
	sum->state = w->all ? skv_file_bytes(c->state.fd) + skv_file_bytes(c->control_fd) : 0;
	return true;
}
