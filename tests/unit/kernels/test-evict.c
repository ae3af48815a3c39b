/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-evict.c - the decisions of layers that evict, one call at a time, on every backend of this
 * machine: scores of prompts, ranks, retained entries, listed pages, and attention to these. test-evict-slots.c tests
 * whole steps.
 */
#include "tests/support/slot-meta-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define T SKV_PAGE_TOKENS

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* ---- scores of prompts ----------------------------------------------------------------------- */

static double *prompt_scores(const struct kernel_case *c, const float *q, uint32_t i, uint32_t h, uint32_t window)
{
	const struct skv_kseq *s = &c->seq[i];
	const uint32_t dim = c->sh.head_dim, group = c->sh.n_heads / c->sh.n_kv_heads;
	const uint32_t window_rows = window && window < s->n_q ? window : s->n_q;
	double *sum = calloc(s->len, sizeof *sum), *weight = calloc(s->len, sizeof *weight), out[SKV_MAX_HEAD_DIM];
	bool *visible = calloc(s->len, sizeof *visible);

	for (uint32_t r = s->n_q - window_rows; r < s->n_q; r++)
		for (uint32_t g = 0; g < group; g++) {
			const size_t row = (size_t)(s->row + r) * c->sh.n_heads + h * group + g, at = h * dim;
			for (uint32_t t = 0; t < s->len; t++)
				visible[t] = t <= s->len - s->n_q + r;
			ref_attention(q + row * dim, c->k[i] + at, c->v[i] + at, s->len, c->sh.n_kv_heads * dim, dim, case_softmax(c, h * group + g),
			              visible, out, weight);
			for (uint32_t t = 0; t < s->len; t++)
				sum[t] += weight[t] / group;
		}
	free(weight);
	free(visible);
	return sum;
}

/* Checks a prompt's call: earlier values stay or are dropped, and the prompt's scores are added. */
static void check_scores(const struct kernel_case *c, const float *q, const struct skv_kseq *seq, uint32_t window,
                        struct ref_unit **unit)
{
	for (uint32_t x = 0; x < c->n * c->sh.n_kv_heads; x++) {
		const uint32_t i = x / c->sh.n_kv_heads, h = x % c->sh.n_kv_heads, n = c->seq[i].len;
		double *want = prompt_scores(c, q, i, h, window);
		struct skv_slot_meta *meta = slot_meta_get(c, i, h, seq[i].set, n);
		float *value = malloc(n * sizeof *value);

		for (uint32_t u = 0; u < n; u++) {
			value[u] = meta[u].score;
			ck_assert_uint_eq(meta[u].pos, unit[x][u].pos);
			if (window == 0 || c->seq[i].n_q < window)
				want[u] += fabs(unit[x][u].value); /* all become active */
		}
		case_compare(c->on->name, value, want, n, c->on->device ? 1e-4 : 1e-5,
		             case_weight_slack(c, c->on) + 1e-5);
		free(value);
		free(meta);
		free(want);
	}
}

static void accumulate_prompts(struct kernel_case *c, const struct skv_kseq *seq, uint32_t from, uint32_t n, const void *q,
                          uint32_t window, int threads)
{
	struct skv_batch b = slot_meta_batch(c, seq, from, n);
	struct skv_workspace w = case_work(c, threads);

	c->on->kern->accumulate_prompt(&c->sh, &b, q, window, &w);
	case_work_done(c, &w);
}

START_TEST(scores_of_prompts)
{
	static const uint32_t windows[] = {0, 1, 16, 70};
	const uint32_t len[] = {1, 63, 64, 130, 200, 17}, n_q[] = {1, 63, 5, 70, 33, 16};

	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (int some = 0; some < 2; some++) {
			const int way = (_i + some) % 4;
			struct ref_unit *unit[CASE_SEQS * 8];
			struct skv_kseq seq[CASE_SEQS];
			struct kernel_case c;

			case_of_shape(&c, _i, 6, len, n_q);
			if (!case_load(&c, b)) {
				case_deinit(&c);
				continue;
			}
			slot_meta_sequences(&c, seq);
			for (uint32_t x = 0; x < c.n * c.sh.n_kv_heads; x++) {
				const uint32_t i = x / c.sh.n_kv_heads;
				unit[x] = slot_meta_units(len[i], 1);
				for (uint32_t u = 0; u < len[i]; u++)
					unit[x][u].value = (rnd_below(5) ? 1 : -1) * (rnd_below(100) / 64.0);
				slot_meta_put(&c, i, x % c.sh.n_kv_heads, seq[i].set, unit[x], len[i]);
			}
			float *q = case_q(&c, b);
			void *rows = case_rows_to(&c, c.q, (size_t)c.rows * c.sh.n_heads * c.sh.head_dim);
			if (way == 3) /* one by one */
				for (uint32_t i = 0; i < c.n; i++)
					accumulate_prompts(&c, seq, i, 1, rows, windows[way], 1);
			else
				accumulate_prompts(&c, seq, 0, c.n, rows, windows[way], 2);
			check_scores(&c, q, seq, windows[way], unit);
			for (uint32_t x = 0; x < c.n * c.sh.n_kv_heads; x++)
				free(unit[x]);
			free(q);
			case_off(&c);
			case_deinit(&c);
		}
}
END_TEST

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Random values; or all the same, all 0, or of all magnitudes. */
static double random_value(int way)
{
	return way == 0 ? rnd_unit() : way == 1 ? 0.25 : way == 2 ? 0 : (float)ldexp(1 + rnd_unit(),
			(int)rnd_below(160) - 60);
}

static void rank_case(struct kernel_case *c, const struct skv_rank *how, int way)
{
	const uint32_t heads = c->sh.n_kv_heads, dim = c->sh.head_dim, stride = c->max_len + rnd_below(7);
	float *rank = malloc((size_t)c->n * heads * stride * sizeof *rank), *there;
	struct ref_unit *unit[CASE_SEQS * 8];
	struct skv_kseq seq[CASE_SEQS];
	double *want = malloc((size_t)stride * sizeof *want);

	slot_meta_sequences(c, seq);
	for (uint32_t x = 0; x < c->n * heads; x++) {
		const uint32_t i = x / heads, n = c->seq[i].len;
		seq[i].n_retained = i % 4 > 1 ? n : rnd_below(n); /* some sequences evict nothing */
		seq[i].n_active = i % 4 == 2 ? rnd_below(n + 1) : UINT32_MAX; /* some of these deactivate units */
		unit[x] = slot_meta_units(n, 1 + rnd_below(4));
		for (uint32_t u = 0; u < n; u++)
			unit[x][u].value = (how->lambda > 0 || rnd_below(5) ? 1 : -1) * (float)random_value(way);
		slot_meta_put(c, i, x % heads, seq[i].set, unit[x], n);
	}
	there = case_to(c, NULL, (size_t)c->n * heads * stride * sizeof *rank);
	struct skv_batch b = slot_meta_batch(c, seq, 0, c->n);
	struct skv_workspace w = case_work(c, 2);
	c->on->kern->rank_tokens(&c->sh, &b, how, there, stride, &w);
	case_work_done(c, &w);
	case_from(c, rank, there, (size_t)c->n * heads * stride * sizeof *rank);
	for (uint32_t x = 0; x < c->n * heads; x++) {
		const uint32_t i = x / heads, n = c->seq[i].len;
		const bool ranked = seq[i].n_retained < n || seq[i].n_active < UINT32_MAX;
		if (ranked)
			ref_rank(unit[x], n, how->smooth, (double)how->lambda, c->k[i] + x % heads * dim, heads * dim,
			         dim, want);
		for (uint32_t u = ranked ? n : 0; u < stride; u++)
			want[u] = NAN; /* untouched */
		case_compare(c->on->name, rank + (size_t)x * stride, want, stride, how->lambda > 0 ? 2e-6 : 0, 2e-5);
		free(unit[x]);
	}
	free(want);
	free(rank);
}

START_TEST(ranks)
{
	static const struct skv_rank how[] = {{0, 0}, {1, 0}, {5, 0}, {63, 0}, {0, 0.1f}, {7, 0.5f}, {3, 1}};
	const uint32_t len[] = {1, 16, 63, 100, 130, 64};

	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (int x = 0; x < 3; x++) {
			struct kernel_case c;
			case_of_shape(&c, _i, 6, len, ones);
			const uint32_t row = c.sh.n_kv_heads * c.sh.head_dim;
			for (uint32_t t = 0; t < 64; t++) /* equal keys, and keys of zeros */
				for (uint32_t d = 0; d < row; d++) {
					c.k_in[5][t * row + d] = c.k[5][t * row + d] = c.k[5][d];
					if (t < 63 && t % 2)
						c.k_in[2][t * row + d] = c.k[2][t * row + d] = 0;
				}
			if (case_load(&c, b)) {
				rank_case(&c, &how[(3 * x + _i) % 7], rnd_below(4));
				case_off(&c);
			}
			case_deinit(&c);
		}
}
END_TEST

/* ---- what is retained ------------------------------------------------------------------------ */

/* Numbers that are hard to sort. */
static float odd_number(int way)
{
	static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f, 1,
	                            1.0000001f};

	switch (way) {
	case 0:
		return odd[rnd_below(11)];
	case 1:
		return 1; /* all equal */
	case 2:
		return (float)rnd_below(3);
	default:
		return rnd_normal();
	}
}

static void evict_case(struct kernel_case *c, int way)
{
	const uint32_t heads = c->sh.n_kv_heads, stride = c->max_len + rnd_below(7), unit = rnd_below(3) ? 1 : T;
	const bool ranked = rnd_below(2);
	struct skv_evict_rule by = {.granularity = unit, .evict_older = rnd_below(2), .reset_scores = rnd_below(2)};
	float *rank = malloc((size_t)c->n * heads * stride * sizeof *rank);
	struct ref_unit *model[CASE_SEQS * 8];
	struct skv_kseq seq[CASE_SEQS];

	if (rnd_below(3))
		by.recent = rnd_below(2) ? (struct skv_budget){.count = 1 + rnd_below(100)} : (struct skv_budget){.share = 0.5f};
	slot_meta_sequences(c, seq);
	for (uint32_t i = 0; i < c->n; i++) {
		const uint32_t n = unit == 1 ? seq[i].len : skv_pages_of(seq[i].len);
		seq[i].n_retained = rnd_below(3) ? n - 1 : rnd_below(4) ? rnd_below(n) : n;
		seq[i].pinned = rnd_below(3) ? 0 : rnd_below(2 * n);
	}
	for (uint32_t x = 0; x < c->n * heads; x++) {
		const struct skv_kseq *s = &seq[x / heads];
		const uint32_t n = unit == 1 ? s->len : skv_pages_of(s->len);
		struct ref_evict k = {.n_retained = s->n_retained, .pinned = s->pinned, .old_first = by.evict_older, .forget = by.reset_scores,
		                     .recent = s->n_retained < n ? skv_recent_of(&by, s->n_retained) : 0};
		double *own = malloc(n * sizeof *own);
		model[x] = slot_meta_units(n, 1 + rnd_below(3));
		for (uint32_t u = 0; u < n; u++) {
			model[x][u].value = odd_number(way);
			own[u] = rank[(size_t)x * stride + u] = odd_number(way);
		}
		slot_meta_put(c, x / heads, x % heads, s->set, model[x], n);
		ref_evict(model[x], n, &k, ranked ? own : NULL);
		free(own);
	}
	const float *there = case_to(c, rank, (size_t)c->n * heads * stride * sizeof *rank);
	struct skv_batch b = slot_meta_batch(c, seq, 0, c->n);
	struct skv_workspace w = case_work(c, 3);
	c->on->kern->evict(&c->sh, &b, &by, ranked ? there : NULL, stride, &w);
	case_work_done(c, &w);
	for (uint32_t x = 0; x < c->n * heads; x++) {
		const struct skv_kseq *s = &seq[x / heads];
		const uint32_t n = unit == 1 ? s->len : skv_pages_of(s->len);
		struct skv_slot_meta *meta = slot_meta_get(c, x / heads, x % heads, s->set, n);
		for (uint32_t u = 0; u < n; u++) {
			const struct ref_unit m = model[x][u];
			const bool same = m.alive && isnan(m.value) ? isnan(meta[u].score) : meta[u].score == (float)m.value;
			if (meta[u].pos != (m.alive ? m.pos : m.pos | SKV_SLOT_EVICTED) || (m.alive && !same))
				ck_abort_msg("%s: unit %u of %u, kv head %u, pos %u, should %s with value %g; it is %#x, %g",
				             c->on->name, u, n, x % heads, m.pos, m.alive ? "stay" : "go", m.value,
				             meta[u].pos, (double)meta[u].score);
		}
		free(meta);
		free(model[x]);
	}
	free(rank);
}

START_TEST(who_stays)
{
	const uint32_t len[] = {1, 2, 16, 17, 130, 600, 32};

	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (int way = 0; way < 8; way++) {
			struct kernel_case c;
			case_of_shape(&c, _i, 7, len, ones);
			if (case_on(&c, b)) {
				evict_case(&c, way % 4);
				case_off(&c);
			}
			case_deinit(&c);
		}
}
END_TEST

/* Long prompts that shrink, with enough work for more than one thread on the host. */
START_TEST(long_ones)
{
	const uint32_t len[] = {50000, 20001}, some[] = {4200, 1001};

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct kernel_case c;
		case_init(&c, SKV_F16, 4, 2, b->device ? 64 : 16, 2, len, ones);
		if (case_on(&c, b)) {
			evict_case(&c, 2 + _i);
			case_off(&c);
		}
		case_deinit(&c);
		case_init(&c, SKV_F16, 8, 8, b->device ? 64 : 16, 2, some, ones);
		if (case_on(&c, b)) {
			rank_case(&c, &(struct skv_rank){.smooth = 5}, _i);
			case_off(&c);
		}
		case_deinit(&c);
	}
}
END_TEST

/* ---- pages that matter ----------------------------------------------------------------------- */

/* The pages of a sequence, with each kv head's order and the listed ones. */
struct paged {
	uint32_t n, fill; /* pages; tokens of the one being filled */
	struct ref_unit *unit[8];
	bool *listed[8];
};

/*
 * The model of touch_pages() for a kv head. Page scores are the same for all heads of a group, and have few values that
 * are far apart.
 */
static void model_stamp(const struct kernel_case *c, const struct skv_touch_rule *how, const struct skv_kseq *s,
                        const float *score, uint32_t stride, struct ref_unit *unit, bool *listed)
{
	const uint32_t n = skv_pages_of(s->len), filling = ref_latest(unit, n), group = c->sh.n_heads / c->sh.n_kv_heads;
	double *weight = malloc(n * sizeof *weight);
	bool *may = malloc(n * sizeof *may), *best = malloc(n * sizeof *best);

	ref_weights(score, group, stride, n, (double)how->scale, weight);
	for (uint32_t u = 0; u < n; u++) {
		may[u] = true;
		best[u] = weight[u] > (double)how->alpha;
	}
	if (how->ratio > 0)
		ref_best_entries(unit, n, weight, may, (uint32_t)fmax(1, ceil((double)how->ratio * n - 1e-4)), best);
	for (uint32_t u = 0; u < n; u++)
		if (best[u] || (u == filling && s->len % T == 1))
			unit[u].value = s->n_tokens;
	for (uint32_t u = 0; u < n; u++)
		may[u] = unit[u].pos < s->pinned && u != filling;
	ref_best_entries(unit, n, weight, may, skv_budget_of(how->pinned, skv_pages_of(s->n_tokens), how->pinned_floor), best);
	for (uint32_t u = 0; u < n; u++)
		listed[u] = !may[u] || best[u] || (how->pinned.count == 0 && how->pinned.share == 0);
	free(weight);
	free(may);
	free(best);
}

/* Checks that a kv head's list has exactly the expected pages, each once, with the partial page last. */
static void check_list(const struct kernel_case *c, const struct skv_kseq *s, const uint32_t *ids, uint32_t count,
                       const struct ref_unit *unit, const bool *listed)
{
	const uint32_t n = skv_pages_of(s->len), filling = ref_latest(unit, n);
	bool *seen = calloc(n, sizeof *seen);

	for (uint32_t x = 0; x < count; x++) {
		ck_assert_msg(ids[x] < n && !seen[ids[x]] && listed[ids[x]], "%s: page %u is listed", c->on->name,
		              ids[x]);
		seen[ids[x]] = true;
	}
	for (uint32_t u = 0; u < n; u++)
		ck_assert_msg(seen[u] == listed[u], "%s: page %u is not listed", c->on->name, u);
	ck_assert_uint_eq(ids[count - 1], filling);
	free(seen);
}

/*
 * Checks the attention of kv head h over the listed pages. Returns the tokens attended to, over all heads of the group.
 */
static uint32_t check_attention(const struct kernel_case *c, const float *q, const float *out, uint32_t i, uint32_t h,
                                const struct skv_kseq *s, const struct ref_unit *unit, const bool *listed)
{
	const uint32_t n = skv_pages_of(s->len), filling = ref_latest(unit, n), dim = c->sh.head_dim;
	const uint32_t group = c->sh.n_heads / c->sh.n_kv_heads;
	bool *visible = calloc(n, T * sizeof *visible);
	uint32_t tokens = 0;

	for (uint32_t t = 0; t < n * T; t++) {
		visible[t] = listed[t / T] && (t / T != filling || t % T <= (s->len - 1) % T);
		tokens += visible[t];
	}
	for (uint32_t g = 0; g < group; g++) {
		const size_t head = (size_t)i * c->sh.n_heads + h * group + g;
		double want[SKV_MAX_HEAD_DIM];
		ref_attention(q + head * dim, c->k[i] + h * dim, c->v[i] + h * dim, n * T, c->sh.n_kv_heads * dim, dim,
		              case_softmax(c, h * group + g), visible, want, NULL);
		case_compare(c->on->name, out + head * dim, want, dim, case_tolerance(c, c->on, 2e-5), 0);
	}
	free(visible);
	return tokens * group;
}

/* Makes the pages of all sequences' kv heads, their slot metadata, and their scores, which have few values. */
static void make_pages(struct kernel_case *c, struct skv_kseq *seq, float *score, uint32_t stride,
                       struct ref_unit **unit)
{
	const uint32_t heads = c->sh.n_kv_heads, group = c->sh.n_heads / heads;

	slot_meta_sequences(c, seq);
	for (uint32_t x = 0; x < c->n * heads; x++) {
		struct skv_kseq *s = &seq[x / heads];
		const uint32_t n = skv_pages_of(s->len);
		if (x % heads == 0) {
			/* all pages have all of their rows */
			s->len -= s->len % T ? 0 : rnd_below(2) ? T - 1 : rnd_below(T);
			s->n_tokens = s->len + T * rnd_below(20);
			s->pinned = rnd_below(3) ? rnd_below(3 * n + 3) : 0;
		}
		unit[x] = slot_meta_units(n, 1 + rnd_below(3));
		for (uint32_t u = 0; u < n; u++) {
			const bool best = u == ref_latest(unit[x], n) && rnd_below(2);
			const float own = best ? 75 : 30 * (float)rnd_below(3); /* no weight is too small for a float */
			unit[x][u].value = rnd_below(50);
			const bool bounded = best || u == 0 || rnd_below(8);
			for (uint32_t g = 0; g < group; g++)
				score[((size_t)x * group + g) * stride + u] = bounded ? own : -INFINITY;
		}
		slot_meta_put(c, x / heads, x % heads, s->set, unit[x], n);
	}
}

static void stamp_case(struct kernel_case *c, const struct skv_touch_rule *how)
{
	const uint32_t heads = c->sh.n_kv_heads, group = c->sh.n_heads / heads;
	const uint32_t floats = c->n * c->sh.n_heads * c->sh.head_dim;
	struct skv_scores ev = {.rows = c->sh.n_heads, .page_stride = (skv_pages_of(c->max_len) + 3) / 4 * 4};
	float *score = malloc((size_t)c->n * ev.rows * ev.page_stride * sizeof *score);
	float *out = malloc(floats * sizeof *out);
	struct skv_index_list list = {.rows = heads, .stride = skv_pages_of(c->max_len) + 1};
	uint32_t *ids = malloc((size_t)c->n * heads * list.stride * sizeof *ids), count[CASE_SEQS * 8];
	struct ref_unit *unit[CASE_SEQS * 8];
	struct skv_kseq seq[CASE_SEQS];
	uint64_t attended[CASE_SEQS];

	make_pages(c, seq, score, ev.page_stride, unit);
	ev.page = case_to(c, score, (size_t)c->n * ev.rows * ev.page_stride * sizeof *score);
	list.ids = case_to(c, NULL, (size_t)c->n * heads * list.stride * sizeof *ids);
	list.count = case_to(c, NULL, c->n * heads * sizeof *count);
	void *rows = case_rows_to(c, c->q, floats), *made = case_to(c, NULL, case_rows_bytes(c, floats));
	struct skv_batch b = slot_meta_batch(c, seq, 0, c->n);
	struct skv_workspace w = case_work(c, 2);
	c->on->kern->touch_pages(&c->sh, &b, &ev, how, &list, &w);
	c->on->kern->decode_pages(&c->sh, &b, rows, made, &list, &w);
	case_work_done(c, &w);
	ck_assert(list.last_partial && list.max_count >= 1 && list.max_count <= list.stride);
	case_from(c, ids, list.ids, (size_t)c->n * heads * list.stride * sizeof *ids);
	case_from(c, count, list.count, c->n * heads * sizeof *count);
	case_from(c, attended, c->attended, c->n * sizeof *attended);
	case_rows_from(c, out, made, floats);
	float *q = case_q(c, c->on);
	for (uint32_t i = 0; i < c->n; i++) {
		const uint32_t n = skv_pages_of(seq[i].len);
		uint64_t looked = 0;
		bool *listed = malloc(n * sizeof *listed);
		for (uint32_t h = 0; h < heads; h++) {
			const uint32_t x = i * heads + h;
			model_stamp(c, how, &seq[i], score + (size_t)x * group * ev.page_stride, ev.page_stride,
			            unit[x], listed);
			struct skv_slot_meta *meta = slot_meta_get(c, i, h, seq[i].set, n);
			for (uint32_t u = 0; u < n; u++)
				ck_assert_msg(meta[u].pos == unit[x][u].pos && meta[u].score == (float)unit[x][u].value,
				              "%s: page %u, pos %u is stamped %g, should be %g", c->on->name, u, unit[x][u].pos,
				              (double)meta[u].score, unit[x][u].value);
			ck_assert_uint_le(count[x], list.max_count);
			check_list(c, &seq[i], ids + (size_t)x * list.stride, count[x], unit[x], listed);
			looked += check_attention(c, q, out, i, h, &seq[i], unit[x], listed);
			free(meta);
			free(unit[x]);
		}
		if (case_has_counter(i))
			ck_assert_uint_eq(attended[i] - case_attended_before(i), looked);
		free(listed);
	}
	free(score);
	free(out);
	free(ids);
	free(q);
}

START_TEST(pages_that_matter)
{
	static const struct skv_touch_rule how[] = {
		{.alpha = 1e-4f, .scale = 1},
		{.ratio = 0.5f, .scale = 0.1f},
		{.ratio = 0.3f, .scale = 1, .pinned.share = 0.2f, .pinned_floor = 1},
		{.alpha = 1e-4f, .scale = 0.5f, .pinned.count = 3},
		{.ratio = 1e-3f, .scale = 0.1f},
	};
	const uint32_t len[] = {16, 32, 48, 160, 640, 272};

	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (int x = 0; x < 2; x++) {
			struct kernel_case c;
			case_of_shape(&c, _i, 6, len, ones);
			if (case_load(&c, b)) {
				stamp_case(&c, &how[(_i + x) % 5]);
				case_off(&c);
			}
			case_deinit(&c);
		}
}
END_TEST

/* ---- a sequence that had no slot metadata --------------------------------------------------- */

START_TEST(metadata_of_what_is_there)
{
	const uint32_t len[] = {1, 16, 130, 600, 63}, units[] = {1, T};

	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (int way = 0; way < 2; way++) {
			struct skv_slot_mapping slots = {.granularity = units[way]};
			struct skv_kseq seq[CASE_SEQS];
			struct kernel_case c;

			case_of_shape(&c, _i, 5, len, ones);
			case_punch(&c, 4);
			if (!case_on(&c, b)) {
				case_deinit(&c);
				continue;
			}
			slot_meta_sequences(&c, seq);
			struct skv_batch batch = slot_meta_batch(&c, seq, 0, c.n);
			struct skv_workspace w = case_work(&c, 1);
			b->kern->init_slot_meta(&c.sh, &batch, &slots, &w);
			case_work_done(&c, &w);
			for (uint32_t x = 0; x < c.n * c.sh.n_kv_heads; x++) {
				const uint32_t i = x / c.sh.n_kv_heads, n = way ? skv_pages_of(len[i]) : len[i];
				struct skv_slot_meta *meta = slot_meta_get(&c, i, x % c.sh.n_kv_heads, !seq[i].set, n);
				for (uint32_t u = 0; u < n; u++) {
					const uint32_t pos = case_resident(&c, i, u * units[way]) ? u : SKV_SLOT_FREE;
					if (meta[u].pos != pos || meta[u].score != 0)
						ck_abort_msg("%s: meta %u is %#x, %g", b->name, u, meta[u].pos,
						             (double)meta[u].score);
				}
				free(meta);
			}
			case_off(&c);
			case_deinit(&c);
		}
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-evict");
	TCase *t = add_case(s, "all", 300, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 3 : CASE_SHAPES;

	add_cases(t, scores_of_prompts, cases);
	add_cases(t, ranks, cases);
	add_cases(t, who_stays, cases);
	add_cases(t, long_ones, rnd_hurried() ? 0 : 2);
	add_cases(t, pages_that_matter, cases);
	add_cases(t, metadata_of_what_is_there, cases);
	return run_suite(s);
}
