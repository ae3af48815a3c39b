/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/policy.c - policies at run time: loaded, planned, swapped, asked.
 *
 * A swap changes nothing until all of it has succeeded. The new file is loaded, the spec parsed and the
 * layers planned beside the old policy; every sequence is adopted into a state of its own beside the old
 * state; only then do both take the old ones' places. Whatever fails leaves the old policy running and
 * is told to the operator and to the engine.
 *
 * A sequence's state is the policy's, in the daemon's memory. `state_policy` names whose it is and is
 * empty while it is being replaced; `state_epoch` is the commit that it belongs to. A state that does not
 * fit, as after death inside of a step, is made anew by adopt(). State pages never change their policy: adoption gives
 * them back, and the first step after it (step.c) supplies others with the bounds of all pages that are there. From then
 * on bounds are true whatever becomes of a step, for the next one makes those anew that it needs.
 */
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/spec.h"

#define PLUGINS_KEPT 16      /* loaded files that no session runs, kept for a swap back */
#define SWAP_WAIT_MS 250     /* for the daemon to say what to swap to; a later answer is taken too */
#define ADOPT_TEXT_MAX 256
#define OF_NO_COMMIT (1u << 31) /* epochs that far apart: neither is before the other */

/* ---- plugins --------------------------------------------------------------------------------- */

static struct plugin *plugin_find(struct skv_client *c, uint32_t id)
{
	struct plugin *p;

	pthread_mutex_lock(&c->lock);
	for (p = c->plugins; p && p->id != id; p = p->next)
		;
	if (p)
		p->users++;
	pthread_mutex_unlock(&c->lock);
	return p;
}

static void plugin_free(struct plugin *p)
{
	dlclose(p->handle);
	free(p);
}

static int plugin_load(struct skv_client *c, uint32_t id, int fd, struct plugin **ret)
{
	char text[SKV_TEXT_MAX];
	struct plugin *p = plugin_find(c, id);
	int e;

	if (p) {
		*ret = p;
		return 0;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return fail(-ENOMEM, "out of memory");
	e = skv_policy_dlopen(fd, &p->block, &p->handle, text, sizeof(text));
	if (e < 0) {
		free(p);
		return fail(e, "%s", text);
	}
	p->id = id;
	p->users = 1;
	pthread_mutex_lock(&c->lock);
	p->next = c->plugins;
	c->plugins = p;
	pthread_mutex_unlock(&c->lock);
	*ret = p;
	return 0;
}

/* The list is newest first: what goes is the oldest that nobody runs. */
static void plugin_release(struct skv_client *c, struct plugin *p)
{
	struct plugin **oldest = NULL, *gone = NULL;
	unsigned unused = 0;

	pthread_mutex_lock(&c->lock);
	p->users--;
	for (struct plugin **at = &c->plugins; *at; at = &(*at)->next)
		if ((*at)->users == 0) {
			unused++;
			oldest = at;
		}
	if (unused > PLUGINS_KEPT) {
		gone = *oldest;
		*oldest = gone->next;
	}
	pthread_mutex_unlock(&c->lock);
	if (gone)
		plugin_free(gone);
}

void plugins_free(struct skv_client *c)
{
	while (c->plugins) {
		struct plugin *p = c->plugins;

		c->plugins = p->next;
		plugin_free(p);
	}
}

/* ---- a policy with its parameters ------------------------------------------------------------ */

struct policy *policy_put(struct skv_client *c, struct policy *p)
{
	if (!p || --p->users > 0)
		return NULL;
	if (p->plugin)
		plugin_release(c, p->plugin);
	packing_free(p->packing);
	reading_free(p->reading);
	free(p->config);
	free(p->spec);
	free(p);
	return NULL;
}

/* Parse, check, plan; read what it needs besides. */
static int configure(struct skv_session *s, struct policy *p)
{
	const struct skv_model *model = &s->model;
	char text[SKV_TEXT_MAX];
	int e, n;

	p->config = calloc(1, p->block->config_size + 1u);
	if (!p->config)
		return fail(-ENOMEM, "out of memory");
	e = skv_spec_parse(p->block, p->given, model, p->config, text, sizeof(text));
	if (e == 0)
		e = skv_policy_plan(p->block, p->config, model, p->plan, text, sizeof(text));
	if (e < 0)
		return fail(e, "%s", text);
	for (uint32_t layer = 0; layer < model->n_layers; layer++) {
		p->n_bounds += plan_keeps_bounds(&p->plan[layer]);
		p->n_keep += p->plan[layer].evict.granularity > 0;
		p->n_keep_pages += p->plan[layer].evict.granularity > 1;
		p->n_pack += p->plan[layer].compress.kind > 0;
	}
	e = packing_make(s, p);
	if (e == 0)
		e = reading_make(s, p);
	if (e < 0)
		return e;
	n = skv_spec_print(p->block, p->config, NULL, 0);
	p->spec = malloc((size_t)n + 1);
	if (!p->spec)
		return fail(-ENOMEM, "out of memory");
	skv_spec_print(p->block, p->config, p->spec, (size_t)n + 1);
	return 0;
}

static bool is_policy(const struct policy *p, const struct skv_msg_policy *m)
{
	return p && p->plugin->id == m->plugin && !strcmp(p->given, m->spec);
}

/* One that the session or a sequence of it runs already: who runs the same is of the same group. */
static struct policy *find(const struct skv_session *s, const struct skv_msg_policy *m)
{
	if (is_policy(s->policy, m))
		return s->policy;
	for (const struct skv_seq *q = s->seqs; q; q = q->next)
		if (is_policy(q->own, m))
			return q->own;
	return NULL;
}

int policy_get(struct skv_session *s, const struct skv_msg_policy *m, int fd, struct policy **ret)
{
	static _Atomic uint64_t serials;
	struct policy *p = find(s, m);
	int e;

	if (p) {
		p->users++;
		*ret = p;
		return 0;
	}
	p = calloc(1, sizeof(*p) + s->model.n_layers * sizeof(*p->plan));
	if (!p)
		return fail(-ENOMEM, "out of memory");
	p->users = 1;
	p->serial = atomic_fetch_add(&serials, 1);
	p->generation = m->generation;
	memcpy(p->given, m->spec, sizeof(p->given));
	e = plugin_load(s->client, m->plugin, fd, &p->plugin);
	if (e == 0) {
		p->block = p->plugin->block;
		e = configure(s, p);
	}
	if (e < 0) {
		policy_put(s->client, p);
		return e;
	}
	*ret = p;
	return 0;
}

void policy_ack(struct skv_session *s, uint64_t generation, int error, const char *text)
{
	struct skv_msg_policy_ack m = {.session = s->id, .error = -error, .generation = generation};

	skv_wire_string(m.text, sizeof(m.text), text);
	conn_post(s->client, SKV_MSG_POLICY_ACK, &m, sizeof(m), NULL);
}

/* ---- hooks ----------------------------------------------------------------------------------- */

void policy_misuse(struct skv_session *s, const char *fmt, ...)
{
	va_list ap;

	if (s->misused)
		return; /* the first is the cause */
	s->misused = true;
	s->misuser = s->group ? s->group->policy->block->name : "";
	va_start(ap, fmt);
	vsnprintf(s->misuse, sizeof(s->misuse), fmt, ap);
	va_end(ap);
}

void policy_hook(struct skv_session *s, struct group *g, enum phase phase, uint32_t layer)
{
	const struct skv_policy *block = g->policy->block;
	struct skv_policy_ctx ctx = {
	        .size = sizeof(ctx),
	        .n_seqs = g->n,
	        .prims = &policy_prims,
	        .model = &s->model,
	        .config = g->policy->config,
	        .library = s,
	};

	if (ctx.n_seqs == 0)
		return;
	s->group = g;
	s->phase = phase;
	s->hook_layer = layer;
	if (phase == PHASE_BEFORE && block->before)
		block->before(&ctx, layer);
	else if (phase == PHASE_AFTER && block->after)
		block->after(&ctx, layer);
	else if (phase == PHASE_END && block->step_end)
		block->step_end(&ctx);
	s->phase = PHASE_NONE;
}

/* ---- state and adoption ---------------------------------------------------------------------- */

/* Ask the policy to take the sequence; *ret_state is the caller's. */
static int adopt(struct skv_session *s, struct policy *p, struct skv_seq *q, void **ret_state)
{
	const struct skv_policy *block = p->block;
	struct skv_policy_ctx ctx = {
	        .size = sizeof(ctx),
	        .n_seqs = 1,
	        .prims = &policy_prims,
	        .model = &s->model,
	        .config = p->config,
	        .library = s,
	};
	char text[ADOPT_TEXT_MAX] = "";
	void *state;
	int r = 0;

	if (block->seq_state_bytes > q->layout.state_bytes)
		return fail(-ENOTSUP, "%s keeps %u bytes of state a sequence, there is room for %zu",
		            block->name, block->seq_state_bytes, q->layout.state_bytes);
	state = calloc(1, block->seq_state_bytes + 1u);
	if (!state)
		return fail(-ENOMEM, "out of memory");
	if (block->adopt) {
		s->group = NULL;
		s->phase = PHASE_ADOPT;
		s->adopting_state = state;
		s->misused = false;
		r = block->adopt(&ctx, text, sizeof(text));
		s->phase = PHASE_NONE;
		if (s->misused) {
			snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, s->misuse);
			s->misused = false;
			r = -1;
		}
	}
	if (r != 0) {
		free(state);
		return fail(-ENOTSUP, "%s refuses sequence %u: %.*s", block->name, q->id,
		            (int)sizeof(text) - 1, text[0] ? text : "no reason given");
	}
	*ret_state = state;
	return 0;
}

static uint32_t bounds_table(const struct skv_seq *q, uint32_t layer)
{
	return skv_table(q->layout.n_layers, SKV_GROUP_BOUNDS, layer);
}

/* Make `state` (consumed) the sequence's. */
static void install(struct skv_seq *q, const struct policy *p, void *state)
{
	const struct skv_policy *block = p->block;
	struct skv_seqmem *m = q->mem;
	uint8_t *area = (uint8_t *)m + q->layout.state;

	memset(m->state_policy, 0, sizeof(m->state_policy));
	atomic_thread_fence(memory_order_seq_cst);
	/* what an earlier policy kept goes back to the system; a failure only costs its memory */
	if (madvise(area, q->layout.state_bytes, MADV_REMOVE) < 0 && block->seq_state_bytes > 0)
		memset(area, 0, block->seq_state_bytes);
	if (state && block->seq_state_bytes > 0)
		memcpy(area, state, block->seq_state_bytes);
	free(state);
	if (q->session->device)
		device_settle(q->session); /* should it fail, nothing runs any more either */
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		for (uint32_t i = 0; i < skv_pages_of(q->len); i++)
			seq_drop_page(q, bounds_table(q, layer), i);
	pages_forget_prompt(q);
	q->on_device.old = q->session->device;
	q->packs = q->packs_known = false;
	q->bounded = p->n_bounds == 0 || q->len == 0;
	m->state_version = block->state_version;
	/* bounds that the next step makes are there when it is committed: until then the state is of no commit */
	m->state_epoch = q->bounded ? q->epoch : q->epoch ^ OF_NO_COMMIT;
	atomic_thread_fence(memory_order_seq_cst);
	skv_wire_string(m->state_policy, sizeof(m->state_policy), block->name);
	q->state_torn = false;
}

void policy_start(struct skv_seq *q)
{
	const struct skv_policy *block = seq_policy(q)->block;

	/* fresh memory is zero, which is what a policy's state begins as */
	q->mem->state_version = block->state_version;
	q->mem->state_epoch = q->epoch;
	skv_wire_string(q->mem->state_policy, sizeof(q->mem->state_policy), block->name);
	q->bounded = true;
}

/* Does it have the state pages of these plans, and no others? */
static bool state_fits(const struct skv_seq *q, const struct policy *p)
{
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		for (uint32_t i = 0; i < state_pages_of(seq_extent(q, layer)); i++) {
			skv_pte e = seq_table(q, bounds_table(q, layer))[i];

			if (skv_pte_resident(e) != plan_keeps_bounds(&p->plan[layer]))
				return false;
		}
	return true;
}

/* Is the state of the last commit? */
static bool state_holds(const struct skv_seq *q, const struct policy *p)
{
	uint32_t since = q->epoch - q->mem->state_epoch;

	return p->block->seq_state_bytes > 0 ? since == 0 : p->n_bounds == 0 || since < OF_NO_COMMIT;
}

void policy_state_of_commit(struct skv_seq *q)
{
	if (seq_policy(q)->block->seq_state_bytes > 0 || !q->bounded)
		q->mem->state_epoch = q->epoch + 1;
}

static bool at_home(const struct skv_seq *q, const struct policy *p)
{
	const struct skv_policy *block = p->block;
	const struct skv_seqmem *m = q->mem;

	return !q->state_torn && strncmp(m->state_policy, block->name, sizeof(m->state_policy)) == 0 &&
	       m->state_version == block->state_version && state_fits(q, p) && state_holds(q, p);
}

int policy_take_over(struct skv_seq *q)
{
	struct policy *p = seq_policy(q);
	void *state;
	int e;

	packs_take_over(q);
	if (!reading_fits(q, p))
		pages_forget_prompt(q);
	pages_trim(q);
	q->on_device.old = q->session->device;
	e = seq_check_pages(q);
	if (e < 0)
		return e;
	if (at_home(q, p)) {
		q->bounded = true;
		return 0;
	}
	e = adopt(q->session, p, q, &state);
	if (e == 0)
		install(q, p, state);
	return e;
}

/* ---- the swap -------------------------------------------------------------------------------- */

/* All sequences that run the session's policy, or none. */
static int adopt_all(struct skv_session *s, struct policy *p)
{
	void **states = calloc(s->n_seqs + 1u, sizeof(*states));
	uint32_t n = 0;
	int e = states ? 0 : fail(-ENOMEM, "out of memory");

	for (struct skv_seq *q = s->seqs; q && e == 0; q = q->next)
		if (!q->own)
			e = adopt(s, p, q, &states[n++]);
	n = 0;
	for (struct skv_seq *q = s->seqs; q && states; q = q->next) {
		if (q->own)
			continue;
		if (e == 0)
			install(q, p, states[n++]);
		else
			free(states[n++]);
	}
	free(states);
	return e;
}

static int swap(struct skv_session *s, const struct skv_msg_policy *m, int fd)
{
	struct policy *p;
	int e;

	if (is_policy(s->policy, m)) {
		s->policy->generation = m->generation; /* the swap was about others */
		return 0;
	}
	e = policy_get(s, m, fd, &p);
	if (e < 0)
		return e;
	e = adopt_all(s, p);
	if (e < 0) {
		policy_put(s->client, p);
		return e;
	}
	policy_put(s->client, s->policy);
	s->policy = p;
	p->generation = m->generation;
	s->stats.policy_swaps++;
	return 0;
}

void policy_follow(struct skv_session *s)
{
	struct skv_client *c = s->client;
	uint64_t generation = atomic_load_explicit(&c->control->policy_generation, memory_order_acquire);
	struct skv_msg_session ask = {.session = s->id};
	uint32_t wait = atomic_load_explicit(&c->timeout_ms, memory_order_relaxed);
	const struct skv_msg_policy *m;
	struct request *r;
	int e;

	if (!s->policy_get) {
		if (generation == s->seen_generation ||
		    conn_post(c, SKV_MSG_POLICY_GET, &ask, sizeof(ask), &s->policy_get) < 0)
			return;
		s->seen_generation = generation;
		conn_wait(c, s->policy_get, now_ms() + (wait < SWAP_WAIT_MS ? wait : SWAP_WAIT_MS));
	}
	if (!request_done(c, s->policy_get))
		return;
	r = s->policy_get;
	s->policy_get = NULL;
	m = r->body;
	e = r->error ? fail(r->error, "%s", r->text) : swap(s, m, r->fds[0]);
	snprintf(s->policy_error, sizeof(s->policy_error), "%s", e < 0 ? skv_last_error() : "");
	if (!r->error)
		policy_ack(s, m->generation, e, s->policy_error);
	request_free(r);
}

/* ---- policies of sequences ------------------------------------------------------------------- */

static int ask_for(struct skv_session *s, const char *spec, struct policy **ret)
{
	char name[SKV_NAME_MAX], text[SKV_TEXT_MAX];
	struct skv_msg_spec m = {0};
	struct request *r;
	int e;

	if (skv_spec_name(spec, name, text, sizeof(text)) < 0)
		return fail(-EINVAL, "%s", text);
	skv_wire_string(m.spec, sizeof(m.spec), spec);
	e = conn_call(s->client, SKV_MSG_POLICY_FIND, &m, sizeof(m), &r);
	if (e < 0)
		return e;
	e = policy_get(s, r->body, r->fds[0], ret);
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
		return fail(-EBUSY, "the sequence is in an open step");
	e = seq_settle_fork(q);
	if (e == 0 && spec)
		e = ask_for(s, spec, &own);
	if (e < 0)
		return e;
	p = own ? own : s->policy;
	if (p != seq_policy(q)) {
		e = q->len > 0 ? adopt(s, p, q, &state) : 0; /* a new one is nobody's to take over */
		if (e < 0) {
			policy_put(s->client, own);
			return e;
		}
		install(q, p, state);
	}
	policy_put(s->client, q->own);
	q->own = own;
	return 0;
}

int skv_seq_policy(struct skv_seq *q, const char *spec)
{
	struct skv_session *s = q->session;
	int e;

	pthread_mutex_lock(&s->lock);
	e = give_policy(q, spec);
	pthread_mutex_unlock(&s->lock);
	return e;
}

const char *skv_seq_policy_spec(const struct skv_seq *q)
{
	return seq_policy(q)->spec;
}

/* ---- looked at ------------------------------------------------------------------------------- */

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
	return s->policy_error;
}
