/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/policy-file.h - policy files as built: loads them and prints their plans. */
#ifndef SKV_POLICY_FILE_H
#define SKV_POLICY_FILE_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fd.h"
#include "common/spec.h"

#define POLICY(name) SKV_BUILDDIR "/policies/.libs/" name ".so"
#define PLUGIN(name) SKV_BUILDDIR "/tests/support/plugins/.libs/" name ".so"

/* The reference model's shape. */
static const struct skv_model reference = {
        .size = sizeof(reference), .n_layers = 16, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64,
        .kv_dtype = SKV_BF16, .max_tokens = 16384, .n_ranks = 1, .name = "reference",
};

/* Those of policies/local.mk. */
static const char *const policy_names[] = {
#define SKV_POLICY(name) #name,
#include "policies/names.h"
};
#define POLICY_NAMES ((int)(sizeof(policy_names) / sizeof(*policy_names)))

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

/* Loads the policy that a spec names. */
static inline const struct skv_policy *policy_of(const char *spec)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/policies/.libs/%.*s.so", SKV_BUILDDIR, (int)strcspn(spec, "?:"), spec);
	return policy(path);
}

/* Gets the plans that a spec gives for the model's layers. */
static inline void policy_plans(const char *spec, const struct skv_model *m, struct skv_plan plans[SKV_MAX_LAYERS])
{
	static _Alignas(16) char config[131072];
	const struct skv_policy *p = policy_of(spec);

	ck_assert_uint_le(p->config_size, sizeof(config));
	ck_assert_msg(skv_spec_parse(p, spec, m, config, err, sizeof(err)) == 0, "%s", err);
	ck_assert_msg(skv_policy_plan(p, config, m, plans, err, sizeof(err)) == 0, "%s", err);
}

/*
 * All plans in short form: d dense, s dense and selects, w window, pN and tN pages or tokens that layer N selected; k
 * with scores of each kv head, q of each q head; z compresses.
 */
static inline const char *plans_of(const char *spec, const struct skv_model *m)
{
	static char text[4 * SKV_MAX_LAYERS];
	struct skv_plan plans[SKV_MAX_LAYERS];
	size_t at = 0;

	policy_plans(spec, m, plans);
	ck_assert_msg(skv_policy_rehearse(policy_of(spec), spec, m, err, sizeof(err)) == 0, "%s", err);
	for (uint32_t l = 0; l < m->n_layers; l++) {
		const struct skv_plan *q = &plans[l];

		if (q->attend == SKV_ATTEND_DENSE)
			at += (size_t)sprintf(text + at, q->scores ? "s" : "d");
		else if (q->attend == SKV_ATTEND_WINDOW)
			at += (size_t)sprintf(text + at, "w");
		else
			at += (size_t)sprintf(text + at, "%c%u", q->attend == SKV_ATTEND_PAGES ? 'p' : 't',
			                      q->source);
		if (q->scores && q->sharing != SKV_SHARE_ALL_HEADS)
			at += (size_t)sprintf(text + at, q->sharing == SKV_SHARE_KV_HEAD ? "k" : "q");
		if (q->compress.kind)
			at += (size_t)sprintf(text + at, "z");
		at += (size_t)sprintf(text + at, l + 1 < m->n_layers ? " " : "");
	}
	return text;
}

/* Writes a profile of the reference model to a new file. */
static inline void profile_write(char *path_template, const char *chosen)
{
	int fd = mkstemp(path_template);

	ck_assert_int_ge(fd, 0);
	dprintf(fd,
	        "{\"sparsekv_profile\": 1, \"chosen\": {%s}, \"model\": "
	        "{\"layers\": %u, \"heads\": %u, \"kv_heads\": %u, \"head_dim\": %u}}",
	        chosen, reference.n_layers, reference.n_heads, reference.n_kv_heads, reference.head_dim);
	close(fd);
}

/* The same with anchors 0 and 2; only in layer 3 each kv head uses the other one's list. */
static inline void profile_write_anchors(char *path_template)
{
	char chosen[512];
	size_t at = (size_t)sprintf(chosen, "\"anchors\": [0, 2], \"head_map\": [[0, 1]");

	ck_assert_uint_eq(reference.n_kv_heads, 2);
	for (uint32_t l = 1; l < reference.n_layers; l++)
		at += (size_t)sprintf(chosen + at, ", %s", l == 3 ? "[1, 0]" : "[0, 1]");
	strcpy(chosen + at, "]");
	profile_write(path_template, chosen);
}

#define ck_assert_text(text, part) ck_assert_msg(strstr(text, part), "\"%s\" does not say \"%s\"", text, part)

#endif
