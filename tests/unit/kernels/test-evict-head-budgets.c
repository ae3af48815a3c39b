/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-evict-head-budgets.c - heads that share a layer's budget, one call at a time, on every
 * backend of this machine: which slots are active, scores of these only, which become inactive, and what activates all.
 * test-evict.c has the other decisions of layers that evict.
 */
#include "tests/support/slot-meta-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* A case with the units of all heads. */
struct fixture {
	struct kernel_case c;
	struct skv_kseq seq[CASE_SEQS];
	struct ref_unit *unit[CASE_SEQS * 8]; /* [seq][kv head] */
};

static const struct ref_unit *units_of(const struct fixture *r, uint32_t x, uint32_t *ret_n)
{
	*ret_n = r->c.seq[x / r->c.sh.n_kv_heads].len;
	return r->unit[x];
}

/* Makes entries of which some are inactive and some are to be evicted, but never the last one. */
static void make_units(struct fixture *r)
{
	slot_meta_sequences(&r->c, r->seq);
	for (uint32_t x = 0; x < r->c.n * r->c.sh.n_kv_heads; x++) {
		const uint32_t n = r->c.seq[x / r->c.sh.n_kv_heads].len, inactive = rnd_below(4), gone = rnd_below(3);
		r->unit[x] = slot_meta_units(n, 1 + rnd_below(3));
		for (uint32_t u = 0; u < n; u++) {
			r->unit[x][u].value = rnd_below(64) / 32.0;
			if (u + 1 < n && rnd_below(4) < inactive)
				r->unit[x][u].value *= -1; /* -0, too */
			r->unit[x][u].alive = u + 1 == n || rnd_below(8) >= gone;
		}
	}
}

/* Writes the units into the set that the step writes, or into the one before it. */
static void put_units(struct fixture *r, bool before)
{
	for (uint32_t x = 0; x < r->c.n * r->c.sh.n_kv_heads; x++) {
		const uint32_t i = x / r->c.sh.n_kv_heads, set = r->seq[i].set;
		slot_meta_put(&r->c, i, x % r->c.sh.n_kv_heads, before ? !set : set, r->unit[x], r->c.seq[i].len);
	}
}

static void rig_free(struct fixture *r)
{
	for (uint32_t x = 0; x < r->c.n * r->c.sh.n_kv_heads; x++)
		free(r->unit[x]);
}

/* Checks that the slot metadata equals the model: values up to a tolerance, signs exactly. */
static void check_units(const struct fixture *r, double tolerance, double slack)
{
	for (uint32_t x = 0; x < r->c.n * r->c.sh.n_kv_heads; x++) {
		uint32_t n;
		const struct ref_unit *want = units_of(r, x, &n);
		const uint32_t i = x / r->c.sh.n_kv_heads;
		struct skv_slot_meta *meta = slot_meta_get(&r->c, i, x % r->c.sh.n_kv_heads, r->seq[i].set, n);

		for (uint32_t u = 0; u < n; u++) {
			const double off = fabs((double)meta[u].score - want[u].value);
			if (meta[u].pos != (want[u].pos | (want[u].alive ? 0 : SKV_SLOT_EVICTED)) ||
			    !signbit(meta[u].score) != !signbit(want[u].value) || !(off <= tolerance + slack * fabs(want[u].value)))
				ck_abort_msg("%s: entry %u of %u, row %u: pos %#x, value %g, expected pos %u with %g (%s)",
				             r->c.on->name, u, n, x, meta[u].pos, (double)meta[u].score, want[u].pos,
				             want[u].value, want[u].alive ? "alive" : "gone");
		}
		free(meta);
	}
}

static bool is_active(const struct ref_unit *u)
{
	return u->alive && !signbit(u->value);
}

/* ---- lists, scores ---------------------------------------------------------------------------- */

static struct skv_index_list list_active(struct fixture *r)
{
	const uint32_t heads = r->c.sh.n_kv_heads, stride = r->c.max_len + rnd_below(5);
	struct skv_batch b = slot_meta_batch(&r->c, r->seq, 0, r->c.n);
	struct skv_index_list list = {.rows = heads, .stride = stride};

	list.ids = case_to(&r->c, NULL, (size_t)r->c.n * heads * stride * sizeof(uint32_t));
	list.count = case_to(&r->c, NULL, (size_t)r->c.n * heads * sizeof(uint32_t));
	struct skv_workspace w = case_work(&r->c, 2);
	r->c.on->kern->list_active(&r->c.sh, &b, &list, &w);
	case_work_done(&r->c, &w);
	ck_assert_uint_ge(list.max_count, r->c.max_len);
	return list;
}

static void check_list(const struct fixture *r, const struct skv_index_list *list)
{
	const uint32_t rows = r->c.n * r->c.sh.n_kv_heads;
	uint32_t *ids = malloc((size_t)rows * list->stride * sizeof *ids), *count = malloc(rows * sizeof *count);

	case_from(&r->c, ids, list->ids, (size_t)rows * list->stride * sizeof *ids);
	case_from(&r->c, count, list->count, rows * sizeof *count);
	for (uint32_t x = 0; x < rows; x++) {
		uint32_t n, m = 0;
		const struct ref_unit *unit = units_of(r, x, &n);

		for (uint32_t u = 0; u < n; u++)
			if (is_active(&unit[u]) && (m >= count[x] || ids[(size_t)x * list->stride + m++] != u))
				ck_abort_msg("%s: row %u does not have slot %u", r->c.on->name, x, u);
		ck_assert_uint_eq(m, count[x]);
	}
	free(ids);
	free(count);
}

/*
 * The model: adds the query's weights, of a softmax over active tokens only, to the values of these, or replaces the
 * values.
 */
static void accumulate(struct fixture *r, const float *q, uint32_t x)
{
	const struct kernel_case *c = &r->c;
	const uint32_t i = x / c->sh.n_kv_heads, h = x % c->sh.n_kv_heads, n = c->seq[i].len, dim = c->sh.head_dim;
	const uint32_t group = c->sh.n_heads / c->sh.n_kv_heads, mode = r->seq[i].accumulate;
	double *weight = calloc(n, sizeof *weight), *sum = calloc(n, sizeof *sum), out[SKV_MAX_HEAD_DIM];
	bool *visible = calloc(n, sizeof *visible);

	for (uint32_t u = 0; u < n; u++)
		visible[u] = is_active(&r->unit[x][u]);
	for (uint32_t g = 0; g < group; g++) {
		ref_attention(q + ((size_t)c->seq[i].row * c->sh.n_heads + h * group + g) * dim, c->k[i] + h * dim, c->v[i] + h * dim,
		              n, c->sh.n_kv_heads * dim, dim, case_softmax(c, h * group + g), visible, out, weight);
		for (uint32_t u = 0; u < n; u++)
			sum[u] += weight[u] / group;
	}
	for (uint32_t u = 0; u < n && mode != SKV_ACCUMULATE_NONE; u++)
		if (visible[u])
			r->unit[x][u].value = (mode == SKV_ACCUMULATE_ADD ? r->unit[x][u].value : 0) + sum[u];
	free(weight);
	free(visible);
	free(sum);
}

START_TEST(scores_over_lists)
{
	const uint32_t len[] = {1, 2, 17, 64, 130, 333};

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct fixture r;
		case_of_shape(&r.c, _i, 6, len, ones);
		if (case_load(&r.c, b)) {
			make_units(&r);
			put_units(&r, false);
			for (uint32_t i = 0; i < r.c.n; i++)
				r.seq[i].accumulate = rnd_below(3);
			float *q = case_q(&r.c, b);
			void *rows = case_rows_to(&r.c, r.c.q, (size_t)r.c.rows * r.c.sh.n_heads * r.c.sh.head_dim);
			struct skv_index_list list = list_active(&r);
			struct skv_batch batch = slot_meta_batch(&r.c, r.seq, 0, r.c.n);
			struct skv_workspace w = case_work(&r.c, 2);
			check_list(&r, &list);
			b->kern->accumulate_list(&r.c.sh, &batch, rows, &list, &w);
			case_work_done(&r.c, &w);
			for (uint32_t x = 0; x < r.c.n * r.c.sh.n_kv_heads; x++)
				accumulate(&r, q, x);
			check_units(&r, b->device ? 1e-4 : 1e-5, case_weight_slack(&r.c, b) + 1e-5);
			free(q);
			rig_free(&r);
			case_off(&r.c);
		}
		case_deinit(&r.c);
	}
}
END_TEST

/* ---- head budgets ---------------------------------------------------------------------------- */

static float some_rank(int way)
{
	static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f, 1,
	                            1.0000001f};

	return way == 0 ? odd[rnd_below(11)] : way == 1 ? 1 : way == 2 ? (float)rnd_below(3) : rnd_normal();
}

/* Makes random ranks, and applies them to sequence i of the model. */
static void model_head_budgets(struct fixture *r, uint32_t i, const struct skv_head_budget_rule *how, int way,
                               float *rank, uint32_t stride)
{
	const uint32_t heads = r->c.sh.n_kv_heads, n = r->seq[i].len, active = r->seq[i].n_active;
	const struct ref_head_budgets a = {.active = active, .safeguard = skv_safeguard_of(how, active),
	                            .recent = how->recent && how->recent - 1 < active ? how->recent - 1 : how->recent ? active : 0};
	double *as_double[8];

	for (uint32_t h = 0; h < heads; h++) {
		as_double[h] = malloc(n * sizeof(double));
		for (uint32_t u = 0; u < n; u++)
			as_double[h][u] = (double)(rank[((size_t)i * heads + h) * stride + u] = some_rank(way));
	}
	if (active != UINT32_MAX)
		ref_head_budgets(&r->unit[i * heads], heads, n, &a, (const double *const *)as_double);
	for (uint32_t h = 0; h < heads; h++)
		free(as_double[h]);
}

static void head_budgets_case(struct fixture *r, int way)
{
	const uint32_t heads = r->c.sh.n_kv_heads, stride = r->c.max_len + rnd_below(7);
	const struct skv_head_budget_rule how = {.recent = rnd_below(3) * rnd_below(20),
	                                         .safeguard = rnd_below(3) * 0.2f};
	float *rank = calloc((size_t)r->c.n * heads * stride, sizeof *rank);

	make_units(r);
	put_units(r, false);
	for (uint32_t i = 0; i < r->c.n; i++)
		r->seq[i].n_active = rnd_below(5) ? rnd_below(r->seq[i].len + 1) : UINT32_MAX;
	for (uint32_t i = 0; i < r->c.n; i++)
		model_head_budgets(r, i, &how, way, rank, stride);
	const float *there = case_to(&r->c, rank, (size_t)r->c.n * heads * stride * sizeof *rank);
	struct skv_batch b = slot_meta_batch(&r->c, r->seq, 0, r->c.n);
	struct skv_workspace w = case_work(&r->c, 3);
	r->c.on->kern->allocate_head_budgets(&r->c.sh, &b, &how, there, stride, &w);
	case_work_done(&r->c, &w);
	check_units(r, 0, 0);
	free(rank);
	rig_free(r);
}

START_TEST(allotments)
{
	const uint32_t len[] = {1, 2, 16, 33, 130, 600, 64};

	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (int way = 0; way < 8; way++) {
			struct fixture r;
			case_of_shape(&r.c, _i, 7, len, ones);
			if (case_on(&r.c, b)) {
				head_budgets_case(&r, way % 4);
				case_off(&r.c);
			}
			case_deinit(&r.c);
		}
}
END_TEST

/* Long prompts: a head may exceed its share, as long as the others keep their safeguards. */
START_TEST(long_ones)
{
	const uint32_t len[] = {30000, 20001};

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct fixture r;
		case_init(&r.c, SKV_F16, 8, 4, b->device ? 64 : 16, 2, len, ones);
		if (case_on(&r.c, b)) {
			head_budgets_case(&r, 2 + _i);
			case_off(&r.c);
		}
		case_deinit(&r.c);
	}
}
END_TEST

/* ---- what activates --------------------------------------------------------------------------- */

/* A step's scores over all slots activate all entries, and so does a prompt. */
START_TEST(activates)
{
	const uint32_t len[] = {1, 2, 17, 64, 130, 333}, n_q[] = {1, 1, 5, 3, 128, 40};

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct fixture r;
		case_of_shape(&r.c, _i, 6, len, _i % 2 ? n_q : ones);
		if (case_on(&r.c, b)) {
			const uint32_t rows = r.c.n * r.c.sh.n_kv_heads, stride = (r.c.max_len + 15) / 16 * 16;
			struct skv_scores ev = {.rows = r.c.sh.n_kv_heads, .sum = true, .token_stride = stride};
			float *none = calloc((size_t)rows * stride, sizeof *none);
			struct skv_slot_mapping slots = {.granularity = 1,
			                                 .slot = case_to(&r.c, NULL, rows * sizeof(uint32_t))};
			make_units(&r);
			for (uint32_t i = 0; i < r.c.n; i++) {
				r.seq[i].slot_end = len[i] - r.c.seq[i].n_q;
				r.seq[i].accumulate = SKV_ACCUMULATE_ADD;
			}
			for (uint32_t x = 0; x < rows; x++)
				for (uint32_t u = 0; u < len[x / r.c.sh.n_kv_heads]; u++) {
					struct ref_unit *unit = &r.unit[x][u];
					unit->alive = true;
					unit->pos = u;
				}
			put_units(&r, _i % 2);
			ev.token = case_to(&r.c, none, (size_t)rows * stride * sizeof *none);
			struct skv_batch batch = slot_meta_batch(&r.c, r.seq, 0, r.c.n);
			struct skv_workspace w = case_work(&r.c, 2);
			if (_i % 2)
				b->kern->alloc_prompt_slots(&r.c.sh, &batch, &slots, &w);
			else
				b->kern->accumulate_scores(&r.c.sh, &batch, &ev, &w);
			case_work_done(&r.c, &w);
			for (uint32_t x = 0; x < rows; x++)
				for (uint32_t u = 0; u < len[x / r.c.sh.n_kv_heads]; u++)
					r.unit[x][u].value = _i % 2 && u >= r.seq[x / r.c.sh.n_kv_heads].slot_end
					                             ? 0
					                             : fabs(r.unit[x][u].value);
			check_units(&r, 0, 0);
			free(none);
			rig_free(&r);
			case_off(&r.c);
		}
		case_deinit(&r.c);
	}
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-evict-head-budgets");
	TCase *t = add_case(s, "all", 300, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 3 : CASE_SHAPES;

	add_cases(t, scores_over_lists, cases);
	add_cases(t, allotments, cases);
	add_cases(t, long_ones, rnd_hurried() ? 0 : 2);
	add_cases(t, activates, cases);
	return run_suite(s);
}
