/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines that are killed with SIGKILL: at random times, and at chosen instructions of skv_step_end().
 *
 * Each engine is a child process that attaches the named sequence that the last one left, checks that it is exactly a
 * committed step, and continues. Its outputs must be those of an undisturbed run, bit for bit. Less than 100 ms after
 * each death the daemon must have all pages back, except those of the sequence.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/output-hash.h"
#include "tests/support/policies.h"
#include "tests/support/reference-codec.h"

#define TIMED_KILLS (rnd_takes_all() ? 140 : slowed() || devmem_is_device() ? 12 : 40)
#ifdef __x86_64__ /* valgrind has no trap flag */
#define STEPPED_KILLS (getenv("SKV_VALGRIND") ? 0 : rnd_takes_all() ? 24 : 5)
#else
#define STEPPED_KILLS 0
#endif
#define RECLAIM_S (slowed() ? 2.0 : devmem_is_device() ? 1.0 : 0.1)

#define SWAP_S 0.004 /* about as long as a step that compresses or decompresses everything */

#define TOKENS 1500u
#define PROMPT 150u
#define CHUNK 50u
#define FORK_AT 400u /* a fork lives from here for a few tokens: the named sequence then has shared pages */
#define SINKS 4u
#define WINDOW 256u
#define KEPT_TOKENS 60u
#define KEPT_PAGES 13u
#define CODED_RAW 16u
#define CODED_BLOCK 16u
#define LOW_BLOCK 32u
#define CODED_SPAN 200u /* in the second half of each span the sequence runs another policy, without compression */
#define READ_SPAN 250u /* with sparse prefill, READ tokens of each span are read as a prompt, and the rest is decoded */
#define READ 200u
/*
 * One policy evicts pages, one has bounds in state pages, others evict single tokens or pages of single heads, one
 * saves queries of its prompts, the last two compress. The codec's path is added to a spec later.
 */
enum { STREAMING, QUEST, H2O, RAAS, ADAKV, READS, DELTAKV, KIVI, POLICIES };
static const char *specs[] = {
	POLICY_WINDOW "?budget=256&sinks=4&dense=1",
	POLICY_BOUNDS "?budget=6&dense=1",
	POLICY_SCORES "?budget=60&dense=1",
	POLICY_EVICTED_PAGES "?budget=13&alpha=0.02&dense=1",
	POLICY_HEAD_BUDGETS "?budget=60&window=16&interval=16&max_head_ratio=1.5&dense=1",
	("full?prefill=minference+delta&prefill_segment=128&prefill_vertical=30&prefill_slash=30&"
	 "prefill_gamma=4&prefill_tail=4"),
	(POLICY_LATENT "?budget=48&recent=8&layers=1,3&dense=1&bits=4&scale_block=32&residual=16&"
	               "block=16&" REFMODEL_CODES),
	POLICY_QUANTIZES "?residual=16&block=32",
};
static char packs[200];

static int policy;
static struct fix daemon_;
static struct raw *op;
static struct refmodel w;
static uint64_t content[TOKENS];

/* Written by the children, read by the test. */
static struct shared {
	volatile uint32_t ran, kill_at; /* instructions */
	_Atomic bool running;
	_Atomic uint64_t steps;
	uint64_t hash[TOKENS]; /* outputs of the step at position i in an undisturbed run */
} *shared;

/* ---- an engine ------------------------------------------------------------------------------- */

/* Returns whether the sequence runs a policy that compresses in the step at this length. */
static bool packs_at(uint32_t len)
{
	return policy >= DELTAKV && len % CODED_SPAN < CODED_SPAN / 2;
}

/* Returns how many tokens of a prompt remain to be read in the step at this length. */
static uint32_t left_to_read(uint32_t len)
{
	if (policy == READS)
		return len % READ_SPAN < READ ? READ - len % READ_SPAN : 0;
	return len < PROMPT ? PROMPT - len : 0;
}

/* Runs the step at `len`: a chunk of the prompt, or one token. Returns the hash of the outputs. */
static uint64_t step(struct skv_seq *q, uint32_t len, void (*before_end)(void))
{
	uint32_t left = left_to_read(len), n = left > 0 ? CHUNK : 1;
	size_t size = (size_t)w.model.n_layers * n * w.model.n_heads * w.model.head_dim;
	float *out = malloc(size * sizeof(*out));
	int e = policy >= DELTAKV ? skv_seq_policy(q, packs_at(len) ? NULL : "full") : 0;
	uint64_t h;

	if (e == 0)
		e = left > 0 ? refmodel_read(&w, q, content + len, n, left - n, out, before_end)
		             : refmodel_run(&w, q, content + len, 1, false, out, before_end);
	if (e < 0)
		ck_abort_msg("step at %u: %d %s", len, e, skv_last_error());
	h = output_hash(OUTPUT_HASH_NONE, out, size);
	free(out);
	return h;
}

/*
 * Quantized: each layer has a record for each block and head, 4 bits per number, and a pair of scale numbers for each
 * channel of K and for every 32 numbers of V.
 */
static uint64_t low_pages(uint32_t len, bool coded)
{
	uint32_t end = coded && len >= CODED_RAW ? (len - CODED_RAW) / LOW_BLOCK * LOW_BLOCK : 0;
	uint32_t a_page = (uint32_t)(skv_page_bytes(&w.model) / (40 * w.model.head_dim));
	uint32_t records = (end / LOW_BLOCK * w.model.n_kv_heads + a_page - 1) / a_page;

	return (uint64_t)(skv_pages_of(len) - end / SKV_PAGE_TOKENS + records) * w.model.n_layers;
}

/* Pages of a sequence of `len` tokens, all in rows, or compressed as they are before the next step. */
static uint64_t packed_pages(uint32_t len, bool coded)
{
	const uint32_t first = SKV_PAGE_TOKENS, stays = first + CODED_RAW;
	uint32_t end = coded && len >= stays + CODED_BLOCK ? first + (len - stays) / CODED_BLOCK * CODED_BLOCK : 0;
	uint32_t a_page = (uint32_t)(skv_page_bytes(&w.model) / 32), refs = end ? first : 0, codes = 0, records; /* of a code */

	if (policy == KIVI)
		return low_pages(len, coded);
	for (uint32_t t = first; t < end; t++)
		*((t - first) % REFMODEL_STRIDE == 0 ? &refs : &codes) += 1;
	records = (codes + a_page - 1) / a_page + skv_pages_of(refs);
	return (uint64_t)skv_pages_of(len) * w.model.n_layers +
	       (w.model.n_layers - 3) * ((uint64_t)records - (end ? (end - first) / SKV_PAGE_TOKENS : 0));
}

/* Pages that are resident after the commit that made the sequence `len` tokens long. */
static uint64_t resident_at(uint32_t len)
{
	uint32_t start = len + 1 - (WINDOW - SINKS), gone = 0, pages = skv_pages_of(len);

	/* the first decode step attends to the whole prompt */
	if (policy == H2O && len > PROMPT + 1)
		gone = pages - skv_pages_of(KEPT_TOKENS);
	if (policy == ADAKV && len > PROMPT + 1) /* tokens kept by the last eviction, and those since then */
		gone = pages - skv_pages_of((w.model.n_kv_heads > 1 ? 90 : 60) + (len - PROMPT - 2) % 16 + 1);
	if (policy == RAAS && pages > KEPT_PAGES)
		gone = pages - KEPT_PAGES;
	if (policy == STREAMING && len > PROMPT && len + 1 > WINDOW && start / SKV_PAGE_TOKENS > 1)
		gone = start / SKV_PAGE_TOKENS - 1;
	return (uint64_t)pages * w.model.n_layers - (uint64_t)gone * (w.model.n_layers - 1);
}

/* Returns whether the step at this length frees pages. */
static bool evicts_at(uint32_t len)
{
	if (policy >= DELTAKV)
		return packs_at(len) && (len + 1 - CODED_RAW) % (policy == KIVI ? LOW_BLOCK : CODED_BLOCK) == 0;
	if (policy == READS) /* saved queries are freed at the end of the prompt */
		return left_to_read(len) == CHUNK;
	return (len + 2 - (WINDOW - SINKS)) % SKV_PAGE_TOKENS == 0;
}

/*
 * Returns whether a sequence of this length can have this number of pages; a maintenance transaction may or may not
 * have run.
 */
static bool pages_fit(uint64_t resident, uint32_t len)
{
	uint64_t was, is;

	if (policy < DELTAKV)
		return resident == resident_at(len);
	was = packed_pages(len, len > PROMPT && packs_at(len - 1));
	is = packed_pages(len, len >= PROMPT && packs_at(len));
	return resident == was || resident == is;
}

/* Checks that the sequence is as a commit left it. */
static void check_committed(struct skv_seq *q)
{
	uint32_t len;
	const int32_t *ids = skv_seq_tokens(q, &len);
	uint64_t resident, total;

	if (len > TOKENS || (len < PROMPT && len % CHUNK != 0))
		ck_abort_msg("length %u is of no step", len);
	for (uint32_t i = 0; i < len; i++)
		if (ids[i] != refmodel_token(content[i]))
			ck_abort_msg("token %u of %u is %d, expected %d", i, len, ids[i], refmodel_token(content[i]));
	if (ids[len] != (len ? refmodel_token(content[len - 1] + 1) : -1))
		ck_abort_msg("next after %u is %d", len, ids[len]);
	skv_seq_pages(q, &resident, &total);
	if (!pages_fit(resident, len))
		ck_abort_msg("%llu pages at length %u, expected %llu", (unsigned long long)resident, len,
		    (unsigned long long)resident_at(len));
}

/* A policy without bounds runs the sequence for a while: the next step has to recompute them. */
static void lose_bounds(struct skv_client *c)
{
	struct skv_session *s;
	struct skv_seq *q;
	int e = skv_open(c, &w.model, "full", &s);

	if (e == 0 && skv_seq_attach(s, "victim", &q) == 0)
		e = skv_seq_detach(q);
	if (e < 0)
		ck_abort_msg("in between: %d %s", e, skv_last_error());
	skv_close(s);
}

static struct skv_seq *take_over(void)
{
	struct skv_seq *q;
	struct skv_client *c;
	int e = skv_connect(&c, daemon_.socket);

	if (e == 0 && policy == QUEST && rnd_below(3) == 0)
		lose_bounds(c);
	if (e == 0)
		e = skv_open(c, &w.model, specs[policy], &w.session);
	if (e < 0)
		ck_abort_msg("open: %d %s", e, skv_last_error());
	e = skv_seq_attach(w.session, "victim", &q);
	if (e == -ENOENT)
		e = skv_seq_new(w.session, "victim", 0, &q);
	if (e < 0)
		ck_abort_msg("attach: %d %s", e, skv_last_error());
	check_committed(q);
	return q;
}

/* A fork diverges from the named sequence until it has copied more than a page. */
static void side_branch(struct skv_seq *q)
{
	struct skv_seq *branch;
	uint32_t len = skv_seq_len(q);
	int e = skv_seq_fork(q, NULL, SKV_ALL, &branch);

	for (uint32_t i = 0; i < 20 && e == 0; i++) {
		uint64_t other = refmodel_content(99, len + i);

		e = refmodel_run(&w, branch, &other, 1, false, NULL, NULL);
	}
	if (e == 0)
		e = skv_seq_drop(branch);
	if (e < 0)
		ck_abort_msg("fork: %d %s", e, skv_last_error());
}

/* Generates in a loop until it is killed; with `once`, until the text is complete. */
static void engine(bool once)
{
	struct skv_seq *q = take_over();

	for (;;) {
		uint32_t len = skv_seq_len(q);

		if (len == FORK_AT)
			side_branch(q);
		if (len == TOKENS) {
			if (once)
				_exit(0);
			if (skv_seq_drop(q) < 0 || skv_seq_new(w.session, "victim", 0, &q) < 0)
				ck_abort_msg("again: %s", skv_last_error());
			continue;
		}
		if (step(q, len, NULL) != shared->hash[len])
			ck_abort_msg("outputs at %u differ from the undisturbed run's", len);
		atomic_fetch_add(&shared->steps, 1);
		atomic_store(&shared->running, true);
	}
}

static void halt(void)
{
	raise(SIGSTOP);
}

/*
 * Lets an engine kill itself after a number of instructions: with the trap flag set the processor raises SIGTRAP after
 * each. (A tracer that single-steps it would take twice the time.)
 */
static void on_trap(int sig)
{
	(void)sig;
	if (++shared->ran == shared->kill_at)
		kill(getpid(), SIGKILL);
}

static void trap_on(void)
{
	signal(SIGTRAP, on_trap);
#ifdef __x86_64__
	__asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::: "cc",
	                 "memory");
#endif
}

static void trap_off(void)
{
#ifdef __x86_64__
	__asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::: "cc", "memory");
#endif
}

/* Generates up to a step that evicts, or to any step; then counts the instructions of its skv_step_end(). */
static void counting_engine(bool evicting)
{
	struct skv_seq *q;
	uint32_t len, target;

	q = take_over();
	len = skv_seq_len(q);
	if (len > TOKENS - READ_SPAN) { /* pages are freed at least once per READ_SPAN tokens */
		if (skv_seq_drop(q) < 0 || skv_seq_new(w.session, "victim", 0, &q) < 0)
			ck_abort_msg("again: %s", skv_last_error());
		len = 0;
	}
	for (target = len; len < WINDOW + 40 || len < target + rnd_below(3) ||
			   (evicting && !evicts_at(len));
	     len = skv_seq_len(q))
		if (step(q, len, NULL) != shared->hash[len])
			ck_abort_msg("outputs at %u differ from the undisturbed run's", len);
	step(q, len, trap_on);
	trap_off();
	halt();
	ck_abort_msg("lived on");
}

/* Generates up to the step that starts, or ends, compression, and stops before that step. */
static void switching_engine(bool packing)
{
	struct skv_seq *q = take_over();
	uint32_t len;

	for (len = skv_seq_len(q); len < PROMPT || len == TOKENS || len % (CODED_SPAN / 2) != 0 ||
	     packs_at(len) != packing;
	     len = skv_seq_len(q)) {
		if (len == TOKENS && (skv_seq_drop(q) < 0 || skv_seq_new(w.session, "victim", 0, &q) < 0))
			ck_abort_msg("again: %s", skv_last_error());
		len = skv_seq_len(q);
		if (step(q, len, NULL) != shared->hash[len])
			ck_abort_msg("outputs at %u differ from the undisturbed run's", len);
	}
	halt();
	if (step(q, len, NULL) != shared->hash[len])
		ck_abort_msg("outputs at %u, after a swap, differ from the undisturbed run's", len);
	atomic_store(&shared->running, true);
	halt();
}

/* ---- the test -------------------------------------------------------------------------------- */

static pid_t start(void (*body)(bool), bool arg)
{
	pid_t pid;

	atomic_store(&shared->running, false);
	pid = child_fork();
	if (pid == 0)
		body(arg);
	return pid;
}

/* Kills the process; the core must be right soon after the process is gone. Returns the seconds that took. */
static double end(pid_t pid)
{
	double begin, took;
	int status;

	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	begin = fix_now();
	ck_assert_msg(WIFSIGNALED(status), "an engine found something wrong: %s", child_problem());
	do {
		took = fix_now() - begin;
		ck_assert_msg(took < RECLAIM_S, "pages are not back after %.0f ms", took * 1000);
	} while (raw_leased(op) > 0);
	return took;
}

static void setup(void)
{
	char codec[80];

	fix_start_process(&daemon_, NULL);
	op = raw_operator(daemon_.socket);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	refmodel_model(&w.model, "kill", rnd_below(3), TOKENS);
	refmodel_packable(&w.model);
	snprintf(codec, sizeof(codec), "%.60s/codec", daemon_.dir);
	refmodel_codec(&w.model, 1, codec);
	snprintf(packs, sizeof(packs), "%s&file=%s", specs[DELTAKV], codec);
	specs[DELTAKV] = packs;
	for (uint32_t i = 0; i < TOKENS; i++)
		content[i] = refmodel_content(7, i);
}

static void undisturbed(void *unused)
{
	struct skv_client *c;
	struct skv_seq *q;

	(void)unused;
	OK(skv_connect(&c, daemon_.socket));
	OK(skv_open(c, &w.model, specs[policy], &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &q));
	for (uint32_t len = 0; len < TOKENS; len = skv_seq_len(q)) {
		shared->hash[len] = step(q, len, NULL);
		check_committed(q);
	}
	skv_disconnect(c);
}

static void finish(void)
{
	child_wait(start(engine, true));
	raw_close(op);
	fix_stop(&daemon_); /* checks that the state balances */
}

START_TEST(any_time)
{
	double worst = 0;

	rnd_begin((uint64_t)_i);
	policy = _i;
	fix_in_child(0, undisturbed, NULL);
	for (int i = 0; i < TIMED_KILLS; i++) {
		pid_t pid = start(engine, false);
		double took;

		/* some die while they connect and attach */
		while (i % 8 && !atomic_load(&shared->running) && waitpid(pid, NULL, WNOHANG) == 0)
			usleep(200);
		usleep(rnd_below(15000));
		took = end(pid);
		if (took > worst)
			worst = took;
	}
	printf("%s, killed at any time: %d engines, %llu steps, pages back after %.1f ms at most\n", specs[policy],
	       TIMED_KILLS, (unsigned long long)atomic_load(&shared->steps), worst * 1000);
	finish();
}
END_TEST

static const int stepped[] = {STREAMING, H2O, RAAS, ADAKV, READS, DELTAKV, KIVI};

START_TEST(any_instruction)
{
	/* instructions of skv_step_end(), counted by the first engine that completes it */
	uint32_t length[2] = {300000, 300000};
	int inside = 0;

	rnd_begin((uint64_t)_i);
	policy = stepped[_i];
	if (STEPPED_KILLS == 0) {
		raw_close(op);
		fix_stop(&daemon_);
		return;
	}
	fix_in_child(0, undisturbed, NULL);
	for (int i = 0; i < STEPPED_KILLS; i++) {
		bool evicting = i % 4 != 0;
		uint32_t n = i < 2 ? length[evicting] : rnd_below(length[evicting]) + 1, ran;
		siginfo_t how;
		pid_t pid;

		shared->ran = 0;
		shared->kill_at = n;
		pid = start(counting_engine, evicting);
		ck_assert_int_eq(waitid(P_PID, (id_t)pid, &how, WEXITED | WSTOPPED | WNOWAIT), 0);
		ck_assert_msg(how.si_code == CLD_STOPPED || (how.si_code == CLD_KILLED && how.si_status == SIGKILL), "%s",
		              child_problem());
		ran = shared->ran;
		inside += ran == n;
		if (ran < length[evicting] && ran < n)
			length[evicting] = ran;
		end(pid);
	}
	printf("%s, killed at any instruction of skv_step_end: %d engines, %d inside of its %u to %u instructions\n",
	       specs[policy], STEPPED_KILLS, inside, length[0], length[1]);
	finish();
}
END_TEST

/*
 * A maintenance transaction is complete or has not happened: before and after it the outputs are those of the
 * undisturbed run.
 */
START_TEST(any_swap)
{
	int before = 0;

	policy = DELTAKV;
	fix_in_child(0, undisturbed, NULL);
	for (int i = 0; i < TIMED_KILLS / 2; i++) {
		pid_t pid = start(switching_engine, i % 2);
		double until;
		int status;

		ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
		ck_assert_msg(WIFSTOPPED(status), "%s", child_problem());
		until = fix_now() + rnd_unit() * SWAP_S;
		kill(pid, SIGCONT);
		while (fix_now() < until)
			;
		before += !atomic_load(&shared->running);
		end(pid);
	}
	printf("%s, killed in swaps: %d engines, %d before the step's end\n", specs[policy], TIMED_KILLS / 2, before);
	finish();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-kill");
	TCase *t = add_case(s, "kill", 200, setup, NULL, any_swap, NULL);

	add_share(t, any_time, POLICIES, 2);
	if (!devmem_is_device()) /* there the device commits */
		add_share(t, any_instruction, 7, 7);
	return run_suite(s);
}
