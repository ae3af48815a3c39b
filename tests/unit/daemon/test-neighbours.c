/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users whose requests are well-formed and cost as much as they may, all at once, beside one who asks for little: each
 * kind of work below was once a way to stop the daemon, or to take memory that no quota counted.
 *
 * Each is a user of its own, so it runs as root alone. HOSTILE_SECONDS=600 (make check-hostile): so long, with two users
 * of each kind, and what the other one waits and how many turns are long are asserted as on a machine with nothing else
 * to do. In any case no user is above its quota, and the daemon itself has little memory.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/privilege.h"
#include "tests/support/raw-engine.h"
#include "tests/support/suite.h"

#define FIRST_UID 54400u
#define QUOTA (256ull << 20)
#define DAEMON_MIB 128u
#define CONNECTIONS 4u

static unsigned seconds_asked(void)
{
	const char *asked = getenv("HOSTILE_SECONDS");

	return asked ? (unsigned)atoi(asked) : 0;
}

static struct fix fix;
static char *folder; /* of parked sequences */

static void before_exec(void)
{
	if (has_capability(CAP_SYS_NICE)) /* as its unit runs it */
		(void)setpriority(PRIO_PROCESS, 0, -10);
}

static void setup(void)
{
	static char parked[96], quota[48];
	static const char *const options[] = {"--pool-bytes=8G", quota, "--segment-bytes=4M", "--account-sequences=1024", "--account-clients=64",
	                                      "--max-clients=2048", "--disk-timeout=2", "--log-level=error", parked, NULL};

	folder = fx_folder();
	snprintf(parked, sizeof(parked), "--parked-path=%s", folder);
	snprintf(quota, sizeof(quota), "--account-bytes=%llu", QUOTA);
	fix_before_exec = before_exec;
	fix_start_process(&fix, options);
}

static void teardown(void)
{
	char command[200];

	fix_stop(&fix);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ck_assert_int_eq(system(command), 0);
	free(folder);
}

/* ---- what they ask for ------------------------------------------------------------------------ */

/* Whatever it is answered, refusals too. False: the daemon hung up. */
static bool ask(struct raw *r, uint16_t type, const void *body, size_t bytes)
{
	raw_send(r, type, body, bytes, -1);
	return raw_recv_answer(r, 60000) > 0;
}

static bool ask_named(struct raw *r, uint16_t type, const char *name)
{
	struct skv_msg_seq_of m = {.uid = getuid()};

	skv_wire_string(m.model, sizeof(m.model), "engine");
	skv_wire_string(m.name, sizeof(m.name), name);
	return ask(r, type, &m, sizeof(m));
}

static uint32_t attach(struct raw_engine *e, const char *name)
{
	struct skv_msg_seq_name m = {.session = e->session.session};

	skv_wire_string(m.name, sizeof(m.name), name);
	if (!ask(e->raw, SKV_MSG_SEQ_ATTACH, &m, sizeof(m)))
		_exit(3);
	return ((const struct skv_msg_seq_ok *)(e->raw->packet + sizeof(struct skv_msg_header)))->seq;
}

/* The longest prefix of a prompt of a million ids that were never written, on several connections. */
static void prompts_of_holes(void)
{
	static struct raw_engine e[CONNECTIONS];
	struct skv_msg_seq_name m = {.n_tokens = RAW_ENGINE_TOKENS, .max_tokens = RAW_ENGINE_TOKENS};
	const struct skv_msg_seq_name new = {.max_tokens = RAW_ENGINE_TOKENS};
	uint32_t seq[CONNECTIONS];

	for (unsigned i = 0; i < CONNECTIONS; i++) {
		struct skv_msg_seq_name ask_new = new;

		raw_engine_open(&e[i], fix.socket, 1);
		ask_new.session = e[i].session.session;
		seq[i] = ((const struct skv_msg_seq_ok *)raw_ask(e[i].raw, SKV_MSG_SEQ_NEW, &ask_new, sizeof(ask_new), -1))->seq;
	}
	for (;;) {
		for (unsigned i = 0; i < CONNECTIONS; i++) {
			m.session = e[i].session.session;
			m.seq = seq[i];
			raw_send(e[i].raw, SKV_MSG_PREFIX_NEW, &m, sizeof(m), -1);
		}
		for (unsigned i = 0; i < CONNECTIONS; i++)
			if (raw_recv_answer(e[i].raw, 60000) <= 0)
				_exit(3);
	}
}

/* Processes with many sequences, that are killed. */
static void die_again_and_again(void)
{
	for (;;) {
		pid_t pid = child_fork();
		struct raw_engine e;
		char name[16];

		if (pid == 0) {
			raw_engine_open(&e, fix.socket, 8);
			for (unsigned i = 0; i < 48; i++) {
				snprintf(name, sizeof(name), "s%d-%u", getpid(), i);
				raw_engine_seq(&e, i % 2 ? name : "", 8192);
			}
			raise(SIGKILL);
		}
		waitpid(pid, NULL, 0);
	}
}

/* Hundreds of sequences detached at once, parked, asked for, and dropped. */
static void park_and_resume(void)
{
	static struct raw_engine e;
	struct skv_msg_seq m = {0};
	char name[16];

	raw_engine_open(&e, fix.socket, 1);
	m.session = e.session.session;
	for (unsigned i = 0; i < 200; i++) {
		snprintf(name, sizeof(name), "p%u", i);
		m.seq = raw_engine_seq(&e, name, 1024);
		ask(e.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m));
	}
	for (unsigned i = 0;; i = (i + 1) % 200) {
		snprintf(name, sizeof(name), "p%u", i);
		if (!ask_named(e.raw, SKV_MSG_SEQ_PARK, name) || !ask_named(e.raw, SKV_MSG_SEQ_RESUME, name))
			_exit(3);
		m.seq = attach(&e, name);
		ask(e.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m));
	}
}

/* A file that is read a page at a time. */
static void export_slowly(void)
{
	static struct raw_engine e;
	struct skv_msg_seq m = {0};
	char page[4096];

	raw_engine_open(&e, fix.socket, 1);
	m.session = e.session.session;
	m.seq = raw_engine_seq(&e, "large", 1u << 18);
	ask(e.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m));
	ask_named(e.raw, SKV_MSG_SEQ_PARK, "large");
	for (;;) {
		if (!ask_named(e.raw, SKV_MSG_SEQ_EXPORT, "large"))
			_exit(3);
		for (unsigned i = 0; e.raw->n_fds && i < 4 && read(e.raw->fds[0], page, sizeof(page)) > 0; i++)
			fix_sleep_ms(500);
	}
}

/* A sequence of many pages is forked, and all of it dropped again; or it goes away and comes back. */
static void fork_and_attach(void)
{
	static struct raw_engine e;
	struct skv_msg_seq m = {0};

	raw_engine_open(&e, fix.socket, 4);
	m.session = e.session.session;
	m.seq = raw_engine_seq(&e, "large", 1u << 18);
	for (;;) {
		const struct skv_msg_seq_name fork = {.session = m.session, .seq = m.seq, .n_tokens = SKV_ALL};
		struct skv_msg_seq child = {.session = m.session};

		if (!ask(e.raw, SKV_MSG_SEQ_FORK, &fork, sizeof(fork)))
			_exit(3);
		child.seq = ((const struct skv_msg_seq_ok *)(e.raw->packet + sizeof(struct skv_msg_header)))->seq;
		ask(e.raw, SKV_MSG_SEQ_DROP, &child, sizeof(child));
		ask(e.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m));
		m.seq = attach(&e, "large");
	}
}

/* Prefixes of many blocks, each time other ones: the quota drops those before. */
static void seal_without_end(void)
{
	static struct raw_engine e;
	struct skv_msg_seq_name new = {0};
	uint32_t seq;

	raw_engine_open(&e, fix.socket, 1);
	for (;;) {
		struct skv_msg_seal seal = {.session = e.session.session, .n_tokens = 1u << 17};
		struct skv_msg_seq m = {.session = e.session.session};

		seal.seq = m.seq = seq = raw_engine_seq(&e, "", 1u << 17);
		if (!ask(e.raw, SKV_MSG_PREFIX_SEAL, &seal, sizeof(seal)))
			_exit(3);
		new = (struct skv_msg_seq_name){.session = m.session, .seq = seq, .n_tokens = 1u << 17, .max_tokens = 1u << 17};
		ask(e.raw, SKV_MSG_PREFIX_NEW, &new, sizeof(new));
		ask(e.raw, SKV_MSG_SEQ_DROP, &m, sizeof(m));
		raw_close(e.raw); /* its sequences, too */
		raw_engine_open(&e, fix.socket, 1);
	}
}

/* Lists of all that it has, on several connections. */
static void list_without_end(void)
{
	const struct skv_msg_query query = {.what = SKV_QUERY_SEQS};
	static struct raw_engine e;
	struct raw *lists[CONNECTIONS];

	raw_engine_open(&e, fix.socket, 1);
	for (unsigned i = 0; i < 500; i++)
		raw_engine_seq(&e, "", 1024);
	for (unsigned i = 0; i < CONNECTIONS; i++) {
		lists[i] = raw_hello(fix.socket);
		raw_send(lists[i], SKV_MSG_QUERY, &query, sizeof(query), -1);
	}
	for (unsigned i = 0;; i = (i + 1) % CONNECTIONS) {
		const struct skv_msg_text *m = (const void *)(lists[i]->packet + sizeof(struct skv_msg_header));
		int got = raw_recv_answer(lists[i], 60000);

		if (got <= 0)
			_exit(3);
		if (got != (SKV_MSG_QUERY | SKV_REPLY) || !m->more)
			raw_send(lists[i], SKV_MSG_QUERY, &query, sizeof(query), -1);
	}
}

/* Sessions opened and closed, and leases of all that the quota lets it have. */
static void open_and_lease(void)
{
	for (;;) {
		struct skv_wire_model model = raw_engine_model(1);
		struct raw *r = raw_hello(fix.socket);
		struct skv_msg_lease_get get = {.least = 1, .most = SKV_CALL_PAGES};
		uint32_t client;

		for (unsigned i = 0; i < 16; i++)
			get.session = raw_open_model(r, &model, "full", NULL);
		for (unsigned i = 0; i < 64; i++)
			if (!ask(r, SKV_MSG_LEASE_GET, &get, sizeof(get)))
				_exit(3);
		client = r->client;
		raw_hang_up(r);
		raw_client_end(fix.socket, client);
	}
}

static void (*const kinds[])(void) = {prompts_of_holes, die_again_and_again, park_and_resume,  export_slowly,
                                      fork_and_attach,  seal_without_end,    list_without_end, open_and_lease};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* One that is refused for its quota ends with a failed assertion of raw-engine.c, and another one goes on. */
static pid_t start(unsigned number)
{
	pid_t pid = child_fork();

	if (pid)
		return pid;
	if (setgid(FIRST_UID + number) < 0 || setuid(FIRST_UID + number) < 0)
		_exit(2);
	for (;;) {
		pid = child_fork();
		if (pid == 0) {
			kinds[number % N_KINDS]();
			_exit(3);
		}
		waitpid(pid, NULL, 0);
		fix_sleep_ms(20);
	}
}

/* ---- the other one ----------------------------------------------------------------------------- */

static struct {
	double *ms; /* of each question */
	unsigned n;
} times;

static void live_once(struct raw *r, uint32_t session)
{
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run runs[16];
	} put = {.m = {.session = session}};
	const struct skv_msg_lease_get get = {.session = session, .least = 16, .most = 16};
	const double since = fix_now();
	const struct skv_msg_runs *ok = raw_ask(r, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);

	put.m.n_runs = ok->n_runs;
	memcpy(put.runs, ok + 1, ok->n_runs * sizeof(*put.runs));
	raw_ask(r, SKV_MSG_LEASE_PUT, &put, sizeof(put.m) + put.m.n_runs * sizeof(*put.runs), -1);
	if (times.n % 4096 == 0)
		times.ms = realloc(times.ms, (times.n + 4096) * sizeof(*times.ms));
	ck_assert_ptr_nonnull(times.ms);
	times.ms[times.n++] = (fix_now() - since) * 1e3 / 2;
}

static int ascending(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

static double p99(void)
{
	double x;

	qsort(times.ms, times.n, sizeof(*times.ms), ascending);
	x = times.ms[times.n - 1 - times.n / 100];
	printf("%u questions of another client took %.2f ms at the median, %.2f at p99, %.1f at most\n", times.n, times.ms[times.n / 2], x,
	       times.ms[times.n - 1]);
	return x;
}

/*
 * The machine's own part in long turns. A virtual machine's processor is taken away at times, and the guest counts that
 * as time of the process. So a process of its own does pieces of the same work, some 0.2 ms each, for a tenth of the
 * time: how many of them took 2 ms or more says how many turns of the daemon are long for no reason of its own.
 */
static struct control {
	_Atomic unsigned n_long;
	_Atomic double cpu_s;
} *control;

static double cpu_s(clockid_t clock)
{
	struct timespec t;

	ck_assert_int_eq(clock_gettime(clock, &t), 0);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void work_as_control(void)
{
	for (volatile double x = 1;; fix_sleep_ms(2)) {
		const double before = cpu_s(CLOCK_THREAD_CPUTIME_ID);

		for (unsigned i = 0; i < 50000; i++)
			x = x * 1.0000001;
		control->cpu_s = cpu_s(CLOCK_THREAD_CPUTIME_ID);
		control->n_long += control->cpu_s - before >= 2e-3;
	}
}

static pid_t start_control(void)
{
	pid_t pid;

	control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(control, MAP_FAILED);
	pid = child_fork();
	if (pid == 0)
		work_as_control();
	return pid;
}

/* How many turns of the daemon may be long: three times the control's rate, since few of its own are seen. */
static double long_turns_allowed(void)
{
	clockid_t clock;
	double of_daemon;

	ck_assert_int_eq(clock_getcpuclockid(fix.pid, &clock), 0);
	of_daemon = cpu_s(clock);
	printf("the control: %u pieces of work took 2 ms or more in %.1f s of the processor's time; the daemon took %.1f s\n", control->n_long,
	       control->cpu_s, of_daemon);
	return RAW_RARE_TURNS + 3 * of_daemon * control->n_long / control->cpu_s;
}

static double figure(json_t *status, const char *of, const char *name)
{
	json_t *x = json_object_get(json_object_get(status, of), name);

	ck_assert_ptr_nonnull(x);
	return json_number_value(x);
}

/* No user has more than its quota, whose sums include what the daemon pins for its requests. */
static void expect_quotas(struct raw *operator)
{
	json_t *status = raw_query(operator, SKV_QUERY_STATUS), *row;
	size_t i;

	json_array_foreach(json_object_get(status, "accounts"), i, row) {
		const double bytes = json_number_value(json_object_get(row, "page_bytes")) + json_number_value(json_object_get(row, "other_bytes"));

		ck_assert_msg(bytes <= 1.01 * (double)QUOTA, "uid %lld has %.0f bytes, and its quota is %llu",
		              (long long)json_integer_value(json_object_get(row, "uid")), bytes, QUOTA);
	}
	json_decref(status);
	if (!slowed()) /* a sanitizer has memory of its own */
		ck_assert_uint_lt(fix_memory_mib(&fix, "RssAnon"), DAEMON_MIB);
	raw_expect_held(operator, fix.pid);
}

START_TEST(what_others_ask_for_is_not_waited_for)
{
	const unsigned n = seconds_asked() ? 2 * N_KINDS : N_KINDS, seconds = seconds_asked() ? seconds_asked() : 3;
	struct raw *operator = raw_operator(fix.socket), *r = raw_hello(fix.socket);
	const uint32_t session = raw_open(r, "good", "full", NULL);
	double begin = fix_now(), told = begin, turn, waited, allowed;
	pid_t pids[2 * N_KINDS], of_control;
	unsigned n_long;
	json_t *status;
	int ended;

	if (!can_change_user()) { /* one user has one quota, and turns of its own */
		printf("no right to become another user: not run\n");
		raw_close(operator);
		raw_close(r);
		return;
	}
	for (unsigned i = 0; i < n; i++)
		pids[i] = start(i);
	of_control = start_control();
	if (has_capability(CAP_SYS_NICE)) /* what is measured is the daemon, not how the scheduler divides processors */
		ck_assert_int_eq(setpriority(PRIO_PROCESS, 0, -10) | setpriority(PRIO_PROCESS, (id_t)of_control, -10), 0);
	while (fix_now() < begin + seconds) {
		live_once(r, session);
		for (unsigned i = 0; i < n; i++)
			ck_assert_int_eq(waitpid(pids[i], &ended, WNOHANG), 0);
		if (fix_now() > told + 1) {
			expect_quotas(operator);
			told = fix_now();
		}
	}
	status = raw_query(operator, SKV_QUERY_STATUS);
	turn = figure(status, "counters", "turn_cpu_max_ms");
	printf("%u users for %u s: %.0f messages; the daemon has %lu MiB; the longest turn took %.2f ms of the processor's time\n", n, seconds,
	       figure(status, "counters", "messages"), fix_memory_mib(&fix, "RssAnon"), turn);
	json_decref(status);
	n_long = raw_print_turns(operator);
	waited = p99();
	allowed = long_turns_allowed();
	fflush(stdout);
	if (seconds_asked()) {
		ck_assert_double_lt(waited, 5);
		ck_assert_double_le(n_long, allowed);
	}
	ck_assert_double_lt(turn, slowed() ? 1000 : 50);
	ck_assert_int_eq(kill(of_control, SIGKILL), 0);
	ck_assert_int_eq(waitpid(of_control, &ended, 0), of_control);
	for (unsigned i = 0; i < n; i++) {
		ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
		ck_assert_int_eq(waitpid(pids[i], &ended, 0), pids[i]);
	}
	free(times.ms);
	raw_close(r);
	raw_close(operator);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-neighbours");

	add_case(s, "neighbours", 60 + seconds_asked(), setup, teardown, what_others_ask_for_is_not_waited_for, NULL);
	return run_suite(s);
}
