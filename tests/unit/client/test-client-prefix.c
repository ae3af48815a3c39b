/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed prefixes: what follows from one must be, bit by bit, what follows from reading the prompt, under every policy
 * whose tokens can be sealed; and no client gets a prefix that does not belong to its user and policy.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-fixture.h"
#include "tests/support/manager.h"
#include "tests/support/policies.h"
#include "tests/support/prefix-reader.h"

static struct refmodel w;
static uint64_t codec_seed = 7;
static int32_t prompt[PREFIX_PROMPT];

static void setup(void)
{
	client_begin(NULL);
	prefix_model(&w, "prefix");
	prefix_prompt(prompt, 1);
}

/* What a policy seals depends on what it does: what one evicts from cannot be sealed. */
static enum skv_action action_of(const struct policy_row *row)
{
	return policy_action(row->spec);
}

/*
 * How many of the policies compress, and number i of these. They compress what they seal: the first reader of a prompt
 * seals its blocks before it reads the rest, as later ones continue.
 */
static int n_compressing(void)
{
	int n = 0;

	for (int k = 0; k < policy_rows(SET_PREFIXES); k++)
		n += action_of(policy_row(SET_PREFIXES, k)) == SKV_ACT_COMPRESS;
	return n;
}

static const struct policy_row *compressing(int i)
{
	const struct policy_row *row;

	for (int k = 0;; k++) {
		row = policy_row(SET_PREFIXES, k);
		if (action_of(row) == SKV_ACT_COMPRESS && i-- == 0)
			return row;
	}
}

static void open_with(const struct policy_row *row)
{
	char spec[POLICY_SPEC];

	policy_codecs(&w.model, codec_seed, daemon_.dir);
	OK(skv_open(client, &w.model, policy_row_spec(row, daemon_.dir, spec), &w.session));
}

static void same_as(const float *want, struct skv_seq *seq, const int32_t *ids, const char *spec)
{
	float *got = prefix_go_on(&w, seq, ids);

	ck_assert_msg(prefix_same(&w, want, got), "%s: another output than after reading the prompt", spec);
	free(got);
	OK(skv_seq_drop(seq));
}

START_TEST(as_if_read)
{
	const struct policy_row *row = policy_row(SET_PREFIXES, _i);
	struct skv_seq *a, *b;
	uint32_t sealed = 9, len;
	float *want;

	open_with(row);
	ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &a), 0); /* nothing is sealed */
	if (action_of(row) == SKV_ACT_COMPRESS) {
		prefix_read(&w, a, prompt, 0, PREFIX_SEALED, true, NULL);
		OK(skv_seq_seal(a, SKV_ALL, NULL));
	}
	want = prefix_go_on(&w, a, prompt);
	if (action_of(row) == SKV_ACT_EVICT) {
		FAILS(skv_seq_seal(a, PREFIX_PROMPT, &sealed), ESTALE, "cannot be sealed");
		ck_assert_uint_eq(sealed, 0);
		ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &b), 0);
		same_as(want, b, prompt, row->spec);
	} else {
		OK(skv_seq_seal(a, PREFIX_PROMPT, &sealed));
		ck_assert_uint_eq(sealed, PREFIX_SEALED);
		for (int i = 0; i < 2; i++) { /* the prefix is there while its sequence is, and later */
			ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &b), PREFIX_SEALED);
			ck_assert_mem_eq(skv_seq_tokens(b, &len), prompt, PREFIX_SEALED * sizeof(*prompt));
			same_as(want, b, prompt, row->spec);
			if (i == 0)
				OK(skv_seq_seal(a, SKV_ALL, &sealed)); /* again: it stays sealed */
			if (i == 0)
				OK(skv_seq_drop(a));
		}
		ck_assert_uint_eq(sealed, PREFIX_SEALED);
	}
	free(want);
	skv_close(w.session);
}
END_TEST

START_TEST(the_longest)
{
	int32_t other[PREFIX_PROMPT];
	struct skv_seq *a, *b;

	OK(skv_open(client, &w.model, "full", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &a));
	prefix_read(&w, a, prompt, 0, PREFIX_PROMPT, true, NULL);
	OK(skv_seq_seal(a, PREFIX_PROMPT, NULL));
	memcpy(other, prompt, sizeof(other));
	other[300]++;
	ck_assert_uint_eq(prefix_begin(&w, other, PREFIX_PROMPT, &b), 256);
	OK(skv_seq_drop(b));
	ck_assert_uint_eq(prefix_begin(&w, prompt, 513, &b), 512); /* at least one token is left */
	OK(skv_seq_drop(b));
	ck_assert_uint_eq(prefix_begin(&w, prompt, 512, &b), 256);
	OK(skv_seq_drop(b));
	ck_assert_uint_eq(prefix_begin(&w, prompt, 256, &b), 0);
	OK(skv_seq_drop(b));
	other[0]++;
	ck_assert_uint_eq(prefix_begin(&w, other, PREFIX_PROMPT, &b), 0);
	OK(skv_seq_drop(b));
	/* for fewer tokens than the first sequence */
	OK(skv_seq_new_from(w.session, "named", PREFIX_PROMPT + 1, prompt, PREFIX_PROMPT, &b));
	ck_assert_uint_eq(skv_seq_len(b), PREFIX_SEALED);
	OK(skv_seq_detach(b));
	OK(skv_seq_attach(w.session, "named", &b));
	ck_assert_uint_eq(skv_seq_len(b), PREFIX_SEALED);
	FAILS(skv_seq_new_from(w.session, "named", 0, prompt, PREFIX_PROMPT, &a), EEXIST, "named");
	skv_close(w.session);
}
END_TEST

/* Not found under another policy, other parameters or another model. Found by another client of the user. */
START_TEST(whose)
{
	struct skv_session *first, *other;
	struct skv_client *second;
	struct skv_model m = w.model;
	struct skv_seq *a, *b;

	OK(skv_open(client, &w.model, POLICY_BOUNDS "?budget=6", &first));
	w.session = first;
	OK(skv_seq_new(first, NULL, 0, &a));
	prefix_read(&w, a, prompt, 0, PREFIX_PROMPT, true, NULL);
	OK(skv_seq_seal(a, PREFIX_PROMPT, NULL));
	OK(skv_open(client, &w.model, POLICY_BOUNDS "?budget=7", &other));
	OK(skv_seq_new_from(other, NULL, 0, prompt, PREFIX_PROMPT, &b));
	ck_assert_uint_eq(skv_seq_len(b), 0);
	skv_close(other);
	snprintf(m.name, sizeof(m.name), "another");
	OK(skv_open(client, &m, POLICY_BOUNDS "?budget=6", &other));
	OK(skv_seq_new_from(other, NULL, 0, prompt, PREFIX_PROMPT, &b));
	ck_assert_uint_eq(skv_seq_len(b), 0);
	skv_close(other);
	OK(skv_connect(&second, daemon_.socket));
	OK(skv_open(second, &w.model, POLICY_BOUNDS "?budget=6", &other));
	OK(skv_seq_new_from(other, NULL, 0, prompt, PREFIX_PROMPT, &b));
	ck_assert_uint_eq(skv_seq_len(b), PREFIX_SEALED);
	skv_disconnect(second);
	skv_close(first);
}
END_TEST

START_TEST(refused)
{
	struct skv_seq *a, *b = NULL;
	uint32_t sealed;

	OK(skv_open(client, &w.model, "full", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &a));
	FAILS(skv_seq_new_from(w.session, NULL, 0, NULL, 5, &b), EINVAL, "prompt");
	FAILS(skv_seq_new_from(w.session, NULL, 0, prompt, 0, &b), EINVAL, "prompt");
	FAILS(skv_seq_new_from(w.session, NULL, 100, prompt, 101, &b), EINVAL, "prompt");
	FAILS(skv_seq_new_from(w.session, "a b", 0, prompt, 5, &b), EINVAL, "name");
	FAILS(skv_seq_new_from(w.session, NULL, PREFIX_TOKENS + 1, prompt, 5, &b), EINVAL, "max_tokens");
	OK(skv_seq_seal(a, SKV_ALL, &sealed)); /* nothing to seal */
	ck_assert_uint_eq(sealed, 0);
	FAILS(skv_seq_seal(a, 1, &sealed), EINVAL, "first 1");
	prefix_read(&w, a, prompt, 0, 300, true, NULL);
	FAILS(skv_seq_seal(a, 301, &sealed), EINVAL, "first 301");
	OK(skv_step_begin(w.session, &SKV_STEP_ITEM(.seq = a, .n_tokens = 1), 1, devmem_stream()));
	FAILS(skv_seq_seal(a, 300, &sealed), EBUSY, "open step");
	skv_step_abort(w.session);
	skv_close(w.session);
}
END_TEST

/*
 * Decompressed tokens are not those that were computed: neither in a fork nor after truncation, unless none are left.
 */
START_TEST(decompressed)
{
	struct skv_seq *a, *b;

	OK(skv_open(client, &w.model, "full", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &a));
	OK(skv_seq_policy(a, POLICY_QUANTIZES "?residual=16&block=32"));
	prefix_read(&w, a, prompt, 0, 600, true, NULL);
	prefix_read(&w, a, prompt, 600, 601, false, NULL);
	OK(skv_seq_policy(a, NULL));
	prefix_read(&w, a, prompt, 601, 602, false, NULL);
	FAILS(skv_seq_seal(a, SKV_ALL, NULL), ESTALE, "were compressed");
	prefix_read(&w, a, prompt, 602, 604, true, NULL);
	FAILS(skv_seq_seal(a, SKV_ALL, NULL), ESTALE, "were compressed");
	OK(skv_seq_fork(a, NULL, 550, &b));
	FAILS(skv_seq_seal(b, SKV_ALL, NULL), ESTALE, "were compressed");
	OK(skv_seq_truncate(a, 520, 0));
	FAILS(skv_seq_seal(a, SKV_ALL, NULL), ESTALE, "were compressed");
	ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &b), 0);
	OK(skv_seq_truncate(a, 0, 0));
	prefix_read(&w, a, prompt, 0, 300, true, NULL);
	OK(skv_seq_seal(a, SKV_ALL, NULL));
	ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &b), 256);
	skv_close(w.session);
}
END_TEST

/* Tokens that another policy has computed are not the session's: its previous one, or one of the sequence's own. */
START_TEST(other_policies)
{
	struct skv_seq *a, *b;

	OK(skv_open(client, &w.model, "full", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &a));
	OK(skv_seq_policy(a, POLICY_BOUNDS "?budget=6"));
	prefix_read(&w, a, prompt, 0, 300, true, NULL);
	FAILS(skv_seq_seal(a, SKV_ALL, NULL), ESTALE, "session's policy");
	OK(skv_seq_policy(a, NULL));
	FAILS(skv_seq_seal(a, SKV_ALL, NULL), ESTALE, "session's policy");
	prefix_read(&w, a, prompt, 300, 600, true, NULL);
	FAILS(skv_seq_seal(a, SKV_ALL, NULL), ESTALE, "session's policy");
	OK(skv_seq_fork(a, NULL, 550, &b));
	FAILS(skv_seq_seal(b, SKV_ALL, NULL), ESTALE, "session's policy");
	OK(skv_seq_truncate(a, 0, 0));
	prefix_read(&w, a, prompt, 0, 300, true, NULL);
	OK(skv_seq_seal(a, SKV_ALL, NULL));
	ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &b), 256);
	/* it begins with a prefix, and so belongs to the same policy */
	prefix_read(&w, b, prompt, 256, PREFIX_PROMPT, true, NULL);
	OK(skv_seq_seal(b, SKV_ALL, NULL));
	OK(skv_seq_policy(b, POLICY_BOUNDS "?budget=6"));
	prefix_read(&w, b, prompt, 0, 1, false, NULL);
	FAILS(skv_seq_seal(b, SKV_ALL, NULL), ESTALE, "session's policy");
	skv_close(w.session);
}
END_TEST

/*
 * Compressed blocks are the same whatever follows them: a sequence that begins with the first blocks of a longer prefix
 * is like one that has sealed just these. It can be truncated as far as they reach.
 */
START_TEST(compressed_blocks)
{
	const struct policy_row *row = compressing(_i);
	struct skv_seq *a, *b;
	float *want;

	open_with(row);
	OK(skv_seq_new(w.session, NULL, 0, &a));
	prefix_read(&w, a, prompt, 0, 256, true, NULL);
	OK(skv_seq_seal(a, SKV_ALL, NULL));
	prefix_read(&w, a, prompt, 256, PREFIX_SEALED, true, NULL);
	want = prefix_go_on(&w, a, prompt);
	OK(skv_seq_drop(a));
	OK(skv_seq_new(w.session, NULL, 0, &a));
	prefix_read(&w, a, prompt, 0, PREFIX_PROMPT, true, NULL);
	OK(skv_seq_seal(a, SKV_ALL, NULL));
	OK(skv_seq_truncate(a, PREFIX_SEALED + 1, 0)); /* less than a window behind the compressed tokens */
	OK(skv_seq_drop(a));
	ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &b), PREFIX_SEALED);
	FAILS(skv_seq_truncate(b, PREFIX_SEALED - 1, 0), ESTALE, "would be rows");
	prefix_read(&w, b, prompt, PREFIX_SEALED, PREFIX_PROMPT, true, NULL);
	OK(skv_seq_truncate(b, PREFIX_SEALED + 1, 0));
	OK(skv_seq_truncate(b, PREFIX_SEALED, 0));
	OK(skv_seq_fork(b, NULL, PREFIX_SEALED, &a));
	OK(skv_seq_drop(a));
	OK(skv_seq_drop(b));
	ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_SEALED, &b), 256);
	prefix_read(&w, b, prompt, 256, PREFIX_SEALED, true, NULL);
	same_as(want, b, prompt, row->spec);
	free(want);
	skv_close(w.session);
}
END_TEST

/* A session that has begun no step seals what it has attached, and compresses it. */
START_TEST(before_any_step)
{
	const struct policy_row *row = compressing(_i);
	struct skv_seq *seq;

	open_with(row);
	OK(skv_seq_new(w.session, "attached", 0, &seq));
	prefix_read(&w, seq, prompt, 0, PREFIX_SEALED, true, NULL);
	OK(skv_seq_detach(seq));
	skv_close(w.session);
	open_with(row);
	OK(skv_seq_attach(w.session, "attached", &seq));
	OK(skv_seq_seal(seq, SKV_ALL, NULL));
	OK(skv_seq_drop(seq));
	ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &seq), PREFIX_SEALED);
	skv_close(w.session);
}
END_TEST

/* The codec's file has another content under the same name: what was sealed with one is not found with the other. */
START_TEST(another_compressor)
{
	const struct policy_row *row = compressing(0);
	struct skv_seq *seq;

	for (int i = 1; !row->codec; i++)
		row = compressing(i);
	for (int i = 0; i < 2; i++) {
		open_with(row);
		ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &seq), 0);
		prefix_read(&w, seq, prompt, 0, PREFIX_SEALED, true, NULL);
		OK(skv_seq_seal(seq, SKV_ALL, NULL));
		OK(skv_seq_drop(seq));
		ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &seq), PREFIX_SEALED);
		skv_close(w.session);
		codec_seed++;
	}
}
END_TEST

/* Another process reads a prompt's blocks and seals them, until it is killed. */
static void seal_alone(const char *spec, int tell)
{
	struct skv_client *own;
	struct skv_seq *seq;

	OK(skv_connect(&own, daemon_.socket));
	OK(skv_open(own, &w.model, spec, &w.session));
	OK(skv_seq_new(w.session, "s", 0, &seq));
	prefix_read(&w, seq, prompt, 0, PREFIX_SEALED, true, NULL);
	ck_assert_int_eq(write(tell, "", 1), 1);
	OK(skv_seq_seal(seq, SKV_ALL, NULL));
	for (;;)
		pause();
}

/* An engine dies while it compresses what it seals: all layers of the sequence are as before or as after. */
START_TEST(killed_while_sealing)
{
	static const char *const specs[] = {
		POLICY_QUANTIZES "?residual=256&block=32",
		POLICY_LATENT "?budget=40&recent=8&layers=1,3&dense=1&bits=0&residual=256&block=16&stride=7&n_refs=4&"
		              "ref_bits=8",
	};
	unsigned compressed = 0, as_it_was = 0;
	float *want[2], *got;
	struct skv_seq *seq;

	if (devmem_is_device())
		return; /* a child cannot use it */
	OK(skv_open(client, &w.model, specs[_i], &w.session));
	for (int seals = 0; seals < 2; seals++) {
		OK(skv_seq_new(w.session, NULL, 0, &seq));
		prefix_read(&w, seq, prompt, 0, PREFIX_SEALED, true, NULL);
		if (seals)
			OK(skv_seq_seal(seq, SKV_ALL, NULL));
		want[seals] = prefix_go_on(&w, seq, prompt);
		OK(skv_seq_drop(seq));
	}
	ck_assert(!prefix_same(&w, want[0], want[1]));
	for (int i = 0; i < (slowed() ? 10 : 40); i++) {
		int told[2], status;
		char byte;
		pid_t pid;

		ck_assert_int_eq(pipe(told), 0);
		pid = child_fork();
		if (pid == 0)
			seal_alone(specs[_i], told[1]);
		close(told[1]);
		ck_assert_msg(read(told[0], &byte, 1) == 1, "%s", child_problem());
		close(told[0]);
		usleep(rnd_below(3000));
		ck_assert_int_eq(kill(pid, SIGKILL), 0);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_msg(WIFSIGNALED(status), "%s", child_problem());
		/* until the daemon has noticed the death */
		for (int k = 0; k < 500 && skv_seq_attach(w.session, "s", &seq) == -EBUSY; k++)
			usleep(2000);
		ck_assert_uint_eq(skv_seq_len(seq), PREFIX_SEALED);
		got = prefix_go_on(&w, seq, prompt);
		compressed += prefix_same(&w, want[1], got);
		as_it_was += prefix_same(&w, want[0], got);
		ck_assert_int_eq((int)(compressed + as_it_was), i + 1);
		free(got);
		OK(skv_seq_drop(seq));
	}
	printf("%s: %u compressed, %u as they were\n", specs[_i], compressed, as_it_was);
	free(want[0]);
	free(want[1]);
	skv_close(w.session);
}
END_TEST

/* Seal a dialogue again and again over many turns, with several sequences. */
START_TEST(dialogues)
{
	struct skv_seq *a, *b;
	uint32_t len = 0;

	OK(skv_open(client, &w.model, POLICY_PAGES "?budget=6&layers=0,2&dense=1", &w.session));
	for (uint32_t turn = 1; turn <= 7; turn++) {
		const uint32_t n = turn * 100;

		OK(skv_seq_new_from(w.session, NULL, 0, prompt, n, &a));
		ck_assert_uint_eq(skv_seq_len(a), len);
		prefix_read(&w, a, prompt, len, n, true, NULL);
		OK(skv_seq_seal(a, SKV_ALL, &len));
		ck_assert_uint_eq(len, n / 256 * 256);
		OK(skv_seq_fork(a, NULL, SKV_ALL, &b)); /* pages are shared with all of them */
		OK(skv_seq_drop(a));
		if (turn < 7)
			prefix_read(&w, b, prompt, n, n + 1, false, NULL);
		OK(skv_seq_drop(b));
	}
	skv_close(w.session);
}
END_TEST

/* The next daemon, after a kill or a stop, finds the prefixes; one with another secret finds none, and frees them. */
START_TEST(after_a_restart)
{
	static const char *const specs[] = {"full", POLICY_QUANTIZES "?residual=64&block=64&bits=2&scale_block=32"};
	const char *options[] = {"--pool-bytes=64M", "--segment-bytes=1M", "--account-bytes=48M", devmem_is_device() ? "--cuda=required" : "--cuda=off",
	                         "--cuda-segment-bytes=2M", NULL, NULL};
	char file[] = "/tmp/skv-secret.XXXXXX", option[80];
	int32_t other[PREFIX_PROMPT];
	struct skv_seq *a, *b;
	float *want;
	int fd;

	manager_open();
	manager_start(options);
	prefix_model(&w, "prefix");
	prefix_prompt(prompt, 1);
	prefix_prompt(other, 2);
	OK(skv_connect(&client, manager_socket));
	OK(skv_open(client, &w.model, specs[_i], &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &a));
	prefix_read(&w, a, prompt, 0, PREFIX_SEALED, true, NULL);
	OK(skv_seq_seal(a, PREFIX_SEALED, NULL));
	want = prefix_go_on(&w, a, prompt);
	for (int i = 0; i < 3; i++) {
		(void)manager_end(i == 1 ? SIGTERM : SIGKILL);
		manager_start(options);
		ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &b), PREFIX_SEALED);
		same_as(want, b, prompt, specs[_i]);
		ck_assert_uint_eq(prefix_begin(&w, other, PREFIX_PROMPT, &b), 0);
		OK(skv_seq_drop(b));
	}
	OK(skv_seq_drop(a));
	fd = mkstemp(file);
	ck_assert_int_eq(write(fd, prompt, 100), 100);
	close(fd);
	snprintf(option, sizeof(option), "--prefix-secret-file=%s", file);
	options[5] = option;
	(void)manager_end(SIGKILL);
	manager_start(options);
	ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &b), 0);
	OK(skv_seq_drop(b));
	skv_disconnect(client);
	if (!devmem_is_device()) /* segments of devices are stored one by one */
		manager_expect_kept(0);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	manager_close();
	unlink(file);
	free(want);
}
END_TEST

/* Writes the prefixes in memory to disk; returns how many. */
static unsigned park_all(void)
{
	struct raw *r = raw_operator(manager_socket);
	json_t *all = raw_query(r, SKV_QUERY_SEQS), *row;
	unsigned n = 0;
	size_t i;

	json_array_foreach(json_object_get(all, "sequences"), i, row) {
		const char *name = json_string_value(json_object_get(row, "name"));

		if (skv_prefix_name_valid(name) && !json_object_get(row, "parked_bytes")) {
			ck_assert_int_eq(raw_seq_named(r, SKV_MSG_SEQ_PARK, w.model.name, name), 0);
			n++;
		}
	}
	json_decref(all);
	raw_close(r);
	return n;
}

/* From disk, under every policy that seals; and the next daemon finds in memory what came back, and parks it again. */
START_TEST(from_disk)
{
	char parked[200], folder[160], command[200];
	const char *options[] = {"--pool-bytes=64M", "--segment-bytes=1M", "--account-bytes=48M", devmem_is_device() ? "--cuda=required" : "--cuda=off",
	                         "--cuda-segment-bytes=2M", parked, NULL};
	struct skv_seq *a, *b;
	float *want;

	manager_open();
	snprintf(folder, sizeof(folder), "%s/parked", manager_folder());
	snprintf(parked, sizeof(parked), "--parked-path=%s", folder);
	ck_assert_int_eq(mkdir(folder, 0700), 0);
	manager_start(options);
	prefix_model(&w, "prefix");
	prefix_prompt(prompt, 1);
	OK(skv_connect(&client, manager_socket));
	for (int i = 0, restarts = 0; i < policy_rows(SET_PREFIXES); i++) {
		const struct policy_row *row = policy_row(SET_PREFIXES, i);

		if (action_of(row) == SKV_ACT_EVICT || row->codec)
			continue;
		OK(skv_open(client, &w.model, row->spec, &w.session));
		OK(skv_seq_new(w.session, NULL, 0, &a));
		prefix_read(&w, a, prompt, 0, PREFIX_SEALED, true, NULL);
		if (action_of(row) == SKV_ACT_COMPRESS)
			OK(skv_seq_seal(a, SKV_ALL, NULL));
		want = prefix_go_on(&w, a, prompt);
		OK(skv_seq_seal(a, PREFIX_PROMPT, NULL));
		ck_assert_uint_eq(park_all(), 1);
		for (int round = 0; round < 2; round++) {
			ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &b), PREFIX_SEALED);
			same_as(want, b, prompt, row->spec);
			if (round == 0 && restarts < 2) {
				(void)manager_end(restarts++ ? SIGTERM : SIGKILL);
				manager_start(options);
			}
		}
		ck_assert_uint_eq(park_all(), 1); /* it came back, and was there after the restart */
		OK(skv_seq_drop(a));
		skv_close(w.session);
		free(want);
	}
	skv_disconnect(client);
	if (!devmem_is_device())
		manager_expect_kept(0);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ck_assert_int_eq(system(command), 0);
	manager_close();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-prefix");
	TCase *t = add_case(s, "prefix", 60, setup, client_end, the_longest, whose, refused, decompressed, other_policies,
	                    another_compressor, dialogues, NULL);

	tcase_add_loop_test(t, as_if_read, 0, policy_rows(SET_PREFIXES));
	tcase_add_loop_test(t, compressed_blocks, 0, n_compressing());
	tcase_add_loop_test(t, before_any_step, 0, n_compressing());
	tcase_add_loop_test(t, killed_while_sealing, 0, 2);
	t = add_case(s, "restart", 60, NULL, NULL, from_disk, NULL);
	tcase_add_loop_test(t, after_a_restart, 0, 2);
	return run_suite(s);
}
