/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/prefix-case.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/disk-fixture.h"
#include "tests/support/store-fixture.h"
#include "tests/support/suite.h"

#define SLACK (slowed() ? 10000 : 1500) /* ms: of a machine where others run */

/* ---- a sealed prefix --------------------------------------------------------------------------- */

uint64_t prefix_pages(const struct prefix_case *p)
{
	return (uint64_t)p->what.n_blocks * p->job.model.n_layers * PREFIX_BLOCK_PAGES;
}

/* Memory of pages in random order, of as many as it has and some more. */
static void make_memory(struct prefix_case *p)
{
	const uint64_t n = prefix_pages(p);

	p->job.max_pages = n + rnd_below(20);
	p->ids = calloc(p->job.max_pages, sizeof(*p->ids));
	for (uint32_t i = 0; i < p->job.max_pages; i++) {
		const uint32_t k = rnd_below(4) ? i : rnd_below(i + 1);

		p->ids[i] = p->ids[k];
		p->ids[k] = i;
	}
	p->seq = skv_memfd_new("seq", p->layout.total);
	p->pages = skv_memfd_new("pages", p->job.max_pages * p->job.page_bytes);
	ck_assert(p->seq >= 0 && p->pages >= 0);
}

void prefix_make(struct prefix_case *p, const char *url, struct skv_wire_model model, uint32_t n_blocks)
{
	struct skv_model m;
	char *page;

	*p = (struct prefix_case){.job = {.n_fds = SKV_DISK_FD_PAGES + 1, .model = model}, .what = {.n_blocks = n_blocks, .timeout_ms = 60000}};
	skv_wire_to_model(&m, &model);
	p->job.page_bytes = skv_page_bytes(&m);
	p->job.commit = (uint64_t)rnd_below(100) << 32 | n_blocks * SKV_BLOCK_TOKENS;
	p->job.max_tokens = n_blocks * SKV_BLOCK_TOKENS + rnd_below(1000);
	p->job.n_entries = p->job.n_pages = prefix_pages(p);
	skv_seqmem_layout(&m, p->job.max_tokens, &p->layout);
	rnd_bytes(p->what.key, sizeof(p->what.key));
	snprintf(p->what.url, sizeof(p->what.url), "%s", url);
	p->names = calloc(n_blocks, sizeof(*p->names));
	p->tokens = calloc(n_blocks, SKV_BLOCK_TOKENS * sizeof(*p->tokens));
	rnd_bytes(p->names, n_blocks * sizeof(*p->names));
	rnd_bytes(p->tokens, n_blocks * SKV_BLOCK_TOKENS * sizeof(*p->tokens));
	make_memory(p);
	page = malloc(p->job.page_bytes);
	for (uint64_t i = 0; i < prefix_pages(p); i++) {
		store_fill(page, p->job.page_bytes, rnd64());
		ck_assert_int_eq(pwrite(p->pages, page, p->job.page_bytes, (off_t)(p->ids[i] * p->job.page_bytes)), (ssize_t)p->job.page_bytes);
	}
	free(page);
}

void prefix_random(struct prefix_case *p, const char *url, uint32_t max_blocks)
{
	const uint32_t n_kv_heads = 1u << rnd_below(3);

	prefix_make(p, url, parked_model(1 + rnd_below(4), n_kv_heads * (1 + rnd_below(3)), n_kv_heads, 16 * (1 + rnd_below(3)), rnd_below(4)),
	     1 + rnd_below(max_blocks));
}

/* Four parts a block. */
struct skv_wire_model prefix_wide_model(void)
{
	return parked_model(4, 32, 32, 128, SKV_BF16);
}

/* Somewhere for it to go to. */
struct prefix_case prefix_target(const struct prefix_case *from)
{
	struct prefix_case to = *from;

	make_memory(&to);
	return to;
}

void prefix_free_target(struct prefix_case *p)
{
	free(p->ids);
	close(p->seq);
	close(p->pages);
}

void prefix_free(struct prefix_case *p)
{
	prefix_free_target(p);
	free(p->names);
	free(p->tokens);
}

uint32_t prefix_parts(const struct prefix_case *p)
{
	const uint64_t fit = PREFIX_PART / p->job.page_bytes ? PREFIX_PART / p->job.page_bytes : 1;
	const uint64_t n = (uint64_t)p->job.model.n_layers * PREFIX_BLOCK_PAGES;

	return (uint32_t)((n + fit - 1) / fit);
}

uint64_t prefix_value_bytes(const struct prefix_case *p)
{
	return prefix_pages(p) * p->job.page_bytes + (uint64_t)p->what.n_blocks * prefix_parts(p) * PREFIX_OVERHEAD;
}

/* ---- jobs -------------------------------------------------------------------------------------- */

/* A job whose descriptors have these bytes of what they should have; the list is numbers. */
int prefix_ask_with(const struct prefix_case *p, uint32_t kind, size_t what_bytes, const uint32_t *list, size_t list_bytes)
{
	const size_t names = p->what.n_blocks * sizeof(*p->names), ids = p->what.n_blocks * SKV_BLOCK_TOKENS * sizeof(*p->tokens);
	const size_t parts[] = {sizeof(p->what), names, ids};
	const void *from[] = {&p->what, p->names, p->tokens};
	struct skv_disk_job job = p->job;
	int fds[] = {disk.folder, skv_memfd_new("what", what_bytes ? what_bytes : 1), p->seq, skv_memfd_new("list", list_bytes ? list_bytes : 1),
	             p->pages};
	size_t at = 0;

	for (int i = 0; i < 3; i++) {
		const size_t n = what_bytes - at < parts[i] ? what_bytes - at : parts[i];

		ck_assert_int_eq(pwrite(fds[SKV_DISK_FD_STORE], from[i], n, (off_t)at), (ssize_t)n);
		at += n;
	}
	ck_assert_int_eq(pwrite(fds[SKV_DISK_FD_LIST], list, list_bytes, 0), (ssize_t)list_bytes);
	job.kind = kind;
	if (kind == SKV_DISK_STORE_FIND)
		job = (struct skv_disk_job){.kind = kind, .n_fds = SKV_DISK_FD_STORE + 1};
	disk_post(&job, fds);
	disk_wait();
	close(fds[SKV_DISK_FD_STORE]);
	close(fds[SKV_DISK_FD_LIST]);
	return disk.answer.error;
}

size_t prefix_what_bytes(const struct prefix_case *p, uint32_t kind)
{
	return sizeof(p->what) + p->what.n_blocks * (sizeof(*p->names) + (kind == SKV_DISK_STORE_GET ? 4 * SKV_BLOCK_TOKENS : 0));
}

/* The list that the job should have, to be freed. */
uint32_t *prefix_list(const struct prefix_case *p, uint32_t kind)
{
	const uint32_t n_layers = p->job.model.n_layers, n_blocks = p->what.n_blocks;
	uint32_t *list = calloc(prefix_pages(p) + 1, sizeof(*list)), *to = list;

	if (kind == SKV_DISK_STORE_GET)
		return memcpy(list, p->ids, prefix_pages(p) * sizeof(*list));
	for (uint32_t layer = 0; layer < n_layers; layer++)
		for (uint32_t i = 0; i < n_blocks * PREFIX_BLOCK_PAGES; i++)
			*to++ = skv_pte_make(rnd_below(2) ? SKV_PTE_PRIVATE : SKV_PTE_SHARED,
			                     p->ids[(i / PREFIX_BLOCK_PAGES * n_layers + layer) * PREFIX_BLOCK_PAGES + i % PREFIX_BLOCK_PAGES]);
	return list;
}

int prefix_ask(const struct prefix_case *p, uint32_t kind)
{
	const double from = store_now_ms();
	uint32_t *list = prefix_list(p, kind);
	const int r = prefix_ask_with(p, kind, prefix_what_bytes(p, kind), list, prefix_pages(p) * sizeof(*list));

	free(list);
	ck_assert_msg(store_now_ms() - from < p->what.timeout_ms + SLACK, "%.0f ms", store_now_ms() - from);
	return r;
}

void prefix_expect_put(const struct prefix_case *p, uint64_t bytes)
{
	DISK_EXPECT(prefix_ask(p, SKV_DISK_STORE_PUT), 0);
	ck_assert_uint_eq(disk.answer.bytes, bytes);
}

void prefix_expect_found(const struct prefix_case *p, uint32_t n_blocks)
{
	DISK_EXPECT(prefix_ask(p, SKV_DISK_STORE_FIND), 0);
	ck_assert_uint_eq(disk.answer.n_blocks, n_blocks);
}

static void *read_at(int fd, uint64_t at, size_t bytes)
{
	void *to = malloc(bytes + 1);

	ck_assert_int_eq(pread(fd, to, bytes, (off_t)at), (ssize_t)bytes);
	return to;
}

/* The memory is that of a sequence of the first n blocks. */
static void expect_memory(const struct prefix_case *was, const struct prefix_case *is, uint32_t n)
{
	const struct skv_seqmem_layout *l = &is->layout;
	struct skv_seqmem *s = read_at(is->seq, 0, sizeof(*s)), *expected = calloc(1, sizeof(*expected));
	int32_t *tokens = read_at(is->seq, l->tokens, (is->job.max_tokens + 1) * sizeof(*tokens));

	skv_seqmem_init_header(expected, l);
	skv_seqmem_begin_with(expected, n * SKV_BLOCK_TOKENS);
	ck_assert_mem_eq(s, expected, sizeof(*s));
	ck_assert_ptr_null(skv_seqmem_check(s, l));
	if (n)
		ck_assert_mem_eq(tokens, was->tokens, n * SKV_BLOCK_TOKENS * sizeof(*tokens));
	ck_assert_int_eq(tokens[n * SKV_BLOCK_TOKENS], -1);
	for (uint32_t i = n * SKV_BLOCK_TOKENS + 1; i <= is->job.max_tokens; i++)
		ck_assert_int_eq(tokens[i], 0);
	for (uint32_t t = 0; t < l->n_tables; t++) {
		skv_pte *e = read_at(is->seq, l->table + (uint64_t)t * l->max_pages * sizeof(*e), l->max_pages * sizeof(*e));
		const bool kv = skv_table_page_kind(l->n_layers, t) == SKV_PAGES_KV;

		for (uint32_t i = 0; i < l->max_pages; i++) {
			const uint32_t at = (i / PREFIX_BLOCK_PAGES * l->n_layers + t) * PREFIX_BLOCK_PAGES + i % PREFIX_BLOCK_PAGES;

			ck_assert_uint_eq(e[i], kv && i < n * PREFIX_BLOCK_PAGES ? skv_pte_make(SKV_PTE_PRIVATE, is->ids[at]) : 0);
		}
		free(e);
	}
	free(tokens);
	free(expected);
	free(s);
}

void prefix_expect_same(const struct prefix_case *was, const struct prefix_case *is, uint32_t n)
{
	const uint64_t bytes = was->job.page_bytes;

	expect_memory(was, is, n);
	for (uint64_t i = 0; i < (uint64_t)n * was->job.model.n_layers * PREFIX_BLOCK_PAGES; i++) {
		void *a = read_at(was->pages, was->ids[i] * bytes, bytes), *b = read_at(is->pages, is->ids[i] * bytes, bytes);

		ck_assert_mem_eq(a, b, bytes);
		free(a);
		free(b);
	}
}

/* The first n blocks come, on other pages. */
void prefix_expect_got(const struct prefix_case *p, uint32_t n)
{
	struct prefix_case to = prefix_target(p);

	DISK_EXPECT(prefix_ask(&to, SKV_DISK_STORE_GET), 0);
	ck_assert_uint_eq(disk.answer.n_blocks, n);
	prefix_expect_same(p, &to, n);
	prefix_free_target(&to);
}
