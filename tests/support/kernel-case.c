/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/kernel-case.h"
#include "tests/ref/attention.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REDZONE 256u
#define LAYERS 3u
#define TABLES (LAYERS + 3) /* and one each of state pages, slot metadata and saved prefill queries */

/* ---- how devices differ ---------------------------------------------------------------------- */

/* The dtype that a device's tensor cores use for rows of this dtype. */
static uint32_t multiplied_as(uint32_t dtype)
{
	return dtype == SKV_FP8 ? SKV_F16 : dtype;
}

float case_rounded_q(const struct kernel_case *c, const struct test_backend *b, float q)
{
	return case_rounds_q(c, b) ? ref_round(multiplied_as(c->sh.dtype), q) : q;
}

bool case_rounds_q(const struct kernel_case *c, const struct test_backend *b)
{
	return b->device && c->sh.dtype != SKV_F32;
}

float *case_q(const struct kernel_case *c, const struct test_backend *b)
{
	size_t n = (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
	float *q = malloc(n * sizeof *q);
	for (size_t x = 0; x < n; x++)
		q[x] = case_rounded_q(c, b, c->q[x]);
	return q;
}

double case_tolerance(const struct kernel_case *c, const struct test_backend *b, double host)
{
	/* half of the last digit; K and V are hardly larger than 4 */
	double rounding = 4 * (multiplied_as(c->sh.dtype) == SKV_F16 ? 0x1p-11 : 0x1p-8);
	if (!case_rounds_q(c, b))
		return host;
	return host + rounding * (b->io_dtype == SKV_F32 ? 1 : 2);
}

double case_weight_slack(const struct kernel_case *c, const struct test_backend *b)
{
	if (!b->device)
		return 0;
	return multiplied_as(c->sh.dtype) == SKV_F16 ? 0.01 : 0.05;
}

/* ---- a case ---------------------------------------------------------------------------------- */

float rnd_normal(void)
{
	double x = 0;
	for (int i = 0; i < 6; i++)
		x += rnd_unit() - 0.5;
	return (float)(x * 1.41421356);
}

static float *random_floats(size_t n)
{
	float *x = malloc(n * sizeof *x);
	for (size_t i = 0; i < n; i++)
		x[i] = rnd_normal();
	return x;
}

static uint32_t notes_pages(const struct kernel_case *c, uint32_t len)
{
	return (len + skv_slot_meta_per_page(&c->sh) - 1) / skv_slot_meta_per_page(&c->sh);
}

/* Assigns pages in random order; the last three pages of the pool stay unused. */
static void assign_pages(struct kernel_case *c)
{
	uint32_t *order = malloc(c->pool_pages * sizeof *order), used = 0;
	for (uint32_t i = 0; i < c->pool_pages; i++) {
		uint32_t j = rnd_below(i + 1);
		order[i] = i;
		order[i] = order[j];
		order[j] = i;
	}
	for (uint32_t i = 0; i < c->n; i++) {
		struct skv_kseq *s = &c->seq[i];
		uint32_t pages = skv_pages_of(s->len);
		s->layer_stride = pages + rnd_below(3);
		c->table[i] = malloc(s->layer_stride * sizeof(skv_pte));
		c->state[i] = malloc(s->layer_stride * sizeof(skv_pte));
		c->slot_meta[i] = malloc(s->layer_stride * sizeof(skv_pte));
		for (uint32_t p = 0; p < s->layer_stride; p++) {
			c->table[i][p] = c->state[i][p] = c->slot_meta[i][p] = skv_pte_make(SKV_PTE_NONE, 0);
			if (p < pages)
				c->table[i][p] = skv_pte_make(rnd_below(4) ? SKV_PTE_PRIVATE : SKV_PTE_SHARED,
				                              order[used++]);
			if (p < skv_pages_of(pages))
				c->state[i][p] = skv_pte_make(SKV_PTE_PRIVATE, order[used++]);
			if (p < notes_pages(c, s->len))
				c->slot_meta[i][p] = skv_pte_make(SKV_PTE_PRIVATE, order[used++]);
		}
	}
	free(order);
}

void case_init(struct kernel_case *c, uint32_t dtype, uint32_t heads, uint32_t kv_heads, uint32_t dim,
               uint32_t n, const uint32_t *len, const uint32_t *n_q)
{
	*c = (struct kernel_case){.n = n};
	c->sh = (struct skv_shape){.n_heads = heads, .n_kv_heads = kv_heads, .head_dim = dim, .dtype = dtype,
	                           .layer = rnd_below(LAYERS), .state = LAYERS, .slot_meta = LAYERS + 1,
	                           .saved = LAYERS + 2,
	                           .scale = 1 / sqrtf((float)dim)};
	c->sh.page_bytes = (size_t)2 * kv_heads * SKV_PAGE_TOKENS * (dim * skv_dtype_bytes(dtype) + (dtype == SKV_FP8));
	for (uint32_t i = 0; i < n; i++) {
		size_t floats = (size_t)len[i] * kv_heads * dim;
		c->seq[i] = (struct skv_kseq){.len = len[i], .n_q = n_q[i], .row = c->rows};
		c->rows += n_q[i];
		c->max_len = len[i] > c->max_len ? len[i] : c->max_len;
		c->max_q = n_q[i] > c->max_q ? n_q[i] : c->max_q;
		c->pool_pages += skv_pages_of(len[i]) + skv_pages_of(skv_pages_of(len[i])) + notes_pages(c, len[i]);
		c->k_in[i] = random_floats(floats);
		c->v_in[i] = random_floats(floats);
		c->k[i] = malloc(floats * sizeof(float));
		c->v[i] = malloc(floats * sizeof(float));
		memcpy(c->k[i], c->k_in[i], floats * sizeof(float));
		memcpy(c->v[i], c->v_in[i], floats * sizeof(float));
		for (size_t x = 0; x < floats; x += dim) {
			ref_round_row(dtype, c->k[i] + x, dim);
			ref_round_row(dtype, c->v[i] + x, dim);
		}
	}
	c->max_len += rnd_below(40);
	c->max_q += c->max_q > 1 ? rnd_below(3) : 0;
	c->pool_pages += 3;
	c->q = random_floats((size_t)c->rows * heads * dim);
	c->sh.softcap = rnd_below(3) ? 0 : (float)(1 + 4 * rnd_unit());
	c->sinks = rnd_below(3) ? NULL : random_floats(heads);
	for (uint32_t head = 0; c->sinks && head < heads; head++)
		c->sinks[head] *= 4;
	assign_pages(c);
}

void case_of_shape(struct kernel_case *c, int shape, uint32_t n, const uint32_t *len, const uint32_t *n_q)
{
	static const struct {
		uint32_t heads, kv_heads, dim;
	} shapes[CASE_SHAPES / 3] = {
		{1, 1, 16}, {6, 2, 64},  {12, 2, 48},  {7, 7, 80}, {32, 1, 128},  {12, 2, 128},
		{7, 1, 96}, {10, 1, 256}, {32, 8, 128}, {3, 3, 64}, {200, 1, 16},
	};
	static const int of_devices[] = {1, 4, 5, 6, 7, 8, 9};
	int i = shape % (CASE_SHAPES / 3);
	uint32_t dtype = (uint32_t)(shape / (CASE_SHAPES / 3));
	if (rnd_hurried()) { /* only a few shapes on a device: each run takes others, and neighbours differ in dtype */
		const unsigned at = rnd_share(21) + (unsigned)shape;
		i = of_devices[at % 7];
		dtype = at % 3;
	}
	if (dtype == SKV_F32 && (i % 2 || rnd_hurried()))
		dtype = SKV_FP8;
	case_init(c, dtype, shapes[i].heads, shapes[i].kv_heads, shapes[i].dim, n, len, n_q);
}

void case_deinit(struct kernel_case *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		free(c->k[i]);
		free(c->v[i]);
		free(c->k_in[i]);
		free(c->v_in[i]);
		free(c->table[i]);
		free(c->state[i]);
		free(c->slot_meta[i]);
		free(c->kept[i]);
	}
	free(c->q);
	free(c->sinks);
}

void case_set(struct kernel_case *c, uint32_t i, bool v, size_t at, float x)
{
	const uint32_t dim = c->sh.head_dim;
	float *in = (v ? c->v_in : c->k_in)[i], *row = (v ? c->v : c->k)[i] + at / dim * dim;

	in[at] = x;
	memcpy(row, in + at / dim * dim, dim * sizeof *row);
	ref_round_row(c->sh.dtype, row, dim);
}

struct ref_softmax case_softmax(const struct kernel_case *c, uint32_t head)
{
	return (struct ref_softmax){.scale = (double)c->sh.scale, .softcap = (double)c->sh.softcap,
	                            .sink = c->sinks ? c->sinks + head : NULL};
}

void case_punch(struct kernel_case *c, uint32_t one_in)
{
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t p = 0; p < skv_pages_of(c->seq[i].len); p++)
			if (!rnd_below(one_in))
				c->table[i][p] = skv_pte_make(rnd_below(2) ? SKV_PTE_HOLE : SKV_PTE_NONE,
				                              (uint32_t)rnd64());
}

/* Extends an array of n entries with entries that lead to no page. */
static skv_pte *longer(skv_pte *entries, uint32_t n, uint32_t to)
{
	entries = realloc(entries, to * sizeof *entries);
	for (uint32_t e = n; e < to; e++)
		entries[e] = skv_pte_make(SKV_PTE_NONE, 0);
	return entries;
}

void case_keep(struct kernel_case *c, uint32_t pages)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const uint32_t was = c->seq[i].layer_stride, stride = was < pages ? pages : was;
		c->table[i] = longer(c->table[i], was, stride);
		c->state[i] = longer(c->state[i], was, stride);
		c->slot_meta[i] = longer(c->slot_meta[i], was, stride);
		c->kept[i] = longer(NULL, 0, stride);
		c->seq[i].layer_stride = stride;
		for (uint32_t p = 0; p < pages; p++)
			c->kept[i][p] = skv_pte_make(SKV_PTE_PRIVATE, c->pool_pages + pages - 1 - p);
		c->pool_pages += pages;
	}
}

bool case_resident(const struct kernel_case *c, uint32_t i, uint32_t token)
{
	return skv_pte_resident(c->table[i][token / SKV_PAGE_TOKENS]);
}

/* ---- on a backend ---------------------------------------------------------------------------- */

void *case_to(struct kernel_case *c, const void *src, size_t bytes)
{
	void *there = c->on->get(bytes), *blank = NULL;
	c->held = realloc(c->held, (c->n_held + 1) * sizeof *c->held);
	c->held[c->n_held++] = there;
	if (!src) {
		src = blank = malloc(bytes ? bytes : 1);
		memset(blank, 0xff, bytes);
	}
	c->on->to(there, src, bytes);
	free(blank);
	return there;
}

void case_from(const struct kernel_case *c, void *dst, const void *src, size_t bytes)
{
	c->on->wait();
	c->on->from(dst, src, bytes);
}

size_t case_rows_bytes(const struct kernel_case *c, size_t n)
{
	return n * skv_dtype_bytes(c->sh.io_dtype);
}

void *case_rows_to(struct kernel_case *c, const float *src, size_t n)
{
	size_t bytes = skv_dtype_bytes(c->sh.io_dtype);
	uint8_t *rows = malloc(n * bytes);
	for (size_t x = 0; x < n; x++)
		ref_store(c->sh.io_dtype, rows + x * bytes, src[x]);
	void *there = case_to(c, rows, n * bytes);
	free(rows);
	return there;
}

void case_rows_from(const struct kernel_case *c, float *dst, const void *src, size_t n)
{
	size_t bytes = skv_dtype_bytes(c->sh.io_dtype);
	uint8_t *rows = malloc(n * bytes);
	case_from(c, rows, src, n * bytes);
	for (size_t x = 0; x < n; x++)
		dst[x] = ref_load(c->sh.io_dtype, rows + x * bytes);
	free(rows);
}

uint64_t case_attended_before(uint32_t i)
{
	return (uint64_t)(i + 1) << 33;
}

bool case_has_counter(uint32_t i)
{
	return i % 4 != 3;
}

/*
 * All tables of a sequence. Those of sh.layer, its state pages, slot metadata and saved queries are right; the others
 * lead to the page `wrong`.
 */
static const skv_pte *table_to(struct kernel_case *c, uint32_t i, uint32_t wrong)
{
	uint32_t stride = c->seq[i].layer_stride;
	skv_pte *t = malloc(TABLES * stride * sizeof *t);
	for (uint32_t e = 0; e < TABLES * stride; e++)
		t[e] = e / stride == c->sh.layer   ? c->table[i][e % stride]
		       : e / stride == c->sh.state ? c->state[i][e % stride]
		       : e / stride == c->sh.slot_meta ? c->slot_meta[i][e % stride]
		       : e / stride == c->sh.saved && c->kept[i] ? c->kept[i][e % stride]
		                                   : skv_pte_make(SKV_PTE_PRIVATE, wrong);
	const skv_pte *there = case_to(c, t, TABLES * stride * sizeof *t);
	free(t);
	return there;
}

/* Returns a page that is in no table. Pages of saved queries are not checked: they lie behind an unused page. */
static uint32_t unused_page(const struct kernel_case *c)
{
	bool *used = calloc(c->pool_pages, sizeof *used);
	uint32_t page = 0;
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t p = 0; p < skv_pages_of(c->seq[i].len); p++)
			for (int k = 0; k < 3; k++) {
				skv_pte e = k == 0 ? c->table[i][p] : k == 1 ? c->state[i][p] : c->slot_meta[i][p];
				if (skv_pte_resident(e))
					used[skv_pte_id(e)] = true;
			}
	while (used[page])
		page++;
	free(used);
	return page;
}

bool case_on(struct kernel_case *c, const struct test_backend *b)
{
	struct skv_kseq seq[CASE_SEQS];
	uint64_t attended[CASE_SEQS];

	c->sh.io_dtype = b->io_dtype;
	if (b->kern->unsupported(&c->sh) || (b->io_dtype != SKV_F32 && b->io_dtype != c->sh.dtype))
		return false;
	c->on = b;
	c->sh.pool = case_to(c, NULL, c->pool_pages * c->sh.page_bytes);
	c->sh.sinks = c->sinks ? case_to(c, c->sinks, c->sh.n_heads * sizeof *c->sinks) : NULL;
	c->sh.lse = NULL;
	for (uint32_t i = 0; i < c->n; i++)
		attended[i] = case_attended_before(i);
	c->attended = case_to(c, attended, c->n * sizeof *attended);
	for (uint32_t i = 0; i < c->n; i++) {
		seq[i] = c->seq[i];
		seq[i].table = table_to(c, i, unused_page(c));
		seq[i].attended = case_has_counter(i) ? c->attended + i : NULL;
	}
	c->batch.seq = case_to(c, seq, c->n * sizeof *seq);
	c->batch = case_part(c, 0, c->n);
	return true;
}

void case_off(struct kernel_case *c)
{
	c->on->wait();
	while (c->n_held)
		c->on->put(c->held[--c->n_held]);
	free(c->held);
	c->held = NULL;
	c->on = NULL;
}

struct skv_batch case_part(const struct kernel_case *c, uint32_t from, uint32_t n)
{
	return (struct skv_batch){.seq = c->batch.seq + from, .n = n, .max_len = c->max_len,
	                          .max_q = c->max_q};
}

struct skv_workspace case_work_of(const struct kernel_case *c, size_t bytes, int threads)
{
	uint8_t *blank = malloc(bytes + REDZONE);
	memset(blank, c->on->device ? 0 : 0xff, bytes);
	memset(blank + bytes, 0xff, REDZONE);
	struct skv_workspace w = {.mem = c->on->get(bytes + REDZONE), .bytes = bytes, .threads = threads,
	                     .stream = c->on->stream};
	c->on->to(w.mem, blank, bytes + REDZONE);
	free(blank);
	return w;
}

static struct skv_workspace work_for(const struct kernel_case *c, uint32_t rows, int threads)
{
	return case_work_of(c, c->on->kern->workspace_bytes(&c->sh, c->n, rows, c->max_len, threads), threads);
}

struct skv_workspace case_work(const struct kernel_case *c, int threads)
{
	return work_for(c, c->rows, threads);
}

void case_work_done(const struct kernel_case *c, const struct skv_workspace *w)
{
	uint8_t zone[REDZONE];
	case_from(c, zone, (uint8_t *)w->mem + w->bytes, REDZONE);
	c->on->put(w->mem);
	for (uint32_t i = 0; i < REDZONE; i++)
		if (zone[i] != 0xff)
			ck_abort_msg("%s: byte %u past the scratch was written", c->on->name, i);
}

void case_append(struct kernel_case *c, uint32_t step, int threads)
{
	const uint32_t row = c->sh.n_kv_heads * c->sh.head_dim;
	struct skv_kseq all[CASE_SEQS];
	float *k = malloc((size_t)c->n * step * row * sizeof *k);
	float *v = malloc((size_t)c->n * step * row * sizeof *v);

	case_from(c, all, c->batch.seq, c->n * sizeof *all);
	for (uint32_t done = 0; done < c->max_len; done += step) {
		struct skv_kseq seq[CASE_SEQS];
		uint32_t n = 0, rows = 0;
		for (uint32_t i = 0; i < c->n; i++) {
			uint32_t len = c->seq[i].len;
			if (done >= len)
				continue;
			uint32_t n_q = len - done < step ? len - done : step;
			seq[n] = all[i];
			seq[n].len = done + n_q;
			seq[n].n_q = seq[n].n_state = n_q;
			seq[n++].row = rows;
			size_t from = (size_t)done * row, to = (size_t)rows * row, floats = (size_t)n_q * row;
			memcpy(k + to, c->k_in[i] + from, floats * sizeof *k);
			memcpy(v + to, c->v_in[i] + from, floats * sizeof *v);
			rows += n_q;
		}
		if (!n)
			break;
		struct skv_workspace w = work_for(c, rows, threads);
		struct skv_batch batch = {.seq = case_to(c, seq, n * sizeof *seq), .n = n,
		                          .max_len = c->max_len, .max_q = step, .max_state = step};
		c->on->kern->append(&c->sh, &batch, NULL, case_rows_to(c, k, (size_t)rows * row),
		                    case_rows_to(c, v, (size_t)rows * row), &w);
		case_work_done(c, &w);
	}
	free(k);
	free(v);
}

bool case_load(struct kernel_case *c, const struct test_backend *b)
{
	if (!case_on(c, b))
		return false;
	case_append(c, 400, 1);
	return true;
}

void case_lse_begin(struct kernel_case *c)
{
	c->sh.lse = case_to(c, NULL, (size_t)c->rows * c->sh.n_heads * sizeof(float));
}

void case_lse_check(struct kernel_case *c, const char *what, const double *ref, double tolerance)
{
	const size_t n = (size_t)c->rows * c->sh.n_heads;
	float *lse = malloc(n * sizeof *lse);
	char name[96];

	snprintf(name, sizeof name, "%s, log-sum-exp, %s", what, c->on->name);
	case_from(c, lse, c->sh.lse, n * sizeof *lse);
	case_compare(name, lse, ref, n, tolerance, 0);
	free(lse);
	c->sh.lse = NULL;
}

bool case_same_bits(const float *x, const float *y, size_t n)
{
	while (n && (!memcmp(x, y, sizeof(*x)) || (isnan(*x) && isnan(*y))))
		n--, x++, y++;
	return n == 0;
}

void case_compare(const char *what, const float *x, const double *ref, size_t n, double tolerance,
                  double slack)
{
	for (size_t i = 0; i < n; i++) {
		bool same = isfinite(ref[i]) ? fabs(x[i] - ref[i]) <= tolerance + slack * fabs(ref[i])
		            : isnan(ref[i])  ? isnan(x[i])
		                             : (double)x[i] == ref[i];
		if (!same) /* without ck_assert(): Check writes to a pipe each time, which is too slow in this loop */
			ck_abort_msg("%s: element %zu of %zu is %.9g, should be %.9g", what, i, n, x[i],
			             ref[i]);
	}
}
