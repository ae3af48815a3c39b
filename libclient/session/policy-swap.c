/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/session/policy-swap.c - swaps a session's policy as the daemon says, and gives a sequence a policy of its
 * own.
 *
 * A swap changes nothing until all its parts have succeeded. The new plugin is loaded, the spec parsed and the layers
 * planned while the old policy stays; every sequence is adopted into a new state while its old state stays; only then
 * do the new policy and states replace the old ones. After any failure the old policy keeps running, and both the
 * operator and the engine get the reason.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/spec.h"
#include "libclient/compress/compressor.h"
#include "libclient/conn/conn.h"
#include "libclient/conn/fence.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/pages/seq-table.h"
#include "libclient/ranks/joint.h"
#include "libclient/seq.h"
#include "libclient/session/adopt.h"
#include "libclient/session/policy-config.h"

#define SWAP_WAIT_MS 250 /* milliseconds to wait for the daemon's answer; a later answer is also used */

/*
 * Does `p` go on with the old policy's state of sequences, as an attached sequence's policy does? `p` does if it is the
 * same policy with the same parameters and the same content of the codec's file, in a plugin that another daemon has
 * loaded, or that was loaded again. Adoption would change the order of pages.
 */
static bool goes_on(const struct policy *old, const struct policy *p)
{
	return strcmp(old->spec, p->spec) == 0 && old->state_version == p->state_version &&
	       compressor_equal(old->compressor, p->compressor);
}

/* Let policy p adopt all sequences that run the session's policy, or none of them. */
static int adopt_all(struct skv_session *s, struct policy *p)
{
	void **states = calloc(s->n_seqs + 1u, sizeof(*states));
	uint32_t n = 0;
	int e = states ? 0 : error_set(-ENOMEM, "out of memory");

	if (e == 0 && goes_on(s->policy, p)) {
		for (struct skv_seq *q = s->seqs; q; q = q->next)
			q->steady = false;
		free(states);
		return 0;
	}
	for (struct skv_seq *q = s->seqs; q && e == 0; q = q->next)
		if (!q->own)
			e = policy_adopt(s, p, q, &states[n++]);
	n = 0;
	for (struct skv_seq *q = s->seqs; q && states; q = q->next) {
		if (q->own)
			continue;
		if (e == 0)
			policy_install(q, p, states[n++]);
		else
			free(states[n++]);
	}
	free(states);
	return e;
}

static int swap(struct skv_session *s, const struct skv_msg_policy *m, int fd)
{
	struct policy *p, *old = NULL;
	int e;

	if (policy_is(s->policy, m)) {
		s->policy->generation = m->generation; /* this session's policy was not swapped */
		return 0;
	}
	e = policy_get(s, m, fd, &p);
	if (e == 0)
		e = adopt_all(s, p);
	if (e == 0) {
		old = s->policy;
		s->policy = p;
		p->generation = m->generation;
		s->stats.policy_swaps++;
	}
	policy_put(s->client, e == 0 ? old : p);
	return e;
}

/* If the daemon has a new policy generation, ask for the session's policy, and wait a moment. NULL: no answer yet. */
static struct request *ask(struct skv_session *s)
{
	struct skv_client *c = s->client;
	uint64_t generation = atomic_load_explicit(&c->control->policy_generation, memory_order_acquire);
	uint32_t wait = atomic_load_explicit(&c->timeout_ms, memory_order_relaxed);
	struct skv_msg_session m = {.session = s->id};
	struct request *r;

	if (!s->swap.get) {
		if (generation == s->swap.seen_generation)
			return NULL;
		if (conn_post(c, SKV_MSG_POLICY_GET, &m, sizeof(m), &s->swap.get) < 0)
			return NULL;
		s->swap.seen_generation = generation;
		conn_wait(c, s->swap.get, now_ms() + (wait < SWAP_WAIT_MS ? wait : SWAP_WAIT_MS));
	}
	if (!request_done(c, s->swap.get))
		return NULL;
	r = s->swap.get;
	s->swap.get = NULL;
	return r;
}

/* Run the policy in the answer from now on, or keep the old policy and record why. */
static int policy_follow(struct skv_session *s, const struct request *r)
{
	int e = r->error ? error_set(r->error, "%s", r->text) : swap(s, r->body, r->fds[0]);

	snprintf(s->swap.error, sizeof(s->swap.error), "%s", e < 0 ? skv_last_error() : "");
	return e;
}

/*
 * Drop a kept answer if there is a newer generation: a rank that asked later got the newer one, and ranks swap only if
 * all have the same.
 */
static void drop_outdated(struct skv_session *s)
{
	const struct skv_msg_policy *m = s->swap.reply ? s->swap.reply->body : NULL;

	if (!m || atomic_load_explicit(&s->client->control->policy_generation, memory_order_acquire) <= m->generation)
		return;
	request_free(s->swap.reply);
	s->swap.reply = NULL;
}

/* The answer that the session must follow now; NULL: none, or other ranks are not ready to swap to its policy. */
static struct request *next_swap(struct skv_session *s)
{
	struct request *r;
	const struct skv_msg_policy *m;

	drop_outdated(s);
	r = s->swap.reply ? s->swap.reply : ask(s);

	s->swap.reply = NULL;
	if (!r || r->error || !s->joint)
		return r;
	m = r->body;
	if (joint_agreed_swap(s) == joint_generation(m->generation))
		return r;
	s->swap.reply = r;
	return NULL;
}

/* If the daemon wants the session to run another policy, switch to it. After any failure the old policy stays. */
static int swap_turn(struct skv_session *s)
{
	struct request *r = next_swap(s);
	int e = r ? policy_follow(s, r) : 0;

	if (r && !r->error)
		policy_ack(s, ((const struct skv_msg_policy *)r->body)->generation, e, s->swap.error);
	request_free(r);
	return 0;
}

static void swap_close(struct skv_session *s)
{
	conn_orphan(s->client, s->swap.get);
	request_free(s->swap.reply);
}

const struct feature swap_feature = {.close = swap_close, .turn = swap_turn};

/* ---- policies of sequences ------------------------------------------------------------------- */

static int ask_for(struct skv_session *s, const char *spec, struct policy **ret)
{
	char name[SKV_NAME_MAX], text[SKV_TEXT_MAX];
	struct skv_msg_spec m = {0};
	struct request *r;
	int e;

	if (skv_spec_name(spec, name, text, sizeof(text)) < 0)
		return error_set(-EINVAL, "%s", text);
	skv_wire_string(m.spec, sizeof(m.spec), spec);
	e = conn_call(s->client, SKV_MSG_POLICY_FIND, &m, sizeof(m), &r);
	if (e < 0)
		return e;
	e = policy_get(s, r->body, r->fds[0], ret);
	if (e < 0)
		*ret = policy_put(s->client, *ret);
	request_free(r);
	return e;
}

static int give_policy(struct skv_seq *q, const char *spec)
{
	struct skv_session *s = q->session;
	struct policy *own = NULL, *p;
	void *state = NULL;
	int e;

	if (q->in_step)
		return error_set(-EBUSY, "the sequence is in an open step");
	e = seq_settle_fork(q);
	if (e == 0 && spec)
		e = ask_for(s, spec, &own);
	if (e < 0)
		return e;
	p = own ? own : s->policy;
	if (goes_on(seq_policy(q), p)) {
		q->steady = false;
	} else {
		/* a new sequence has no tokens that the policy would have to adopt */
		e = q->len > 0 ? policy_adopt(s, p, q, &state) : 0;
		if (e < 0) {
			policy_put(s->client, own);
			return e;
		}
		policy_install(q, p, state);
	}
	policy_leave(s, q->own);
	q->own = own;
	return 0;
}

int skv_seq_policy(struct skv_seq *q, const char *spec)
{
	struct skv_session *s = q->session;
	int e = fence_enter(s);

	if (e < 0)
		return e;
	e = give_policy(q, spec);
	pthread_mutex_unlock(&s->lock);
	return e;
}

const char *skv_seq_policy_spec(const struct skv_seq *q)
{
	return seq_policy(q)->spec;
}

int skv_seq_keeps_all(const struct skv_seq *q)
{
	const struct policy *p = seq_policy(q);

	return !p->n_evicting && !p->n_compress && p->block->action != SKV_ACT_EVICT && p->block->action != SKV_ACT_COMPRESS && !p->prefill;
}

/* ---- getters --------------------------------------------------------------------------------- */

const char *skv_policy_spec(struct skv_session *s)
{
	return s->policy->spec;
}

int skv_policy_depends_on_prefill(struct skv_session *s)
{
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		if (s->policy->plan[layer].evict.accumulate || s->policy->plan[layer].prefill.how)
			return 1;
	return 0;
}

const char *skv_policy_error(struct skv_session *s)
{
	return s->swap.error;
}
