/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/core-actor.h"

#include "daemon/core/memory/charge.h"
#include "daemon/core/state/core-priv.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct actor actors[M_CLIENTS];
struct grip grips[M_SEQS];
uint32_t client_ids[M_CLIENTS], seq_ids[M_SEQS];
struct skv_core_config actor_config;

void actor_unmap(struct actor *a, uint32_t segment)
{
	if (a->maps[segment])
		munmap(a->maps[segment], a->peer.session.segment_bytes);
	a->maps[segment] = NULL;
	a->gone[segment] = false;
}

void actor_unmap_all(struct actor *a)
{
	if (a->whole)
		munmap(a->maps[0], a->peer.session.max_segments * a->peer.session.segment_bytes);
	for (uint32_t s = 0; s < M_SEGMENTS && !a->whole; s++)
		actor_unmap(a, s);
}

void actor_hear(uint32_t i)
{
	struct actor *a = &actors[i];
	struct skv_core_segment s;

	while (skv_core_next_segment(core, a->peer.client, &s)) {
		ck_assert_uint_lt(s.segment, M_SEGMENTS);
		if (s.fd < 0) {
			ck_assert_ptr_nonnull(a->maps[s.segment]);
			a->gone[s.segment] = true;
			continue;
		}
		ck_assert_msg(!a->maps[s.segment],
		              "segment %u was announced where another one is not acknowledged", s.segment);
		a->maps[s.segment] = mmap(NULL, s.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
		ck_assert_ptr_ne(a->maps[s.segment], MAP_FAILED);
		a->whole = s.bytes > a->peer.session.segment_bytes;
		for (uint32_t k = 1; a->whole && k < a->peer.session.max_segments; k++)
			a->maps[k] = a->maps[0] + k * a->peer.session.segment_bytes;
	}
}

void actor_sign(uint32_t i, uint32_t page)
{
	struct actor *a = &actors[i];
	uint32_t per = a->peer.session.pages_per_segment;
	uint8_t *at = a->maps[page / per], uid = (uint8_t)M_UID(m_clients[i].uid);

	ck_assert_msg(at && !a->gone[page / per], "page %u was leased, and its segment was not announced",
	              page);
	at += page % per * a->peer.session.page_bytes;
	for (uint32_t j = 0; j < a->peer.session.page_bytes; j += 512) {
		ck_assert_msg(at[j] == 0 || at[j] == uid, "UID %u finds %#x in page %u", uid, at[j], page);
		at[j] = uid;
	}
}

/* Drops from the model the sequences that the core removed to make room for another user. */
static void displaced(uint32_t by)
{
	for (uint32_t i = 0; i < M_SEQS; i++) {
		struct m_seq *q = &m_seqs[i];

		if (!q->used || skv_state_find(&core->state, SKV_TABLE_SEQUENCES, seq_ids[i]) != SKV_NO_INDEX)
			continue;
		ck_assert(q->name[0] && q->holder < 0 && q->uid != by);
		ck_assert_uint_gt(m_charged(q->uid), actor_config.pool_bytes / M_UIDS);
		m_drop(q);
	}
}

void actor_measure(uint32_t i)
{
	skv_charge_newest(core, skv_state_find(&core->state, SKV_TABLE_SESSIONS, actors[i].peer.session.session));
}

/* Pages for which the quota of the actor's user has room. */
static uint64_t room_of(uint32_t i)
{
	const uint32_t uid = m_clients[i].uid;
	const uint64_t quota = actor_config.account_bytes;
	uint64_t has = m_charged(uid);

	actor_measure(i);
	if (m_device == SKV_DEVICE_HOST)
		has += books_account(M_UID(uid)).other_bytes;
	return has < quota ? (quota - has) / m_page_bytes(m_clients[i].kind) : 0;
}

bool actor_lease(uint32_t i, uint32_t least, uint32_t most)
{
	static struct skv_wire_run runs[M_PAGES];
	struct actor *a = &actors[i];
	uint32_t n, got = 0, uid = m_clients[i].uid;
	const uint64_t room = room_of(i);
	int r;

	while ((r = skv_core_lease_get(core, a->peer.client, a->peer.session.session, least, most, runs, M_PAGES, &n)) ==
	       SKV_CORE_E_WAIT) {
		devices_make();
		skv_core_work_all(core);
		displaced(uid);
	}
	if (r) {
		ck_assert_int_eq(r == SKV_CORE_E_QUOTA, room < least);
		ck_assert(r == SKV_CORE_E_QUOTA || r == SKV_CORE_E_NOSPC || r == SKV_CORE_E_BACKLOG);
		ck_assert(r == SKV_CORE_E_QUOTA || books_pool(a->peer.session.pool).free < least);
		return false;
	}
	actor_hear(i);
	for (uint32_t k = 0; k < n; k++)
		for (uint32_t j = 0; j < runs[k].count; j++, got++) {
			m_lease(i, runs[k].first + j);
			peer_stock(&a->peer, runs[k].first + j);
			actor_sign(i, runs[k].first + j);
		}
	ck_assert_uint_ge(got, least);
	ck_assert_uint_le(got, most < room ? most : room);
	return true;
}

struct grip *grip_of(const struct m_seq *q)
{
	return &grips[q - m_seqs];
}

void actor_made(struct m_seq *q, uint32_t i, const char *name, const struct skv_core_seq_info *info)
{
	*q = (struct m_seq){
		.used = true, .uid = m_clients[i].uid, .kind = m_clients[i].kind, .holder = (int)i};
	snprintf(q->name, sizeof(q->name), "%s", name);
	seq_ids[q - m_seqs] = info->seq;
	grip_of(q)->n_pending = 0;
	held_open(&grip_of(q)->held, &actors[i].peer, info);
}

void actor_release(struct m_seq *q, struct grip *g)
{
	const struct peer *p = &actors[q->holder].peer;
	struct skv_wire_run runs[M_TABLE * M_TABLES];

	for (uint32_t k = 0; k < g->n_pending; k++) {
		runs[k] = (struct skv_wire_run){g->pending[k], 1};
		m_release(q, g->pending[k]);
	}
	ck_assert_int_eq(
		skv_core_seq_release(core, p->client, p->session.session, g->held.seq, runs, g->n_pending),
		0);
	g->n_pending = 0;
}

void actor_take_back(struct m_seq *q, struct peer *p)
{
	for (uint32_t t = 0; t < m_tables(q->kind); t++)
		for (uint32_t k = 0; k < m_entries(q, t); k++)
			if (skv_pte_kind(q->table[t][k]) == SKV_PTE_PRIVATE)
				peer_stock(p, skv_pte_id(q->table[t][k]));
}
