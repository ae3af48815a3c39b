/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/core-peer.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "common/fd.h"

struct test_mem mem;
struct skv_core *core;
uint32_t n_corrupt;
char corrupt_why[256];
static uint32_t fds_before;

static int test_pool_new(const struct skv_mem_ops *ops, uint64_t bytes)
{
	struct test_mem *m = (struct test_mem *)ops;

	if (m->fail_after == 0)
		return -ENOMEM;
	if (m->fail_after > 0)
		m->fail_after--;
	return skv_mem_host.pool_new(&skv_mem_host, bytes);
}

static bool test_discard(const struct skv_mem_ops *ops, int fd, const struct skv_mem_range *range)
{
	struct test_mem *m = (struct test_mem *)ops;

	if (!m->slow)
		return skv_mem_host.discard(&skv_mem_host, fd, range);
	ck_assert_uint_lt(m->n_discards, sizeof(m->discards) / sizeof(m->discards[0]));
	m->discards[m->n_discards].fd = fd;
	m->discards[m->n_discards++].range = *range;
	return false;
}

/* Discards of a closed pool are ignored; the core may or may not be told of them. */
static void test_close(const struct skv_mem_ops *ops, int fd)
{
	struct test_mem *m = (struct test_mem *)ops;

	for (uint32_t i = 0; i < m->n_discards; i++)
		if (m->discards[i].fd == fd)
			m->discards[i].fd = -1;
	skv_mem_host.close(&skv_mem_host, fd);
}

static uint64_t test_left(const struct skv_mem_ops *ops)
{
	return ((const struct test_mem *)ops)->left;
}

void mem_discarded(uint32_t which)
{
	struct skv_mem_range range = mem.discards[which].range;

	if (mem.discards[which].fd >= 0)
		skv_mem_host.discard(&skv_mem_host, mem.discards[which].fd, &range);
	mem.discards[which] = mem.discards[--mem.n_discards];
	skv_core_segment_discarded(core, &range);
}

static void device_destroy(const struct skv_mem_ops *ops, struct skv_mem_handle *handle, size_t bytes)
{
	(void)ops;
	fallocate(handle->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
	handle->fd = skv_close_fd(handle->fd);
}

void device_add(uint32_t device, const struct skv_core_config *k)
{
	static const struct skv_mem_ops ops = {
		.granularity = 65536, .handle_kind = SKV_HANDLE_CUDA_FD, .destroy = device_destroy};
	const struct skv_core_memory_limits limits = {
		.pool_bytes = k->pool_bytes,
		.segment_bytes = k->segment_bytes,
		.account_bytes = k->account_bytes,
		.most_bytes = 4 * k->pool_bytes,
	};

	skv_core_set_device(core, device, &ops, &limits);
}

void devices_make(void)
{
	struct skv_core_pending p;

	while (skv_core_next_pending(core, &p)) {
		struct skv_mem_handle h = {.fd = skv_memfd_new("device", p.bytes)};

		ck_assert_int_ge(h.fd, 0);
		skv_core_segment_made(core, &p, &h);
	}
}

struct add_bytes {
	uint32_t device;
	uint64_t bytes;
};

static void add_bytes(void *data, const struct skv_core_pool_view *v)
{
	struct add_bytes *a = data;

	a->bytes += v->device == a->device ? v->segments * v->segment_bytes : 0;
}

uint64_t mem_bytes(uint32_t device)
{
	struct add_bytes a = {.device = device};

	books_walk(skv_core_pools_some, add_bytes, &a);
	return a.bytes;
}

void test_mem_init(struct test_mem *m)
{
	*m = (struct test_mem){.ops = skv_mem_host, .fail_after = -1, .left = UINT64_MAX};
	m->ops.pool_new = test_pool_new;
	m->ops.discard = test_discard;
	m->ops.close = test_close;
	m->ops.left = test_left;
}

struct skv_core_config books_config(void)
{
	return (struct skv_core_config){
		.pool_bytes = 8 << 20,
		.segment_bytes = 64 << 10,
		.account_bytes = 4 << 20,
		.device_bytes = 8 << 20,
		.device_segment_bytes = 64 << 10,
		.account_clients = 4,
		.account_sequences = 8,
		.max_clients = 10,
		.max_sequences = 24,
		.max_sessions = 16,
		.max_pools = 10,
		.account_pools = 3,
		.client_sessions = 5,
	};
}

static void on_corrupt(void *data, uid_t uid, const char *m, const char *name, const char *why)
{
	(void)data;
	ck_assert_uint_ge(uid, 1000);
	ck_assert_str_ne(m, "");
	ck_assert_ptr_nonnull(name);
	snprintf(corrupt_why, sizeof(corrupt_why), "%s", why);
	n_corrupt++;
}

void books_watch(void)
{
	n_corrupt = 0;
	skv_core_on_corrupt(core, on_corrupt, NULL);
}

void books_open(const struct skv_core_config *config)
{
	fds_before = count_fds();
	test_mem_init(&mem);
	ck_assert_int_eq(skv_core_new(config, &mem.ops, &core), 0);
	books_watch();
	books_even();
}

void books_trim(void)
{
	skv_core_trim(core); /* the first call may end a time in which they were in use */
	skv_core_trim(core);
}

void books_even(void)
{
	const char *problem = skv_core_balance(core, false);

	ck_assert_msg(!problem, "%s", problem);
	skv_core_commit(core);
}

void books_close(void)
{
	const char *problem;

	books_even();
	skv_core_drop_all(core);
	problem = skv_core_balance(core, true);
	ck_assert_msg(!problem, "%s", problem);
	core = skv_core_free(core);
	ck_assert_uint_eq(count_fds(), fds_before);
}

struct find_pool {
	uint32_t pool;
	struct skv_core_pool_view found;
};

static void find_pool(void *data, const struct skv_core_pool_view *v)
{
	struct find_pool *f = data;

	if (v->pool == f->pool)
		f->found = *v;
}

struct skv_core_pool_view books_pool(uint32_t pool)
{
	struct find_pool f = {.pool = pool};

	books_walk(skv_core_pools_some, find_pool, &f);
	return f.found;
}

void ck_same_pool(const struct skv_core_pool_view *a, const struct skv_core_pool_view *b)
{
	ck_assert_uint_eq(a->pool, b->pool);
	ck_assert_uint_eq(a->uid, b->uid);
	ck_assert_uint_eq(a->segments, b->segments);
	ck_assert_uint_eq(a->pages, b->pages);
	ck_assert_uint_eq(a->free, b->free);
	ck_assert_uint_eq(a->lease, b->lease);
	ck_assert_uint_eq(a->seq, b->seq);
	ck_assert_uint_eq(a->shared, b->shared);
}

static void find_account(void *data, const struct skv_core_account_view *v)
{
	struct skv_core_account_view *to = data;

	if (v->uid == to->uid)
		*to = *v;
}

struct skv_core_account_view books_account(uid_t uid)
{
	struct skv_core_account_view v = {.uid = uid};

	books_walk(skv_core_accounts_some, find_account, &v);
	return v;
}

struct find_seq {
	const char *name;
	uint32_t found;
	struct skv_core_seq_view v;
};

static void find_seq(void *data, const struct skv_core_seq_view *v)
{
	struct find_seq *f = data;

	if (!strcmp(v->name, f->name)) {
		f->v = *v;
		f->found++;
	}
}

void books_seqs(void (*cb)(void *, const struct skv_core_seq_view *), void *data)
{
	books_walk(skv_core_seqs_some, cb, data);
}

struct skv_core_held books_held(void)
{
	struct skv_core_walk w = {.all = true};
	struct skv_core_held held = {0};

	for (uint32_t units = 100; !skv_core_held_some(core, &w, &units, &held);)
		units = 100;
	return held;
}

struct skv_core_seq_view books_seq(const char *name)
{
	struct find_seq f = {.name = name};

	books_seqs(find_seq, &f);
	ck_assert_uint_eq(f.found, 1);
	return f.v;
}

bool books_has_seq(const char *name)
{
	struct find_seq f = {.name = name};

	books_seqs(find_seq, &f);
	return f.found;
}

void pool_is(const struct peer *p, uint64_t lease, uint64_t seq, uint64_t shared)
{
	struct skv_core_pool_view v = books_pool(p->session.pool);

	ck_assert_uint_eq(v.lease, lease);
	ck_assert_uint_eq(v.seq, seq);
	ck_assert_uint_eq(v.shared, shared);
	ck_assert_uint_eq(v.free, v.pages - lease - seq - shared);
	books_even();
}

struct skv_model test_model(const char *name, uint32_t n_layers, uint32_t head_dim)
{
	struct skv_model m = SKV_MODEL_INIT;

	m.n_layers = n_layers;
	m.n_heads = m.n_kv_heads = 1;
	m.head_dim = head_dim;
	m.kv_dtype = SKV_F16;
	m.max_tokens = 65536;
	snprintf(m.name, sizeof(m.name), "%s", name);
	return m;
}

void peer_join(struct peer *p, uid_t uid, const struct skv_model *m)
{
	*p = (struct peer){.model = *m};
	ck_assert_int_eq(skv_core_client_add(core, uid, 1, "test", &p->client), 0);
	ck_assert_int_eq(skv_core_session_open(core, p->client, m, "full", 1, &p->session), 0);
}

void client_gone(uint32_t client)
{
	ck_assert_int_eq(skv_core_client_gone(core, client, 0), 0);
	skv_core_work_all(core);
}

int drop_name(uid_t uid, const char *name_of_model, const char *name)
{
	int r = skv_core_seq_drop_name(core, uid, name_of_model, name);

	skv_core_work_all(core);
	return r;
}

unsigned age_all(uint64_t now_ns, uint64_t park_ns, uint64_t ttl_ns)
{
	uint64_t before, after, for_room;

	skv_core_dropped(core, &before, &for_room);
	while (skv_core_age(core, now_ns, park_ns, ttl_ns, 25))
		;
	skv_core_dropped(core, &after, &for_room);
	return (unsigned)(after - before);
}

int in_turns(int error, struct skv_core_seq_info *info)
{
	struct skv_core_done done = {.more = true};

	if (error != SKV_CORE_E_TURNS)
		return error;
	while (done.more && !done.client)
		skv_core_work(core, 10000, &done);
	if (info && done.result == 0)
		*info = done.info;
	return done.result;
}

void peer_die(struct peer *p)
{
	client_gone(p->client);
	free(p->stock);
	*p = (struct peer){0};
}

void peer_hear(struct peer *p)
{
	struct skv_core_segment s;

	while (skv_core_next_segment(core, p->client, &s))
		if (s.gone)
			ck_assert_int_eq(skv_core_segment_ack(core, p->client, s.pool, s.segment), 0);
}

void peer_stock(struct peer *p, uint32_t page)
{
	if (p->n_stock == p->room) {
		p->room = p->room ? p->room * 2 : 64;
		p->stock = realloc(p->stock, p->room * sizeof(*p->stock));
		ck_assert_ptr_nonnull(p->stock);
	}
	p->stock[p->n_stock++] = page;
}

int peer_lease(struct peer *p, uint32_t least, uint32_t most)
{
	static struct skv_wire_run runs[SKV_WIRE_MAX_RUNS];
	uint32_t n, got = 0, end = 0;
	int r = skv_core_lease_get(core, p->client, p->session.session, least, most, runs, SKV_WIRE_MAX_RUNS,
	                           &n);

	if (r)
		return r;
	for (uint32_t i = 0; i < n; i++) {
		ck_assert_uint_gt(runs[i].count, 0);
		ck_assert_msg(!i || runs[i].first > end, "runs are ascending and apart");
		end = runs[i].first + runs[i].count;
		got += runs[i].count;
		for (uint32_t page = runs[i].first; page < end; page++)
			peer_stock(p, page);
	}
	ck_assert_uint_ge(got, least < SKV_CALL_PAGES ? least : SKV_CALL_PAGES);
	ck_assert_uint_le(got, most);
	peer_hear(p);
	return 0;
}

uint32_t peer_take(struct peer *p)
{
	if (!p->n_stock)
		ck_assert_msg(peer_lease(p, 1, 64) == 0, "%s", skv_core_why(core));
	return p->stock[--p->n_stock];
}

void held_open(struct held *h, const struct peer *p, const struct skv_core_seq_info *info)
{
	void *map;

	h->seq = info->seq;
	skv_seqmem_layout(&p->model, info->max_tokens, &h->layout);
	ck_assert_uint_eq(h->layout.total, info->bytes);
	ck_assert_int_eq(skv_map_fd(info->fd, info->bytes, PROT_READ | PROT_WRITE, 1, &map), 0);
	h->mem = map;
}

void held_close(struct held *h)
{
	munmap(h->mem, h->layout.total);
	*h = (struct held){0};
}

void held_new(struct held *h, struct peer *p, const char *name, uint32_t max_tokens)
{
	struct skv_core_seq_info info;

	ck_assert_msg(skv_core_seq_new(core, p->client, p->session.session, name, max_tokens, &info) == 0, "%s", skv_core_why(core));
	held_open(h, p, &info);
}

uint32_t held_len(const struct held *h)
{
	return skv_commit_len(atomic_load(&h->mem->commit));
}

skv_pte held_entry(const struct held *h, uint32_t table, uint32_t index)
{
	return skv_seqmem_table(h->mem, &h->layout, table)[index];
}

int held_attach(struct held *h, struct peer *p, const char *name)
{
	struct skv_core_seq_info info;
	int r = in_turns(skv_core_seq_attach(core, p->client, p->session.session, name, &info), &info);

	if (r == 0)
		held_open(h, p, &info);
	return r;
}

int held_fork_at(struct held *child, struct held *parent, struct peer *p, const char *name, uint32_t n_tokens)
{
	struct skv_core_seq_info info;
	int r = in_turns(skv_core_seq_fork(core, p->client, p->session.session, parent->seq, name, n_tokens, &info), &info);

	if (r == 0)
		held_open(child, p, &info);
	return r;
}

int held_fork(struct held *child, struct held *parent, struct peer *p, const char *name)
{
	return held_fork_at(child, parent, p, name, SKV_ALL);
}

int held_detach(struct held *h, struct peer *p)
{
	int r = in_turns(skv_core_seq_detach(core, p->client, p->session.session, h->seq), NULL);

	held_close(h);
	return r;
}

void held_drop(struct held *h, struct peer *p)
{
	ck_assert_int_eq(in_turns(skv_core_seq_drop(core, p->client, p->session.session, h->seq), NULL), 0);
	for (uint32_t t = 0; t < h->layout.n_tables; t++)
		for (uint32_t i = 0; i < skv_pages_of(held_len(h)); i++)
			if (skv_pte_kind(held_entry(h, t, i)) == SKV_PTE_PRIVATE)
				peer_stock(p, skv_pte_id(held_entry(h, t, i)));
	held_close(h);
}

void held_write(struct held *h, struct peer *p, uint32_t n_tokens, uint32_t *ret_cow, uint32_t *ret_n)
{
	uint32_t len = held_len(h), have = skv_pages_of(len), want = skv_pages_of(len + n_tokens), n_cow = 0;

	for (uint32_t layer = 0; layer < h->layout.n_layers; layer++) {
		skv_pte *table = skv_seqmem_table(h->mem, &h->layout, layer);

		if (len % SKV_PAGE_TOKENS && skv_pte_kind(table[have - 1]) == SKV_PTE_SHARED) {
			ret_cow[n_cow++] = skv_pte_id(table[have - 1]);
			table[have - 1] = skv_pte_make(SKV_PTE_PRIVATE, peer_take(p));
		}
		for (uint32_t i = have; i < want; i++)
			table[i] = skv_pte_make(SKV_PTE_PRIVATE, peer_take(p));
	}
	*ret_n = n_cow;
}

void held_commit(struct held *h, uint32_t n_tokens)
{
	uint64_t was = atomic_load(&h->mem->commit);
	uint32_t epoch = skv_commit_epoch(was) + 1, len = skv_commit_len(was) + n_tokens;

	h->mem->len[epoch & 1] = len;
	atomic_store(&h->mem->commit, (uint64_t)epoch << 32 | len);
}

void held_append(struct held *h, struct peer *p, uint32_t n_tokens)
{
	uint32_t cow[SKV_MAX_LAYERS], n;

	held_write(h, p, n_tokens, cow, &n);
	held_commit(h, n_tokens);
	for (uint32_t i = 0; i < n; i++) {
		struct skv_wire_run run = {cow[i], 1};

		ck_assert_int_eq(skv_core_seq_release(core, p->client, p->session.session, h->seq, &run, 1),
		                 0);
	}
}

void held_evict(struct held *h, uint32_t layer, uint32_t n, enum journal_point stop)
{
	struct skv_eviction *j = skv_seqmem_journal(h->mem, &h->layout);
	skv_pte *table = skv_seqmem_table(h->mem, &h->layout, layer);

	atomic_store(&h->mem->journal_epoch, skv_commit_epoch(h->mem->commit) + 1);
	for (uint32_t i = 0; i < n; i++)
		j[i] = (struct skv_eviction){layer, i};
	atomic_store(&h->mem->journal_n, n);
	if (stop == JOURNAL_WRITTEN)
		return;
	held_commit(h, 0);
	for (uint32_t i = 0; i < n && stop != JOURNAL_COMMITTED; i++) {
		table[i] = skv_pte_make(SKV_PTE_HOLE, 0);
		if (stop == JOURNAL_HALF_DONE && i == n / 2)
			return;
	}
	if (stop == JOURNAL_DONE)
		atomic_store(&h->mem->journal_n, 0);
}

uint32_t count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	uint32_t n = 0;

	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}
