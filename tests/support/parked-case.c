/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/parked-case.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/random.h"

/* ---- sequences ------------------------------------------------------------------------------- */

struct skv_wire_model parked_model(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, uint32_t dtype)
{
	struct skv_wire_model m = {.n_layers = n_layers, .n_heads = n_heads, .n_kv_heads = n_kv_heads, .head_dim = head_dim,
	                           .kv_dtype = dtype, .max_tokens = SKV_MAX_TOKENS, .n_ranks = 1 + rnd_below(3)};

	m.rank = rnd_below(m.n_ranks);
	skv_wire_string(m.name, sizeof(m.name), "org/made-up_7B");
	return m;
}

static void write_at(int fd, uint64_t at, const void *from, size_t bytes)
{
	ck_assert_int_eq(pwrite(fd, from, bytes, (off_t)at), (ssize_t)bytes);
}

static void *read_at(int fd, uint64_t at, size_t bytes)
{
	void *to = malloc(bytes + 1);

	ck_assert_ptr_nonnull(to);
	ck_assert_int_eq(pread(fd, to, bytes, (off_t)at), (ssize_t)bytes);
	return to;
}

static void random_at(int fd, uint64_t at, size_t bytes)
{
	void *data = malloc(bytes + 1);

	ck_assert_ptr_nonnull(data);
	rnd_bytes(data, bytes);
	write_at(fd, at, data, bytes);
	free(data);
}

static uint64_t entry_at(const struct skv_seqmem_layout *l, uint32_t table, uint32_t i)
{
	return l->table + ((uint64_t)table * l->max_pages + i) * sizeof(skv_pte);
}

/* Random pages each time; most of them in runs. */
static uint32_t *random_ids(uint64_t n, uint64_t max_pages)
{
	uint32_t *ids = malloc((max_pages + 1) * sizeof(*ids));

	ck_assert_ptr_nonnull(ids);
	for (uint32_t i = 0; i < max_pages; i++)
		ids[i] = i;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = rnd_below(4) ? i : i + rnd_below((uint32_t)max_pages - i), t = ids[i];

		ids[i] = ids[k];
		ids[k] = t;
	}
	return ids;
}

/*
 * Fills sequence memory beside the tables with random data, also beyond the committed length, as an interrupted step
 * leaves it.
 */
static void fill_memory(struct parked_case *c, uint32_t len)
{
	struct skv_seqmem s;
	uint32_t state = rnd_below(3) ? rnd_below(SKV_SEQ_STATE_MAX + 1) : 0;

	rnd_bytes(&s, sizeof(s));
	skv_seqmem_init_header(&s, &c->layout);
	s.commit = c->job.commit = (uint64_t)(uint32_t)rnd64() << 32 | len;
	s.journal_n = 0;
	s.next[0] = (int32_t)rnd64();
	s.next[1] = (int32_t)rnd64();
	write_at(c->seq, 0, &s, sizeof(s));
	random_at(c->seq, c->layout.tokens, (len + 1 + rnd_below(c->job.max_tokens - len + 1)) * sizeof(int32_t));
	random_at(c->seq, c->layout.state, state);
}

/* A random entry of a table; tables without `any` have no pages. */
static skv_pte random_entry(bool kv, bool any, uint32_t percent, uint32_t id)
{
	if (any && rnd_below(100) < percent)
		return skv_pte_make(rnd_below(2) ? SKV_PTE_PRIVATE : SKV_PTE_SHARED, id);
	return kv ? skv_pte_make(SKV_PTE_HOLE, rnd_below(100)) : skv_pte_make(SKV_PTE_NONE, 0);
}

void parked_case_make(struct parked_case *c, const struct skv_wire_model *model, uint32_t max_tokens, uint32_t len, uint32_t percent)
{
	uint64_t n = 0;
	struct skv_model m;

	*c = (struct parked_case){.job = {.kind = SKV_DISK_PARK, .n_fds = SKV_DISK_FD_PAGES + 1, .model = *model, .uid = PARKED_UID,
	                                  .max_tokens = max_tokens, .max_bytes = UINT64_MAX}};
	skv_wire_to_model(&m, model);
	c->job.page_bytes = skv_page_bytes(&m);
	skv_seqmem_layout(&m, max_tokens, &c->layout);
	skv_wire_string(c->job.name, sizeof(c->job.name), "chat-{17}~");
	skv_parked_file(model->name, model->rank, model->n_ranks, c->job.name, c->job.file);
	for (uint32_t t = 0; t < c->layout.n_tables; t++)
		c->job.n_entries += skv_seqmem_entries(&c->layout, t, len);
	c->job.max_pages = c->job.n_entries + rnd_below(10);
	c->ids = random_ids(c->job.n_entries, c->job.max_pages);
	c->entries = calloc(c->job.n_entries + 1, sizeof(*c->entries));
	c->seq = skv_memfd_new("seq", c->layout.total);
	c->pages = skv_memfd_new("pages", (c->job.max_pages + 1) * c->job.page_bytes);
	ck_assert(c->entries && c->seq >= 0 && c->pages >= 0);
	fill_memory(c, len);
	for (uint32_t t = 0; t < c->layout.n_tables; t++) {
		bool kv = skv_table_page_kind(c->layout.n_layers, t) == SKV_PAGES_KV, any = kv || rnd_below(2);
		uint32_t count = skv_seqmem_entries(&c->layout, t, len);
		skv_pte *e = c->entries + n;

		for (uint32_t i = 0; i < count; i++) {
			e[i] = random_entry(kv, any, percent, c->ids[c->job.n_pages]);
			if (skv_pte_resident(e[i]) && rnd_below(8)) /* else the page has no memory: it reads as zeros */
				random_at(c->pages, c->ids[c->job.n_pages] * c->job.page_bytes, c->job.page_bytes);
			c->job.n_pages += skv_pte_resident(e[i]) ? 1 : 0;
		}
		write_at(c->seq, entry_at(&c->layout, t, 0), e, count * sizeof(*e));
		n += count;
	}
}

void parked_case_random(struct parked_case *c)
{
	static const uint32_t kv_heads[] = {1, 2, 4};
	uint32_t n_kv_heads = kv_heads[rnd_below(3)], max_tokens = 1 + rnd_below(rnd_below(4) ? 600 : 6000);
	struct skv_wire_model m = parked_model(1 + rnd_below(4), n_kv_heads * (1 + rnd_below(3)), n_kv_heads, 16 * (1 + rnd_below(3)),
	                                       rnd_below(4));

	parked_case_make(c, &m, max_tokens, rnd_below(8) ? rnd_below(max_tokens + 1) : 0, rnd_below(4) ? 80 : 0);
}

void parked_case_free(struct parked_case *c)
{
	close(c->seq);
	close(c->pages);
	free(c->entries);
	free(c->ids);
}

/* ---- the resumed sequence -------------------------------------------------------------------- */

struct parked_case *parked_target(const struct parked_case *from)
{
	struct parked_case *c = malloc(sizeof(*c));

	ck_assert_ptr_nonnull(c);
	*c = (struct parked_case){.job = from->job, .layout = from->layout};
	c->job.kind = SKV_DISK_RESUME;
	c->job.max_pages += rnd_below(20);
	c->ids = random_ids(c->job.n_pages, c->job.max_pages);
	c->seq = skv_memfd_new("seq", c->layout.total);
	c->pages = skv_memfd_new("pages", (c->job.max_pages + 1) * c->job.page_bytes);
	ck_assert(c->seq >= 0 && c->pages >= 0);
	for (uint64_t i = c->job.n_pages; i < c->job.max_pages; i++) /* pages of other sequences */
		random_at(c->pages, c->ids[i] * c->job.page_bytes, 64);
	return c;
}

static void expect_header(const struct parked_case *was, const struct parked_case *is)
{
	struct skv_seqmem *a = read_at(was->seq, 0, sizeof(*a)), *b = read_at(is->seq, 0, sizeof(*b));
	uint32_t len = skv_commit_len(a->commit);
	int32_t *x = read_at(was->seq, was->layout.tokens, (len + 1) * sizeof(*x));
	int32_t *y = read_at(is->seq, is->layout.tokens, (was->job.max_tokens + 1) * sizeof(*y));

	a->holder = 0;
	a->journal_epoch = 0;
	ck_assert_mem_eq(a, b, sizeof(*a));
	x[len] = a->next[skv_commit_epoch(a->commit) & 1];
	ck_assert_mem_eq(x, y, (len + 1) * sizeof(*x));
	for (uint32_t i = len + 1; i <= was->job.max_tokens; i++)
		ck_assert_int_eq(y[i], 0);
	free(a);
	free(b);
	free(x);
	free(y);
}

/* Entries refer to the pages in order, and are 0 beyond the length. */
static void expect_tables(const struct parked_case *was, const struct parked_case *is)
{
	uint32_t len = skv_commit_len(was->job.commit), k = 0;
	const skv_pte *e = was->entries;

	for (uint32_t t = 0; t < was->layout.n_tables; t++) {
		skv_pte *got = read_at(is->seq, entry_at(&is->layout, t, 0), is->layout.max_pages * sizeof(*got));
		uint32_t n = skv_seqmem_entries(&was->layout, t, len);

		for (uint32_t i = 0; i < n; i++, e++)
			ck_assert_uint_eq(got[i], skv_pte_resident(*e) ? skv_pte_make(SKV_PTE_PRIVATE, is->ids[k++])
			                                               : skv_pte_make(skv_pte_kind(*e), 0));
		for (uint32_t i = n; i < is->layout.max_pages; i++)
			ck_assert_uint_eq(got[i], 0);
		free(got);
	}
	ck_assert_uint_eq(k, was->job.n_pages);
}

void parked_expect(const struct parked_case *was, const struct parked_case *is)
{
	void *a, *b;

	expect_header(was, is);
	expect_tables(was, is);
	a = read_at(was->seq, was->layout.state, was->layout.state_bytes);
	b = read_at(is->seq, is->layout.state, is->layout.state_bytes);
	ck_assert_mem_eq(a, b, was->layout.state_bytes);
	free(a);
	free(b);
	for (uint64_t i = 0; i < is->job.max_pages; i++) {
		const uint64_t bytes = is->job.page_bytes;

		b = read_at(is->pages, is->ids[i] * bytes, bytes);
		if (i < is->job.n_pages) {
			a = read_at(was->pages, was->ids[i] * bytes, bytes);
			ck_assert_mem_eq(a, b, bytes);
			free(a);
		} else { /* as parked_target() left them */
			for (uint64_t k = 64; k < bytes; k++)
				ck_assert_int_eq(((char *)b)[k], 0);
		}
		free(b);
	}
}
