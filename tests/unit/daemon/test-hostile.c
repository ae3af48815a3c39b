/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile clients: thousands of frames that are malformed, truncated, mutated, or well-formed with absurd values, and
 * with random descriptors. The daemon stays up, answers another client as before, and has no more descriptors when they
 * are gone.
 *
 * As root, the hostile clients are other users, as in service; otherwise they run as the daemon's user.
 * HOSTILE_SECONDS=600 (make check-hostile): runs so long, with 16 clients of 64 connections each, and asserts how long
 * the other client waits, which has real-time priority and the attackers the lowest, so that the scheduler's time slices
 * do not count. HOSTILE_MEMORY=128: with the daemon in a memory cgroup of so many MB.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/memory-group.h"
#include "tests/support/privilege.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define HOSTILE_UID 54321u
/* Number of frames that the daemon has to refuse before the test ends. */
#define MALFORMED (getenv("SKV_VALGRIND") ? 300 : 10000)
#define MOST_CONNECTIONS 64u
#define MOST_ATTACKERS 16u

static unsigned seconds_asked(void)
{
	const char *asked = getenv("HOSTILE_SECONDS");

	return asked ? (unsigned)atoi(asked) : 0;
}

static uint64_t megabytes_asked(void)
{
	const char *asked = getenv("HOSTILE_MEMORY");

	return asked ? (uint64_t)atoi(asked) : 0;
}

static unsigned n_attackers(void)
{
	return seconds_asked() ? MOST_ATTACKERS : 2;
}

static unsigned n_connections(void)
{
	return seconds_asked() ? MOST_CONNECTIONS : 8;
}

static struct fix fix;

/* As in the daemon's unit file. */
static void before_exec(void)
{
	if (has_capability(CAP_SYS_NICE))
		(void)setpriority(PRIO_PROCESS, 0, -10);
	if (megabytes_asked())
		memory_group_enter();
}

static char *folder; /* of parked sequences */

static void setup(void)
{
	static char parked[96];
	static const char *const options[] = {"--account-clients=64", "--account-sequences=64", "--max-clients=2048", "--log-level=error", parked, NULL};

	folder = fx_folder();
	snprintf(parked, sizeof(parked), "--parked-path=%s", folder);
	if (megabytes_asked())
		ck_assert(memory_group_begin(megabytes_asked() * 1000 * 1000));
	fix_before_exec = before_exec;
	fix_start_process(&fix, options);
}

static void teardown(void)
{
	char command[200];

	if (megabytes_asked())
		ck_assert_uint_eq(memory_group_kills(), 0);
	fix_stop(&fix);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ck_assert_int_eq(system(command), 0);
	free(folder);
	if (megabytes_asked())
		memory_group_end();
}

/* ---- frames ---- */

static const struct {
	uint16_t type;
	uint16_t bytes;
	uint16_t n_fds;
} requests[] = {
	{SKV_MSG_HELLO, sizeof(struct skv_msg_hello), 0},
	{SKV_MSG_OPEN, sizeof(struct skv_msg_open), 0},
	{SKV_MSG_CLOSE, sizeof(struct skv_msg_session), 0},
	{SKV_MSG_SEQ_NEW, sizeof(struct skv_msg_seq_name), 0},
	{SKV_MSG_SEQ_ATTACH, sizeof(struct skv_msg_seq_name), 0},
	{SKV_MSG_SEQ_FORK, sizeof(struct skv_msg_seq_name), 0},
	{SKV_MSG_PREFIX_SEAL, sizeof(struct skv_msg_seal), 0},
	{SKV_MSG_PREFIX_NEW, sizeof(struct skv_msg_seq_name), 0},
	{SKV_MSG_SEQ_DETACH, sizeof(struct skv_msg_seq), 0},
	{SKV_MSG_SEQ_DROP, sizeof(struct skv_msg_seq), 0},
	{SKV_MSG_SEQ_RELEASE, sizeof(struct skv_msg_runs), 0},
	{SKV_MSG_LEASE_GET, sizeof(struct skv_msg_lease_get), 0},
	{SKV_MSG_LEASE_PUT, sizeof(struct skv_msg_runs), 0},
	{SKV_MSG_POLICY_GET, sizeof(struct skv_msg_session), 0},
	{SKV_MSG_POLICY_ACK, sizeof(struct skv_msg_policy_ack), 0},
	{SKV_MSG_POLICY_FIND, sizeof(struct skv_msg_spec), 0},
	{SKV_MSG_SEGMENT_ACK, sizeof(struct skv_msg_segment), 0},
	{SKV_MSG_QUERY, sizeof(struct skv_msg_query), 0},
	{SKV_MSG_SEQ_DROP_NAME, sizeof(struct skv_msg_seq_of), 0},
	{SKV_MSG_SEQ_PARK, sizeof(struct skv_msg_seq_of), 0},
	{SKV_MSG_SEQ_RESUME, sizeof(struct skv_msg_seq_of), 0},
	{SKV_MSG_SEQ_EXPORT, sizeof(struct skv_msg_seq_of), 0},
	{SKV_MSG_SEQ_IMPORT, sizeof(struct skv_msg_user), 1},
	{SKV_MSG_CLIENT_END, sizeof(struct skv_msg_client), 0},
	{SKV_MSG_POLICY_SWAP, sizeof(struct skv_msg_policy_swap), 0},
	{SKV_MSG_POLICY_LOAD, sizeof(struct skv_msg_name), 1},
};

struct frame {
	size_t bytes;
	unsigned n_fds;
	_Alignas(8) unsigned char data[SKV_WIRE_MAX + 64];
};

static uint32_t odd_number(void)
{
	static const uint32_t odd[] = {0,     1,      2,          3,          0xffff,     65536,
	                               65537, 131072, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};

	return rnd_below(3) ? odd[rnd_below(sizeof(odd) / sizeof(odd[0]))] : (uint32_t)rnd64();
}

static void odd_name(char *to, size_t size)
{
	static const char *const names[] = {
		"", "a", "chat", "full", "streaming?budget=300", "streaming?sinks=x", "x/y", "nosuch?&&=", "m"};

	skv_wire_string(to, size, names[rnd_below(sizeof(names) / sizeof(names[0]))]);
}

/* Fills a body that passes the form's check, with values of all kinds. */
static void fill_body(struct frame *f, uint16_t type, void *body)
{
	if (type == SKV_MSG_OPEN) {
		struct skv_msg_open *m = body;

		m->model = raw_model("m");
		if (rnd_below(2))
			((uint32_t *)body)[rnd_below(10)] = odd_number();
		odd_name(m->spec, sizeof(m->spec));
	} else if (type == SKV_MSG_SEQ_NEW || type == SKV_MSG_SEQ_ATTACH || type == SKV_MSG_SEQ_FORK || type == SKV_MSG_PREFIX_NEW) {
		struct skv_msg_seq_name *m = body;

		m->session = odd_number();
		m->seq = type == SKV_MSG_SEQ_FORK || type == SKV_MSG_PREFIX_NEW ? odd_number() : 0;
		m->max_tokens = type == SKV_MSG_SEQ_NEW || type == SKV_MSG_PREFIX_NEW ? odd_number() : 0;
		m->n_tokens = type == SKV_MSG_PREFIX_NEW ? odd_number() : 0;
		odd_name(m->name, sizeof(m->name));
	} else if (type == SKV_MSG_LEASE_PUT || type == SKV_MSG_SEQ_RELEASE) {
		struct skv_msg_runs *m = body;
		struct skv_wire_run *run = (void *)(m + 1);

		m->session = odd_number();
		m->seq = type == SKV_MSG_SEQ_RELEASE ? odd_number() : 0;
		m->n_runs = rnd_below(5);
		for (uint32_t i = 0; i < m->n_runs; i++)
			run[i] = (struct skv_wire_run){rnd_below(20000), 1 + rnd_below(300)};
		f->bytes += m->n_runs * sizeof(*run);
	} else if (type == SKV_MSG_LEASE_GET || type == SKV_MSG_PREFIX_SEAL) { /* three numbers */
		for (unsigned i = 0; i < 3; i++)
			((uint32_t *)body)[i] = odd_number();
	} else if (type == SKV_MSG_POLICY_ACK) {
		struct skv_msg_policy_ack *m = body;

		m->session = odd_number();
		m->error = (int32_t)rnd_below(4096);
		m->generation = odd_number();
		odd_name(m->text, sizeof(m->text));
	} else if (type == SKV_MSG_POLICY_FIND) {
		odd_name(((struct skv_msg_spec *)body)->spec, SKV_SPEC_MAX);
	} else if (type == SKV_MSG_POLICY_SWAP) {
		struct skv_msg_policy_swap *m = body;

		m->all = rnd_below(2);
		m->session = odd_number();
		m->client = odd_number();
		m->uid = odd_number();
		odd_name(m->model, sizeof(m->model));
		odd_name(m->spec, sizeof(m->spec));
	} else if (type == SKV_MSG_SEQ_DROP_NAME || type == SKV_MSG_SEQ_PARK || type == SKV_MSG_SEQ_RESUME || type == SKV_MSG_SEQ_EXPORT) {
		struct skv_msg_seq_of *m = body;

		m->uid = rnd_below(2) ? getuid() : odd_number();
		odd_name(m->model, sizeof(m->model));
		odd_name(m->name, sizeof(m->name));
	} else if (type == SKV_MSG_HELLO) {
		((struct skv_msg_hello *)body)->version_max = odd_number();
	} else if (type != SKV_MSG_POLICY_LOAD) { /* a number or two */
		((uint32_t *)body)[0] = odd_number();
		if (type != SKV_MSG_CLOSE && type != SKV_MSG_POLICY_GET && type != SKV_MSG_QUERY &&
		    type != SKV_MSG_CLIENT_END && type != SKV_MSG_SEQ_IMPORT)
			((uint32_t *)body)[1] = odd_number();
	}
}

static void good_frame(struct frame *f)
{
	unsigned i = rnd_below(sizeof(requests) / sizeof(requests[0]));
	struct skv_msg_header h = {
		.type = requests[i].type, .n_fds = requests[i].n_fds, .serial = 1 + rnd_below(1000)};

	memset(f->data, 0, 4096);
	f->bytes = sizeof(h) + requests[i].bytes;
	f->n_fds = h.n_fds;
	fill_body(f, h.type, f->data + sizeof(h));
	h.length = (uint32_t)f->bytes;
	memcpy(f->data, &h, sizeof(h));
}

/* Damages a frame: changed bytes, an end that is cut off or longer, a wrong length or count, anything. */
static void spoil(struct frame *f)
{
	struct skv_msg_header *h = (void *)f->data;

	switch (rnd_below(8)) {
	case 0:
		for (uint32_t k = 1 + rnd_below(8); k; k--)
			f->data[rnd_below((uint32_t)f->bytes)] ^= (unsigned char)(1u << rnd_below(8));
		break;
	case 1:
		f->bytes = rnd_below((uint32_t)f->bytes + 1);
		break;
	case 2:
		f->bytes += 1 + rnd_below(64);
		if (rnd_below(2))
			h->length = (uint32_t)f->bytes;
		break;
	case 3:
		h->length = odd_number();
		break;
	case 4:
		h->type = (uint16_t)rnd64();
		break;
	case 5:
		f->bytes = 1 + rnd_below(rnd_below(20) ? 512 : sizeof(f->data));
		rnd_bytes(f->data, f->bytes);
		break;
	case 6:
		h->n_fds = (uint16_t)rnd_below(7);
		break;
	case 7: /* a string without its NUL */
		memset(f->data + sizeof(*h) + rnd_below((uint32_t)(f->bytes - sizeof(*h))), 'x', 600);
		break;
	}
	if (rnd_below(4) == 0)
		f->n_fds = rnd_below(8);
}

/* Returns a descriptor of a random kind; the caller closes it. */
static int any_fd(void)
{
	int s[2];

	switch (rnd_below(7)) {
	case 0:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	case 1:
		return open("/", O_PATH | O_CLOEXEC);
	case 2:
		return eventfd(0, EFD_CLOEXEC);
	case 3:
		return memfd_create("x", MFD_CLOEXEC);
	case 4:
		return open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	case 5:
		return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	default:
		if (pipe2(s, O_CLOEXEC) < 0)
			return -1;
		close(s[1]);
		return s[0];
	}
}

/* ---- the attack ---- */

static int dial(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct skv_msg_hello hello = {.version_min = 1, .version_max = 1, .program = "hostile"};
	struct {
		struct skv_msg_header h;
		struct skv_msg_hello m;
	} packet = {{.length = sizeof(packet), .type = SKV_MSG_HELLO, .serial = 1}, hello};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, fix.socket);
	if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		_exit(3); /* the daemon is gone, which is what the test checks */
	fcntl(fd, F_SETFL, O_NONBLOCK);
	if (rnd_below(8)) /* some do not send HELLO */
		(void)!send(fd, &packet, sizeof(packet), MSG_NOSIGNAL);
	return fd;
}

/* Reads and discards packets and fds. Returns false when the daemon hung up. */
static bool drain(int fd)
{
	static char packet[SKV_WIRE_MAX];

	for (;;) {
		union {
			char space[CMSG_SPACE(16 * sizeof(int))];
			struct cmsghdr align;
		} control;
		struct iovec iov = {packet, sizeof(packet)};
		struct msghdr msg = {.msg_iov = &iov,
		                     .msg_iovlen = 1,
		                     .msg_control = &control,
		                     .msg_controllen = sizeof(control)};
		ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

		if (n <= 0)
			return n < 0 && errno == EAGAIN;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
			for (size_t at = CMSG_LEN(0); at < c->cmsg_len; at += sizeof(int))
				close(*(int *)(void *)((char *)c + at));
	}
}

/* Returns false when the daemon has hung up. */
static bool send_frame(int fd, const struct frame *f)
{
	union {
		char space[CMSG_SPACE(8 * sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec iov = {(void *)f->data, f->bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	int fds[8];
	bool there;

	for (unsigned i = 0; i < f->n_fds; i++)
		fds[i] = any_fd();
	if (f->n_fds) {
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(f->n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, f->n_fds * sizeof(int));
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(f->n_fds * sizeof(int));
	}
	there = sendmsg(fd, &msg, MSG_NOSIGNAL) >= 0 || (errno != EPIPE && errno != ECONNRESET);
	for (unsigned i = 0; i < f->n_fds; i++)
		close(fds[i]);
	return there;
}

/* Runs until the process is killed. */
_Noreturn static void attack(void)
{
	static struct frame f;
	unsigned n = n_connections();
	int fds[MOST_CONNECTIONS];

	for (unsigned c = 0; c < n; c++)
		fds[c] = dial();
	for (;;) {
		unsigned c = rnd_below(n);
		bool there;

		good_frame(&f);
		if (rnd_below(2))
			spoil(&f);
		there = send_frame(fds[c], &f);
		/* one connection never reads; the others do now and then */
		if (!there || rnd_below(500) == 0 || (c && rnd_below(2) && !drain(fds[c]))) {
			close(fds[c]);
			fds[c] = dial();
		}
	}
}

static pid_t start_attack(unsigned number)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		if ((seconds_asked() && setpriority(PRIO_PROCESS, 0, 19) < 0) ||
		    (can_change_user() && (setgid(HOSTILE_UID + number) < 0 || setuid(HOSTILE_UID + number) < 0)))
			_exit(2);
		rnd_begin(number + 1);
		attack();
	}
	return pid;
}

static struct {
	double *ms; /* of each request */
	unsigned n;
} times;

static void took(double since)
{
	if (times.n % 4096 == 0)
		times.ms = realloc(times.ms, (times.n + 4096) * sizeof(*times.ms));
	ck_assert_ptr_nonnull(times.ms);
	times.ms[times.n++] = (fix_now() - since) * 1e3;
}

static const void *ask(struct raw *r, uint16_t type, const void *body, size_t bytes)
{
	double since = fix_now();
	const void *answer = raw_ask(r, type, body, bytes, -1);

	took(since);
	return answer;
}

/* Requests of a well-behaved client; each must succeed. */
static void behave(struct raw *r, uint32_t session)
{
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run run;
	} put = {{.session = session, .n_runs = 1}, {0, 0}};
	const struct skv_msg_lease_get get = {.session = session, .least = 16, .most = 16};
	const struct skv_msg_seq_name name = {.session = session};
	struct skv_msg_seq seq = {.session = session};
	const struct skv_msg_runs *ok;

	seq.seq = ((const struct skv_msg_seq_ok *)ask(r, SKV_MSG_SEQ_NEW, &name, sizeof(name)))->seq;
	ok = ask(r, SKV_MSG_LEASE_GET, &get, sizeof(get));
	ck_assert_uint_eq(ok->n_runs, 1);
	put.run = *(const struct skv_wire_run *)(ok + 1);
	ck_assert_uint_eq(put.run.count, 16);
	ask(r, SKV_MSG_LEASE_PUT, &put, sizeof(put));
	ask(r, SKV_MSG_SEQ_DROP, &seq, sizeof(seq));
}

static int ascending(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

/* Prints the times and starts anew; returns the 99th percentile. */
static double p99(const char *when)
{
	double x;

	qsort(times.ms, times.n, sizeof(*times.ms), ascending);
	x = times.ms[times.n - 1 - times.n / 100];
	printf("%s another client asked %u questions: each took %.2f ms at the median, %.2f at p99, %.1f at most\n", when,
	       times.n, times.ms[times.n / 2], x, times.ms[times.n - 1]);
	fflush(stdout);
	free(times.ms);
	memset(&times, 0, sizeof(times));
	return x;
}

static double counter(struct raw *r, const char *name)
{
	json_t *status = raw_query(r, SKV_QUERY_STATUS);
	double x = json_number_value(json_object_get(json_object_get(status, "counters"), name));

	json_decref(status);
	return x;
}

START_TEST(nothing_that_is_sent_disturbs_the_daemon)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "good", "full", NULL);
	struct raw *operator = raw_operator(fix.socket);
	double begin = fix_now(), told, waited, longest;
	pid_t pids[MOST_ATTACKERS];
	unsigned before;
	int status;

	if (!can_change_user())
		printf("not root: the hostile client is of the daemon's own user\n");
	raw_seq_new(r, session, "mine");
	raw_lease(r, session, 100);
	before = fix_settled_fds(fix.pid);
	while (fix_now() < begin + 1)
		behave(r, session);
	p99("alone");
	for (unsigned i = 0; i < n_attackers(); i++)
		pids[i] = start_attack(i);
	if (seconds_asked() && has_capability(CAP_SYS_NICE))
		ck_assert_int_eq(sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 1}), 0);
	begin = told = fix_now();
	while (seconds_asked() ? fix_now() < begin + seconds_asked() : counter(operator, "malformed") < MALFORMED) {
		behave(r, session);
		for (unsigned i = 0; i < n_attackers(); i++) /* they live as long as the daemon */
			ck_assert_int_eq(waitpid(pids[i], &status, WNOHANG), 0);
		if (fix_now() > told + 1) {
			raw_expect_held(operator, fix.pid);
			told = fix_now();
		}
	}
	longest = counter(operator, "turn_max_ms");
	printf("%.0f malformed frames and %.0f well-formed ones on %.0f connections in %.1f s; the longest turn took %.1f ms\n",
	       counter(operator, "malformed"), counter(operator, "messages"), counter(operator, "connections"), fix_now() - begin, longest);
	raw_print_turns(operator);
	waited = p99("meanwhile");
	if (seconds_asked())
		ck_assert_double_lt(waited, 5);
	ck_assert_double_lt(longest, 1000); /* the unit's watchdog is notified every 15 s, between turns */
	for (unsigned i = 0; i < n_attackers(); i++) {
		ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
		ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
	}
	behave(r, session);
	/* all received descriptors are closed, and our own leases are unchanged */
	fix_expect_fds(fix.pid, before);
	ck_assert_uint_eq(raw_pool_figure(r, "lease"), 100);
	raw_close(operator);
	raw_close(r);
}
END_TEST

/* More descriptors than a message may have: none of them stays open. */
START_TEST(too_many_descriptors_are_closed)
{
	struct skv_msg_query q = {.what = SKV_QUERY_STATUS};
	unsigned before;
	int fds[60];

	before = fix_settled_fds(fix.pid);
	for (unsigned n = 1; n <= 60; n++) {
		struct raw *r = raw_operator(fix.socket); /* others may not send any: test-hostile-fds */
		struct {
			struct skv_msg_header h;
			struct skv_msg_query q;
		} m = {{.length = sizeof(m), .type = SKV_MSG_QUERY, .serial = 9, .n_fds = (uint16_t)n}, q};

		for (unsigned i = 0; i < n; i++)
			fds[i] = eventfd(0, EFD_CLOEXEC);
		raw_send_packet(r, &m, sizeof(m), fds, n);
		for (unsigned i = 0; i < n; i++)
			close(fds[i]);
		raw_expect_end(r);
		raw_close(r);
	}
	fix_expect_fds(fix.pid, before);
}
END_TEST

/* Packets of no bytes, of one byte, of the maximum and of more. */
START_TEST(sizes_at_the_edges)
{
	static char packet[SKV_WIRE_MAX + 8];
	static const size_t sizes[] = {
		0, 1, 15, 16, 17, SKV_WIRE_MAX - 1, SKV_WIRE_MAX, SKV_WIRE_MAX + 1, SKV_WIRE_MAX + 8};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct skv_msg_header h = {
			.length = (uint32_t)sizes[i], .type = SKV_MSG_LEASE_PUT, .serial = 1};
		struct raw *r = raw_hello(fix.socket);

		memcpy(packet, &h, sizeof(h));
		raw_send_packet(r, packet, sizes[i], NULL, 0);
		raw_expect_end(r);
		raw_close(r);
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-hostile");

	add_case(s, "hostile", 120 + seconds_asked(), setup, teardown, nothing_that_is_sent_disturbs_the_daemon,
	         too_many_descriptors_are_closed, sizes_at_the_edges, NULL);
	return run_suite(s);
}
