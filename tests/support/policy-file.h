/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/policy-file.h - files of policies as built, and how one is loaded. */
#ifndef SKV_POLICY_FILE_H
#define SKV_POLICY_FILE_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "common/fd.h"
#include "common/spec.h"

#define POLICY(name) SKV_BUILDDIR "/policies/.libs/" name ".so"
#define PLUGIN(name) SKV_BUILDDIR "/tests/support/plugins/.libs/" name ".so"

/* The reference model's shape. */
static const struct skv_model reference = {
        .size = sizeof(reference), .n_layers = 16, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64,
        .kv_dtype = SKV_BF16, .max_tokens = 16384, .n_ranks = 1, .name = "reference",
};

static char err[512];

static inline int load_file(const char *path, const struct skv_policy **ret)
{
	SKV_FD_CLEANUP int fd = open(path, O_RDONLY | O_CLOEXEC);
	void *handle;

	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	err[0] = '\0';
	return skv_policy_dlopen(fd, ret, &handle, err, sizeof(err));
}

static inline const struct skv_policy *policy(const char *path)
{
	const struct skv_policy *p = NULL;

	ck_assert_msg(load_file(path, &p) == 0, "%s: %s", path, err);
	return p;
}

#define ck_assert_text(text, part) ck_assert_msg(strstr(text, part), "\"%s\" does not say \"%s\"", text, part)

#endif
