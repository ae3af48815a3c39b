/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only a session on a device does: steps that run later, recordings that are replayed, engines that die while
 * their work is queued. All else is tested by test-client and related programs, which run on a device with
 * SKV_TEST_DEVICE=1.
 *
 * Skipped (77) without a device, but a failure if SPARSEKV_REQUIRE_GPU=1.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/kernel-backend.h"
#include "tests/support/policies.h"

#define N 5u    /* sequences of a step */
#define ROWS 4u /* maximum per sequence */
#define REPLAYS (getenv("FAKE_CUDA_DIR") ? 300u : 2000u)
#define REPLAY_SPECS 5
#define ROWS_SPECS 6

static struct fix daemon_;
static struct raw *op;
static struct skv_client *client;

static void setup(void)
{
	fix_start_process(&daemon_, (const char *[]){"--cuda-pool-bytes=4G", "--cuda-segment-bytes=16M", NULL});
	op = raw_operator(daemon_.socket);
}

static void teardown(void)
{
	skv_disconnect(client);
	raw_close(op);
	fix_stop(&daemon_);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static struct skv_model model = {
	.size = sizeof(model), .n_layers = 6, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .kv_dtype = SKV_BF16,
	.io_dtype = SKV_F32, .max_tokens = 8192, .n_ranks = 1, .device = SKV_DEVICE_CUDA(0), .name = "gpu-client",
	.rope = {.type = SKV_ROPE_DEFAULT, .theta = 1e4},
};

/* Sequences of one session, and rows of every layer in device memory. */
struct engine {
	struct skv_session *session;
	struct skv_seq *seq[N];
	float *q, *kv, *out; /* [layer][N * ROWS][heads][dim]; out has two copies */
	uint32_t moved;      /* bit set of the layers whose output goes to the second copy */
	int32_t *next;       /* [N] */
	void *graph;
	uint64_t key;
	uint32_t recorded, replayed;
	uint32_t rows; /* of each sequence in a step; if more than 1, some are rejected */
	uint32_t steps;
};

#define Q_LAYER (N * ROWS * model.n_heads * model.head_dim)
#define KV_LAYER (N * ROWS * model.n_kv_heads * model.head_dim)

static void fill(float *to, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (float)(2 * rnd_unit() - 1);
}

static void *device_floats(const float *from, size_t n)
{
	void *p = devmem_get(n * sizeof(float));

	devmem_to(p, from, n * sizeof(float));
	return p;
}

static float *out_of(struct engine *e, uint32_t layer)
{
	return e->out + (layer + (e->moved >> layer & 1) * model.n_layers) * Q_LAYER;
}

/* Appends n rows of a prompt to a sequence; the rows are the same in all engines for the same `which`. */
static void prompt(struct engine *e, uint32_t seq, uint32_t n, uint32_t which)
{
	size_t q = (size_t)1000 * model.n_heads * model.head_dim;
	float *rows = malloc(q * sizeof(*rows)), *placed;
	uint64_t was = rnd_begin(which);

	fill(rows, q);
	rnd_resume(was);
	placed = device_floats(rows, q);
	OK(skv_step_begin(e->session, &SKV_STEP_ITEM(.seq = e->seq[seq], .n_tokens = n, .flags = SKV_STEP_PROMPT), 1, devmem_stream()));
	for (uint32_t layer = 0; layer < model.n_layers; layer++) {
		/* in the buffers of decode steps, as in an engine: recordings of decode steps must not run */
		OK(devmem_device()->copy(e->q + layer * Q_LAYER, rows, Q_LAYER * sizeof(float), devmem_stream()));
		OK(devmem_device()->copy(e->kv + layer * KV_LAYER, rows, KV_LAYER * sizeof(float), devmem_stream()));
		OK(skv_attend(e->session, layer,
		              n <= N ? &SKV_ATTN(.q = e->q + layer * Q_LAYER, .k = e->kv + layer * KV_LAYER,
		                                          .v = e->kv + layer * KV_LAYER, .out = out_of(e, layer))
		                     : &SKV_ATTN(.q = placed, .k = placed, .v = placed + 64, .out = placed)));
	}
	OK(skv_step_end(e->session, NULL, NULL));
	OK(devmem_device()->wait(devmem_stream()));
	devmem_put(placed);
	free(rows);
}

/* Opens an engine whose sequences have prompts of different lengths. */
static void engine_open(struct engine *e, const char *spec)
{
	*e = (struct engine){.next = devmem_get(N * sizeof(int32_t)), .rows = 1};
	OK(skv_open(client, &model, spec, &e->session));
	skv_set_recall(e->session, 61); /* some steps measure recall and are not replayed */
	e->q = devmem_get(model.n_layers * Q_LAYER * sizeof(float));
	e->kv = devmem_get(model.n_layers * KV_LAYER * sizeof(float));
	e->out = devmem_get(2 * model.n_layers * Q_LAYER * sizeof(float));
	for (uint32_t i = 0; i < N; i++) {
		OK(skv_seq_new(e->session, NULL, 0, &e->seq[i]));
		prompt(e, i, 1 + 190 * i, i);
	}
}

static void engine_close(struct engine *e)
{
	skv_close(e->session);
	if (e->graph)
		OK(devmem_device()->graph_free(e->graph));
	devmem_put(e->q);
	devmem_put(e->kv);
	devmem_put(e->out);
	devmem_put(e->next);
}

static void attend_all(struct engine *e)
{
	for (uint32_t layer = 0; layer < model.n_layers; layer++)
		OK(skv_attend(e->session, layer,
		              &SKV_ATTN(.q = e->q + layer * Q_LAYER, .k = e->kv + layer * KV_LAYER,
		                                 .v = e->kv + layer * KV_LAYER, .out = out_of(e, layer))));
}

/* Replays the recorded step; records it again if it does not fit. */
static void replay(struct engine *e)
{
	const struct skv_backend *b = devmem_device();
	uint64_t key = skv_step_key(e->session);

	if (key == 0) { /* the step measures recall */
		attend_all(e);
		return;
	}
	if (key == e->key) {
		OK(skv_step_replayed(e->session, key));
		OK(b->graph_launch(e->graph, devmem_stream()));
		e->replayed++;
		return;
	}
	if (e->graph) {
		FAILS(skv_step_replayed(e->session, e->key), ESTALE, "record it anew");
		OK(b->graph_free(e->graph));
	}
	OK(b->begin_capture(devmem_stream()));
	attend_all(e);
	OK(b->end_capture(devmem_stream(), &e->graph));
	OK(b->graph_launch(e->graph, devmem_stream()));
	e->key = key;
	e->recorded++;
}

/* q = NULL: uses the rows of the step before, and does not wait for the device. */
static void step(struct engine *e, const float *q, const float *kv, bool by_replay)
{
	struct skv_step_item items[N];
	uint32_t accepted[N];
	const struct skv_backend *b = devmem_device();
	void *s = devmem_stream();

	e->steps++;
	for (uint32_t i = 0; i < N; i++) {
		items[i] = SKV_STEP_ITEM(.seq = e->seq[i], .n_tokens = e->rows);
		accepted[i] = (e->steps * 7 + i * 3) % (e->rows + 1);
	}
	OK(skv_step_begin(e->session, items, N, s));
	if (q) {
		OK(b->copy(e->q, q, model.n_layers * Q_LAYER * sizeof(float), s));
		OK(b->copy(e->kv, kv, model.n_layers * KV_LAYER * sizeof(float), s));
	}
	if (by_replay)
		replay(e);
	else
		attend_all(e);
	OK(skv_step_end(e->session, e->next, e->rows > 1 ? accepted : NULL));
}

static void policies_swap(const char *spec)
{
	ck_assert_int_eq(raw_policy_swap(op, spec), 0);
}

static void check_equal(struct engine *a, struct engine *b, uint32_t step)
{
	const size_t bytes = (size_t)N * a->rows * model.n_heads * model.head_dim * sizeof(float);
	float *x = malloc(bytes), *y = malloc(bytes);
	uint64_t pages[2], total;

	for (uint32_t layer = 0; layer < model.n_layers; layer++) {
		devmem_from(x, out_of(a, layer), bytes);
		devmem_from(y, out_of(b, layer), bytes);
		ck_assert_msg(!memcmp(x, y, bytes), "step %u, layer %u differs", step, layer);
	}
	for (uint32_t i = 0; i < N; i++) {
		skv_seq_pages(a->seq[i], &pages[0], &total);
		skv_seq_pages(b->seq[i], &pages[1], &total);
		ck_assert_uint_eq(pages[0], pages[1]);
	}
	free(x);
	free(y);
}

/* In turns: sequence 0 has its own policy, then sequence 1, then both, then none. */
static void mix(struct engine *e, uint32_t turn, const char *spec)
{
	OK(skv_seq_policy(e->seq[0], turn % 4 == 0 || turn % 4 == 2 ? spec : NULL));
	OK(skv_seq_policy(e->seq[1], turn % 4 == 1 || turn % 4 == 2 ? spec : NULL));
}

/*
 * Four engines with the same rows. One has other output buffers each time, so nothing can be replayed; one changes a
 * layer's buffer now and then; for one that never does the library replays every layer; one replays whole steps. All
 * outputs are the same bit for bit, and so are the numbers of pages.
 */
START_TEST(replays)
{
	static const char *const specs[REPLAY_SPECS] = {
		"full", POLICY_WINDOW "?budget=256&sinks=4&dense=1",
		POLICY_PAGES "?budget=0.25&layers=1,3", POLICY_PAGES "?budget=8&layers=2",
		POLICY_LATENT "?budget=60&layers=1&dense=1&bits=0&residual=16&block=16",
	};
	enum { MOVING, SOMETIMES, NEVER, WHOLE, ENGINES };
	struct engine e[ENGINES];
	size_t nq = model.n_layers * Q_LAYER, nkv = model.n_layers * KV_LAYER;
	float *rows;

	devmem_device();
	OK(skv_connect(&client, daemon_.socket));
	for (int k = 0; k < ENGINES; k++)
		engine_open(&e[k], specs[_i]);
	OK(devmem_device()->alloc_host((nq + nkv) * sizeof(float), (void **)&rows));
	for (uint32_t i = 0; i < REPLAYS; i++) {
		if (i % 16 == 0) { /* the pinned rows have been read */
			OK(devmem_device()->wait(devmem_stream()));
			fill(rows, nq + nkv);
		}
		e[MOVING].moved = ~e[MOVING].moved;
		if (i % 8 == 0)
			e[SOMETIMES].moved ^= 1u << rnd_below(model.n_layers);
		for (int k = 0; k < ENGINES; k++)
			step(&e[k], rows, rows + nq, k == WHOLE);
		/* more of a prompt, in the buffers of decode steps */
		for (int k = 0; k < ENGINES && i % 101 == 50; k++)
			prompt(&e[k], i % N, 1 + i % N, i);
		if (i == REPLAYS / 2)
			policies_swap(specs[(_i + 1) % REPLAY_SPECS]);
		for (int k = 0; k < ENGINES && i % (REPLAYS / 8) == 7; k++)
			mix(&e[k], i / (REPLAYS / 8), specs[(_i + 2) % REPLAY_SPECS]);
		for (int k = 1; k < ENGINES && (i % 97 == 0 || i == REPLAYS - 1); k++)
			check_equal(&e[0], &e[k], i);
	}
	printf("%s, then %s: of %u steps %u were recorded as a whole, %u replayed\n", specs[_i], specs[(_i + 1) % REPLAY_SPECS],
	       REPLAYS, e[WHOLE].recorded, e[WHOLE].replayed);
	ck_assert_uint_gt(e[WHOLE].replayed, REPLAYS - 40 - REPLAYS / 60);
	OK(devmem_device()->free_host(rows));
	for (int k = 0; k < ENGINES; k++)
		engine_close(&e[k]);
}
END_TEST

/*
 * The same with steps of several rows, some of which are rejected: an engine that records nothing and one that replays
 * whole steps, while the number of rows changes now and then.
 */
START_TEST(replays_rows)
{
	static const char *const specs[ROWS_SPECS] = {
		"full", POLICY_WINDOW "?budget=256&sinks=4&dense=1", POLICY_BOUNDS "?budget=8&dense=1",
		POLICY_TOKENS "?budget=100&layers=1&dense=1", POLICY_ANCHORS "?budget=100&layers=0,3",
		POLICY_LATENT "?budget=60&layers=1&dense=1&bits=0&residual=16&block=16",
	};
	const size_t nq = model.n_layers * Q_LAYER, nkv = model.n_layers * KV_LAYER;
	struct engine e[2];
	float *rows;

	devmem_device();
	OK(skv_connect(&client, daemon_.socket));
	for (int k = 0; k < 2; k++)
		engine_open(&e[k], specs[_i]);
	OK(devmem_device()->alloc_host((nq + nkv) * sizeof(float), (void **)&rows));
	for (uint32_t i = 0; i < REPLAYS / 5; i++) {
		OK(devmem_device()->wait(devmem_stream()));
		fill(rows, nq + nkv);
		e[0].moved = ~e[0].moved;
		for (int k = 0; k < 2; k++) {
			e[k].rows = i / 10 % ROWS + 1;
			step(&e[k], rows, rows + nq, k == 1);
		}
		if (i % 7 == 0)
			check_equal(&e[0], &e[1], i);
	}
	printf("%s: of %u steps of 1 to %u rows %u were recorded as a whole, %u replayed\n", specs[_i], REPLAYS / 5, ROWS,
	       e[1].recorded, e[1].replayed);
	ck_assert_uint_gt(e[1].replayed, REPLAYS / 10);
	OK(devmem_device()->free_host(rows));
	for (int k = 0; k < 2; k++)
		engine_close(&e[k]);
}
END_TEST

/* The host runs ahead of the device; each step appends the tokens that the device published. */
START_TEST(ahead)
{
	struct engine e;
	float *rows = malloc(model.n_layers * Q_LAYER * sizeof(float)), *placed;
	int32_t ids[N];
	const int32_t *said;
	uint32_t len, first[N];

	devmem_device();
	OK(skv_connect(&client, daemon_.socket));
	engine_open(&e, "full");
	fill(rows, model.n_layers * Q_LAYER);
	placed = device_floats(rows, model.n_layers * Q_LAYER);
	for (uint32_t i = 0; i < N; i++)
		first[i] = skv_seq_len(e.seq[i]);
	for (int32_t t = 0; t < 100; t++) {
		for (uint32_t i = 0; i < N; i++)
			ids[i] = 1000 * (int32_t)i + t;
		OK(devmem_device()->copy(e.next, ids, sizeof(ids), devmem_stream()));
		step(&e, placed, placed, false);
	}
	for (uint32_t i = 0; i < N; i++) {
		ck_assert_uint_eq(skv_seq_len(e.seq[i]), first[i] + 100);
		said = skv_seq_tokens(e.seq[i], &len);
		ck_assert_uint_eq(len, first[i] + 100);
		for (uint32_t t = 0; t < 100; t++) /* the prompt published the first one: -1 */
			ck_assert_int_eq(said[first[i] + t], t ? 1000 * (int)i + (int)t - 1 : -1);
		ck_assert_int_eq(said[len], 1000 * (int)i + 99);
	}
	devmem_put(placed);
	free(rows);
	engine_close(&e);
}
END_TEST

/* Pages that a step evicted are holes in later steps, even if the host has not yet seen the end of that step. */
START_TEST(evicts_ahead)
{
	struct engine e[2];
	float *rows = malloc(model.n_layers * Q_LAYER * sizeof(float)), *placed;
	uint64_t pages, total;

	devmem_device();
	OK(skv_connect(&client, daemon_.socket));
	fill(rows, model.n_layers * Q_LAYER);
	placed = device_floats(rows, model.n_layers * Q_LAYER);
	for (int k = 0; k < 2; k++) {
		engine_open(&e[k], POLICY_WINDOW "?budget=64");
		step(&e[k], placed, placed, false);
		for (int t = 0; t < 60; t++) {
			step(&e[k], NULL, NULL, false);
			if (k == 1)
				skv_seq_pages(e[k].seq[N - 1], &pages, &total); /* polls for completed work */
		}
	}
	ck_assert_uint_lt(pages, total);
	policies_swap("full"); /* which reads all pages in the tables */
	for (int k = 0; k < 2; k++)
		step(&e[k], NULL, NULL, false);
	check_equal(&e[0], &e[1], 61);
	for (int k = 0; k < 2; k++)
		engine_close(&e[k]);
	devmem_put(placed);
	free(rows);
}
END_TEST

/* Wrong calls fail with a text, and the session continues. */
START_TEST(misuse)
{
	const struct skv_backend *b = devmem_device();
	struct skv_step_item item = SKV_STEP_ITEM(.n_tokens = 1);
	struct skv_session *s;
	struct skv_model m = model;
	struct engine e;
	void *graph;

	OK(skv_connect(&client, daemon_.socket));
	m.kv_dtype = SKV_F32;
	FAILS(skv_open(client, &m, "full", &s), EINVAL, "fp16, bf16 and fp8");
	m = model;
	m.device = SKV_DEVICE_CUDA(15);
	FAILS(skv_open(client, &m, "full", &s), ENODEV, "cuda:15");
	engine_open(&e, "full");
	item.seq = e.seq[0];
	ck_assert_uint_eq(skv_step_key(e.session), 0);
	FAILS(skv_step_replayed(e.session, 1), EINVAL, "open step");
	OK(b->begin_capture(devmem_stream()));
	FAILS(skv_step_begin(e.session, &item, 1, devmem_stream()), EBUSY, "being recorded");
	OK(b->end_capture(devmem_stream(), &graph));
	OK(b->graph_free(graph));
	OK(skv_step_begin(e.session, &item, 1, devmem_stream()));
	FAILS(skv_attend(e.session, 0, &SKV_ATTN(.q = e.q + 1, .k = e.kv, .v = e.kv, .out = e.out)), EINVAL, "q is not at");
	FAILS(skv_step_replayed(e.session, 1), ESTALE, "record");
	attend_all(&e);
	FAILS(skv_step_replayed(e.session, skv_step_key(e.session)), EINVAL, "before its first layer");
	OK(skv_step_end(e.session, NULL, NULL));
	OK(skv_step_begin(e.session, &item, 1, devmem_stream()));
	skv_step_abort(e.session);
	OK(b->wait(devmem_stream()));
	engine_close(&e);
}
END_TEST

/* ---- engines side by side -------------------------------------------------------------------- */

static struct shared {
	_Atomic uint32_t steps, ready;
	_Atomic bool stop;
} *shared;

/* Checks every output against the reference until it is told to stop. */
static void careful_engine(void)
{
	struct refmodel w = {.policy = {.kind = REFMODEL_FULL}};
	struct refmodel_seq q;
	struct skv_seq *seq;

	OK(skv_connect(&client, daemon_.socket));
	refmodel_model(&w.model, "careful", SKV_F16, 4000);
	OK(skv_open(client, &w.model, "full", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	refmodel_seq_init(&w, &q, seq, 4000);
	refmodel_feed(&w, &q, 3, 500, true);
	for (uint32_t i = 0; i < 3000 && !atomic_load(&shared->stop); i++) {
		refmodel_feed(&w, &q, 3, 1, false);
		atomic_fetch_add(&shared->steps, 1);
	}
	skv_disconnect(client);
	_exit(0);
}

/* Queues prompts without end: whenever it is killed, its kernels are running. */
static void greedy_engine(void)
{
	enum { CHUNK = 4096 };
	struct skv_model m = model;
	struct skv_session *s;
	struct skv_seq *q;
	float *rows;

	m.max_tokens = 1 << 17;
	rows = devmem_get((size_t)CHUNK * m.n_heads * m.head_dim * sizeof(float));
	if (skv_connect(&client, daemon_.socket) || skv_open(client, &m, "full", &s) || skv_seq_new(s, NULL, 0, &q))
		ck_abort_msg("greedy: %s", skv_last_error());
	for (uint32_t n = 0;; n += CHUNK) {
		if (n + CHUNK > m.max_tokens && (skv_seq_drop(q) || skv_seq_new(s, NULL, 0, &q)))
			ck_abort_msg("greedy: %s", skv_last_error());
		n = n + CHUNK > m.max_tokens ? 0 : n;
		if (skv_step_begin(s, &SKV_STEP_ITEM(.seq = q, .n_tokens = CHUNK, .flags = SKV_STEP_PROMPT), 1, devmem_stream()))
			ck_abort_msg("greedy: %s", skv_last_error());
		for (uint32_t layer = 0; layer < m.n_layers; layer++)
			if (skv_attend(s, layer, &SKV_ATTN(.q = rows, .k = rows, .v = rows, .out = rows)))
				ck_abort_msg("greedy: %s", skv_last_error());
		if (skv_step_end(s, NULL, NULL))
			ck_abort_msg("greedy: %s", skv_last_error());
		atomic_fetch_add(&shared->ready, 1);
	}
}

static pid_t start(void (*body)(void))
{
	pid_t pid = child_fork();

	if (pid == 0) {
		body();
		_exit(0);
	}
	return pid;
}

/* Waits until *x is at least n, 30 s at most. */
static void await(_Atomic uint32_t *x, uint32_t n)
{
	double begun = fix_now();

	while (atomic_load(x) < n && fix_now() < begun + 30)
		fix_sleep_ms(1);
	ck_assert_msg(atomic_load(x) >= n, "%s", child_problem());
}

/* One engine is killed while its kernels run, again and again: the other is not disturbed, and the memory is freed. */
START_TEST(killed_beside)
{
	double worst = 0;
	pid_t careful;
	int status;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	careful = start(careful_engine);
	await(&shared->steps, 5);
	for (int i = 0; i < 4; i++) {
		uint32_t before = atomic_load(&shared->ready), seen;
		pid_t greedy = start(greedy_engine);
		uint64_t had;
		double begun, took;

		await(&shared->ready, before + 8);
		fix_sleep_ms(rnd_below(20));
		had = raw_leased(op);
		begun = fix_now();
		kill(greedy, SIGKILL);
		while (raw_leased(op) > had / 8 && fix_now() < begun + 5)
			fix_sleep_ms(1);
		took = fix_now() - begun;
		ck_assert_int_eq(waitpid(greedy, &status, 0), greedy);
		ck_assert_msg(WIFSIGNALED(status), "%s", child_problem());
		ck_assert_msg(took < 1, "%llu bytes are not back after %.0f ms", (unsigned long long)had, took * 1e3);
		worst = took > worst ? took : worst;
		seen = atomic_load(&shared->steps);
		await(&shared->steps, seen + 5);
		if (i == 3)
			printf("killed in the middle of its kernels: %llu MiB on lease are back after %.0f ms at most\n",
			       (unsigned long long)had >> 20, worst * 1e3);
	}
	atomic_store(&shared->stop, true);
	ck_assert_int_eq(waitpid(careful, &status, 0), careful);
	ck_assert_msg(status == 0, "the engine beside: status %d %s", status, child_problem());
	client = NULL;
}
END_TEST

/* The daemon is killed: the engine continues with the pages that it has. */
START_TEST(daemon_killed)
{
	struct engine e;
	float *rows = malloc(model.n_layers * Q_LAYER * sizeof(float)), *placed;

	devmem_device();
	OK(skv_connect(&client, daemon_.socket));
	engine_open(&e, "full");
	fill(rows, model.n_layers * Q_LAYER);
	placed = device_floats(rows, model.n_layers * Q_LAYER);
	for (int i = 0; i < 20; i++)
		step(&e, placed, placed, true);
	kill(daemon_.pid, SIGKILL);
	for (int i = 0; i < 15; i++)
		step(&e, placed, placed, true);
	for (uint32_t i = 0; i < N; i++)
		ck_assert_uint_eq(skv_seq_len(e.seq[i]), 1 + 190 * i + 35);
	OK(devmem_device()->wait(devmem_stream()));
	devmem_put(placed);
	free(rows);
	engine_close(&e);
	skv_disconnect(client);
	raw_close(op);
	fix_kill(&daemon_);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = begin_suite("gpu-client");
	TCase *t = add_case(s, "device", 120, setup, teardown, ahead, evicts_ahead, misuse, NULL);

	tcase_add_loop_test(t, replays, 0, REPLAY_SPECS);
	tcase_add_loop_test(t, replays_rows, 0, ROWS_SPECS);
	t = add_case(s, "side by side", 120, setup, teardown, killed_beside, NULL);
	tcase_set_tags(t, "real"); /* too much arithmetic for a processor */
	add_case(s, "without a daemon", 60, setup, NULL, daemon_killed, NULL);
	return s;
}

int main(void)
{
	enum case_device there = case_begin("gpu-client");

	if (there != CASE_HAS_DEVICE)
		return there == CASE_LACKS_DEVICE ? EXIT_FAILURE : 77;
	setenv("SKV_TEST_DEVICE", "1", 1);
	return run_suite(suite());
}
