/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences that go back: rejected rows, steps cancelled for one of their sequences, truncation, and forks at a length.
 * What follows must be, bit by bit, what follows in a sequence that was never longer: its twin, made anew from the
 * remaining tokens.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"
#include "tests/support/reference-codec.h"

#define TOKENS 320u

static struct refmodel w;
static char spec[POLICY_SPEC];
static uint32_t n_steps;

/* Under these only rows of one step can be taken back, and a step has one row. */
static bool evicts(const struct policy_row *row)
{
	return policy_action(row->spec) == SKV_ACT_EVICT && !policy_evicts_by_position(row->spec);
}

/* Under these truncation to any length works. */
static bool keeps_rows(const struct policy_row *row)
{
	return policy_action(row->spec) == SKV_ACT_NONE || policy_action(row->spec) == SKV_ACT_SELECT;
}

/* Policies under which a step may have several rows: those before the ones that evict by scores. */
static int n_of_rows(void)
{
	int n = 0;

	while (!evicts(policy_row(SET_REWINDS, n)))
		n++;
	return n;
}

static void setup(void)
{
	client_begin(NULL);
	refmodel_model(&w.model, "rewind", SKV_F32, TOKENS);
	refmodel_packable(&w.model);
}

static void open_spec(const char *text)
{
	snprintf(spec, sizeof(spec), "%s", text);
	OK(skv_open(client, &w.model, spec, &w.session));
}

static void open_with(const struct policy_row *row)
{
	char text[POLICY_SPEC];

	policy_codecs(&w.model, 1, daemon_.dir);
	open_spec(policy_row_spec(row, daemon_.dir, text));
}

/* ---- twins ----------------------------------------------------------------------------------- */

/* A sequence, and how its tokens were computed. */
struct past {
	struct skv_seq *seq;
	uint32_t len;
	uint64_t content[TOKENS];
	uint32_t prompt[TOKENS]; /* number of the step that read it, or 0: it was decoded */
};

static size_t out_size(uint32_t n)
{
	return (size_t)w.model.n_layers * n * w.model.n_heads * w.model.head_dim;
}

/* n rows, of which `accepted` count; `out` gets all. */
static void go(struct past *p, const uint64_t *content, uint32_t n, uint32_t accepted, bool prompt, float *out)
{
	struct skv_step_item item = SKV_STEP_ITEM(.seq = p->seq, .n_tokens = n, .flags = prompt ? SKV_STEP_PROMPT : 0);

	OK(refmodel_items(&w, &item, 1, content, n, &accepted, out));
	n_steps++;
	for (uint32_t i = 0; i < accepted; i++) {
		p->content[p->len] = content[i];
		p->prompt[p->len++] = prompt ? n_steps : 0;
	}
	ck_assert_uint_eq(skv_seq_len(p->seq), p->len);
}

/* A new sequence with the same tokens, computed in the same way: prompts as wholes, all others one by one. */
static struct past twin_of(const struct past *p)
{
	struct past twin = {.len = 0};

	OK(skv_seq_new(w.session, NULL, 0, &twin.seq));
	while (twin.len < p->len) {
		uint32_t n = 1;

		while (p->prompt[twin.len] && twin.len + n < p->len && p->prompt[twin.len + n] == p->prompt[twin.len])
			n++;
		go(&twin, p->content + twin.len, n, n, p->prompt[twin.len], NULL);
	}
	return twin;
}

/* Decode the same tokens in both: the outputs are the same. */
static void check_twin(struct past *p, uint32_t steps)
{
	struct past twin = twin_of(p);
	float *a = calloc(out_size(1), sizeof(*a)), *b = calloc(out_size(1), sizeof(*b));
	uint64_t resident[2], total[2];

	for (uint32_t i = 0; i < steps && p->len < TOKENS; i++) {
		uint64_t content = rnd64();

		go(p, &content, 1, 1, false, a);
		go(&twin, &content, 1, 1, false, b);
		ck_assert_msg(memcmp(a, b, out_size(1) * sizeof(*a)) == 0, "%s: token %u differs from the twin's", spec, p->len - 1);
	}
	skv_seq_pages(p->seq, &resident[0], &total[0]);
	skv_seq_pages(twin.seq, &resident[1], &total[1]);
	if (steps > 0)
		ck_assert_msg(resident[0] == resident[1], "%s: %llu pages, its twin has %llu", spec,
		              (unsigned long long)resident[0], (unsigned long long)resident[1]);
	OK(skv_seq_drop(twin.seq));
	free(a);
	free(b);
}

static void read_some(struct past *p, uint32_t n)
{
	uint64_t content[TOKENS];

	for (uint32_t i = 0; i < n; i++)
		content[i] = rnd64();
	go(p, content, n, n, true, NULL);
}

/* Decode some rows, and accept some of them. */
static void speculate(struct past *p, uint32_t most)
{
	uint32_t left = TOKENS - p->len, n = 1 + rnd_below(most < left ? most : left);
	uint64_t content[SKV_STEP_ROWS];

	for (uint32_t i = 0; i < n; i++)
		content[i] = rnd64();
	go(p, content, n, rnd_below(n + 1), false, NULL);
}

/* Partly accepted rows leave what steps of single rows leave. */
START_TEST(rejected_rows)
{
	const struct policy_row *row = policy_row(SET_REWINDS, _i);
	struct past p = {.len = 0};

	rnd_begin((uint64_t)_i);
	open_with(row);
	OK(skv_seq_new(w.session, NULL, 0, &p.seq));
	read_some(&p, 1 + rnd_below(150));
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 3 + rnd_below(8); i > 0 && p.len + SKV_STEP_ROWS < TOKENS; i--)
			speculate(&p, evicts(row) ? 1 : SKV_STEP_ROWS);
		check_twin(&p, 3);
	}
	if (evicts(row))
		FAILS(skv_step_begin(w.session, &SKV_STEP_ITEM(.seq = p.seq, .n_tokens = 2), 1, devmem_stream()), ENOTSUP,
		      "evicts by scores");
	skv_close(w.session);
}
END_TEST

/*
 * 8 rows are those of 8 steps, to the bit: each scores, selects and attends for itself. Prompts have a length at which
 * policies that compress do so only after the 8 rows.
 */
START_TEST(rows_as_steps)
{
	struct past p = {.len = 0}, twin;
	float *rows, *one;
	uint64_t content[8];
	size_t width;

	rnd_begin((uint64_t)_i);
	open_with(policy_row(SET_REWINDS, _i));
	OK(skv_seq_new(w.session, NULL, 0, &p.seq));
	read_some(&p, 16 + 32 * rnd_below(5) + rnd_below(7));
	for (int i = 0; i < 8; i++)
		content[i] = rnd64();
	twin = twin_of(&p);
	rows = calloc(out_size(8), sizeof(*rows));
	one = calloc(out_size(1), sizeof(*one));
	width = out_size(1) / w.model.n_layers;
	go(&p, content, 8, 8, false, rows);
	for (uint32_t i = 0; i < 8; i++) {
		go(&twin, &content[i], 1, 1, false, one);
		for (uint32_t layer = 0; layer < w.model.n_layers; layer++)
			ck_assert_msg(memcmp(one + layer * width, rows + (layer * 8 + i) * width, width * sizeof(*one)) == 0,
			              "%s: layer %u, row %u is not what a step of its own gives", spec, layer, i);
	}
	free(rows);
	free(one);
	skv_close(w.session);
}
END_TEST

/* Truncate to any length, or fork there; or it is refused, and nothing has changed. */
START_TEST(shorter)
{
	const struct policy_row *row = policy_row(SET_REWINDS, _i);
	struct past p = {.len = 0};
	uint32_t refused = 0;

	rnd_begin((uint64_t)_i);
	open_with(row);
	OK(skv_seq_new(w.session, NULL, 0, &p.seq));
	for (int round = 0; round < 6; round++) {
		uint32_t n, was;
		struct skv_seq *fork;
		int e;

		if (p.len == 0 || (p.len < 100 && !policy_evicts_by_position(row->spec)))
			read_some(&p, 20 + rnd_below(120));
		for (uint32_t i = rnd_below(24); i > 0 && p.len + SKV_STEP_ROWS < TOKENS; i--)
			speculate(&p, evicts(row) ? 1 : 1 + rnd_below(4));
		was = p.len;
		n = rnd_below(8) == 0 ? 0 : rnd_below(2) ? rnd_below(p.len + 1) : p.len - rnd_below(p.len < 20 ? p.len + 1 : 20);
		if (round % 2) {
			e = skv_seq_fork(p.seq, NULL, n, &fork);
			if (e == 0) {
				OK(skv_seq_drop(p.seq));
				p.seq = fork;
			}
		} else {
			e = skv_seq_truncate(p.seq, n, 77);
		}
		if (e == -ESTALE) {
			ck_assert_msg(!keeps_rows(row) && n > 0 && n < p.len, "%s: %s", spec, skv_last_error());
			ck_assert_str_ne(skv_last_error(), "");
			refused++;
			n = p.len;
		} else {
			ck_assert_msg(e == 0, "%s to %u of %u: %d %s", spec, n, p.len, e, skv_last_error());
			ck_assert_int_eq(skv_seq_tokens(p.seq, NULL)[n], round % 2 == 0 ? 77 : n < was ? -1 : skv_seq_tokens(p.seq, NULL)[n]);
		}
		p.len = n;
		ck_assert_uint_eq(skv_seq_len(p.seq), n);
		for (uint32_t i = 0; i < n; i++)
			ck_assert_int_eq(skv_seq_tokens(p.seq, NULL)[i], refmodel_token(p.content[i]));
		if (p.len > 0)
			check_twin(&p, 2);
	}
	ck_assert(!evicts(row) || refused > 0);
	FAILS(skv_seq_truncate(p.seq, p.len + 1, -1), EINVAL, "first");
	skv_close(w.session);
}
END_TEST

/* One sequence of a step is cancelled, with rows of a prompt or a decode row: only this one was not in the step. */
START_TEST(cancelled)
{
	const struct policy_row *row = policy_row(SET_REWINDS, _i);
	enum { N = 4 };
	struct past p[N] = {0};

	rnd_begin((uint64_t)_i);
	open_with(row);
	for (int i = 0; i < N; i++) {
		OK(skv_seq_new(w.session, NULL, 0, &p[i].seq));
		read_some(&p[i], 1 + rnd_below(90));
	}
	for (int round = 0; round < 5; round++) {
		struct skv_step_item items[N];
		uint64_t content[N * 40];
		uint32_t accepted[N], n = 0;

		for (int i = 0; i < N; i++) {
			bool prompt = rnd_below(4) == 0 && !policy_evicts_by_position(row->spec);

			items[i] = SKV_STEP_ITEM(.seq = p[i].seq, .n_tokens = prompt ? 1 + rnd_below(30) : 1,
			                         .flags = prompt ? SKV_STEP_PROMPT : 0);
			/* before a prompt, evicted slots are put in order and stay so: sums then have another order */
			accepted[i] = rnd_below(3) || (prompt && evicts(row)) ? items[i].n_tokens : 0;
			for (uint32_t j = 0; j < items[i].n_tokens; j++)
				content[n++] = rnd64();
		}
		OK(refmodel_items(&w, items, N, content, n, accepted, NULL));
		n_steps++;
		n = 0;
		for (int i = 0; i < N; n += items[i++].n_tokens)
			for (uint32_t j = 0; j < accepted[i]; j++) {
				p[i].content[p[i].len] = content[n + j];
				p[i].prompt[p[i].len++] = items[i].flags ? n_steps : 0;
			}
	}
	for (int i = 0; i < N; i++)
		check_twin(&p[i], 2);
	skv_close(w.session);
}
END_TEST

/* ---- killed ---------------------------------------------------------------------------------- */

#ifdef __x86_64__ /* valgrind has no trap flag */
#define KILLS (getenv("SKV_VALGRIND") ? 0 : slowed() ? 6 : 24)
#else
#define KILLS 0
#endif

/* The sequence as it is, and as it is about to be: written by the engine, read by the next one. */
static struct shared {
	volatile uint32_t ran, kill_at; /* instructions */
	volatile bool changing;
	struct past is, will;
} *shared;

static void on_trap(int sig)
{
	(void)sig;
	if (++shared->ran == shared->kill_at)
		kill(getpid(), SIGKILL);
}

static void trap(bool on)
{
	signal(SIGTRAP, on_trap);
#ifdef __x86_64__
	if (on)
		__asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::: "cc",
		                 "memory");
	else
		__asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::: "cc",
		                 "memory");
#endif
}

static bool is_as(struct skv_seq *q, const struct past *p)
{
	uint32_t len;
	const int32_t *ids = skv_seq_tokens(q, &len);

	for (uint32_t i = 0; i < len && len == p->len; i++)
		if (ids[i] != refmodel_token(p->content[i]))
			return false;
	return len == p->len && ids[len] == (len ? refmodel_token(p->content[len - 1] + 1) : -1);
}

/* The sequence is as the last engine left it: as before the change or as after, and goes on as its twin. */
static void take_over(const struct policy_row *row)
{
	struct skv_client *c;
	struct skv_seq *q, *fork;
	struct past probe;
	int e = skv_connect(&c, daemon_.socket);

	if (e == 0)
		e = skv_open(c, &w.model, row->spec, &w.session);
	if (e == 0)
		e = skv_seq_attach(w.session, "victim", &q);
	if (e == -ENOENT)
		e = skv_seq_new(w.session, "victim", 0, &q);
	if (e < 0)
		ck_abort_msg("%d %s", e, skv_last_error());
	if (shared->changing && is_as(q, &shared->will))
		shared->is = shared->will;
	shared->changing = false;
	if (!is_as(q, &shared->is))
		ck_abort_msg("after %u instructions the sequence, of %u tokens, is none of a commit: it had %u, and was to have %u",
		    shared->ran, skv_seq_len(q), shared->is.len, shared->will.len);
	shared->is.seq = q;
	if (shared->is.len == 0)
		return;
	e = skv_seq_fork(q, NULL, SKV_ALL, &fork);
	if (e < 0)
		ck_abort_msg("%d %s", e, skv_last_error());
	probe = shared->is;
	probe.seq = fork;
	check_twin(&probe, 1);
	OK(skv_seq_drop(fork));
}

/* Go on for a while; then change the sequence, and die at an instruction of the change or of what follows it. */
static void engine(const struct policy_row *row)
{
	struct past *p = &shared->is;
	uint64_t content[SKV_STEP_ROWS];
	uint32_t n, accepted = 0;
	struct skv_step_item item;

	take_over(row);
	if (p->len < 40)
		read_some(p, 60);
	for (uint32_t i = rnd_below(4); i > 0 && p->len + 2 * SKV_STEP_ROWS < TOKENS; i--)
		speculate(p, SKV_STEP_ROWS);
	shared->will = *p;
	if (rnd_below(2) || p->len + SKV_STEP_ROWS > TOKENS) {
		n = rnd_below(4) ? p->len - rnd_below(20) : rnd_below(p->len);
		shared->will.len = n;
		shared->changing = true;
		trap(true);
		(void)skv_seq_truncate(p->seq, n, n ? refmodel_token(p->content[n - 1] + 1) : -1);
		trap(false);
	} else {
		n = 1 + rnd_below(SKV_STEP_ROWS);
		accepted = rnd_below(n + 1);
		for (uint32_t i = 0; i < n; i++)
			content[i] = rnd64();
		item = SKV_STEP_ITEM(.seq = p->seq, .n_tokens = n);
		for (uint32_t i = 0; i < accepted; i++) {
			shared->will.content[shared->will.len] = content[i];
			shared->will.prompt[shared->will.len++] = 0;
		}
		shared->changing = true;
		refmodel_items_ended(&w, &item, 1, content, n, &accepted, trap);
	}
	kill(getpid(), SIGKILL);
}

/* SIGKILL at any instruction of a truncation, or of a commit of some rows, leaves the state before or after it. */
START_TEST(killed)
{
	const struct policy_row *row = policy_row(SET_REWINDS, _i);

	rnd_begin((uint64_t)_i);
	skv_disconnect(client);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < KILLS; i++) {
		uint32_t before = shared->ran;
		int status;
		pid_t pid;

		shared->kill_at = i % 4 == 0 || before < 10 ? UINT32_MAX : 1 + rnd_below(before);
		shared->ran = 0;
		(void)rnd64();
		pid = child_fork();
		if (pid == 0)
			engine(row);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "an engine found something wrong: %s", child_problem());
		for (int wait = 0; raw_leased(op) > 0; wait++) {
			ck_assert_int_lt(wait, 2000);
			fix_sleep_ms(1);
		}
	}
	OK(skv_connect(&client, daemon_.socket));
}
END_TEST

/*
 * Rows are rejected where an earlier policy has evicted tokens: the remaining tokens may then begin a page of positions
 * when their slots do not.
 */
START_TEST(rejected_after_eviction)
{
	struct past p = {.len = 0};
	uint64_t content[TOKENS];

	for (uint32_t i = 0; i < TOKENS; i++)
		content[i] = refmodel_content(1, i);
	open_spec("full");
	OK(skv_seq_new(w.session, "evicted", 0, &p.seq));
	OK(skv_seq_policy(p.seq, POLICY_OBSERVATION "?budget=30&window=8"));
	go(&p, content, 30 + (uint32_t)_i, 30 + (uint32_t)_i, true, NULL);
	go(&p, content + p.len, 1, 1, false, NULL);
	OK(skv_seq_policy(p.seq, NULL));
	for (uint32_t i = 0; i < 2; i++) {
		do
			go(&p, content + p.len, 1, 1, false, NULL);
		while (p.len % SKV_PAGE_TOKENS);
		go(&p, content + p.len, 6, 1, false, NULL);
		OK(skv_seq_detach(p.seq)); /* the daemon reads its page tables */
		OK(skv_seq_attach(w.session, "evicted", &p.seq));
	}
}
END_TEST

/* A sequence that had lost tokens was not compressed; truncated to nothing it is like a new one. */
START_TEST(begun_again)
{
	struct past p = {.len = 0};
	uint64_t content[TOKENS];

	for (uint32_t i = 0; i < TOKENS; i++)
		content[i] = refmodel_content(1, i);
	open_with(policy_row(SET_REWINDS, n_of_rows() - 1));
	OK(skv_seq_new(w.session, NULL, 0, &p.seq));
	OK(skv_seq_policy(p.seq, POLICY_SCORES "?budget=60"));
	go(&p, content, 100, 100, true, NULL);
	go(&p, content + 100, 1, 1, false, NULL);
	OK(skv_seq_policy(p.seq, NULL));
	go(&p, content + 101, 1, 1, false, NULL);
	OK(skv_seq_truncate(p.seq, 0, -1));
	p.len = 0;
	go(&p, content, 100, 100, true, NULL);
	check_twin(&p, 20);
}
END_TEST

/* The same policy from a file that was loaded again, as after a daemon's death, goes on with its state. */
START_TEST(loaded_again)
{
	struct past p = {.len = 0};
	uint64_t content[TOKENS];

	for (uint32_t i = 0; i < TOKENS; i++)
		content[i] = refmodel_content(1, i);
	open_spec(POLICY_EVICTED_PAGES "?budget=8&dense=1");
	OK(skv_seq_new(w.session, NULL, 0, &p.seq));
	go(&p, content, 20, 20, true, NULL);
	while (p.len < 130 + (uint32_t)_i)
		go(&p, content + p.len, 1, 1, false, NULL);
	ck_assert_int_eq(raw_policy_load(op, fix_built("policies/.libs/" POLICY_EVICTED_PAGES ".so")), 0);
	if (_i % 2)
		ck_assert_int_eq(raw_policy_swap(op, spec), 0);
	else
		OK(skv_seq_policy(p.seq, spec));
	check_twin(&p, 20);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-rewind");
	TCase *t = add_case(s, "rewind", 120, setup, client_end, NULL);
	int first = devmem_is_device();

	tcase_add_loop_test(t, rows_as_steps, first, n_of_rows());
	tcase_add_loop_test(t, rejected_rows, first, policy_rows(SET_REWINDS));
	tcase_add_loop_test(t, shorter, first, policy_rows(SET_REWINDS));
	tcase_add_loop_test(t, cancelled, first, policy_rows(SET_REWINDS));
	tcase_add_test(t, begun_again);
	tcase_add_loop_test(t, loaded_again, 0, 16);
	tcase_add_loop_test(t, rejected_after_eviction, 0, SKV_PAGE_TOKENS);
	if (!devmem_is_device()) /* a child cannot use a device of its parent */
		add_share(add_case(s, "killed", 120, setup, client_end, NULL), killed, 8, 4);
	return run_suite(s);
}
