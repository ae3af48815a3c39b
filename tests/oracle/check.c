/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/check.c - see check.h and verify.h. */
#include "tests/oracle/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/oracle.h"
#include "tests/oracle/compress.h"
#include "tests/oracle/run.h"
#include "tests/ref/attention.h"

/* ---- the oracle's view -------------------------------------------------------------------------- */

static struct oracle_step step_of(const struct verify *v, const struct oracle_case *b, const struct oracle_case_seq *q,
                                  uint32_t n)
{
	bool device = v->backend->device != SKV_DEVICE_HOST;

	return (struct oracle_step){
	        .model = &b->model,
	        .n = n,
	        .k = (const float *const *)q->k,
	        .v = (const float *const *)q->v,
	        .q = (const float *const *)q->q,
	        .hole = q->hole,
	        .kept = q->kept,
	        .logit_slack = v->backend->logit_slack,
	        .kept_slack = v->backend->kept_slack,
	        /*
	         * a device stores scores as 16-bit differences to the largest one so far: equal scores stay equal only
	         * at 0
	         */
	        .ties_hold = !device || q->kind == BED_SAME || q->kind == BED_ZERO,
	        .device_rounds = v->backend->device_rounds,
	        .width = v->identity,
	};
}

void check_ready(struct verify *v, struct oracle_case *b, struct skv_session *s, uint32_t seq, bool prompt)
{
	const char *spec = skv_policy_spec(s);
	struct oracle_case_seq *q = &b->seq[seq];
	struct oracle_step step = step_of(v, b, q, q->n);

	compressed_follow(q, &step, oracle_find(spec), spec, !prompt);
}

/* ---- what kv heads retain ----------------------------------------------------------------------- */

/* Does, or did, a policy evict from each of the layer's kv heads on its own? */
static bool keeps(const struct oracle_case_seq *q, uint32_t layer)
{
	return q->kept && layer >= q->kept->first;
}

void check_taken(struct verify *v, struct oracle_case *b, struct skv_session *s, uint32_t seq)
{
	const struct oracle_policy *p = oracle_find(skv_policy_spec(s));
	struct oracle_case_seq *q = &b->seq[seq];
	struct oracle_step step = step_of(v, b, q, q->made ? q->n : 0);

	if (!p || !p->granularity || q->kept)
		return;
	q->kept = oracle_kept_new(&step, p->granularity, (uint32_t)oracle_number(skv_policy_spec(s), "dense"), q->cap);
	q->kept->prompt = q->prompt;
	q->kept->prompted = true; /* a policy that takes a sequence over evicts at once */
}

void check_prompt(struct verify *v, struct oracle_case *b, struct skv_session *s, uint32_t seq, uint32_t n,
                  uint32_t rows)
{
	const char *spec = skv_policy_spec(s);
	const struct oracle_policy *p = oracle_find(spec);
	struct oracle_case_seq *q = &b->seq[seq];
	struct oracle_step step = step_of(v, b, q, n);

	if (!q->kept)
		return;
	oracle_kept_add(q->kept, n);
	if (p->prompt)
		p->prompt(&step, spec, rows);
}

/* Entries in memory. */
static uint32_t stored(const struct oracle_head *h)
{
	return h->stored ? h->stored : h->n;
}

/* Tokens in memory of each of the layer's heads. */
static uint32_t slots(const struct oracle_case *b, const struct oracle_case_seq *q, uint32_t layer)
{
	const struct oracle_head *h = &q->kept->head[layer * b->model.n_kv_heads];
	uint32_t last = q->n % q->kept->granularity;

	return stored(h) * q->kept->granularity - (last ? q->kept->granularity - last : 0);
}

/* Pages of K and V that the policy has given back after the step, less the pages of compressed tokens. */
static uint64_t pages_left_out(const struct oracle_case *b, const struct oracle_case_seq *q,
                               const struct oracle_step *step)
{
	uint64_t holes = 0;

	for (uint32_t layer = 0; layer < b->model.n_layers; layer++)
		if (keeps(q, layer))
			holes += skv_pages_of(step->n) - skv_pages_of(stored(oracle_head(step, layer, 0)) * q->kept->granularity);
		else
			for (uint32_t page = 0; page < skv_pages_of(step->n); page++)
				holes += q->hole[layer][page];
	/* pages of compressed tokens come on top, perhaps more than those given back */
	for (uint32_t layer = 0; layer < b->model.n_layers; layer++)
		if (q->compress[layer].coded > 0)
			holes += (uint64_t)(q->compress[layer].coded - q->compress[layer].first) / SKV_PAGE_TOKENS - q->compress[layer].pages;
	return holes;
}

/* Is the number of pages that hold the sequence's compressed tokens known? */
static bool pages_known(const struct oracle_case *b, const struct oracle_case_seq *q)
{
	for (uint32_t layer = 0; layer < b->model.n_layers; layer++)
		if (q->compress[layer].coded > 0 && q->compress[layer].pages == UINT32_MAX)
			return false;
	return !q->holes_unknown;
}

/* ---- observations ------------------------------------------------------------------------------- */

struct take take_new(const struct oracle_case *b)
{
	size_t n = (size_t)b->n_seqs * b->model.n_layers, width = (size_t)b->model.n_heads * b->model.head_dim;
	struct take t = {.seen = calloc(n, sizeof(*t.seen))};

	for (size_t i = 0; i < n; i++)
		t.seen[i].out = calloc(width, sizeof(float));
	return t;
}

void take_free(struct take *t, const struct oracle_case *b)
{
	for (size_t i = 0; i < (size_t)b->n_seqs * b->model.n_layers; i++) {
		free(t->seen[i].in);
		free(t->seen[i].out);
	}
	free(t->seen);
}

struct seen *take_at(const struct take *t, const struct oracle_case *b, uint32_t seq, uint32_t layer)
{
	return &t->seen[(size_t)seq * b->model.n_layers + layer];
}

static uint32_t tokens_of_entry(const struct seen *x, uint32_t entry)
{
	bool pages = x->attended.attend == SKV_ATTEND_DENSE || x->attended.attend == SKV_ATTEND_PAGES;
	uint32_t first = entry * SKV_PAGE_TOKENS;

	if (!pages)
		return 1;
	return x->attended.len - first < SKV_PAGE_TOKENS ? x->attended.len - first : SKV_PAGE_TOKENS;
}

static uint32_t page_of_entry(const struct seen *x, uint32_t entry)
{
	return x->units == x->attended.len ? entry / SKV_PAGE_TOKENS : entry;
}

static bool look(struct verify *v, struct skv_session *s, uint32_t layer, uint32_t item, uint32_t n, struct seen *x,
                 uint32_t row, uint32_t *ids)
{
	int e = skv_selection(s, layer, item, row, &x->attended, ids, n);

	if (e < 0)
		return verify_fails(v, "layer %u: what it attended to: %s", layer, skv_last_error());
	if (row == 0) {
		x->units = oracle_units((enum oracle_how)x->attended.attend, n);
		x->in = calloc((size_t)x->attended.rows * x->units, sizeof(*x->in));
	}
	for (uint32_t i = 0; i < x->attended.n; i++) {
		if (i >= n || ids[i] >= x->units || (i > 0 && ids[i] <= ids[i - 1]))
			return verify_fails(v, "layer %u, list %u: number %u is %u, expected to ascend below %u", layer, row, i,
			                    ids[i], x->units);
		x->in[(size_t)row * x->units + ids[i]] = true;
	}
	return true;
}

bool check_seen(struct verify *v, struct skv_session *s, uint32_t layer, uint32_t item, uint32_t n, struct seen *x)
{
	uint32_t *ids = calloc(n, sizeof(*ids)), row = 0;
	bool well;

	x->attended = (struct skv_selection_info){.size = sizeof(x->attended)};
	do
		well = look(v, s, layer, item, n, x, row, ids);
	while (well && ++row < x->attended.rows);
	free(ids);
	if (well && x->attended.len != n)
		well = verify_fails(v, "layer %u: the sequence has %u tokens, expected %u", layer, x->attended.len, n);
	return well;
}

/* ---- outputs ------------------------------------------------------------------------------------ */

static const char *kind_name(enum oracle_case_kind kind)
{
	static const char *const names[] = {
	        "random keys", "large scores", "needles", "equal keys", "a query of zeros", "few different keys",
	        "few different pages"};

	return names[kind];
}

/* Records what is wrong with a layer of a sequence. */
__attribute__((format(printf, 4, 5)))
static bool wrong(struct verify *v, const struct oracle_case_seq *q, uint32_t layer, const char *fmt, ...)
{
	char what[300];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return verify_fails(v, "layer %u, sequence of %u tokens, %s: %s", layer, q->n + 1, kind_name(q->kind), what);
}

/* The list of the q head. */
static uint32_t row_of(const struct skv_model *m, const struct seen *x, uint32_t head)
{
	return (uint32_t)((uint64_t)head * x->attended.rows / m->n_heads);
}

/*
 * Which tokens are visible to the head: those in its list; under another policy, which does not evict from single
 * heads, all in memory. False: it is unknown which.
 */
static bool see(const struct oracle_case *b, const struct oracle_case_seq *q, bool own, uint32_t layer, const struct seen *x,
                uint32_t head, bool *visible)
{
	const struct skv_model *m = &b->model;
	uint32_t n = q->n + 1, unit = x->units == n ? 1 : SKV_PAGE_TOKENS;
	const struct oracle_head *h;

	if (own || !keeps(q, layer)) {
		for (uint32_t t = 0; t < n; t++)
			visible[t] = x->in[(size_t)row_of(m, x, head) * x->units + t / unit];
		return true;
	}
	h = &q->kept->head[layer * m->n_kv_heads + head / (m->n_heads / m->n_kv_heads)];
	if (h->stored > h->n)
		return false; /* inactive before, active under other policies */
	for (uint32_t t = 0; t < n; t++) {
		uint32_t u = t / q->kept->granularity;

		if (u < h->units && h->lives[u] == ORACLE_MAY)
			return false;
		visible[t] = u >= h->units || h->lives[u] == ORACLE_IN;
	}
	return true;
}

/*
 * Compares the output of a q head with what is expected. slack[head_dim]: possible error, besides that of arithmetic on
 * the backend.
 */
static bool compare_head(struct verify *v, const struct oracle_case_seq *q, uint32_t layer, uint32_t head, uint32_t dim, const float *out,
                         const double *expected, const double *slack)
{
	bool well = true;

	for (uint32_t d = 0; d < dim && well; d++) {
		double off = fabs(out[d] - expected[d]), most = v->backend->output_slack + slack[d];

		if (slack[d] > 0)
			v->decompressed = fmax(v->decompressed, off / most);
		else
			v->worst = fmax(v->worst, off);
		if (!(off <= most))
			well = wrong(v, q, layer, "q head %u: output %u is %g, attention over what was attended to gives %g, within %g",
			             head, d, out[d], expected[d], most);
	}
	return well;
}

/* Checks the output of one q head of token `at`, over the visible tokens up to it. */
static bool check_head(struct verify *v, const struct oracle_case *b, const struct oracle_case_seq *q, uint32_t layer, uint32_t head,
                       uint32_t at, const bool *visible, const float *out)
{
	const struct skv_model *m = &b->model;
	uint32_t n = at + 1, dim = m->head_dim, kv = head / (m->n_heads / m->n_kv_heads);
	const float *query = q->q[layer] + ((size_t)at * m->n_heads + head) * dim;
	double expected[SKV_MAX_HEAD_DIM], slack[SKV_MAX_HEAD_DIM], *weight = calloc(n, sizeof(*weight));

	ref_attention(query, q->k[layer] + (size_t)kv * dim, q->v[layer] + (size_t)kv * dim, n, m->n_kv_heads * dim, dim,
	              (struct ref_softmax){.scale = 1 / sqrt(dim)}, visible, expected, weight);
	compressed_slack(m, q, layer, kv, query, n, weight, expected, slack);
	free(weight);
	return compare_head(v, q, layer, head, dim, out, expected, slack);
}

/* Checks the newest token's output in a layer that attends to unlisted tokens, too, with quantized values. */
static bool check_sketched_head(struct verify *v, const struct oracle_case *b, const struct oracle_case_seq *q, uint32_t layer, uint32_t head,
                              const bool *listed, const float *out)
{
	const struct oracle_step step = step_of(v, b, q, q->n + 1);
	double expected[SKV_MAX_HEAD_DIM], slack[SKV_MAX_HEAD_DIM];

	oracle_sketched_output(&step, layer, head, listed, expected, slack);
	return compare_head(v, q, layer, head, b->model.head_dim, out, expected, slack);
}

static bool check_output(struct verify *v, const struct oracle_case *b, const struct oracle_case_seq *q, bool own, uint32_t layer,
                         const struct seen *x)
{
	const struct skv_model *m = &b->model;
	bool *visible = calloc(q->n + 1, sizeof(*visible)), well = true;

	if (!compressed_known(v, q, layer)) {
		v->unchecked = true;
		free(visible);
		return true;
	}
	for (uint32_t head = 0; head < m->n_heads && well; head++) {
		if (!see(b, q, own, layer, x, head, visible))
			break;
		well = x->attended.value_bits ? check_sketched_head(v, b, q, layer, head, visible, x->out + head * m->head_dim)
		                              : check_head(v, b, q, layer, head, q->n, visible, x->out + head * m->head_dim);
	}
	free(visible);
	return well;
}

bool check_prompt_rows(struct verify *v, const struct oracle_case *b, uint32_t seq, uint32_t layer, uint32_t n,
                       const float *out)
{
	const struct oracle_case_seq *q = &b->seq[seq];
	const struct skv_model *m = &b->model;
	bool *visible = calloc(q->n + n, sizeof(*visible)), well = true;

	for (uint32_t t = 0; t < q->n + n; t++)
		visible[t] = !q->hole[layer][t / SKV_PAGE_TOKENS];
	for (uint32_t i = 0; i < n * m->n_heads && well && compressed_known(v, q, layer); i++)
		well = check_head(v, b, q, layer, i % m->n_heads, q->n + i / m->n_heads, visible,
		                  out + (size_t)i * m->head_dim);
	free(visible);
	return well;
}

/* ---- sets --------------------------------------------------------------------------------------- */

/* Compares one list with what it must be. */
static bool check_list(struct verify *v, const struct oracle_case_seq *q, uint32_t layer, uint32_t row, const struct seen *x,
                       const struct oracle_set *set)
{
	const uint8_t *class = set->class + (size_t)row * set->units;
	uint32_t count = 0, unsure = 0;

	for (uint32_t u = 0; u < set->units; u++) {
		bool in = x->in[(size_t)row * x->units + u];

		count += in;
		unsure += class[u] == ORACLE_MAY;
		if (class[u] != ORACLE_MAY && in != (class[u] == ORACLE_IN))
			return wrong(v, q, layer, "list %u: entry %u of %u is%s attended to", row, u, set->units,
			             in ? "" : " not");
	}
	if (count != set->count[row] && set->count[row] != UINT32_MAX)
		return wrong(v, q, layer, "list %u: %u entries are attended to, expected %u", row, count,
		             set->count[row]);
	v->lists++;
	v->unsure += unsure > 0;
	return true;
}

static bool check_oracle(struct verify *v, struct oracle_case *b, const struct oracle_policy *p, const char *spec,
                         uint32_t seq, const struct take *t)
{
	struct oracle_case_seq *q = &b->seq[seq];
	struct oracle_step step = step_of(v, b, q, q->n + 1);
	struct oracle_set *set = calloc(b->model.n_layers, sizeof(*set));
	bool well = true;

	p->attend(&step, spec, set);
	for (uint32_t layer = 0; layer < b->model.n_layers && well; layer++) {
		const struct seen *x = take_at(t, b, seq, layer);

		if (x->attended.attend != set[layer].how || x->attended.rows != set[layer].rows)
			well = verify_fails(v, "layer %u: attends as %u with %u lists, expected %u with %u", layer,
			                    x->attended.attend, x->attended.rows, set[layer].how, set[layer].rows);
		for (uint32_t row = 0; row < x->attended.rows && well; row++)
			well = check_list(v, q, layer, row, x, &set[layer]);
	}
	oracle_sets_free(set, b->model.n_layers);
	free(set);
	return well;
}

/* Checks what must hold for a policy that the oracle does not know. */
static bool check_contract(struct verify *v, const struct oracle_case_seq *q, const char *spec, uint32_t layer,
                           const struct seen *x)
{
	bool pages = x->attended.attend == SKV_ATTEND_PAGES;
	uint32_t pin = (uint32_t)oracle_number(spec, "pin") * (pages ? 1 : SKV_PAGE_TOKENS);
	uint32_t most = oracle_budget(spec, x->units, pages ? 8 : 128) + pin;

	if (oracle_number(spec, "budget") == 0 || x->attended.attend == SKV_ATTEND_DENSE)
		most = x->units;
	for (uint32_t row = 0; row < x->attended.rows; row++) {
		const bool *in = x->in + (size_t)row * x->units;
		uint32_t n = 0;

		for (uint32_t u = 0; u < x->units; u++)
			n += in[u];
		if (n > most)
			return wrong(v, q, layer, "list %u: %u of %u units, its budget is %u", row, n, x->units, most);
		if (!in[x->units - 1])
			return wrong(v, q, layer, "list %u: the newest token is not attended to", row);
		v->lists++;
	}
	return true;
}

bool check_step(struct verify *v, struct oracle_case *b, struct skv_session *s, uint32_t seq, const struct take *t)
{
	const char *spec = skv_policy_spec(s);
	const struct oracle_policy *p = oracle_find(spec);
	struct oracle_case_seq *q = &b->seq[seq];
	bool own = !q->kept || (p && p->granularity), well = true;

	for (uint32_t layer = 0; layer < b->model.n_layers && well; layer++)
		well = check_output(v, b, q, own, layer, take_at(t, b, seq, layer));
	if (p && own && !q->holes_unknown)
		return well && check_oracle(v, b, p, spec, seq, t);
	for (uint32_t layer = 0; layer < b->model.n_layers && well && !p && own; layer++)
		well = check_contract(v, q, spec, layer, take_at(t, b, seq, layer));
	return well;
}

bool check_same(struct verify *v, const struct oracle_case *b, uint32_t seq, const struct take *a, const struct take *c)
{
	for (uint32_t layer = 0; layer < b->model.n_layers; layer++) {
		const struct seen *x = take_at(a, b, seq, layer), *y = take_at(c, b, seq, layer);
		bool list = x->attended.attend != y->attended.attend || x->attended.rows != y->attended.rows ||
		            memcmp(x->in, y->in, (size_t)x->attended.rows * x->units * sizeof(*x->in)) != 0;

		if (list || memcmp(x->out, y->out, (size_t)b->model.n_heads * b->model.head_dim * sizeof(float)) != 0)
			return wrong(v, &b->seq[seq], layer, "the same step again, in another batch, %s",
			             list ? "attends to other entries" : "has another output");
	}
	return true;
}

/* ---- after a step ------------------------------------------------------------------------------- */

/*
 * Counts as the library does: tokens once for each q head, divided by the number of q heads. *ret_sparse: some tokens
 * in memory are not attended to.
 */
static uint64_t attended(const struct skv_model *m, const struct take *t, const struct oracle_case *b, uint32_t seq, bool own,
                         bool *ret_sparse)
{
	const struct oracle_case_seq *q = &b->seq[seq];
	bool *const *hole = q->hole;
	uint64_t sum = 0;

	for (uint32_t layer = 0; layer < m->n_layers; layer++) {
		const struct seen *x = take_at(t, b, seq, layer);

		for (uint32_t head = 0; head < m->n_heads && !own && keeps(q, layer); head++)
			sum += slots(b, q, layer) + 1;
		for (uint32_t head = 0; head < m->n_heads && (own || !keeps(q, layer)); head++) {
			const bool *in = x->in + (size_t)row_of(m, x, head) * x->units;

			for (uint32_t u = 0; u < x->units; u++) {
				sum += in[u] ? tokens_of_entry(x, u) : 0;
				*ret_sparse |= !in[u] && !hole[layer][page_of_entry(x, u)];
			}
		}
	}
	return sum / m->n_heads;
}

bool check_end(struct verify *v, struct oracle_case *b, struct skv_session *s, uint32_t seq, const struct take *t,
               uint64_t before)
{
	const char *spec = skv_policy_spec(s);
	const struct oracle_policy *p = oracle_find(spec);
	struct oracle_case_seq *q = &b->seq[seq];
	struct oracle_step step = step_of(v, b, q, q->n + 1);
	bool own = !q->kept || (p && p->granularity);
	uint64_t now, causal, resident, total, holes, expected;
	bool sparse = false;

	expected = attended(&b->model, t, b, seq, own, &sparse);
	skv_seq_attended(q->seq, &now, &causal);
	if (now - before != expected)
		return verify_fails(v, "sequence of %u tokens: %llu are counted as attended, its lists have %llu", step.n,
		                    (unsigned long long)(now - before), (unsigned long long)expected);
	if (verify_is_own(v, s)) {
		v->done++;
		v->sparse += sparse;
	}
	if (p && p->evict && !p->granularity)
		p->evict(&step, spec);
	for (uint32_t layer = 0; layer < b->model.n_layers && p && p->granularity; layer++)
		for (uint32_t kv = 0; kv < b->model.n_kv_heads && keeps(q, layer); kv++) {
			const struct seen *x = take_at(t, b, seq, layer);

			oracle_kept_seen(oracle_head(&step, layer, kv), x->in + (size_t)kv * x->units, x->units);
		}
	if (q->kept)
		oracle_kept_add(q->kept, step.n);
	compressed_follow(q, &step, p, spec, true);
	holes = pages_left_out(b, q, &step);
	if (p && p->granularity) { /* what this step evicts stays in memory until the next one */
		p->evict(&step, spec);
		q->kept->prompted = false;
	}
	skv_seq_pages(q->seq, &resident, &total);
	if (!p && total - resident != holes)
		q->holes_unknown = true;
	if (pages_known(b, q) && total - resident != holes)
		return verify_fails(v, "sequence of %u tokens: %lld of %llu pages are evicted, expected %lld", step.n,
		                    (long long)(total - resident), (unsigned long long)total, (long long)holes);
	return true;
}
