/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of devices through the daemon's socket: growth, quotas, zeroing, two devices, and a worker that is killed,
 * hangs or gets a fault.
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "tests/support/device-fixture.h"
#include "tests/support/suite.h"

#define OTHER_UID 54321u

static void setup(void)
{
	device_begin(NULL);
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
	ck_assert(made_a_context(worker_pid()));
	ck_assert(!made_a_context(fix.pid));
	ck_assert_int_eq(figure("devices", "segment_bytes"), SEGMENT);
	ck_assert_int_eq(figure("device_accounts", "page_bytes"), 100 * 4096);
	lease_put(r, session, 0, 100);
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
	raw_close(r);
	_exit(0);
}

/* Returns the output of `sparsekvctl COMMAND`; the caller frees it. */
static char *ctl(const char *command)
{
	char line[600], *text = NULL;
	size_t cap = 0;
	FILE *p;

	snprintf(line, sizeof(line), "%s --socket %s %s", fix_built("daemon/ctl/sparsekvctl"), fix.socket,
	         command);
	p = popen(line, "re");
	ck_assert_ptr_nonnull(p);
	ck_assert_int_gt(getdelim(&text, &cap, 0, p), 0);
	ck_assert_int_eq(pclose(p), 0);
	return text;
}

START_TEST(operators_see_devices)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);
	char *text;

	raw_lease(r, session, 100);
	text = ctl("status");
	SAYS(text, "cuda:0    400.0 KiB of pages in use, in 2.0 MiB of segments, of 8.0 MiB");
	SAYS(text, "; Fake 0, 256.0 MiB");
	SAYS(text, "Device memory:\n");
	free(text);
	text = ctl("pool");
	SAYS(text, "cuda:0");
	free(text);
	text = ctl("--json top -n 1 -d 0.05");
	SAYS(text, "\"device\": \"cuda:0\"");
	free(text);
	text = ctl("metrics");
	SAYS(text, "sparsekv_device_segment_bytes{device=\"cuda:0\",uuid=\"GPU-10101010-1010-1010-1010-");
	SAYS(text, "101010101010\"} 2097152\n");
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
	ck_assert_int_eq(lease_refused(r, session, 4 * PAGES), ENOSPC); /* the quota: 4 segments */
	ck_assert_int_eq(figure("devices", "segment_bytes"), SEGMENT);
	raw_lease(r, session, 2 * PAGES);
	steer("oom", true); /* other programs use the device, too */
	ck_assert_int_eq(lease_refused(r, session, PAGES), ENOSPC);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "out of memory (CUDA_ERROR_OUT_OF_MEMORY)"));
	ck_assert_int_eq(figure("devices", "segment_bytes"), 3 * SEGMENT);
	host = open_on(r, SKV_DEVICE_HOST, "on-host", NULL);
	raw_lease(r, host, 100);
	ck_assert_uint_eq(r->segment.segment.handle, SKV_HANDLE_MEMFD);
	steer("oom", false);
	raw_lease(r, session, PAGES);
	lease_put(r, session, 0, PAGES * 3);
	ck_assert_int_eq(figure("devices", "segment_bytes"), 4 * SEGMENT); /* all stay for a while: they may be needed again */
	expect_figure("devices", "segment_bytes", 2 * SEGMENT); /* in use, and a spare one */
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
	json_t *answer, *pools;

	second = open_on(r, SKV_DEVICE_CUDA(1), "m", NULL);
	raw_lease(r, first, 4 * PAGES);
	raw_lease(r, second, 4 * PAGES); /* each has its quota */
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
	/* a client with another numbering names the device by its UUID */
	memset(open.device_uuid, 0x11, sizeof(open.device_uuid));
	open.model.device = SKV_DEVICE_CUDA(0);
	open.model.n_kv_heads = 4; /* a pool of its own */
	raw_ask(r, SKV_MSG_OPEN, &open, sizeof(open), -1);
	answer = raw_query(r, SKV_QUERY_POOLS);
	pools = json_object_get(answer, "pools");
	ck_assert_uint_eq(json_array_size(pools), 3);
	ck_assert_str_eq(json_string_value(json_object_get(json_array_get(pools, 2), "memory")), "cuda:1");
	json_decref(answer);
	memset(open.device_uuid, 0x12, sizeof(open.device_uuid));
	ck_assert_int_eq(raw_refused(r, SKV_MSG_OPEN, &open, sizeof(open), -1), ENODEV);
	ck_assert_str_eq(raw_error_text(r),
	                 "the daemon has no CUDA device GPU-12121212-1212-1212-1212-121212121212");
	/* a sequence cannot move to another device */
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
	ck_assert_int_eq(kill(worker_pid(), SIGKILL), 0);
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
	ck_assert_double_lt(fix_now() - begun, patience(0.9));
	ck_assert_int_eq(raw_recv_answer(r, 10000), SKV_MSG_ERROR); /* two attempts, a second each */
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "did not answer in 1 s"));
	ck_assert_double_gt(fix_now() - begun, 1.9);
	ck_assert_double_lt(fix_now() - begun, patience(4));
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
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);
	struct raw *stays = client_on(SKV_DEVICE_CUDA(0), &others);
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
	lease_put(stays, others, 0, 1);
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

START_TEST(a_user_has_a_quota_there)
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
	device_begin((const char *[]){"--account-cuda-bytes=2M", NULL});
}

static char conf[64];

static void write_conf(const char *text)
{
	FILE *f = fopen(conf, "we");

	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	ck_assert_int_eq(fclose(f), 0);
}

static void setup_conf(void)
{
	char option[80];

	strcpy(conf, "/tmp/sparsekv-conf-XXXXXX");
	close(mkstemp(conf));
	write_conf("account-cuda-bytes = 2M\n");
	snprintf(option, sizeof(option), "--config=%s", conf);
	device_begin((const char *[]){option, NULL});
}

START_TEST(quotas_change_at_run_time)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);

	raw_lease(r, session, PAGES);
	ck_assert_int_eq(lease_refused(r, session, PAGES), EDQUOT);
	/* the second takes effect at the next start */
	write_conf("account-cuda-bytes = 4M\ncuda-segment-bytes = 8M\n");
	ck_assert_int_eq(kill(fix.pid, SIGHUP), 0);
	fix_expect_log(&fix, "reloaded");
	raw_lease(r, session, PAGES);
	ck_assert_uint_eq(r->segment.segment.bytes, SEGMENT);
	ck_assert_int_eq(lease_refused(r, session, 1), EDQUOT);
	raw_close(r);
	ck_assert_int_eq(unlink(conf), 0);
}
END_TEST

START_TEST(an_idle_worker_ends)
{
	uint32_t session;
	struct raw *r = client_on(SKV_DEVICE_CUDA(0), &session);

	raw_lease(r, session, 10);
	ck_assert_int_gt(worker_pid(), 0);
	expect_figure("devices", "worker_pid", 0);
	ck_assert_int_eq(figure("devices", "workers_died"), 0);
	raw_lease(r, session, PAGES);
	ck_assert_int_eq(figure("devices", "workers_started"), 2);
	raw_close(r);
}
END_TEST

static void setup_idle(void)
{
	device_begin((const char *[]){"--cuda-worker-idle=1", NULL});
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
	pid = worker_pid();
	fix_kill(&fix);
	all_are(p, 0x5a);
	for (double end = fix_now() + 20; kill(pid, 0) == 0 && fix_now() < end;)
		fix_sleep_ms(5);
	ck_assert_int_ne(kill(pid, 0), 0); /* the worker has ended with the daemon */
	munmap(p, SEGMENT);
	raw_close(r);
	device_begin(NULL); /* for the teardown */
}
END_TEST

/* common/wire.h has the reason. */
START_TEST(a_huge_device_has_a_pool_that_kernels_address)
{
	const char *const all[] = {"--cuda-pool-bytes=100%", "--cuda-segment-bytes=64M", NULL};
	struct skv_msg_open_ok ok;
	struct raw *r;
	uint32_t session;

	fix_kill(&fix);
	steer("huge", true);
	device_begin(all);
	r = raw_hello(fix.socket);
	session = open_on(r, SKV_DEVICE_CUDA(0), "m", &ok);
	ck_assert_uint_eq(ok.segment_bytes, 64 * MB);
	ck_assert_uint_eq(ok.segment_bytes * ok.max_segments, SKV_DEVICE_POOL_MAX);
	raw_lease(r, session, PAGES);
	ck_assert_int_eq(figure("devices", "pool_limit_bytes"), (int64_t)SKV_DEVICE_POOL_MAX);
	raw_close(r);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-device");

	add_case(s, "device", 60, setup, device_end, a_segment_is_made_without_a_context_and_scrubbed,
	         operators_see_devices, another_user_sees_zeros, who_asks_for_more_than_there_is_works_on,
	         two_devices, a_worker_killed_in_the_middle_of_a_scrub_is_replaced,
	         a_worker_that_hangs_holds_nobody_else_up, a_fault_costs_the_worker_and_one_lease,
	         what_is_left_is_given_when_the_rest_cannot_be_had, who_waits_may_leave, few_may_wait,
	         memory_outlives_the_daemon, a_huge_device_has_a_pool_that_kernels_address, NULL);
	add_case(s, "quota", 60, setup_ceiling, device_end, a_user_has_a_quota_there, NULL);
	add_case(s, "reload", 60, setup_conf, device_end, quotas_change_at_run_time, NULL);
	add_case(s, "idle", 60, setup_idle, device_end, an_idle_worker_ends, NULL);
	return run_suite(s);
}
