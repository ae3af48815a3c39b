/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/views.c - the state as status, lists and metrics show it. Read-only. */
#include "daemon/core/core-priv.h"
#include "daemon/core/seqfile.h"

#include <string.h>

void skv_core_accounts(const struct skv_core *c, void (*cb)(void *, const struct skv_core_account_view *),
                       void *data)
{
	SKV_EACH(i, &c->state, SKV_TABLE_ACCOUNTS) {
		const struct skv_account_row *a = skv_account_row(&c->state, i);
		struct skv_core_account_view v = {
			.uid = a->uid,
			.clients = a->clients,
			.sessions = a->sessions,
			.sequences = a->sequences,
		};

		memcpy(v.page_bytes, a->page_bytes, sizeof(v.page_bytes));
		SKV_EACH(j, &c->state, SKV_TABLE_POOLS) {
			const struct skv_pool_row *p = skv_pool_row(&c->state, j);

			if (p->account == i)
				v.segment_bytes[p->device] += (p->segments + p->pending) * p->segment_bytes;
		}
		cb(data, &v);
	}
}

void skv_core_clients(const struct skv_core *c, void (*cb)(void *, const struct skv_core_client_view *),
                      void *data)
{
	SKV_EACH(i, &c->state, SKV_TABLE_CLIENTS) {
		const struct skv_client_row *row = skv_client_row(&c->state, i);
		struct skv_core_client_view v = {
			.client = skv_state_id(&c->state, SKV_TABLE_CLIENTS, i),
			.uid = skv_account_row(&c->state, row->account)->uid,
			.pid = row->pid,
			.program = row->program,
			.sessions = row->sessions,
			.fenced = row->fenced,
		};

		SKV_EACH(j, &c->state, SKV_TABLE_POOLS)
			v.lease_pages += skv_member_row(&c->state, j, i)->lease;
		cb(data, &v);
	}
}

void skv_core_sessions(const struct skv_core *c, void (*cb)(void *, const struct skv_core_session_view *),
                       void *data)
{
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS) {
		const struct skv_session_row *s = skv_session_row(&c->state, i);
		struct skv_core_session_view v = {
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

		cb(data, &v);
	}
}

#define WALK_ENTRIES ((uint64_t)1 << 23) /* about 10 milliseconds */

/* *left: entries that this walk may still read. */
static void count_entries(const struct skv_seq_local *l, uint32_t len, struct skv_core_seq_view *v,
                          uint64_t *left)
{
	uint64_t entries = 0;

	v->pages_total = (uint64_t)l->layout.n_layers * skv_pages_of(len);
	for (uint32_t t = 0; t < l->layout.n_tables; t++)
		entries += skv_seqmem_entries(&l->layout, t, len);
	if (entries > *left)
		return;
	*left -= entries;
	v->counted = true;
	for (uint32_t t = 0; t < l->layout.n_tables; t++) {
		uint32_t n_pages = skv_seqmem_entries(&l->layout, t, len);

		for (uint32_t at = 0, n; at < n_pages; at += n) {
			skv_pte window[1024];

			n = n_pages - at < 1024 ? n_pages - at : 1024;
			if (skv_seqfile_read(l, t, at, n, window) < 0)
				break;
			for (uint32_t i = 0; i < n; i++) {
				v->pages[skv_table_page_kind(l->layout.n_layers, t)] += skv_pte_resident(window[i]);
				v->pages_shared += skv_pte_kind(window[i]) == SKV_PTE_SHARED;
			}
		}
	}
}

void skv_core_seqs(const struct skv_core *c, void (*cb)(void *, const struct skv_core_seq_view *), void *data)
{
	uint64_t left = WALK_ENTRIES;

	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
		const struct skv_seq_row *q = skv_seq_row(&c->state, i);
		const struct skv_seq_local *l = &c->seqs[i];
		uint32_t len = skv_commit_len(atomic_load(&l->mem->commit));
		struct skv_core_seq_view v = {
			.seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, i),
			.uid = skv_account_row(&c->state, q->account)->uid,
			.name = q->name,
			.model = q->model.name,
			.tokens = len < q->max_tokens ? len : q->max_tokens,
			.max_tokens = q->max_tokens,
			.page_bytes = skv_pool_row(&c->state, q->pool)->page_bytes,
		};

		if (q->session != SKV_NO_INDEX) {
			v.session = skv_state_id(&c->state, SKV_TABLE_SESSIONS, q->session);
			v.client = skv_state_id(&c->state, SKV_TABLE_CLIENTS,
			                        skv_session_row(&c->state, q->session)->client);
		}
		count_entries(l, v.tokens, &v, &left);
		cb(data, &v);
	}
}

void skv_core_pools(const struct skv_core *c, void (*cb)(void *, const struct skv_core_pool_view *),
                    void *data)
{
	SKV_EACH(i, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, i);
		struct skv_core_pool_view v = {
			.pool = i,
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

		cb(data, &v);
	}
}
