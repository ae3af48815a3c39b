/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon through its socket: every message, its reply, and when it is refused. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/fd.h"
#include "common/seqmem.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/policies.h"
#include "tests/support/privilege.h"
#include "tests/support/suite.h"

#define OTHER_UID 54321u
#define OPERATOR_GID 54322u

static struct fix fix;
static unsigned fds_before;

static void setup(void)
{
	const char *const options[] = {"--account-clients=4", "--account-sequences=8",
	                                      "--account-bytes=8M", "--hello-timeout=1",
	                                      has_capability(CAP_CHOWN) ? "--operator-group=54322" : NULL, NULL};

	fds_before = fix_count_fds(0);
	fix_start_thread(&fix, options);
}

/* Each test ends with every client gone, a balanced state and no more descriptors than before. */
static void teardown(void)
{
	fix_stop(&fix);
	fix_expect_fds(0, fds_before);
}

/* ---- conversation ---- */

START_TEST(versions_are_agreed_on)
{
	struct skv_msg_hello future = {.version_min = 2, .version_max = 9, .program = "new"};
	struct skv_msg_hello wide = {.version_min = 0, .version_max = 9, .features = ~0ull};
	struct raw *r = raw_connect(fix.socket);
	const struct skv_msg_hello_ok *ok;

	ck_assert_int_eq(raw_refused(r, SKV_MSG_HELLO, &future, sizeof(future), -1), EPROTO);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "versions 2 to 9"));
	raw_expect_end(r);
	raw_close(r);

	r = raw_connect(fix.socket);
	ok = raw_ask(r, SKV_MSG_HELLO, &wide, sizeof(wide), -1);
	ck_assert_uint_eq(ok->version, 1);
	ck_assert_uint_eq(ok->features, 0); /* none are known */
	raw_close(r);
}
END_TEST

START_TEST(hello_comes_first_and_once)
{
	struct skv_msg_hello hello = {.version_min = 1, .version_max = 1};
	struct skv_msg_query q = {.what = SKV_QUERY_STATUS};
	struct raw *r = raw_connect(fix.socket);

	raw_send(r, SKV_MSG_QUERY, &q, sizeof(q), -1);
	raw_expect_end(r);
	raw_close(r);
	r = raw_hello(fix.socket);
	raw_send(r, SKV_MSG_HELLO, &hello, sizeof(hello), -1);
	raw_expect_end(r);
	raw_close(r);
}
END_TEST

START_TEST(silence_is_ended)
{
	struct raw *r = raw_connect(fix.socket);
	double begin = fix_now();

	raw_expect_end(r);
	ck_assert_double_gt(fix_now() - begin, 0.5);
	raw_close(r);
}
END_TEST

START_TEST(the_control_page_is_for_reading)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_control_page *page;
	void *map;

	ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, r->fds[0], 0), MAP_FAILED);
	ck_assert_int_eq(skv_map_fd(r->fds[0], sizeof(*page), PROT_READ, true, &map), 0);
	page = map;
	ck_assert_uint_ge(page->policy_generation, 1);
	ck_assert_uint_gt(page->n_fences, skv_client_row_of(r->client));
	ck_assert_uint_eq(page->fence[skv_client_row_of(r->client)], r->client);
	munmap(map, sizeof(*page));
	raw_close(r);
}
END_TEST

/* ---- sessions ---- */

START_TEST(a_session_is_opened_and_closed)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_msg_open_ok ok;
	struct skv_msg_session m = {.session = raw_open(r, "m", POLICY_WINDOW "?budget=0.5", &ok)};
	json_t *answer;

	ck_assert_uint_eq(ok.page_bytes, 4096);
	ck_assert_uint_eq(ok.segment_bytes, ok.pages_per_segment * ok.page_bytes);
	ck_assert_str_eq(ok.policy.spec, POLICY_WINDOW "?budget=0.5");
	ck_assert_int_eq(fcntl(r->fds[1], F_GET_SEALS) & F_SEAL_WRITE, F_SEAL_WRITE); /* the policy's file */
	answer = raw_query(r, SKV_QUERY_SESSIONS);
	ck_assert_uint_eq(json_array_size(json_object_get(answer, "sessions")), 1);
	json_decref(answer);
	raw_ask(r, SKV_MSG_CLOSE, &m, sizeof(m), -1);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_CLOSE, &m, sizeof(m), -1), ENOENT);
	raw_close(r);
}
END_TEST

static int open_refused(struct raw *r, struct skv_wire_model model, const char *spec)
{
	struct skv_msg_open m = {.model = model};

	skv_wire_string(m.spec, sizeof(m.spec), spec);
	return raw_refused(r, SKV_MSG_OPEN, &m, sizeof(m), -1);
}

START_TEST(a_refused_open_says_why)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_wire_model model = raw_model("m");

	ck_assert_int_eq(open_refused(r, model, "nosuch?budget=3"), ENOENT);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "no policy \"nosuch\" is loaded; loaded are: "));
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), ", full, "));
	ck_assert_int_eq(open_refused(r, model, "Not A Name"), EINVAL);
	ck_assert_int_eq(open_refused(r, model, ""), EINVAL);
	model.head_dim = 17;
	ck_assert_int_eq(open_refused(r, model, "full"), EINVAL);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "head_dim"));
	model = raw_model("m");
	model.device = SKV_DEVICE_CUDA(0);
	ck_assert_int_eq(open_refused(r, model, "full"), EOPNOTSUPP);
	ck_assert_str_eq(raw_error_text(r), "device memory is turned off (cuda = off)");
	model.device = SKV_DEVICE_CUDA(SKV_MAX_DEVICES);
	ck_assert_int_eq(open_refused(r, model, "full"), EINVAL);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "device"));
	model = raw_model("");
	ck_assert_int_eq(open_refused(r, model, "full"), EINVAL);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "name"));
	raw_close(r);
}
END_TEST

/* ---- sequences ---- */

START_TEST(sequences_live_through_all_their_messages)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL), seq = raw_seq_new(r, session, "chat");
	struct skv_msg_seq_name name = {.session = session, .name = "chat"};
	struct skv_msg_seq_name fork = {.session = session, .seq = seq, .n_tokens = SKV_ALL, .name = "fork"};
	struct skv_msg_seq m = {.session = session, .seq = seq};
	const struct skv_msg_seq_ok *ok;
	uint32_t forked;

	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_NEW, &name, sizeof(name), -1), EEXIST);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_ATTACH, &name, sizeof(name), -1), EBUSY);
	ok = raw_ask(r, SKV_MSG_SEQ_FORK, &fork, sizeof(fork), -1);
	forked = ok->seq;
	ck_assert_uint_ne(forked, seq);
	ck_assert_uint_eq(r->n_fds, 1);
	raw_ask(r, SKV_MSG_SEQ_DETACH, &m, sizeof(m), -1);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_DETACH, &m, sizeof(m), -1), ENOENT);
	ok = raw_ask(r, SKV_MSG_SEQ_ATTACH, &name, sizeof(name), -1);
	m.seq = ok->seq;
	ck_assert_uint_eq(ok->max_tokens, 1024);
	raw_ask(r, SKV_MSG_SEQ_DROP, &m, sizeof(m), -1);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_ATTACH, &name, sizeof(name), -1), ENOENT);
	m.seq = forked;
	raw_ask(r, SKV_MSG_SEQ_DROP, &m, sizeof(m), -1);
	raw_close(r);
}
END_TEST

START_TEST(what_is_anothers_is_not_there)
{
	struct raw *a = raw_hello(fix.socket), *b = raw_hello(fix.socket);
	uint32_t session = raw_open(a, "m", "full", NULL), own = raw_open(b, "m", "full", NULL);
	struct skv_msg_seq theirs = {.session = session, .seq = raw_seq_new(a, session, "")}, mixed = theirs;
	struct skv_msg_session s = {.session = session};
	struct skv_msg_lease_get lease = {.session = session, .least = 1, .most = 1};

	mixed.session = own;
	ck_assert_int_eq(raw_refused(b, SKV_MSG_SEQ_DROP, &theirs, sizeof(theirs), -1), ENOENT);
	ck_assert_int_eq(raw_refused(b, SKV_MSG_SEQ_DROP, &mixed, sizeof(mixed), -1), ENOENT);
	ck_assert_int_eq(raw_refused(b, SKV_MSG_CLOSE, &s, sizeof(s), -1), ENOENT);
	ck_assert_int_eq(raw_refused(b, SKV_MSG_POLICY_GET, &s, sizeof(s), -1), ENOENT);
	ck_assert_int_eq(raw_refused(b, SKV_MSG_LEASE_GET, &lease, sizeof(lease), -1), ENOENT);
	raw_close(a);
	raw_close(b);
}
END_TEST

START_TEST(detached_sequences_are_dropped_by_name)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);
	struct skv_msg_seq m = {.session = session, .seq = raw_seq_new(r, session, "chat")};
	struct skv_msg_seq_of drop = {.uid = (uint32_t)getuid(), .model = "m", .name = "chat"};
	json_t *answer;

	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_DROP_NAME, &drop, sizeof(drop), -1), EBUSY);
	raw_ask(r, SKV_MSG_SEQ_DETACH, &m, sizeof(m), -1);
	answer = raw_ask_json(r, SKV_MSG_SEQ_DROP_NAME, &drop, sizeof(drop), -1);
	ck_assert_str_eq(json_string_value(json_object_get(answer, "dropped")), "chat");
	json_decref(answer);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_DROP_NAME, &drop, sizeof(drop), -1), ENOENT);
	raw_close(r);
}
END_TEST

/* ---- leases ---- */

/* Host memory of a pool is announced once to each client. */
START_TEST(memory_is_announced_before_its_pages)
{
	struct raw *r = raw_hello(fix.socket), *other = raw_hello(fix.socket);
	struct skv_msg_open_ok ok;
	uint32_t session = raw_open(r, "m", "full", &ok), late;

	raw_lease(r, session, 3);
	ck_assert_uint_eq(r->n_segments, 1);
	ck_assert_uint_eq(r->segment.segment.bytes, ok.segment_bytes * ok.max_segments);
	raw_lease(r, session, ok.pages_per_segment);
	ck_assert_uint_eq(r->n_segments, 1);
	late = raw_open(other, "m", "full", NULL);
	raw_lease(other, late, 1);
	ck_assert_uint_eq(other->n_segments, 1);
	raw_close(other);
	raw_close(r);
}
END_TEST

START_TEST(pages_go_and_come_back)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run runs[2];
	} put = {{.session = session, .n_runs = 2}, {{0, 4}, {6, 2}}}, bad = put;

	raw_lease(r, session, 10);
	ck_assert_uint_eq(raw_pool_figure(r, "lease"), 10);
	bad.runs[1].first = 9; /* page 10 is not leased */
	ck_assert_int_eq(raw_refused(r, SKV_MSG_LEASE_PUT, &bad, sizeof(bad), -1), EINVAL);
	ck_assert_uint_eq(raw_pool_figure(r, "lease"), 10);
	raw_ask(r, SKV_MSG_LEASE_PUT, &put, sizeof(put), -1);
	ck_assert_uint_eq(raw_pool_figure(r, "lease"), 4);
	put.m.seq = raw_seq_new(r, session, "");
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_RELEASE, &put, sizeof(put), -1),
	                 EINVAL); /* no references there */
	raw_close(r);
}
END_TEST

START_TEST(memory_has_quotas)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);
	struct skv_msg_lease_get m = {
		.session = session, .least = 2049, .most = 4096}; /* 8 MiB are 2048 pages */

	ck_assert_int_eq(raw_refused(r, SKV_MSG_LEASE_GET, &m, sizeof(m), -1), EDQUOT);
	m.least = 4096;
	m.most = 1;
	ck_assert_int_eq(raw_refused(r, SKV_MSG_LEASE_GET, &m, sizeof(m), -1), EINVAL);
	raw_lease(r, session, 2000); /* the session itself takes some, too */
	raw_close(r);
}
END_TEST

START_TEST(accounts_have_quotas)
{
	struct skv_msg_hello hello = {.version_min = 1, .version_max = 1};
	struct raw *all[12], *r;
	uint32_t session;

	for (int i = 0; i < 4; i++)
		all[i] = raw_hello(fix.socket);
	r = raw_connect(fix.socket); /* a client just beyond the limit may still get the error */
	ck_assert_int_eq(raw_refused(r, SKV_MSG_HELLO, &hello, sizeof(hello), -1), EDQUOT);
	raw_expect_end(r);
	raw_close(r);
	for (int i = 4; i < 12; i++)
		all[i] = raw_connect(fix.socket);
	r = raw_connect(fix.socket); /* far beyond the limit, connections are closed at once */
	raw_expect_end(r);
	raw_close(r);

	session = raw_open(all[0], "m", "full", NULL);
	for (int i = 0; i < 8; i++)
		raw_seq_new(all[0], session, "");
	ck_assert_int_eq(raw_refused(all[0], SKV_MSG_SEQ_NEW, &(struct skv_msg_seq_name){.session = session},
	                             sizeof(struct skv_msg_seq_name), -1),
	                 EDQUOT);
	for (int i = 0; i < 12; i++)
		raw_close(all[i]);
}
END_TEST

/* ---- policies ---- */

START_TEST(a_swap_reaches_the_session)
{
	struct raw *r = raw_operator(fix.socket);
	struct skv_msg_session s = {.session = raw_open(r, "m", "full", NULL)};
	struct skv_msg_policy_ack ack = {.session = s.session, .error = EINVAL, .text = "not today"};
	struct skv_msg_policy_swap one = {.session = s.session, .uid = UINT32_MAX, .spec = POLICY_PAGES "?budget=3"};
	struct skv_msg_policy policy;
	uint64_t before;

	policy = *(const struct skv_msg_policy *)raw_ask(r, SKV_MSG_POLICY_GET, &s, sizeof(s), -1);
	ck_assert_str_eq(policy.spec, "full");
	before = policy.generation;
	ck_assert_int_eq(raw_policy_swap(r, POLICY_WINDOW "?budget=9"), 0);
	policy = *(const struct skv_msg_policy *)raw_ask(r, SKV_MSG_POLICY_GET, &s, sizeof(s), -1);
	ck_assert_str_eq(policy.spec, POLICY_WINDOW "?budget=9");
	ck_assert_uint_eq(r->n_fds, 1);
	ck_assert_uint_gt(policy.generation, before);

	/* the client stays with its policy, and reports why */
	ack.generation = policy.generation;
	raw_ask(r, SKV_MSG_POLICY_ACK, &ack, sizeof(ack), -1);
	policy = *(const struct skv_msg_policy *)raw_ask(r, SKV_MSG_POLICY_GET, &s, sizeof(s), -1);
	ck_assert_str_eq(policy.spec, "full");
	ack.generation = 12345;
	ck_assert_int_eq(raw_refused(r, SKV_MSG_POLICY_ACK, &ack, sizeof(ack), -1), EINVAL);

	/* by number; an invalid spec is refused before any client gets it */
	json_decref(raw_ask_json(r, SKV_MSG_POLICY_SWAP, &one, sizeof(one), -1));
	policy = *(const struct skv_msg_policy *)raw_ask(r, SKV_MSG_POLICY_GET, &s, sizeof(s), -1);
	ck_assert_str_eq(policy.spec, POLICY_PAGES "?budget=3");
	one.session = 0; /* all sessions must be asked for explicitly */
	ck_assert_int_eq(raw_refused(r, SKV_MSG_POLICY_SWAP, &one, sizeof(one), -1), EINVAL);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "expected which sessions to swap"));
	one.session = s.session;
	one.all = 1;
	ck_assert_int_eq(raw_refused(r, SKV_MSG_POLICY_SWAP, &one, sizeof(one), -1), EINVAL);
	one.all = 0;
	one.session = 7;
	ck_assert_int_eq(raw_refused(r, SKV_MSG_POLICY_SWAP, &one, sizeof(one), -1), ENOENT);
	ck_assert_int_eq(raw_policy_swap(r, POLICY_PAGES "?layers=99"), EINVAL);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "layer 99"));
	ck_assert_int_eq(raw_policy_swap(r, "nosuch"), ENOENT);
	ck_assert_int_eq(raw_policy_swap(r, POLICY_PAGES "?what=1"), EINVAL);
	policy = *(const struct skv_msg_policy *)raw_ask(r, SKV_MSG_POLICY_GET, &s, sizeof(s), -1);
	ck_assert_str_eq(policy.spec, POLICY_PAGES "?budget=3");
	raw_close(r);
}
END_TEST

/* For a single sequence: its session keeps its own policy. */
START_TEST(a_policy_is_found)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_msg_session s = {.session = raw_open(r, "m", "full", NULL)};
	struct skv_msg_spec find = {.spec = POLICY_PAGES "?budget=3"};
	struct skv_msg_policy policy;

	policy = *(const struct skv_msg_policy *)raw_ask(r, SKV_MSG_POLICY_FIND, &find, sizeof(find), -1);
	ck_assert_str_eq(policy.spec, POLICY_PAGES "?budget=3");
	ck_assert_uint_eq(policy.generation, 0);
	ck_assert_uint_eq(r->n_fds, 1);
	policy = *(const struct skv_msg_policy *)raw_ask(r, SKV_MSG_POLICY_GET, &s, sizeof(s), -1);
	ck_assert_str_eq(policy.spec, "full");
	skv_wire_string(find.spec, sizeof(find.spec), "nosuch?budget=3");
	ck_assert_int_eq(raw_refused(r, SKV_MSG_POLICY_FIND, &find, sizeof(find), -1), ENOENT);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "no policy \"nosuch\" is loaded"));
	skv_wire_string(find.spec, sizeof(find.spec), "?");
	ck_assert_int_eq(raw_refused(r, SKV_MSG_POLICY_FIND, &find, sizeof(find), -1), EINVAL);
	raw_close(r);
}
END_TEST

/* ---- queries ---- */

START_TEST(queries_answer_in_json)
{
	static const char *const lists[] = {"accounts", "sequences", "policies", "pools", "sessions"};
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);
	struct skv_msg_query bad = {.what = 99};

	raw_seq_new(r, session, "chat");
	raw_lease(r, session, 1);
	for (enum skv_query q = SKV_QUERY_STATUS; q <= SKV_QUERY_SESSIONS; q++) {
		json_t *answer = raw_query(r, q);

		ck_assert_uint_ge(json_array_size(json_object_get(answer, lists[q - 1])), 1);
		json_decref(answer);
	}
	ck_assert_int_eq(raw_refused(r, SKV_MSG_QUERY, &bad, sizeof(bad), -1), EINVAL);
	raw_close(r);
}
END_TEST

START_TEST(an_acknowledgement_names_a_segment)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_msg_segment m = {.pool = 77, .segment = 0};

	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEGMENT_ACK, &m, sizeof(m), -1), EINVAL);
	raw_lease(r, raw_open(r, "m", "full", NULL), 1);
	m = r->segment.segment;
	raw_ask(r, SKV_MSG_SEGMENT_ACK, &m, sizeof(m), -1); /* no acknowledgement is pending: harmless */
	raw_close(r);
}
END_TEST

/* ---- users ---- */

/* Returns the errno of a connection to the operators' socket, or 0. */
static int connect_to_operators(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	SKV_FD_CLEANUP int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	ck_assert(skv_operators_socket(fix.socket, addr.sun_path, sizeof(addr.sun_path)));
	return connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? errno : 0;
}

static void as_another_user(void *arg)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);
	struct skv_msg_seq_name attach = {.session = session, .name = "roots"};
	struct skv_msg_seq_of drop = {.uid = 0, .model = "m", .name = "roots"};
	json_t *answer;

	(void)arg;
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_ATTACH, &attach, sizeof(attach), -1), ENOENT);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_DROP_NAME, &drop, sizeof(drop), -1), EPERM);
	ck_assert_int_eq(raw_policy_swap(r, "full"), EPERM);
	ck_assert_int_eq(connect_to_operators(), EACCES);
	raw_lease(r, session, 5);
	answer = raw_query(r, SKV_QUERY_SEQS); /* only its own rows */
	ck_assert_uint_eq(json_array_size(json_object_get(answer, "sequences")), 0);
	json_decref(answer);
	answer = raw_query(r, SKV_QUERY_POOLS);
	ck_assert_uint_eq(json_array_size(json_object_get(answer, "pools")), 1);
	json_decref(answer);
	raw_close(r);
}

static void as_operator(void *arg)
{
	gid_t gid = OPERATOR_GID;
	struct raw *r;
	json_t *answer;

	(void)arg;
	ck_assert_int_eq(setgroups(1, &gid), 0);
	ck_assert_int_eq(setgid(OTHER_UID), 0);
	ck_assert_int_eq(setuid(OTHER_UID), 0);
	r = raw_operator(fix.socket);
	ck_assert_int_eq(raw_policy_swap(r, "full"), 0);
	answer = raw_query(r, SKV_QUERY_SEQS); /* of all users */
	ck_assert_uint_eq(json_array_size(json_object_get(answer, "sequences")), 1);
	json_decref(answer);
	raw_close(r);
}

START_TEST(users_are_kept_apart)
{
	struct raw *r;

	if (!can_change_user())
		return; /* all other tests are for one user */
	r = raw_hello(fix.socket);
	raw_seq_new(r, raw_open(r, "m", "full", NULL), "roots");
	ck_assert_int_eq(raw_policy_swap(r, "full"), EPERM); /* for example root in a container that sees this socket */
	fix_in_child(OTHER_UID, as_another_user, NULL);
	fix_in_child(0, as_operator, NULL);
	raw_close(r);
}
END_TEST

/* ---- slow readers, long answers ---- */

START_TEST(who_does_not_read_waits_alone)
{
	struct raw *slow = raw_hello(fix.socket), *quick = raw_hello(fix.socket);
	enum { N = 4000 }; /* more replies than socket and queue hold */
	struct skv_msg_query q = {.what = SKV_QUERY_POLICIES};
	unsigned sent = 0, got = 0;
	double begin;

	ck_assert_int_eq(fcntl(slow->fd, F_SETFL, O_NONBLOCK), 0);
	while (sent < N) {
		struct {
			struct skv_msg_header h;
			struct skv_msg_query q;
		} m = {{.length = sizeof(m), .type = SKV_MSG_QUERY, .serial = 100 + sent}, q};

		if (send(slow->fd, &m, sizeof(m), MSG_NOSIGNAL) < 0)
			break; /* the daemon reads no more of our requests */
		sent++;
	}
	ck_assert_uint_lt(sent, N);
	begin = fix_now();
	for (int i = 0; i < 100; i++)
		json_decref(raw_query(quick, SKV_QUERY_STATUS));
	ck_assert_double_lt(fix_now() - begin, patience(5));
	ck_assert_int_eq(fcntl(slow->fd, F_SETFL, 0), 0);
	while (got < sent) { /* no reply was lost */
		ck_assert_int_eq(raw_recv_answer(slow, 10000), SKV_MSG_QUERY | SKV_REPLY);
		ck_assert_uint_eq(((struct skv_msg_header *)slow->packet)->serial, 100 + got);
		got += !((const struct skv_msg_text *)(slow->packet + sizeof(struct skv_msg_header)))->more;
	}
	raw_close(slow);
	raw_close(quick);
}
END_TEST

static unsigned sessions_left(struct raw *r)
{
	json_t *answer = raw_query(r, SKV_QUERY_SESSIONS);
	unsigned n = (unsigned)json_array_size(json_object_get(answer, "sessions"));

	json_decref(answer);
	return n;
}

static _Atomic bool receiving_takes_long;

/* The daemon runs in a thread of this program, so it calls this function in place of the C library's. */
ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	if (flags & MSG_DONTWAIT && receiving_takes_long)
		fix_sleep_ms(200);
	return syscall(SYS_recvmsg, fd, msg, flags);
}

/*
 * A client that hangs up with unread replies resets the connection. The daemon's next receive then fails with
 * ECONNRESET, even if it has peeked at the client's last message before. The receive after that returns the message.
 */
START_TEST(the_last_request_is_served_though_replies_are_unread)
{
	struct raw *r = raw_hello(fix.socket), *watcher = raw_hello(fix.socket);
	struct skv_msg_session m = {.session = raw_open(r, "m", POLICY_WINDOW, NULL)};
	const struct skv_msg_query q = {.what = SKV_QUERY_STATUS};

	raw_send(r, SKV_MSG_QUERY, &q, sizeof(q), -1);
	ck_assert_int_eq(poll(&(struct pollfd){.fd = r->fd, .events = POLLIN}, 1, 10000), 1);
	receiving_takes_long = true;
	raw_send(r, SKV_MSG_CLOSE, &m, sizeof(m), -1);
	fix_sleep_ms(100); /* the daemon has peeked at it */
	raw_hang_up(r);
	receiving_takes_long = false;
	for (double end = fix_now() + 10; sessions_left(watcher) && fix_now() < end;)
		fix_sleep_ms(10);
	ck_assert_uint_eq(sessions_left(watcher), 0);
	raw_close(watcher);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-server");

	add_case(s, "messages", 60, setup, teardown, versions_are_agreed_on, hello_comes_first_and_once,
	         silence_is_ended, the_control_page_is_for_reading, a_session_is_opened_and_closed,
	         a_refused_open_says_why, sequences_live_through_all_their_messages,
	         what_is_anothers_is_not_there, detached_sequences_are_dropped_by_name,
	         memory_is_announced_before_its_pages, pages_go_and_come_back, memory_has_quotas,
	         accounts_have_quotas, a_swap_reaches_the_session, a_policy_is_found, queries_answer_in_json,
	         an_acknowledgement_names_a_segment, users_are_kept_apart, who_does_not_read_waits_alone,
	         the_last_request_is_served_though_replies_are_unread, NULL);
	return run_suite(s);
}
