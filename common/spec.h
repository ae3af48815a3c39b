/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/spec.h - policy specs, `name?key=value&key=value`, and plugin blocks.
 *
 * One parser for client, daemon (in its probe child) and tests.
 */
#ifndef SKV_SPEC_H
#define SKV_SPEC_H

#include <stdbool.h>
#include <sparsekv/policy.h>

/* The name in front of '?', into ret_name. 0, or -EINVAL with a text. */
int skv_spec_name(const char *spec, char ret_name[SKV_NAME_MAX], char *err, size_t err_len);

/*
 * Is the block one that this build can run? Field by field: geometry, names, parameter table within
 * config_size, defaults that parse. 0, or -EBADMSG with a text that names the field, what it is and what was expected.
 */
int skv_policy_check(const struct skv_policy *p, char *err, size_t err_len);

/*
 * Parse a spec for policy `p` into `config` (p->config_size bytes, zeroed and filled with defaults
 * here), then ask p->check. Unknown or repeated keys, values out of form, missing values: -EINVAL
 * with a text that names the key and what was expected.
 */
int skv_spec_parse(const struct skv_policy *p, const char *spec, const struct skv_model *m, void *config, char *err,
                   size_t err_len);

/* Write the canonical spec, every parameter with its value, into `to`. Returns its length, as snprintf. */
int skv_spec_print(const struct skv_policy *p, const void *config, char *to, size_t len);

/*
 * Load the policy in an open file (borrowed fd): dlopen of /proc/self/fd/N, symbol, skv_policy_check.
 * *ret_handle keeps it mapped (dlclose lets go). 0, or -EBADMSG with a text.
 */
int skv_policy_dlopen(int fd, const struct skv_policy **ret, void **ret_handle, char *err, size_t err_len);

#endif
