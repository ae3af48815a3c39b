/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of libclient with a broken daemon: what it says is checked before it is used, and a wrong message leads to an
 * error that names it, never to a crash.
 *
 * The daemon is a thread of a few lines that serves one client correctly, with one exception: of the nth message of a
 * type some bytes are overwritten, or the test replaces a reply.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/fd.h"
#include "common/seqmem.h"
#include "tests/support/client-test.h"

static struct skv_model model = {
        .size = sizeof(model), .n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .head_dim = 16, .kv_dtype = SKV_F32,
        .max_tokens = 256, .n_ranks = 1, .name = "broken"};

#define PAGES_PER_SEGMENT 16u
#define MAX_SEGMENTS 8u
#define SESSION 5u
#define POOL 3u

/* What is overwritten: `bytes` bytes, at most 8, at `offset` of the packet. */
struct spoil {
	uint16_t type;
	int offset;
	unsigned bytes;
	uint64_t value;
};

static struct peer {
	char dir[64], path[96];
	int listening, fd;
	pthread_t thread;
	struct spoil spoil;
	bool random; /* overwrite some byte of some message */
	/* instead of the correct reply */
	bool no_fds, unsealed, short_file, rubbish_policy, plain_policy, no_segment, twice, rubbish_memory, bad_entry, bad_state;
	uint32_t lease_first; /* first page of leases */
	int lease_error;
	struct skv_control_page *control;
	uint32_t next_page;
	bool announced;
} peer;

/* ---- the daemon ------------------------------------------------------------------------------ */

static void spoil(char *packet, size_t *bytes)
{
	struct skv_msg_header *h = (void *)packet;
	const struct spoil *s = &peer.spoil;

	if (peer.random && rnd_below(3) == 0) {
		for (uint32_t i = rnd_below(4) + 1; i > 0; i--)
			packet[rnd_below((uint32_t)*bytes)] = (char)rnd64();
		if (rnd_below(4) == 0)
			*bytes = rnd_below((uint32_t)*bytes) + 1;
	}
	if (s->type == 0 || (h->type & ~SKV_REPLY) != s->type)
		return;
	memcpy(packet + s->offset, &s->value, s->bytes < sizeof(s->value) ? s->bytes : sizeof(s->value));
}

static void say(uint16_t type, uint32_t serial, const void *body, size_t bytes, const int *fds, unsigned n_fds)
{
	static _Thread_local _Alignas(8) char packet[SKV_WIRE_MAX];
	union {
		struct cmsghdr h;
		char buf[CMSG_SPACE(4 * sizeof(int))];
	} control = {0};
	size_t total = sizeof(struct skv_msg_header) + bytes;
	struct iovec iov = {.iov_base = packet};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	if (peer.no_fds)
		n_fds = 0;
	*(struct skv_msg_header *)packet =
	        (struct skv_msg_header){.length = (uint32_t)total, .type = type, .serial = serial,
	                                .n_fds = (uint16_t)n_fds};
	if (bytes > 0)
		memcpy(packet + sizeof(struct skv_msg_header), body, bytes);
	spoil(packet, &total);
	iov.iov_len = total;
	if (n_fds > 0) {
		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.h = (struct cmsghdr){
		        .cmsg_len = CMSG_LEN(n_fds * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.h), fds, n_fds * sizeof(int));
	}
	sendmsg(peer.fd, &m, MSG_NOSIGNAL);
}

static int memory(size_t bytes)
{
	int fd;

	if (peer.short_file)
		bytes = 1024;
	if (!peer.unsealed)
		return skv_memfd_new("broken", bytes);
	fd = memfd_create("unsealed", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	return fd;
}

static void serve_open(uint32_t serial)
{
	struct skv_msg_open_ok ok = {
	        .session = SESSION,
	        .pool = POOL,
	        .page_bytes = skv_page_bytes(&model),
	        .segment_bytes = skv_page_bytes(&model) * PAGES_PER_SEGMENT,
	        .pages_per_segment = PAGES_PER_SEGMENT,
	        .max_segments = MAX_SEGMENTS,
	        .session_page_bytes = 4096,
	        .policy = {.generation = 1, .plugin = 1, .spec = "full"},
	};
	int file = open(peer.rubbish_policy ? "/etc/passwd" : fix_built("policies/.libs/full.so"), O_RDONLY | O_CLOEXEC);
	int fds[2] = {memory(4096), peer.plain_policy ? dup(file) : skv_memfd_copy_sealed("x", file, SKV_PLUGIN_BYTES_MAX)};

	close(file);
	say(SKV_MSG_OPEN | SKV_REPLY, serial, &ok, sizeof(ok), fds, 2);
	close(fds[0]);
	close(fds[1]);
}

static void announce(uint16_t type, uint32_t segment)
{
	struct skv_msg_segment m = {
	        .pool = POOL, .segment = segment, .bytes = skv_page_bytes(&model) * PAGES_PER_SEGMENT * MAX_SEGMENTS};
	int fd = memory(m.bytes);

	say(type, 0, &m, sizeof(m), &fd, type == SKV_MSG_SEGMENT);
	close(fd);
}

static void announce_all(void)
{
	if (!peer.no_segment)
		announce(SKV_MSG_SEGMENT, 0);
	if (peer.twice)
		announce(SKV_MSG_SEGMENT, 0);
	peer.announced = true;
}

static void serve_seq(uint32_t type, uint32_t serial)
{
	struct skv_seqmem_layout l;
	struct skv_msg_seq_ok ok = {.seq = 9, .max_tokens = model.max_tokens};
	struct skv_seqmem *mem;
	void *map;
	int fd;

	skv_seqmem_layout(&model, model.max_tokens, &l);
	ok.bytes = l.total;
	fd = memory(l.total);
	if (!peer.short_file) {
		ck_assert_int_eq(skv_map_fd(fd, l.total, PROT_READ | PROT_WRITE, 0, &map), 0);
		mem = map;
		if (!peer.rubbish_memory)
			skv_seqmem_init(mem, &l);
		atomic_store(&mem->holder, 1);
		if (type == SKV_MSG_SEQ_ATTACH) { /* of 20 tokens */
			for (uint32_t layer = 0; layer < model.n_layers; layer++)
				for (uint32_t i = 0; i < 2; i++)
					skv_seqmem_table(mem, &l, layer)[i] =
					        peer.bad_entry ? (skv_pte)rnd64() | 0x60000000u
					                       : skv_pte_make(SKV_PTE_PRIVATE, peer.next_page++);
			if (peer.bad_state) /* a page that is not there, a hole, or an invalid entry */
				skv_seqmem_table(mem, &l, model.n_layers)[rnd_below(2)] =
				        rnd_below(2) ? (skv_pte)rnd64() | 0x30000000u
				                     : skv_pte_make(SKV_PTE_PRIVATE, SKV_PTE_ID_MASK);
			atomic_store(&mem->commit, (uint64_t)1 << 32 | 20);
		}
		munmap(map, l.total);
	}
	if (type == SKV_MSG_SEQ_ATTACH) /* the segments that the reply refers to come first */
		announce_all();
	say((uint16_t)(type | SKV_REPLY), serial, &ok, sizeof(ok), &fd, 1);
	close(fd);
}

static void serve_lease(uint32_t serial, const struct skv_msg_lease_get *get)
{
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run run;
	} reply = {.m = {.session = SESSION, .n_runs = 1}};
	struct skv_msg_error error = {.error = peer.lease_error, .text = "there are none"};

	if (peer.lease_error) {
		say(SKV_MSG_ERROR, serial, &error, sizeof(error), NULL, 0);
		return;
	}
	if (!peer.announced)
		announce_all();
	reply.run = (struct skv_wire_run){.first = peer.lease_first + peer.next_page, .count = get->most};
	peer.next_page += get->most;
	say(SKV_MSG_LEASE_GET | SKV_REPLY, serial, &reply, sizeof(reply), NULL, 0);
}

static void *serve(void *unused)
{
	static _Alignas(8) char packet[SKV_WIRE_MAX];
	struct skv_msg_header *h = (void *)packet;

	(void)unused;
	peer.fd = accept4(peer.listening, NULL, NULL, SOCK_CLOEXEC);
	while (recv(peer.fd, packet, sizeof(packet), 0) > 0) {
		struct skv_msg_hello_ok ok = {.version = SKV_PROTO_VERSION, .client = 1, .control_bytes = 4096,
		                              .daemon = "x"};
		void *map;
		int fd;

		switch (h->type) {
		case SKV_MSG_HELLO:
			fd = memory(4096);
			if (skv_map_fd(fd, 4096, PROT_READ | PROT_WRITE, 0, &map) == 0)
				peer.control = map;
			if (peer.control)
				atomic_store(&peer.control->fence[1], 1);
			say(SKV_MSG_HELLO | SKV_REPLY, h->serial, &ok, sizeof(ok), &fd, 1);
			close(fd);
			break;
		case SKV_MSG_OPEN:
			serve_open(h->serial);
			break;
		case SKV_MSG_SEQ_NEW:
		case SKV_MSG_SEQ_ATTACH:
			serve_seq(h->type, h->serial);
			break;
		case SKV_MSG_LEASE_GET:
			serve_lease(h->serial, (const void *)(h + 1));
			break;
		default:
			say(h->type | SKV_REPLY, h->serial, NULL, 0, NULL, 0);
		}
	}
	close(peer.fd);
	return NULL;
}

static void start(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	strcpy(peer.dir, "/tmp/sparsekv-broken-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(peer.dir));
	snprintf(peer.path, sizeof(peer.path), "%s/socket", peer.dir);
	strcpy(a.sun_path, peer.path);
	peer.listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(peer.listening, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(peer.listening, 1), 0);
	ck_assert_int_eq(pthread_create(&peer.thread, NULL, serve, NULL), 0);
}

/* The daemon hangs up and serves no client any more. */
static void hang_up(void)
{
	shutdown(peer.fd, SHUT_RDWR);
	pthread_join(peer.thread, NULL);
}

/* Remove what is left of the daemon. */
static void remove_peer(void)
{
	close(peer.listening);
	if (peer.control)
		munmap(peer.control, 4096);
	unlink(peer.path);
	rmdir(peer.dir);
}

static void stop(void)
{
	pthread_join(peer.thread, NULL);
	remove_peer();
}

/* ---- the client ------------------------------------------------------------------------------ */

static struct skv_client *client;
static struct skv_session *session;
static struct skv_seq *seq;

static int one_step(void)
{
	float rows[20 * 32] = {0};
	int e = skv_step_begin(session, &SKV_STEP_ITEM(.seq = seq, .n_tokens = 20, .flags = SKV_STEP_PROMPT),
	                       1, NULL);

	for (uint32_t layer = 0; layer < model.n_layers && e == 0; layer++)
		e = skv_attend(session, layer, &SKV_ATTN(.q = rows, .k = rows, .v = rows, .out = rows));
	return e < 0 ? e : skv_step_end(session, NULL, NULL);
}

enum stage { CONNECT, OPEN, SEQ, STEP, ALL };

/* Connect, open, create a sequence, step: up to the first failure, whose stage goes to *ret_stage. */
static int scenario(bool attach, enum stage *ret_stage)
{
	int e;

	client = NULL;
	start();
	*ret_stage = CONNECT;
	e = skv_connect(&client, peer.path);
	if (e < 0)
		return e;
	skv_set_timeout(client, 300);
	*ret_stage = OPEN;
	e = skv_open(client, &model, "full", &session);
	if (e < 0)
		return e;
	*ret_stage = SEQ;
	e = attach ? skv_seq_attach(session, "x", &seq) : skv_seq_new(session, NULL, 0, &seq);
	if (e < 0)
		return e;
	*ret_stage = STEP;
	e = one_step();
	if (e == 0)
		*ret_stage = ALL;
	return e;
}

/* The daemon answers in order, so it has also answered the request for pages that a step leaves behind. */
static void await_pages(void)
{
	struct skv_seq *other;

	OK(skv_seq_new(session, NULL, 0, &other));
}

static void finish(void)
{
	skv_disconnect(client);
	stop();
}

static void expect(enum stage where, int error, const char *word)
{
	enum stage stage;
	int e = scenario(false, &stage);

	ck_assert_msg(e == -error && stage == where, "%d at stage %d: %s", e, stage, skv_last_error());
	ck_assert_msg(strstr(skv_last_error(), word), "'%s' does not say '%s'", skv_last_error(), word);
	finish();
}

#define BODY(s, field) (int)(sizeof(struct skv_msg_header) + offsetof(struct s, field)), sizeof(((struct s *)0)->field)
#define HEAD(field) (int)offsetof(struct skv_msg_header, field), sizeof(((struct skv_msg_header *)0)->field)

static const struct {
	struct spoil spoil;
	enum stage where;
	int error;
	const char *word;
} words[] = {
        {{SKV_MSG_HELLO, BODY(skv_msg_hello_ok, version), 7}, CONNECT, EPROTO, "version 7"},
        {{SKV_MSG_HELLO, BODY(skv_msg_hello_ok, control_bytes), 8}, CONNECT, EPROTO, "control page"},
        {{SKV_MSG_HELLO, BODY(skv_msg_hello_ok, control_bytes), 1u << 30}, CONNECT, EPROTO, "control page"},
        {{SKV_MSG_HELLO, HEAD(reserved), 1}, CONNECT, EPROTO, "malformed"},
        {{SKV_MSG_HELLO, HEAD(length), 12}, CONNECT, EPROTO, "malformed"},
        {{SKV_MSG_HELLO, HEAD(serial), 99}, CONNECT, EPROTO, "not made"},
        {{SKV_MSG_HELLO, HEAD(type), SKV_MSG_OPEN | SKV_REPLY}, CONNECT, EPROTO, "malformed"},
        {{SKV_MSG_HELLO, HEAD(type), SKV_MSG_HELLO}, CONNECT, EPROTO, "malformed"},
        {{SKV_MSG_HELLO, HEAD(type), 77}, CONNECT, EPROTO, "malformed"},
        {{SKV_MSG_OPEN, BODY(skv_msg_open_ok, page_bytes), 2048}, OPEN, EPROTO, "pool 3"},
        {{SKV_MSG_OPEN, BODY(skv_msg_open_ok, page_bytes), 0}, OPEN, EPROTO, "zero"},
        {{SKV_MSG_OPEN, BODY(skv_msg_open_ok, segment_bytes), 1}, OPEN, EPROTO, "not exactly filled"},
        {{SKV_MSG_OPEN, BODY(skv_msg_open_ok, pages_per_segment), 15}, OPEN, EPROTO, "not exactly filled"},
        {{SKV_MSG_OPEN, BODY(skv_msg_open_ok, max_segments), 0}, OPEN, EPROTO, "zero"},
        {{SKV_MSG_OPEN, BODY(skv_msg_open_ok, max_segments), 1u << 28}, OPEN, EPROTO, "more pages"},
        {{SKV_MSG_OPEN, BODY(skv_msg_open_ok, session_page_bytes), 8}, OPEN, EPROTO, "session page"},
        {{SKV_MSG_OPEN, BODY(skv_msg_open_ok, session_page_bytes), 1u << 20}, OPEN, EPROTO, "session page"},
        {{SKV_MSG_OPEN, BODY(skv_msg_open_ok, policy.spec), 0x61746c6564}, OPEN, EINVAL, "delta"},
        {{SKV_MSG_SEQ_NEW, BODY(skv_msg_seq_ok, bytes), 4096}, SEQ, EPROTO, "4096"},
        {{SKV_MSG_SEQ_NEW, BODY(skv_msg_seq_ok, max_tokens), 0}, SEQ, EPROTO, "0 tokens"},
        {{SKV_MSG_SEQ_NEW, BODY(skv_msg_seq_ok, max_tokens), 1u << 30}, SEQ, EPROTO, "tokens"},
        {{SKV_MSG_SEQ_NEW, BODY(skv_msg_seq_ok, max_tokens), 8192}, SEQ, EPROTO, "memory"},
        {{SKV_MSG_SEQ_NEW, HEAD(type), SKV_MSG_SEQ_FORK | SKV_REPLY}, SEQ, EPROTO, "not made"},
        {{SKV_MSG_LEASE_GET, BODY(skv_msg_runs, session), 6}, STEP, EPROTO, "not of this session"},
        {{SKV_MSG_LEASE_GET, BODY(skv_msg_runs, n_runs), 0}, STEP, EPROTO, "malformed"},
        {{SKV_MSG_LEASE_GET, BODY(skv_msg_runs, n_runs), 4097}, STEP, EPROTO, "malformed"},
        {{SKV_MSG_SEGMENT, BODY(skv_msg_segment, bytes), 4096}, STEP, EPROTO, "does not fit"},
        {{SKV_MSG_SEGMENT, BODY(skv_msg_segment, segment), 1}, STEP, EPROTO, "does not fit"},
        {{SKV_MSG_SEGMENT, BODY(skv_msg_segment, handle), 9}, STEP, EPROTO, "handle kind 9"},
};

START_TEST(spoilt_words)
{
	peer.spoil = words[_i].spoil;
	expect(words[_i].where, words[_i].error, words[_i].word);
}
END_TEST

START_TEST(spoilt_things)
{
	enum stage stage;

	switch (_i) {
	case 0:
		peer.no_fds = true;
		expect(CONNECT, EPROTO, "malformed");
		break;
	case 1:
		peer.unsealed = true;
		expect(CONNECT, EPROTO, "control page");
		break;
	case 2:
		peer.short_file = true;
		expect(CONNECT, EPROTO, "control page");
		break;
	case 3:
		peer.rubbish_policy = true;
		expect(OPEN, EBADMSG, "ELF");
		break;
	case 4:
		peer.rubbish_memory = true;
		expect(SEQ, EBADMSG, "header");
		break;
	case 5:
		peer.no_segment = true;
		expect(STEP, EPROTO, "in no segment");
		break;
	case 6:
		peer.lease_first = PAGES_PER_SEGMENT * MAX_SEGMENTS;
		expect(STEP, EPROTO, "in no segment");
		break;
	case 7:
		peer.lease_error = ENOSPC;
		expect(STEP, ENOSPC, "there are none");
		break;
	case 8:
		peer.lease_error = EDQUOT;
		expect(STEP, ENOSPC, "there are none");
		break;
	case 9:
		peer.lease_error = EAGAIN; /* for ever */
		expect(STEP, ETIMEDOUT, "");
		break;
	case 10:
		peer.twice = true;
		expect(STEP, EPROTO, "twice");
		break;
	case 11:
		peer.plain_policy = true; /* a process could write to it later */
		expect(OPEN, EPROTO, "not sealed");
		break;
	case 12: /* nothing is wrong */
		ck_assert_int_eq(scenario(false, &stage), 0);
		finish();
		break;
	}
}
END_TEST

/* An attached sequence whose table has impossible entries. */
START_TEST(damaged_tables)
{
	enum stage stage;

	peer.bad_entry = _i % 2;
	peer.bad_state = _i > 0 && !peer.bad_entry;
	if (_i == 0) {
		ck_assert_int_eq(scenario(true, &stage), 0);
		ck_assert_uint_eq(skv_seq_len(seq), 40);
	} else {
		ck_assert_int_eq(scenario(true, &stage), -EBADMSG);
		ck_assert_int_eq(stage, SEQ);
		ck_assert_ptr_nonnull(strstr(skv_last_error(), "damaged"));
	}
	finish();
}
END_TEST

/* Unexpected notices between two steps. Commits are safe, and leased pages can still be used. */
START_TEST(notices)
{
	static const char *const said[] = {"as if it were", "as if it were", "farewell", "malformed"};
	struct skv_msg_error error = {.error = EOVERFLOW, .text = "farewell"};
	enum stage stage;
	int e = 0;

	OK(scenario(false, &stage));
	await_pages();
	switch (_i) {
	case 0:
		announce(SKV_MSG_SEGMENT_GONE, 0);
		break;
	case 1:
		announce(SKV_MSG_SEGMENT_GONE, MAX_SEGMENTS + 1);
		break;
	case 2:
		atomic_store(&peer.control->fence[1], 0);
		say(SKV_MSG_ERROR, 0, &error, sizeof(error), NULL, 0);
		break;
	case 3:
		say(SKV_MSG_QUERY, 0, NULL, 0, NULL, 0);
		break;
	}
	/* leased pages last for a while; after the fence no step counts */
	for (int i = 0; i < 20 && e == 0; i++)
		e = one_step();
	ck_assert_int_eq(e, _i == 2 ? -ECONNRESET : -EPROTO);
	ck_assert_msg(strstr(skv_last_error(), said[_i]), "'%s' does not say '%s'", skv_last_error(), said[_i]);
	ck_assert_msg(_i == 2 ? skv_seq_len(seq) == 20 : skv_seq_len(seq) > 20, "length %u", skv_seq_len(seq));
	finish();
}
END_TEST

/*
 * The daemon hangs up. If it lives, the fence is down and no step counts. If it died, steps go on, and the next daemon
 * is asked, which here never answers.
 */
START_TEST(hung_up)
{
	struct skv_seq *other;
	enum stage stage;

	OK(scenario(false, &stage));
	await_pages();
	hang_up();
	OK(one_step());
	OK(one_step());
	FAILS(skv_seq_attach(session, "none", &other), ETIMEDOUT, "SEQ_ATTACH");
	if (_i)
		atomic_store(&peer.control->fence[1], 0);
	if (_i)
		FAILS(one_step(), ECONNRESET, "the daemon ended the connection");
	else
		OK(one_step());
	skv_disconnect(client);
	remove_peer();
}
END_TEST

/* Whatever the bytes: an error or none, but no crash, and in time. */
START_TEST(random_bytes)
{
	unsigned failed[ALL + 1] = {0};
	int rounds = getenv("SKV_VALGRIND") ? 20 : rnd_takes_all() ? 300 : 100;

	for (int i = 0; i < rounds; i++) {
		enum stage stage;
		int e;

		memset(&peer, 0, sizeof(peer));
		peer.random = i > 0;
		e = scenario(i % 2, &stage);
		ck_assert_int_le(e, 0);
		failed[stage]++;
		if (client)
			skv_set_timeout(client, 100);
		skv_disconnect(client);
		shutdown(peer.listening, SHUT_RDWR);
		stop();
	}
	printf("random bytes: %u failed to connect, %u to open, %u to make a sequence, %u to step; %u went through\n",
	       failed[CONNECT], failed[OPEN], failed[SEQ], failed[STEP], failed[ALL]);
	ck_assert_uint_gt(failed[ALL], 0);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-broken");
	TCase *t = add_case(s, "broken", 60, NULL, NULL, random_bytes, NULL);

	tcase_add_loop_test(t, spoilt_words, 0, (int)(sizeof(words) / sizeof(words[0])));
	tcase_add_loop_test(t, spoilt_things, 0, 13);
	tcase_add_loop_test(t, damaged_tables, 0, 6);
	tcase_add_loop_test(t, notices, 0, 4);
	tcase_add_loop_test(t, hung_up, 0, 2);
	return run_suite(s);
}
