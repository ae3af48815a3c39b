/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernel-case.h"
#include "tests/ref-attention.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define REDZONE 256u

static void *xalloc(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
	ck_assert_ptr_nonnull(p);
	memset(p, 0xff, bytes);
	return p;
}

float rnd_normal(void)
{
	double x = 0;
	for (int i = 0; i < 6; i++)
		x += rnd_unit() - 0.5;
	return (float)(x * 1.41421356);
}

static float *random_floats(size_t n, float size)
{
	float *x = xalloc(n * sizeof *x);
	for (size_t i = 0; i < n; i++)
		x[i] = size * rnd_normal();
	return x;
}

static void assign_pages(struct kernel_case *c)
{
	uint32_t *order = xalloc(c->pool_pages * sizeof *order), used = 0;
	for (uint32_t i = 0; i < c->pool_pages; i++) {
		uint32_t j = rnd_below(i + 1);
		order[i] = i;
		order[i] = order[j];
		order[j] = i;
	}
	for (uint32_t i = 0; i < c->n; i++) {
		uint32_t pages = skv_pages_of(c->seq[i].len);
		c->table[i] = xalloc(pages * sizeof(skv_pte));
		c->seq[i].table = c->table[i];
		for (uint32_t p = 0; p < pages; p++)
			c->table[i][p] = skv_pte_make(rnd_below(4) ? SKV_PTE_FULL : SKV_PTE_SHARED,
			                              order[used++]);
	}
	free(order);
}

void case_init(struct kernel_case *c, uint32_t dtype, uint32_t heads, uint32_t kv_heads, uint32_t dim,
               uint32_t n, const uint32_t *len, const uint32_t *n_q)
{
	*c = (struct kernel_case){.n = n};
	c->sh = (struct skv_shape){.n_heads = heads, .n_kv_heads = kv_heads, .head_dim = dim, .dtype = dtype,
	                           .scale = 1 / sqrtf((float)dim)};
	c->sh.page_bytes = (size_t)2 * kv_heads * SKV_PAGE_TOKENS * dim * skv_dtype_bytes(dtype);
	for (uint32_t i = 0; i < n; i++) {
		size_t floats = (size_t)len[i] * kv_heads * dim;
		c->seq[i] = (struct skv_kseq){.len = len[i], .n_q = n_q[i], .row = c->rows};
		c->rows += n_q[i];
		c->max_len = len[i] > c->max_len ? len[i] : c->max_len;
		c->pool_pages += skv_pages_of(len[i]);
		c->k_in[i] = random_floats(floats, 1);
		c->v_in[i] = random_floats(floats, 1);
		c->k[i] = xalloc(floats * sizeof(float));
		c->v[i] = xalloc(floats * sizeof(float));
		for (size_t x = 0; x < floats; x++) {
			c->k[i][x] = ref_round(dtype, c->k_in[i][x]);
			c->v[i][x] = ref_round(dtype, c->v_in[i][x]);
		}
	}
	c->pool_pages += 3;
	c->sh.pool = xalloc(c->pool_pages * c->sh.page_bytes);
	c->q = random_floats((size_t)c->rows * heads * dim, 1);
	assign_pages(c);
}

void case_deinit(struct kernel_case *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		free(c->k[i]);
		free(c->v[i]);
		free(c->k_in[i]);
		free(c->v_in[i]);
		free(c->table[i]);
	}
	free(c->sh.pool);
	free(c->q);
}

void case_append(struct kernel_case *c, const struct skv_kernels *kern, uint32_t step, int threads)
{
	const uint32_t row = c->sh.n_kv_heads * c->sh.head_dim;
	float *k = xalloc((size_t)c->n * step * row * sizeof *k), *v = xalloc((size_t)c->n * step * row * sizeof *v);
	struct skv_work w = case_work(c, kern, threads);

	for (uint32_t done = 0; done < c->max_len; done += step) {
		struct skv_kseq seq[CASE_SEQS];
		uint32_t n = 0, rows = 0;
		for (uint32_t i = 0; i < c->n; i++) {
			uint32_t len = c->seq[i].len;
			if (done >= len)
				continue;
			uint32_t n_q = len - done < step ? len - done : step;
			seq[n++] = (struct skv_kseq){.table = c->table[i], .len = done + n_q, .n_q = n_q, .row = rows};
			memcpy(k + (size_t)rows * row, c->k_in[i] + (size_t)done * row, (size_t)n_q * row * 4);
			memcpy(v + (size_t)rows * row, c->v_in[i] + (size_t)done * row, (size_t)n_q * row * 4);
			rows += n_q;
		}
		kern->append(&c->sh, seq, n, k, v, &w);
	}
	case_work_done(&w);
	free(k);
	free(v);
}

void case_punch(struct kernel_case *c, uint32_t one_in)
{
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t p = 0; p < skv_pages_of(c->seq[i].len); p++) {
			if (rnd_below(one_in))
				continue;
			memset(c->sh.pool + skv_pte_id(c->table[i][p]) * c->sh.page_bytes, 0xff, c->sh.page_bytes);
			c->table[i][p] = skv_pte_make(rnd_below(2) ? SKV_PTE_HOLE : SKV_PTE_NONE,
			                              (uint32_t)rnd64());
		}
}

bool case_resident(const struct kernel_case *c, uint32_t i, uint32_t token)
{
	return skv_pte_resident(c->table[i][token / SKV_PAGE_TOKENS]);
}

struct skv_work case_work(const struct kernel_case *c, const struct skv_kernels *kern, int threads)
{
	size_t bytes = kern->work_bytes(&c->sh, c->n, c->rows, c->max_len, threads);
	uint8_t *mem = xalloc(bytes + REDZONE);
	return (struct skv_work){.mem = mem, .bytes = bytes, .threads = threads};
}

void case_work_done(struct skv_work *w)
{
	for (uint32_t i = 0; i < REDZONE; i++)
		if (((uint8_t *)w->mem)[w->bytes + i] != 0xff)
			ck_abort_msg("byte %u past the scratch was written", i);
	free(w->mem);
}

const char *const *case_isas(void)
{
	static const char *const known[] = {"generic", "avx2", "avx512"};
	static const char *isas[sizeof known / sizeof *known + 1];
	size_t n = 0;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (skv_kernels_host(known[i]))
			isas[n++] = known[i];
	isas[n] = NULL;
	return isas;
}

void case_compare(const char *what, const float *x, const double *ref, size_t n, double tolerance)
{
	for (size_t i = 0; i < n; i++) {
		bool same = isfinite(ref[i]) ? fabs(x[i] - ref[i]) <= tolerance
		                             : isnan(ref[i]) ? isnan(x[i]) : (double)x[i] == ref[i];
		if (!same) /* Check writes to a pipe at every ck_assert, too slow for a loop like this */
			ck_abort_msg("%s: element %zu of %zu is %.9g, should be %.9g", what, i, n, x[i], ref[i]);
	}
}
