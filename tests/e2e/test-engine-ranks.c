/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine on several tensor-parallel ranks, each a process: the same tokens, the same logits and, in every layer,
 * the same selections as in one process. With the reference model, and with a model of SmolLM2-135M's shape that has
 * fewer layers and random weights.
 */
#include <check.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/forward.h"
#include "engine/progress.h"
#include "engine/ranks.h"
#include "tests/support/child.h"
#include "tests/support/engine-daemon.h"
#include "tests/support/output-hash.h"
#include "tests/support/policies.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define PROMPT 260u
#define STEPS 8u
#define CHUNK 100u
#define MAX_LAYERS 16u
#define MAX_HEADS 9u
#define LISTED 512u
#define MAX_POLICIES 16
#define N_POLICIES policy_rows(SET_ENGINE_RANKS)

static const struct eng_config smollm2 = {
	.hidden = 576, .n_layers = 6, .n_heads = 9, .n_kv_heads = 3, .head_dim = 64, .ffn = 1536, .vocab = 1000,
	.max_positions = 2048, .rms_eps = 1e-5f, .rope = {.type = SKV_ROPE_DEFAULT, .theta = 1e5}, .tied = true,
};

/* Results of a run, in memory that all processes share. */
static struct run {
	int32_t token[STEPS];
	uint64_t logits[STEPS];
	uint64_t lists[STEPS][MAX_LAYERS][MAX_HEADS]; /* hash of the tokens that a head attended to */
} (*runs)[MAX_POLICIES]; /* [2]: of one process, and of several */

static void setup(void)
{
	daemon_setup();
	runs = mmap(NULL, 2 * sizeof(*runs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(runs != MAP_FAILED);
}

static void teardown(void)
{
	munmap(runs, 2 * sizeof(*runs));
	daemon_teardown();
}

/* ---- a rank ---------------------------------------------------------------------------------- */

struct rank {
	struct eng_ranks *ranks; /* NULL: there is only one rank */
	struct eng_model model;
	struct skv_model shape;
	struct skv_client *client;
	struct skv_session *session;
	struct skv_seq *seq;
	struct eng_forward forward;
};

static void said(int r, const struct eng_error *err)
{
	ck_assert_msg(r == 0, "%s", err->text);
}

static void open_rank(struct rank *r, bool reference)
{
	struct eng_backend *host = eng_backend_host();
	struct eng_error err;

	omp_set_num_threads(1);
	ok(skv_connect(&r->client, eng_private_socket(engine_daemon)));
	ok(skv_set_threads(r->client, 1));
	said(reference ? eng_model_load(&r->model, run_source("models/reference"), host, SKV_F32, &err)
	               : eng_model_random(&r->model, &smollm2, host, SKV_F32, 7, &err), &err);
	said(eng_ranks_open(r->ranks, host, &err), &err);
	r->shape = eng_model_describe(&r->model, SKV_BF16);
	said(eng_ranks_split(r->ranks, &r->shape, &err), &err);
	said(eng_forward_init(&r->forward, &r->model, CHUNK, &err), &err);
	r->forward.ranks = r->ranks;
}

/* Stores what the rank's heads attended to in the open step at their places among all heads. */
static void collect_lists(struct rank *r, uint64_t to[MAX_LAYERS][MAX_HEADS])
{
	const uint32_t heads = r->shape.n_heads, group = heads / r->shape.n_kv_heads;
	uint32_t ids[LISTED];

	for (uint32_t layer = 0; layer < r->shape.n_layers; layer++)
		for (uint32_t h = 0; h < heads; h++) {
			struct skv_selection_info info = {.size = sizeof(info)};

			ok(skv_selection(r->session, layer, 0, 0, &info, ids, LISTED));
			if (info.rows > 1)
				ok(skv_selection(r->session, layer, 0, info.rows == heads ? h : h / group, &info, ids, LISTED));
			ck_assert_uint_le(info.n, LISTED);
			to[layer][eng_ranks_number(r->ranks) * heads + h] =
			        output_hash(OUTPUT_HASH_NONE ^ info.attend, (const float *)ids, info.n);
		}
}

static void read_prompt(struct rank *r, const int32_t *ids)
{
	struct eng_error err;

	for (uint32_t at = 0; at < PROMPT; at = skv_seq_len(r->seq)) {
		const uint32_t n = PROMPT - at < CHUNK ? PROMPT - at : CHUNK;
		const struct skv_step_item it = SKV_STEP_ITEM(.seq = r->seq, .n_tokens = n, .flags = SKV_STEP_PROMPT,
		                                              .n_prompt_remaining = PROMPT - at - n, .tokens = ids + at);

		said(eng_forward(&r->forward, r->session, &it, 1, &err), &err);
		ok(skv_step_end(r->session, NULL, NULL));
	}
}

static void decode(struct rank *r, int32_t id, struct run *to)
{
	struct eng_error err;

	for (uint32_t i = 0; i < STEPS; i++) {
		const struct skv_step_item it = SKV_STEP_ITEM(.seq = r->seq, .n_tokens = 1, .tokens = &id);
		const float *logits;

		said(eng_forward(&r->forward, r->session, &it, 1, &err), &err);
		said(eng_forward_logits(&r->forward, &logits, &err), &err);
		collect_lists(r, to->lists[i]);
		if (eng_ranks_number(r->ranks) == 0)
			to->logits[i] = output_hash(OUTPUT_HASH_NONE, logits, r->model.config.vocab);
		id = r->forward.id[0];
		if (eng_ranks_number(r->ranks) == 0)
			to->token[i] = id;
		ok(skv_step_end(r->session, &id, NULL));
	}
}

static void be_rank(uint32_t n, bool reference, const int32_t *ids, struct run *to)
{
	struct rank r = {.ranks = NULL};
	struct eng_error err;

	if (n > 1)
		said(eng_ranks_start(&r.ranks, n, &err), &err);
	open_rank(&r, reference);
	for (int i = 0; i < N_POLICIES; i++) {
		ok(skv_open(r.client, &r.shape, policy_row(SET_ENGINE_RANKS, i)->spec, &r.session));
		ok(skv_seq_new(r.session, "text", 0, &r.seq));
		read_prompt(&r, ids);
		decode(&r, ids[PROMPT], &to[i]);
		ok(skv_seq_drop(r.seq));
		skv_close(r.session);
	}
	skv_disconnect(r.client);
	eng_forward_deinit(&r.forward);
	eng_model_deinit(&r.model);
	said(eng_ranks_end(r.ranks, 0, &err), &err);
	_exit(0);
}

/* ---- the test -------------------------------------------------------------------------------- */

static void compare(int policy, uint32_t n)
{
	const char *spec = policy_row(SET_ENGINE_RANKS, policy)->spec;
	const struct run *one = &runs[0][policy], *several = &runs[1][policy];

	for (uint32_t i = 0; i < STEPS; i++) {
		for (uint32_t layer = 0; layer < MAX_LAYERS; layer++)
			for (uint32_t h = 0; h < MAX_HEADS; h++)
				ck_assert_msg(one->lists[i][layer][h] == several->lists[i][layer][h],
				              "%s, %u ranks: step %u, layer %u, head %u attends to others", spec, n, i,
				              layer, h);
		ck_assert_msg(one->token[i] == several->token[i], "%s, %u ranks: token %u is %d, of one rank %d", spec,
		              n, i, several->token[i], one->token[i]);
		ck_assert_msg(one->logits[i] == several->logits[i], "%s, %u ranks: step %u has other logits", spec, n,
		              i);
	}
	ck_assert(one->logits[0] != 0);
}

/* The reference model runs on two ranks, the other one on three. */
START_TEST(as_one)
{
	const bool reference = _i == 0;
	const uint32_t counts[] = {1, reference ? 2 : 3};
	int32_t ids[PROMPT + 1];

	rnd_begin((uint64_t)_i);
	memset(runs, 0, 2 * sizeof(*runs));
	for (uint32_t i = 0; i <= PROMPT; i++)
		ids[i] = (int32_t)(reference ? 'a' + rnd_below(26) : rnd_below(smollm2.vocab));
	for (int run = 0; run < 2; run++) {
		pid_t pid = child_fork();

		if (pid == 0)
			be_rank(counts[run], reference, ids, runs[run]);
		child_wait(pid);
	}
	for (int i = 0; i < N_POLICIES; i++)
		compare(i, counts[1]);
}
END_TEST

/* ---- the programs ---------------------------------------------------------------------------- */

/* Arguments of sparsekv-generate on some ranks, and with a sequence name unless it is NULL. */
#define GENERATE(ranks, seq)                                                                                          \
	{"engine/sparsekv-generate", "--model", run_source("models/reference"), "--policy",                           \
	 POLICY_PAGES "?budget=0.25&layers=2,7,12", "--prompt", "#the key is 4711. ", "--max-tokens", "100", \
	 "--socket", eng_private_socket(engine_daemon), "--threads", "1", "--ranks", ranks,                    \
	 seq ? "--seq" : "--quiet", seq ? seq : NULL, NULL}

/* Returns a child of the process, or 0. */
static pid_t other_rank(pid_t pid)
{
	char path[64];
	int child = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &child) != 1)
		child = 0;
	if (f)
		fclose(f);
	return child;
}

/* Returns whether there is a sequence of this name. */
static bool is_there(const char *name)
{
	char text[64] = "", path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s --socket %s seq list 2>/dev/null | grep %s | head -n 1", run_built("daemon/ctl/sparsekvctl"),
	         eng_private_socket(engine_daemon), name);
	f = popen(path, "r");
	(void)!fgets(text, sizeof(text), f);
	pclose(f);
	return *text;
}

START_TEST(programs)
{
	const char *alone[] = GENERATE("1", NULL), *pair[] = GENERATE("2", NULL), *many[] = GENERATE("3", NULL), *named[] = GENERATE("2", "pair");
	char *expected, *out, *err;
	pid_t pid;
	int status;

	ck_assert_int_eq(run(folder, alone, LIMIT), 0);
	expected = run_out(folder);
	ck_assert_int_eq(run(folder, pair, LIMIT), 0);
	out = run_out(folder);
	ck_assert_str_eq(out, expected);
	free(out);
	ck_assert_int_eq(run(folder, many, LIMIT), EXIT_FAILURE);
	err = run_err(folder);
	ck_assert_msg(strstr(err, "--ranks 3: the model has 2 kv heads"), "%s", err);
	free(err);

	/* the other rank is killed in the middle: the program reports it, and the next run continues from there */
	pid = run_start(folder, named);
	for (double end = eng_now() + LIMIT; !is_there("pair") && eng_now() < end;)
		usleep(1000);
	ck_assert_int_gt(other_rank(pid), 1);
	ck_assert_int_eq(kill(other_rank(pid), SIGKILL), 0);
	status = run_wait(pid, LIMIT);
	err = run_err(folder);
	ck_assert_msg(status == EXIT_FAILURE && (strstr(err, "rank 1 was ended by signal 9") || strstr(err, "another rank has ended") ||
	              strstr(err, "other ranks did not confirm") || strstr(err, "all_reduce_max failed")), "%d %s", status, err);
	free(err);
	ck_assert_int_eq(run(folder, named, LIMIT), 0);
	out = run_out(folder);
	ck_assert_str_eq(out, expected);
	free(out);
	free(expected);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-engine-ranks");
	TCase *t = add_case(s, "ranks", 300, setup, teardown, programs, NULL);

	add_share(t, as_one, 2, 2);
	return run_suite(s);
}
