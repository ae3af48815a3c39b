/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-evict-slots.c - layers that evict, over many steps, on every backend of this machine. After
 * each step every kv head has the same tokens as a plain model, with their rows, bounds and slot metadata, in the slots
 * that the contract defines. Steps are interrupted and begin anew; what an abandoned step wrote must not matter.
 */
#include "tests/support/slot-model.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define T SKV_PAGE_TOKENS

static uint32_t min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* ---- sequences ------------------------------------------------------------------------------- */

static void rig_rows(struct slot_rig *r)
{
	const size_t each = skv_dtype_bytes(r->c.sh.dtype);
	r->stored = malloc(SLOT_ROWS * r->c.sh.head_dim * each);
	for (uint32_t x = 0; x < SLOT_ROWS; x++) {
		for (uint32_t d = 0; d < r->c.sh.head_dim; d++)
			r->row[x][d] = rnd_normal() * 4;
		ref_round_row(r->c.sh.dtype, r->row[x], r->c.sh.head_dim);
		/* rounding again keeps the row, but its unit may be halved, if its largest element was rounded down */
		const uint8_t scale = ref_round_row(r->c.sh.dtype, r->row[x], r->c.sh.head_dim);
		r->stored_unit[x] = r->c.sh.dtype == SKV_FP8 ? ref_unit(scale) : 1;
		for (uint32_t d = 0; d < r->c.sh.head_dim; d++)
			ref_store(r->c.sh.dtype, r->stored + (x * r->c.sh.head_dim + d) * each, r->row[x][d] / r->stored_unit[x]);
	}
}

/*
 * Makes a case of a shape with few kv heads, with empty sequences, on the backend. Returns false if it does not fit the
 * backend.
 */
static bool rig_init(struct slot_rig *r, int shape, uint32_t unit, uint32_t n, const struct test_backend *b)
{
	uint32_t len[CASE_SEQS], ones[CASE_SEQS];

	memset(r, 0, sizeof *r);
	for (uint32_t i = 0; i < n; i++) {
		len[i] = SLOT_CAP - T * rnd_below(6);
		ones[i] = 1;
	}
	case_of_shape(&r->c, shape, n, len, ones);
	r->unit = unit;
	if (r->c.sh.n_kv_heads > SLOT_HEADS || !case_on(&r->c, b)) {
		case_deinit(&r->c);
		return false;
	}
	rig_rows(r);
	r->was = malloc(r->c.pool_pages * r->c.sh.page_bytes);
	r->is = malloc(r->c.pool_pages * r->c.sh.page_bytes);
	case_from(&r->c, r->at, r->c.batch.seq, n * sizeof *r->at);
	return true;
}

static void rig_deinit(struct slot_rig *r)
{
	case_off(&r->c);
	case_deinit(&r->c);
	free(r->stored);
	free(r->was);
	free(r->is);
}

/* Slots that the sequence has pages for. */
static uint32_t room(const struct slot_rig *r, uint32_t i)
{
	return r->c.seq[i].len / T * T;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void begin(struct slot_rig *r)
{
	r->n = 0;
}

static void add(struct slot_rig *r, uint32_t i, uint32_t n_q)
{
	struct skv_kseq *s = &r->seq[r->n];

	*s = r->at[i];
	s->len = r->len[i] + n_q;
	s->n_tokens = r->all[i] + n_q;
	s->n_q = n_q;
	s->row = r->n ? r->seq[r->n - 1].row + r->seq[r->n - 1].n_q : 0;
	s->n_state = n_q;
	s->slot_end = r->extent[i];
	s->set = (r->epoch[i] + 1) & 1;
	s->n_retained = UINT32_MAX;
	s->pinned = r->pinned[i];
	r->who[r->n++] = i;
}

static struct skv_batch batch_of(struct slot_rig *r)
{
	struct skv_batch b = {.seq = case_to(&r->c, r->seq, r->n * sizeof *r->seq), .n = r->n, .max_len = r->c.max_len};

	for (uint32_t x = 0; x < r->n; x++) {
		b.max_q = r->seq[x].n_q > b.max_q ? r->seq[x].n_q : b.max_q;
		b.max_state = r->seq[x].n_state > b.max_state ? r->seq[x].n_state : b.max_state;
	}
	return b;
}

/* K or V rows of the step's new tokens, in the io dtype. */
static void *new_rows(struct slot_rig *r, bool v, bool garbage)
{
	const uint32_t dim = r->c.sh.head_dim, heads = r->c.sh.n_kv_heads;
	const uint32_t rows = r->seq[r->n - 1].row + r->seq[r->n - 1].n_q;
	float *x = calloc((size_t)(rows ? rows : 1) * heads * dim, sizeof *x);
	void *there;

	for (uint32_t b = 0; b < r->n; b++)
		for (uint32_t t = 0; t < r->seq[b].n_q; t++)
			for (uint32_t h = 0; h < heads; h++) {
				uint32_t pos = r->seq[b].n_tokens - r->seq[b].n_q + t;
				uint32_t which = garbage ? rnd_below(SLOT_ROWS) : slot_content(r->who[b], h, pos, v);
				size_t at = ((size_t)(r->seq[b].row + t) * heads + h) * dim;
				memcpy(x + at, r->row[which], dim * sizeof *x);
			}
	there = case_rows_to(&r->c, x, (size_t)rows * heads * dim);
	free(x);
	return there;
}

/* Allocates slots for the new tokens, and writes their rows and bounds. */
static void write_step(struct slot_rig *r, bool prompt, bool garbage)
{
	const struct skv_kernels *kern = r->c.on->kern;
	struct skv_batch b = batch_of(r);
	struct skv_workspace w = case_work(&r->c, 1 + (int)rnd_below(2));

	r->slots = (struct skv_slot_mapping){.granularity = r->unit,
	                              .slot = case_to(&r->c, NULL, r->n * r->c.sh.n_kv_heads * sizeof(uint32_t))};
	(prompt ? kern->alloc_prompt_slots : kern->alloc_slots)(&r->c.sh, &b, &r->slots, &w);
	if (b.max_q > 0) {
		kern->append(&r->c.sh, &b, &r->slots, new_rows(r, false, garbage), new_rows(r, true, garbage), &w);
		if (r->unit > 1)
			kern->update_bounds(&r->c.sh, &b, &r->slots, &w);
	}
	case_work_done(&r->c, &w);
}

/* ---- kinds of steps -------------------------------------------------------------------------- */

/* Simulates an abandoned step: writes slot metadata of the step's set, and rows of free slots or of new tokens. */
static void tear(struct slot_rig *r, bool prompt)
{
	struct skv_evict_rule by = {.granularity = r->unit, .recent.count = 1};
	struct skv_kseq kept[CASE_SEQS];

	memcpy(kept, r->seq, sizeof kept);
	write_step(r, prompt, true);
	for (uint32_t b = 0; b < r->n; b++)
		r->seq[b].n_retained = rnd_below(slot_units(r, r->seq[b].len) + 1);
	if (!prompt) {
		struct skv_batch b = batch_of(r);
		struct skv_workspace w = case_work(&r->c, 1);
		r->c.on->kern->evict(&r->c.sh, &b, &by, NULL, 0, &w);
		case_work_done(&r->c, &w);
	}
	memcpy(r->seq, kept, sizeof kept);
}

/* Makes random ranks; then the kernel and the model choose the entries to retain. */
static void choose(struct slot_rig *r)
{
	struct skv_evict_rule by = {.granularity = r->unit, .evict_older = rnd_below(2),
	                            .reset_scores = rnd_below(3) == 0};
	const uint32_t stride = r->c.max_len + rnd_below(5);
	float *rank = malloc((size_t)r->n * r->c.sh.n_kv_heads * stride * sizeof *rank), *there;
	const bool ranked = rnd_below(2);

	if (rnd_below(3))
		by.recent = rnd_below(2) ? (struct skv_budget){.count = 1 + rnd_below(20)}
		                         : (struct skv_budget){.share = (float)(0.1 + 0.8 * rnd_unit())};
	for (uint32_t x = 0; x < r->n * r->c.sh.n_kv_heads * stride; x++)
		rank[x] = rnd_below(3) ? (float)rnd_below(5) : rnd_normal();
	there = case_to(&r->c, rank, (size_t)r->n * r->c.sh.n_kv_heads * stride * sizeof *rank);
	for (uint32_t b = 0; b < r->n; b++)
		for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++) {
			const struct skv_kseq *s = &r->seq[b];
			const uint32_t n = slot_units(r, s->len);
			struct ref_evict k = {.n_retained = s->n_retained, .pinned = s->pinned};
			k.old_first = by.evict_older;
			k.forget = by.reset_scores;
			double own[SLOT_CAP];
			for (uint32_t u = 0; u < n; u++)
				own[u] = rank[((size_t)b * r->c.sh.n_kv_heads + h) * stride + u];
			if (s->n_retained < n)
				k.recent = skv_recent_of(&by, s->n_retained);
			ref_evict(r->head[r->who[b]][h].now, n, &k, ranked ? own : NULL);
		}
	struct skv_batch batch = batch_of(r);
	struct skv_workspace w = case_work(&r->c, 1 + (int)rnd_below(2));
	r->c.on->kern->evict(&r->c.sh, &batch, &by, ranked ? there : NULL, stride, &w);
	case_work_done(&r->c, &w);
	free(rank);
}

/* Scores of the step, with few distinct values, so that many are equal and sums are exact. */
static void accumulate(struct slot_rig *r)
{
	const uint32_t heads = r->c.sh.n_kv_heads, group = r->c.sh.n_heads / heads;
	struct skv_scores ev = {.rows = heads, .sum = true, .token_stride = skv_pages_of(r->c.max_len) * T};
	float *token = malloc((size_t)r->n * heads * ev.token_stride * sizeof *token);

	for (uint32_t x = 0; x < r->n * heads * ev.token_stride; x++)
		token[x] = (float)(group * rnd_below(4)) / 64;
	for (uint32_t b = 0; b < r->n; b++) {
		r->seq[b].accumulate = rnd_below(3);
		for (uint32_t h = 0; h < heads; h++)
			for (uint32_t u = 0; u < r->seq[b].len && r->seq[b].accumulate; u++) {
				double *value = &r->head[r->who[b]][h].now[u].value;
				*value = (r->seq[b].accumulate == SKV_ACCUMULATE_ADD ? *value : 0) +
				         token[((size_t)b * heads + h) * ev.token_stride + u] / (float)group;
			}
	}
	ev.token = case_to(&r->c, token, (size_t)r->n * heads * ev.token_stride * sizeof *token);
	struct skv_batch batch = batch_of(r);
	struct skv_workspace w = case_work(&r->c, 1);
	r->c.on->kern->accumulate_scores(&r->c.sh, &batch, &ev, &w);
	case_work_done(&r->c, &w);
	free(token);
}

/* Entries that a decoding sequence retains: all, one fewer, or any number. Pages are evicted only when one is full. */
static uint32_t random_keep(const struct slot_rig *r, uint32_t i, uint32_t len)
{
	const uint32_t units = slot_units(r, len), most = room(r, i) / r->unit / 2;

	if (len % r->unit)
		return UINT32_MAX;
	if (units > most || rnd_below(4) == 0)
		return rnd_below(units < most ? units : most);
	return rnd_below(2) ? UINT32_MAX : units - 1;
}

/* Some sequences decode a token, others only do maintenance. */
static void decode_step(struct slot_rig *r)
{
	begin(r);
	for (uint32_t i = 0; i < r->c.n; i++)
		if (r->len[i] + 3 * T < room(r, i) && rnd_below(5))
			add(r, i, r->len[i] == 0 || rnd_below(8));
	if (r->n == 0)
		return;
	slot_read_pool(r, r->was);
	while (rnd_below(4) == 0)
		tear(r, false);
	slot_model_alloc(r);
	write_step(r, false, false);
	if (r->unit == 1)
		accumulate(r);
	for (uint32_t b = 0; b < r->n; b++)
		r->seq[b].n_retained = r->seq[b].n_q ? random_keep(r, r->who[b], r->seq[b].len) : UINT32_MAX;
	choose(r);
	slot_check_step(r, 0);
	slot_model_commit(r, 0);
}

static void settle(struct slot_rig *r, uint32_t i)
{
	begin(r);
	add(r, i, 0);
	slot_read_pool(r, r->was);
	if (rnd_below(2))
		tear(r, false);
	slot_model_alloc(r);
	write_step(r, false, false);
	slot_check_step(r, 0);
	slot_model_commit(r, 0);
}

/* Moves the partial page behind the others, in a step of its own, so that it can become the last page. */
static void lift(struct slot_rig *r, uint32_t i)
{
	const uint32_t units = skv_pages_of(r->len[i]);

	begin(r);
	add(r, i, 0);
	slot_read_pool(r, r->was);
	for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++) {
		struct slot_head *hd = &r->head[i][h];
		const uint32_t at = ref_latest(hd->was, units);
		memcpy(hd->now, hd->was, units * sizeof *hd->now);
		hd->now[units] = hd->now[units + 1] = (struct ref_unit){0};
		hd->there[units] = hd->there[units + 1] = at + 1 < units;
		if (at + 1 == units)
			continue;
		hd->now[units] = hd->was[units - 1];
		hd->now[units + 1] = hd->was[at];
		hd->now[at] = hd->now[units - 1] = (struct ref_unit){0};
		hd->there[at] = hd->there[units - 1] = false;
	}
	struct skv_batch b = batch_of(r);
	struct skv_workspace w = case_work(&r->c, 1);
	r->c.on->kern->move_partial_page(&r->c.sh, &b, &w);
	case_work_done(&r->c, &w);
	r->slots.slot = NULL;
	slot_check_step(r, 2);
	slot_model_commit(r, 2);
}

static void prompt_step(struct slot_rig *r)
{
	uint32_t n_q[CASE_SEQS];

	for (uint32_t i = 0; i < r->c.n; i++) {
		const uint32_t left = room(r, i) > r->len[i] + 5 * T ? room(r, i) - r->len[i] - 5 * T : 0;
		n_q[i] = rnd_below(2) ? min(1 + rnd_below(3 * T), left) : 0;
		if (n_q[i] == 0 || r->len[i] == 0)
			continue;
		settle(r, i);
		if (r->unit > 1 && r->len[i] % T) {
			lift(r, i);
			settle(r, i);
		}
	}
	begin(r);
	for (uint32_t i = 0; i < r->c.n; i++)
		if (n_q[i])
			add(r, i, n_q[i]);
	if (r->n == 0)
		return;
	slot_read_pool(r, r->was);
	if (rnd_below(2))
		tear(r, true);
	slot_model_prompt(r);
	write_step(r, true, false);
	slot_check_step(r, 0);
	slot_model_commit(r, 0);
}

static void run_steps(int shape, uint32_t unit, uint32_t n, uint32_t steps)
{
	struct slot_rig *r = malloc(sizeof *r);

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!rig_init(r, shape, unit, n, b))
			continue;
		for (uint32_t i = 0; i < n; i++)
			r->pinned[i] = rnd_below(3) ? 0 : rnd_below(40) / unit;
		for (uint32_t x = 0; x < steps; x++)
			if (rnd_below(20) == 0 || x < 2)
				prompt_step(r);
			else
				decode_step(r);
		rig_deinit(r);
	}
	free(r);
}

START_TEST(tokens)
{
	run_steps(_i, 1, 3, 40);
}
END_TEST

START_TEST(pages)
{
	run_steps(_i, T, 3, 80);
}
END_TEST

START_TEST(hundreds_of_steps)
{
	run_steps(_i % 2 ? 1 : 22, _i / 2 ? T : 1, 2, 700);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-evict-slots");
	TCase *t = add_case(s, "all", 300, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 3 : CASE_SHAPES;

	add_cases(t, tokens, cases);
	add_cases(t, pages, cases);
	add_cases(t, hundreds_of_steps, rnd_hurried() ? 0 : 4);
	return run_suite(s);
}
