/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of layers that evict: what such a layer attends to, how much memory it has, and that nothing is lost or mixed
 * up when sequences fork, change hands and policies.
 *
 * The model is one set of tokens for each layer and kv head. How many tokens or pages a layer has after each step is
 * computed here from the rule in policy.h. Which ones go is the policy's choice, which the library reports a step
 * later: they must have been in the set. Under any policy, attention must equal that over the set in double precision.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"

#define TOKENS 900u
#define T SKV_PAGE_TOKENS

/* A policy, and what follows from its spec. */
struct rule {
	const char *spec;
	uint32_t granularity; /* 0: it retains all */
	struct skv_budget budget;
	uint32_t floor, slack, dense;
	bool at_prompt_end, pins;
};
static const struct rule rules[] = {
	{.spec = "full"},
	{.spec = POLICY_SCORES "?budget=40&dense=0", .granularity = 1, .budget = {.count = 40}, .slack = 1},
	{.spec = POLICY_SCORES "?budget=0.25&dense=2", .granularity = 1, .budget = {.share = 0.25f}, .floor = 128,
	 .slack = 1, .dense = 2},
	{.spec = POLICY_DISSIMILAR "?budget=48&lambda=0.1&window=8&pool=7&interval=20&dense=0", .granularity = 1,
	 .budget = {.count = 48}, .slack = 20,
	 .at_prompt_end = true},
	{.spec = POLICY_OBSERVATION "?budget=50&window=10&pool=5&interval=0&dense=0", .granularity = 1,
	 .budget = {.count = 50},
	 .slack = SKV_MAX_TOKENS, .at_prompt_end = true},
	{.spec = POLICY_EVICTED_PAGES "?variant=paper&budget=7&alpha=0.03&ratio=0.5&dense=0", .granularity = T,
	 .budget = {.count = 7},
	 .slack = 1, .pins = true},
	{.spec = POLICY_EVICTED_PAGES "?variant=ratio&budget=12&alpha=0.0001&ratio=0.3&dense=1", .granularity = T,
	 .budget = {.count = 12},
	 .slack = 1, .dense = 1, .pins = true},
};
enum { FULL, H2O, H2O_SHARE, RKV, SNAPKV, RAAS, RAAS_RATIO, RULES };

/* A sequence, and what must be retained of it. */
struct kept {
	struct refmodel_seq q;
	uint32_t leading; /* tokens of its first prompts */
	bool prompted;    /* the last step was a prompt's, or took the sequence over */
	bool evicted;     /* some layer has evicted something */
	struct layer {
		uint32_t granularity; /* of the slot metadata */
		bool mapped;    /* positions in them are those of tokens */
		bool known;     /* `there` is what is there, except for what the last step evicted */
		bool chose;     /* ... if it evicted */
		uint32_t live, extent; /* slots */
		bool *there; /* [n_kv_heads][TOKENS] */
	} layer[REFMODEL_MAX_LAYERS];
};

static struct refmodel w;
static const struct rule *rule;
static uint64_t compared, unknown;

static void setup(void)
{
	client_begin(NULL);
	refmodel_model(&w.model, "keep", rnd_below(4), TOKENS);
}

/* Each test of a loop has random numbers of its own. */
static void open_with(const struct rule *r, int i)
{
	for (int j = 0; j < 1000 * i; j++)
		rnd64();
	rule = r;
	OK(skv_open(client, &w.model, r->spec, &w.session));
}

static void kept_new(struct kept *k, const char *name)
{
	struct skv_seq *seq;

	OK(skv_seq_new(w.session, name, 0, &seq));
	*k = (struct kept){0};
	refmodel_seq_init(&w, &k->q, seq, TOKENS);
	for (uint32_t l = 0; l < w.model.n_layers; l++)
		k->layer[l] = (struct layer){.known = true, .there = calloc(w.model.n_kv_heads * TOKENS, sizeof(bool))};
}

static void kept_copy(struct kept *to, const struct kept *from, struct skv_seq *seq)
{
	*to = *from;
	refmodel_seq_copy(&w, &to->q, &from->q, seq);
	for (uint32_t l = 0; l < w.model.n_layers; l++) {
		to->layer[l].there = calloc(w.model.n_kv_heads * TOKENS, sizeof(bool));
		memcpy(to->layer[l].there, from->layer[l].there, w.model.n_kv_heads * TOKENS * sizeof(bool));
	}
}

static void kept_free(struct kept *k)
{
	for (uint32_t l = 0; l < w.model.n_layers; l++)
		free(k->layer[l].there);
	refmodel_seq_deinit(&k->q);
}

/* ---- the rule -------------------------------------------------------------------------------- */

static uint32_t unit_of(uint32_t layer)
{
	return layer < rule->dense ? 0 : rule->granularity;
}

static uint32_t units_of(uint32_t unit, uint32_t n)
{
	return (n + unit - 1) / unit;
}

/* The layer has attended to `extent` slots in a decode step that made the sequence n tokens long: how many stay? */
static void choose(const struct kept *k, struct layer *l, uint32_t n)
{
	uint32_t u = units_of(l->granularity, l->extent), keep, pinned = rule->pins ? units_of(l->granularity, k->leading) : 0;

	l->live = l->extent;
	l->chose = false;
	if (l->extent % l->granularity)
		return;
	keep = skv_budget_of(rule->budget, units_of(l->granularity, n + 1), rule->floor) - 1;
	if (pinned && keep < pinned + 1)
		keep = pinned + 1;
	if (u < (uint64_t)keep + rule->slack && !(rule->at_prompt_end && k->prompted && u > keep))
		return;
	l->live = keep * l->granularity;
	l->chose = true;
}

/* The policy is about to step with the sequence. */
static void take_over(struct kept *k)
{
	for (uint32_t i = 0; i < w.model.n_layers; i++) {
		struct layer *l = &k->layer[i];

		if (l->granularity == unit_of(i))
			continue;
		if (l->chose) /* nothing reports what is left */
			l->known = l->chose = false;
		l->granularity = unit_of(i);
		l->mapped = l->known && l->live == k->q.len;
		l->extent = l->live;
		k->prompted |= k->q.len > 0;
	}
}

/* ---- a step ---------------------------------------------------------------------------------- */

static struct {
	uint32_t n; /* units */
	bool token[TOKENS];
} seen[REFMODEL_MAX_LAYERS][8];
static bool give_up;

/* What layers that evict attended to in the open step. */
static void look(void)
{
	uint32_t ids[TOKENS];

	for (uint32_t l = 0; l < w.model.n_layers && !give_up; l++)
		for (uint32_t h = 0; h < w.model.n_kv_heads && unit_of(l); h++) {
			struct skv_selection_info looked = {.size = sizeof(looked)};

			OK(skv_selection(w.session, l, 0, h, &looked, ids, TOKENS));
			ck_assert_uint_eq(looked.attend, unit_of(l) > 1 ? SKV_ATTEND_PAGES : SKV_ATTEND_TOKENS);
			ck_assert_uint_eq(looked.rows, w.model.n_kv_heads);
			memset(&seen[l][h], 0, sizeof(seen[l][h]));
			seen[l][h].n = looked.n;
			for (uint32_t i = 0; i < looked.n; i++)
				for (uint32_t t = ids[i] * unit_of(l); t < (ids[i] + 1) * unit_of(l) &&
				     t < looked.len; t++)
					seen[l][h].token[t] = true;
		}
	if (give_up)
		skv_step_abort(w.session);
}

static void compare(struct kept *k, uint32_t layer, uint32_t n, const bool *visible, uint32_t kv, const float *out)
{
	uint32_t group = w.model.n_heads / w.model.n_kv_heads;

	for (uint32_t h = kv * group; h < (kv + 1) * group; h++)
		refmodel_compare(&w, &k->q, layer, n, h, visible, out + h * w.model.head_dim);
	compared++;
}

/* The layer's set with a new token, of n in all. */
static void check_decode(struct kept *k, uint32_t layer, uint32_t n, const float *out)
{
	struct layer *l = &k->layer[layer];

	l->extent = l->live + 1;
	for (uint32_t kv = 0; kv < w.model.n_kv_heads; kv++) {
		bool *there = l->there + kv * TOKENS;

		there[n - 1] = true;
		if (l->granularity)
			ck_assert_uint_eq(seen[layer][kv].n, units_of(l->granularity, l->extent));
		if (l->granularity && l->mapped) {
			uint32_t tokens = 0;

			for (uint32_t t = 0; t < n; t++) {
				tokens += seen[layer][kv].token[t];
				ck_assert_msg(there[t] || !seen[layer][kv].token[t], "layer %u, head %u: %u was gone",
				              layer, kv, t);
				ck_assert_msg(l->chose || !there[t] || seen[layer][kv].token[t], "layer %u, head %u: %u is gone",
				              layer, kv, t);
				if (rule->pins && t < k->leading && there[t])
					ck_assert(seen[layer][kv].token[t]);
				there[t] = seen[layer][kv].token[t];
			}
			ck_assert_uint_eq(tokens, l->extent);
		} else if (l->chose) {
			l->known = false;
		}
		if (l->known)
			compare(k, layer, n, there, kv, out);
		else
			unknown++;
	}
	l->chose = false;
	l->live = l->extent;
	if (l->granularity)
		choose(k, l, n);
}

static void check_prompt(struct kept *k, uint32_t layer, uint32_t n, uint32_t more, const float *out)
{
	struct layer *l = &k->layer[layer];
	size_t width = (size_t)w.model.n_heads * w.model.head_dim;

	if (l->chose && !(l->granularity && l->mapped))
		l->known = false;
	for (uint32_t kv = 0; kv < w.model.n_kv_heads; kv++) {
		bool *there = l->there + kv * TOKENS;

		for (uint32_t i = 0; i < more; i++) {
			there[n - more + i] = true;
			if (l->known && !l->chose && (i == 0 || i == more - 1 || i == more / 2))
				compare(k, layer, n - more + i + 1, there, kv, out + i * width);
		}
	}
	l->extent = l->live = l->live + more;
}

static void check_pages(const struct kept *k)
{
	uint64_t resident, total, expect = 0;

	for (uint32_t l = 0; l < w.model.n_layers; l++)
		expect += skv_pages_of(k->layer[l].extent);
	skv_seq_pages(k->q.seq, &resident, &total);
	ck_assert_uint_eq(total, (uint64_t)skv_pages_of(k->q.len) * w.model.n_layers);
	ck_assert_uint_eq(resident, expect);
}

static void step(struct kept *k, uint32_t n, bool prompt)
{
	uint64_t content[TOKENS];
	size_t size = (size_t)n * w.model.n_heads * w.model.head_dim;
	float *out = calloc(w.model.n_layers * size, sizeof(*out));

	for (uint32_t i = 0; i < n; i++)
		content[i] = refmodel_content(rnd64(), k->q.len + i);
	take_over(k);
	OK(refmodel_run(&w, k->q.seq, content, n, prompt, out, prompt ? NULL : look));
	RUNS_SPEC(skv_policy_spec(w.session), rule->spec);
	refmodel_seq_append(&w, &k->q, content, n, prompt);
	if (prompt && k->leading == k->q.len - n)
		k->leading += n;
	for (uint32_t l = 0; l < w.model.n_layers; l++)
		if (prompt)
			check_prompt(k, l, k->q.len, n, out + l * size);
		else
			check_decode(k, l, k->q.len, out + l * size);
	k->prompted = prompt;
	check_pages(k);
	free(out);
}

static void aborted(struct kept *k)
{
	uint64_t content = refmodel_content(rnd64(), k->q.len);

	give_up = true;
	FAILS(refmodel_run(&w, k->q.seq, &content, 1, false, NULL, look), EINVAL, "no step is open");
	give_up = false;
}

static void swap_to(const struct rule *r)
{
	rule = r;
	ck_assert_int_eq(raw_policy_swap(op, r->spec), 0);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* One policy, prompts of random lengths at the beginning and in the middle, aborted steps, changes of holder. */
START_TEST(alone)
{
	struct kept k;

	open_with(&rules[_i], _i);
	kept_new(&k, "alone");
	step(&k, 1 + rnd_below(200), true);
	for (int i = 0; i < 250; i++) {
		struct skv_seq *seq;

		if (rnd_below(60) == 0)
			step(&k, 1 + rnd_below(60), true);
		if (rnd_below(30) == 0)
			aborted(&k);
		if (rnd_below(40) == 0) {
			OK(skv_seq_detach(k.q.seq));
			OK(skv_seq_attach(w.session, "alone", &seq));
			k.q.seq = seq;
			check_pages(&k);
		}
		step(&k, 1, false);
	}
	ck_assert_uint_eq(unknown, 0);
	kept_free(&k);
}
END_TEST

/* If a head has evicted a single page only, its pages cannot be put in order within the sequence's length. */
START_TEST(one_page_gone)
{
	struct kept k;

	open_with(&rules[RAAS], _i);
	kept_new(&k, "one");
	step(&k, 20, true);
	while (k.q.len < 7 * T + 1 + (uint32_t)_i)
		step(&k, 1, false);
	ck_assert_uint_eq(k.layer[0].extent, k.q.len - T);
	step(&k, 1 + rnd_below(40), true);
	for (int i = 0; i < 60; i++)
		step(&k, 1, false);
	ck_assert_uint_eq(unknown, 0);
	OK(skv_seq_drop(k.q.seq)); /* the state balances: see teardown */
	kept_free(&k);
}
END_TEST

/*
 * Pages are evicted where less than a page of tokens was evicted before: layers with slots still have as many pages as
 * there are tokens for, and a layer in order needs none more.
 */
START_TEST(pages_after_tokens)
{
	struct kept k;

	open_with(&rules[SNAPKV], _i);
	kept_new(&k, "tokens");
	step(&k, 49 + (uint32_t)_i, true);
	for (int i = 0; i < 3; i++)
		step(&k, 1, false);
	swap_to(&rules[RAAS]);
	for (int i = 0; i < 3; i++)
		step(&k, 1, false);
	step(&k, 1 + rnd_below(40), true);
	for (int i = 0; i < 60; i++)
		step(&k, 1, false);
	kept_free(&k);
}
END_TEST

/* Forks go their own ways, and each has what it must have. */
START_TEST(forks)
{
	struct kept k[4];
	uint32_t n = 1;

	open_with(&rules[_i], _i);
	kept_new(&k[0], NULL);
	step(&k[0], 100 + rnd_below(100), true);
	for (int i = 0; i < 150; i++) {
		uint32_t which = rnd_below(n);

		if (n < 4 && rnd_below(25) == 0) {
			struct skv_seq *seq;

			OK(skv_seq_fork(k[which].q.seq, NULL, SKV_ALL, &seq));
			kept_copy(&k[n++], &k[which], seq);
		}
		if (rnd_below(40) == 0)
			step(&k[which], 1 + rnd_below(30), true);
		step(&k[which], 1, false);
	}
	ck_assert_uint_eq(unknown, 0);
	while (n-- > 0)
		kept_free(&k[n]);
}
END_TEST

/* Random policies one after the other. */
START_TEST(swaps)
{
	struct kept k;

	rnd_begin((uint64_t)_i);
	open_with(&rules[FULL], _i);
	kept_new(&k, "swapped");
	step(&k, 120 + rnd_below(100), true);
	for (int i = 0; i < 12; i++) {
		if (rnd_below(5) == 0)
			step(&k, 1 + rnd_below(40), true);
		for (uint32_t n = rnd_below(40); n-- > 0;)
			step(&k, 1, false);
		swap_to(&rules[rnd_below(RULES)]);
	}
	printf("swaps: %llu rows compared, %llu of sets that are not known\n", (unsigned long long)compared,
	       (unsigned long long)unknown);
	kept_free(&k);
}
END_TEST

/* What a window has evicted is not there for the next policy, and its holes are filled again. */
START_TEST(after_holes)
{
	static const struct rule window = {.spec = POLICY_WINDOW "?budget=64&sinks=4&dense=0"};
	uint32_t n, start;
	struct kept k;

	open_with(&rules[FULL], _i);
	kept_new(&k, NULL);
	step(&k, 200, true);
	OK(raw_policy_swap(op, window.spec));
	for (n = 200; n < 230; n++) {
		uint64_t content = refmodel_content(rnd64(), n);

		OK(refmodel_run(&w, k.q.seq, &content, 1, false, NULL, NULL));
		refmodel_seq_append(&w, &k.q, &content, 1, false);
	}
	RUNS_SPEC(skv_policy_spec(w.session), window.spec);
	start = (n + 1 - 60) / T * T;
	for (uint32_t l = 0; l < w.model.n_layers; l++) {
		for (uint32_t kv = 0; kv < w.model.n_kv_heads; kv++)
			for (uint32_t t = 0; t < n; t++)
				k.layer[l].there[kv * TOKENS + t] = t < T || t >= start;
		k.layer[l].live = k.layer[l].extent = T + n - start;
	}
	k.prompted = true;
	swap_to(&rules[_i]);
	take_over(&k);
	for (uint32_t l = 0; l < w.model.n_layers; l++)
		k.layer[l].mapped = true;
	for (int i = 0; i < 80; i++)
		step(&k, 1, false);
	ck_assert_uint_eq(unknown, 0);
	kept_free(&k);
}
END_TEST

/* Pages of the client's account that are not free, by the daemon's count. */
static uint64_t taken(void)
{
	json_t *j = raw_query(op, SKV_QUERY_POOLS), *p = json_array_get(json_object_get(j, "pools"), 0);
	uint64_t n = (uint64_t)json_integer_value(json_object_get(p, "lease"));

	json_decref(j);
	return n;
}

/* However long a sequence decodes, its memory is that of the budget, by the daemon's count. */
START_TEST(flat)
{
	uint64_t content = 1, after_prompt = 0, most = 0;
	struct skv_seq *q;

	w.model.max_tokens = 4000;
	open_with(&rules[_i], _i);
	OK(skv_seq_new(w.session, NULL, 0, &q));
	for (uint32_t i = 0; i < (slowed() ? 600 : 3000); i++) {
		content = refmodel_content(3, i);
		OK(refmodel_run(&w, q, &content, 1, false, NULL, NULL));
		if (i == 300)
			after_prompt = taken();
		if (i > 300 && taken() > most)
			most = taken();
	}
	ck_assert_msg(most <= after_prompt + 5u * w.model.n_layers, "%llu pages after 300 tokens, then up to %llu",
	              (unsigned long long)after_prompt, (unsigned long long)most);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-evict");
	TCase *t = add_case(s, "keep", 120, setup, client_end, NULL);

	tcase_add_loop_test(t, alone, FULL, RULES);
	tcase_add_loop_test(t, one_page_gone, 0, T);
	tcase_add_loop_test(t, pages_after_tokens, 0, T);
	tcase_add_loop_test(t, forks, H2O, RULES);
	tcase_add_loop_test(t, swaps, 0, 8);
	tcase_add_loop_test(t, after_holes, H2O, RULES);
	t = add_case(s, "flat", 120, setup, client_end, NULL);
	tcase_add_loop_test(t, flat, H2O, H2O_SHARE);
	tcase_add_loop_test(t, flat, RKV, SNAPKV);
	tcase_add_loop_test(t, flat, RAAS, RAAS_RATIO);
	return run_suite(s);
}
