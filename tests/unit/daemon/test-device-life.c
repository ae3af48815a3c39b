/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: missing drivers, CUDA IPC handles, and everything at the same time. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/device-fixture.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static bool legacy;

static void setup(void)
{
	device_begin(NULL);
}

static void setup_legacy(void)
{
	legacy = true;
	device_begin((const char *[]){"--ipc=legacy", NULL});
}

/* ---- everything at the same time ---- */

/* A client that leases and returns pages, with and without waiting, and disconnects in between. */
static void restless(void *seed)
{
	uint32_t session;
	struct raw *r;

	rnd_begin(*(const uint64_t *)seed);
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
		lease_put(r, session, first, 1);
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
				/* with CUDA IPC the worker's end may end the client, too */
				ck_assert(status == 0 || legacy);
				clients[i] = 0;
			}
			if (!clients[i] && left) {
				uint64_t seed = rnd64();

				left--;
				clients[i] = child_fork();
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

	snprintf(command, sizeof(command),
	         "timeout 10 %s --config=/dev/null --policy-path= --socket=%s.2 %s 2>%s/said", fix_built("daemon/sparsekvd"), fix.socket, cuda, steering);
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

/* Starts a client that hangs up with leased pages and lives on for `ms`. */
static pid_t hang_up_and_live(unsigned ms)
{
	int told[2];
	pid_t pid;
	char c;

	ck_assert_int_eq(pipe(told), 0);
	pid = child_fork();
	if (pid == 0) {
		uint32_t session;
		struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);

		raw_lease(r, session, 10);
		raw_hang_up(r);
		ck_assert_int_eq(write(told[1], "", 1), 1);
		fix_sleep_ms(ms);
		_exit(0);
	}
	ck_assert_int_eq(read(told[0], &c, 1), 1);
	close(told[0]);
	close(told[1]);
	return pid;
}

START_TEST(pages_wait_for_the_process_that_hung_up)
{
	double begun = fix_now();
	pid_t pid = hang_up_and_live(300);

	ck_assert_int_eq(figure("device_accounts", "page_bytes"), 10 * 4096);
	expect_figure("device_accounts", "page_bytes", -1); /* no account has any */
	ck_assert_double_ge(fix_now() - begun, 0.3);
	ck_assert_double_lt(fix_now() - begun, patience(0.9));
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);

	/* for as long as the process lives */
	pid = hang_up_and_live(10000);
	fix_sleep_ms(1500);
	ck_assert_int_eq(figure("device_accounts", "page_bytes"), 10 * 4096);
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	expect_figure("device_accounts", "page_bytes", -1);
}
END_TEST

START_TEST(a_device_that_is_required_is_there_or_the_start_fails)
{
	char path[256];
	FILE *f;

	setenv("LD_LIBRARY_PATH", steering, 1);
	if (access("/dev/nvidiactl", F_OK) != 0) {
		ck_assert_int_eq(start_daemon("--cuda=required"), 1 << 8);
		ck_said("cuda = required, but the first CUDA device cannot be used: cuda:0: there is no CUDA driver");
	}
	/* another file by that name */
	snprintf(path, sizeof(path), "%s/libcuda.so.1", steering);
	f = fopen(path, "w");
	fputs("not a library", f);
	fclose(f);
	ck_assert_int_eq(start_daemon("--cuda=required"), 1 << 8);
	ck_said("there is no CUDA driver: ");
}
END_TEST

/* ---- CUDA IPC handles ---- */

static unsigned char *ipc_map(const struct raw *r)
{
	char path[48];
	int fd;
	void *p;

	ck_assert_uint_eq(r->segment.segment.handle, SKV_HANDLE_CUDA_IPC);
	memcpy(path, r->segment.ipc_handle, sizeof(path)); /* the fake handle says where the memory is */
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
	fds = fix_settled_fds(worker_pid());
	raw_lease(r, session, 2 * PAGES);
	fix_expect_fds(worker_pid(), fds + 2);
	ck_assert_int_eq(lease_refused(r, session, 2 * PAGES), ENOSPC);
	lease_put(r, session, 0, 3 * PAGES);
	fix_expect_fds(worker_pid(), fds); /* freed, except for the spare one */
	ck_assert(!made_a_context(fix.pid));
	raw_close(r);
	expect_figure("devices", "segment_bytes", 0);
	fix_expect_fds(worker_pid(), fds - 1);
}
END_TEST

START_TEST(legacy_memory_goes_with_its_worker)
{
	uint32_t session, on_host;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);
	struct raw *other = client_on(SKV_DEVICE_HOST, &on_host);
	struct skv_msg_seq_name name = {.name = "chat"};

	raw_lease(r, session, 10);
	raw_seq_new(r, session, "chat");
	raw_seq_new(other, on_host, "kept");
	ck_assert_int_eq(kill(worker_pid(), SIGKILL), 0);
	raw_expect_end(r);
	raw_close(r);
	expect_figure("devices", "segment_bytes", 0);
	raw_lease(other, on_host, 10); /* host memory is not affected */
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

int main(void)
{
	Suite *s = begin_suite("test-device-life");

	add_case(s, "vmm", 60, setup, device_end, clients_come_and_go_while_workers_die,
	         pages_wait_for_the_process_that_hung_up,
	         a_device_that_is_required_is_there_or_the_start_fails,
	         a_device_without_descriptors_needs_legacy, NULL);
	add_case(s, "legacy", 60, setup_legacy, device_end, a_legacy_segment_comes_from_the_worker,
	         legacy_memory_goes_with_its_worker, clients_come_and_go_while_workers_die, NULL);
	return run_suite(s);
}
