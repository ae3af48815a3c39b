/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/device-fixture.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct fix fix;
char steering[64];

void device_begin(const char *const *more)
{
	const char *options[12] = {"--cuda=auto",           "--cuda-segment-bytes=2M", "--cuda-pool-bytes=8M",
	                           "--cuda-worker-idle=60", "--cuda-worker-timeout=1"};
	size_t n = 5;

	if (!*steering) { /* otherwise this is the test's second daemon */
		strcpy(steering, "/tmp/sparsekv-fake-XXXXXX");
		ck_assert_ptr_nonnull(mkdtemp(steering));
	}
	ck_assert_int_eq(setenv("FAKE_CUDA_DIR", steering, 1), 0);
	ck_assert_int_eq(setenv("LD_LIBRARY_PATH", fix_built("tests/fake-cuda"), 1), 0);
	while (more && *more)
		options[n++] = *more++;
	fix_start_process(&fix, options);
}

void device_end(void)
{
	char command[96];

	fix_stop(&fix); /* checks that the state balances */
	snprintf(command, sizeof(command), "rm -r %s", steering);
	ck_assert_int_eq(system(command), 0);
}

/* Turns a behaviour of the fake driver on or off. */
void steer(const char *what, bool on)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", steering, what);
	if (on)
		ck_assert_int_eq(close(open(path, O_CREAT | O_WRONLY, 0644)), 0);
	else
		ck_assert_int_eq(unlink(path), 0);
}

bool made_a_context(pid_t pid)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/context-%d", steering, (int)pid);
	return access(path, F_OK) == 0;
}

uint32_t open_on(struct raw *r, uint32_t device, const char *name, struct skv_msg_open_ok *ret)
{
	struct skv_wire_model m = raw_model(name);

	m.device = device;
	r->keep_fd = true;
	return raw_open_model(r, &m, "full", ret);
}

struct raw *client_on(uint32_t device, uint32_t *ret_session)
{
	struct raw *r = raw_hello(fix.socket);

	*ret_session = open_on(r, device, "m", NULL);
	return r;
}

int lease_refused(struct raw *r, uint32_t session, uint32_t n)
{
	struct skv_msg_lease_get m = {.session = session, .least = n, .most = n};

	return raw_refused(r, SKV_MSG_LEASE_GET, &m, sizeof(m), -1);
}

/* Sends the request and does not wait. */
void lease_post(struct raw *r, uint32_t session, uint32_t least, uint32_t most)
{
	struct skv_msg_lease_get m = {.session = session, .least = least, .most = most};

	raw_send(r, SKV_MSG_LEASE_GET, &m, sizeof(m), -1);
}

uint32_t lease_result(struct raw *r)
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

void lease_put(struct raw *r, uint32_t session, uint32_t first, uint32_t n)
{
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run run;
	} body = {{.session = session, .n_runs = 1}, {first, n}};

	raw_ask(r, SKV_MSG_LEASE_PUT, &body, sizeof(body), -1);
}

/* A figure of the first device, or of its row for the first account. */
int64_t figure(const char *rows, const char *field)
{
	struct raw *r = raw_operator(fix.socket);
	json_t *answer = raw_query(r, SKV_QUERY_STATUS), *value;
	int64_t x;

	value = json_object_get(json_array_get(json_object_get(answer, rows), 0), field);
	x = json_is_integer(value) ? json_integer_value(value) : -1;
	json_decref(answer);
	raw_close(r);
	return x;
}

void expect_figure(const char *rows, const char *field, int64_t expected)
{
	for (double end = fix_now() + 20; figure(rows, field) != expected && fix_now() < end;)
		fix_sleep_ms(10);
	ck_assert_int_eq(figure(rows, field), expected);
}

pid_t worker_pid(void)
{
	for (double end = fix_now() + 20; figure("devices", "worker_pid") <= 0 && fix_now() < end;)
		fix_sleep_ms(5);
	return (pid_t)figure("devices", "worker_pid");
}

/* Maps the memory of the segment that was announced last. */
unsigned char *segment_map(struct raw *r)
{
	void *p = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, r->segment_fd, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

void all_are(const unsigned char *p, unsigned char value)
{
	size_t i = 0;

	while (i < SEGMENT && p[i] == value)
		i++;
	ck_assert_msg(i == SEGMENT, "byte %zu is %#x, expected %#x", i, i < SEGMENT ? p[i] : value, value);
}
