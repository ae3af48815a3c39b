/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/kernel-fixture.h"
#include "bench/bench.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- memory ---------------------------------------------------------------------------------- */

void *fixture_get(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (!p) {
		fprintf(stderr, "sparsekv-bench: no memory for %zu bytes\n", bytes);
		exit(1);
	}
	memset(p, 0, bytes);
	return p;
}

void fixture_need(const struct kernel_fixture *b, int r)
{
	if (r == 0)
		return;
	fprintf(stderr, "sparsekv-bench: %s\n", b->o->device->error());
	exit(1);
}

void *fixture_there(struct kernel_fixture *b, void *p, size_t bytes)
{
	const struct skv_backend *d = b->o->device;
	void *copy;
	if (!d)
		return p;
	fixture_need(b, d->alloc(bytes, &copy));
	fixture_need(b, d->copy(copy, p, bytes, b->work.stream));
	fixture_need(b, d->wait(b->work.stream));
	free(p);
	return copy;
}

void *fixture_room(struct kernel_fixture *b, size_t bytes)
{
	void *p;

	if (!b->o->device)
		return fixture_get(bytes);
	fixture_need(b, b->o->device->alloc(bytes, &p));
	return p;
}

void fixture_free(const struct kernel_fixture *b, void *p)
{
	if (b->o->device)
		fixture_need(b, b->o->device->free(p));
	else
		free(p);
}

float *fixture_floats(struct kernel_fixture *b, uint64_t *rng, size_t n)
{
	float *x = fixture_get(n * sizeof *x);
	for (size_t i = 0; i < n; i++)
		x[i] = (float)((double)(bench_random(rng) >> 40) * 0x1p-23 - 1);
	return fixture_there(b, x, n * sizeof *x);
}

static int map_pool(struct kernel_fixture *b)
{
	const struct skv_backend *d = b->o->device;
	if (d) {
		if (d->alloc(b->pool_bytes, (void **)&b->sh.pool) == 0)
			return 0;
		fprintf(stderr, "sparsekv-bench: no pool of %zu bytes: %s\n", b->pool_bytes, d->error());
		return -1;
	}
	int fd = memfd_create("sparsekv-bench", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)b->pool_bytes) < 0)
		goto fail;
	b->sh.pool = mmap(NULL, b->pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (b->sh.pool == MAP_FAILED)
		goto fail;
	close(fd);
	return 0;
fail:
	fprintf(stderr, "sparsekv-bench: no pool of %zu bytes: %s\n", b->pool_bytes, strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

/* ---- time ------------------------------------------------------------------------------------ */

void fixture_start(struct kernel_fixture *b)
{
	const struct skv_backend *d = b->o->device;
	if (d)
		fixture_need(b, d->event_record(b->from, b->work.stream));
	b->begun = bench_now();
}

double fixture_stop(struct kernel_fixture *b)
{
	const struct skv_backend *d = b->o->device;
	float ms;
	if (!d)
		return (bench_now() - b->begun) * 1e3;
	fixture_need(b, d->event_record(b->to, b->work.stream));
	fixture_need(b, d->event_elapsed(b->from, b->to, &ms));
	fixture_need(b, d->check());
	return ms;
}

void *fixture_record(struct kernel_fixture *b, void (*pass)(struct kernel_fixture *, size_t), size_t kind)
{
	const struct skv_backend *d = b->o->device;
	void *graph;

	if (!d)
		return NULL;
	fixture_need(b, d->begin_capture(b->work.stream));
	pass(b, kind);
	fixture_need(b, d->end_capture(b->work.stream, &graph));
	return graph;
}

void fixture_play(struct kernel_fixture *b, void *graph)
{
	fixture_need(b, b->o->device->graph_launch(graph, b->work.stream));
}

void fixture_forget(struct kernel_fixture *b, void *graph)
{
	if (graph)
		fixture_need(b, b->o->device->graph_free(graph));
}

/* ---- set up ---------------------------------------------------------------------------------- */

int fixture_enter(struct fixture_options *o, uint32_t device)
{
	const struct skv_backend *d;
	char why[512];
	void *was;

	if (device == SKV_DEVICE_HOST) {
		o->kern = skv_kernels_host(NULL);
		return 0;
	}
	d = skv_backend_cuda(why, sizeof why);
	if (!d || d->enter(device - SKV_DEVICE_CUDA(0), &was)) {
		fprintf(stderr, "sparsekv-bench: --device cuda:%u: %s\n", device - SKV_DEVICE_CUDA(0),
		        d ? d->error() : why);
		return -1;
	}
	o->device = d;
	o->kern = d->kernels;
	return 0;
}

struct skv_shape fixture_shape(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t dtype)
{
	return (struct skv_shape){
		.n_heads = heads,
		.n_kv_heads = kv_heads,
		.head_dim = dim,
		.dtype = dtype,
		.io_dtype = SKV_F32,
		.scale = 1 / sqrtf((float)dim),
		.page_bytes = skv_page_bytes(&(struct skv_model){.n_kv_heads = kv_heads, .head_dim = dim, .kv_dtype = dtype}),
	};
}

uint32_t fixture_choose(uint64_t *rng, uint32_t n, uint32_t keep, uint32_t *ret_ids)
{
	uint32_t m = 0;
	for (uint32_t i = 0; i < n; i++)
		if (bench_random(rng) % (n - i) < keep - m)
			ret_ids[m++] = i;
	return m;
}

static void list_init(struct kernel_fixture *b, uint64_t *rng, struct skv_index_list *l, uint32_t rows, uint32_t n)
{
	const uint32_t listed = (uint32_t)(n * b->o->budget), lists = (uint32_t)b->o->batch * rows;
	uint32_t *ids = fixture_get((size_t)lists * n * sizeof *ids), *count = fixture_get(lists * sizeof *count);
	for (uint32_t i = 0; i < lists; i++)
		count[i] = fixture_choose(rng, n, listed, ids + (size_t)i * n);
	*l = (struct skv_index_list){.rows = rows, .stride = n, .max_count = listed};
	l->ids = fixture_there(b, ids, (size_t)lists * n * sizeof *ids);
	l->count = fixture_there(b, count, lists * sizeof *count);
}

static void list_deinit(const struct kernel_fixture *b, struct skv_index_list *l)
{
	fixture_free(b, l->ids);
	fixture_free(b, l->count);
}

struct skv_batch fixture_prompt(struct kernel_fixture *b, uint32_t i)
{
	struct skv_kseq *s = fixture_get(sizeof *s);
	*s = b->seq[i];
	s->n_q = s->n_state = s->len;
	s->row = 0;
	return (struct skv_batch){.seq = fixture_there(b, s, sizeof *s), .n = 1, .max_len = b->tokens,
	                          .max_q = b->tokens, .max_state = b->tokens};
}

/* Stores the same random K and V, and their sketches, in all layers of all sequences. */
static void fill_pool(struct kernel_fixture *b, uint64_t *rng)
{
	float *k = fixture_floats(b, rng, (size_t)b->tokens * b->sh.n_kv_heads * b->sh.head_dim);
	for (uint32_t i = 0; i < b->o->batch; i++) {
		struct skv_batch prompt = fixture_prompt(b, i);
		for (b->sh.layer = 0; b->sh.layer < b->layers; b->sh.layer++) {
			b->sh.state = b->layers + b->sh.layer;
			b->o->kern->append(&b->sh, &prompt, NULL, k, k, &b->work);
		}
		fixture_free(b, (void *)prompt.seq);
	}
	fixture_free(b, k);
}

/* Returns the number of state pages of a sequence in one layer. */
static uint32_t state_pages(const struct kernel_fixture *b)
{
	return b->sketches ? (b->tokens + skv_sketch_tokens(&b->sh) - 1) / skv_sketch_tokens(&b->sh) : 0;
}

static uint32_t tokens_of(const struct kernel_fixture *b, uint32_t i)
{
	return i && b->o->rest ? (uint32_t)b->o->rest : b->tokens;
}

/* Returns the numbers of all pages of K and V, in random order. */
static uint32_t *shuffled_pages(const struct kernel_fixture *b, uint64_t *rng)
{
	const uint32_t n = b->layers * b->layer_pages;
	uint32_t *page = fixture_get(n * sizeof *page);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = (uint32_t)(bench_random(rng) % (i + 1));
		page[i] = page[j];
		page[j] = i;
	}
	return page;
}

static void tables_init(struct kernel_fixture *b, uint64_t *rng)
{
	const uint32_t batch = (uint32_t)b->o->batch, n = b->layers * batch * b->pages;
	const uint32_t each = state_pages(b), all = b->sketches ? 2 * n : n;
	skv_pte *table = fixture_get(all * sizeof *table);
	struct skv_kseq *seq = fixture_get(batch * sizeof *seq);
	uint32_t *page = shuffled_pages(b, rng), used = 0;

	for (uint32_t x = 0; x < b->layers * batch; x++)
		for (uint32_t i = 0; i < skv_pages_of(tokens_of(b, x % batch)); i++)
			table[x * b->pages + i] = skv_pte_make(SKV_PTE_PRIVATE, page[used++]);
	free(page);
	for (uint32_t i = 0; i < b->layers * batch * each; i++)
		table[n + i / each * b->pages + i % each] = skv_pte_make(SKV_PTE_PRIVATE, used + i);
	b->table = fixture_there(b, table, all * sizeof *table);
	b->seq = fixture_get(batch * sizeof *b->seq);
	for (uint32_t i = 0; i < batch; i++)
		b->seq[i] = (struct skv_kseq){.table = b->table + (size_t)i * b->pages,
		                              .layer_stride = batch * b->pages, .len = tokens_of(b, i),
		                              .n_q = 1, .row = i, .n_state = 1};
	memcpy(seq, b->seq, batch * sizeof *seq);
	b->step = (struct skv_batch){.seq = fixture_there(b, seq, batch * sizeof *seq), .n = batch,
	                             .max_len = b->tokens, .max_q = 1, .max_state = 1};
}

/* Makes the batch `rows`, with several rows of each sequence. The last row of a sequence is that of its last token. */
static void rows_init(struct kernel_fixture *b)
{
	const uint32_t batch = (uint32_t)b->o->batch, rows = (uint32_t)b->o->rows, n = batch * rows;
	struct skv_kseq *seq = fixture_get(n * sizeof *seq);

	for (uint32_t at = 0; at < n; at++) {
		const uint32_t i = at % batch, row = at / batch;

		seq[at] = b->seq[i];
		seq[at].row = i * rows + row;
		seq[at].len -= rows - 1 - row;
	}
	b->rows = b->step;
	b->rows.seq = fixture_there(b, seq, n * sizeof *seq);
	b->rows.n = n;
	b->rows.rows = rows;
}

static int pool_open(struct kernel_fixture *b)
{
	const struct skv_backend *d = b->o->device;

	b->work.threads = b->threads;
	if (map_pool(b))
		return -1;
	if (d) {
		fixture_need(b, d->stream_new(&b->work.stream));
		fixture_need(b, d->event_new(&b->from));
		fixture_need(b, d->event_new(&b->to));
	}
	return 0;
}

int fixture_open(struct kernel_fixture *b, const struct fixture_options *o, struct skv_shape sh, size_t pool_bytes,
                 int threads)
{
	*b = (struct kernel_fixture){.o = o, .sh = sh, .threads = threads, .pool_bytes = pool_bytes};
	return pool_open(b);
}

void fixture_close(struct kernel_fixture *b)
{
	const struct skv_backend *d = b->o->device;

	if (!d) {
		munmap(b->sh.pool, b->pool_bytes);
		return;
	}
	fixture_free(b, b->sh.pool);
	fixture_need(b, d->event_free(b->from));
	fixture_need(b, d->event_free(b->to));
	fixture_need(b, d->stream_free(b->work.stream));
}

int fixture_init(struct kernel_fixture *b, const struct fixture_options *o, struct skv_shape sh, uint32_t tokens,
                 int threads)
{
	const uint32_t batch = (uint32_t)o->batch;
	const size_t want = (size_t)o->memory << 20;
	uint64_t rng = 1;

	*b = (struct kernel_fixture){.o = o, .sh = sh, .threads = threads, .tokens = tokens, .pages = skv_pages_of(tokens)};
	b->sketches = o->sketch_bits && sh.head_dim % 32 == 0;
	b->sh.sketch_bits = b->sketches ? (uint32_t)o->sketch_bits : 0;
	b->layer_pages = b->pages + (batch - 1) * skv_pages_of(tokens_of(b, 1));
	b->layer_bytes = (size_t)b->layer_pages * sh.page_bytes;
	b->layers = o->layers ? (uint32_t)o->layers : (uint32_t)((want + b->layer_bytes - 1) / b->layer_bytes);
	b->pool_bytes = b->layers * (b->layer_bytes + (size_t)batch * state_pages(b) * sh.page_bytes);
	if (pool_open(b))
		return -1;
	tables_init(b, &rng);
	if (o->rows)
		rows_init(b);

	const uint32_t most_rows = o->rows ? (uint32_t)o->rows : 1;
	const size_t floats = (size_t)batch * most_rows * sh.n_heads * sh.head_dim;
	b->q = fixture_floats(b, &rng, floats);
	b->out = fixture_floats(b, &rng, floats);
	for (int i = 0; i < 2; i++) {
		list_init(b, &rng, &b->page_list[i], i ? sh.n_kv_heads : 1, b->pages);
		list_init(b, &rng, &b->token_list[i], i ? sh.n_kv_heads : 1, tokens);
	}
	list_init(b, &rng, &b->made_pages, 1, b->pages);
	list_init(b, &rng, &b->made_tokens, sh.n_kv_heads, b->pages * SKV_PAGE_TOKENS);
	b->page_weight = fixture_floats(b, &rng, (size_t)batch * (b->pages + 3));
	b->token_weight = fixture_floats(b, &rng, (size_t)batch * sh.n_kv_heads * b->pages * SKV_PAGE_TOKENS);
	b->work.bytes = o->kern->workspace_bytes(&b->sh, batch * most_rows, tokens, tokens, threads);
	b->work.mem = fixture_there(b, fixture_get(b->work.bytes), b->work.bytes);
	fill_pool(b, &rng);
	return 0;
}

void fixture_deinit(struct kernel_fixture *b)
{
	for (int i = 0; i < 2; i++) {
		list_deinit(b, &b->page_list[i]);
		list_deinit(b, &b->token_list[i]);
	}
	list_deinit(b, &b->made_pages);
	list_deinit(b, &b->made_tokens);
	fixture_free(b, b->table);
	fixture_free(b, (void *)b->step.seq);
	fixture_free(b, (void *)b->rows.seq);
	fixture_free(b, b->q);
	fixture_free(b, b->out);
	fixture_free(b, b->page_weight);
	fixture_free(b, b->token_weight);
	fixture_free(b, b->work.mem);
	free(b->seq);
	fixture_close(b);
}
