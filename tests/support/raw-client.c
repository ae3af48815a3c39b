/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/raw-client.c - a client that can send anything. See daemon-fixture.h. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/daemon-fixture.h"

#define ANSWER_MS (getenv("SKV_VALGRIND") ? 60000 : 30000)

struct raw *raw_connect(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct raw *r = calloc(1, sizeof(*r));

	ck_assert_ptr_nonnull(r);
	r->segment_fd = -1;
	strcpy(addr.sun_path, path);
	r->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(r->fd, 0);
	if (connect(r->fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
		return r;
	/* EACCES: the socket is there, and does not have its mode yet */
	ck_assert_msg(errno == ECONNREFUSED || errno == ENOENT || errno == EACCES, "%s: %s", path, strerror(errno));
	raw_close(r);
	return NULL;
}

struct raw *raw_operator(const char *socket)
{
	char path[128];

	ck_assert(skv_operators_socket(socket, path, sizeof(path)));
	return raw_hello(path);
}

static void drop_fds(struct raw *r)
{
	for (unsigned i = 0; i < r->n_fds; i++)
		close(r->fds[i]);
	r->n_fds = 0;
}

void raw_close(struct raw *r)
{
	for (unsigned i = 0; i < r->n_sessions; i++) {
		struct {
			struct skv_msg_header h;
			struct skv_msg_session m;
		} packet = {{.length = sizeof(packet), .type = SKV_MSG_CLOSE, .serial = 1}, {r->sessions[i], 0}};

		/* may fail if the daemon has hung up already */
		(void)send(r->fd, &packet, sizeof(packet), MSG_NOSIGNAL);
	}
	raw_hang_up(r);
}

void raw_hang_up(struct raw *r)
{
	drop_fds(r);
	skv_close_fd(r->segment_fd);
	close(r->fd);
	free(r);
}

struct raw *raw_hello(const char *path)
{
	struct skv_msg_hello hello = {.version_min = 1, .version_max = 1, .program = "raw"};
	struct raw *r = raw_connect(path);
	const struct skv_msg_hello_ok *ok;

	ck_assert_ptr_nonnull(r);
	ok = raw_ask(r, SKV_MSG_HELLO, &hello, sizeof(hello), -1);
	ck_assert_uint_eq(ok->version, SKV_PROTO_VERSION);
	ck_assert_uint_ne(ok->client, 0);
	r->client = ok->client;
	ck_assert_uint_eq(r->n_fds, 1);
	return r;
}

/* ---- packets ---- */

void raw_send_packet(struct raw *r, const void *packet, size_t bytes, const int *fds, unsigned n_fds)
{
	union {
		char space[CMSG_SPACE(64 * sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec iov = {(void *)packet, bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (n_fds) {
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, n_fds * sizeof(int));
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
	}
	if (sendmsg(r->fd, &msg, MSG_NOSIGNAL) < 0) /* the daemon may have hung up already; the next read finds out */
		ck_assert_msg(errno == EPIPE || errno == ECONNRESET || errno == EMSGSIZE, "sendmsg: %s",
		              strerror(errno));
}

void raw_send(struct raw *r, uint16_t type, const void *body, size_t bytes, int fd)
{
	struct skv_msg_header h = {.length = (uint32_t)(sizeof(h) + bytes),
	                           .type = type,
	                           .n_fds = fd >= 0,
	                           .serial = ++r->serial};
	char *packet = malloc(sizeof(h) + bytes);

	ck_assert_ptr_nonnull(packet);
	memcpy(packet, &h, sizeof(h));
	if (bytes)
		memcpy(packet + sizeof(h), body, bytes);
	raw_send_packet(r, packet, sizeof(h) + bytes, &fd, fd >= 0);
	free(packet);
}

static void take_fds(struct raw *r, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		ck_assert_int_eq(c->cmsg_type, SCM_RIGHTS);
		r->n_fds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		ck_assert_uint_le(r->n_fds, SKV_WIRE_MAX_FDS);
		memcpy(r->fds, CMSG_DATA(c), r->n_fds * sizeof(int));
	}
}

static void remember_session(struct raw *r)
{
	const struct skv_msg_header *h = (const void *)r->packet;

	if (h->type != (SKV_MSG_OPEN | SKV_REPLY))
		return;
	ck_assert_uint_lt(r->n_sessions, sizeof(r->sessions) / sizeof(r->sessions[0]));
	r->sessions[r->n_sessions++] = ((const struct skv_msg_open_ok *)(const void *)(h + 1))->session;
}

int raw_recv(struct raw *r, int timeout_ms)
{
	struct pollfd p = {.fd = r->fd, .events = POLLIN};
	union {
		char space[CMSG_SPACE(16 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {r->packet, sizeof(r->packet)};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	const char *wrong;
	ssize_t n;

	drop_fds(r);
	if (poll(&p, 1, timeout_ms) == 0)
		return -1;
	n = recvmsg(r->fd, &msg, MSG_CMSG_CLOEXEC);
	if (n < 0 &&
	    errno == ECONNRESET) /* our last packet was not read; replies to earlier ones may still be queued */
		n = recvmsg(r->fd, &msg, MSG_CMSG_CLOEXEC);
	if (n <= 0)
		return 0;
	ck_assert_int_eq(msg.msg_flags & (MSG_CTRUNC | MSG_TRUNC), 0);
	take_fds(r, &msg);
	r->bytes = (size_t)n;
	wrong = skv_wire_check(r->packet, r->bytes, r->n_fds, false);
	ck_assert_msg(!wrong, "the daemon sent a malformed packet: %s", wrong);
	remember_session(r);
	return ((struct skv_msg_header *)r->packet)->type;
}

#define ACK_SERIAL 0x80000000u /* serial of acknowledgements: their replies are skipped */

static void acknowledge(struct raw *r)
{
	struct {
		struct skv_msg_header h;
		struct skv_msg_segment m;
	} ack = {{.length = sizeof(ack), .type = SKV_MSG_SEGMENT_ACK, .serial = ACK_SERIAL}, {0}};

	memcpy(&ack.m, r->packet + sizeof(ack.h), sizeof(ack.m));
	raw_send_packet(r, &ack, sizeof(ack), NULL, 0);
}

int raw_recv_answer(struct raw *r, int timeout_ms)
{
	const struct skv_msg_header *h = (const void *)r->packet;

	for (;;) {
		int type = raw_recv(r, timeout_ms);

		if (type == SKV_MSG_SEGMENT || type == SKV_MSG_SEGMENT_IPC) {
			r->n_segments++;
			memcpy(&r->segment, r->packet + sizeof(*h), r->bytes - sizeof(*h));
			skv_close_fd(r->segment_fd);
			r->segment_fd = r->keep_fd && r->n_fds ? dup(r->fds[0]) : -1;
		} else if (type == SKV_MSG_SEGMENT_GONE) {
			acknowledge(r);
		} else if (type <= 0 || (type != SKV_MSG_WAIT && h->serial != ACK_SERIAL)) {
			return type;
		}
	}
}

void raw_expect_end(struct raw *r)
{
	int type = raw_recv_answer(r, ANSWER_MS);

	if (type == SKV_MSG_ERROR)
		type = raw_recv_answer(r, ANSWER_MS);
	ck_assert_int_eq(type, 0);
}

void raw_client_end(const char *socket, uint32_t client)
{
	struct skv_msg_client m = {.client = client};
	struct raw *r = raw_connect(socket);

	ck_assert_ptr_nonnull(r);
	raw_send(r, SKV_MSG_CLIENT_END, &m, sizeof(m), -1);
	ck_assert_int_gt(raw_recv(r, ANSWER_MS), 0);
	raw_close(r);
}

/* ---- questions ---- */

const void *raw_ask(struct raw *r, uint16_t type, const void *body, size_t bytes, int fd)
{
	const struct skv_msg_header *h = (const void *)r->packet;
	int got;

	raw_send(r, type, body, bytes, fd);
	got = raw_recv_answer(r, ANSWER_MS);
	ck_assert_msg(got != SKV_MSG_ERROR, "%s: %s", skv_wire_name(type), raw_error_text(r));
	ck_assert_int_eq(got, type | SKV_REPLY);
	ck_assert_uint_eq(h->serial, r->serial);
	return h + 1;
}

int raw_refused(struct raw *r, uint16_t type, const void *body, size_t bytes, int fd)
{
	const struct skv_msg_error *e = (const void *)(r->packet + sizeof(struct skv_msg_header));

	raw_send(r, type, body, bytes, fd);
	ck_assert_int_eq(raw_recv_answer(r, ANSWER_MS), SKV_MSG_ERROR);
	ck_assert_uint_eq(((struct skv_msg_header *)r->packet)->serial, r->serial);
	ck_assert_uint_gt(strlen(e->text), 0);
	return e->error;
}

const char *raw_error_text(const struct raw *r)
{
	return ((const struct skv_msg_error *)(const void *)(r->packet + sizeof(struct skv_msg_header)))
	        ->text;
}

json_t *raw_ask_json(struct raw *r, uint16_t type, const void *body, size_t bytes, int fd)
{
	const struct skv_msg_text *t = raw_ask(r, type, body, bytes, fd);
	char *text = NULL;
	size_t len = 0;
	json_t *value;

	for (;;) {
		text = realloc(text, len + t->length);
		ck_assert_ptr_nonnull(text);
		memcpy(text + len, t + 1, t->length);
		len += t->length;
		if (!t->more)
			break;
		ck_assert_int_eq(raw_recv_answer(r, ANSWER_MS), type | SKV_REPLY);
	}
	value = json_loadb(text, len, 0, NULL);
	ck_assert_ptr_nonnull(value);
	free(text);
	return value;
}

json_t *raw_query(struct raw *r, enum skv_query what)
{
	struct skv_msg_query q = {.what = what};

	return raw_ask_json(r, SKV_MSG_QUERY, &q, sizeof(q), -1);
}

uint64_t raw_pool_figure(struct raw *r, const char *field)
{
	json_t *answer = raw_query(r, SKV_QUERY_POOLS);
	json_t *value = json_object_get(json_array_get(json_object_get(answer, "pools"), 0), field);
	uint64_t x = (uint64_t)json_integer_value(value);

	ck_assert(json_is_integer(value));
	json_decref(answer);
	return x;
}

unsigned raw_clients_of(struct raw *r, pid_t pid, uint32_t *ret_client)
{
	json_t *status = raw_query(r, SKV_QUERY_STATUS), *row;
	unsigned n = 0;
	size_t i;

	json_array_foreach(json_object_get(status, "clients"), i, row)
		if (json_integer_value(json_object_get(row, "pid")) == pid && n++ == 0 && ret_client)
			*ret_client = (uint32_t)json_integer_value(json_object_get(row, "client"));
	json_decref(status);
	return n;
}

static uint64_t total_held(struct raw *r)
{
	json_t *status = raw_query(r, SKV_QUERY_STATUS);
	uint64_t x = (uint64_t)json_integer_value(json_object_get(json_object_get(status, "held"), "total"));

	json_decref(status);
	return x;
}

void raw_expect_held(struct raw *r, pid_t pid)
{
	const double end = fix_now() + 10;
	uint64_t before, is, after, least, most;

	/* two queries give different totals if memory changes in between, and closed memory is freed a while later */
	for (;; fix_sleep_ms(10)) {
		before = total_held(r);
		is = fix_held_bytes(pid);
		after = total_held(r);
		least = before < after ? before : after;
		most = before < after ? after : before;
		if (is >= least - least / 100 && is <= most + most / 100)
			return;
		ck_assert_msg(fix_now() < end, "held %llu to %llu, and it is %llu",
		              (unsigned long long)least, (unsigned long long)most, (unsigned long long)is);
	}
}

uint64_t raw_leased(struct raw *r)
{
	json_t *answer = raw_query(r, SKV_QUERY_POOLS), *pools = json_object_get(answer, "pools"), *p;
	uint64_t bytes = 0;
	size_t i;

	json_array_foreach(pools, i, p)
		bytes += (uint64_t)json_integer_value(json_object_get(p, "lease")) *
		         (uint64_t)json_integer_value(json_object_get(p, "page_bytes"));
	json_decref(answer);
	return bytes;
}

struct skv_wire_model raw_model(const char *name)
{
	struct skv_wire_model m = {
		.n_layers = 4,
		.n_heads = 4,
		.n_kv_heads = 2,
		.head_dim = 16,
		.kv_dtype = SKV_F32,
		.max_tokens = 1024,
		.n_ranks = 1,
	};

	skv_wire_string(m.name, sizeof(m.name), name);
	return m;
}

uint32_t raw_open(struct raw *r, const char *model, const char *spec, struct skv_msg_open_ok *ret)
{
	struct skv_wire_model m = raw_model(model);

	return raw_open_model(r, &m, spec, ret);
}

uint32_t raw_open_model(struct raw *r, const struct skv_wire_model *model, const char *spec,
                        struct skv_msg_open_ok *ret)
{
	struct skv_msg_open open = {.model = *model};
	const struct skv_msg_open_ok *ok;

	skv_wire_string(open.spec, sizeof(open.spec), spec);
	ok = raw_ask(r, SKV_MSG_OPEN, &open, sizeof(open), -1);
	ck_assert_uint_eq(r->n_fds, 2);
	if (ret)
		*ret = *ok;
	return ok->session;
}

uint32_t raw_seq_new(struct raw *r, uint32_t session, const char *name)
{
	struct skv_msg_seq_name m = {.session = session};
	const struct skv_msg_seq_ok *ok;

	skv_wire_string(m.name, sizeof(m.name), name);
	ok = raw_ask(r, SKV_MSG_SEQ_NEW, &m, sizeof(m), -1);
	ck_assert_uint_eq(r->n_fds, 1);
	return ok->seq;
}

void raw_lease(struct raw *r, uint32_t session, uint32_t n)
{
	struct skv_msg_lease_get m = {.session = session, .least = n, .most = n};
	const struct skv_msg_runs *ok = raw_ask(r, SKV_MSG_LEASE_GET, &m, sizeof(m), -1);
	const struct skv_wire_run *runs = (const void *)(ok + 1);
	uint32_t got = 0;

	for (uint32_t i = 0; i < ok->n_runs; i++)
		got += runs[i].count;
	ck_assert_uint_eq(got, n);
}

/* Receives the reply to an operator's request; returns 0 or the errno. */
static int answered(struct raw *r, uint16_t request)
{
	const int type = raw_recv_answer(r, ANSWER_MS);

	if (type == SKV_MSG_ERROR)
		return ((const struct skv_msg_error *)(const void *)(r->packet + sizeof(struct skv_msg_header)))->error;
	ck_assert_int_eq(type, request | SKV_REPLY);
	return 0;
}

int raw_policy_load(struct raw *r, const char *file)
{
	struct skv_msg_name m = {0};
	const char *slash = strrchr(file, '/');
	int fd = open(file, O_RDONLY | O_CLOEXEC), sealed;

	ck_assert_msg(fd >= 0, "%s: %s", file, strerror(errno));
	sealed = skv_memfd_copy_sealed("policy", fd, SKV_PLUGIN_BYTES_MAX);
	skv_wire_string(m.name, sizeof(m.name), slash ? slash + 1 : file);
	raw_send(r, SKV_MSG_POLICY_LOAD, &m, sizeof(m), sealed >= 0 ? sealed : fd);
	skv_close_fd(sealed);
	close(fd);
	return answered(r, SKV_MSG_POLICY_LOAD);
}

static int swap(struct raw *r, struct skv_msg_policy_swap m, const char *spec)
{
	skv_wire_string(m.spec, sizeof(m.spec), spec);
	raw_send(r, SKV_MSG_POLICY_SWAP, &m, sizeof(m), -1);
	return answered(r, SKV_MSG_POLICY_SWAP);
}

int raw_policy_swap(struct raw *r, const char *spec)
{
	return swap(r, (struct skv_msg_policy_swap){.all = 1, .uid = UINT32_MAX}, spec);
}

int raw_policy_swap_client(struct raw *r, uint32_t client, const char *spec)
{
	return swap(r, (struct skv_msg_policy_swap){.client = client, .uid = UINT32_MAX}, spec);
}

void raw_send_named(struct raw *r, uint16_t type, const char *model, const char *name)
{
	struct skv_msg_seq_of m = {.uid = getuid()};

	skv_wire_string(m.model, sizeof(m.model), model);
	skv_wire_string(m.name, sizeof(m.name), name);
	raw_send(r, type, &m, sizeof(m), -1);
}

int raw_seq_named(struct raw *r, uint16_t type, const char *model, const char *name)
{
	raw_send_named(r, type, model, name);
	return answered(r, type);
}

void raw_leave_sequence(const char *socket, const char *name)
{
	struct raw *r = raw_hello(socket);
	const uint32_t session = raw_open(r, "m", "full", NULL);

	(void)raw_seq_new(r, session, name);
	raw_close(r);
}

int raw_count_sequences(const char *socket)
{
	struct raw *r = raw_hello(socket);
	json_t *seqs = raw_query(r, SKV_QUERY_SEQS);
	const int n = (int)json_array_size(json_object_get(seqs, "sequences"));

	json_decref(seqs);
	raw_close(r);
	return n;
}

unsigned raw_print_turns(struct raw *operator)
{
	json_t *status = raw_query(operator, SKV_QUERY_STATUS), *row;
	unsigned n_long = 0;
	size_t i;

	json_array_foreach(json_object_get(status, "turns"), i, row) {
		const unsigned n = (unsigned)json_integer_value(json_object_get(row, "long"));

		n_long += n;
		printf("  %-24s %6.2f ms of the processor's time at most, %6.2f ms by the clock; %u took 2 ms or more\n",
		       json_string_value(json_object_get(row, "work")), json_number_value(json_object_get(row, "cpu_max_ms")),
		       json_number_value(json_object_get(row, "max_ms")), n);
	}
	json_decref(status);
	return n_long;
}
