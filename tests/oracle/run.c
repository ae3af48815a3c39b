/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/run.c - makes steps, each begun up to three times: alone, in another order, and finally to be committed.
 * check.c checks them.
 */
#include "tests/oracle/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/check.h"
#include "tests/oracle/oracle.h"

#define CHUNK 512u /* rows of a prompt at a time */
#define MORE 40u   /* rows of a later prompt, at most */

bool verify_fails(struct verify *v, const char *fmt, ...)
{
	va_list ap;

	if (!*v->bad) {
		va_start(ap, fmt);
		vsnprintf(v->bad, sizeof(v->bad), fmt, ap);
		va_end(ap);
	}
	return false;
}

bool verify_is_own(const struct verify *v, struct skv_session *s)
{
	const char *spec = skv_policy_spec(s);
	size_t len = strcspn(v->spec, "?:");

	return strcspn(spec, "?") == len && !strncmp(spec, v->spec, len);
}

/* ---- rows ------------------------------------------------------------------------------------- */

static struct verify_rows rows_new(const struct skv_model *m, uint32_t n)
{
	size_t q = (size_t)n * m->n_heads * m->head_dim, kv = (size_t)n * m->n_kv_heads * m->head_dim;

	return (struct verify_rows){.n = n,
	                            .q = calloc(q, sizeof(float)),
	                            .k = calloc(kv, sizeof(float)),
	                            .v = calloc(kv, sizeof(float)),
	                            .out = calloc(q, sizeof(float))};
}

static void rows_free(struct verify_rows *r)
{
	free(r->q);
	free(r->k);
	free(r->v);
	free(r->out);
}

/* Copies the sequence's tokens from `first` on to rows [at, at + n). */
static void rows_put(const struct skv_model *m, struct verify_rows *r, uint32_t at, uint32_t n, const struct oracle_case_seq *q,
                     uint32_t layer, uint32_t first)
{
	size_t kv = (size_t)m->n_kv_heads * m->head_dim, heads = (size_t)m->n_heads * m->head_dim;

	memcpy(r->q + at * heads, q->q[layer] + first * heads, n * heads * sizeof(float));
	memcpy(r->k + at * kv, q->k[layer] + first * kv, n * kv * sizeof(float));
	memcpy(r->v + at * kv, q->v[layer] + first * kv, n * kv * sizeof(float));
}

/* ---- sequences -------------------------------------------------------------------------------- */

/*
 * Reads tokens [at, at + n) as rows of a prompt. `checked`: they follow all tokens of the sequence, and outputs are
 * checked.
 */
static bool feed(struct verify *v, struct oracle_case *b, struct skv_session *s, uint32_t seq, uint32_t at, uint32_t n,
                 bool checked)
{
	struct oracle_case_seq *q = &b->seq[seq];
	struct skv_step_item item = SKV_STEP_ITEM(.seq = q->seq, .n_tokens = n, .flags = SKV_STEP_PROMPT);
	struct verify_rows r = rows_new(&b->model, n);
	int e = skv_step_begin(s, &item, 1, v->backend->stream);
	bool well = true;

	for (uint32_t layer = 0; layer < b->model.n_layers && e == 0 && well; layer++) {
		rows_put(&b->model, &r, 0, n, q, layer, at);
		e = v->backend->attend(s, &b->model, layer, &r);
		if (checked && e == 0)
			well = check_prompt_rows(v, b, seq, layer, n, r.out);
	}
	if (!well)
		skv_step_abort(s);
	else if (e == 0)
		e = skv_step_end(s, NULL, NULL);
	rows_free(&r);
	return e < 0 ? verify_fails(v, "a prompt up to %u tokens: %s", at + n, skv_last_error()) : well;
}

/* Reads tokens [0, n) as a prompt; outputs are not checked. */
static bool feed_prompt(struct verify *v, struct oracle_case *b, struct skv_session *s, uint32_t seq)
{
	struct oracle_case_seq *q = &b->seq[seq];

	for (uint32_t at = 0; at < q->n;) {
		uint32_t n = q->n - at < CHUNK ? q->n - at : CHUNK;

		if (!feed(v, b, s, seq, at, n, false))
			return false;
		at += n;
		check_prompt(v, b, s, seq, at, n);
	}
	return true;
}

/* Reads a prompt after compressed tokens: a few tokens of one of the sequences, if there is room. */
static bool feed_more(struct verify *v, struct oracle_case *b, struct skv_session *s)
{
	const struct oracle_policy *p = oracle_find(skv_policy_spec(s)), *verified = oracle_find(v->spec);
	uint32_t seq = oracle_case_below(b, b->n_seqs), n = 1 + oracle_case_below(b, MORE);
	struct oracle_case_seq *q = &b->seq[seq];

	if (!p || p->evict || !verified || !verified->compress || q->n + n + b->reserve > q->cap)
		return true;
	check_ready(v, b, s, seq, true);
	for (uint32_t t = q->n; t < q->n + n; t++)
		oracle_case_token(b, q, t);
	if (!feed(v, b, s, seq, q->n, n, true))
		return false;
	q->n += n;
	return true;
}

static bool take_over(struct verify *v, struct oracle_case *b, struct skv_session *s)
{
	for (uint32_t i = 0; i < b->n_seqs; i++) {
		struct oracle_case_seq *q = &b->seq[i];
		int e = q->made ? skv_seq_attach(s, q->name, &q->seq) : skv_seq_new(s, q->name, q->cap, &q->seq);

		if (e < 0)
			return verify_fails(v, "%s sequence of %u tokens: %s", q->made ? "taking over a" : "a new",
			                    q->n, skv_last_error());
		check_taken(v, b, s, i);
		if (!q->made && !feed_prompt(v, b, s, i))
			return false;
		q->made = true;
	}
	return true;
}

static bool let_go(struct verify *v, struct oracle_case *b, bool drop)
{
	bool well = true;

	for (uint32_t i = 0; i < b->n_seqs; i++) {
		struct oracle_case_seq *q = &b->seq[i];
		int e = drop ? skv_seq_drop(q->seq) : skv_seq_detach(q->seq);

		q->seq = NULL;
		if (e < 0)
			well = verify_fails(v, "letting go of a sequence: %s", skv_last_error());
	}
	return well;
}

/* ---- a step ------------------------------------------------------------------------------------- */

/* Begins a step of sequences order[n] and makes it up to its end; records what is observed. */
static bool attempt(struct verify *v, struct oracle_case *b, struct skv_session *s, const uint32_t *order, uint32_t n,
                    struct take *t)
{
	const struct skv_model *m = &b->model;
	size_t width = (size_t)m->n_heads * m->head_dim;
	struct skv_step_item items[BED_MAX_SEQS];
	struct verify_rows r = rows_new(m, n);
	bool well = true;
	int e;

	for (uint32_t i = 0; i < n; i++)
		items[i] = SKV_STEP_ITEM(.seq = b->seq[order[i]].seq, .n_tokens = 1);
	e = skv_step_begin(s, items, n, v->backend->stream);
	if (e < 0)
		well = verify_fails(v, "beginning a step: %s", skv_last_error());
	for (uint32_t layer = 0; layer < m->n_layers && well; layer++) {
		for (uint32_t i = 0; i < n; i++) {
			const struct oracle_case_seq *q = &b->seq[order[i]];

			rows_put(m, &r, i, 1, q, layer, q->n);
		}
		e = v->backend->attend(s, m, layer, &r);
		if (e < 0)
			well = verify_fails(v, "layer %u: %s", layer, skv_last_error());
		for (uint32_t i = 0; i < n && well; i++) {
			struct seen *x = take_at(t, b, order[i], layer);

			memcpy(x->out, r.out + i * width, width * sizeof(float));
			well = check_seen(v, s, layer, i, b->seq[order[i]].n + 1, x);
		}
	}
	rows_free(&r);
	return well;
}

/* Makes the same step alone or in another order, and aborts it. */
static bool rehearse(struct verify *v, struct oracle_case *b, struct skv_session *s, struct take *t, uint32_t *ret_one)
{
	uint32_t order[BED_MAX_SEQS], one = oracle_case_below(b, b->n_seqs);
	bool alone = oracle_case_below(b, 2), well;

	for (uint32_t i = 0; i < b->n_seqs; i++)
		order[i] = b->n_seqs - 1 - i;
	well = alone ? attempt(v, b, s, &one, 1, t) : attempt(v, b, s, order, b->n_seqs, t);
	skv_step_abort(s);
	*ret_one = alone ? one : b->n_seqs;
	return well;
}

static bool step(struct verify *v, struct oracle_case *b, struct skv_session *s)
{
	uint32_t order[BED_MAX_SEQS] = {0, 1, 2, 3}, one = b->n_seqs;
	struct take rehearsed = take_new(b), kept = take_new(b);
	uint64_t before[BED_MAX_SEQS], causal;
	bool again = oracle_case_below(b, 2), well = true;

	for (uint32_t i = 0; i < b->n_seqs; i++) {
		check_ready(v, b, s, i, false);
		oracle_case_token(b, &b->seq[i], b->seq[i].n);
		skv_seq_attended(b->seq[i].seq, &before[i], &causal);
	}
	if (again)
		well = rehearse(v, b, s, &rehearsed, &one);
	well = well && attempt(v, b, s, order, b->n_seqs, &kept);
	for (uint32_t i = 0; i < b->n_seqs && well; i++)
		well = check_step(v, b, s, i, &kept) &&
		       (!again || (one < b->n_seqs && one != i) || check_same(v, b, i, &rehearsed, &kept));
	if (well && skv_step_end(s, NULL, NULL) < 0)
		well = verify_fails(v, "ending a step: %s", skv_last_error());
	if (!well)
		skv_step_abort(s);
	for (uint32_t i = 0; i < b->n_seqs && well; i++) {
		well = check_end(v, b, s, i, &kept, before[i]);
		b->seq[i].n++;
	}
	take_free(&rehearsed, b);
	take_free(&kept, b);
	return well;
}

bool stint(struct verify *v, struct oracle_case *b, struct skv_session *s, uint32_t steps, bool last)
{
	bool well = take_over(v, b, s);

	for (uint32_t i = 0; i < steps && well; i++) {
		if (oracle_case_below(b, 8) == 0)
			well = feed_more(v, b, s);
		well = well && step(v, b, s);
	}
	return let_go(v, b, last || !well) && well;
}
