/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/verify.c - rounds: a model, sequences on it, sessions that decode them one after the other.
 *
 * A round has a seed, from which, and from the spec, everything follows; the last digit determines the length of
 * sequences, so that it is repeated with the seed, too. In a third of the rounds other policies have the sequences
 * before and after: these are named and go from session to session. run.c makes a session's steps.
 */
#include "tests/oracle/verify.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/oracle.h"
#include "tests/oracle/run.h"

#define MOST_LAYERS 64u
#define SHORT 256u /* tokens, at most, on the first level; each level doubles them */
#define LEVELS 6u
#define STEPS 3u   /* of a session, at most */

static int attend_on_host(struct skv_session *s, const struct skv_model *m, uint32_t layer, struct verify_rows *r)
{
	(void)m;
	return skv_attend(s, layer, &SKV_ATTN(.q = r->q, .k = r->k, .v = r->v, .out = r->out));
}

const struct verify_backend verify_on_host = {
        .device = SKV_DEVICE_HOST,
        .attend = attend_on_host,
        .logit_slack = 0x1p-20,
        .output_slack = 5e-5,
};

/*
 * How long sequences are, and how many steps a session makes. If evictions depend on steps, there are more steps, and
 * sequences are shorter, because each of their queries may count; pages are evicted only if prompts leave room in the
 * budget.
 */
struct scale {
	uint32_t shortest, levels, steps;
};

static struct scale scale_of(const struct verify *v)
{
	const struct oracle_policy *p = oracle_find(v->spec);

	if (p && p->compress)
		return (struct scale){SHORT, 3, 40};
	if (!p || !p->granularity)
		return (struct scale){SHORT, LEVELS, STEPS};
	return p->granularity > 1 ? (struct scale){40, 4, 150} : (struct scale){SHORT, 3, 50};
}

static uint32_t some_steps(const struct verify *v, struct oracle_case *b)
{
	return 1 + oracle_case_below(b, scale_of(v).steps);
}

/* Opens a session with the spec; if the spec names a layer that the model lacks, the model gets more layers. */
static struct skv_session *open_for_spec(struct verify *v, struct oracle_case *b)
{
	struct skv_session *s = NULL;
	int e = skv_open(v->client, &b->model, v->spec, &s);

	while (e == -EINVAL && !v->shape && b->model.n_layers * 2 <= MOST_LAYERS) {
		b->model.n_layers *= 2;
		e = skv_open(v->client, &b->model, v->spec, &s);
	}
	if (e < 0)
		verify_fails(v, "cannot be opened: %s", skv_last_error());
	return s;
}

/* Makes some steps under `spec`, with the sequences from wherever they were, and releases them again. */
static bool other_stint(struct verify *v, struct oracle_case *b, const char *spec, bool last)
{
	struct skv_session *s;
	int e = skv_open(v->client, &b->model, spec, &s);
	bool well;

	if (e < 0)
		return verify_fails(v, "%s cannot be opened: %s", spec, skv_last_error());
	well = stint(v, b, s, 1 + oracle_case_below(b, STEPS), last);
	skv_close(s);
	return well;
}

/*
 * Lets policies have the sequences in turn. `self` is a session of the verified policy, opened to find the shape. A
 * round's sequences are dropped by its last stint, or by a failing one.
 */
static bool stints(struct verify *v, struct oracle_case *b, struct skv_session *self, bool alone)
{
	const char *streaming = oracle_case_below(b, 2) ? "streaming?budget=60&sinks=20" : "streaming?budget=40", *between = streaming;
	const struct oracle_policy *p = oracle_find(v->spec);

	if (alone)
		return stint(v, b, self, some_steps(v, b), true);
	v->adopted++;
	if (p && p->compress && oracle_case_below(b, 2)) /* which evicts nothing, so that tokens are compressed again */
		between = "full";
	if (p && p->granularity) /* after other policies the order of a sequence's tokens is unknown */
		return other_stint(v, b, oracle_case_below(b, 2) ? "full" : streaming, false) &&
		       stint(v, b, self, some_steps(v, b), false) && other_stint(v, b, "full", true);
	return other_stint(v, b, "full", false) && stint(v, b, self, some_steps(v, b), false) &&
	       other_stint(v, b, between, false) && stint(v, b, self, some_steps(v, b), false) &&
	       other_stint(v, b, oracle_case_below(b, 2) ? "full" : streaming, true);
}

static bool round_of(struct verify *v, uint64_t seed)
{
	struct skv_session *self;
	struct oracle_case b;
	const struct scale scale = scale_of(v);
	bool alone, well;

	v->bad_seed = seed;
	v->rounds++;
	oracle_case_init(&b, seed, v->backend->device);
	if (b.model.kv_dtype == SKV_FP8 && oracle_find(v->spec) && oracle_find(v->spec)->compress)
		b.model.kv_dtype = SKV_BF16; /* compression needs rows of 16 bits or more */
	if (v->shape) {
		b.model.n_layers = v->shape->n_layers;
		b.model.n_heads = v->shape->n_heads;
		b.model.n_kv_heads = v->shape->n_kv_heads;
		b.model.head_dim = v->shape->head_dim;
	}
	b.reserve = 5 * scale.steps;
	b.model.max_tokens = (SHORT << LEVELS) + 2 * b.reserve;
	snprintf(b.model.name, sizeof(b.model.name), "%s", v->model);
	self = open_for_spec(v, &b);
	if (!self)
		return false;
	alone = oracle_case_below(&b, 3) > 0;
	oracle_case_make_seqs(&b, scale.shortest << seed % 10 % scale.levels);
	well = stints(v, &b, self, alone);
	skv_close(self);
	oracle_case_deinit(&b);
	return well;
}

bool verify_policy(struct verify *v)
{
	v->known = oracle_find(v->spec) != NULL;
	for (uint64_t seed = v->seed; v->done < v->cases; seed += 10) {
		uint32_t sparse = v->sparse;

		if (!round_of(v, seed))
			return false;
		/* sequences that fit into a budget as a whole say little about selection */
		if (v->sparse == sparse && seed % 10 < LEVELS - 1)
			seed++;
	}
	return true;
}
