/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/quant-case.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "tests/ref/attention.h"

#define LAYERS 3u /* the tables have rows for them, as in kernel-case.c */
#define TABLES (LAYERS + LOW_LAYERS)
#define BLOCK 32u

static uint32_t pages_for(const struct low_case *k, uint32_t len)
{
	const uint32_t each = (uint32_t)(k->c.sh.page_bytes / low_record_bytes(k));

	return (len / BLOCK * k->c.sh.n_kv_heads + each - 1) / each;
}

bool low_init(struct low_case *k, int shape, int form, uint32_t n, const uint32_t *len)
{
	static const struct {
		uint32_t heads, kv_heads, dim;
	} shapes[LOW_SHAPES / 3] = {{8, 2, 64}, {4, 1, 32}, {7, 7, 96}, {3, 1, 96}, {32, 8, 128}, {10, 1, 256}};
	static const struct {
		uint32_t bits, group;
	} forms[LOW_FORMS] = {{4, 32}, {2, 32}, {4, 64}, {2, 64}};
	const int i = shape % (LOW_SHAPES / 3);
	uint32_t n_q[CASE_SEQS];

	if (shapes[i].dim % forms[form].group != 0)
		return false;
	for (uint32_t s = 0; s < n; s++)
		n_q[s] = 1;
	*k = (struct low_case){.stride = 0};
	case_init(&k->c, (uint32_t)(shape / (LOW_SHAPES / 3)), shapes[i].heads, shapes[i].kv_heads, shapes[i].dim, n, len,
	          n_q);
	k->code = (struct skv_codec){.kind = SKV_COMPRESS_QUANT, .bits = forms[form].bits,
	                             .scale_block = forms[form].group};
	k->stride = skv_pages_of(k->c.max_len) + 3;
	for (uint32_t l = 0; l < LOW_LAYERS; l++)
		for (uint32_t s = 0; s < n; s++) {
			k->codes[l][s] = calloc(k->stride, sizeof(skv_pte));
			ck_assert_uint_le(pages_for(k, len[s]), skv_pages_of(len[s]));
			for (uint32_t p = 0; p < pages_for(k, len[s]); p++)
				k->codes[l][s][p] = skv_pte_make(SKV_PTE_PRIVATE, k->c.pool_pages++);
		}
	return true;
}

void low_deinit(struct low_case *k)
{
	for (uint32_t l = 0; l < LOW_LAYERS; l++)
		for (uint32_t s = 0; s < k->c.n; s++)
			free(k->codes[l][s]);
	case_deinit(&k->c);
}

bool low_on(struct low_case *k, const struct test_backend *b)
{
	if (!b->kern->compress || !case_on(&k->c, b))
		return false;
	case_append(&k->c, 400, 1);
	for (uint32_t l = 0; l < LOW_LAYERS; l++) {
		k->sh[l] = k->c.sh;
		k->sh[l].codec = &k->code;
		k->sh[l].codes = LAYERS + l;
	}
	if (b->kern->unsupported_codec(&k->sh[0])) {
		case_off(&k->c);
		return false;
	}
	k->c.sh.codec = &k->code; /* for case_work() */
	return true;
}

void low_off(struct low_case *k)
{
	k->c.sh.codec = NULL;
	case_off(&k->c);
}

/* All tables of a sequence; the rows of other layers have invalid ids. */
static const skv_pte *tables_to(struct low_case *k, uint32_t i, uint32_t holes)
{
	skv_pte *t = malloc(TABLES * k->stride * sizeof *t), *rows = t + k->c.sh.layer * k->stride;
	const skv_pte *there;

	for (uint32_t e = 0; e < TABLES * k->stride; e++)
		t[e] = skv_pte_make(SKV_PTE_HOLE, SKV_PTE_ID_MASK);
	memcpy(rows, k->c.table[i], skv_pages_of(k->c.seq[i].len) * sizeof *t);
	for (uint32_t p = 0; p < holes; p++)
		rows[p] = skv_pte_make(SKV_PTE_HOLE, (uint32_t)rnd64());
	for (uint32_t l = 0; l < LOW_LAYERS; l++)
		memcpy(t + (LAYERS + l) * k->stride, k->codes[l][i], k->stride * sizeof *t);
	there = case_to(&k->c, t, TABLES * k->stride * sizeof *t);
	free(t);
	return there;
}

struct skv_batch low_batch(struct low_case *k, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack,
                           bool gone)
{
	struct skv_kseq seq[CASE_SEQS];
	struct skv_batch b = case_part(&k->c, 0, n);

	case_from(&k->c, seq, k->c.batch.seq + from, n * sizeof *seq);
	for (uint32_t i = 0; i < n; i++) {
		seq[i].table = tables_to(k, from + i, gone ? coded[from + i] / SKV_PAGE_TOKENS : 0);
		seq[i].layer_stride = k->stride;
		seq[i].n_compressed = coded[from + i];
		seq[i].compress_to = pack[from + i];
		if (seq[i].compress_to > seq[i].n_compressed &&
		    seq[i].compress_to - seq[i].n_compressed > b.max_compress)
			b.max_compress = seq[i].compress_to - seq[i].n_compressed;
	}
	b.seq = case_to(&k->c, seq, n * sizeof *seq);
	return b;
}

void low_pack(struct low_case *k, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack, int threads)
{
	struct skv_workspace w = case_work(&k->c, threads);
	struct skv_batch b = low_batch(k, from, n, coded, pack, false);

	k->c.on->kern->compress(k->sh, LOW_LAYERS, &b, NULL, &w);
	case_work_done(&k->c, &w);
}

uint8_t *low_pool(const struct low_case *k)
{
	uint8_t *pool = malloc(k->c.pool_pages * k->c.sh.page_bytes);

	case_from(&k->c, pool, k->c.sh.pool, k->c.pool_pages * k->c.sh.page_bytes);
	return pool;
}

void low_pool_to(const struct low_case *k, const uint8_t *pool)
{
	k->c.on->to(k->c.sh.pool, pool, k->c.pool_pages * k->c.sh.page_bytes);
}

/* ---- stored records: decoded according to kernels/compress.h only -------------------------------- */

uint32_t low_values_at(const struct low_case *k)
{
	return k->c.sh.head_dim * (4 + BLOCK / (8 / k->code.bits));
}

uint32_t low_record_bytes(const struct low_case *k)
{
	return low_values_at(k) + BLOCK * (k->c.sh.head_dim / k->code.scale_block * 4 + k->c.sh.head_dim / (8 / k->code.bits));
}

uint8_t *low_record(const struct low_case *k, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token, uint32_t h)
{
	const uint32_t bytes = low_record_bytes(k), each = (uint32_t)(k->c.sh.page_bytes / bytes);
	const uint32_t number = token / BLOCK * k->c.sh.n_kv_heads + h;

	return pool + skv_pte_id(k->codes[layer][i][number / each]) * k->c.sh.page_bytes + number % each * bytes;
}

void low_read(const struct low_case *k, const uint8_t *record, uint32_t token, bool v, double *x)
{
	const uint32_t dim = k->c.sh.head_dim, per_byte = 8 / k->code.bits, groups = dim / k->code.scale_block;
	const uint8_t *shared = record + (v ? low_values_at(k) + token % BLOCK * groups * 4 : 0);
	const uint8_t *q = record + (v ? low_values_at(k) + BLOCK * groups * 4 : dim * 4) + token % BLOCK * (dim / per_byte);

	for (uint32_t d = 0; d < dim; d++) {
		const uint8_t *pair = shared + (v ? d / k->code.scale_block : d) * 4;
		const uint32_t number = q[d / per_byte] / (1u << (d % per_byte * k->code.bits)) % (1u << k->code.bits);

		x[d] = ref_load(SKV_BF16, pair + 2) + number * (double)ref_load(SKV_BF16, pair);
	}
}
