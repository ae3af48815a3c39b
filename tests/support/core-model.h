/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/core-model.h - the expected state of the core, computed in the simplest way.
 *
 * There are no owner words, chains or counters: each page says which client or sequence has it, each sequence has a
 * byte per page that it refers to, and every figure is counted when it is asked for.
 */
#ifndef SKV_TESTS_CORE_MODEL_H
#define SKV_TESTS_CORE_MODEL_H

#include "tests/support/core-peer.h"

extern uint32_t m_device; /* device of all pages, as in skv_model */

#define M_UIDS 3
#define M_UID(u) (1000 + (u))
#define M_KINDS 2 /* kinds of models, so pools per UID */
#define M_CLIENTS 6
#define M_SEQS 12
#define M_SEGMENTS 96
#define M_PAGES 6144
#define M_LAYERS 3
#define M_TABLES (SKV_PAGE_KINDS * M_LAYERS)
#define M_TABLE 24 /* entries of a page table */
#define M_KEPT 10  /* entries of a table of saved prefill queries: two sets of 65 rows of q in fp32 */

enum m_has { M_FREE, M_LEASE, M_OWN, M_SHARED };

struct m_pool {
	uint8_t has[M_PAGES];
	uint8_t who[M_PAGES]; /* M_LEASE: client; M_OWN: sequence */
};
struct m_client {
	bool used;
	uint32_t uid, kind;
};
struct m_seq {
	bool used;
	uint32_t uid, kind;
	int holder; /* client, or -1 */
	uint32_t len;
	char name[8]; /* "" = anonymous */
	skv_pte table[M_TABLES][M_TABLE]; /* entries in use */
	uint8_t refers[M_PAGES];
};
extern struct m_pool m_pools[M_UIDS][M_KINDS];
extern struct m_client m_clients[M_CLIENTS];
extern struct m_seq m_seqs[M_SEQS];

uint32_t m_layers(uint32_t kind);
uint32_t m_tables(uint32_t kind);
uint32_t m_entries(const struct m_seq *q, uint32_t table); /* entries of a table that are in use */
struct skv_model m_model(uint32_t kind);

void m_lease(uint32_t client, uint32_t page); /* must be free */
void m_unlease(uint32_t client, uint32_t page);
void m_release(struct m_seq *, uint32_t page);
/* Removes the sequence and its references. Pages leased to the holder stay leased. */
void m_drop(struct m_seq *);
/* The holder detaches or is gone: an anonymous sequence is dropped; a named one owns its committed pages. */
void m_let_go(struct m_seq *);
void m_attach(struct m_seq *, uint32_t client);
/* The parent's committed pages become shared by both. `child` is an empty row that is already in use. */
void m_fork(struct m_seq *parent, struct m_seq *child);
/* The client's session ends: its sequences are released, its leases freed. */
void m_leave(uint32_t client);

struct m_seq *m_find(uint32_t uid, uint32_t kind, const char *name);
uint32_t m_count(uint32_t uid, uint32_t kind, enum m_has);
uint64_t m_page_bytes(uint32_t kind);
uint64_t m_charged(uint32_t uid);
uint32_t m_n_seqs(uint32_t uid); /* UINT32_MAX: of all users */
uint32_t m_n_clients(uint32_t uid);
bool m_pool_used(uint32_t uid, uint32_t kind);

/* Fails the test if the core's views differ from the model. client_ids, seq_ids: ids that the core gave them. */
void m_compare(const uint32_t client_ids[M_CLIENTS], const uint32_t seq_ids[M_SEQS], uint64_t pool_bytes);

#endif
