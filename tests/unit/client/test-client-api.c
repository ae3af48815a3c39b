/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of libclient's contract: what is refused and with which text, threads, and that no resources leak. */
#include <config.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/client-test.h"
#include "tests/support/policies.h"

static struct fix daemon_;
static struct skv_client *client;
static struct skv_session *session;
static struct skv_model model = {
        .size = sizeof(model), .n_layers = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .kv_dtype = SKV_BF16,
        .max_tokens = 256, .n_ranks = 1, .name = "api"};
static float rows[64 * 4 * 16];
static const struct skv_attn attn = {.size = sizeof(attn), .q = rows, .k = rows, .v = rows, .out = rows};

static void setup(void)
{
	fix_start_process(&daemon_, NULL);
	OK(skv_connect(&client, daemon_.socket));
	OK(skv_open(client, &model, "full", &session));
}

static void teardown(void)
{
	skv_disconnect(client);
	fix_stop(&daemon_);
}

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(connecting)
{
	struct skv_client *c = NULL;
	char path[200];

	FAILS(skv_connect(&c, "/nonexistent/socket"), ENOENT, "/nonexistent/socket");
	memset(path, 'x', sizeof(path));
	path[sizeof(path) - 1] = '\0';
	FAILS(skv_connect(&c, path), ENAMETOOLONG, "xxx");
	FAILS(skv_connect(&c, "/dev/null"), ECONNREFUSED, "/dev/null");
	FAILS(skv_connect(NULL, daemon_.socket), EINVAL, "NULL");
	ck_assert_ptr_null(c);
	setenv("SPARSEKV_SOCKET", "/nonexistent/by-environment", 1);
	FAILS(skv_connect(&c, NULL), ENOENT, "/nonexistent/by-environment");
	setenv("SPARSEKV_SOCKET", daemon_.socket, 1);
	OK(skv_connect(&c, NULL));
	skv_disconnect(c);
	skv_disconnect(NULL);
	ck_assert_str_eq(skv_version(), VERSION);
}
END_TEST

/* Descriptors that the daemon sends do not arrive. */
START_TEST(out_of_descriptors)
{
	struct skv_client *c = NULL;
	struct rlimit was;
	int next = open("/dev/null", O_RDONLY | O_CLOEXEC);

	ck_assert_int_eq(close(next), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	for (rlim_t more = 0; more < 3; more++) {
		ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next + more, was.rlim_max}), 0);
		if (skv_connect(&c, daemon_.socket) == 0)
			break;
		ck_assert_msg(strstr(skv_last_error(), "RLIMIT_NOFILE") || strstr(skv_last_error(), strerror(EMFILE)), "%s", skv_last_error());
		c = NULL;
	}
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	ck_assert_msg(strstr(skv_last_error(), "do not come through: this process may have no more, raise RLIMIT_NOFILE"), "%s", skv_last_error());
	skv_disconnect(c);
}
END_TEST

START_TEST(models)
{
	static const struct {
		size_t offset;
		uint32_t value;
		const char *word;
	} bad[] = {
	        {offsetof(struct skv_model, size), 0, "size"},
	        {offsetof(struct skv_model, size), sizeof(struct skv_model) + 4, "size"},
	        {offsetof(struct skv_model, n_layers), 0, "n_layers"},
	        {offsetof(struct skv_model, n_layers), 257, "n_layers"},
	        {offsetof(struct skv_model, n_heads), 3, "n_kv_heads"},
	        {offsetof(struct skv_model, n_kv_heads), 0, "n_kv_heads"},
	        {offsetof(struct skv_model, head_dim), 24, "head_dim"},
	        {offsetof(struct skv_model, head_dim), 272, "head_dim"},
	        {offsetof(struct skv_model, kv_dtype), 4, "kv_dtype"},
	        {offsetof(struct skv_model, max_tokens), 0, "max_tokens"},
	        {offsetof(struct skv_model, max_tokens), 1u << 25, "max_tokens"},
	        {offsetof(struct skv_model, n_ranks), 0, "rank"},
	        {offsetof(struct skv_model, name), 0, "name"},
	        {offsetof(struct skv_model, rope.type), 6, "rope.type"},
	        {offsetof(struct skv_model, files), 'x', "files"},
	};
	struct skv_session *s = NULL;
	struct skv_model m;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		m = model;
		memcpy((char *)&m + bad[i].offset, &bad[i].value, sizeof(uint32_t));
		FAILS(skv_open(client, &m, "full", &s), EINVAL, bad[i].word);
	}
	m = model;
	memset(m.files, 'x', sizeof(m.files));
	m.files[0] = '/';
	FAILS(skv_open(client, &m, "full", &s), EINVAL, "files");
	m.size = offsetof(struct skv_model, rope); /* as an older engine knows it: later fields are ignored */
	OK(skv_open(client, &m, "full", &s));
	skv_close(s);
	s = NULL;
	FAILS(skv_open(client, NULL, "full", &s), EINVAL, "model");
	ck_assert_ptr_null(s);
	setenv("SPARSEKV_ISA", "mmx", 1);
	FAILS(skv_open(client, &model, "full", &s), EINVAL, "mmx");
	setenv("SPARSEKV_ISA", SKV_FIRST_ISA, 1);
	OK(skv_open(client, &model, "full", &s));
	ck_assert_str_eq(skv_backend(s), SKV_FIRST_ISA);
	skv_close(s);
	skv_close(NULL);
}
END_TEST

/* A model whose last layer is as given. */
static int open_layers(struct skv_model_layer last)
{
	const float sinks[4] = {0, -1, 2, 3};
	struct skv_model_layer layers[] = {SKV_MODEL_LAYER(.window = 64, .sinks = sinks), SKV_MODEL_LAYER(.shares_kv = 1), last};
	struct skv_model m = model;
	struct skv_session *s;
	int e;

	m.layers = layers;
	e = skv_open(client, &m, "full", &s);
	if (e == 0)
		skv_close(s);
	return e;
}

START_TEST(layers_of_models)
{
	const float bad[4] = {0, 1, NAN, 0};
	struct skv_model_layer layer;

	memset(&layer, 0xff, sizeof(layer));
	skv_model_layer_init(&layer, sizeof(layer));
	OK(open_layers(layer));
	OK(open_layers(SKV_MODEL_LAYER(.shares_kv = 1, .scale = 0.5f, .softcap = 50)));
	FAILS(open_layers((struct skv_model_layer){.window = 3}), EINVAL, "model: layer 2: size is 0");
	FAILS(open_layers(SKV_MODEL_LAYER(.shares_kv = 3)), EINVAL, "layer 2: shares_kv is 3, expected 1 + an earlier layer");
	FAILS(open_layers(SKV_MODEL_LAYER(.shares_kv = 2)), EINVAL, "layer 2: shares_kv is 2, but layer 1 shares");
	FAILS(open_layers(SKV_MODEL_LAYER(.scale = -1)), EINVAL, "layer 2: scale is -1, expected");
	FAILS(open_layers(SKV_MODEL_LAYER(.softcap = INFINITY)), EINVAL, "layer 2: softcap is inf, expected");
	FAILS(open_layers(SKV_MODEL_LAYER(.sinks = bad)), EINVAL, "layer 2: sinks[2] is nan, expected");
}
END_TEST

START_TEST(sequences)
{
	struct skv_model other = model;
	struct skv_session *s;
	struct skv_seq *q, *p = NULL;

	FAILS(skv_seq_new(session, "no spaces", 0, &p), EINVAL, "no spaces");
	FAILS(skv_seq_new(session, "", 0, &p), EINVAL, "name");
	FAILS(skv_seq_new(session, "big", 257, &p), EINVAL, "257");
	FAILS(skv_seq_attach(session, "nobody", &p), ENOENT, "nobody");
	FAILS(skv_seq_attach(session, NULL, &p), EINVAL, "NULL");
	OK(skv_seq_new(session, "one", 40, &q));
	FAILS(skv_seq_new(session, "one", 0, &p), EEXIST, "one");
	FAILS(skv_seq_attach(session, "one", &p), EBUSY, "one");
	FAILS(skv_seq_fork(q, "one", SKV_ALL, &p), EEXIST, "one");
	FAILS(skv_seq_fork(q, "t\xc3\xa4st", SKV_ALL, &p), EINVAL, "printable");
	ck_assert_ptr_null(p);
	OK(skv_seq_detach(q));
	other.head_dim = 32;
	OK(skv_open(client, &other, "full", &s));
	FAILS(skv_seq_attach(s, "one", &p), EINVAL, "one");
	skv_close(s);
	ck_assert_int_eq(skv_seq_detach(NULL), 0);
	ck_assert_int_eq(skv_seq_drop(NULL), 0);
}
END_TEST

#define ITEM(...) {.size = sizeof(struct skv_step_item), __VA_ARGS__}
#define BEGIN(...) skv_step_begin(session, (struct skv_step_item[]){__VA_ARGS__}, \
				  sizeof((struct skv_step_item[]){__VA_ARGS__}) / sizeof(struct skv_step_item), NULL)

/* Without an open step. */
static void steps_that_do_not_begin(struct skv_seq *q, struct skv_seq *r, struct skv_seq *foreign)
{
	struct skv_selection_info looked = {.size = sizeof(looked)};

	FAILS(skv_step_begin(session, NULL, 1, NULL), EINVAL, "without items");
	FAILS(skv_step_begin(session, &SKV_STEP_ITEM(.seq = q, .n_tokens = 1), 0, NULL), EINVAL,
	      "without items");
	FAILS(skv_step_begin(session, &SKV_STEP_ITEM(.seq = q, .n_tokens = 1), 1, &looked), EINVAL, "stream");
	FAILS(BEGIN(ITEM(.n_tokens = 1)), EINVAL, "item 0");
	FAILS(BEGIN({.seq = q, .n_tokens = 1}), EINVAL, "item 0: size is 0");
	FAILS(BEGIN({.size = sizeof(struct skv_step_item) + 8, .seq = q, .n_tokens = 1}), EINVAL, "item 0: size");
	FAILS(BEGIN(ITEM(.seq = q, .n_tokens = 1), ITEM(.seq = foreign, .n_tokens = 1)), EINVAL, "item 1");
	FAILS(BEGIN(ITEM(.seq = q, .n_tokens = 1), ITEM(.seq = r, .n_tokens = 1), ITEM(.seq = q, .n_tokens = 1)), EINVAL, "twice");
	FAILS(BEGIN(ITEM(.seq = q, .n_tokens = 0, .flags = SKV_STEP_PROMPT)), EINVAL, "n_tokens");
	FAILS(BEGIN(ITEM(.seq = q, .n_tokens = 17)), EINVAL, "n_tokens is 17, expected 1 to 16");
	FAILS(BEGIN(ITEM(.seq = q, .n_tokens = 1, .flags = 6)), EINVAL, "0x6");
	FAILS(BEGIN(ITEM(.seq = q, .n_tokens = 41, .flags = SKV_STEP_PROMPT)), E2BIG, "40");
	FAILS(BEGIN(ITEM(.seq = r, .n_tokens = 1), ITEM(.seq = q, .n_tokens = UINT32_MAX, .flags = SKV_STEP_PROMPT)), E2BIG,
	      "item 1");
	FAILS(skv_attend(session, 0, &attn), EINVAL, "no step");
	FAILS(skv_step_end(session, NULL, NULL), EINVAL, "no step");
	FAILS(skv_selection(session, 0, 0, 0, &looked, NULL, 0), EINVAL, "no step");
	skv_step_abort(session);
}

/* In a step of one token of q and 40 of r, of which layer 0 has attended. */
static void selections(void)
{
	struct skv_selection_info looked = {.size = sizeof(looked)};
	uint32_t pages[3] = {7, 7, 7};

	FAILS(skv_selection(session, 1, 0, 0, &looked, pages, 3), EINVAL, "layer 1 has not attended");
	FAILS(skv_selection(session, 0, 2, 0, &looked, pages, 3), EINVAL, "item 2 of 2");
	FAILS(skv_selection(session, 0, 0, 1, &looked, pages, 3), EINVAL, "row 1 of 1");
	OK(skv_selection(session, 0, 1, 0, &looked, pages, 2)); /* less room than there are pages */
	ck_assert_uint_eq(looked.attend, SKV_ATTEND_DENSE);
	ck_assert_uint_eq(looked.len, 40);
	ck_assert_uint_eq(looked.n, 3);
	ck_assert(pages[0] == 0 && pages[1] == 1 && pages[2] == 7);
	looked.size = offsetof(struct skv_selection_info, len); /* an older caller */
	OK(skv_selection(session, 0, 0, 0, &looked, NULL, 0));
	ck_assert_uint_eq(looked.len, 40);
	looked.size = 0;
	FAILS(skv_selection(session, 0, 0, 0, &looked, NULL, 0), EINVAL, "size");
}

static void a_step(struct skv_seq *q, struct skv_seq *r)
{
	struct skv_seq *child;
	int32_t late[40];

	OK(BEGIN(ITEM(.seq = q, .n_tokens = 1), ITEM(.seq = r, .n_tokens = 40, .flags = SKV_STEP_PROMPT)));
	FAILS(BEGIN(ITEM(.seq = q, .n_tokens = 1)), EBUSY, "open");
	FAILS(skv_seq_detach(q), EBUSY, "open step");
	FAILS(skv_seq_drop(q), EBUSY, "open step");
	FAILS(skv_seq_fork(q, NULL, SKV_ALL, &child), EBUSY, "open step");
	FAILS(skv_attend(session, 1, &attn), EINVAL, "layer 1, expected 0");
	FAILS(skv_attend(session, 0, &SKV_ATTN(.q = rows, .k = rows, .v = rows)), EINVAL, "out");
	FAILS(skv_attend(session, 0, NULL), EINVAL, "attn is NULL");
	FAILS(skv_attend(session, 0, &(struct skv_attn){.q = rows, .k = rows, .v = rows, .out = rows}), EINVAL, "attn: size");
	FAILS(skv_attend(session, 0, &SKV_ATTN(.q = rows, .k = rows, .out = rows)), EINVAL, "layer 0: k and v");
	FAILS(skv_attend(session, 0, &SKV_ATTN(.k = rows, .v = rows, .lse = rows)), EINVAL, "lse");
	FAILS(skv_attend(session, 0, &SKV_ATTN(.q = rows, .k = rows, .v = rows, .out = rows, .k_stride = 31)), EINVAL,
	      "k_stride is 31, expected at least the 32");
	FAILS(skv_attend(session, 0, &SKV_ATTN(.q = rows, .k = rows, .v = rows, .out = rows, .q_stride = 65)), EINVAL,
	      "out is q, but out_stride is 0 and q_stride 65");
	OK(skv_attend(session, 0, &attn));
	FAILS(skv_attend(session, 0, &attn), EINVAL, "layer 0, expected 1");
	selections();
	FAILS(skv_step_end(session, NULL, NULL), EINVAL, "layer 1 of 3");
	OK(skv_attend(session, 1, &attn));
	OK(skv_attend(session, 2, &attn));
	FAILS(skv_attend(session, 3, &attn), EINVAL, "layer 3");
	for (int32_t i = 0; i < 40; i++)
		late[i] = 100 + i;
	FAILS(skv_step_tokens(session, 2, late), EINVAL, "2 items, and no item 2");
	OK(skv_step_tokens(session, 1, late));
	OK(skv_step_end(session, NULL, NULL));
	FAILS(skv_step_tokens(session, 1, late), EINVAL, "no step is open");
	ck_assert_uint_eq(skv_seq_len(q), 1);
	ck_assert_uint_eq(skv_seq_len(r), 40);
	for (uint32_t i = 0; i < 40; i++)
		ck_assert_int_eq(skv_seq_tokens(r, NULL)[i], i == 0 ? -1 : late[i]);
	FAILS(BEGIN(ITEM(.seq = r, .n_tokens = 1)), E2BIG, "40");
}

/* Statistics of that one step. */
static void stats_of_a_step(void)
{
	struct skv_stats stats = {0};

	FAILS(skv_session_stats(session, &stats), EINVAL, "size");
	stats.size = sizeof(stats) + 8;
	FAILS(skv_session_stats(session, &stats), EINVAL, "size");
	stats.size = offsetof(struct skv_stats, attended_tokens); /* an older caller */
	stats.attended_tokens = 77;
	OK(skv_session_stats(session, &stats));
	ck_assert_uint_eq(stats.steps, 1);
	ck_assert_uint_eq(stats.n_seqs, 2);
	ck_assert_uint_eq(stats.prompt_tokens, 40);
	ck_assert_uint_eq(stats.decode_tokens, 1);
	ck_assert_uint_eq(stats.attended_tokens, 77);
}

START_TEST(steps)
{
	struct skv_session *s;
	struct skv_seq *q, *r, *foreign;

	OK(skv_seq_new(session, NULL, 40, &q));
	OK(skv_seq_new(session, NULL, 40, &r));
	OK(skv_open(client, &model, "full", &s));
	OK(skv_seq_new(s, NULL, 0, &foreign));
	steps_that_do_not_begin(q, r, foreign);
	a_step(q, r);
	stats_of_a_step();
	/* close in the middle of a step */
	OK(BEGIN(ITEM(.seq = q, .n_tokens = 1)));
	skv_close(session);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

struct worker {
	pthread_t thread;
	struct refmodel w;
	unsigned number;
};

/* Create, decode and drop sequences; all workers at once on one connection. */
static void *work(void *arg)
{
	struct worker *k = arg;

	for (int round = 0; round < 4; round++) {
		struct refmodel_seq q;
		struct skv_seq *seq;

		OK(skv_open(client, &k->w.model, "full", &k->w.session));
		OK(skv_seq_new(k->w.session, NULL, 0, &seq));
		refmodel_seq_init(&k->w, &q, seq, k->w.model.max_tokens);
		refmodel_feed(&k->w, &q, k->number, 60, true);
		for (int i = 0; i < 20; i++)
			refmodel_feed(&k->w, &q, k->number, 1, false);
		if (round % 2)
			OK(skv_seq_drop(seq));
		skv_close(k->w.session);
		refmodel_seq_deinit(&q);
	}
	return NULL;
}

START_TEST(threads)
{
	struct worker k[3] = {0};

	for (unsigned i = 0; i < 3; i++) {
		refmodel_model(&k[i].w.model, "threads", SKV_F32, 100);
		k[i].number = i;
	}
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(pthread_create(&k[i].thread, NULL, work, &k[i]), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(k[i].thread, NULL);
}
END_TEST

/* One session, several threads: calls exclude each other, so colliding steps get -EBUSY and none is torn. */
static void *collide(void *seq)
{
	for (int done = 0; done < 300;) {
		int e = skv_step_begin(session, &SKV_STEP_ITEM(.seq = seq, .n_tokens = 1), 1, NULL);

		if (e == -EBUSY) {
			sched_yield();
			continue;
		}
		ck_assert_int_eq(e, 0);
		skv_step_abort(session);
		done++;
	}
	return NULL;
}

START_TEST(collisions)
{
	pthread_t t[2];
	struct skv_seq *q[2];

	for (int i = 0; i < 2; i++) {
		OK(skv_seq_new(session, NULL, 0, &q[i]));
		ck_assert_int_eq(pthread_create(&t[i], NULL, collide, q[i]), 0);
	}
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i], NULL);
		ck_assert_uint_eq(skv_seq_len(q[i]), 0);
	}
}
END_TEST

/* ---- nothing left behind --------------------------------------------------------------------- */

static unsigned count_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned n = 0;
	char line[512];

	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	fclose(f);
	return n;
}

START_TEST(leaks)
{
	unsigned fds, maps;

	skv_close(session);
	for (int i = 0; i < 30; i++) {
		struct skv_model m = model;
		struct skv_session *s[2];
		struct skv_seq *q, *child;
		struct skv_client *c;

		if (i == 1) {
			fds = fix_count_fds(0);
			maps = count_maps();
		}
		m.head_dim = 16u + 16u * (uint32_t)(i % 3);
		OK(skv_connect(&c, daemon_.socket));
		OK(skv_open(c, &m, i % 2 ? POLICY_PAGES : POLICY_WINDOW, &s[0]));
		OK(skv_open(c, &model, "full", &s[1]));
		OK(skv_seq_new(s[0], NULL, 0, &q));
		OK(skv_step_begin(s[0], &SKV_STEP_ITEM(.seq = q, .n_tokens = 20, .flags = SKV_STEP_PROMPT), 1, NULL));
		skv_step_abort(s[0]);
		OK(skv_seq_fork(q, NULL, SKV_ALL, &child));
		if (i % 3 == 0)
			skv_close(s[0]);
		if (i % 5 == 0)
			skv_close(s[1]);
		skv_disconnect(c);
	}
	ck_assert_uint_eq(fix_count_fds(0), fds);
	ck_assert_uint_eq(count_maps(), maps);
}
END_TEST

/* A pool that is closed and opened again on one connection: its segments are announced and mapped again. */
START_TEST(reopened_pool)
{
	struct refmodel w = {0};

	for (int i = 0; i < 10; i++) {
		struct skv_seq *q;
		struct refmodel_seq ws;

		refmodel_model(&w.model, "reopened", SKV_F32, 400);
		OK(skv_open(client, &w.model, "full", &w.session));
		OK(skv_seq_new(w.session, NULL, 0, &q));
		refmodel_seq_init(&w, &ws, q, 400);
		refmodel_feed(&w, &ws, 1, 300, true);
		refmodel_feed(&w, &ws, 1, 1, false);
		skv_close(w.session);
		refmodel_seq_deinit(&ws);
	}
}
END_TEST

/*
 * Pages that a session requested ahead of need arrive while it is being closed: they go back before the session does.
 */
START_TEST(closed_with_a_lease_on_its_way)
{
	struct refmodel w = {0};

	for (int i = 0; i < 10; i++) {
		struct skv_seq *q;
		struct refmodel_seq ws;

		refmodel_model(&w.model, "hasty", SKV_F32, 400);
		OK(skv_open(client, &w.model, "full", &w.session));
		OK(skv_seq_new(w.session, NULL, 0, &q));
		refmodel_seq_init(&w, &ws, q, 400);
		refmodel_feed(&w, &ws, 1, 300, true);
		skv_close(w.session);
		refmodel_seq_deinit(&ws);
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-api");

	add_case(s, "api", 60, setup, teardown, connecting, out_of_descriptors, models, layers_of_models, sequences, threads, collisions, leaks,
	         reopened_pool, closed_with_a_lease_on_its_way, NULL);
	add_case(s, "steps", 60, setup, teardown, steps, NULL); /* closes the session itself */
	return run_suite(s);
}
