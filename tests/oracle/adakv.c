/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/adakv.c - adakv: like SnapKV, but the heads of a layer share its budget. The best (head, token) pairs of
 * all heads by the same scores are retained, besides the window of each head and its best tokens up to `safeguard` of
 * an equal share. No head retains more than `max_head_ratio` shares, which limits memory: a head with more candidates
 * can retain only that many best ones.
 */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

/* What the heads of a layer share. A pair's number is token * heads + head: of equal pairs the earlier one wins. */
struct share {
	uint32_t heads, n;  /* kv heads of the layer, tokens */
	uint32_t most;      /* entries of a head on average, in the next step */
	uint32_t recent;    /* latest entries of each head that are retained in any case */
	uint32_t sure;      /* with these and its best ones: retained in any case */
	uint32_t memory;    /* entries of a head in memory */
	bool *candidate;    /* pairs that compete with those of other heads */
	bool *maybe_sure;   /* candidates that may be among the `sure` ones of their head */
	bool *maybe_kept;   /* candidates that may exceed their head's memory */
	struct oracle_score *score;
	uint32_t n_sure;    /* pairs that are certainly retained */
	uint32_t open;      /* places of `sure` entries that go to one candidate or another, depending on rounding */
};

static struct share share_of(const struct oracle_step *s, const char *spec)
{
	uint32_t heads = s->model->n_kv_heads, most = oracle_budget(spec, s->n + 1, 128);
	uint32_t window = (uint32_t)oracle_number(spec, "window");
	float sure = (float)oracle_number(spec, "safeguard"), spread = (float)oracle_number(spec, "max_head_ratio");
	float whole = (float)heads - (float)(heads - 1) * sure;
	uint32_t least = (uint32_t)(sure * (float)most);
	size_t pairs = (size_t)heads * s->n + 1;
	struct share x = {.heads = heads, .n = s->n, .most = most, .recent = window - 1};

	x.sure = least > window ? least - 1 : window - 1;
	x.memory = (uint32_t)ceil((double)(whole < spread ? whole : spread) * most);
	x.candidate = calloc(pairs, sizeof(bool));
	x.maybe_sure = calloc(pairs, sizeof(bool));
	x.maybe_kept = calloc(pairs, sizeof(bool));
	x.score = calloc(pairs, sizeof(*x.score));
	return x;
}

static void share_free(struct share *x)
{
	free(x->candidate);
	free(x->maybe_sure);
	free(x->maybe_kept);
	free(x->score);
}

/*
 * A score for comparison with scores of other heads. The denominator of a softmax is slightly off, too, equally for all
 * tokens of a head; and scores that are equal here are equal in the kernel only within one head.
 */
static struct oracle_score among_heads(const struct oracle_step *s, struct oracle_score x, uint32_t kv)
{
	double slack = 0x1p-15 + s->kept_slack;

	return (struct oracle_score){
	        .lo = x.lo * (1 - slack),
	        .is = x.is * (1 + kv * 0x1p-45) + kv * 0x1p-1000,
	        .hi = x.hi * (1 + slack),
	};
}

/* Determines what a head certainly retains, and which of its tokens compete. */
static void enter(const struct oracle_step *s, struct share *x, uint32_t kv, struct oracle_head *h,
                  const struct oracle_score *score)
{
	uint32_t *sure = calloc(x->n, sizeof(*sure)), *may = calloc(x->n, sizeof(*may)), recent = 0, there = 0, in = 0;
	bool *rest = calloc(x->n, sizeof(*rest));
	uint32_t places = x->sure - x->recent, room = x->memory - x->recent;

	for (uint32_t t = x->n; t-- > 0;) {
		rest[t] = h->lives[t] == ORACLE_IN && recent == x->recent;
		recent += h->lives[t] == ORACLE_IN && !rest[t];
		there += rest[t];
	}
	oracle_ranks(s, score, rest, x->n, sure, may);
	for (uint32_t t = 0; t < x->n; t++) {
		uint32_t pair = t * x->heads + kv;
		bool stays = rest[t] && may[t] < places;

		in += stays;
		x->score[pair] = among_heads(s, score[t], kv);
		x->candidate[pair] = rest[t] && !stays && sure[t] < room;
		x->maybe_sure[pair] = x->candidate[pair] && sure[t] < places;
		x->maybe_kept[pair] = x->candidate[pair] && may[t] >= room;
		if (rest[t] && !stays && !x->candidate[pair])
			h->lives[t] = ORACLE_OUT;
	}
	x->n_sure += recent + in;
	x->open += (places < there ? places : there) - in;
	free(sure);
	free(may);
	free(rest);
}

/*
 * Determines which competing pairs are retained. A `sure` pair among them takes no other pair's place, and a pair that
 * does not fit into its head's memory leaves a place.
 */
static void compete(const struct oracle_step *s, uint32_t layer, const struct share *x)
{
	uint32_t pairs = x->heads * x->n, want = x->heads * (x->most - 1) - x->n_sure, maybe_kept = 0;
	uint32_t *sure = calloc(pairs, sizeof(*sure)), *may = calloc(pairs, sizeof(*may));

	for (uint32_t i = 0; i < pairs; i++)
		maybe_kept += x->maybe_kept[i];
	oracle_ranks(s, x->score, x->candidate, pairs, sure, may);
	for (uint32_t i = 0; i < pairs; i++) {
		uint8_t *lives = &oracle_head(s, layer, i % x->heads)->lives[i / x->heads];

		if (!x->candidate[i])
			continue;
		if (may[i] + x->open < want && !x->maybe_kept[i])
			*lives = ORACLE_IN;
		else
			*lives = sure[i] < want + maybe_kept || x->maybe_sure[i] ? ORACLE_MAY : ORACLE_OUT;
	}
	free(sure);
	free(may);
}

static void share(const struct oracle_step *s, const char *spec, uint32_t layer, const struct oracle_snap *snap)
{
	struct share x = share_of(s, spec);
	struct oracle_score *score = calloc(s->n, sizeof(*score));

	for (uint32_t kv = 0; kv < x.heads; kv++) {
		oracle_snap_scores(s, layer, kv, snap, score);
		enter(s, &x, kv, oracle_head(s, layer, kv), score);
	}
	compete(s, layer, &x);
	for (uint32_t kv = 0; kv < x.heads; kv++) {
		struct oracle_head *h = oracle_head(s, layer, kv);
		uint32_t stored = h->stored ? h->stored : h->n;

		h->stored = stored < x.memory ? stored : x.memory;
		h->steps = h->queries = h->n = 0;
		for (uint32_t t = 0; t < s->n; t++)
			h->n += h->lives[t] != ORACLE_OUT; /* known when it is observed */
	}
	free(score);
	share_free(&x);
}

static void evict(const struct oracle_step *s, const char *spec)
{
	uint32_t again = (uint32_t)oracle_number(spec, "interval"), heads = s->model->n_kv_heads;
	struct oracle_snap snap = {
	        .window = (uint32_t)oracle_number(spec, "window"),
	        .pool = (uint32_t)oracle_number(spec, "pool"),
	};
	uint32_t most = oracle_budget(spec, s->n + 1, 128) + (s->kept->prompted ? 0 : again ? again - 1 : SKV_MAX_TOKENS);

	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++) {
		uint32_t n = 0;

		for (uint32_t kv = 0; kv < heads; kv++) {
			oracle_head(s, layer, kv)->steps++;
			n += oracle_head(s, layer, kv)->n;
		}
		if (n >= heads * most)
			share(s, spec, layer, &snap);
	}
}

/* If rounding decides, a head may have more or fewer entries. */
static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	oracle_kept_tokens(s, spec, set);
	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++)
		for (uint32_t i = 0; i < set[layer].rows * set[layer].units; i++)
			if (set[layer].class[i] == ORACLE_MAY)
				set[layer].count[i / set[layer].units] = UINT32_MAX;
}

const struct oracle_policy oracle_adakv = {
        .name = "adakv", .attend = attend, .evict = evict, .granularity = 1, .prompt = oracle_snap_prompt};
