/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor-parallel ranks, each a process, of which one is killed with SIGKILL again and again: at random times, and
 * around its commits. The others give up, and all are started again. The ranks of each sequence must then have the same
 * length, and all tokens must be those of an undisturbed run of one process that has all heads.
 *
 * A token follows from the outputs of all heads of the step before, bit for bit, and its K, V and q follow from the
 * token.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/ranks-shared.h"
#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/output-hash.h"
#include "tests/support/policies.h"
#include "tests/support/reference-attention.h"

#define KILLS (getenv("SKV_KILLS") ? atoi(getenv("SKV_KILLS")) : slowed() ? 8 : 40)
#define RANKS 3u
#define LAYERS 4u
#define HEADS 6u /* of all ranks */
#define KV_HEADS 6u
#define DIM 32u
#define PROMPT 130u
#define CHUNK 50u
#define TOKENS 700u
#define GAVE_UP 7 /* exit status of a rank that lost the others */

#define MAX_SEQS 16u
#define SEQS ((uint32_t)policy_rows(SET_RANKS_KILL))

/* The point at which a rank kills itself, in step number `step` of its run. */
enum point { NOWHERE, BEFORE_END, BEFORE_CONFIRM, AFTER_CONFIRM, POINTS };

static struct fix daemon_;
static struct together {
	int32_t token[MAX_SEQS][TOKENS + 1]; /* as computed by one process with all heads */
	_Atomic uint32_t through; /* ranks that have all tokens and begin to drop their sequences */
	struct {
		enum point at;
		uint32_t step;
	} kill[RANKS];
} *together;

static const char *spec_of(uint32_t i)
{
	return policy_row(SET_RANKS_KILL, (int)i)->spec;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

struct rank {
	struct eng_shared *shared; /* NULL: there is only one rank */
	uint32_t number, n, steps;
	struct skv_model model;
	struct skv_client *client;
	struct skv_session *session[MAX_SEQS]; /* each runs a policy of its own */
	struct skv_seq *seq[MAX_SEQS];
	uint32_t len[MAX_SEQS];
	bool gave_up;
};

static void kill_at(const struct rank *r, enum point at)
{
	if (r->shared && together->kill[r->number].at == at && together->kill[r->number].step == r->steps)
		raise(SIGKILL);
}

static int all_reduce_max(void *ctx, float *data, size_t count, void *stream)
{
	struct rank *r = ctx;
	const bool confirms = count < 16 && r->steps > 0;
	int e;
	(void)stream;

	if (confirms)
		kill_at(r, BEFORE_CONFIRM);
	e = eng_shared_max(r->shared, r->number, data, count);
	if (confirms)
		kill_at(r, AFTER_CONFIRM);
	return e;
}

static void say_log(void)
{
	char *log = fix_log(&daemon_);
	fprintf(stderr, "%s\n", log + (strlen(log) > 3000 ? strlen(log) - 3000 : 0));
	free(log);
}

static void open_rank(struct rank *r)
{
	refmodel_model(&r->model, "ranks", SKV_F16, 2048);
	r->model.n_layers = LAYERS;
	r->model.n_heads = HEADS / r->n;
	r->model.n_kv_heads = KV_HEADS / r->n;
	r->model.head_dim = DIM;
	r->model.rope = (struct skv_rope){.type = SKV_ROPE_DEFAULT, .theta = 10000};
	r->model.rank = r->number;
	r->model.n_ranks = r->n;
	r->model.all_reduce_max = r->shared ? all_reduce_max : NULL;
	r->model.all_reduce_ctx = r;
	OK(skv_connect(&r->client, daemon_.socket));
	child_before_failure = say_log;
	for (uint32_t i = 0; i < SEQS; i++)
		OK(skv_open(r->client, &r->model, spec_of(i), &r->session[i]));
}

/* Attaches the sequence by name, or makes it. What a killed rank had may not be free yet. */
static void take_sequence(struct rank *r, uint32_t i, const char *name)
{
	int e = -EBUSY;

	for (double end = fix_now() + 20; e == -EBUSY && fix_now() < end; fix_sleep_ms(1))
		e = skv_seq_attach(r->session[i], name, &r->seq[i]);
	if (e == -ENOENT)
		e = skv_seq_new(r->session[i], name, TOKENS + 8, &r->seq[i]);
	ck_assert_msg(e == 0, "rank %u, '%s': %d %s", r->number, name, e, skv_last_error());
}

/*
 * Checks that all ranks have the same length, that a step can have left it, and that the tokens are the expected ones.
 */
static void check_sequence(struct rank *r, uint32_t i)
{
	const int32_t *ids = skv_seq_tokens(r->seq[i], &r->len[i]);
	float len[2] = {(float)r->len[i], -(float)r->len[i]};

	ck_assert_msg(r->len[i] <= PROMPT ? r->len[i] % CHUNK == 0 || r->len[i] == PROMPT : r->len[i] <= TOKENS,
	              "'%s': %u tokens", spec_of(i),
	              r->len[i]);
	ck_assert_msg(!memcmp(ids, together->token[i], r->len[i] * sizeof(*ids)), "'%s': other tokens", spec_of(i));
	if (r->len[i] >= PROMPT)
		ck_assert_msg(ids[r->len[i]] == together->token[i][r->len[i]], "'%s': the next token of %u is %d",
		              spec_of(i), r->len[i],
		              ids[r->len[i]]);
	if (eng_shared_max(r->shared, r->number, len, 2) < 0)
		r->gave_up = true;
	else
		ck_assert_msg(len[0] == -len[1], "'%s': ranks come back at %g and %g tokens", spec_of(i),
		              (double)len[0], (double)-len[1]);
}

static void fill(const struct rank *r, uint32_t i, uint32_t n, uint32_t layer, enum what what, float *to)
{
	const uint32_t heads = what == ROW_Q ? r->model.n_heads : r->model.n_kv_heads;

	for (uint32_t at = r->len[i]; at < r->len[i] + n; at++)
		for (uint32_t h = 0; h < heads; h++, to += DIM)
			refmodel_row(refmodel_content(i, at) + (uint32_t)together->token[i][at], layer, what, r->number * heads + h, DIM, to);
}

/* Runs all layers; returns a hash of each head's last row, of all ranks. Returns false if other ranks have given up. */
static bool run_layers(struct rank *r, uint32_t i, uint32_t n, uint64_t hash[HEADS])
{
	const uint32_t heads = r->model.n_heads;
	struct devmem_rows rows = devmem_rows_new(&r->model, n);
	bool well = true;

	for (uint32_t layer = 0; layer < LAYERS && well; layer++) {
		fill(r, i, n, layer, ROW_Q, rows.q);
		fill(r, i, n, layer, ROW_K, rows.k);
		fill(r, i, n, layer, ROW_V, rows.v);
		well = devmem_attend(r->session[i], layer, &rows, false) == 0;
		for (uint32_t h = 0; h < heads && well; h++) {
			uint64_t *to = &hash[r->number * heads + h];

			*to = output_hash(layer ? *to : OUTPUT_HASH_NONE, rows.out + ((size_t)(n - 1) * heads + h) * DIM, DIM);
		}
	}
	devmem_rows_free(&rows);
	return well && (!r->shared || !eng_shared_gather(r->shared, r->number, hash, 1, heads * sizeof(*hash)));
}

/* Returns the next token, which follows from these hashes. */
static int32_t token_of(const uint64_t hash[HEADS])
{
	uint64_t sum = 0;

	for (uint32_t h = 0; h < HEADS; h++)
		sum = (sum ^ hash[h]) * 0x100000001b3u;
	return (int32_t)(sum % 1000003);
}

static bool run_step(struct rank *r, uint32_t i)
{
	const uint32_t len = r->len[i], left = len < PROMPT ? PROMPT - len : 0, n = left > CHUNK ? CHUNK : left ? left : 1;
	const struct skv_step_item it = SKV_STEP_ITEM(.seq = r->seq[i], .n_tokens = n, .flags = left ? SKV_STEP_PROMPT : 0,
	                                              .n_prompt_remaining = left ? left - n : 0, .tokens = together->token[i] + len);
	uint64_t hash[HEADS] = {0};
	int32_t next;

	if (skv_step_begin(r->session[i], &it, 1, NULL) < 0)
		return false;
	r->steps++;
	if (!run_layers(r, i, n, hash))
		return false;
	next = len + n < PROMPT ? together->token[i][len + n] : token_of(hash);
	if (!r->shared)
		together->token[i][len + n] = next;
	ck_assert_msg(next == together->token[i][len + n], "'%s', rank %u of %u: token %u is %d, expected %d",
	              spec_of(i), r->number, r->n,
	              len + n, next, together->token[i][len + n]);
	kill_at(r, BEFORE_END);
	if (skv_step_end(r->session[i], &next, NULL) < 0)
		return false;
	r->len[i] += n;
	return true;
}

static bool is_through(const struct rank *r)
{
	for (uint32_t i = 0; i < SEQS; i++)
		if (r->len[i] < TOKENS)
			return false;
	return true;
}

/* Runs rank `number` of n on the sequences of this generation, until they are complete or other ranks are gone. */
static void be_rank(struct eng_shared *shared, uint32_t number, uint32_t n, uint32_t generation, bool graceful)
{
	struct rank r = {.shared = shared, .number = number, .n = n};
	char name[32];

	open_rank(&r);
	for (uint32_t i = 0; i < SEQS; i++) {
		snprintf(name, sizeof(name), "s%u-%u", i, generation);
		take_sequence(&r, i, name);
		if (shared)
			check_sequence(&r, i);
	}
	while (!r.gave_up && !is_through(&r))
		for (uint32_t i = 0; i < SEQS && !r.gave_up; i++)
			r.gave_up = r.len[i] < TOKENS && !run_step(&r, i);
	ck_assert_msg(!r.gave_up || shared, "%s", skv_last_error());
	if (r.gave_up && !graceful)
		_exit(GAVE_UP);
	atomic_fetch_add(&together->through, !r.gave_up);
	for (uint32_t i = 0; i < SEQS; i++) {
		skv_step_abort(r.session[i]);
		OK(r.gave_up ? skv_seq_detach(r.seq[i]) : skv_seq_drop(r.seq[i]));
	}
	skv_disconnect(r.client);
	_exit(r.gave_up ? GAVE_UP : 0);
}

/* ---- the test -------------------------------------------------------------------------------- */

static void setup(void)
{
	together = mmap(NULL, sizeof(*together), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(together != MAP_FAILED);
	fix_start_process(&daemon_, (const char *[]){"--pool-bytes=256M", NULL});
	rnd_begin(0);
	for (uint32_t i = 0; i < SEQS; i++)
		for (uint32_t t = 0; t < PROMPT; t++)
			together->token[i][t] = (int32_t)rnd_below(1000003);
}

static void teardown(void)
{
	fix_stop(&daemon_);
	munmap(together, sizeof(*together));
}

static pid_t start(struct eng_shared *shared, uint32_t number, uint32_t n, uint32_t generation)
{
	const bool graceful = rnd_below(2) == 0;
	pid_t pid = child_fork();

	if (pid == 0)
		be_rank(shared, number, n, generation, graceful);
	return pid;
}

/* Records the tokens to compare with. */
static void run_alone(void)
{
	child_wait(start(NULL, 0, 1, UINT32_MAX));
}

static void plan_kill(uint32_t victim)
{
	memset(together->kill, 0, sizeof(together->kill));
	together->kill[victim].at = (enum point)rnd_below(POINTS);
	together->kill[victim].step = 1 + rnd_below(400);
	atomic_store(&together->through, 0);
}

/* Starts all ranks, and waits for the death of one of them. Returns true if they completed before. */
static bool run_until_death(uint32_t n, uint32_t generation)
{
	struct eng_shared *shared = eng_shared_new(n);
	const uint32_t victim = rnd_below(n);
	pid_t pid[RANKS];
	bool killed = false;
	int status;

	ck_assert(shared != NULL);
	plan_kill(victim);
	for (uint32_t r = 0; r < n; r++)
		pid[r] = start(shared, r, n, generation);
	if (together->kill[victim].at == NOWHERE) {
		usleep(1000 + rnd_below(120000));
		kill(pid[victim], SIGKILL);
	}
	ck_assert_int_eq(waitpid(pid[victim], &status, 0), pid[victim]);
	killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	ck_assert_msg(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "rank %u of %u: status %#x: %s", victim, n, status,
	              child_problem());
	/* time for the other ranks to come as far as they can */
	usleep(rnd_below(2) ? 0 : 20000);
	if (killed)
		eng_shared_give_up(shared);
	for (uint32_t r = 0; r < n; r++) {
		if (r == victim)
			continue;
		ck_assert_int_eq(waitpid(pid[r], &status, 0), pid[r]);
		ck_assert_msg(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == GAVE_UP),
		              "rank %u of %u, of which %u was killed: status %#x: %s", r, n, victim, status, child_problem());
	}
	eng_shared_free(shared);
	return atomic_load(&together->through) > 0;
}

START_TEST(killed)
{
	const uint32_t n = _i ? 3 : 2;
	uint32_t generation = 0, ends = 0;

	rnd_begin((uint64_t)_i);
	run_alone();
	for (int kills = KILLS; kills > 0; kills--)
		if (run_until_death(n, generation)) {
			generation++;
			ends++;
		}
	/* finally run to the end without a kill */
	memset(together->kill, 0, sizeof(together->kill));
	struct eng_shared *shared = eng_shared_new(n);
	pid_t pid[RANKS];

	for (uint32_t r = 0; r < n; r++)
		pid[r] = start(shared, r, n, generation);
	for (uint32_t r = 0; r < n; r++)
		child_wait(pid[r]);
	eng_shared_free(shared);
	printf("%u ranks: %d kills, came to the end %u times\n", n, KILLS, ends + 1);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-ranks-kill");
	TCase *t = add_case(s, "ranks", 600, setup, teardown, NULL);

	tcase_add_loop_test(t, killed, 0, 2);
	return run_suite(s);
}
