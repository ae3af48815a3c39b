/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of devices through the daemon's socket, on a driver that is not one (fake-libcuda.c): growth,
 * ceilings, scrubbing, a worker that is killed, hangs or sees a fault, two devices, the old kind of handle.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/fixture.h"
#include "tests/random.h"

#define OTHER_UID 54321u
#define MB ((uint64_t)1 << 20)
#define SEGMENT (2 * MB)
#define PAGES 512u /* of raw_model(), 4 KiB each, in a segment */

static struct fix fix;
static char steering[64]; /* $FAKE_CUDA_DIR */
static bool legacy;

static void begin(const char *const *more)
{
	const char *options[12] = {"--cuda=auto",           "--cuda-segment-bytes=2M", "--cuda-pool-bytes=8M",
	                           "--cuda-worker-idle=60", "--cuda-worker-timeout=1"};
	size_t n = 5;

	strcpy(steering, "/tmp/sparsekv-fake-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(steering));
	ck_assert_int_eq(setenv("FAKE_CUDA_DIR", steering, 1), 0);
	ck_assert_int_eq(setenv("LD_LIBRARY_PATH", fix_built("tests/fake-cuda"), 1), 0);
	while (more && *more)
		options[n++] = *more++;
	fix_start_process(&fix, options);
}

static void setup(void)
{
	begin(NULL);
}

static void setup_legacy(void)
{
	legacy = true;
	begin((const char *[]){"--ipc=legacy", NULL});
}

static void teardown(void)
{
	char command[96];

	fix_stop(&fix); /* the books are even */
	snprintf(command, sizeof(command), "rm -r %s", steering);
	ck_assert_int_eq(system(command), 0);
}

/* The fake driver does this from now on, or stops doing it. */
static void steer(const char *what, bool on)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", steering, what);
	if (on)
		ck_assert_int_eq(close(open(path, O_CREAT | O_WRONLY, 0644)), 0);
	else
		ck_assert_int_eq(unlink(path), 0);
}

static bool made_a_context(pid_t pid)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/context-%d", steering, (int)pid);
	return access(path, F_OK) == 0;
}

static uint32_t open_on(struct raw *r, uint32_t device, const char *name, struct skv_msg_open_ok *ret)
{
	struct skv_wire_model m = raw_model(name);

	m.device = device;
	r->keep_fd = true;
	return raw_open_model(r, &m, "full", ret);
}

static struct raw *client_on(uint32_t device, uint32_t *ret_session)
{
	struct raw *r = raw_hello(fix.socket);

	*ret_session = open_on(r, device, "m", NULL);
	return r;
}

static int lease_refused(struct raw *r, uint32_t session, uint32_t n)
{
	struct skv_msg_lease_get m = {.session = session, .least = n, .most = n};

	return raw_refused(r, SKV_MSG_LEASE_GET, &m, sizeof(m), -1);
}

/* Ask, and do not wait. */
static void lease_post(struct raw *r, uint32_t session, uint32_t least, uint32_t most)
{
	struct skv_msg_lease_get m = {.session = session, .least = least, .most = most};

	raw_send(r, SKV_MSG_LEASE_GET, &m, sizeof(m), -1);
}

static uint32_t lease_result(struct raw *r)
{
	const struct skv_msg_runs *ok = (const void *)(r->packet + sizeof(struct skv_msg_header));
	const struct skv_wire_run *runs = (const void *)(ok + 1);
	int type = raw_recv_answer(r, 10000);
	uint32_t n = 0;

	ck_assert_msg(type == (SKV_MSG_LEASE_GET | SKV_REPLY), "%s", raw_error_text(r));
	for (uint32_t i = 0; i < ok->n_runs; i++)
		n += runs[i].count;
	return n;
}

static void put(struct raw *r, uint32_t session, uint32_t first, uint32_t n)
{
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run run;
	} body = {{.session = session, .n_runs = 1}, {first, n}};

	raw_ask(r, SKV_MSG_LEASE_PUT, &body, sizeof(body), -1);
}

/* A figure of the first device, or of its row for the first account. */
static int64_t figure(const char *rows, const char *field)
{
	struct raw *r = raw_hello(fix.socket);
	json_t *answer = raw_query(r, SKV_QUERY_STATUS), *value;
	int64_t x;

	value = json_object_get(json_array_get(json_object_get(answer, rows), 0), field);
	x = json_is_integer(value) ? json_integer_value(value) : -1;
	json_decref(answer);
	raw_close(r);
	return x;
}

static void expect_figure(const char *rows, const char *field, int64_t expected)
{
	for (double end = fix_now() + 5; figure(rows, field) != expected && fix_now() < end;)
		fix_sleep_ms(10);
	ck_assert_int_eq(figure(rows, field), expected);
}

static pid_t worker(void)
{
	for (double end = fix_now() + 5; figure("devices", "worker_pid") <= 0 && fix_now() < end;)
		fix_sleep_ms(5);
	return (pid_t)figure("devices", "worker_pid");
}

/* The memory of the segment that was announced last. */
static unsigned char *segment_map(struct raw *r)
{
	void *p = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, r->segment_fd, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

static void all_are(const unsigned char *p, unsigned char value)
{
	size_t i = 0;

	while (i < SEGMENT && p[i] == value)
		i++;
	ck_assert_msg(i == SEGMENT, "byte %zu is %#x, expected %#x", i, i < SEGMENT ? p[i] : value, value);
}

/* ---- */

START_TEST(a_segment_is_made_without_a_context_and_scrubbed)
{
	struct skv_msg_open_ok ok;
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = open_on(r, SKV_DEVICE_CUDA(0), "m", &ok);
	unsigned char *p;

	ck_assert_uint_eq(ok.segment_bytes, SEGMENT);
	ck_assert_uint_eq(ok.max_segments, 128); /* all of the device: 256 MiB */
	ck_assert_int_eq(figure("devices", "worker_pid"), 0);
	raw_lease(r, session, 100);
	ck_assert_uint_eq(r->segment.segment.handle, SKV_HANDLE_CUDA_FD);
	ck_assert_uint_eq(r->segment.segment.bytes, SEGMENT);
	p = segment_map(r);
	all_are(p, 0);
	munmap(p, SEGMENT);
	ck_assert(made_a_context(worker()));
	ck_assert(!made_a_context(fix.pid));
	ck_assert_int_eq(figure("devices", "segment_bytes"), SEGMENT);
	ck_assert_int_eq(figure("device_accounts", "page_bytes"), 100 * 4096);
	put(r, session, 0, 100);
	raw_close(r);
	expect_figure("devices", "segment_bytes", 0);
}
END_TEST

struct visit {
	unsigned char expect, leave;
};

static void visit(void *arg)
{
	const struct visit *v = arg;
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);
	unsigned char *p;

	raw_lease(r, session, PAGES);
	p = segment_map(r);
	all_are(p, v->expect);
	memset(p, v->leave, SEGMENT);
	_exit(0);
}

/* What `sparsekvctl COMMAND` prints; owned by the caller. */
static char *ctl(const char *command)
{
	char line[600], *text = NULL;
	size_t cap = 0;
	FILE *p;

	snprintf(line, sizeof(line), "%s --socket %s %s", fix_built("daemon/ctl/sparsekvctl"), fix.socket, command);
	p = popen(line, "re");
	ck_assert_ptr_nonnull(p);
	ck_assert_int_gt(getdelim(&text, &cap, 0, p), 0);
	ck_assert_int_eq(pclose(p), 0);
	return text;
}

#define SAYS(text, what) ck_assert_msg(strstr(text, what), "expected \"%s\" in:\n%s", what, text)

START_TEST(operators_see_devices)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);
	char *text;

	raw_lease(r, session, 100);
	text = ctl("status");
	SAYS(text, "cuda:0    400.0 KiB of pages in use, in 2.0 MiB of segments, of 8.0 MiB; Fake 0, 256.0 MiB");
	SAYS(text, "Device memory:\n");
	free(text);
	text = ctl("pool");
	SAYS(text, "cuda:0");
	free(text);
	text = ctl("--json top -n 1 -d 0.05");
	SAYS(text, "\"device\": \"cuda:0\"");
	free(text);
	text = ctl("metrics");
	SAYS(text, "sparsekv_device_segment_bytes{device=\"cuda:0\",uuid=\"GPU-10101010-1010-1010-1010-101010101010\"} "
	           "2097152\n");
	SAYS(text, "sparsekv_account_device_page_bytes{uid=");
	SAYS(text, ",device=\"cuda:0\"} 409600\n");
	SAYS(text, "memory=\"cuda:0\"");
	free(text);
	raw_close(r);
}
END_TEST

START_TEST(another_user_sees_zeros)
{
	uid_t other = getuid() ? 0 : OTHER_UID; /* without root: another client of the same user */

	fix_in_child(0, visit, &(struct visit){0, 0xee});
	expect_figure("devices", "segment_bytes", 0);
	fix_in_child(other, visit, &(struct visit){0, 0xdd});
	expect_figure("devices", "segment_bytes", 0);
	fix_in_child(0, visit, &(struct visit){0, 0xcc});
}
END_TEST

START_TEST(who_asks_for_more_than_there_is_works_on)
{
	uint32_t session, host;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);

	raw_lease(r, session, PAGES);
	ck_assert_int_eq(lease_refused(r, session, 4 * PAGES), ENOSPC); /* the ceiling: 4 segments */
	ck_assert_int_eq(figure("devices", "segment_bytes"), SEGMENT);
	raw_lease(r, session, 2 * PAGES);
	steer("oom", true); /* others use the device too */
	ck_assert_int_eq(lease_refused(r, session, PAGES), ENOSPC);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "out of memory (CUDA_ERROR_OUT_OF_MEMORY)"));
	ck_assert_int_eq(figure("devices", "segment_bytes"), 3 * SEGMENT);
	host = open_on(r, SKV_DEVICE_HOST, "on-host", NULL);
	raw_lease(r, host, 100);
	ck_assert_uint_eq(r->segment.segment.handle, SKV_HANDLE_MEMFD);
	steer("oom", false);
	raw_lease(r, session, PAGES);
	put(r, session, 0, PAGES * 3); /* shrinks to what is in use and a spare one */
	expect_figure("devices", "segment_bytes", 2 * SEGMENT);
	raw_close(r);
}
END_TEST

START_TEST(two_devices)
{
	uint32_t first, second;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &first);
	struct skv_msg_open open = {.model = raw_model("m"), .spec = "full"};
	struct skv_msg_seq_name name = {.name = "chat"};
	struct skv_msg_session close_it;
	json_t *answer;

	second = open_on(r, SKV_DEVICE_CUDA(1), "m", NULL);
	raw_lease(r, first, 4 * PAGES);
	raw_lease(r, second, 4 * PAGES); /* each has its ceiling */
	ck_assert_int_eq(lease_refused(r, second, 1), ENOSPC);
	answer = raw_query(r, SKV_QUERY_STATUS);
	ck_assert_uint_eq(json_array_size(json_object_get(answer, "devices")), 2);
	ck_assert_uint_eq(json_array_size(json_object_get(answer, "device_accounts")), 2);
	json_decref(answer);
	open.model.device = SKV_DEVICE_CUDA(2);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_OPEN, &open, sizeof(open), -1), ENODEV);
	ck_assert_str_eq(raw_error_text(r), "cuda:2: there is no CUDA device 2, there are 2");
	open.model.device = SKV_MAX_DEVICES + 1;
	ck_assert_int_eq(raw_refused(r, SKV_MSG_OPEN, &open, sizeof(open), -1), EINVAL);
	/* a sequence stays where it is */
	raw_seq_new(r, first, "chat");
	close_it = (struct skv_msg_session){.session = first};
	raw_ask(r, SKV_MSG_CLOSE, &close_it, sizeof(close_it), -1);
	name.session = second;
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_ATTACH, &name, sizeof(name), -1), EINVAL);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "another device"));
	raw_close(r);
}
END_TEST

START_TEST(a_worker_killed_in_the_middle_of_a_scrub_is_replaced)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);
	unsigned char *p;

	steer("slow", true);
	lease_post(r, session, 1, 1);
	ck_assert_int_eq(kill(worker(), SIGKILL), 0);
	ck_assert_uint_eq(lease_result(r), 1);
	p = segment_map(r);
	all_are(p, 0);
	munmap(p, SEGMENT);
	ck_assert_int_eq(figure("devices", "workers_started"), 2);
	ck_assert_int_eq(figure("devices", "workers_died"), 1);
	raw_close(r);
}
END_TEST

START_TEST(a_worker_that_hangs_holds_nobody_else_up)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session), *other = raw_hello(fix.socket);
	uint32_t host = raw_open(other, "m", "full", NULL);
	double begun = fix_now();

	steer("hang", true);
	lease_post(r, session, 1, 3 * PAGES);
	raw_lease(other, host, 10);
	raw_seq_new(r, session, "of-the-same-client");
	ck_assert_double_lt(fix_now() - begun, 0.9);
	ck_assert_int_eq(raw_recv_answer(r, 10000), SKV_MSG_ERROR); /* twice tried, a second each */
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "did not answer in 1 s"));
	ck_assert_double_gt(fix_now() - begun, 1.9);
	ck_assert_double_lt(fix_now() - begun, 4);
	ck_assert_int_eq(figure("devices", "segment_bytes"), 0);
	steer("hang", false);
	raw_lease(r, session, PAGES);
	raw_close(r);
	raw_close(other);
}
END_TEST

START_TEST(a_fault_costs_the_worker_and_one_lease)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);

	raw_lease(r, session, 10);
	steer("fault-once", true);
	ck_assert_int_eq(lease_refused(r, session, PAGES), EIO);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "cuda:0: filling with zeros: something fake"));
	raw_lease(r, session, PAGES);
	ck_assert_int_eq(figure("devices", "workers_started"), 2);
	raw_close(r);
}
END_TEST

START_TEST(what_is_left_is_given_when_the_rest_cannot_be_had)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);

	raw_lease(r, session, 500);
	steer("oom", true);
	lease_post(r, session, 1, PAGES);
	ck_assert_uint_eq(lease_result(r), 12);
	lease_post(r, session, 0, PAGES);
	ck_assert_uint_eq(lease_result(r), 0);
	raw_close(r);
}
END_TEST

START_TEST(who_waits_may_leave)
{
	uint32_t session, others;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session), *stays = client_on(SKV_DEVICE_CUDA(0), &others);
	struct skv_msg_session m = {.session = session};

	steer("slow", true);
	lease_post(r, session, 1, 1);
	raw_ask(r, SKV_MSG_CLOSE, &m, sizeof(m), -1); /* answered before the lease */
	ck_assert_int_eq(raw_recv_answer(r, 10000), SKV_MSG_ERROR);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "no session"));
	session = open_on(r, SKV_DEVICE_CUDA(0), "m", NULL);
	lease_post(r, session, PAGES, 2 * PAGES);
	lease_post(stays, others, 1, 1);
	raw_close(r);
	ck_assert_uint_eq(lease_result(stays), 1);
	expect_figure("devices", "segment_bytes", 2 * SEGMENT); /* in use, and a spare one */
	put(stays, others, 0, 1);
	expect_figure("devices", "segment_bytes", SEGMENT);
	raw_close(stays);
	expect_figure("devices", "segment_bytes", 0);
}
END_TEST

START_TEST(few_may_wait)
{
	uint32_t session, refused = 0, granted = 0;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);

	steer("slow-once", true);
	for (unsigned i = 0; i < 20; i++)
		lease_post(r, session, 1, 1);
	for (unsigned i = 0; i < 20; i++) {
		int type = raw_recv_answer(r, 10000);

		refused += type == SKV_MSG_ERROR;
		granted += type == (SKV_MSG_LEASE_GET | SKV_REPLY);
	}
	ck_assert_uint_eq(refused, 4);
	ck_assert_uint_eq(granted, 16);
	raw_close(r);
}
END_TEST

START_TEST(a_user_has_a_ceiling_there)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);

	raw_lease(r, session, PAGES);
	ck_assert_int_eq(lease_refused(r, session, 1), EDQUOT);
	raw_close(r);
}
END_TEST

static void setup_ceiling(void)
{
	begin((const char *[]){"--account-cuda-bytes=2M", NULL});
}

START_TEST(an_idle_worker_ends)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);

	raw_lease(r, session, 10);
	ck_assert_int_gt(worker(), 0);
	expect_figure("devices", "worker_pid", 0);
	ck_assert_int_eq(figure("devices", "workers_died"), 0);
	raw_lease(r, session, PAGES);
	ck_assert_int_eq(figure("devices", "workers_started"), 2);
	raw_close(r);
}
END_TEST

static void setup_idle(void)
{
	begin((const char *[]){"--cuda-worker-idle=1", NULL});
}

START_TEST(memory_outlives_the_daemon)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);
	unsigned char *p;
	pid_t pid;

	raw_lease(r, session, PAGES);
	p = segment_map(r);
	memset(p, 0x5a, SEGMENT);
	pid = worker();
	fix_kill(&fix);
	all_are(p, 0x5a);
	for (double end = fix_now() + 5; kill(pid, 0) == 0 && fix_now() < end;)
		fix_sleep_ms(5);
	ck_assert_int_ne(kill(pid, 0), 0); /* the worker went with it */
	munmap(p, SEGMENT);
	raw_close(r);
	begin(NULL); /* for the teardown */
}
END_TEST

/* ---- everything at once ---- */

/* A client that leases and gives back, waits or does not, and is gone in the middle of it. */
static void restless(void *seed)
{
	uint32_t session;
	struct raw *r;

	rnd_state = *(const uint64_t *)seed;
	r = client_on(SKV_DEVICE_CUDA(rnd_below(2)), &session);
	for (unsigned i = 0; i < 30; i++) {
		uint32_t least = rnd_below(PAGES), first, type;
		const struct skv_msg_runs *ok = (const void *)(r->packet + sizeof(struct skv_msg_header));

		lease_post(r, session, least, least + 1 + rnd_below(PAGES));
		if (rnd_below(40) == 0)
			_exit(0);
		type = (uint32_t)raw_recv_answer(r, 20000);
		ck_assert(type == SKV_MSG_ERROR || type == (SKV_MSG_LEASE_GET | SKV_REPLY));
		if (type == SKV_MSG_ERROR || !ok->n_runs || rnd_below(3) == 0)
			continue;
		first = ((const struct skv_wire_run *)(ok + 1))->first;
		put(r, session, first, 1);
	}
	_exit(0);
}

START_TEST(clients_come_and_go_while_workers_die)
{
	pid_t clients[6];
	unsigned left = 60;
	int status;

	memset(clients, 0, sizeof(clients));
	for (double end = fix_now() + 20; fix_now() < end;) {
		unsigned running = 0;
		int64_t pid = figure("devices", "worker_pid");

		for (unsigned i = 0; i < 6; i++) {
			if (clients[i] && waitpid(clients[i], &status, WNOHANG) == clients[i]) {
				ck_assert(status == 0 || legacy); /* there the worker's end may be theirs */
				clients[i] = 0;
			}
			if (!clients[i] && left) {
				uint64_t seed = rnd64();

				left--;
				clients[i] = fork();
				ck_assert_int_ge(clients[i], 0);
				if (clients[i] == 0)
					restless(&seed);
			}
			running += clients[i] != 0;
		}
		if (!running)
			break;
		if (pid > 0 && rnd_below(3) == 0)
			(void)kill((pid_t)pid, SIGKILL);
		else if (rnd_below(4) == 0 && clients[rnd_below(6)] > 0)
			steer(rnd_below(2) ? "oom-once" : "fault-once", true);
	}
	for (unsigned i = 0; i < 6; i++)
		ck_assert_int_eq(clients[i], 0); /* each was answered */
	expect_figure("devices", "segment_bytes", 0);
	ck_assert_int_gt(figure("devices", "workers_died"), 0);
}
END_TEST

/* ---- drivers ---- */

static int start_daemon(const char *cuda)
{
	char command[1000];

	snprintf(command, sizeof(command), "timeout 10 %s --config=/dev/null --policy-path= --socket=%s.2 %s 2>%s/said",
	         fix_built("daemon/sparsekvd"), fix.socket, cuda, steering);
	return system(command);
}

static void ck_said(const char *what)
{
	char path[128], text[2048] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/said", steering);
	fd = open(path, O_RDONLY);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_gt(read(fd, text, sizeof(text) - 1), 0);
	close(fd);
	SAYS(text, what);
}

START_TEST(a_device_that_is_required_is_there_or_the_start_fails)
{
	char path[256];
	FILE *f;

	setenv("LD_LIBRARY_PATH", steering, 1);
	if (access("/dev/nvidiactl", F_OK) != 0) {
		ck_assert_int_eq(start_daemon("--cuda=required"), 1 << 8);
		ck_said("cuda = required, and there is no device: cuda:0: there is no CUDA driver");
	}
	/* something else by that name */
	snprintf(path, sizeof(path), "%s/libcuda.so.1", steering);
	f = fopen(path, "w");
	fputs("not a library", f);
	fclose(f);
	ck_assert_int_eq(start_daemon("--cuda=required"), 1 << 8);
	ck_said("there is no CUDA driver: ");
}
END_TEST

/* ---- the old kind of handle ---- */

static unsigned char *ipc_map(const struct raw *r)
{
	char path[48];
	int fd;
	void *p;

	ck_assert_uint_eq(r->segment.segment.handle, SKV_HANDLE_CUDA_IPC);
	memcpy(path, r->segment.ipc_handle, sizeof(path)); /* of the fake one: where the memory is */
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	p = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	close(fd);
	return p;
}

START_TEST(a_legacy_segment_comes_from_the_worker)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);
	unsigned char *p;
	unsigned fds;

	raw_lease(r, session, PAGES);
	ck_assert_uint_eq(r->n_segments, 1);
	p = ipc_map(r);
	all_are(p, 0);
	munmap(p, SEGMENT);
	fds = fix_settled_fds(worker());
	raw_lease(r, session, 2 * PAGES);
	fix_expect_fds(worker(), fds + 2);
	ck_assert_int_eq(lease_refused(r, session, 2 * PAGES), ENOSPC);
	put(r, session, 0, 3 * PAGES);
	fix_expect_fds(worker(), fds); /* freed, but for the spare one */
	ck_assert(!made_a_context(fix.pid));
	raw_close(r);
	expect_figure("devices", "segment_bytes", 0);
	fix_expect_fds(worker(), fds - 1);
}
END_TEST

START_TEST(legacy_memory_goes_with_its_worker)
{
	uint32_t session, on_host;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session), *other = client_on(SKV_DEVICE_HOST, &on_host);
	struct skv_msg_seq_name name = {.name = "chat"};

	raw_lease(r, session, 10);
	raw_seq_new(r, session, "chat");
	raw_seq_new(other, on_host, "kept");
	ck_assert_int_eq(kill(worker(), SIGKILL), 0);
	raw_expect_end(r);
	raw_close(r);
	expect_figure("devices", "segment_bytes", 0);
	raw_lease(other, on_host, 10); /* not its affair */
	r = client_on(SKV_DEVICE_CUDA(0), &session);
	name.session = session;
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_ATTACH, &name, sizeof(name), -1), ENOENT);
	raw_lease(r, session, 10);
	raw_close(r);
	raw_close(other);
}
END_TEST

START_TEST(a_device_without_descriptors_needs_legacy)
{
	struct skv_msg_open open = {.model = raw_model("m"), .spec = "full"};
	struct raw *r = raw_hello(fix.socket);

	open.model.device = SKV_DEVICE_CUDA(0);
	steer("no-export", true);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_OPEN, &open, sizeof(open), -1), EOPNOTSUPP);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "set ipc = legacy"));
	raw_close(r);
}
END_TEST

static TCase *add_case(Suite *s, const char *name, void (*set_up)(void))
{
	TCase *t = tcase_create(name);

	tcase_add_checked_fixture(t, set_up, teardown);
	tcase_set_timeout(t, 60);
	suite_add_tcase(s, t);
	return t;
}

int main(void)
{
	Suite *s = suite_create("device");
	TCase *t;
	SRunner *r;
	int failed;

	rnd_seed("test-device");
	t = add_case(s, "device", setup);
	tcase_add_test(t, a_segment_is_made_without_a_context_and_scrubbed);
	tcase_add_test(t, operators_see_devices);
	tcase_add_test(t, another_user_sees_zeros);
	tcase_add_test(t, who_asks_for_more_than_there_is_works_on);
	tcase_add_test(t, two_devices);
	tcase_add_test(t, a_worker_killed_in_the_middle_of_a_scrub_is_replaced);
	tcase_add_test(t, a_worker_that_hangs_holds_nobody_else_up);
	tcase_add_test(t, a_fault_costs_the_worker_and_one_lease);
	tcase_add_test(t, what_is_left_is_given_when_the_rest_cannot_be_had);
	tcase_add_test(t, who_waits_may_leave);
	tcase_add_test(t, few_may_wait);
	tcase_add_test(t, memory_outlives_the_daemon);
	tcase_add_test(t, a_device_without_descriptors_needs_legacy);
	tcase_add_test(t, clients_come_and_go_while_workers_die);
	tcase_add_test(t, a_device_that_is_required_is_there_or_the_start_fails);
	t = add_case(s, "ceiling", setup_ceiling);
	tcase_add_test(t, a_user_has_a_ceiling_there);
	t = add_case(s, "idle", setup_idle);
	tcase_add_test(t, an_idle_worker_ends);
	t = add_case(s, "legacy", setup_legacy);
	tcase_add_test(t, a_legacy_segment_comes_from_the_worker);
	tcase_add_test(t, legacy_memory_goes_with_its_worker);
	tcase_add_test(t, clients_come_and_go_while_workers_die);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
