/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/session/policy-config.c - makes a policy: loads its plugin, parses its spec, and plans the model's layers.
 *
 * A plugin is loaded once for all sessions of a connection, and is kept after its last use for a swap back to it.
 */
#include "libclient/session/policy-config.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/fd.h"
#include "common/spec.h"
#include "kernels/select.h"
#include "libclient/conn/conn.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/ranks/ranks.h"
#include "libclient/seq.h"

/* ---- plugins --------------------------------------------------------------------------------- */

#define PLUGINS_KEPT 16 /* maximum number of plugins without users that stay loaded for a swap back */

struct plugin {
	struct plugin *next;
	uint32_t id; /* the daemon's id of the plugin */
	unsigned users;
	void *handle;
	const struct skv_policy *block;
};

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

/* Count one more user of the plugin; load the plugin from fd if it is not loaded yet. fd is borrowed. */
static int plugin_load(struct skv_client *c, uint32_t id, int fd, struct plugin **ret)
{
	char text[SKV_TEXT_MAX];
	struct plugin *p = plugin_find(c, id);
	int e;

	if (p) {
		*ret = p;
		return 0;
	}
	/* a sealed file cannot change, so it is the one that the daemon has probed */
	if (!skv_fd_is_sealed(fd))
		return error_set(-EPROTO, "the daemon sent a policy's file that is not sealed");
	p = calloc(1, sizeof(*p));
	if (!p)
		return error_set(-ENOMEM, "out of memory");
	e = skv_policy_dlopen(fd, &p->block, &p->handle, text, sizeof(text));
	if (e < 0) {
		free(p);
		return error_set(e, "%s", text);
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

/* Count one user less. If more than PLUGINS_KEPT plugins have no user, unload the oldest. The list is newest first. */
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

/* ---- policies -------------------------------------------------------------------------------- */

struct policy *policy_put(struct skv_client *c, struct policy *p)
{
	if (!p || --p->users > 0)
		return NULL;
	if (p->plugin)
		plugin_release(c, p->plugin);
	features_unmake(p);
	free(p->config);
	free(p->spec);
	free(p);
	return NULL;
}

void policy_leave(struct skv_session *s, struct policy *p)
{
	uint32_t i = 0;

	if (!p || p == s->policy) {
		policy_put(s->client, p);
		return;
	}
	while (i < POLICIES_KEPT - 1 && s->kept[i] != p)
		i++;
	policy_put(s->client, s->kept[i]); /* the same policy, or the one that was left longest ago */
	memmove(&s->kept[1], &s->kept[0], i * sizeof(*s->kept));
	s->kept[0] = p;
}

static uint32_t state_tokens(const struct skv_shape *sh, const struct skv_plan *plan)
{
	struct skv_shape shape = *sh;

	shape.sketch_bits = plan->sketch_bits;
	shape.value_bits = plan->value_bits;
	return plan->sketch_bits ? skv_sketch_tokens(&shape) : SKV_PAGE_TOKENS * SKV_PAGE_TOKENS;
}

/* Can the session's kernels do what the layer's plan says? */
static int check_kernels(const struct skv_session *s, const struct policy *p, uint32_t layer)
{
	if (p->plan[layer].value_bits && !s->kernels->decode_sketches)
		return error_set(-ENOTSUP, "policy %s attends to tokens by values of %u bits, which the kernels \"%s\" cannot", p->block->name,
		                 p->plan[layer].value_bits, s->kernels->name);
	return 0;
}

/* Parse and check the policy's spec, plan the layers, and make what features need for the policy. */
static int configure(struct skv_session *s, struct policy *p)
{
	const struct skv_model *model = &s->model;
	char text[SKV_TEXT_MAX];
	int e, n;

	p->config = calloc(1, p->block->config_size + 1u);
	if (!p->config)
		return error_set(-ENOMEM, "out of memory");
	e = skv_spec_parse(p->block, p->given, model, p->config, text, sizeof(text));
	if (e < 0)
		return error_set(e, "%s", text);
	n = skv_spec_print(p->block, p->config, NULL, 0);
	p->spec = malloc((size_t)n + 1);
	if (!p->spec)
		return error_set(-ENOMEM, "out of memory");
	skv_spec_print(p->block, p->config, p->spec, (size_t)n + 1);
	e = skv_policy_plan(p->block, p->config, model, p->plan, text, sizeof(text));
	if (e < 0)
		return error_set(e, "%s", text);
	p->state_version = p->block->state_version;
	for (uint32_t layer = 0; layer < model->n_layers; layer++) {
		e = check_kernels(s, p, layer);
		if (e < 0)
			return e;
		const uint32_t tokens = p->state_tokens[layer] = state_tokens(&s->shape, &p->plan[layer]);

		if (plan_has_state(&p->plan[layer]) && (p->n_state_layers++ == 0 || tokens < p->least_state_tokens))
			p->least_state_tokens = tokens;
		p->state_version += (p->plan[layer].sketch_bits + 16 * p->plan[layer].value_bits) * (layer + 1) * 0x9e3779b1u;
		p->n_evicting += p->plan[layer].evict.granularity > 0;
		p->n_evicting_pages += p->plan[layer].evict.granularity > 1;
		p->n_compress += p->plan[layer].compress.kind > 0;
	}
	e = ranks_check(s, p);
	return e < 0 ? e : features_make(s, p);
}

bool policy_is(const struct policy *p, const struct skv_msg_policy *m)
{
	return p && p->plugin->id == m->plugin && !strcmp(p->given, m->spec);
}

/*
 * Find a policy that the session or one of its sequences already runs, or that the session keeps. Sequences with one
 * policy are one policy batch.
 */
static struct policy *find(const struct skv_session *s, const struct skv_msg_policy *m)
{
	if (policy_is(s->policy, m))
		return s->policy;
	for (const struct skv_seq *q = s->seqs; q; q = q->next)
		if (policy_is(q->own, m))
			return q->own;
	for (uint32_t i = 0; i < POLICIES_KEPT; i++)
		if (policy_is(s->kept[i], m))
			return s->kept[i];
	return NULL;
}

int policy_get(struct skv_session *s, const struct skv_msg_policy *m, int fd, struct policy **ret)
{
	static _Atomic uint64_t serials;
	struct policy *p = find(s, m);
	int e;

	*ret = p;
	if (p) {
		p->users++;
		return 0;
	}
	p = calloc(1, sizeof(*p) + s->model.n_layers * sizeof(*p->plan));
	if (!p)
		return error_set(-ENOMEM, "out of memory");
	*ret = p;
	p->users = 1;
	p->serial = atomic_fetch_add(&serials, 1);
	p->generation = m->generation;
	memcpy(p->given, m->spec, sizeof(p->given));
	p->fingerprint = skv_spec_fingerprint(p->given);
	e = plugin_load(s->client, m->plugin, fd, &p->plugin);
	if (e == 0) {
		p->block = p->plugin->block;
		e = configure(s, p);
	}
	return e;
}

void policy_ack(struct skv_session *s, uint64_t generation, int error, const char *text)
{
	struct skv_msg_policy_ack m = {.session = s->id, .error = -error, .generation = generation};

	skv_wire_string(m.text, sizeof(m.text), text);
	conn_post(s->client, SKV_MSG_POLICY_ACK, &m, sizeof(m), NULL);
}
