/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-replay.c - a step is recorded once into a graph and replayed, while sequences grow, exchange
 * pages in their tables, lose pages and begin anew. The same steps are also queued one by one. Both give the same bits
 * after every step.
 *
 * The recording knows only upper bounds. The other steps are queued with the tight bounds of the moment, which shows
 * that the bounds, which determine the size of a launch, do not affect a result. For devices only.
 */
#include "tests/support/kernel-case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define SEQS 3u
#define HEADS 8u
#define KV_HEADS 2u
#define DIM 64u
#define STEPS (rnd_hurried() ? 60 : 2000)
#define MOST_TOKENS 2016u
#define MOST_PAGES (MOST_TOKENS / SKV_PAGE_TOKENS)
#define OUT (SEQS * HEADS * DIM)
#define KV (SEQS * KV_HEADS * DIM)
#define LISTS (SEQS * KV_HEADS)

/* State on the host, which is copied to both sides. */
struct state {
	uint32_t len[SEQS];
	skv_pte table[SEQS][MOST_PAGES];
	float q[OUT], k[KV], v[KV];
};

/* One of the two sides, in the device's memory. */
struct side {
	struct skv_shape sh;
	skv_pte *table;
	struct skv_kseq *seq;
	float *q, *k, *v, *dense, *sparse, *chosen;
	struct skv_scores ev;
	struct skv_index_list list, tokens;
	struct skv_workspace work;
};

static const struct skv_backend *dev;
static void *stream;

static void *zeros(size_t bytes)
{
	void *p;

	case_ok(dev, dev->alloc(bytes, &p));
	case_ok(dev, dev->zero(p, bytes, stream));
	return p;
}

static void side_init(struct side *s, uint32_t dtype)
{
	*s = (struct side){.sh = {.n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .dtype = dtype,
	                          .io_dtype = SKV_F32, .scale = 0.125f}};
	s->sh.page_bytes = (size_t)2 * KV_HEADS * SKV_PAGE_TOKENS * DIM * 2;
	s->sh.pool = zeros((size_t)SEQS * MOST_PAGES * s->sh.page_bytes);
	s->table = zeros(SEQS * MOST_PAGES * sizeof(skv_pte));
	s->seq = zeros(SEQS * sizeof *s->seq);
	s->q = zeros(OUT * sizeof(float));
	s->k = zeros(KV * sizeof(float));
	s->v = zeros(KV * sizeof(float));
	s->dense = zeros(OUT * sizeof(float));
	s->sparse = zeros(OUT * sizeof(float));
	s->chosen = zeros(OUT * sizeof(float));
	s->ev = (struct skv_scores){.rows = KV_HEADS, .page_stride = MOST_PAGES,
	                              .token_stride = MOST_TOKENS,
	                              .page = zeros(LISTS * MOST_PAGES * sizeof(float)),
	                              .token = zeros(LISTS * MOST_TOKENS * sizeof(float))};
	s->list = (struct skv_index_list){.rows = KV_HEADS, .stride = MOST_PAGES,
	                            .ids = zeros(LISTS * MOST_PAGES * sizeof(uint32_t)),
	                            .count = zeros(LISTS * sizeof(uint32_t))};
	s->tokens = (struct skv_index_list){.rows = KV_HEADS, .stride = MOST_TOKENS,
	                              .ids = zeros(LISTS * MOST_TOKENS * sizeof(uint32_t)),
	                              .count = zeros(LISTS * sizeof(uint32_t))};
	s->work = (struct skv_workspace){.threads = 1, .stream = stream};
	s->work.bytes = dev->kernels->workspace_bytes(&s->sh, SEQS, SEQS, MOST_TOKENS, 1);
	s->work.mem = zeros(s->work.bytes);
}

static void side_deinit(struct side *s)
{
	void *const all[] = {s->sh.pool, s->table, s->seq, s->q, s->k, s->v, s->dense, s->sparse, s->chosen,
	                     s->ev.page, s->ev.token, s->list.ids, s->list.count, s->tokens.ids,
	                     s->tokens.count, s->work.mem};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		case_ok(dev, dev->free(all[i]));
}

static void tell(struct side *s, const struct state *x)
{
	struct skv_kseq seq[SEQS];

	for (uint32_t i = 0; i < SEQS; i++)
		seq[i] = (struct skv_kseq){.table = s->table + (size_t)i * MOST_PAGES,
		                           .layer_stride = MOST_PAGES, .len = x->len[i], .n_q = 1, .row = i};
	case_ok(dev, dev->copy(s->seq, seq, sizeof seq, stream));
	case_ok(dev, dev->copy(s->table, x->table, sizeof x->table, stream));
	case_ok(dev, dev->copy(s->q, x->q, sizeof x->q, stream));
	case_ok(dev, dev->copy(s->k, x->k, sizeof x->k, stream));
	case_ok(dev, dev->copy(s->v, x->v, sizeof x->v, stream));
	case_ok(dev, dev->wait(stream));
}

static void queue_step(struct side *s, uint32_t max_len)
{
	const struct skv_kernels *kern = dev->kernels;
	const struct skv_batch batch = {.seq = s->seq, .n = SEQS, .max_len = max_len, .max_q = 1};
	const struct skv_select sel = {.budget.share = 0.2f, .floor = 4, .pin = 1, .recent_floor = 1};

	kern->append(&s->sh, &batch, NULL, s->k, s->v, &s->work);
	kern->decode_dense(&s->sh, &batch, s->q, s->dense, &s->ev, &s->work);
	kern->select(&s->sh, &batch, &s->ev, false, &sel, &s->list, &s->work);
	kern->decode_pages(&s->sh, &batch, s->q, s->sparse, &s->list, &s->work);
	kern->decode_topk(&s->sh, &batch, s->q, s->chosen, &s->ev, &sel, &s->tokens, &s->work);
	case_ok(dev, dev->check());
}

/* Begins a sequence anew; its table lists its own pages in random order. */
static void begin(struct state *x, uint32_t i)
{
	x->len[i] = 0;
	for (uint32_t p = 0; p < MOST_PAGES; p++) {
		const uint32_t other = rnd_below(p + 1);
		x->table[i][p] = x->table[i][other];
		x->table[i][other] = skv_pte_make(SKV_PTE_PRIVATE, i * MOST_PAGES + p);
	}
}

/* Adds a token and exchanges two pages of each sequence; sometimes a page is lost, or the sequence begins anew. */
static void advance(struct state *x)
{
	for (uint32_t i = 0; i < SEQS; i++) {
		if (x->len[i] == MOST_TOKENS || !rnd_below(900))
			begin(x, i);
		x->len[i]++;
		const uint32_t pages = skv_pages_of(x->len[i]), a = rnd_below(pages), b = rnd_below(pages);
		if (!rnd_below(50))
			x->table[i][a] = skv_pte_make(SKV_PTE_HOLE, SKV_PTE_ID_MASK);
		const skv_pte was = x->table[i][a];
		x->table[i][a] = x->table[i][b];
		x->table[i][b] = was;
	}
	for (uint32_t e = 0; e < OUT; e++)
		x->q[e] = rnd_normal();
	for (uint32_t e = 0; e < KV; e++) {
		x->k[e] = rnd_normal();
		x->v[e] = rnd_normal();
	}
}

static void same(const char *what, int step, const void *a, const void *b, size_t bytes)
{
	static uint8_t x[2][LISTS * MOST_PAGES * sizeof(uint32_t) + OUT * sizeof(float)];

	ck_assert(bytes <= sizeof *x);
	case_ok(dev, dev->copy(x[0], a, bytes, stream));
	case_ok(dev, dev->copy(x[1], b, bytes, stream));
	case_ok(dev, dev->wait(stream));
	if (memcmp(x[0], x[1], bytes))
		ck_abort_msg("step %d: %s differs", step, what);
}

START_TEST(replayed_steps_are_steps)
{
	static struct state x;
	struct side eager, recorded;
	void *graph;

	rnd_begin((uint64_t)_i);
	dev = case_device(&stream);
	side_init(&eager, _i ? SKV_BF16 : SKV_F16);
	side_init(&recorded, _i ? SKV_BF16 : SKV_F16);
	case_ok(dev, dev->wait(stream));
	for (uint32_t i = 0; i < SEQS; i++)
		begin(&x, i);
	case_ok(dev, dev->begin_capture(stream));
	queue_step(&recorded, MOST_TOKENS);
	case_ok(dev, dev->end_capture(stream, &graph));
	for (int step = 0; step < STEPS; step++) {
		uint32_t longest = 0;
		advance(&x);
		for (uint32_t i = 0; i < SEQS; i++)
			longest = x.len[i] > longest ? x.len[i] : longest;
		tell(&eager, &x);
		tell(&recorded, &x);
		queue_step(&eager, longest);
		case_ok(dev, dev->graph_launch(graph, stream));
		same("the dense output", step, eager.dense, recorded.dense, OUT * sizeof(float));
		same("the number of pages", step, eager.list.count, recorded.list.count,
		     LISTS * sizeof(uint32_t));
		same("a list", step, eager.list.ids, recorded.list.ids,
		     LISTS * MOST_PAGES * sizeof(uint32_t));
		same("the sparse output", step, eager.sparse, recorded.sparse, OUT * sizeof(float));
		same("the number of tokens", step, eager.tokens.count, recorded.tokens.count,
		     LISTS * sizeof(uint32_t));
		same("the output of those", step, eager.chosen, recorded.chosen, OUT * sizeof(float));
	}
	case_ok(dev, dev->graph_free(graph));
	side_deinit(&eager);
	side_deinit(&recorded);
}
END_TEST

int main(void)
{
	const enum case_device there = case_begin("test-replay");

	if (there != CASE_HAS_DEVICE)
		return there == CASE_LACKS_DEVICE ? EXIT_FAILURE : 77;
	Suite *s = suite_create("replay");
	TCase *t = add_case(s, "all", 120, NULL, NULL, NULL);

	add_cases(t, replayed_steps_are_steps, 2);
	return run_suite(s);
}
