/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step-lifecycle.c - a step: begun as a whole, committed sequence by sequence, or aborted.
 *
 * All that can fail for lack of resources happens in skv_step_begin: sequences are made ready, the features make room
 * for what they compute, and the transaction takes pages. skv_step_end makes no allocation and no system call.
 */
#include "libclient/step-lifecycle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/threads.h"
#include "libclient/adopt.h"
#include "libclient/attend.h"
#include "libclient/branches.h"
#include "libclient/compress/attend.h"
#include "libclient/compress/encode.h"
#include "libclient/compress/ready.h"
#include "libclient/conn.h"
#include "libclient/device.h"
#include "libclient/device-step.h"
#include "libclient/device-tables.h"
#include "libclient/error.h"
#include "libclient/evict/slot-mapping.h"
#include "libclient/fence.h"
#include "libclient/hooks.h"
#include "libclient/lease/stock.h"
#include "libclient/pages.h"
#include "libclient/policy-swap.h"
#include "libclient/ranks.h"
#include "libclient/prefill/attend.h"
#include "libclient/joint.h"
#include "libclient/recall.h"
#include "libclient/attn.h"
#include "libclient/rows.h"
#include "libclient/scratch.h"
#include "libclient/selection.h"
#include "libclient/seq.h"
#include "libclient/seq-table.h"
#include "libclient/sized.h"
#include "libclient/stats.h"
#include "libclient/steady.h"
#include "libclient/transaction.h"

/* ---- begin ----------------------------------------------------------------------------------- */

static int check_item(struct skv_session *s, const struct skv_step_item *it, uint32_t i)
{
	struct skv_seq *q = it->seq;

	if (!q || q->session != s)
		return error_set(-EINVAL, "item %u: seq is %s, expected a sequence of this session", i,
		            q ? "of another session" : "NULL");
	if (it->flags & ~(uint32_t)SKV_STEP_PROMPT)
		return error_set(-EINVAL, "item %u: flags are %#x, expected 0 or SKV_STEP_PROMPT", i, it->flags);
	if (it->n_tokens == 0 || (it->n_tokens > SKV_STEP_ROWS && !(it->flags & SKV_STEP_PROMPT)))
		return error_set(-EINVAL, "item %u: n_tokens is %u, expected %s", i, it->n_tokens,
		            it->flags & SKV_STEP_PROMPT ? "at least 1" : "1 to 16 without SKV_STEP_PROMPT");
	if (it->n_tokens > 1 && !(it->flags & SKV_STEP_PROMPT) && rows_refused(seq_policy(q)))
		return error_set(-ENOTSUP, "item %u: n_tokens is %u, expected 1: policy %s %s", i, it->n_tokens,
		                 seq_policy(q)->block->name, rows_refused(seq_policy(q)));
	if (it->n_prompt_remaining > 0 && !(it->flags & SKV_STEP_PROMPT))
		return error_set(-EINVAL, "item %u: n_prompt_remaining is %u, expected 0 without SKV_STEP_PROMPT", i,
		                 it->n_prompt_remaining);
	if ((uint64_t)it->n_tokens + it->n_prompt_remaining > q->layout.max_tokens - q->len)
		return error_set(-E2BIG, "item %u: %u tokens and %llu more, but the sequence was made for %u", i,
		            q->len, (unsigned long long)it->n_tokens + it->n_prompt_remaining, q->layout.max_tokens);
	return 0;
}

/* Record the policy under which its tokens are computed: if it is a single one, they can become a prefix of others. */
static void sign_policy(const struct skv_seq *q)
{
	const uint64_t policy = seq_policy(q)->fingerprint;

	if (q->len == 0)
		q->mem->sealed = 0;
	if (q->mem->policy != policy)
		q->mem->policy = q->len == 0 ? policy : 0;
}

/* Check an item and make its sequence ready: may take over its policy state, and change its layout. */
static int ready(struct skv_session *s, const struct skv_step_item *it, uint32_t i)
{
	int e = check_item(s, it, i);

	if (e == 0)
		e = seq_settle_fork(it->seq);
	if (e == 0 && it->seq->state_torn)
		e = policy_take_over(it->seq);
	if (e == 0)
		e = device_seq_ready(it->seq, it->seq->len + it->n_tokens);
	if (e == 0)
		e = decompress_foreign(s, it->seq);
	if (e == 0)
		e = slots_ready(s, it->seq, it->flags & SKV_STEP_PROMPT);
	if (e == 0)
		sign_policy(it->seq);
	return e < 0 ? e : compress_ready(s, it->seq, it->flags & SKV_STEP_PROMPT);
}

static int grow_step(struct skv_session *s, uint32_t n)
{
	struct step *st = &s->step;
	uint32_t cap = n + n / 2;

	if (n <= st->cap)
		return 0;
	free(st->seqs);
	free(st->items);
	free(st->item);
	free(st->index);
	free(st->at_kseq);
	free(st->due);
	free(st->batch);
	st->seqs = calloc(cap, sizeof(*st->seqs));
	st->items = calloc(cap, sizeof(*st->items));
	st->item = calloc(cap, sizeof(*st->item));
	st->index = calloc(cap, sizeof(*st->index));
	st->at_kseq = calloc(cap, sizeof(*st->at_kseq));
	st->due = calloc(cap, sizeof(*st->due));
	st->batch = calloc(cap, sizeof(*st->batch));
	st->follows = false;
	st->cap = st->seqs && st->items && st->item && st->index && st->at_kseq && st->due && st->batch ? cap : 0;
	return st->cap ? 0 : error_set(-ENOMEM, "out of memory for a step of %u sequences", n);
}

/* Make room for what the features compute. It grows only here. */
static int prepare(struct skv_session *s)
{
	int e = scratch_prepare(s);

	if (e == 0)
		e = attn_prepare(s);
	if (e == 0)
		e = selections_prepare(s);
	if (e == 0)
		e = compress_prepare(s);
	if (e == 0)
		e = prefill_prepare(s);
	if (e == 0)
		e = recall_begin(s);
	return e < 0 ? e : branches_prepare(s);
}

/* Copy the caller's items, which are as far apart as the first one's size says, to this library's own declaration. */
static int take_items(struct step *st, const struct skv_step_item *items, uint32_t n)
{
	const uint8_t *from = (const uint8_t *)items;
	char name[24];

	for (uint32_t i = 0; i < n; i++) {
		const struct skv_step_item *at = (const void *)(from + (size_t)i * items->size);
		int e;

		if (at->size == sizeof(st->items[i])) { /* the usual case */
			st->items[i] = *at;
			continue;
		}
		snprintf(name, sizeof(name), "item %u", i);
		e = sized_get(&st->items[i], sizeof(st->items[i]), at, sizeof(struct skv_step_item), name);
		if (e < 0)
			return e;
	}
	return 0;
}

/* Make the sequences of the step ready; in a steady step only those that are due. */
static int ready_all(struct skv_session *s, const struct skv_step_item *items, uint32_t n)
{
	const struct step *st = &s->step;
	const bool steady = steady_fits(s, items, n);
	uint32_t some = steady ? st->n_due : n;
	int e = 0;

	for (uint32_t i = 0; i < some && e == 0; i++) {
		uint32_t item = steady ? st->due[i] : i;

		e = ready(s, &items[item], item);
	}
	return e;
}

static int begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n, void *stream)
{
	struct step *st = &s->step;
	uint32_t demand = 0;
	int e;

	if (st->open)
		return error_set(-EBUSY, "a step is open: end or abort it first");
	if (!items || n == 0)
		return error_set(-EINVAL, "a step without items");
	if (stream && !s->device)
		return error_set(-EINVAL, "a stream was given, but the pages are in host memory: expected NULL");
	st->work.stream = stream;
	st->work.threads = atomic_load_explicit(&s->client->threads, memory_order_relaxed);
	if (!s->device)
		skv_threads_ready(st->work.threads);
	conn_turn(s->client);
	e = fence_check(s->client);
	if (e == 0)
		e = device_turn(s);
	if (e == 0)
		e = grow_step(s, n);
	if (e == 0)
		e = take_items(st, items, n);
	if (e < 0)
		return e;
	e = joint_begin(s);
	if (e < 0)
		return e;
	items = st->items;
	policy_update(s);
	e = ready_all(s, items, n);
	if (e == 0)
		e = transaction_begin(s, items, n, prepare, &demand);
	if (e < 0)
		return e;
	st->next_layer = 0;
	st->open = true;
	s->misused = false;
	st->ranks_error = 0;
	attend_begin(s);
	stock_tend(s, demand);
	return 0;
}

int skv_step_begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n, void *stream)
{
	void *was;
	int e = fence_enter(s);

	if (e < 0)
		return e;
	e = device_enter(s, &was);
	if (e == 0) {
		e = begin(s, items, n, stream);
		device_leave(s, was);
	}
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Discard the open step. */
static void step_abort(struct skv_session *s)
{
	if (!s->step.open)
		return;
	if (s->device)
		device_wait(s); /* queued work of the step writes to its pages */
	transaction_abort(s);
	s->step.open = false;
}

/* Abort a step in which a hook may have written to the policy's state of its sequences. */
static void give_up(struct skv_session *s)
{
	for (uint32_t i = 0; i < s->step.n; i++)
		s->step.seqs[i]->state_torn = true;
	step_abort(s);
}

/* The end of a step except its commit. Cancelled sequences take no part in it. */
static void features_end(struct skv_session *s)
{
	struct step *st = &s->step;

	for (uint32_t i = 0; i < st->n; i++) {
		const struct skv_seq *q = st->seqs[i];

		/* each sequence's commit writes to a mapping of its own: prefetch them */
		__builtin_prefetch(&q->mem->commit, 1);
		__builtin_prefetch(q->mem->about, 1);
		__builtin_prefetch(skv_seqmem_tokens(q->mem, &q->layout) + q->len, 1);
		if (q->n_new > 0)
			transaction_state_changes(st->seqs[i]);
	}
	atomic_thread_fence(memory_order_release);
	for (uint32_t i = 0; i < st->n_batches; i++)
		policy_step_end(s, &st->batch[i]);
	if (s->misused)
		return;
	compress_step_end(s);
	for (uint32_t i = 0; i < st->n; i++)
		if (st->seqs[i]->n_new > 0)
			pages_evict_surplus(st->seqs[i]);
}

static int end(struct skv_session *s, const int32_t *next, const uint32_t *n_accepted)
{
	struct step *st = &s->step;
	bool rejected;
	int e;

	if (!st->open)
		return error_set(-EINVAL, "no step is open");
	if (st->next_layer != s->model.n_layers)
		return error_set(-EINVAL, "layer %u of %u was not attended", st->next_layer, s->model.n_layers);
	e = device_not_recording(s);
	if (e == 0)
		e = rows_check_accepted(st, n_accepted);
	if (e < 0)
		return e;
	e = fence_check(s->client);
	if (e < 0) {
		give_up(s);
		return e;
	}
	rejected = rows_accept(s, n_accepted);
	features_end(s);
	if (s->misused) {
		give_up(s);
		return error_set(-ENOTRECOVERABLE, "policy %s misused a primitive: %s", s->misuser, s->misuse);
	}
	e = ranks_failed(s);
	if (e == 0 && rejected && s->device)
		e = device_wait(s); /* rejected rows must have run before their pages are put back */
	if (rejected && e == 0)
		pages_undo_surplus(s);
	if (e == 0)
		e = fence_check_held(s->client, st->seqs, st->n);
	if (e == 0)
		e = transaction_commit_all(s, next);
	if (e < 0) {
		give_up(s);
		return e;
	}
	st->open = false;
	stats_step(s);
	return joint_state(s);
}

int skv_step_end(struct skv_session *s, const int32_t *next, const uint32_t *n_accepted)
{
	void *was;
	int e = fence_enter(s);

	if (e < 0)
		return e;
	e = device_enter(s, &was);
	if (e == 0) {
		e = end(s, next, n_accepted);
		device_leave(s, was);
	}
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- abort ----------------------------------------------------------------------------------- */

void skv_step_abort(struct skv_session *s)
{
	void *was;

	if (fence_enter(s) < 0)
		return;
	if (device_enter(s, &was) == 0) {
		step_abort(s);
		device_leave(s, was);
	}
	pthread_mutex_unlock(&s->lock);
}

void step_free(struct skv_session *s)
{
	struct step *st = &s->step;

	free(st->seqs);
	free(st->items);
	free(st->item);
	free(st->index);
	free(st->at_kseq);
	free(st->due);
	free(st->kseq);
	free(st->class);
	free(st->supplied);
	free(st->work.mem);
	free(st->batch);
	free(st->selection);
	free(st->arena);
	free(st->decompressed.mem);
	free(st->exchanged);
	free(st->gathered);
	free(st->tiles);
	free(st->recall.mem);
	*st = (struct step){0};
}
