/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core whose process was killed is resumed in another process, from the state and the stored descriptors: clients and
 * sequences are unchanged, the state balances, and clients continue as if nothing had happened. If a file is missing or
 * wrong, what was in it is lost, and nothing else.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/core/state/fdstore.h"
#include "tests/support/child.h"
#include "tests/support/core-victim.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define ROUNDS 200

static int n_lost;
static char lost_name[64];

static void lost(void *ctx, const char *name, const char *why)
{
	(void)ctx;
	ck_assert_str_ne(why, "");
	snprintf(lost_name, sizeof(lost_name), "%s", name);
	n_lost++;
}

static int client(void *ctx, const struct skv_core_past_client *c)
{
	(void)ctx;
	ck_assert_uint_ge(c->uid, 1000);
	ck_assert_int_eq(c->pidfd, -1);
	return 0;
}

static int no_device(void *ctx, struct skv_core *c, uint32_t device)
{
	(void)ctx, (void)c, (void)device;
	return 1;
}

/* Closes the core's own descriptors like those of a process that ended, and resumes. Then closes what is unclaimed. */
static int resume(struct skv_core_found *found, size_t n, size_t *ret_unclaimed, const char **ret_why)
{
	const struct skv_core_past past = {.found = found, .n = n, .device = no_device, .client = client, .lost = lost};
	const struct skv_core_config config = core->config;
	int r;

	core = skv_core_abandon(core);
	r = skv_core_resume(&config, &mem.ops, &past, &core, ret_why);
	*ret_unclaimed = 0;
	for (size_t i = 0; i < n; i++) {
		*ret_unclaimed += !found[i].claimed;
		skv_close_fd(found[i].fd);
	}
	free(found);
	if (r == 0)
		books_watch();
	return r;
}

static int resume_all(size_t *ret_unclaimed, const char **ret_why)
{
	size_t n;
	struct skv_core_found *found = victim_stored(&n);

	return resume(found, n, ret_unclaimed, ret_why);
}

/* ---- killed ---------------------------------------------------------------------------------- */

static bool holds(const struct peer *p, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&core->state, skv_state_find(&core->state, SKV_TABLE_SEQUENCES, seq));

	return q->session == skv_state_find(&core->state, SKV_TABLE_SESSIONS, p->session.session);
}

/* The client detaches the sequence, if it holds it, and attaches it again. */
static void change_hands(int i)
{
	struct peer *p = &victim_peers[i / (VICTIM_SEQS / VICTIM_PEERS)];
	const uint32_t len = held_len(&victim_held[i]);
	struct skv_core_seq_info info;
	char name[8];

	snprintf(name, sizeof(name), "s%d", i);
	if (holds(p, victim_held[i].seq))
		ck_assert_msg(in_turns(skv_core_seq_detach(core, p->client, p->session.session, victim_held[i].seq), NULL) == 0, "%s: %s", name,
		              skv_core_why(core));
	ck_assert_msg(in_turns(skv_core_seq_attach(core, p->client, p->session.session, name, &info), &info) == 0, "%s: %s", name,
	              skv_core_why(core));
	ck_assert_uint_eq(info.seq, victim_held[i].seq);
	ck_assert_uint_eq(held_len(&victim_held[i]), len);
	skv_core_commit(core);
}

static void go_on(void)
{
	struct skv_wire_run runs[64];
	struct held child;
	uint32_t n;

	for (int i = 0; i < VICTIM_SEQS; i++)
		if (rnd_below(2))
			change_hands(i);
	books_even();
	for (int i = 0; i < VICTIM_PEERS; i++) {
		struct peer *p = &victim_peers[i];
		const uint32_t seq = (uint32_t)i * VICTIM_SEQS / VICTIM_PEERS;

		(void)skv_core_lease_get(core, p->client, p->session.session, 0, 30, runs, 64, &n);
		if (holds(p, victim_held[seq].seq) && held_fork(&child, &victim_held[seq], p, "child") == 0) {
			ck_assert_uint_eq(held_len(&child), held_len(&victim_held[seq]));
			ck_assert_int_eq(held_detach(&child, p), 0);
		}
		books_even();
	}
}

static void end_all(void)
{
	for (int i = 0; i < VICTIM_PEERS; i++)
		client_gone(victim_peers[i].client);
	ck_assert_msg(n_corrupt == 0, "%s", corrupt_why);
	books_even();
	for (int i = 0; i < VICTIM_SEQS; i++) {
		char name[8];

		snprintf(name, sizeof(name), "s%d", i);
		ck_assert_msg(books_has_seq(name), "%s is not there", name);
	}
	skv_core_drop_all(core);
	ck_assert_ptr_null(skv_core_balance(core, true));
}

static void round_of(int i)
{
	const char *why;
	size_t unclaimed;

	rnd_begin((uint64_t)i);
	victim_setup();
	victim_kill(6000);
	ck_assert_msg(resume_all(&unclaimed, &why) == 0, "%s", why);
	ck_assert_int_eq(n_lost, 0);
	ck_assert_uint_le(unclaimed, 3); /* of the change that was not committed, or whose removals were not told */
	books_even();
	go_on();
	end_all();
}

START_TEST(killed)
{
	for (int i = 0; i < ROUNDS; i++) {
		pid_t pid = child_fork();

		if (pid == 0) {
			round_of(i);
			_exit(0);
		}
		child_wait(pid);
	}
}
END_TEST

/* ---- in the middle of work that takes turns ---------------------------------------------------- */

enum work { DETACH, ATTACH, FORK, DROP, DROP_NAME, GONE, WORKS };

static struct peer one;
static struct held big;

static void setup_big(void)
{
	struct skv_core_config config = books_config();
	struct skv_model m = test_model("m", 64, 16);

	n_lost = 0;
	config.pool_bytes = config.account_bytes = UINT64_C(96) << 20;
	books_open(&config);
	victim_store();
	peer_join(&one, 1000, &m);
	held_new(&big, &one, "big", 8000);
	held_append(&big, &one, 7990);
	books_even();
}

static int request(enum work w, struct skv_core_seq_info *info)
{
	const uint32_t client = one.client, session = one.session.session;

	switch (w) {
	case DETACH: return skv_core_seq_detach(core, client, session, big.seq);
	case ATTACH: return skv_core_seq_attach(core, client, session, "big", info);
	case FORK: return skv_core_seq_fork(core, client, session, big.seq, "child", SKV_ALL, info);
	case DROP: return skv_core_seq_drop(core, client, session, big.seq);
	case DROP_NAME: return skv_core_seq_drop_name(core, 1000, "m", "big");
	case GONE:
	case WORKS: break;
	}
	return skv_core_client_gone(core, client, 0);
}

/* Makes up to n turns. True: the work has ended. */
static bool take_turns(uint32_t n)
{
	struct skv_core_done done = {.more = true};

	for (uint32_t i = 0; i < n && done.more; i++) {
		skv_core_work(core, 3000, &done);
		skv_core_commit(core);
	}
	return !done.more;
}

static void check_end(enum work w, struct skv_core_seq_info *info)
{
	switch (w) {
	case DETACH:
	case ATTACH:
	case GONE:
		ck_assert(books_has_seq("big"));
		ck_assert_uint_eq(books_seq("big").tokens, 7990);
		ck_assert_int_eq(books_seq("big").client != 0, w == ATTACH);
		break;
	case FORK:
		ck_assert_uint_eq(books_seq("big").tokens, 7990);
		ck_assert_uint_eq(books_seq("child").tokens, 7990);
		ck_assert_uint_eq(books_seq("child").seq, info->seq);
		break;
	default: ck_assert(!books_has_seq("big")); break;
	}
	ck_assert_uint_eq(n_corrupt, 0);
	books_even();
}

/*
 * A child of a fork, or an attached sequence, of which the client was not told: it does not know that it holds it, and
 * releases it before it asks again.
 */
static void let_go_of_unknown(enum work w)
{
	const uint32_t client = one.client, session = one.session.session;

	if (w == FORK && books_has_seq("child"))
		(void)in_turns(skv_core_seq_drop(core, client, session, books_seq("child").seq), NULL);
	if (w == ATTACH && books_seq("big").client)
		ck_assert_int_eq(in_turns(skv_core_seq_detach(core, client, session, big.seq), NULL), 0);
}

START_TEST(turns)
{
	const enum work w = (enum work)(_i % WORKS);
	struct skv_core_seq_info info = {0};
	size_t unclaimed;
	const char *why;
	bool ended;
	int r;

	rnd_begin((uint64_t)_i);
	setup_big();
	if (w == ATTACH || w == DROP_NAME)
		ck_assert_int_eq(in_turns(request(DETACH, NULL), NULL), 0);
	skv_core_commit(core);
	(void)request(w, &info);
	skv_core_commit(core);
	ended = take_turns(rnd_below(60));
	ck_assert_msg(resume_all(&unclaimed, &why) == 0, "%s", why);
	ck_assert_int_eq(n_lost, 0);
	books_even();
	let_go_of_unknown(w);
	if (!ended || w == FORK || w == ATTACH) {
		r = in_turns(request(w, &info), &info);
		/* the work may be complete, and only the answer be missing */
		ck_assert_msg(r == 0 || ((w == DROP || w == DROP_NAME) && r == SKV_CORE_E_NOENT), "%d: %s", r, skv_core_why(core));
	}
	skv_core_work_all(core);
	check_end(w, &info);
	if (w != GONE)
		client_gone(one.client);
	skv_core_drop_all(core);
	ck_assert_ptr_null(skv_core_balance(core, true));
}
END_TEST

/* ---- missing files ----------------------------------------------------------------------------- */

static struct skv_core_found *find(struct skv_core_found *found, size_t n, const char *name)
{
	size_t at = 0;

	while (at < n && strcmp(found[at].name, name) != 0)
		at++;
	ck_assert_msg(at < n, "%s was not kept", name);
	return &found[at];
}

/* Resumes with everything that was stored, but with `fd` under this name. */
static int resume_with(const char *name, int fd, const char **ret_why)
{
	size_t n, unclaimed;
	struct skv_core_found *found = victim_stored(&n), *at = find(found, n, name);

	close(at->fd);
	at->fd = fd;
	if (fd < 0)
		*at = found[--n];
	return resume(found, n, &unclaimed, ret_why);
}

static void setup(void)
{
	n_lost = 0;
	victim_setup();
}

static void name_of_seq(int i, char ret[SKV_FDSTORE_NAME])
{
	skv_fdstore_name(&core->state, SKV_TABLE_SEQUENCES, skv_state_find(&core->state, SKV_TABLE_SEQUENCES, victim_held[i].seq), ret);
}

/* Two files of two users have each other's names: both count as missing, and neither user gets the other's. */
START_TEST(exchanged)
{
	char a[SKV_FDSTORE_NAME], b[SKV_FDSTORE_NAME];
	struct skv_core_found *found, *x, *y;
	size_t n, unclaimed;
	const char *why;
	int fd;

	setup();
	name_of_seq(0, a);
	name_of_seq(VICTIM_SEQS / VICTIM_PEERS, b);
	if (_i) {
		skv_fdstore_name(&core->state, SKV_TABLE_POOLS, victim_peers[0].session.pool, a);
		skv_fdstore_name(&core->state, SKV_TABLE_POOLS, victim_peers[1].session.pool, b);
	}
	found = victim_stored(&n);
	x = find(found, n, a);
	y = find(found, n, b);
	fd = x->fd;
	x->fd = y->fd;
	y->fd = fd;
	ck_assert_msg(resume(found, n, &unclaimed, &why) == 0, "%s", why);
	ck_assert_int_eq(n_lost, 2);
	ck_assert(!books_has_seq("s0"));
	ck_assert(books_has_seq("s1") == !_i);
	books_even();
	skv_core_drop_all(core);
	ck_assert_ptr_null(skv_core_balance(core, true));
}
END_TEST

/* Other files have names of the state, a sequence, a pool or a page, which exist as well. Nothing is lost. */
START_TEST(twice)
{
	char name[SKV_FDSTORE_NAME];
	struct skv_core_found *found;
	size_t n, unclaimed;
	const char *why;

	setup();
	name_of_seq(0, name);
	if (_i % 4 == 1)
		skv_fdstore_name(&core->state, SKV_TABLE_POOLS, victim_peers[0].session.pool, name);
	else if (_i % 4 == 2)
		skv_fdstore_name(&core->state, SKV_TABLE_SESSIONS, 0, name);
	else if (_i % 4 == 3)
		strcpy(name, SKV_FDSTORE_STATE);
	found = victim_stored(&n);
	found = realloc(found, (n + 1) * sizeof(*found));
	ck_assert_ptr_nonnull(found);
	found[n] = (struct skv_core_found){.name = name, .fd = _i < 4 ? skv_memfd_new("x", 65536) : open("/dev/null", O_RDWR)};
	if (_i % 2) { /* in either order */
		const struct skv_core_found other = found[n];

		memmove(found + 1, found, n * sizeof(*found));
		found[0] = other;
	}
	ck_assert_msg(resume(found, n + 1, &unclaimed, &why) == 0, "%s", why);
	ck_assert_int_eq(n_lost, 0);
	go_on();
	end_all();
}
END_TEST

START_TEST(a_sequence)
{
	char name[SKV_FDSTORE_NAME];
	const char *why;

	setup();
	name_of_seq(2, name);
	ck_assert_int_eq(resume_with(name, _i == 0 ? -1 : _i == 1 ? open("/dev/null", O_RDWR) : skv_memfd_new("x", 4096), &why), 0);
	ck_assert_int_eq(n_lost, 1);
	ck_assert_str_eq(lost_name, name);
	ck_assert(!books_has_seq("s2"));
	for (int i = 0; i < VICTIM_SEQS; i++)
		if (i != 2)
			change_hands(i);
	for (int i = 0; i < VICTIM_PEERS; i++)
		client_gone(victim_peers[i].client);
	ck_assert_uint_eq(n_corrupt, 0);
	skv_core_drop_all(core);
	ck_assert_ptr_null(skv_core_balance(core, true));
}
END_TEST

START_TEST(a_pool)
{
	char name[SKV_FDSTORE_NAME];
	const char *why;

	setup();
	skv_fdstore_name(&core->state, SKV_TABLE_POOLS, victim_peers[1].session.pool, name);
	ck_assert_int_eq(resume_with(name, _i == 0 ? -1 : skv_memfd_new("x", 4096), &why), 0);
	ck_assert_int_eq(n_lost, 1);
	ck_assert_str_eq(lost_name, name);
	for (int i = 0; i < VICTIM_SEQS; i++) { /* no other client has the second client's user */
		snprintf(name, sizeof(name), "s%d", i);
		ck_assert_int_eq(books_has_seq(name), i / (VICTIM_SEQS / VICTIM_PEERS) != 1);
		if (books_has_seq(name))
			change_hands(i);
	}
	ck_assert_int_eq(skv_core_session_close(core, victim_peers[1].client, victim_peers[1].session.session), SKV_CORE_E_NOENT);
	skv_core_drop_all(core);
	ck_assert_ptr_null(skv_core_balance(core, true));
}
END_TEST

/* A session's page has only figures: a new one takes its place. */
START_TEST(a_page)
{
	char name[SKV_FDSTORE_NAME];
	const char *why;

	setup();
	skv_fdstore_name(&core->state, SKV_TABLE_SESSIONS, 0, name);
	ck_assert_int_eq(resume_with(name, _i == 0 ? -1 : open("/dev/null", O_RDWR), &why), 0);
	ck_assert_int_eq(n_lost, 0);
	go_on();
	end_all();
}
END_TEST

/* ---- a device's memory ----------------------------------------------------------------------- */

static int device_is_there(void *ctx, struct skv_core *c, uint32_t device)
{
	ck_assert_uint_eq(device, SKV_DEVICE_CUDA(0));
	core = c;
	if (*(bool *)ctx)
		device_add(device, &c->config);
	return !*(bool *)ctx;
}

static int resume_device(bool is_there, const char **ret_why)
{
	size_t n;
	struct skv_core_found *found = victim_stored(&n);
	const struct skv_core_past past = {
		.found = found, .n = n, .device = device_is_there, .client = client, .lost = lost, .ctx = &is_there};
	const struct skv_core_config config = core->config;
	int r;

	core = skv_core_abandon(core);
	r = skv_core_resume(&config, &mem.ops, &past, &core, ret_why);
	for (size_t i = 0; i < n; i++)
		ck_assert(r < 0 || found[i].claimed);
	free(found);
	books_watch();
	return r;
}

/* One client has a sequence in host memory, another one on a device, with a segment that is pending. */
static void setup_device(struct peer *on_device, struct held *there, struct held *here)
{
	struct skv_core_config config = books_config();
	struct skv_model m = test_model("m", 2, 16);
	struct skv_wire_run runs[64];
	uint32_t n;

	n_lost = 0;
	books_open(&config);
	victim_store();
	device_add(SKV_DEVICE_CUDA(0), &config);
	peer_join(&one, 1000, &m);
	held_new(here, &one, "here", 400);
	held_append(here, &one, 100);
	m.device = SKV_DEVICE_CUDA(0);
	peer_join(on_device, 1001, &m);
	(void)peer_lease(on_device, 1, 40); /* it waits */
	devices_make();
	ck_assert_int_eq(peer_lease(on_device, 1, 40), 0);
	held_new(there, on_device, "there", 400);
	held_append(there, on_device, 100);
	(void)skv_core_lease_get(core, on_device->client, on_device->session.session, 200, 300, runs, 64, &n);
	books_even();
}

START_TEST(of_a_device)
{
	const bool is_there = _i == 0;
	struct held there, here;
	struct skv_core_seq_info info;
	struct peer p;
	const char *why;

	setup_device(&p, &there, &here);
	ck_assert_msg(resume_device(is_there, &why) == 0, "%s", why);
	ck_assert_int_eq(n_lost, !is_there);
	ck_assert_int_eq(books_has_seq("there"), is_there);
	books_even();
	if (is_there) {
		ck_assert_int_eq(in_turns(skv_core_seq_detach(core, p.client, p.session.session, there.seq), NULL), 0);
		ck_assert_int_eq(in_turns(skv_core_seq_attach(core, p.client, p.session.session, "there", &info), &info), 0);
		ck_assert_uint_eq(info.seq, there.seq);
		ck_assert_uint_eq(held_len(&there), 100);
	} else {
		ck_assert_int_eq(skv_core_session_close(core, p.client, p.session.session), SKV_CORE_E_NOENT);
	}
	ck_assert_int_eq(in_turns(skv_core_seq_detach(core, one.client, one.session.session, here.seq), NULL), 0);
	client_gone(p.client);
	client_gone(one.client);
	free(p.stock);
	ck_assert_uint_eq(n_corrupt, 0);
	ck_assert(books_has_seq("here"));
	skv_core_drop_all(core);
	ck_assert_ptr_null(skv_core_balance(core, true));
}
END_TEST

/* ---- states that are refused ------------------------------------------------------------------- */

START_TEST(refused)
{
	struct skv_state_header *h;
	size_t unclaimed;
	const char *why;
	int state;

	setup();
	state = dup(core->state.fd);
	h = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, state, 0);
	ck_assert_ptr_ne(h, MAP_FAILED);
	switch (_i) {
	case 0: h->version++; break;
	case 1: h->live[SKV_TABLE_SEQUENCES]--; break;
	case 2: h->segment_bytes[0] -= 4096; break;
	case 3: *(uint64_t *)((char *)(uintptr_t)core->state.header + h->offset[SKV_TABLE_UNDO]) = 1; break;
	}
	ck_assert_int_eq(resume_all(&unclaimed, &why), _i == 1 || _i == 2 ? -EUCLEAN : -EBADMSG);
	ck_assert_str_ne(why, "");
	ck_assert_ptr_null(core);
}
END_TEST

START_TEST(nothing_kept)
{
	struct skv_core_found none;
	size_t unclaimed;
	const char *why;

	setup();
	free(victim_stored(&unclaimed));
	ck_assert_int_eq(skv_core_resume(&(struct skv_core_config){0}, &mem.ops, &(struct skv_core_past){.found = &none, .lost = lost}, &core, &why),
	                 -ENOENT);
	ck_assert_str_eq(why, "no state was kept");
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-resume");
	TCase *c;

	rnd_seed("test-core-resume");
	add_case(s, "killed", 120, NULL, NULL, killed, nothing_kept, NULL);
	c = tcase_create("others");
	tcase_set_timeout(c, 120);
	tcase_add_loop_test(c, turns, 0, 10 * WORKS);
	tcase_add_loop_test(c, a_sequence, 0, 3);
	tcase_add_loop_test(c, exchanged, 0, 2);
	tcase_add_loop_test(c, twice, 0, 8);
	tcase_add_loop_test(c, a_pool, 0, 2);
	tcase_add_loop_test(c, a_page, 0, 2);
	tcase_add_loop_test(c, refused, 0, 4);
	tcase_add_loop_test(c, of_a_device, 0, 2);
	suite_add_tcase(s, c);
	return run_suite(s);
}
