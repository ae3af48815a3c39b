/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-evict-slots.c - layers that evict, over many steps, on every backend of this machine: after each step
 * every kv head has the tokens that a plain model of it has, with their rows, bounds and slot metadata, where the contract says.
 * Steps break off and begin anew: what the abandoned one wrote must not matter.
 */
#include "tests/support/kernel-case.h"
#include "tests/ref/attention.h"
#include "tests/ref/evict.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define T SKV_PAGE_TOKENS
#define CAP (16 * T) /* slots of a sequence, at most */
#define ROWS 257u    /* different rows */
#define HEADS 8u     /* kv heads, at most */

static uint32_t min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* ---- sequences and a model of them ----------------------------------------------------------- */

struct head {
	struct ref_unit was[CAP], now[CAP]; /* as of the last commit, and of the step */
	uint32_t slot;                      /* of the step's new token */
	bool there[CAP];                    /* is now[u] a unit, dead or alive? */
};

struct fixture {
	struct kernel_case c;
	uint32_t unit;
	struct head head[CASE_SEQS][HEADS];
	uint32_t len[CASE_SEQS];    /* slots that live as of the last commit */
	uint32_t extent[CASE_SEQS]; /* slots that may */
	uint32_t all[CASE_SEQS];
	uint32_t pinned[CASE_SEQS];
	uint32_t epoch[CASE_SEQS]; /* of the last commit */
	float row[ROWS][SKV_MAX_HEAD_DIM];
	uint8_t *stored;        /* the same as the pool has them */
	uint8_t *was, *is;      /* the pool before a step, and after */
	struct skv_kseq at[CASE_SEQS]; /* with the backend's pointers */
	/* the step's batch: */
	uint32_t n, who[CASE_SEQS];
	struct skv_kseq seq[CASE_SEQS];
	struct skv_slot_mapping slots;
};

/* Which row token `pos` of a sequence has. K and V differ. */
static uint32_t content(uint32_t i, uint32_t h, uint32_t pos, bool v)
{
	return (pos * 7 + i * 31 + h * 101 + v * 59) % ROWS;
}

static uint32_t units_of(const struct fixture *r, uint32_t slots)
{
	return r->unit == 1 ? slots : skv_pages_of(slots);
}

static void rig_rows(struct fixture *r)
{
	const size_t each = skv_dtype_bytes(r->c.sh.dtype);
	r->stored = malloc(ROWS * r->c.sh.head_dim * each);
	for (uint32_t x = 0; x < ROWS; x++)
		for (uint32_t d = 0; d < r->c.sh.head_dim; d++) {
			r->row[x][d] = ref_round(r->c.sh.dtype, rnd_normal() * 4);
			ref_store(r->c.sh.dtype, r->stored + (x * r->c.sh.head_dim + d) * each, r->row[x][d]);
		}
}

/* A case of a shape with few kv heads, put on the backend; sequences are empty. False: it is not for that backend. */
static bool rig_init(struct fixture *r, int shape, uint32_t unit, uint32_t n, const struct test_backend *b)
{
	uint32_t len[CASE_SEQS], ones[CASE_SEQS];

	memset(r, 0, sizeof *r);
	for (uint32_t i = 0; i < n; i++) {
		len[i] = CAP - T * rnd_below(6);
		ones[i] = 1;
	}
	case_of_shape(&r->c, shape, n, len, ones);
	r->unit = unit;
	if (r->c.sh.n_kv_heads > HEADS || !case_on(&r->c, b)) {
		case_deinit(&r->c);
		return false;
	}
	rig_rows(r);
	r->was = malloc(r->c.pool_pages * r->c.sh.page_bytes);
	r->is = malloc(r->c.pool_pages * r->c.sh.page_bytes);
	case_from(&r->c, r->at, r->c.batch.seq, n * sizeof *r->at);
	return true;
}

static void rig_deinit(struct fixture *r)
{
	case_off(&r->c);
	case_deinit(&r->c);
	free(r->stored);
	free(r->was);
	free(r->is);
}

/* Slots that the sequence has pages for. */
static uint32_t room(const struct fixture *r, uint32_t i)
{
	return r->c.seq[i].len / T * T;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void begin(struct fixture *r)
{
	r->n = 0;
}

static void add(struct fixture *r, uint32_t i, uint32_t n_q)
{
	struct skv_kseq *s = &r->seq[r->n];

	*s = r->at[i];
	s->len = r->len[i] + n_q;
	s->n_tokens = r->all[i] + n_q;
	s->n_q = n_q;
	s->row = r->n ? r->seq[r->n - 1].row + r->seq[r->n - 1].n_q : 0;
	s->n_bounds = n_q;
	s->slot_end = r->extent[i];
	s->set = (r->epoch[i] + 1) & 1;
	s->n_retained = UINT32_MAX;
	s->pinned = r->pinned[i];
	r->who[r->n++] = i;
}

static struct skv_batch batch_of(struct fixture *r)
{
	struct skv_batch b = {.seq = case_to(&r->c, r->seq, r->n * sizeof *r->seq), .n = r->n, .max_len = r->c.max_len};

	for (uint32_t x = 0; x < r->n; x++) {
		b.max_q = r->seq[x].n_q > b.max_q ? r->seq[x].n_q : b.max_q;
		b.max_bounds = r->seq[x].n_bounds > b.max_bounds ? r->seq[x].n_bounds : b.max_bounds;
	}
	return b;
}

/* K or V rows of the step's new tokens, in the io dtype. */
static void *new_rows(struct fixture *r, bool v, bool garbage)
{
	const uint32_t dim = r->c.sh.head_dim, heads = r->c.sh.n_kv_heads;
	const uint32_t rows = r->seq[r->n - 1].row + r->seq[r->n - 1].n_q;
	float *x = calloc((size_t)(rows ? rows : 1) * heads * dim, sizeof *x);
	void *there;

	for (uint32_t b = 0; b < r->n; b++)
		for (uint32_t t = 0; t < r->seq[b].n_q; t++)
			for (uint32_t h = 0; h < heads; h++) {
				uint32_t pos = r->seq[b].n_tokens - r->seq[b].n_q + t;
				uint32_t which = garbage ? rnd_below(ROWS) : content(r->who[b], h, pos, v);
				size_t at = ((size_t)(r->seq[b].row + t) * heads + h) * dim;
				memcpy(x + at, r->row[which], dim * sizeof *x);
			}
	there = case_rows_to(&r->c, x, (size_t)rows * heads * dim);
	free(x);
	return there;
}

/* Places, rows and bounds of the new tokens. */
static void write_step(struct fixture *r, bool prompt, bool garbage)
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

static void read_pool(const struct fixture *r, uint8_t *to)
{
	case_from(&r->c, to, r->c.sh.pool, r->c.pool_pages * r->c.sh.page_bytes);
}

/* A kv head's K row of a slot in a copy of the pool, of a table's page. */
static uint8_t *row_at(const struct fixture *r, uint8_t *pool, const skv_pte *table, uint32_t h, uint32_t slot, bool v)
{
	const struct skv_shape *sh = &r->c.sh;

	return pool + skv_pte_id(table[slot / T]) * sh->page_bytes + v * (sh->page_bytes / 2) +
	       (h * T + slot % T) * sh->head_dim * skv_dtype_bytes(sh->dtype);
}

static struct skv_slot_meta slot_meta_at(const struct fixture *r, const uint8_t *pool, uint32_t i, uint32_t h, uint32_t set,
                               uint32_t u)
{
	const struct skv_shape *sh = &r->c.sh;
	const uint32_t each = (uint32_t)(sh->page_bytes / sh->n_kv_heads / 16);
	struct skv_slot_meta n;

	memcpy(&n, pool + skv_pte_id(r->c.slot_meta[i][u / each]) * sh->page_bytes + h * (sh->page_bytes / sh->n_kv_heads) +
	           (set * each + u % each) * sizeof n, sizeof n);
	return n;
}

/* ---- checks ---------------------------------------------------------------------------------- */

#define WRONG(r, i, h, u, ...)                                                                                          \
	do {                                                                                                           \
		char what_[200];                                                                                       \
		snprintf(what_, sizeof what_, __VA_ARGS__);                                                            \
		ck_abort_msg("%s, granularity %u, epoch %u, sequence %u, kv head %u, entry %u: %s", (r)->c.on->name,         \
		             (r)->unit, (r)->epoch[i], i, h, u, what_);                                                \
	} while (0)

/* The tokens of number u of the model's n units. */
static uint32_t tokens_of(const struct fixture *r, const struct head *hd, uint32_t u, uint32_t n, uint32_t len)
{
	if (r->unit == 1)
		return 1;
	return u == ref_latest(hd->now, n) ? (len - 1) % T + 1 : T;
}

static void check_rows(const struct fixture *r, uint32_t i, uint32_t h, uint32_t u, uint32_t pos, uint32_t tokens)
{
	const size_t bytes = r->c.sh.head_dim * skv_dtype_bytes(r->c.sh.dtype);

	for (uint32_t t = 0; t < tokens; t++)
		for (int v = 0; v < 2; v++)
			if (memcmp(row_at(r, r->is, r->c.table[i], h, u * r->unit + t, v),
			           r->stored + content(i, h, pos * r->unit + t, v) * bytes, bytes))
				WRONG(r, i, h, u, "row %u of %s is not that of token %u", t, v ? "V" : "K", pos * r->unit + t);
}

static void check_bounds(const struct fixture *r, uint32_t i, uint32_t h, uint32_t u, uint32_t pos, uint32_t tokens)
{
	const size_t each = skv_dtype_bytes(r->c.sh.dtype);

	for (uint32_t d = 0; d < r->c.sh.head_dim; d++) {
		float low = INFINITY, high = -INFINITY;
		for (uint32_t t = 0; t < tokens; t++) {
			float x = r->row[content(i, h, pos * T + t, false)][d];
			low = fminf(low, x);
			high = fmaxf(high, x);
		}
		if (ref_load(r->c.sh.dtype, row_at(r, r->is, r->c.state[i], h, u, false) + d * each) != low ||
		    ref_load(r->c.sh.dtype, row_at(r, r->is, r->c.state[i], h, u, true) + d * each) != high)
			WRONG(r, i, h, u, "element %u of its bounds is wrong", d);
	}
}

static void check_meta(const struct fixture *r, uint32_t i, uint32_t h, uint32_t u, uint32_t set, struct ref_unit want,
                       bool there)
{
	struct skv_slot_meta n = slot_meta_at(r, r->is, i, h, set, u);
	const uint32_t pos = !there ? SKV_SLOT_FREE : want.alive ? want.pos : want.pos | SKV_SLOT_EVICTED;

	if (n.pos != pos || (there && want.alive && n.score != (float)want.value))
		WRONG(r, i, h, u, "its slot metadata is %#x, %g, should be %#x, %g", n.pos, (double)n.score, pos, want.value);
}

/* Nothing that the last commit needs was written: slot metadata of its set, and what lives as of it. */
static void check_untouched(const struct fixture *r, uint32_t i, uint32_t h, uint32_t old_set, uint32_t extent)
{
	const struct head *hd = &r->head[i][h];
	const size_t bytes = r->c.sh.head_dim * skv_dtype_bytes(r->c.sh.dtype);

	for (uint32_t u = 0; u < units_of(r, extent); u++) {
		struct skv_slot_meta a = slot_meta_at(r, r->was, i, h, old_set, u), b = slot_meta_at(r, r->is, i, h, old_set, u);
		uint32_t tokens = r->unit;
		if (memcmp(&a, &b, sizeof a))
			WRONG(r, i, h, u, "slot metadata of the last commit was written");
		if (!hd->was[u].alive)
			continue;
		if (r->unit > 1 && extent % T && u == ref_latest(hd->was, units_of(r, extent)))
			tokens = extent % T;
		for (int v = 0; v < 2; v++)
			if (memcmp(row_at(r, r->was, r->c.table[i], h, u * r->unit, v),
			           row_at(r, r->is, r->c.table[i], h, u * r->unit, v), tokens * bytes))
				WRONG(r, i, h, u, "rows that the last commit needs were written");
	}
}

/* All of the step's sequences are as the model has them, with `more` units than their length asks for. */
static void check_step(struct fixture *r, uint32_t more)
{
	uint32_t slot[CASE_SEQS * HEADS];

	read_pool(r, r->is);
	if (r->slots.slot)
		case_from(&r->c, slot, r->slots.slot, r->n * r->c.sh.n_kv_heads * sizeof *slot);
	for (uint32_t b = 0; b < r->n; b++)
		for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++) {
			const struct skv_kseq *s = &r->seq[b];
			const uint32_t i = r->who[b], units = units_of(r, s->len) + more;
			const struct head *hd = &r->head[i][h];
			for (uint32_t u = 0; u < units; u++) {
				const struct ref_unit x = hd->now[u];
				const bool there = hd->there[u];
				check_meta(r, i, h, u, s->set, x, there);
				if (!there)
					continue;
				check_rows(r, i, h, u, x.pos, tokens_of(r, hd, u, units, s->len));
				if (r->unit > 1)
					check_bounds(r, i, h, u, x.pos, tokens_of(r, hd, u, units, s->len));
			}
			for (uint32_t u = units; more == 0 && u < skv_pages_of(s->len) * T / r->unit; u++)
				check_meta(r, i, h, u, s->set, (struct ref_unit){0}, false);
			if (s->n_q && slot[b * r->c.sh.n_kv_heads + h] != hd->slot)
				WRONG(r, i, h, slot[b * r->c.sh.n_kv_heads + h], "is the slot of the new token, should be %u",
				     hd->slot);
			check_untouched(r, i, h, !s->set, r->extent[i]);
		}
}

/* ---- the model's side ------------------------------------------------------------------------ */

/* As alloc_slots() says. */
static void model_alloc(struct fixture *r)
{
	uint32_t from[CAP];

	for (uint32_t b = 0; b < r->n; b++)
		for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++) {
			const struct skv_kseq *s = &r->seq[b];
			struct head *hd = &r->head[r->who[b]][h];
			const uint32_t units = units_of(r, s->len);
			const bool begins = s->n_q && (s->len - 1) % r->unit == 0;
			if (!ref_alloc(hd->was, units_of(r, s->slot_end), hd->now, units,
			               begins ? (s->n_tokens - 1) / r->unit : REF_NONE, from))
				WRONG(r, r->who[b], h, units, "the test's own arithmetic is wrong");
			for (uint32_t u = 0; u < units; u++)
				hd->there[u] = true;
			if (s->n_q)
				hd->slot = ref_latest(hd->now, units) * r->unit + (s->len - 1) % r->unit;
		}
}

static void model_prompt(struct fixture *r)
{
	for (uint32_t b = 0; b < r->n; b++)
		for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++) {
			const struct skv_kseq *s = &r->seq[b];
			struct head *hd = &r->head[r->who[b]][h];
			const uint32_t before = units_of(r, s->len - s->n_q), units = units_of(r, s->len);
			memcpy(hd->now, hd->was, before * sizeof *hd->now);
			for (uint32_t u = before; u < units; u++)
				hd->now[u] = (struct ref_unit){.alive = true, .pos = (s->n_tokens - s->len) / r->unit + u};
			for (uint32_t u = 0; u < units; u++)
				hd->there[u] = true;
			hd->slot = s->len - 1;
		}
}

/* What the step made is what the next one finds. */
static void commit(struct fixture *r, uint32_t more)
{
	for (uint32_t b = 0; b < r->n; b++) {
		const struct skv_kseq *s = &r->seq[b];
		const uint32_t i = r->who[b], units = units_of(r, s->len);
		for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++)
			memcpy(r->head[i][h].was, r->head[i][h].now, (units + more) * sizeof(struct ref_unit));
		r->all[i] = s->n_tokens;
		r->len[i] = s->n_retained < units ? s->n_retained * r->unit : s->len;
		r->extent[i] = more ? (units + more) * T : s->len;
		r->epoch[i]++;
	}
}

/* ---- kinds of steps -------------------------------------------------------------------------- */

/* Whatever a step that was abandoned may have left: slot metadata of the step's set, rows of what is free, or of new tokens. */
static void tear(struct fixture *r, bool prompt)
{
	struct skv_evict_rule by = {.granularity = r->unit, .recent.count = 1};
	struct skv_kseq kept[CASE_SEQS];

	memcpy(kept, r->seq, sizeof kept);
	write_step(r, prompt, true);
	for (uint32_t b = 0; b < r->n; b++)
		r->seq[b].n_retained = rnd_below(units_of(r, r->seq[b].len) + 1);
	if (!prompt) {
		struct skv_batch b = batch_of(r);
		struct skv_workspace w = case_work(&r->c, 1);
		r->c.on->kern->evict(&r->c.sh, &b, &by, NULL, 0, &w);
		case_work_done(&r->c, &w);
	}
	memcpy(r->seq, kept, sizeof kept);
}

/* Which of the entries live, and how they are valued, is made up; then the kernel and the model choose. */
static void choose(struct fixture *r)
{
	struct skv_evict_rule by = {.granularity = r->unit, .evict_older = rnd_below(2), .reset_scores = rnd_below(3) == 0};
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
			const uint32_t n = units_of(r, s->len);
			struct ref_evict k = {.n_retained = s->n_retained, .pinned = s->pinned};
			k.old_first = by.evict_older;
			k.forget = by.reset_scores;
			double own[CAP];
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

/* Scores of the step, of few values, so that many are equal and sums are exact. */
static void accumulate(struct fixture *r)
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

/* How many entries a decoding sequence retains: all, one fewer, or any number. Pages go when one is full. */
static uint32_t random_keep(const struct fixture *r, uint32_t i, uint32_t len)
{
	const uint32_t units = units_of(r, len), most = room(r, i) / r->unit / 2;

	if (len % r->unit)
		return UINT32_MAX;
	if (units > most || rnd_below(4) == 0)
		return rnd_below(units < most ? units : most);
	return rnd_below(2) ? UINT32_MAX : units - 1;
}

/* Some sequences decode a token, others have maintenance only. */
static void decode_step(struct fixture *r)
{
	begin(r);
	for (uint32_t i = 0; i < r->c.n; i++)
		if (r->len[i] + 3 * T < room(r, i) && rnd_below(5))
			add(r, i, r->len[i] == 0 || rnd_below(8));
	if (r->n == 0)
		return;
	read_pool(r, r->was);
	while (rnd_below(4) == 0)
		tear(r, false);
	model_alloc(r);
	write_step(r, false, false);
	if (r->unit == 1)
		accumulate(r);
	for (uint32_t b = 0; b < r->n; b++)
		r->seq[b].n_retained = r->seq[b].n_q ? random_keep(r, r->who[b], r->seq[b].len) : UINT32_MAX;
	choose(r);
	check_step(r, 0);
	commit(r, 0);
}

static void settle(struct fixture *r, uint32_t i)
{
	begin(r);
	add(r, i, 0);
	read_pool(r, r->was);
	if (rnd_below(2))
		tear(r, false);
	model_alloc(r);
	write_step(r, false, false);
	check_step(r, 0);
	commit(r, 0);
}

/* The page that is being filled comes last: out of the way first, in a step of its own. */
static void lift(struct fixture *r, uint32_t i)
{
	const uint32_t units = skv_pages_of(r->len[i]);

	begin(r);
	add(r, i, 0);
	read_pool(r, r->was);
	for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++) {
		struct head *hd = &r->head[i][h];
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
	check_step(r, 2);
	commit(r, 2);
}

static void prompt_step(struct fixture *r)
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
	read_pool(r, r->was);
	if (rnd_below(2))
		tear(r, true);
	model_prompt(r);
	write_step(r, true, false);
	check_step(r, 0);
	commit(r, 0);
}

static void run_steps(int shape, uint32_t unit, uint32_t n, uint32_t steps)
{
	struct fixture *r = malloc(sizeof *r);

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

	tcase_add_loop_test(t, tokens, 0, cases);
	tcase_add_loop_test(t, pages, 0, cases);
	tcase_add_loop_test(t, hundreds_of_steps, 0, rnd_hurried() ? 0 : 4);
	return run_suite(s);
}
