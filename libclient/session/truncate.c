/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/session/truncate.c - truncates a sequence to its first tokens.
 *
 * Rows beyond the committed length do not count, so a truncation is little more than a commit of fewer tokens. Before
 * the commit, the library checks that the remaining tokens are as they were at that length: later steps must neither
 * have removed tokens that the next decode step attends to, nor have left anything behind. Data that follow from keys
 * and positions alone pass this check, page bounds and sketches included: each step makes anew those that it appends
 * to. Accumulated scores do not pass.
 */
#include "libclient/session/truncate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/compress/compressed-lengths.h"
#include "libclient/compress/schedule.h"
#include "libclient/conn/fence.h"
#include "libclient/error.h"
#include "libclient/pages/pages.h"
#include "libclient/ranks/joint.h"
#include "libclient/seq.h"
#include "libclient/session/adopt.h"
#include "libclient/step/transaction.h"

/* Is the page outside the layer's window in the step after n tokens, so that the layer does not attend to it? */
static bool outside(const struct skv_plan *plan, uint32_t page, uint32_t n)
{
	return plan->attend == SKV_ATTEND_WINDOW && page >= skv_pages_of(plan->window.sinks) &&
	       (page + 1) * SKV_PAGE_TOKENS <= skv_window_start(&plan->window, n + 1);
}

/* Does the layer have codes or references for which a sequence of n tokens would have no table entries? */
static bool records_beyond(const struct skv_seq *q, uint32_t layer, uint32_t n)
{
	static const enum skv_page_kind kinds[] = {SKV_PAGES_CODES, SKV_PAGES_REFS};

	for (int i = 0; i < 2; i++) {
		const skv_pte *table = seq_table(q, skv_table(q->layout.n_layers, kinds[i], layer));

		for (uint32_t page = skv_pages_of(n); page < skv_pages_of(q->len); page++)
			if (skv_pte_resident(table[page]))
				return true;
	}
	return false;
}

/* Why the layer cannot continue from the first n tokens; NULL: it can. */
static const char *stale(const struct skv_seq *q, uint32_t layer, uint32_t n)
{
	const struct skv_plan *plan = &seq_policy(q)->plan[layer];
	const struct skv_layer_slots *x = &q->slots[layer];
	/* number of tokens that were compressed at a length of n, because they were sealed */
	const uint32_t sealed = q->mem->sealed <= n ? q->mem->sealed : 0;

	if (q->about & SKV_ABOUT_SLOTS) {
		if (x->granularity)
			return "its slots have scores, to which later tokens added";
		if (x->live != q->len || x->slot_end != q->len)
			return "it has evicted tokens";
		if ((x->n_compressed > compress_end(&plan->compress, n) && x->n_compressed > sealed) || records_beyond(q, layer, n))
			return "it has compressed tokens that would be rows";
	}
	for (uint32_t page = 0; page < skv_pages_of(n); page++)
		if (!skv_pte_resident(seq_table(q, layer)[page]) && !compress_has_page(q, layer, page) && !outside(plan, page, n))
			return "it has evicted pages that would be attended to";
	return NULL;
}

int truncate_check(struct skv_seq *q, uint32_t n)
{
	if (n > q->len)
		return error_set(-EINVAL, "the first %u tokens of a sequence that has %u", n, q->len);
	if (n == 0 || n == q->len)
		return 0;
	if (!compress_as_planned(q))
		return error_set(-ESTALE, "tokens are compressed in another way than policy %s compresses: step first",
		                 seq_policy(q)->block->name);
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		const char *why = stale(q, layer, n);

		if (why)
			return error_set(-ESTALE, "layer %u is not what it was at %u tokens of %u: %s", layer, n, q->len, why);
	}
	return 0;
}

/*
 * Evict state that the shorter commit would still count: bounds of pages that no longer exist, and saved state of a
 * prompt. False: the journal is full.
 */
static bool evict_state(struct skv_seq *q, uint32_t n)
{
	bool room = true;

	q->n_evict = 0;
	for (uint32_t table = 0; table < q->layout.n_tables && room; table++) {
		enum skv_page_kind kind = skv_table_page_kind(q->layout.n_layers, table);
		bool saved = kind == SKV_PAGES_SAVED;
		uint32_t page = saved ? 0 : pages_of_state(q, skv_table_layer(q->layout.n_layers, table), n), end = saved ? q->layout.kept : skv_pages_of(n);

		for (; (saved || kind == SKV_PAGES_STATE) && page < end && room; page++)
			room = pages_evict(q, table, page);
	}
	return room;
}

/* Empty the table entries beyond the sequence's present length; its length was `was`. */
static void drop_beyond(struct skv_seq *q, uint32_t was)
{
	const uint32_t from = skv_pages_of(q->len), end = skv_pages_of(was);

	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		enum skv_page_kind kind = skv_table_page_kind(q->layout.n_layers, table);
		skv_pte *entry = seq_table(q, table);

		for (uint32_t page = from; page < end && kind != SKV_PAGES_SAVED; page++) {
			pages_drop(q, table, page);
			entry[page] = skv_pte_make(SKV_PTE_NONE, 0);
		}
		/* the table of slot metadata has this page, too: see parked() in pages.c */
		if (kind == SKV_PAGES_KV && end < q->layout.max_pages)
			entry[end] = skv_pte_make(SKV_PTE_NONE, 0);
	}
}

/* Truncate a sequence that passed truncate_check(), and of which nothing is queued. */
static int cut(struct skv_seq *q, uint32_t n, int32_t next)
{
	const uint32_t was = q->len;
	int e = evict_state(q, n) ? transaction_truncate(q, n, next)
	                          : error_set(-EBADMSG, "damaged sequence memory: more pages of state than a sequence can have");

	if (e < 0) {
		q->n_evict = 0;
		return e;
	}
	e = joint_state(q->session);
	if (e < 0)
		return e; /* the daemon may take the commit back, so nothing is freed */
	drop_beyond(q, was);
	q->on_device.old = q->session->device;
	q->gaps = false;
	if (n == 0)
		q->compress.on = q->compress.known = false; /* evicted tokens no longer prevent compression */
	memset(q->evicted, 0, q->layout.n_layers * sizeof(*q->evicted));
	q->state_torn |= seq_policy(q)->block->seq_state_bytes > 0; /* the state belongs to an earlier commit */
	return 0;
}

/* Check that the policy can make its state of the sequence anew. The state itself is made by the next step. */
static int check_state(struct skv_seq *q)
{
	void *state;
	int e;

	if (seq_policy(q)->block->seq_state_bytes == 0)
		return 0;
	if (q->session->step.open)
		return error_set(-EBUSY, "a step is open, and policy %s has state of its own to make anew",
		                 seq_policy(q)->block->name);
	e = policy_adopt(q->session, seq_policy(q), q, &state);
	if (e == 0)
		free(state);
	return e;
}

/* Commit another next token id for the same tokens: a single word, which recovery reads. */
static int say_next(struct skv_seq *q, int32_t next)
{
	int e = fence_check_held(q->session->client, &q, 1);

	if (e < 0)
		return e;
	__atomic_store_n(&q->mem->next[q->epoch & 1], next, __ATOMIC_RELEASE);
	skv_seqmem_tokens(q->mem, &q->layout)[q->len] = next;
	return 0;
}

int truncate_run(struct skv_seq *q, uint32_t n, int32_t next)
{
	int e = joint_begin(q->session);

	if (e == 0)
		e = truncate_check(q, n);
	if (e == 0 && n == q->len)
		return say_next(q, next);
	if (e == 0)
		e = check_state(q);
	return e < 0 ? e : cut(q, n, next);
}
