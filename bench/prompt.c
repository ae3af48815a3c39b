/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/prompt.h"
#include "bench/bench.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define SLICE 4096u /* number of tokens whose rows are made at once */
#define TURNING 4u  /* number of pairs of elements that rotate with the position */

/* Converts a number that is neither tiny nor huge to fp16, by truncation. */
static uint16_t half(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof u);
	const uint32_t exponent = u >> 23 & 0xff;
	return (uint16_t)(u >> 16 & 0x8000) | (uint16_t)(exponent < 113 ? 0 : (exponent - 112) << 10 | (u >> 13 & 0x3ff));
}

static void put(uint32_t dtype, void *to, size_t i, float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof u);
	if (dtype == SKV_F32)
		((float *)to)[i] = x;
	else
		((uint16_t *)to)[i] = dtype == SKV_F16 ? half(x) : (uint16_t)(u >> 16);
}

/* Sets the first elements of each head, in n rows, to the rotation at the positions from `from` on. */
static void turn(const struct prompt *p, void *rows, uint32_t heads, uint32_t from, uint32_t n)
{
	const struct skv_shape *sh = &p->fixture.sh;

	for (uint32_t t = 0; t < n; t++)
		for (uint32_t i = 0; i < TURNING; i++) {
			const double angle = (from + t) * 2e-3 * pow(0.1, i);
			const float c = (float)(4 * cos(angle)), s = (float)(4 * sin(angle));
			for (uint32_t h = 0; h < heads; h++) {
				const size_t at = ((size_t)t * heads + h) * sh->head_dim + 2 * i;
				put(sh->io_dtype, rows, at, c);
				put(sh->io_dtype, rows, at + 1, s);
			}
		}
}

void prompt_copy(struct kernel_fixture *b, void *to, const void *from, size_t bytes)
{
	const struct skv_backend *d = b->o->device;

	if (!d) {
		memcpy(to, from, bytes);
		return;
	}
	fixture_need(b, d->copy(to, from, bytes, b->work.stream));
	fixture_need(b, d->wait(b->work.stream));
}

void prompt_scratch(struct prompt *p, size_t bytes)
{
	struct kernel_fixture *b = &p->fixture;

	if (b->work.mem)
		fixture_free(b, b->work.mem);
	b->work.bytes = bytes;
	b->work.mem = fixture_room(b, bytes);
	if (b->o->device)
		fixture_need(b, b->o->device->zero(b->work.mem, bytes, b->work.stream));
}

uint32_t prompt_cut(struct prompt *p, uint32_t from, uint32_t to, uint32_t step, struct skv_kseq **ret_host,
                    struct skv_kseq **ret_seq)
{
	const uint32_t n = (to - from + step - 1) / step;
	struct skv_kseq *host = fixture_get(n * sizeof *host);

	for (uint32_t i = 0; i < n; i++) {
		const uint32_t at = from + i * step, rows = to - at < step ? to - at : step;
		host[i] = (struct skv_kseq){.table = p->table, .layer_stride = p->stride, .len = at + rows, .n_q = rows,
		                            .row = at - from, .prompt_start = from, .dense_from = UINT32_MAX, .prompt_continues = i + 1 < n,
		                            .set = i % 2};
	}
	*ret_host = host;
	*ret_seq = fixture_room(&p->fixture, n * sizeof **ret_seq);
	prompt_copy(&p->fixture, *ret_seq, host, n * sizeof *host);
	return n;
}

/* Returns n random elements with magnitudes from 0.5 to 1. */
static void *random_rows(const struct prompt *p, uint64_t *rng, size_t n)
{
	const uint32_t dtype = p->fixture.sh.io_dtype;
	void *x = fixture_get(n * skv_dtype_bytes(dtype));

	for (size_t i = 0; i < n; i++) {
		const uint64_t r = bench_random(rng);
		put(dtype, x, i, (float)(0.5 + (double)(r >> 40) * 0x1p-25) * (r & 1 ? 1 : -1));
	}
	return x;
}

/* Stores K and V of all tokens in the pool, and makes q of the prompt. */
static void fill(struct prompt *p)
{
	struct kernel_fixture *b = &p->fixture;
	const uint32_t heads = b->sh.n_heads, kv_heads = b->sh.n_kv_heads, dim = b->sh.head_dim;
	const size_t row = (size_t)dim * skv_dtype_bytes(b->sh.io_dtype);
	uint64_t rng = 2;
	void *rows = random_rows(p, &rng, (size_t)SLICE * heads * dim), *values = random_rows(p, &rng,
		(size_t)SLICE * kv_heads * dim);
	void *k = fixture_room(b, SLICE * kv_heads * row), *v = fixture_room(b, SLICE * kv_heads * row);
	struct skv_kseq *host, *seq;
	const uint32_t n = prompt_cut(p, 0, p->end, SLICE, &host, &seq);

	prompt_scratch(p, b->o->kern->workspace_bytes(&b->sh, 1, SLICE, p->end, b->threads));
	prompt_copy(b, v, values, SLICE * kv_heads * row);
	for (uint32_t i = 0; i < n; i++) {
		host[i].row = 0;
		prompt_copy(b, &seq[i], &host[i], sizeof *seq);
		turn(p, rows, kv_heads, i * SLICE, host[i].n_q);
		prompt_copy(b, k, rows, host[i].n_q * kv_heads * row);
		const struct skv_batch step = {.seq = &seq[i], .n = 1, .max_len = host[i].len, .max_q = host[i].n_q};
		b->o->kern->append(&b->sh, &step, NULL, k, v, &b->work);
	}
	for (uint32_t at = p->prefix; at < p->end; at += SLICE) {
		const uint32_t now = p->end - at < SLICE ? p->end - at : SLICE;
		turn(p, rows, heads, at, now);
		prompt_copy(b, (uint8_t *)p->q + (at - p->prefix) * heads * row, rows, now * heads * row);
	}
	free(host);
	free(rows);
	free(values);
	fixture_free(b, seq);
	fixture_free(b, k);
	fixture_free(b, v);
}

int prompt_init(struct prompt *p, const struct fixture_options *o, struct skv_shape sh, uint32_t tokens,
                uint32_t prefix)
{
	const struct skv_sparse most = {.delta = true, .n_saved_queries = SKV_MINFERENCE_ROWS};
	const uint32_t pages = skv_pages_of(prefix + tokens), kept = 2 * skv_saved_pages(&sh, &most);
	uint64_t rng = 1;

	sh.saved = 1;
	if (fixture_open(&p->fixture, o, sh, (size_t)(pages + kept) * sh.page_bytes, omp_get_max_threads()))
		return -1;
	p->prefix = prefix;
	p->end = prefix + tokens;
	p->stride = pages + kept;
	skv_pte *table = fixture_get((size_t)2 * p->stride * sizeof *table), *entry = fixture_get(p->stride * sizeof *entry);
	for (uint32_t i = 0; i < p->stride; i++) {
		const uint32_t j = (uint32_t)(bench_random(&rng) % (i + 1));
		entry[i] = entry[j];
		entry[j] = skv_pte_make(SKV_PTE_PRIVATE, i);
	}
	memcpy(table, entry, pages * sizeof *entry);
	memcpy(table + p->stride, entry + pages, kept * sizeof *entry);
	free(entry);
	p->table = fixture_there(&p->fixture, table, (size_t)2 * p->stride * sizeof *table);
	const size_t bytes = (size_t)tokens * sh.n_heads * sh.head_dim * skv_dtype_bytes(sh.io_dtype);
	p->q = fixture_room(&p->fixture, bytes);
	p->out = fixture_room(&p->fixture, bytes);
	fill(p);
	return 0;
}

void prompt_deinit(struct prompt *p)
{
	fixture_free(&p->fixture, p->table);
	fixture_free(&p->fixture, p->q);
	fixture_free(&p->fixture, p->out);
	fixture_free(&p->fixture, p->fixture.work.mem);
	fixture_close(&p->fixture);
}
