/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/lifecycle.c - begins a step as a whole, commits it sequence by sequence, or aborts it.
 *
 * All that can fail for lack of resources happens in skv_step_begin: sequences are made ready, the features make room
 * for what they compute, and the transaction takes pages. skv_step_end makes no allocation and no system call.
 */
#include <errno.h>

#include "libclient/conn/conn.h"
#include "libclient/conn/fence.h"
#include "libclient/device/device.h"
#include "libclient/device/steps.h"
#include "libclient/device/tables.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/pages/pages.h"
#include "libclient/ranks/joint.h"
#include "libclient/seq.h"
#include "libclient/step/items.h"
#include "libclient/step/layout.h"
#include "libclient/step/transaction.h"
#include "libclient/step/workspace.h"

/* ---- begin ----------------------------------------------------------------------------------- */

/* Check the items and make their sequences ready: all items, or in a steady step only those whose sequences are due. */
static int ready(struct skv_session *s, const struct skv_step_item *items, uint32_t n)
{
	const struct step *st = &s->step;
	const bool steady = layout_is_steady(s, items, n);
	const uint32_t some = steady ? st->steady.n_due : n;
	int e = 0;

	for (uint32_t i = 0; i < some && e == 0; i++) {
		const uint32_t item = steady ? st->steady.due[i] : i;
		const struct skv_step_item *it = &items[item];

		e = items_check(s, item);
		if (e == 0)
			device_expect(it->seq, it->n_prompt_remaining);
		if (e == 0)
			e = features_ready(it->seq, it->n_tokens, it->flags & SKV_STEP_PROMPT);
	}
	return e;
}

static int begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n, void *stream)
{
	struct step *st = &s->step;
	int e;

	if (st->open)
		return error_set(-EBUSY, "a step is open: end or abort it first");
	if (!items || n == 0)
		return error_set(-EINVAL, "a step without items");
	if (stream && !s->device)
		return error_set(-EINVAL, "a stream was given, but the pages are in host memory: expected NULL");
	st->work.stream = stream;
	step_threads(s);
	conn_turn(s->client);
	e = fence_check(s->client);
	if (e == 0)
		e = device_turn(s);
	if (e == 0)
		e = items_take(s, items, n);
	if (e == 0)
		e = features_turn(s);
	if (e == 0)
		e = ready(s, st->items, n);
	if (e == 0)
		e = transaction_begin(s, st->items, n);
	if (e < 0)
		return e;
	st->next_layer = 0;
	st->open = true;
	s->hook.misused = false;
	st->ranks_error = 0;
	features_begin(s);
	return 0;
}

int skv_step_begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n, void *stream)
{
	void *was;
	int e = device_lock(s, &was);

	if (e == 0) {
		e = begin(s, items, n, stream);
		device_unlock(s, was);
	}
	return e;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Discard the open step, if there is one. */
static void step_abort(struct skv_session *s)
{
	if (!s->step.open)
		return;
	if (s->device)
		device_wait(s); /* wait, because queued work of the step still writes to its pages */
	transaction_abort(s);
	s->step.open = false;
}

/* Abort a step in which a hook may have written to the policy's state of the step's sequences. */
static void give_up(struct skv_session *s)
{
	for (uint32_t i = 0; i < s->step.n; i++)
		s->step.seqs[i]->state_torn = true;
	step_abort(s);
}

/* Before the step's commits: prefetch the memory that they write to, and mark the policy states that they change. */
static void prepare_commits(struct skv_session *s)
{
	const struct step *st = &s->step;

	for (uint32_t i = 0; i < st->n; i++) {
		const struct skv_seq *q = st->seqs[i];

		/* each sequence's commit writes to a mapping of its own */
		__builtin_prefetch(&q->mem->commit, 1);
		__builtin_prefetch(q->mem->about, 1);
		__builtin_prefetch(skv_seqmem_tokens(q->mem, &q->layout) + q->len, 1);
		if (q->n_new > 0)
			transaction_state_changes(st->seqs[i]);
	}
	atomic_thread_fence(memory_order_release);
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
		e = items_check_accepted(st, n_accepted);
	if (e < 0)
		return e;
	e = fence_check(s->client);
	if (e < 0) {
		give_up(s);
		return e;
	}
	rejected = items_accept(s, n_accepted);
	prepare_commits(s);
	features_end(s);
	if (s->hook.misused) {
		give_up(s);
		return error_set(-ENOTRECOVERABLE, "policy %s misused a primitive: %s", s->hook.misuser,
		                 s->hook.misuse);
	}
	e = st->ranks_error;
	if (e == 0 && rejected && s->device)
		e = device_wait(s); /* rejected rows must have run before their pages are put back */
	if (rejected && e == 0)
		pages_undo_surplus(s);
	if (e == 0)
		e = transaction_commit_all(s, next);
	if (e < 0) {
		give_up(s);
		return e;
	}
	st->open = false;
	return joint_state(s);
}

int skv_step_tokens(struct skv_session *s, uint32_t item, const int32_t *tokens)
{
	void *was;
	int e = device_lock(s, &was);

	if (e == 0) {
		e = transaction_tokens(s, item, tokens);
		device_unlock(s, was);
	}
	return e;
}

int skv_step_end(struct skv_session *s, const int32_t *next, const uint32_t *n_accepted)
{
	void *was;
	int e = device_lock(s, &was);

	if (e == 0) {
		e = end(s, next, n_accepted);
		device_unlock(s, was);
	}
	return e;
}

/* ---- abort ----------------------------------------------------------------------------------- */

void skv_step_abort(struct skv_session *s)
{
	void *was;

	if (device_lock(s, &was) == 0) {
		step_abort(s);
		device_unlock(s, was);
	}
}
