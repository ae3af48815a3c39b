/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policy files: which ones are refused and why, which ones replace others, and that a bad one does not affect running
 * sessions.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/policies.h"
#include "tests/support/suite.h"

/* as in setup(); more than there are policies, but the excess is less than a client's sessions */
#define FILES_MOST 21u

static struct fix fix;

static void setup(void)
{
	static const char *const options[] = {"--probe-timeout=1", "--max-policies=21", NULL};

	fix_start_process(&fix, options);
}

static void teardown(void)
{
	fix_stop(&fix);
}

static const char *plugin(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "tests/support/plugins/.libs/%s.so", name);
	return fix_built(path);
}

/* Returns the plugin as sparsekvctl sends it; the caller closes it. */
static int sealed(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), copy = skv_memfd_copy_sealed("policy", fd, SKV_PLUGIN_BYTES_MAX);

	ck_assert_msg(copy >= 0, "%s", path);
	close(fd);
	return copy;
}

static void copy_file(const char *from, const char *to, off_t most)
{
	int in = open(from, O_RDONLY | O_CLOEXEC),
	    out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	struct stat st;
	off_t at = 0;

	ck_assert_msg(in >= 0 && out >= 0 && fstat(in, &st) == 0, "%s", from);
	if (most > st.st_size)
		most = st.st_size;
	while (at < most)
		ck_assert_int_gt(sendfile(out, in, &at, (size_t)(most - at)), 0);
	close(in);
	close(out);
}

/* Returns the plugin that the session is to run, according to POLICY_GET. */
static uint32_t plugin_of(struct raw *r, uint32_t session, char spec[SKV_SPEC_MAX])
{
	struct skv_msg_session s = {.session = session};
	const struct skv_msg_policy *p = raw_ask(r, SKV_MSG_POLICY_GET, &s, sizeof(s), -1);

	ck_assert_uint_eq(r->n_fds, 1);
	strcpy(spec, p->spec);
	return p->plugin;
}

static unsigned count_policies(struct raw *r)
{
	json_t *answer = raw_query(r, SKV_QUERY_POLICIES);
	unsigned n = (unsigned)json_array_size(json_object_get(answer, "policies"));

	json_decref(answer);
	return n;
}

START_TEST(each_bad_plugin_is_refused_with_its_reason)
{
	static const struct {
		const char *name;
		int error;
		const char *says;
	} cases[] = {
		{"bad-abi", EBADMSG, "abi is 13, expected 12"},
		{"bad-crash", EBADMSG, "the plugin was killed by signal 6 (Aborted) in its constructor"},
		{"bad-hang", ETIMEDOUT, "the plugin was still in its constructor"},
		{"bad-hooks", EBADMSG, "after of layer 1"},
		{"bad-params", EBADMSG, "layers"},
		{"bad-symbol", EBADMSG, "sparsekv_policy"},
	};
	struct raw *r = raw_operator(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL), id;
	char spec[SKV_SPEC_MAX];
	unsigned before, policies = count_policies(r);

	id = plugin_of(r, session, spec);
	before = fix_settled_fds(fix.pid);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		double begin = fix_now();

		ck_assert_int_eq(raw_policy_load(r, plugin(cases[i].name)), cases[i].error);
		ck_assert_msg(strstr(raw_error_text(r), cases[i].says), "%s: %s", cases[i].name,
		              raw_error_text(r));
		ck_assert_double_lt(fix_now() - begin, 10);
	}
	/* nothing of it stays, and the session still runs its policy */
	ck_assert_uint_eq(count_policies(r), policies);
	ck_assert_uint_eq(plugin_of(r, session, spec), id);
	fix_expect_fds(fix.pid, before);
	raw_close(r);
}
END_TEST

/* The plugin lists in its summary what it could reach; with a kernel without Landlock it can read files. */
START_TEST(a_plugin_that_is_tried_reaches_nobody)
{
	struct raw *r = raw_operator(fix.socket);
	json_t *answer, *row;
	bool found = false;
	size_t i;

	ck_assert_msg(raw_policy_load(r, plugin("escape")) == 0, "%s", raw_error_text(r));
	answer = raw_query(r, SKV_QUERY_POLICIES);
	json_array_foreach(json_object_get(answer, "policies"), i, row) {
		const char *lacks = json_string_value(json_object_get(row, "sandbox_lacks"));

		if (strcmp(json_string_value(json_object_get(row, "name")), "escape") != 0)
			continue;
		found = true;
		ck_assert_str_eq(json_string_value(json_object_get(row, "summary")),
		                 strstr(lacks, "Landlock") ? "reached: files" : "reached:");
		ck_assert_ptr_null(strstr(lacks, "seccomp"));
	}
	ck_assert(found);
	json_decref(answer);
	raw_close(r);
}
END_TEST

START_TEST(a_file_that_was_cut_off_is_refused)
{
	struct raw *r = raw_operator(fix.socket);
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/cut.so", fix.dir);
	ck_assert_int_eq(stat(fix_built("policies/.libs/" POLICY_PAGES ".so"), &st), 0);
	for (off_t most = 1; most < st.st_size; most += 1 + st.st_size / 12) {
		copy_file(fix_built("policies/.libs/" POLICY_PAGES ".so"), path, most);
		ck_assert_int_eq(raw_policy_load(r, path), EBADMSG);
		ck_assert_msg(strstr(raw_error_text(r), most < 64 ? "not a 64-bit ELF" : "truncated"),
		              "%lld bytes: %s", (long long)most, raw_error_text(r));
	}
	copy_file(fix_built("policies/.libs/" POLICY_PAGES ".so"), path, 0);
	ck_assert_int_eq(raw_policy_load(r, path), EINVAL);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "sealed memfd of 1 byte to 16 MiB"));
	ck_assert_int_eq(raw_policy_load(r, "/dev/zero"), EINVAL);
	ck_assert_int_eq(raw_policy_load(r, "/etc/passwd"), EBADMSG);
	raw_close(r);
}
END_TEST

/* Clients get what was probed, even if the file has changed since. */
START_TEST(the_file_may_change_after_it_was_loaded)
{
	struct raw *r = raw_operator(fix.socket);
	char path[128], magic[4];

	snprintf(path, sizeof(path), "%s/" POLICY_PAGES ".so", fix.dir);
	copy_file(fix_built("policies/.libs/" POLICY_PAGES ".so"), path, 1 << 30);
	ck_assert_int_eq(raw_policy_load(r, path), 0);
	ck_assert_int_eq(truncate(path, 10), 0);
	raw_open(r, "m", POLICY_PAGES, NULL);
	ck_assert_int_eq(pread(r->fds[1], magic, 4, 0), 4);
	ck_assert_mem_eq(magic, "\177ELF", 4);
	ck_assert_int_lt(ftruncate(r->fds[1], 0), 0);
	ck_assert_int_lt(pwrite(r->fds[1], "x", 1, 0), 0);
	raw_close(r);
}
END_TEST

START_TEST(a_running_session_keeps_the_file_that_was_replaced)
{
	struct raw *r = raw_operator(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL), other, old, new;
	struct skv_msg_policy_ack ack = {.session = session};
	unsigned policies = count_policies(r);
	char spec[SKV_SPEC_MAX];

	old = plugin_of(r, session, spec);
	ck_assert_int_eq(raw_policy_load(r, fix_built("policies/.libs/full.so")), 0);
	ck_assert_uint_eq(plugin_of(r, session, spec), old);
	ck_assert_uint_eq(count_policies(r), policies + 1);
	other = raw_open(r, "m", "full", NULL);
	new = plugin_of(r, other, spec);
	ck_assert_uint_ne(new, old);

	/*
	 * after the offer of the new file the session may still refuse it; once it has switched, the old one is closed
	 */
	ck_assert_int_eq(raw_policy_swap(r, "full"), 0);
	ck_assert_uint_eq(count_policies(r), policies + 1);
	ck_assert_uint_eq(plugin_of(r, session, spec), new);
	ack.generation = ((const struct skv_msg_policy *)(r->packet + sizeof(struct skv_msg_header)))
	                         ->generation;
	raw_ask(r, SKV_MSG_POLICY_ACK, &ack, sizeof(ack), -1);
	ck_assert_uint_eq(count_policies(r), policies);
	raw_close(r);
}
END_TEST

START_TEST(replaced_files_are_bounded)
{
	struct raw *r = raw_operator(fix.socket);
	unsigned fds, room = FILES_MOST - count_policies(r);

	for (unsigned i = 0; i <= room; i++) {
		raw_open(r, "m", "full", NULL);
		if (i < room)
			ck_assert_int_eq(raw_policy_load(r, fix_built("policies/.libs/full.so")), 0);
	}
	ck_assert_int_eq(raw_policy_load(r, fix_built("policies/.libs/full.so")), ENOSPC);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "max-policies"));
	raw_close(r);

	/* without the sessions there is always room */
	r = raw_operator(fix.socket);
	ck_assert_int_eq(raw_policy_load(r, fix_built("policies/.libs/full.so")), 0);
	fds = fix_settled_fds(fix.pid);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(raw_policy_load(r, fix_built("policies/.libs/full.so")), 0);
	count_policies(r);
	fix_expect_fds(fix.pid, fds);
	raw_close(r);
}
END_TEST

START_TEST(a_new_name_is_there_at_once)
{
	struct raw *r = raw_operator(fix.socket);

	ck_assert_int_eq(raw_policy_load(r, plugin("refuse-adopt")), 0);
	raw_open(r, "m", "refuse-adopt", NULL);
	raw_close(r);
}
END_TEST

/* The requesting client leaves while the probe runs; the daemon continues. */
START_TEST(who_asked_may_be_gone_before_the_answer)
{
	struct skv_msg_name m = {.name = "bad-hang.so"};
	struct raw *r = raw_operator(fix.socket), *other = raw_operator(fix.socket);
	int fd = sealed(plugin("bad-hang"));

	raw_send(r, SKV_MSG_POLICY_LOAD, &m, sizeof(m), fd);
	close(fd);
	fix_sleep_ms(100);
	raw_close(r);
	json_decref(raw_query(other, SKV_QUERY_STATUS)); /* only the requesting client waits for the probe */
	fix_expect_log(&fix, "policy file bad-hang.so is refused");
	raw_close(other);
}
END_TEST

/* Stopping does not wait for a probe, and leaves no child behind. */
START_TEST(a_stop_ends_the_probe)
{
	struct skv_msg_name m = {.name = "bad-hang.so"};
	struct raw *r = raw_operator(fix.socket);
	int fd = sealed(plugin("bad-hang"));
	double begin;

	raw_send(r, SKV_MSG_POLICY_LOAD, &m, sizeof(m), fd);
	close(fd);
	fix_sleep_ms(100);
	begin = fix_now();
	fix_stop(&fix);
	ck_assert_double_lt(fix_now() - begin, patience(0.8)); /* sooner than the probe's timeout of a second */
	raw_close(r);
	fix_start_process(&fix, NULL);
}
END_TEST

/* Returns the first line of a shell command's output, in a static buffer. */
static const char *line_of(const char *format, const char *program)
{
	static char line[512];
	char command[512];
	FILE *f;

	snprintf(command, sizeof(command), format, program);
	f = popen(command, "r");
	ck_assert_ptr_nonnull(f);
	if (!fgets(line, sizeof(line), f))
		*line = 0;
	pclose(f);
	return line;
}

/* After an upgrade the probe program on disk may be newer than the running daemon. */
START_TEST(a_probe_of_another_version_is_refused)
{
	const char *said = line_of("r=$(mktemp); '%s' 0.0.0 1 5<>$r; tr -d '\\0' <$r; rm $r", fix_built("daemon/sparsekv-probe"));

	ck_assert_msg(strstr(said, "and the daemon 0.0.0: restart the daemon"), "%s", said);
	said = line_of("'%s' 2>&1", fix_built("daemon/sparsekv-probe"));
	ck_assert_msg(strstr(said, "sparsekvd runs this program"), "%s", said);
}
END_TEST

/* ---- directories ---- */

START_TEST(of_two_files_with_one_policy_the_first_counts)
{
	char first[128], second[128], path[160], option[512];
	const char *options[] = {option, "--probe-timeout=1", NULL};
	struct fix f;
	struct raw *r;
	json_t *answer, *row;
	size_t i, n = 0;

	snprintf(first, sizeof(first), "%s/first", fix.dir);
	snprintf(second, sizeof(second), "%s/second", fix.dir);
	ck_assert_int_eq(mkdir(first, 0755), 0);
	ck_assert_int_eq(mkdir(second, 0755), 0);
	snprintf(path, sizeof(path), "%s/b.so", first);
	copy_file(fix_built("policies/.libs/full.so"), path, 1 << 30);
	snprintf(path, sizeof(path), "%s/a.so", second);
	copy_file(fix_built("policies/.libs/full.so"), path, 1 << 30);
	snprintf(path, sizeof(path), "%s/c.so", second);
	copy_file(plugin("bad-crash"), path, 1 << 30); /* does not prevent loading the others */
	snprintf(option, sizeof(option), "--policy-path=%s::%s:/nonexistent", first, second);

	fix_start_process(&f, options);
	r = raw_hello(f.socket);
	answer = raw_query(r, SKV_QUERY_POLICIES);
	json_array_foreach(json_object_get(answer, "policies"), i, row) {
		snprintf(path, sizeof(path), "%s/b.so", first);
		ck_assert_str_eq(json_string_value(json_object_get(row, "file")), path);
		n++;
	}
	ck_assert_uint_eq(n, 1);
	json_decref(answer);
	fix_expect_log(&f, "second/a.so is not loaded: policy full was already loaded from");
	fix_expect_log(&f, "second/c.so is refused: the plugin was killed by signal 6");
	fix_expect_log(&f, "/nonexistent: no policies");

	/* a reload loads only what is new */
	snprintf(path, sizeof(path), "%s/d.so", second);
	copy_file(fix_built("policies/.libs/" POLICY_PAGES ".so"), path, 1 << 30);
	kill(f.pid, SIGHUP);
	fix_expect_log(&f, "d.so is loaded: policy " POLICY_PAGES);
	ck_assert_uint_eq(count_policies(r), 2);
	raw_close(r);
	fix_stop(&f);
	snprintf(option, sizeof(option), "rm -r %s %s", first, second);
	ck_assert_int_eq(system(option), 0);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-probe");

	add_case(s, "probe", 60, setup, teardown, each_bad_plugin_is_refused_with_its_reason,
	         a_plugin_that_is_tried_reaches_nobody, a_file_that_was_cut_off_is_refused,
	         the_file_may_change_after_it_was_loaded,
	         a_running_session_keeps_the_file_that_was_replaced, replaced_files_are_bounded,
	         a_new_name_is_there_at_once, who_asked_may_be_gone_before_the_answer, a_stop_ends_the_probe,
	         a_probe_of_another_version_is_refused,
	         of_two_files_with_one_policy_the_first_counts, NULL);
	return run_suite(s);
}
