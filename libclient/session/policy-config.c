/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/policy-config.c - a policy with its parameters: parsed, checked, planned, with what its layers need. */
#include "libclient/session/policy-config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/spec.h"
#include "libclient/conn/conn.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/ranks/ranks.h"
#include "libclient/seq.h"
#include "libclient/session/plugin.h"

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

/* Parse, check and plan; make what features need. */
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
		if (plan_has_state(&p->plan[layer])) {
			uint32_t tokens = policy_state_tokens(&s->shape, &p->plan[layer]);

			p->state_tokens = p->n_state_layers++ == 0 || tokens < p->state_tokens ? tokens : p->state_tokens;
		}
		p->state_version += p->plan[layer].sketch_bits * (layer + 1) * 0x9e3779b1u;
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
 * A policy that the session or one of its sequences runs already: sequences with the same policy are one policy batch.
 */
static struct policy *find(const struct skv_session *s, const struct skv_msg_policy *m)
{
	if (policy_is(s->policy, m))
		return s->policy;
	for (const struct skv_seq *q = s->seqs; q; q = q->next)
		if (policy_is(q->own, m))
			return q->own;
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
