/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/compare.c - repeats an ended sequence on an undisturbed daemon and session: everything that happened to
 * it, in that order, and nothing of what happened around it. Outputs must be the same bit by bit, and so must lengths,
 * numbers of pages, and refusals.
 *
 * Tokens that a sequence was given from a sealed prefix are read here as a prompt.
 *
 * A policy that a sequence ran without a step is in its record, too, because the next policy may find the sequence in
 * another order after it.
 *
 * If an engine died while a step began, the step may have changed the form of the sequence, under the old policy or the
 * one that its session was about to run. Then one of these must fit, unless the sequence was to take another policy's
 * form, which takes several transactions. A life with many such deaths is compared only up to the first ones.
 */
#include "tests/soak/soak.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/manager.h"
#include "tests/support/reference-codec.h"

#define MAX_UNSURE 3u
#define CHOICES 3u /* it did not begin; it did, under the one policy or the other */

static struct fix daemon_;
static struct skv_client *client;
static struct skv_session *session;
static pid_t process;

/* ---- repeating a life --------------------------------------------------------------------------- */

struct again {
	const struct life *life;
	struct skv_seq *seq;
	uint32_t forks; /* determines its name */
	uint32_t spec;  /* that it runs now */
	uint32_t len;
	char why[400]; /* how it differs */
};

static const char *name_again(uint32_t forks)
{
	return forks % 2 ? "fork" : "again";
}

static void runs(struct again *a, uint32_t spec)
{
	if (a->spec != spec)
		OK(skv_seq_policy(a->seq, soak->spec[spec]));
	a->spec = spec;
}

static bool differs(struct again *a, uint32_t event, const char *what, long long is, long long was)
{
	const struct event *v = &a->life->event[event];

	snprintf(a->why, sizeof(a->why),
	         "event %u of %u (kind %u, %u rows from %u on, under %.40s): %s %lld, was %lld (%s)", event, a->life->n,
	         v->what, v->rows, v->before, soak->spec[v->spec], what, is, was, skv_last_error());
	return false;
}

static bool step_again(struct again *a, uint32_t i)
{
	const struct event *v = &a->life->event[i];
	uint64_t hash, resident, total;

	OK(soak_step_again(session, a->seq, v, a->len, true, &hash));
	a->len += v->accepted;
	skv_seq_pages(a->seq, &resident, &total);
	if (!v->given && hash != v->hash)
		return differs(a, i, "outputs", (long long)hash, (long long)v->hash);
	if (v->pages && resident != v->pages)
		return differs(a, i, "pages", (long long)resident, v->pages);
	return true;
}

static bool cut_again(struct again *a, uint32_t i)
{
	const struct event *v = &a->life->event[i];
	const int wanted = v->stage == SOAK_REFUSED ? -ESTALE : 0;
	struct skv_seq *fork;
	int e;

	if (v->what == SOAK_TRUNCATE) {
		e = skv_seq_truncate(a->seq, v->after, v->next);
	} else {
		e = skv_seq_fork(a->seq, name_again(a->forks + 1), v->after == v->before ? SKV_ALL : v->after, &fork);
		if (e == 0) {
			OK(skv_seq_drop(a->seq));
			a->seq = fork;
			a->forks++;
			a->spec = spec_of(fork);
		}
	}
	if (e == 0)
		a->len = v->after;
	return e == wanted || differs(a, i, v->what == SOAK_FORK ? "fork" : "truncation", e, wanted);
}

static bool event_again(struct again *a, uint32_t i, uint32_t choice)
{
	const struct event *v = &a->life->event[i];
	uint64_t unused;

	if (v->stage == SOAK_UNSURE && choice == 0)
		return true;
	runs(a, v->stage == SOAK_UNSURE && choice == 2 ? v->next_spec : v->spec);
	if (v->what == SOAK_POLICY)
		return true;
	if (v->what == SOAK_TRUNCATE || v->what == SOAK_FORK)
		return cut_again(a, i);
	if (v->stage == SOAK_DONE)
		return step_again(a, i);
	return soak_step_again(session, a->seq, v, a->len, false, &unused) == 0 || v->stage == SOAK_UNSURE;
}

/* Repeats the first `n` events, with a choice for each that is UNSURE. */
static bool all_again(struct again *a, uint32_t n, uint32_t choices)
{
	bool same = true;

	a->spec = a->len = a->forks = 0;
	OK(skv_seq_new(session, name_again(0), 0, &a->seq));
	for (uint32_t i = 0; i < n && same; i++) {
		const bool unsure = a->life->event[i].stage == SOAK_UNSURE;

		same = event_again(a, i, choices % CHOICES);
		choices /= unsure ? CHOICES : 1;
	}
	OK(skv_seq_detach(a->seq)); /* makes the daemon read its page tables */
	OK(skv_seq_attach(session, name_again(a->forks), &a->seq));
	OK(skv_seq_drop(a->seq));
	return same;
}

/*
 * Writes the life to a file. With SOAK_LIFE set to the file, and the same SKV_SEED, the program repeats only this life.
 */
static void write_life(const struct life *l)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/life", manager_folder());
	f = fopen(path, "we");
	ck_assert(f && fwrite(l, sizeof(*l), 1, f) == 1 && fclose(f) == 0);
}

static void read_life(const char *path, struct life *l)
{
	FILE *f = fopen(path, "re");

	ck_assert_msg(f && fread(l, sizeof(*l), 1, f) == 1, "%s cannot be read", path);
	fclose(f);
	l->state = SOAK_OVER;
}

/*
 * Did an engine die while a step began that was to bring the sequence into another policy's form? That takes several
 * transactions, and it is unknown how many were committed.
 */
static bool form_unknown(const struct life *l, uint32_t n)
{
	uint32_t spec = l->event[0].spec;

	for (uint32_t i = 0; i < n; i++) {
		const struct event *v = &l->event[i];

		if (v->stage == SOAK_UNSURE && (v->spec != spec || v->next_spec != spec))
			return true;
		if (v->what <= SOAK_DECODE)
			spec = v->spec;
	}
	return false;
}

static void compare(const struct life *l)
{
	struct again a = {.life = l};
	uint32_t n, unsure = 0, choices = 1;
	bool same = false;

	for (n = 0; n < l->n && unsure <= MAX_UNSURE; n++)
		unsure += l->event[n].stage == SOAK_UNSURE;
	if (unsure > MAX_UNSURE) {
		n--;
		unsure--;
		ADD(PARTS, 1);
	}
	for (uint32_t i = 0; i < unsure; i++)
		choices *= CHOICES;
	for (uint32_t c = 0; c < choices && !same; c++)
		same = all_again(&a, n, c);
	if (!same && form_unknown(l, n)) {
		ADD(PARTS, 1);
		return;
	}
	if (!same)
		write_life(l);
	ck_assert_msg(same, "%s", a.why);
	ADD(SAME_LIVES, 1);
	ADD(SAME_BEGUN, l->event[0].given);
	for (uint32_t i = 0; i < n; i++)
		ADD(SAME_STEPS, l->event[i].stage == SOAK_DONE && !l->event[i].given && l->event[i].what <= SOAK_DECODE);
}

static void say_failed(void)
{
	soak->failed = -1;
}

static _Noreturn void comparer(void)
{
	child_before_failure = say_failed;
	OK(skv_connect(&client, daemon_.socket));
	OK(skv_set_threads(client, 1));
	OK(skv_open(client, &soak_model, soak->spec[0], &session));
	for (uint32_t i = 0, idle = 0; idle < SOAK_LIVES || !soak->all_done; i = (i + 1) % SOAK_LIVES) {
		struct life *l = &soak->life[i];
		uint32_t was = SOAK_OVER;

		if (!atomic_compare_exchange_strong(&l->state, &was, SOAK_COMPARED)) {
			if (++idle % SOAK_LIVES == 0 && !soak->all_done)
				usleep(5000);
			continue;
		}
		compare(l);
		l->state = SOAK_FREE;
		idle = 0;
	}
	skv_close(session);
	skv_disconnect(client);
	_exit(0);
}

/* ---- interface ---------------------------------------------------------------------------------- */

/* Learns the full text of the specs, and which policies decode only one row in a step. */
static _Noreturn void learn(const char *const *specs, uint32_t n)
{
	child_before_failure = say_failed;
	OK(skv_connect(&client, daemon_.socket));
	for (uint32_t i = 0; i < n; i++) {
		const struct event prompt = {.what = SOAK_PROMPT, .rows = 20, .accepted = 20, .key = 1};
		const struct event rows = {.what = SOAK_DECODE, .rows = 2, .accepted = 2, .key = 1};
		struct skv_seq *q;
		uint64_t hash;
		int e;

		OK(skv_open(client, &soak_model, specs[i], &session));
		ck_assert_uint_lt(strlen(skv_policy_spec(session)), sizeof(soak->spec[i]));
		strcpy(soak->spec[i], skv_policy_spec(session));
		OK(skv_seq_new(session, NULL, 0, &q));
		OK(soak_step_again(session, q, &prompt, 0, true, &hash));
		e = soak_step_again(session, q, &rows, 20, true, &hash);
		ck_assert_msg(e == 0 || e == -ENOTSUP, "%s: %d %s", specs[i], e, skv_last_error());
		soak->one_row[i] = e < 0;
		skv_close(session);
	}
	skv_disconnect(client);
	_exit(0);
}

void compare_begin(const char *const *specs, uint32_t n)
{
	static const char *const options[] = {"--pool-bytes=256M", "--account-bytes=256M", NULL};
	pid_t pid;

	fix_start_process(&daemon_, options);
	pid = child_fork();
	if (pid == 0)
		learn(specs, n);
	child_wait(pid);
	soak->n_specs = n;
}

void compare_file(const char *path)
{
	read_life(path, &soak->life[0]);
	soak->all_done = true;
	compare_start();
	compare_end();
}

void compare_start(void)
{
	process = child_fork();
	if (process == 0)
		comparer();
}

void compare_check(void)
{
	int status;

	ck_assert_msg(waitpid(process, &status, WNOHANG) == 0, "the comparer ended: %s", child_problem());
}

void compare_end(void)
{
	soak->all_done = true;
	child_wait(process);
	fix_stop(&daemon_);
}
