/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/transaction.c - begin, commit and abort of a step, and the host's own state that a commit changes.
 *
 *   - All that can fail for lack of pages or memory happens in transaction_begin(), before anything is changed.
 *     Afterwards a step writes only beyond the committed lengths, except for copy-on-write of a shared last page, which
 *     leaves the same contents.
 *   - A commit makes no allocation and no system call. The order of its stores is the contract of common/seqmem.h:
 *     token ids, next id and journal, then the commit word, then the holes.
 *   - A truncation is a commit of fewer tokens. The table entries beyond the new length do not belong to it, and are
 *     dropped after it. If the engine dies before that, the next holder treats these entries like those of a step that
 *     did not commit.
 *   - Pages that a commit evicts are reused only by later steps; with several ranks, only once all have committed.
 *   - On a device the step's last kernel makes the same stores (device/steps.c).
 */
#include "libclient/step/transaction.h"

#include <errno.h>
#include <string.h>

#include "libclient/conn/fence.h"
#include "libclient/conn/pool.h"
#include "libclient/device/device.h"
#include "libclient/device/steps.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/pages/pages.h"
#include "libclient/pages/stock.h"
#include "libclient/ranks/exchange.h"
#include "libclient/ranks/joint.h"
#include "libclient/seq.h"
#include "libclient/step/layout.h"
#include "libclient/step/stats.h"

/* ---- begin, abort ---------------------------------------------------------------------------- */

/* Write the step's token ids, except the first, beyond the committed length of the sequence. Cannot fail. */
static void stage_tokens(struct skv_seq *q, const int32_t *tokens)
{
	int32_t *ids = skv_seqmem_tokens(q->mem, &q->layout) + q->len;

	/*
	 * the first id is stored at the commit: until then its entry shows the next id that the last commit published
	 */
	q->has_first = tokens != NULL;
	q->first = tokens ? tokens[0] : -1;
	for (uint32_t i = 1; i < q->n_new; i++)
		ids[i] = tokens ? tokens[i] : -1;
	if (!q->evicting)
		q->n_evict = 0;
}

int transaction_tokens(struct skv_session *s, uint32_t item, const int32_t *tokens)
{
	struct skv_seq *q = item < s->step.n ? s->step.items[item].seq : NULL;

	if (!s->step.open)
		return error_set(-EINVAL, "no step is open");
	if (!q)
		return error_set(-EINVAL, "the open step has %u items, and no item %u", s->step.n, item);
	if (q->n_new > 1)
		memcpy(skv_seqmem_tokens(q->mem, &q->layout) + q->len + 1, tokens + 1, (q->n_new - 1) * sizeof(*tokens));
	return 0;
}

static int admit(struct skv_session *s, const struct skv_step_item *items, uint32_t n)
{
	struct pages p = {0};
	int e = layout_step(s, items, n, &p);
	uint32_t need = (uint32_t)p.need;
	/* pages set aside for other prompts are not available */
	uint64_t all = p.need + (e == 0 && p.set_aside > 0 ? stock_set_aside(s) : 0);

	if (e == 0 && all + p.holes > SKV_PTE_ID_MASK)
		e = error_set(-ENOSPC, "the step needs %llu pages, and what is still to come of its prompts %llu: more than a pool can "
		         "have", (unsigned long long)p.need, (unsigned long long)p.set_aside);
	if (e == 0)
		e = features_prepare(s);
	if (e == 0)
		e = pages_prepare(s, p.need);
	if (e == 0 && s->stock.n < all)
		e = device_settle_evictions(s); /* pages that steps on the device evicted return to the stock */
	if (e == 0)
		e = stock_reserve(s, (uint32_t)all);
	/* the pool's address is known only now: with handles of the older kind, the first segment decides it */
	s->shape.pool = s->pool->base;
	if (e == 0 && s->device)
		e = device_prepare(s, need + (uint32_t)p.holes);
	if (e == 0 && p.copies > 0)
		e = pages_unshare(s);
	return e;
}

void transaction_abort(struct skv_session *s)
{
	pages_undo(s);
	s->step.steady.follows = false;
	for (uint32_t i = 0; i < s->step.n; i++) {
		struct skv_seq *q = s->step.seqs[i];

		q->steady = false;
		for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
			q->evicted[layer] = (struct span){0}; /* the step's evictions are not committed */
		if (!q->evicting)
			q->n_evict = 0;
		q->in_step = false;
	}
}

/* Put pages into the tables of all sequences of the step, or in a steady step only of the sequences that are due. */
static void supply(struct skv_session *s, uint32_t n)
{
	struct step *st = &s->step;

	for (uint32_t i = 0; i < n && !st->steady.on; i++)
		pages_supply(s, st->seqs[i]);
	for (uint32_t i = 0; i < st->steady.n_due && st->steady.on; i++)
		pages_supply(s, st->seqs[st->index[st->steady.due[i]]]);
}

int transaction_begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n)
{
	struct step *st = &s->step;
	int e = admit(s, items, n);

	if (e < 0) {
		st->steady.follows = false;
		for (uint32_t i = 0; i < n; i++)
			items[i].seq->in_step = false;
		return e;
	}
	supply(s, n);
	for (uint32_t i = 0; i < n; i++)
		stage_tokens(st->seqs[i], items[st->item[i]].tokens);
	e = s->device ? device_stage(s) : 0;
	if (e < 0)
		transaction_abort(s);
	return e;
}

/* ---- commit ---------------------------------------------------------------------------------- */

/*
 * Carry out the journal of a commit: the evicted entries become holes, and later steps can use their pages. `stale`:
 * the device's copy of the tables does not show these holes yet.
 */
static void carry_out(struct skv_seq *q, bool stale)
{
	const struct skv_eviction *journal = skv_seqmem_journal(q->mem, &q->layout);
	struct skv_session *s = q->session;

	for (uint32_t i = 0; i < q->n_evict; i++) {
		struct skv_eviction j = journal[i];

		if (j.table >= q->layout.n_tables || j.page >= q->layout.max_pages)
			continue; /* the journal is in shared memory, so it is not trusted */
		if (!skv_pte_resident(seq_table(q, j.table)[j.page]))
			continue;
		pages_drop(q, j.table, j.page);
		if (stale)
			device_stale(q, j.table, j.page);
		s->stats.evicted_pages += skv_table_page_kind(q->layout.n_layers, j.table) == SKV_PAGES_KV;
	}
	atomic_store_explicit(&q->mem->journal_n, 0, memory_order_release);
	q->n_evict = 0;
}

/* Update the library's own state of the sequence after its commit. */
static void committed(struct skv_seq *q)
{
	struct skv_layer_slots *was = q->slots;

	if (q->next_about & SKV_ABOUT_SLOTS) {
		q->slots = q->next_slots;
		q->next_slots = was;
	}
	q->about = q->next_about;
	if (q->about & SKV_ABOUT_PREFILL)
		q->prompt.now = q->prompt.next;
	stock_put_aside(q, q->next_set_aside);
	q->len += q->n_new;
	q->epoch++;
	q->in_step = false;
	q->has_state |= !q->maintenance || q->maintenance == MAINTENANCE_BUILD_STATE;
}

/* Make the stores of a sequence's commit in its shared memory. */
static void store_commit(struct skv_seq *q, int32_t next)
{
	struct skv_seqmem *m = q->mem;
	uint32_t epoch = q->epoch + 1, len = q->len + q->n_new;
	int32_t *ids = skv_seqmem_tokens(m, &q->layout);

	m->next[epoch & 1] = next;
	m->about[epoch & 1] = q->next_about;
	m->len[epoch & 1] = len;
	if (q->next_about & SKV_ABOUT_PREFILL)
		m->lay[epoch & 1].prompt = q->prompt.next;
	if (q->next_about & SKV_ABOUT_SLOTS)
		memcpy(m->lay[epoch & 1].slots, q->next_slots, q->layout.n_layers * sizeof(*q->next_slots));
	if (q->has_first)
		ids[q->len] = q->first; /* from here on recovery reads the last commit's next id from m->next */
	if (q->n_evict > 0)
		atomic_store_explicit(&m->journal_n, q->n_evict, memory_order_release);
	atomic_store_explicit(&m->commit, (uint64_t)epoch << 32 | len, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst); /* no store below may be visible before the commit word */
	ids[len] = next; /* overwrites a token's id if the commit truncates; recovery takes the next id from m->next */
}

/* Finish a commit after its stores. `counts`: all ranks have committed; if not, the daemon may revert this commit. */
static void finish_commit(struct skv_seq *q, bool counts)
{
	if (q->n_evict > 0 && counts)
		carry_out(q, q->maintenance);
	committed(q);
	if (counts && q->session->joint)
		joint_know(q, q->epoch);
}

/*
 * Truncations are joint commits, and so is compression that ranks do together. Each rank commits other maintenance for
 * itself: after a death, one rank may need it and another rank may not.
 */
void transaction_commit(struct skv_seq *q, int32_t next)
{
	const bool joint = q->maintenance == MAINTENANCE_TRUNCATE || (q->maintenance == MAINTENANCE_COMPRESS && exchange_has(q));

	store_commit(q, next);
	finish_commit(q, !joint || joint_confirm(q->session));
}

int transaction_truncate(struct skv_seq *q, uint32_t n, int32_t next)
{
	int e = device_room_stale(q->session, q->n_evict);

	if (e == 0)
		e = fence_check_held(q->session->client, &q, 1);
	if (e < 0)
		return e;
	q->steady = false;
	q->n_new = n - q->len; /* negative */
	q->next_about = skv_about_cut(q->about, n);
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		q->next_slots[layer] = skv_layer_slots_cut(&q->slots[layer], n);
	q->prompt.next = (struct skv_prompt){.begin = n};
	q->next_set_aside = 0;
	q->has_first = false;
	q->maintenance = MAINTENANCE_TRUNCATE;
	atomic_thread_fence(memory_order_release);
	transaction_commit(q, next);
	q->maintenance = MAINTENANCE_NONE;
	return 0;
}

void transaction_state_changes(struct skv_seq *q)
{
	if (seq_policy(q)->block->seq_state_bytes > 0 || !q->has_state)
		q->mem->state_epoch = q->epoch + 1;
}

int transaction_finished(struct skv_session *s, struct device_step *x)
{
	int e = device_room_stale(s, x->n_evict);
	bool counts;

	if (e < 0)
		return e;
	counts = joint_confirmed(s, x);
	for (uint32_t i = 0; i < x->n; i++) {
		if (i < x->n_decode && x->publish[i].commit)
			stats_attended(x->seqs[i], x->rows[i].first, x->rows[i].n, x->sum[i]);
		if (counts && x->publish[i].commit && s->joint)
			joint_know(x->seqs[i], skv_commit_epoch(x->publish[i].word));
		if (counts && x->publish[i].n_evict > 0) {
			carry_out(x->seqs[i], !x->staged);
			x->seqs[i]->evicting = false;
		}
	}
	stats_recall(s, x->seqs, x->share, x->n_recall, x->recall_layers);
	x->busy = false;
	return 0;
}

/* In host memory: the stores of all sequences come first, so that ranks confirm all commits with one exchange. */
static void commit_all(struct skv_session *s, const int32_t *next)
{
	struct step *st = &s->step;
	bool counts;

	for (uint32_t i = 0; i < st->n; i++)
		if (st->seqs[i]->n_new > 0)
			store_commit(st->seqs[i], next ? next[st->item[i]] : -1);
	counts = joint_confirm(s);
	for (uint32_t i = 0; i < st->n; i++)
		if (st->seqs[i]->n_new > 0)
			finish_commit(st->seqs[i], counts);
}

/* On a device: queue the stores of the commits, and then the exchange in which ranks confirm them. */
static int queue_commits(struct skv_session *s, const int32_t *next)
{
	struct device_step *x = &s->device->step[s->device->next];
	int e = device_publish_begin(s, next);

	if (e < 0)
		return e;
	joint_queue(s, x);
	return device_publish_end(s);
}

int transaction_commit_all(struct skv_session *s, const int32_t *next)
{
	struct step *st = &s->step;
	int e = fence_check_held(s->client, st->seqs, st->n);

	if (e == 0 && s->device)
		e = queue_commits(s, next);
	if (e < 0)
		return e;
	if (!s->device)
		commit_all(s, next);
	for (uint32_t i = 0; i < st->n; i++) {
		struct skv_seq *q = st->seqs[i];

		q->in_step = false;
		if (q->n_new == 0 || !s->device)
			continue;
		q->evicting |= q->n_evict > 0;
		committed(q);
	}
	stats_step(s);
	return 0;
}
