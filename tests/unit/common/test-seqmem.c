/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequence memory after its writer died at any instruction.
 *
 * A writer is simulated as the list of stores that seqmem.h allows, in the order that it requires. The memory is
 * checked after each store, as the next process that opens it would find it: after recovery it must have the state of
 * the last commit, and the sequence must be able to go on from there.
 */
#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <sparsekv/policy.h>

#include "common/fd.h"
#include "common/seqmem.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define LAYERS 3u
#define MAX_TOKENS 160u
#define MAX_PAGES (MAX_TOKENS / SKV_PAGE_TOKENS)
#define TABLES (SKV_PAGE_KINDS * LAYERS)

static struct skv_model model = {.n_layers = LAYERS, .n_heads = 2, .n_kv_heads = 1, .head_dim = 16};
static struct skv_seqmem_layout layout;

/* ---- what a commit says ---------------------------------------------------------------------- */

/*
 * The committed state that a reader must find. A page is identified by its contents, not by its id, because
 * copy-on-write replaces an entry by another page with the same contents.
 */
struct truth {
	uint32_t epoch, len;
	int32_t next;
	int32_t tokens[MAX_TOKENS];
	uint32_t contents[TABLES][MAX_PAGES]; /* 0 in tables of state: nothing, or left by an interrupted step */
	uint32_t about;
	struct skv_layer_slots slots[LAYERS];
};

#define EVICTED UINT32_MAX

/* contents_of[id]: what was written to the page with that id; ids are not reused here */
static uint32_t contents_of[1u << 16];
static uint32_t n_ids;

static void expect(struct skv_seqmem *s, const struct truth *t)
{
	uint64_t commit = atomic_load(&s->commit);
	uint32_t n_pages = skv_pages_of(t->len);

	ck_assert_ptr_null(skv_seqmem_check(s, &layout));
	ck_assert_uint_eq(skv_commit_epoch(commit), t->epoch);
	ck_assert_uint_eq(skv_commit_len(commit), t->len);
	ck_assert_uint_eq(atomic_load(&s->journal_n), 0);
	ck_assert_mem_eq(skv_seqmem_tokens(s, &layout), t->tokens, t->len * sizeof(int32_t));
	ck_assert_int_eq(skv_seqmem_tokens(s, &layout)[t->len], t->next);
	ck_assert_uint_eq(s->about[t->epoch & 1], t->about);
	ck_assert_mem_eq(s->lay[t->epoch & 1].slots, t->slots, sizeof(t->slots));
	for (uint32_t number = 0; number < TABLES; number++) {
		const skv_pte *table = skv_seqmem_table(s, &layout, number);
		bool state = skv_table_page_kind(LAYERS, number) != SKV_PAGES_KV;
		bool kept = skv_table_page_kind(LAYERS, number) == SKV_PAGES_SAVED; /* the same number for any length */

		for (uint32_t i = 0; i < MAX_PAGES; i++) {
			if (i >= (kept ? layout.kept : n_pages))
				ck_assert_uint_eq(table[i], 0);
			else if (t->contents[number][i] == EVICTED)
				ck_assert_uint_eq(skv_pte_kind(table[i]), state ? SKV_PTE_NONE : SKV_PTE_HOLE);
			else if (t->contents[number][i] || !state)
				ck_assert_uint_eq(contents_of[skv_pte_id(table[i])], t->contents[number][i]);
		}
	}
}

/* ---- a step as stores ------------------------------------------------------------------------ */

struct store {
	void *to;
	uint64_t value;
	uint8_t bytes;
};

static struct store stores[4096];
static unsigned n_stores;

static void put(void *to, uint64_t value, uint8_t bytes)
{
	ck_assert_uint_lt(n_stores, sizeof(stores) / sizeof(stores[0]));
	stores[n_stores++] = (struct store){to, value, bytes};
}

static void carry_out(const struct store *st)
{
	if (st->bytes == 8)
		atomic_store((_Atomic uint64_t *)st->to, st->value);
	else
		atomic_store((_Atomic uint32_t *)st->to, (uint32_t)st->value);
}

static skv_pte fresh_page(uint32_t contents)
{
	ck_assert_uint_lt(n_ids, sizeof(contents_of) / sizeof(contents_of[0]));
	contents_of[n_ids] = contents;
	return skv_pte_make(SKV_PTE_PRIVATE, n_ids++);
}

/*
 * The pages of a step: the partly filled last one may be copied first (the copy has its committed contents), then new
 * entries are added beyond the length.
 */
static void append_stores(struct skv_seqmem *s, struct truth *t, uint32_t n_tokens)
{
	uint32_t had = skv_pages_of(t->len), need = skv_pages_of(t->len + n_tokens);

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		skv_pte *table = skv_seqmem_table(s, &layout, layer);

		if (t->len % SKV_PAGE_TOKENS && t->contents[layer][had - 1] != EVICTED && rnd_below(4) == 0)
			put(&table[had - 1], fresh_page(t->contents[layer][had - 1]), 4);
		for (uint32_t i = had; i < need; i++) {
			t->contents[layer][i] = n_ids;
			put(&table[i], fresh_page(n_ids), 4);
		}
	}
	for (uint32_t i = 0; i < n_tokens; i++) {
		t->tokens[t->len] = (int32_t)rnd_below(1000);
		put(&skv_seqmem_tokens(s, &layout)[t->len], (uint32_t)t->tokens[t->len], 4);
		t->len++;
	}
}

/*
 * In each table of state, of layers that have state, one page for every 48 tokens: missing pages are added, and the
 * last one may be copied.
 */
static void state_stores(struct skv_seqmem *s, struct truth *t, uint32_t n_tokens)
{
	uint32_t had = (t->len + 47) / 48, need = (t->len + n_tokens + 47) / 48;

	for (uint32_t number = skv_table(LAYERS, SKV_PAGES_STATE, 0); number < TABLES; number++) {
		skv_pte *table = skv_seqmem_table(s, &layout, number);

		if (skv_table_layer(LAYERS, number) == 0)
			continue;
		if (t->len % 48 && t->contents[number][had - 1] != EVICTED && rnd_below(4) == 0)
			put(&table[had - 1], fresh_page(t->contents[number][had - 1]), 4);
		for (uint32_t i = had; i < need; i++) {
			t->contents[number][i] = n_ids;
			put(&table[i], fresh_page(n_ids), 4);
		}
	}
}

/* Chooses the victims of a step; returns their number. */
static uint32_t choose_victims(struct truth *t, struct skv_eviction *victims)
{
	uint32_t n = 0;

	for (uint32_t table = 0; table < TABLES; table++) {
		for (uint32_t i = 0; i < skv_pages_of(t->len); i++) {
			uint32_t *contents = &t->contents[table][i];

			if (*contents && *contents != EVICTED && rnd_below(6) == 0) {
				*contents = EVICTED;
				victims[n++] = (struct skv_eviction){table, i};
			}
		}
	}
	return n;
}

/*
 * Makes the stores of a whole step in the order of seqmem.h; *t becomes the state that it commits. Returns the index of
 * the committing store.
 */
static unsigned step_stores(struct skv_seqmem *s, struct truth *t)
{
	struct skv_eviction victims[TABLES * MAX_PAGES], *journal = skv_seqmem_journal(s, &layout);
	uint32_t n_tokens = 1 + (rnd_below(3) ? 0 : rnd_below(40)), n_victims;
	unsigned committing;

	n_stores = 0;
	if (n_tokens > MAX_TOKENS - t->len)
		n_tokens = MAX_TOKENS - t->len;
	state_stores(s, t, n_tokens);
	append_stores(s, t, n_tokens);
	n_victims = rnd_below(2) ? choose_victims(t, victims) : 0;
	t->epoch++;
	t->next = (int32_t)rnd_below(1000);

	put(&s->next[t->epoch & 1], (uint32_t)t->next, 4);
	t->about = (uint32_t)rnd64();
	put(&s->about[t->epoch & 1], t->about, 4);
	for (uint32_t i = 0; i < LAYERS; i++) {
		t->slots[i].live = rnd_below(t->len + 1);
		put(&s->lay[t->epoch & 1].slots[i].live, t->slots[i].live, 4);
	}
	put(&skv_seqmem_tokens(s, &layout)[t->len], (uint32_t)t->next, 4);
	if (n_victims) {
		put(&s->journal_epoch, t->epoch, 4);
		for (uint32_t i = 0; i < n_victims; i++) {
			put(&journal[i].table, victims[i].table, 4);
			put(&journal[i].page, victims[i].page, 4);
		}
		put(&s->journal_n, n_victims, 4);
	}
	committing = n_stores;
	put(&s->commit, (uint64_t)t->epoch << 32 | t->len, 8);
	for (uint32_t i = 0; i < n_victims; i++)
		put(&skv_seqmem_table(s, &layout, victims[i].table)[victims[i].page],
		    skv_pte_make(victims[i].table < LAYERS ? SKV_PTE_HOLE : SKV_PTE_NONE, 0), 4);
	if (n_victims)
		put(&s->journal_n, 0, 4);
	return committing;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static struct skv_seqmem *new_memory(void)
{
	int fd = skv_memfd_new("seq", layout.total);
	void *p;

	ck_assert_int_eq(skv_map_fd(fd, layout.total, PROT_READ | PROT_WRITE, 1, &p), 0);
	skv_close_fd(fd);
	skv_seqmem_init(p, &layout);
	return p;
}

static void set_up(void)
{
	skv_seqmem_layout(&model, MAX_TOKENS, &layout);
	n_ids = 1;
}

/*
 * Sequences of steps. Each step is stopped after each of its stores, and then undone from a copy of the memory. One of
 * the stops is then real: the sequence goes on from the recovered memory.
 */
START_TEST(stopped_after_each_store)
{
	struct skv_seqmem *s = new_memory(), *before = malloc(layout.state), *there = malloc(layout.state);

	for (int round = 0; round < 20; round++) {
		struct truth committed = {.next = -1};

		memset(s, 0, layout.state);
		skv_seqmem_init(s, &layout);
		n_ids = 1;
		expect(s, &committed);
		while (committed.len < MAX_TOKENS) {
			struct truth next = committed;
			unsigned commits = step_stores(s, &next);
			unsigned real = rnd_below(4) ? n_stores : rnd_below(n_stores);

			/* stores contain addresses in `s`, so they are carried out there, and undone from a copy */
			memcpy(before, s, layout.state);
			for (unsigned i = 0; i <= n_stores; i++) {
				if (i > 0)
					carry_out(&stores[i - 1]);
				memcpy(there, s, layout.state);
				skv_seqmem_recover(s, &layout);
				expect(s, i > commits ? &next : &committed);
				skv_seqmem_recover(s, &layout);
				expect(s, i > commits ? &next : &committed);
				memcpy(s, there, layout.state);
			}
			memcpy(s, before, layout.state);
			for (unsigned i = 0; i < real; i++)
				carry_out(&stores[i]);
			if (real < n_stores)
				skv_seqmem_recover(s, &layout);
			if (real > commits)
				committed = next;
			if (real < n_stores)
				expect(s, &committed);
		}
	}
	free(before);
	free(there);
	munmap(s, layout.total);
}
END_TEST

/* After arbitrary writes of a hostile client, recovery stays within the memory and ends in a valid state. */
START_TEST(recovery_of_garbage)
{
	struct skv_seqmem *s = new_memory();

	for (int round = 0; round < 2000; round++) {
		uint32_t len;

		rnd_bytes(s, layout.state);
		if (round % 2) /* a journal of the committed epoch */
			atomic_store(&s->journal_epoch, skv_commit_epoch(atomic_load(&s->commit)));
		if (round % 3)
			atomic_store(&s->commit, atomic_load(&s->commit) & ~(uint64_t)0xffffff00u);
		skv_seqmem_recover(s, &layout);
		ck_assert_uint_eq(atomic_load(&s->journal_n), 0);
		len = skv_commit_len(atomic_load(&s->commit));
		if (len > MAX_TOKENS)
			len = MAX_TOKENS;
		for (uint32_t table = 0; table < layout.n_tables; table++)
			for (uint32_t i = skv_seqmem_entries(&layout, table, len); i < MAX_PAGES; i++)
				ck_assert_uint_eq(skv_seqmem_table(s, &layout, table)[i], 0);
	}
	munmap(s, layout.total);
}
END_TEST

START_TEST(checks)
{
	struct skv_seqmem *s = new_memory();

	ck_assert_ptr_null(skv_seqmem_check(s, &layout));
	atomic_store(&s->commit, MAX_TOKENS);
	ck_assert_ptr_null(skv_seqmem_check(s, &layout));
	atomic_store(&s->commit, MAX_TOKENS + 1);
	ck_assert_str_eq(skv_seqmem_check(s, &layout), "committed length is beyond the sequence's maximum");
	atomic_store(&s->commit, 0);
	atomic_store(&s->journal_n, (uint32_t)layout.journal_most + 1);
	ck_assert_str_eq(skv_seqmem_check(s, &layout), "eviction journal is longer than the page tables");
	atomic_store(&s->journal_n, 0);
	s->n_layers++;
	ck_assert_str_eq(skv_seqmem_check(s, &layout), "sequence memory is of another shape than its model");
	s->n_layers--;
	s->max_tokens--;
	ck_assert_str_eq(skv_seqmem_check(s, &layout), "sequence memory is of another shape than its model");
	s->max_tokens++;
	s->magic = 0;
	ck_assert_str_eq(skv_seqmem_check(s, &layout), "sequence memory has no valid header");
	munmap(s, layout.total);
}
END_TEST

/* Slots and flags of a commit: valid combinations, and those that are refused. */
START_TEST(slots)
{
	static const struct {
		struct {
			uint32_t live, slot_end, granularity, n_active;
		} s;
		uint32_t about;
		const char *says;
	} c[] = {
		{{40, 40, 0, 40}, SKV_ABOUT_SLOTS, NULL},
		{{5, 64, 1, 5}, SKV_ABOUT_SLOTS, NULL}, /* up to a page behind the last one */
		{{5, 48, SKV_PAGE_TOKENS, 5}, SKV_ABOUT_SLOTS | SKV_ABOUT_PROMPTED, NULL},
		{{5, 65, 1, 5}, SKV_ABOUT_SLOTS, "more slots than the sequence has tokens"},
		{{6, 5, 1, 5}, SKV_ABOUT_SLOTS, "more slots than"},
		{{5, 6, 1, 6}, SKV_ABOUT_SLOTS, "more active slots than"},
		{{5, 6, 0, 5}, SKV_ABOUT_SLOTS, "no slot metadata that tells which"},
		{{5, 5, 2, 0}, SKV_ABOUT_SLOTS, "unknown granularity"},
		{{5, 65, 2, 9}, SKV_ABOUT_PROMPTED, NULL}, /* ignored without SKV_ABOUT_SLOTS */
	};

	for (size_t i = 0; i < sizeof(c) / sizeof(*c); i++) {
		const struct skv_layer_slots two[] = {
			{.live = 40, .slot_end = 40},
			{.live = c[i].s.live, .slot_end = c[i].s.slot_end, .granularity = c[i].s.granularity, .n_active = c[i].s.n_active},
		};
		const char *says = skv_layer_slots_check(two, c[i].about, 40, 2);

		ck_assert_msg(c[i].says ? says && strstr(says, c[i].says) : !says, "%zu: %s", i, says ? says : "");
		ck_assert_ptr_null(skv_layer_slots_check(two, c[i].about, 40, 1));
	}
}
END_TEST

START_TEST(compressed)
{
#define DELTA .kind = SKV_COMPRESS_LATENT, .scale_block = 64
#define LOW .kind = SKV_COMPRESS_QUANT, .scale_block = 32
#define REFS .stride = 10, .n_refs = 4, .ref_bits = 8, .id_bytes = 2, .first = 1
	static const struct {
		struct skv_form form;
		uint32_t coded;
		const char *says;
	} c[] = {
		{{DELTA, REFS, .bits = 16}, 32, NULL},
		{{DELTA, REFS}, 112, NULL},
		{{DELTA, .bits = 4}, 16, NULL},
		{{0}, 0, NULL},
		{{0}, 32, "other tokens than the sequence has"},
		{{LOW, .bits = 2}, 96, NULL},
		{{LOW, .bits = 4}, 80, "a multiple of 32"},
		{{LOW, .bits = 8}, 96, "4 or 2"},
		{{LOW, .bits = 4, .first = 1}, 112, "neither references nor sinks"},
		{{.kind = 3, .bits = 4}, 32, "kind is not one of"},
		{{DELTA, .bits = 4}, 128, "other tokens than the sequence has"},
		{{DELTA, REFS, .bits = 4}, 16, "other tokens than the sequence has"},
		{{DELTA, .bits = 4}, 24, "whole pages"},
		{{DELTA, .bits = 2}, 32, "16, 8, 4, or 0 with references"},
		{{DELTA}, 32, "or 0 with references"},
		{{DELTA, .bits = 16, .id_bytes = 2}, 32, "numbers of an unknown kind"},
		{{DELTA, .bits = 16, .stride = 5, .n_refs = 2, .ref_bits = 4, .first = 1, .id_bytes = 1}, 32, "unknown kind"},
		{{DELTA, .bits = 16, .stride = 5, .n_refs = 2, .ref_bits = 4, .id_bytes = 2}, 32, "sinks, which are references"},
	};
	struct skv_layer_slots x = {.live = 120, .slot_end = 120, .n_active = 120};

	for (size_t i = 0; i < sizeof(c) / sizeof(*c); i++) {
		const char *says;

		x.form = c[i].form;
		x.n_compressed = c[i].coded;
		says = skv_layer_slots_check(&x, SKV_ABOUT_SLOTS, 120, 1);
		ck_assert_msg(c[i].says ? says && strstr(says, c[i].says) : !says, "%zu: %s", i, says ? says : "");
	}
	x = (struct skv_layer_slots){.live = 119, .slot_end = 120, .granularity = 1, .n_compressed = 16,
	                             .form = {DELTA, .bits = 4}};
	ck_assert_str_eq(skv_layer_slots_check(&x, SKV_ABOUT_SLOTS, 120, 1),
	                 "a layer has compressed tokens, and has evicted others");
	x = (struct skv_layer_slots){.live = 119, .slot_end = 119, .n_compressed = 16, .form = {DELTA, .bits = 4}};
	ck_assert_str_eq(skv_layer_slots_check(&x, SKV_ABOUT_SLOTS, 120, 1),
	                 "a layer has compressed tokens, and has evicted others");
}
END_TEST

/* The parts follow each other without overlap, for the smallest, odd and the largest shapes. */
START_TEST(layouts)
{
	static const struct {
		uint32_t layers, kv_heads, head_dim, tokens;
	} c[] = {{1, 1, 16, 1}, {3, 5, 48, 17}, {16, 2, 64, 16384}, {256, 64, 256, SKV_MAX_TOKENS}};

	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		struct skv_model m = {
		        .n_layers = c[i].layers,
		        .n_heads = 4 * c[i].kv_heads,
		        .n_kv_heads = c[i].kv_heads,
		        .head_dim = c[i].head_dim,
		};
		/* two sets of 65 rows of fp32, 8 rows in a page */
		uint32_t kept = 2 * 9, pages = skv_pages_of(c[i].tokens), most = pages > kept ? pages : kept;
		size_t entries = (size_t)c[i].layers * most;
		struct skv_seqmem_layout l;

		skv_seqmem_layout(&m, c[i].tokens, &l);
		ck_assert_uint_eq(l.max_pages, most);
		ck_assert_uint_eq(l.kept, kept);
		ck_assert_uint_ge(l.table, sizeof(struct skv_seqmem));
		ck_assert_uint_eq(l.n_tables, SKV_PAGE_KINDS * c[i].layers);
		ck_assert_uint_ge(l.tokens, l.table + SKV_PAGE_KINDS * entries * sizeof(skv_pte));
		ck_assert_uint_ge(l.journal, l.tokens + ((size_t)c[i].tokens + 1) * sizeof(int32_t));
		ck_assert_uint_ge(l.state, l.journal + l.journal_most * sizeof(struct skv_eviction));
		ck_assert_uint_ge(l.state_bytes, 65536);
		ck_assert_uint_eq(l.total, l.state + l.state_bytes);
		ck_assert_uint_eq((l.table | l.tokens | l.journal | l.state | l.total) % 4096, 0);
	}
}
END_TEST

static blkcnt_t blocks_of(int fd)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	return st.st_blocks;
}

/* A short sequence with room for millions of tokens: recovery zeroes what is beyond it, without allocating memory. */
START_TEST(recovery_is_sparse)
{
	/* two sets of 65 rows of fp32, 32 in a page */
	struct skv_model m = {.n_layers = 64, .n_heads = 1, .n_kv_heads = 1, .head_dim = 16};
	struct skv_seqmem_layout l;
	struct skv_seqmem *s;
	blkcnt_t before;
	void *p;
	int fd;

	skv_seqmem_layout(&m, 4u << 20, &l);
	fd = skv_memfd_new("seq", l.total);
	ck_assert_int_eq(skv_map_fd(fd, l.total, PROT_READ | PROT_WRITE, 1, &p), 0);
	s = p;
	skv_seqmem_init(s, &l);
	atomic_store(&s->commit, (uint64_t)1 << 32 | 40);
	for (uint32_t layer = 0; layer < l.n_tables; layer++)
		/* the last ones were left by an interrupted step, or are saved for any length */
		for (uint32_t i = 0; i < 6; i++)
			skv_seqmem_table(s, &l, layer)[i] = skv_pte_make(SKV_PTE_PRIVATE, 100 + i);
	skv_seqmem_table(s, &l, 5)[200000] = 1; /* an entry that is never used */
	before = blocks_of(fd);
	skv_seqmem_recover(s, &l);
	ck_assert_int_lt(blocks_of(fd), before);
	for (uint32_t layer = 0; layer < l.n_tables; layer++) {
		ck_assert_uint_eq(skv_seqmem_table(s, &l, layer)[2], skv_pte_make(SKV_PTE_PRIVATE, 102));
		if (skv_table_page_kind(64, layer) == SKV_PAGES_SAVED)
			ck_assert_uint_eq(skv_seqmem_table(s, &l, layer)[5], skv_pte_make(SKV_PTE_PRIVATE, 105));
		else
			ck_assert_uint_eq(skv_seqmem_table(s, &l, layer)[3], 0);
	}
	ck_assert_uint_eq(skv_seqmem_table(s, &l, 5)[200000], 0);
	munmap(p, l.total);
	close(fd);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-seqmem");

	add_case(s, "seqmem", 60, set_up, NULL, stopped_after_each_store, recovery_of_garbage, checks, slots,
	         compressed, layouts, recovery_is_sparse, NULL);
	return run_suite(s);
}
