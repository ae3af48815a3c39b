/* SPDX-License-Identifier: Apache-2.0 */
/* Policy files, loaded as the daemon and a client load them, and files that must be refused. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/support/policies.h"
#include "tests/support/policy-file.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

/* The dynamic loader caches paths. A reused fd number must not return the file that it referred to before. */
START_TEST(an_fd_number_used_again)
{
	const struct skv_policy *p;
	void *handle;
	int fd = open(POLICY("full"), O_RDONLY | O_CLOEXEC), again;

	ck_assert_int_eq(skv_policy_dlopen(fd, &p, &handle, err, sizeof(err)), 0);
	ck_assert_str_eq(p->name, "full");
	close(fd);
	again = open(POLICY(POLICY_PAGES), O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(again, fd);
	ck_assert_int_eq(skv_policy_dlopen(again, &p, &handle, err, sizeof(err)), 0);
	ck_assert_str_eq(p->name, POLICY_PAGES);
	close(again);
}
END_TEST

static void *contents(const char *path, size_t *ret_bytes)
{
	SKV_FD_CLEANUP int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *data;

	ck_assert_int_eq(fstat(fd, &st), 0);
	data = malloc((size_t)st.st_size);
	ck_assert_int_eq(read(fd, data, (size_t)st.st_size), st.st_size);
	*ret_bytes = (size_t)st.st_size;
	return data;
}

/* Two generations of one policy, as after a swap: sealed copies that are loaded at the same time. */
START_TEST(sealed_copies_are_apart)
{
	const struct skv_policy *p[2];
	void *handle[2], *data;
	size_t bytes;

	data = contents(POLICY(POLICY_PAGES), &bytes);
	for (int i = 0; i < 2; i++) {
		SKV_FD_CLEANUP int fd = skv_memfd_new_sealed(POLICY_PAGES, data, bytes);

		ck_assert_int_ge(fd, 0);
		ck_assert_msg(skv_policy_dlopen(fd, &p[i], &handle[i], err, sizeof(err)) == 0, "%s", err);
	}
	ck_assert_ptr_ne(p[0], p[1]);
	ck_assert_str_eq(p[0]->name, p[1]->name);
	ck_assert_int_eq(dlclose(handle[0]), 0);
	ck_assert_str_eq(p[1]->name, POLICY_PAGES);
	ck_assert_int_eq(dlclose(handle[1]), 0);
	free(data);
}
END_TEST

START_TEST(refused_plugins)
{
	static const struct {
		const char *path, *says;
	} c[] = {
		{PLUGIN("bad-abi"),
	         "policy block: abi is 13, expected 12: built for another sparsekv"},
		{PLUGIN("bad-params"),
	         "bad-params: parameter layers: offset is 8, expected a multiple of 8 within the 16 bytes"},
		{PLUGIN("bad-symbol"), "plugin: it does not export sparsekv_policy()"},
		{SKV_BUILDDIR "/Makefile", "plugin: not a 64-bit ELF shared object"},
		{"/dev/null", "plugin: not a regular file"},
	};

	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		const struct skv_policy *p = NULL;

		ck_assert_int_eq(load_file(c[i].path, &p), -EBADMSG);
		ck_assert_ptr_null(p);
		ck_assert_text(err, c[i].says);
	}
}
END_TEST

START_TEST(refused_by_rehearsal)
{
	const struct skv_policy *p = policy(PLUGIN("bad-hooks"));

	ck_assert_int_eq(skv_policy_rehearse(p, NULL, &reference, err, sizeof(err)), -EBADMSG);
	ck_assert_str_eq(err, "bad-hooks: after of layer 1: asks for a selection by scores that the "
	                      "layer's plan does not request (layer 1)");
	/* what adopt refuses depends on the sequences, so a rehearsal accepts it */
	p = policy(PLUGIN("refuse-adopt"));
	ck_assert_int_eq(skv_policy_rehearse(p, NULL, &reference, err, sizeof(err)), 0);
}
END_TEST

/* A file that is truncated anywhere is refused by its headers: the dynamic loader would fault. */
START_TEST(truncated_files)
{
	size_t bytes;
	char *data = contents(POLICY(POLICY_PAGES), &bytes);

	for (int i = 0; i < 400; i++) {
		size_t cut = rnd_below((uint32_t)bytes);
		const struct skv_policy *p = NULL;
		SKV_FD_CLEANUP int fd = -1;
		void *handle;

		if (i < 200) /* the 100 shortest and the 100 longest */
			cut = i < 100 ? (size_t)i : bytes - 1 - (size_t)(i - 100);
		fd = skv_memfd_new_sealed("cut", data, cut);
		ck_assert_int_ge(fd, 0);
		ck_assert_int_eq(skv_policy_dlopen(fd, &p, &handle, err, sizeof(err)), -EBADMSG);
		ck_assert_text(err, cut < 64 ? "not a 64-bit ELF shared object" : "truncated");
	}
	free(data);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-policy-files");

	add_case(s, "loading", 60, NULL, NULL, an_fd_number_used_again, sealed_copies_are_apart,
	         refused_plugins, refused_by_rehearsal, truncated_files, NULL);
	return run_suite(s);
}
