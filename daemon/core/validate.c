/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/validate.c - a sequence's page tables, checked against the owner words.
 *
 * A client wrote this memory and may still write it while it is read here. So each word is read once, checked,
 * and the checked copy is used: nothing is trusted because an earlier read of it was valid. Marks reveal a page
 * that is named twice, in one table or two; the owner word a page of another sequence or client.
 */
#include "daemon/core/pages.h"
#include "daemon/core/refs.h"
#include "daemon/core/refuse.h"
#include "daemon/core/validate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct walk {
	struct skv_core *core;
	uint32_t pool;
	skv_owner lease;
	uint8_t *marks;
	uint64_t most; /* pages on lease: own[] holds that many */
	struct skv_validated *out;
	const char *problem;
	uint32_t table, index;
	enum skv_page_kind group; /* of the table */
	skv_pte entry;
};

/* What is wrong with the entry, NULL when it is a hole or a page that the sequence may name. */
static const char *take_entry(struct walk *w, skv_pte e)
{
	uint32_t page = skv_pte_id(e);
	bool kv = w->group == SKV_PAGES_KV;

	switch ((uint32_t)skv_pte_kind(e)) {
	case SKV_PTE_HOLE: return kv ? NULL : "is a hole in a table that has none";
	case SKV_PTE_PRIVATE:
		if (!skv_page_exists(w->core, w->pool, page))
			return "names a page that does not exist";
		if (*skv_owner_word(&w->core->state, w->pool, page) != w->lease)
			return "names a page that is not on lease to its holder";
		if (w->marks[page] != SKV_MARK_NONE || w->out->n_own == w->most)
			return "names a page for the second time";
		w->marks[page] = SKV_MARK_OWN;
		w->out->own[w->out->n_own++] = page;
		return NULL;
	case SKV_PTE_SHARED:
		if (!skv_page_exists(w->core, w->pool, page))
			return "names a page that does not exist";
		if (w->marks[page] == SKV_MARK_NAMED)
			return "names a shared page for the second time";
		if (w->marks[page] != SKV_MARK_REF)
			return "names a shared page that the sequence has no reference to";
		w->marks[page] = SKV_MARK_NAMED;
		w->out->n_named++;
		return NULL;
	case SKV_PTE_NONE: return kv ? "is missing below the committed length" : NULL;
	default: return "is of an unknown kind";
	}
}

static void walk_tables(struct walk *w, const struct skv_seq_local *l)
{
	uint64_t commit = atomic_load_explicit(&l->mem->commit, memory_order_acquire);
	uint32_t len = skv_commit_len(commit);

	/* skv_seqmem_check() has read another length: it is being written */
	if (len > l->layout.max_tokens)
		len = l->layout.max_tokens;
	for (w->table = 0; w->table < l->layout.n_tables; w->table++) {
		const skv_pte *table = skv_seqmem_table(l->mem, &l->layout, w->table);
		uint32_t n_pages = skv_seqmem_entries(&l->layout, w->table, len);

		w->group = skv_table_page_kind(l->layout.n_layers, w->table);
		for (w->index = 0; w->index < n_pages; w->index++) {
			w->entry = __atomic_load_n(&table[w->index], __ATOMIC_RELAXED);
			w->problem = take_entry(w, w->entry);
			if (w->problem)
				return;
		}
	}
}

static int corrupt(struct skv_core *c, uint32_t seq, const char *why)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	if (c->corrupt_cb)
		c->corrupt_cb(c->corrupt_data, skv_account_row(&c->state, q->account)->uid, q->model.name,
		              q->name, why);
	return skv_core_refuse(c, SKV_CORE_E_CORRUPT, "sequence '%s' is corrupt and was dropped: %s", q->name,
	                  why);
}

static int corrupt_entry(struct skv_core *c, uint32_t seq, const struct walk *w)
{
	static const char *const of[SKV_PAGE_KINDS] = {"", "the state of ", "the slot metadata of ", "the codes of ",
	                                           "the references of ", "the saved prefill state of "};
	char why[sizeof(c->why)];

	snprintf(why, sizeof(why), "entry %u of %slayer %u (%#x) %s", w->index,
	         of[w->group], skv_table_layer(c->seqs[seq].layout.n_layers, w->table), w->entry, w->problem);
	return corrupt(c, seq, why);
}

int skv_validate_begin(struct skv_core *c, uint32_t seq, uint32_t client, struct skv_validated *ret)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	const struct skv_seq_local *l = &c->seqs[seq];
	const char *problem = skv_seqmem_check(l->mem, &l->layout);
	struct skv_validated out = {0};
	struct walk w = {
		.core = c,
		.pool = q->pool,
		.lease = skv_owner_make(SKV_OWNER_LEASE, client),
		.marks = c->pools[q->pool].marks,
		.most = skv_member_row(&c->state, q->pool, client)->lease,
		.out = &out,
	};
	uint64_t entries = (uint64_t)l->layout.n_tables * l->layout.max_pages;

	if (problem)
		return corrupt(c, seq, problem);
	skv_seqmem_replay(l->mem, &l->layout); /* the rest of recovery takes longer and is done at attach */
	if (w.most > entries)
		w.most = entries;
	out.own = malloc(sizeof(*out.own) * (w.most + 1));
	if (!out.own)
		return -ENOMEM;
	skv_refs_mark(c, seq, SKV_MARK_REF);
	walk_tables(&w, l);
	if (w.problem) {
		skv_validate_end(c, seq, &out);
		return corrupt_entry(c, seq, &w);
	}
	*ret = out;
	return 0;
}

void skv_validate_end(struct skv_core *c, uint32_t seq, struct skv_validated *s)
{
	uint8_t *marks = c->pools[skv_seq_row(&c->state, seq)->pool].marks;

	skv_refs_mark(c, seq, SKV_MARK_NONE);
	for (uint64_t i = 0; i < s->n_own; i++)
		marks[s->own[i]] = SKV_MARK_NONE;
	free(s->own);
	*s = (struct skv_validated){0};
}

void skv_validate_rewrite_shared(struct skv_core *c, uint32_t seq)
{
	uint32_t pool = skv_seq_row(&c->state, seq)->pool;
	const struct skv_seq_local *l = &c->seqs[seq];
	const uint8_t *marks = c->pools[pool].marks;
	uint32_t len = skv_commit_len(atomic_load(&l->mem->commit));

	if (len > l->layout.max_tokens)
		len = l->layout.max_tokens;
	for (uint32_t t = 0; t < l->layout.n_tables; t++) {
		skv_pte *table = skv_seqmem_table(l->mem, &l->layout, t);
		uint32_t n_pages = skv_seqmem_entries(&l->layout, t, len);

		for (uint32_t i = 0; i < n_pages; i++) {
			skv_pte e = __atomic_load_n(&table[i], __ATOMIC_RELAXED);
			uint32_t page = skv_pte_id(e);

			if (skv_pte_kind(e) == SKV_PTE_PRIVATE && skv_page_exists(c, pool, page) &&
			    marks[page] == SKV_MARK_OWN)
				__atomic_store_n(&table[i], skv_pte_make(SKV_PTE_SHARED, page),
				                 __ATOMIC_RELAXED);
		}
	}
}

int skv_validate_reopen(struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_local *l = &c->seqs[seq];
	const char *problem = skv_seqmem_check(l->mem, &l->layout);

	if (problem)
		return corrupt(c, seq, problem);
	skv_seqmem_recover(l->mem, &l->layout);
	return 0;
}
