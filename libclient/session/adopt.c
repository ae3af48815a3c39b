/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/session/adopt.c - keeps the state that a policy has of a sequence, and lets a policy adopt another's
 * sequences.
 *
 * A sequence's state belongs to one policy, and lies in the daemon's memory. `state_policy` names this policy, and is
 * empty while the state is being replaced; `state_epoch` is the epoch of the commit that the state belongs to. If a
 * state does not fit, for instance because of a death inside a step, the policy's adopt() makes it anew. State pages
 * never pass to another policy: adoption gives them back, and the next step supplies new ones, with page bounds or
 * sketches of all tokens. From then on page bounds and sketches are valid even if a step is lost, because each step
 * makes anew those that it needs.
 */
#include "libclient/session/adopt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "libclient/compress/schedule.h"
#include "libclient/device/steps.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/layer/hooks.h"
#include "libclient/pages/pages.h"
#include "libclient/seq.h"

#define ADOPT_TEXT_MAX 256
#define OF_NO_COMMIT (1u << 31) /* distance of two epochs of which neither counts as earlier */

/* Run the hook. A step may be open, in which a hook has misused a primitive: the step still fails at its end. */
static int call_adopt(struct skv_session *s, const struct skv_policy *block, const struct skv_policy_ctx *ctx,
                      void *state, char text[ADOPT_TEXT_MAX])
{
	const struct hook was = s->hook;
	int r;

	s->hook = (struct hook){.phase = PHASE_ADOPT, .adopting_state = state};
	r = block->adopt(ctx, text, ADOPT_TEXT_MAX);
	if (s->hook.misused) {
		snprintf(text, ADOPT_TEXT_MAX, "%.*s", ADOPT_TEXT_MAX - 1, s->hook.misuse);
		r = -1;
	}
	s->hook = was;
	return r;
}

int policy_adopt(struct skv_session *s, struct policy *p, struct skv_seq *q, void **ret_state)
{
	const struct skv_policy *block = p->block;
	const struct skv_policy_ctx ctx = policy_ctx(s, p, 1);
	char text[ADOPT_TEXT_MAX] = "";
	void *state;
	int r = 0;

	if (block->seq_state_bytes > q->layout.state_bytes)
		return error_set(-ENOTSUP, "%s keeps %u bytes of state a sequence, there is room for %zu",
		            block->name, block->seq_state_bytes, q->layout.state_bytes);
	state = calloc(1, block->seq_state_bytes + 1u);
	if (!state)
		return error_set(-ENOMEM, "out of memory");
	if (block->adopt)
		r = call_adopt(s, block, &ctx, state, text);
	if (r != 0) {
		free(state);
		return error_set(-ENOTSUP, "%s refuses sequence %u: %.*s", block->name, q->id,
		            (int)sizeof(text) - 1, text[0] ? text : "no reason given");
	}
	*ret_state = state;
	return 0;
}

static uint32_t state_table(const struct skv_seq *q, uint32_t layer)
{
	return skv_table(q->layout.n_layers, SKV_PAGES_STATE, layer);
}

void policy_install(struct skv_seq *q, const struct policy *p, void *state)
{
	const struct skv_policy *block = p->block;
	struct skv_seqmem *m = q->mem;
	uint8_t *area = (uint8_t *)m + q->layout.state;

	memset(m->state_policy, 0, sizeof(m->state_policy));
	atomic_thread_fence(memory_order_seq_cst);
	/* give the previous policy's state back to the system; a failure only costs memory */
	if (madvise(area, q->layout.state_bytes, MADV_REMOVE) < 0 && block->seq_state_bytes > 0)
		memset(area, 0, block->seq_state_bytes);
	if (state && block->seq_state_bytes > 0)
		memcpy(area, state, block->seq_state_bytes);
	free(state);
	if (q->session->device)
		device_settle(q->session); /* after a failure the device runs nothing any more */
	pages_forget_state(q);
	q->on_device.old = q->session->device;
	q->compress.on = q->compress.known = q->steady = false;
	q->has_state = p->n_state_layers == 0 || q->len == 0;
	m->state_version = p->state_version;
	/* the next step fills and commits the state pages: until then the state belongs to no commit */
	m->state_epoch = q->has_state ? q->epoch : q->epoch ^ OF_NO_COMMIT;
	atomic_thread_fence(memory_order_seq_cst);
	skv_wire_string(m->state_policy, sizeof(m->state_policy), block->name);
	q->state_torn = false;
}

void policy_start(struct skv_seq *q)
{
	const struct skv_policy *block = seq_policy(q)->block;

	/* new memory is zero, as is every policy's initial state */
	q->mem->state_version = seq_policy(q)->state_version;
	q->mem->state_epoch = q->epoch;
	skv_wire_string(q->mem->state_policy, sizeof(q->mem->state_policy), block->name);
	q->has_state = true;
}

/* Does the sequence have the state pages that the policy plans, and no others? */
static bool state_fits(const struct skv_seq *q, const struct policy *p)
{
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		for (uint32_t i = 0; i < pages_of_state(q, layer, seq_slot_end(q, layer)); i++) {
			skv_pte e = seq_table(q, state_table(q, layer))[i];

			if (skv_pte_resident(e) != plan_has_state(&p->plan[layer]))
				return false;
		}
	return true;
}

/* Does the state belong to the last commit? Page bounds and sketches may also belong to an earlier one. */
static bool state_holds(const struct skv_seq *q, const struct policy *p)
{
	uint32_t since = q->epoch - q->mem->state_epoch;

	return p->block->seq_state_bytes > 0 ? since == 0 : p->n_state_layers == 0 || since < OF_NO_COMMIT;
}

static bool at_home(const struct skv_seq *q, const struct policy *p)
{
	const struct skv_policy *block = p->block;
	const struct skv_seqmem *m = q->mem;

	return !q->state_torn && strncmp(m->state_policy, block->name, sizeof(m->state_policy)) == 0 &&
	       m->state_version == p->state_version && state_fits(q, p) && state_holds(q, p);
}

int policy_take_over(struct skv_seq *q)
{
	struct policy *p = seq_policy(q);
	void *state;
	int e;

	compress_take_over(q);
	pages_take_over(q);
	q->on_device.old = q->session->device;
	q->steady = false;
	e = pages_check(q);
	if (e < 0)
		return e;
	if (at_home(q, p)) {
		q->has_state = true;
		return 0;
	}
	e = policy_adopt(q->session, p, q, &state);
	if (e == 0)
		policy_install(q, p, state);
	return e;
}

static int adopt_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	(void)n_tokens, (void)prompt;
	return q->state_torn ? policy_take_over(q) : 0;
}

const struct feature adopt_feature = {.ready = adopt_ready};
