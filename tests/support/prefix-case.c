/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/prefix-case.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sparsekv/policy.h>
#include "common/fd.h"
#include "tests/support/disk-fixture.h"
#include "tests/support/store-fixture.h"
#include "tests/support/suite.h"

#define SLACK (slowed() ? 10000 : 1500) /* ms; the machine may run other programs */

/* ---- a sealed prefix --------------------------------------------------------------------------- */

uint64_t prefix_pages(const struct prefix_case *p)
{
	return p->n_places;
}

static bool has_records(const struct prefix_case *p)
{
	for (uint32_t layer = 0; layer < p->job.model.n_layers; layer++)
		if (p->what.made.form[layer].kind)
			return true;
	return false;
}

/*
 * Number of records of a kind that a token adds; for quantization the last of 32 tokens adds them. kernels/compress.h
 * has the closed form.
 */
static uint32_t records_of(const struct skv_form *f, enum skv_page_kind kind, uint32_t n_kv_heads, uint32_t token)
{
	const uint32_t first = f->first * SKV_PAGE_TOKENS;
	const bool ref = f->stride && (token < first || (token - first) % f->stride == 0);

	if (f->kind == SKV_COMPRESS_QUANT)
		return kind == SKV_PAGES_CODES && token % 32 == 31 ? n_kv_heads : 0;
	return kind == SKV_PAGES_REFS ? ref : token >= first && !ref;
}

/* Records that a token uses the page up to `used` bytes; adds the page if it is new. */
static void use(struct prefix_case *p, uint32_t table, uint32_t page, uint32_t used)
{
	for (uint64_t i = p->n_places; i-- > 0;)
		if (p->place[i].table == table && p->place[i].page == page) {
			p->place[i].used = used;
			return;
		}
	p->place = realloc(p->place, (p->n_places + 1) * sizeof(*p->place));
	p->place[p->n_places++] = (struct prefix_page){table, page, used};
}

/* Adds the records of a kind that the block's tokens have. */
static void use_records(struct prefix_case *p, uint32_t layer, enum skv_page_kind kind, uint32_t block, uint32_t *number)
{
	const struct skv_form *f = &p->what.made.form[layer];
	const uint32_t bytes = (kind == SKV_PAGES_REFS ? f->ref_size : f->code_size) * 16u;

	for (uint32_t t = block * SKV_BLOCK_TOKENS; t < (block + 1) * SKV_BLOCK_TOKENS; t++)
		for (uint32_t n = records_of(f, kind, p->job.model.n_kv_heads, t); n > 0; n--, ++*number) {
			const uint32_t each = (uint32_t)(p->job.page_bytes / bytes);

			use(p, skv_table(p->job.model.n_layers, kind, layer), *number / each, (*number % each + 1) * bytes);
		}
}

static void make_places(struct prefix_case *p)
{
	uint32_t number[SKV_MAX_LAYERS][2] = {0};

	for (uint32_t block = 0; block < p->what.n_blocks; block++)
		for (uint32_t layer = 0; layer < p->job.model.n_layers; layer++) {
			const struct skv_form *f = &p->what.made.form[layer];

			for (uint32_t i = 0; i < PREFIX_BLOCK_PAGES; i++)
				if (!f->kind || block * PREFIX_BLOCK_PAGES + i < f->first)
					use(p, layer, block * PREFIX_BLOCK_PAGES + i, (uint32_t)p->job.page_bytes);
			if (!f->kind)
				continue;
			use_records(p, layer, SKV_PAGES_CODES, block, &number[layer][0]);
			use_records(p, layer, SKV_PAGES_REFS, block, &number[layer][1]);
		}
}

static uint64_t used_bytes(const struct prefix_case *p)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < p->n_places; i++)
		n += p->place[i].used;
	return n;
}

/* Makes memory for its pages and some more, in random order. */
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
	static const struct skv_made rows;

	prefix_make_so(p, url, model, n_blocks, &rows);
}

void prefix_make_so(struct prefix_case *p, const char *url, struct skv_wire_model model, uint32_t n_blocks, const struct skv_made *made)
{
	struct skv_model m;
	char *page;

	*p = (struct prefix_case){.job = {.n_fds = SKV_DISK_FD_PAGES + 1, .model = model}, .what = {.n_blocks = n_blocks, .timeout_ms = 60000, .made = *made}};
	skv_wire_to_model(&m, &model);
	p->job.page_bytes = skv_page_bytes(&m);
	p->job.commit = (uint64_t)rnd_below(100) << 32 | n_blocks * SKV_BLOCK_TOKENS;
	p->job.max_tokens = n_blocks * SKV_BLOCK_TOKENS + rnd_below(1000);
	make_places(p);
	p->job.n_pages = p->n_places;
	p->job.n_entries = prefix_list_bytes(p, SKV_DISK_STORE_PUT) / sizeof(uint32_t);
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

struct skv_made prefix_random_forms(const struct skv_wire_model *model)
{
	static const uint8_t strides[] = {0, 1, 2, 7, 10, 200};
	struct skv_made made = {.policy = rnd64(), .codec = rnd64(), .rope = rnd64()};
	struct skv_model m;

	snprintf(made.codec_path, sizeof(made.codec_path), "/codec/%u", rnd_below(1000));
	skv_wire_to_model(&m, model);
	for (uint32_t layer = 0; layer < model->n_layers; layer++) {
		struct skv_form *f = &made.form[layer];
		const uint8_t stride = strides[rnd_below(6)];
		/* size of a token's rows, in units of 16 bytes */
		const uint32_t row = (uint32_t)(skv_page_bytes(&m) / SKV_PAGE_TOKENS / 16);

		switch (rnd_below(3)) {
		case 0:
			*f = (struct skv_form){.kind = SKV_COMPRESS_QUANT, .bits = 4, .scale_block = 32,
			                       .code_size = (uint16_t)(1 + rnd_below(16 * row / m.n_kv_heads))};
			break;
		case 1:
			*f = (struct skv_form){.kind = SKV_COMPRESS_LATENT, .bits = 4, .scale_block = 32, .stride = stride,
			                       .first = (uint8_t)(stride ? 1 + rnd_below(15) : rnd_below(15)),
			                       .n_refs = stride ? 1 + rnd_below(4) : 0, .ref_bits = stride ? 16 : 0, .id_bytes = stride ? 2 : 0,
			                       .code_size = (uint16_t)(1 + rnd_below(row)), .ref_size = (uint16_t)(stride ? 1 + rnd_below(row) : 0)};
		}
	}
	return made;
}

/* A block of this model has four parts. */
struct skv_wire_model prefix_wide_model(void)
{
	return parked_model(4, 32, 32, 128, SKV_BF16);
}

/* Fresh memory into which the prefix can be read. */
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
	free(p->place);
}

uint32_t prefix_parts(const struct prefix_case *p)
{
	const uint64_t fit = PREFIX_PART / p->job.page_bytes ? PREFIX_PART / p->job.page_bytes : 1;
	const uint64_t n = (uint64_t)p->job.model.n_layers * PREFIX_BLOCK_PAGES;

	return (uint32_t)((n + fit - 1) / fit);
}

uint64_t prefix_value_bytes(const struct prefix_case *p)
{
	return used_bytes(p) + (uint64_t)p->what.n_blocks * prefix_parts(p) * PREFIX_OVERHEAD;
}

/* ---- jobs -------------------------------------------------------------------------------------- */

/* Posts a job whose descriptors have this many bytes of the store data, and this list of numbers. */
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

/* Size of the list that the job needs: entries of all tables up to those of references, or of rows only. */
size_t prefix_list_bytes(const struct prefix_case *p, uint32_t kind)
{
	const uint64_t tables = (uint64_t)(has_records(p) ? SKV_PAGES_REFS + 1 : 1) * p->job.model.n_layers;

	return (kind == SKV_DISK_STORE_GET ? p->n_places : tables * p->what.n_blocks * PREFIX_BLOCK_PAGES) * sizeof(uint32_t);
}

uint32_t *prefix_list(const struct prefix_case *p, uint32_t kind)
{
	const uint32_t entries = p->what.n_blocks * PREFIX_BLOCK_PAGES;
	uint32_t *list = calloc(1, prefix_list_bytes(p, kind) + 1);

	if (kind == SKV_DISK_STORE_GET)
		return memcpy(list, p->ids, p->n_places * sizeof(*list));
	for (uint32_t i = 0; i < p->job.model.n_layers * entries; i++)
		list[i] = skv_pte_make(SKV_PTE_HOLE, 0);
	for (uint64_t i = 0; i < p->n_places; i++)
		list[p->place[i].table * entries + p->place[i].page] = skv_pte_make(rnd_below(2) ? SKV_PTE_PRIVATE : SKV_PTE_SHARED, p->ids[i]);
	return list;
}

int prefix_ask(const struct prefix_case *p, uint32_t kind)
{
	const double from = store_now_ms();
	uint32_t *list = prefix_list(p, kind);
	const int r = prefix_ask_with(p, kind, prefix_what_bytes(p, kind), list, prefix_list_bytes(p, kind));

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

/* The memory must be that of a sequence of the first n blocks, with the pages of `first`. */
static void expect_memory(const struct prefix_case *was, const struct prefix_case *is, uint32_t n, const struct prefix_case *first)
{
	const struct skv_seqmem_layout *l = &is->layout;
	struct skv_seqmem *s = read_at(is->seq, 0, sizeof(*s)), *expected = calloc(1, sizeof(*expected));
	int32_t *tokens = read_at(is->seq, l->tokens, (is->job.max_tokens + 1) * sizeof(*tokens));

	skv_seqmem_init_header(expected, l);
	skv_seqmem_begin_with(expected, n * SKV_BLOCK_TOKENS, l->n_layers, &is->what.made);
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
		skv_pte *want = calloc(l->max_pages, sizeof(*want));

		for (uint32_t i = 0; kv && i < n * PREFIX_BLOCK_PAGES; i++)
			want[i] = skv_pte_make(SKV_PTE_HOLE, 0);
		for (uint64_t i = 0; i < first->n_places; i++)
			if (first->place[i].table == t)
				want[first->place[i].page] = skv_pte_make(SKV_PTE_PRIVATE, is->ids[i]);
		ck_assert_mem_eq(e, want, l->max_pages * sizeof(*e));
		free(want);
		free(e);
	}
	free(tokens);
	free(expected);
	free(s);
}

void prefix_expect_same(const struct prefix_case *was, const struct prefix_case *is, uint32_t n)
{
	const uint64_t bytes = was->job.page_bytes;
	struct prefix_case first = *was;

	first.what.n_blocks = n;
	first.place = NULL;
	first.n_places = 0;
	make_places(&first);
	expect_memory(was, is, n, &first);
	for (uint64_t i = 0; i < first.n_places; i++) {
		void *a = read_at(was->pages, was->ids[i] * bytes, bytes), *b = read_at(is->pages, is->ids[i] * bytes, bytes);

		ck_assert_mem_eq(a, b, first.place[i].used);
		free(a);
		free(b);
	}
	free(first.place);
}

/* The first n blocks are read, into other pages. */
void prefix_expect_got(const struct prefix_case *p, uint32_t n)
{
	struct prefix_case to = prefix_target(p);

	DISK_EXPECT(prefix_ask(&to, SKV_DISK_STORE_GET), 0);
	ck_assert_uint_eq(disk.answer.n_blocks, n);
	prefix_expect_same(p, &to, n);
	prefix_free_target(&to);
}
