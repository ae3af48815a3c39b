/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that end in the middle of a step while their process lives: nothing of the step counts, and no byte of
 * another client's page changes, though the process goes on writing to its own pages.
 *
 * The engine is a child process. In each round it stops itself in a step, its connection is ended in one of several
 * ways, all available pages are leased to a tenant of the same user and filled with a pattern, and the engine goes on.
 * FENCE_ROUNDS=10000 (make check-hostile) runs all rounds.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/wire.h"
#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/policies.h"

#define MAX_TOKENS 2000u
#define NAME "engine"

enum way {
	SHUT,    /* the socket is shut down, as by a child process that inherited it */
	BROKEN,  /* the daemon hangs up after an invalid message */
	STALLED, /* it does not end: a process goes on that was stopped while thousands of segments came and went */
	WAYS
};

static struct fix daemon_;
static struct raw *op;
static struct skv_model model;
/* Shared with the engine while it is stopped. */
static struct shared {
	enum way way;
	uint32_t committed; /* length */
	bool last; /* round */
} *shared;

/* ---- the engine ------------------------------------------------------------------------------ */

static struct skv_client *client;
static struct skv_session *session;
static struct skv_seq *seq;

static void stop_here(void)
{
	raise(SIGSTOP);
}

/* The socket of the library's connection: it is connected to the daemon and not the test's own. */
static int library_socket(void)
{
	for (int fd = 3; fd < 1024; fd++) {
		struct sockaddr_un addr = {0};
		socklen_t len = sizeof(addr);

		if (fd != op->fd && getpeername(fd, (struct sockaddr *)&addr, &len) == 0 &&
		    !strcmp(addr.sun_path, daemon_.socket))
			return fd;
	}
	ck_abort_msg("the library has no socket");
}

static void end_connection(void)
{
	int fd = library_socket();

	if (shared->way == SHUT)
		shutdown(fd, SHUT_RDWR);
	else if (shared->way == BROKEN)
		ck_assert_int_eq(send(fd, "x", 1, MSG_NOSIGNAL), 1);
}

/*
 * n tokens. Before layer `break_at` the connection ends, or not, and the process stops. Returns skv_step_end()'s value.
 */
static int step(uint32_t n, uint32_t break_at)
{
	struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .flags = SKV_STEP_PROMPT);
	struct devmem_rows rows = devmem_rows_new(&model, n);
	int e = skv_step_begin(session, &item, 1, devmem_stream());

	for (size_t i = 0; i < rows.kv_bytes / sizeof(float); i++)
		rows.k[i] = rows.v[i] = rows.q[i] = (float)rnd_below(100) / 100;
	for (uint32_t layer = 0; layer < model.n_layers && e == 0; layer++) {
		if (layer == break_at) {
			end_connection();
			stop_here();
		}
		OK(devmem_attend(session, layer, &rows, false));
	}
	if (e == 0)
		e = skv_step_end(session, NULL, NULL);
	devmem_rows_free(&rows);
	return e;
}

/* Attach the sequence as the last round left it, or create it. */
static void take_up(void)
{
	int e = shared->committed ? skv_seq_attach(session, NAME, &seq) : skv_seq_new(session, NAME, 0, &seq);

	ck_assert_msg(e == 0, "%d %s", e, skv_last_error());
	ck_assert_uint_eq(skv_seq_len(seq), shared->committed);
	if (shared->committed < MAX_TOKENS - 200)
		return;
	OK(skv_seq_drop(seq));
	OK(skv_seq_new(session, NAME, 0, &seq));
	shared->committed = 0;
}

static void round_of_engine(void)
{
	OK(skv_connect(&client, daemon_.socket));
	OK(skv_open(client, &model, rnd_below(2) ? "full" : POLICY_SCORES "?budget=64", &session));
	take_up();
	for (uint32_t i = rnd_below(3) + 1; i > 0; i--) {
		uint32_t n = rnd_below(40) + 1;

		OK(step(n, UINT32_MAX));
		shared->committed += n;
	}
	skv_seq_tokens(seq, NULL); /* waits for a device */
	shared->way = (enum way)rnd_below(WAYS);
	if (shared->way == STALLED) {
		OK(step(7, rnd_below(model.n_layers)));
		OK(step(2, UINT32_MAX));
		shared->committed += 9;
	} else {
		FAILS(step(rnd_below(40) + 1, rnd_below(model.n_layers)), ECONNRESET, "");
		FAILS(step(1, UINT32_MAX), ECONNRESET, "");
	}
	ck_assert_uint_eq(skv_seq_len(seq), shared->committed);
	stop_here();
	skv_disconnect(client);
}

/* ---- the tenant ------------------------------------------------------------------------------ */

static struct tenant {
	struct raw *raw;
	struct skv_msg_open_ok pool;
	uint8_t *base;
	struct skv_wire_run runs[SKV_WIRE_MAX_RUNS];
	uint32_t n_runs;
} tenant;

static size_t span(void)
{
	return (size_t)tenant.pool.max_segments * tenant.pool.segment_bytes;
}

static void tenant_open(void)
{
	struct skv_wire_model m = {0};
	void *base = NULL;

	skv_wire_from_model(&m, &model);
	tenant.raw = raw_hello(daemon_.socket);
	tenant.raw->keep_fd = true;
	raw_open_model(tenant.raw, &m, "full", &tenant.pool);
	if (devmem_is_device()) {
		ck_assert_int_eq(devmem_device()->reserve(span(), &base), 0);
	} else {
		ck_assert_uint_eq(tenant.raw->segment.segment.bytes, span());
		base = mmap(NULL, span(), PROT_READ | PROT_WRITE, MAP_SHARED, tenant.raw->segment_fd, 0);
		ck_assert_ptr_ne(base, MAP_FAILED);
	}
	tenant.base = base;
}

/* Map or unmap a segment of a device. */
static void tenant_map(int type, const struct skv_msg_segment *m)
{
	uint8_t *at = tenant.base + m->segment * tenant.pool.segment_bytes;

	if (type == SKV_MSG_SEGMENT)
		ck_assert_int_eq(devmem_device()->map(at, m->bytes, tenant.raw->fds[0], true), 0);
	else
		ck_assert_int_eq(devmem_device()->unmap(at, m->bytes), 0);
}

static const void *tenant_ask(uint16_t type, const void *body, size_t bytes)
{
	struct raw *r = tenant.raw;
	const void *answer = r->packet + sizeof(struct skv_msg_header);

	raw_send(r, type, body, bytes, -1);
	for (;;) {
		int got = raw_recv(r, 10000);
		struct skv_msg_segment m;

		ck_assert_int_gt(got, 0);
		if (got == (int)(type | SKV_REPLY))
			return answer;
		ck_assert_msg(got != SKV_MSG_ERROR, "%s: %s", skv_wire_name(type), raw_error_text(r));
		if (got != SKV_MSG_SEGMENT && got != SKV_MSG_SEGMENT_GONE)
			continue; /* the answer to an acknowledgement */
		memcpy(&m, answer, sizeof(m));
		tenant_map(got, &m);
		if (got == SKV_MSG_SEGMENT_GONE)
			raw_send(r, SKV_MSG_SEGMENT_ACK, &m, sizeof(m), -1);
	}
}

static void tenant_lease_all(void)
{
	struct skv_msg_lease_get get = {.session = tenant.pool.session, .most = 1u << 20};
	const struct skv_msg_runs *ok = tenant_ask(SKV_MSG_LEASE_GET, &get, sizeof(get));

	tenant.n_runs = ok->n_runs;
	memcpy(tenant.runs, ok + 1, ok->n_runs * sizeof(*tenant.runs));
	ck_assert_uint_gt(tenant.n_runs, 0);
}

static void tenant_give_all(void)
{
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run runs[SKV_WIRE_MAX_RUNS];
	} put = {.m = {.session = tenant.pool.session, .n_runs = tenant.n_runs}};

	memcpy(put.runs, tenant.runs, sizeof(put.runs));
	tenant_ask(SKV_MSG_LEASE_PUT, &put, sizeof(put.m) + tenant.n_runs * sizeof(*put.runs));
	tenant.n_runs = 0;
}

static size_t run_bytes(const struct skv_wire_run *run)
{
	return run->count * tenant.pool.page_bytes;
}

/* The first page of a device's segment is the first multiple of a page's bytes in it. */
static uint8_t *page_at(uint32_t page)
{
	const struct skv_msg_open_ok *p = &tenant.pool;
	const uint64_t segment = page / p->pages_per_segment * p->segment_bytes;
	const uint64_t first = (segment + p->page_bytes - 1) / p->page_bytes;

	return tenant.base + (first + page % p->pages_per_segment) * p->page_bytes;
}

/* The contents of the tenant's pages: each page's number, in all words. The caller frees them. */
static uint64_t *pattern(const struct skv_wire_run *run)
{
	size_t n = tenant.pool.page_bytes / sizeof(uint64_t);
	uint64_t *words = malloc(run_bytes(run));

	ck_assert_ptr_nonnull(words);
	for (uint32_t page = 0; page < run->count; page++)
		for (size_t i = 0; i < n; i++)
			words[page * n + i] = (uint64_t)(run->first + page) << 32 | i;
	return words;
}

static void tenant_write(void)
{
	for (uint32_t i = 0; i < tenant.n_runs; i++) {
		const struct skv_wire_run *run = &tenant.runs[i];
		uint64_t *words = pattern(run);

		for (uint32_t k = 0; k < run->count; k++)
			devmem_to(page_at(run->first + k), (uint8_t *)words + k * tenant.pool.page_bytes, tenant.pool.page_bytes);
		free(words);
	}
}

static void tenant_check(void)
{
	for (uint32_t i = 0; i < tenant.n_runs; i++) {
		const struct skv_wire_run *run = &tenant.runs[i];
		uint64_t *words = pattern(run);
		uint8_t *found = malloc(run_bytes(run));

		ck_assert_ptr_nonnull(found);
		for (uint32_t k = 0; k < run->count; k++)
			devmem_from(found + k * tenant.pool.page_bytes, page_at(run->first + k), tenant.pool.page_bytes);
		ck_assert_msg(!memcmp(found, words, run_bytes(run)), "another wrote to one of the %u pages from %u on", run->count,
		              run->first);
		free(found);
		free(words);
	}
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static unsigned rounds(void)
{
	const char *asked = getenv("FENCE_ROUNDS");

	return asked ? (unsigned)atoi(asked) : slowed() ? 6 : 30;
}

static void engine(void)
{
	while (!shared->last)
		round_of_engine();
}

static void until_it_stops(pid_t pid)
{
	int status;

	ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
	ck_assert_msg(WIFSTOPPED(status), "the engine ended with status %#x: %s", (unsigned)status, child_problem());
}

static bool is_fenced(pid_t pid)
{
	json_t *status = raw_query(op, SKV_QUERY_STATUS), *row;
	bool fenced = false;
	size_t i;

	json_array_foreach(json_object_get(status, "clients"), i, row)
		if (json_integer_value(json_object_get(row, "pid")) == pid)
			fenced = json_is_true(json_object_get(row, "fenced"));
	json_decref(status);
	return fenced;
}

/* Wait until the daemon has seen the end of the connection, or until a flood of notices has not ended it. */
static void until_fenced(pid_t pid)
{
	for (double end = fix_now() + 20; shared->way != STALLED && !is_fenced(pid);)
		ck_assert_double_lt(fix_now(), end);
	for (int i = 0; shared->way == STALLED && i < 3; i++) {
		tenant_lease_all();
		tenant_give_all();
	}
}

START_TEST(no_step_counts_and_no_page_is_touched)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		engine();
		_exit(0);
	}
	tenant_open();
	for (unsigned i = 0; i < rounds(); i++) {
		until_it_stops(pid);
		shared->last = i + 1 == rounds();
		until_fenced(pid);
		tenant_lease_all();
		tenant_write();
		kill(pid, SIGCONT);
		until_it_stops(pid);
		tenant_check();
		tenant_give_all();
		kill(pid, SIGCONT);
	}
	child_wait(pid);
	raw_close(tenant.raw);
	for (double end = fix_now() + 5; raw_leased(op) > 0;) /* the engine had reported its end */
		ck_assert_double_lt(fix_now(), end);
}
END_TEST

static void setup(void)
{
	static const char *const options[] = {"--pool-bytes=16M", "--segment-bytes=64K", "--cuda-pool-bytes=32M",
	                                      "--account-cuda-bytes=32M", NULL};

	fix_start_process(&daemon_, options);
	op = raw_operator(daemon_.socket);
	refmodel_model(&model, "fence", SKV_F32, MAX_TOKENS);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(shared, MAP_FAILED);
}

static void teardown(void)
{
	raw_close(op);
	fix_stop(&daemon_);
	munmap(shared, sizeof(*shared));
}

int main(void)
{
	Suite *s = begin_suite("test-client-fence");

	add_case(s, "fence", getenv("FENCE_ROUNDS") ? 3600 : 120, setup, teardown, no_step_counts_and_no_page_is_touched,
	         NULL);
	return run_suite(s);
}
