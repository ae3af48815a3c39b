/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/spec.h - policy specs, `name:variant?key=value&key=value`, and policy plugins.
 *
 * Client, daemon (in its probe child) and tests share one parser and one set of checks. Error texts are written to
 * `err` (truncated to err_len, at most one line of ASCII) on failure only.
 *
 * The checks detect mistakes of a plugin. They do not protect from a malicious one, which runs code in the process that
 * loads it: so only the operator loads plugins, and a child process tries them first.
 */
#ifndef SKV_SPEC_H
#define SKV_SPEC_H

#include <stdbool.h>
#include <sparsekv/policy.h>

/* ---- specs (spec.c) -------------------------------------------------------------------------- */

/* Copies the name before ':' or '?' to ret_name. Returns 0, or -EINVAL with a text. */
int skv_spec_name(const char *spec, char ret_name[SKV_NAME_MAX], char *err, size_t err_len);

/* Returns a hash, never 0: equal for equal specs, and different for others except by chance. */
uint64_t skv_spec_fingerprint(const char *spec);

/*
 * Parses a spec for policy `p` into `config` (p->config_size bytes, which are zeroed and filled with defaults), then
 * calls p->check. Unknown or repeated keys, malformed or missing values: -EINVAL with a text that names the key and
 * what was expected. `m` NULL: skips checks that need a model (layer numbers, profiles, p->check). If a profile cannot
 * be read: the error of skv_profile_read().
 */
int skv_spec_parse(const struct skv_policy *p, const char *spec, const struct skv_model *m, void *config,
                   char *err, size_t err_len);

/*
 * Writes the canonical spec, with the value of every parameter, to `to`. Returns its length, like snprintf. Parsing it
 * gives the same config.
 */
int skv_spec_print(const struct skv_policy *p, const void *config, char *to, size_t len);

/* Parses one value of a spec to config + param->offset. Returns NULL, or a text of what was expected. */
const char *skv_spec_value(const struct skv_param *param, const char *value, void *config);

/*
 * Reads the file profile->path, written by sparsekv-calibrate, into the rest of `profile`. It must be a regular file
 * and no link, with at most SKV_PROFILE_MAX bytes; every field is checked against the model. Returns 0, -EINVAL or the
 * error of opening it, with a text that names the file and the field.
 */
#define SKV_PROFILE_MAX (4u << 20)
int skv_profile_read(struct skv_profile *profile, const struct skv_model *m, char *err, size_t err_len);

/* Returns whether this is a list of distinct words (a,b,c): the `def` of a choice. */
bool skv_spec_words(const char *list);

/* ---- plugins (plugin.c) ---------------------------------------------------------------------- */

/*
 * Checks that this build can run the policy, field by field: geometry, names, parameter table within config_size, valid
 * defaults. Returns 0, or -EBADMSG with a text that names the field, its value and what was expected.
 */
int skv_policy_check(const struct skv_policy *p, char *err, size_t err_len);

/*
 * Loads the policy in an open file (borrowed fd): dlopen of /proc/self/fd/N, symbol, skv_policy_check. *ret_handle
 * keeps it loaded until dlclose(). Returns 0, -EBADMSG with a text, or the errno of a shortage (skv_is_shortage()).
 */
int skv_policy_dlopen(int fd, const struct skv_policy **ret, void **ret_handle, char *err, size_t err_len);

/*
 * Gets the policy's plan of every layer, plans[m->n_layers], and checks that they fit together: a source is an earlier
 * layer with the scores that a selection needs, windows have a budget. Layers of the model with a sliding window get a
 * plan of their own instead of the policy's. Returns 0, -EBADMSG, or -EINVAL for a policy that does not fit the model,
 * with a text that names the layer.
 */
int skv_policy_plan(const struct skv_policy *p, const void *config, const struct skv_model *m,
                    struct skv_plan *plans, char *err, size_t err_len);

/*
 * Returns whether the layer attends to tokens that it selects itself in its own before(), by the attention weights of
 * all of its keys.
 */
static inline bool skv_plan_chooses(const struct skv_plan *p, uint32_t layer)
{
	return p->attend == SKV_ATTEND_TOKENS && p->source == layer && !p->evict.granularity && !(p->scores & SKV_SCORES_SKETCHES);
}

/* The same for selection by sketches: scores first, then the selection. */
static inline bool skv_plan_chooses_by_sketches(const struct skv_plan *p, uint32_t layer)
{
	return p->attend == SKV_ATTEND_TOKENS && p->source == layer && p->scores & SKV_SCORES_SKETCHES;
}

/*
 * Checks a hook's request for a selection against the plans. One of `scores` suffices: SKV_SCORES_PAGES and
 * SKV_SCORES_PAGE_BOUNDS for select_pages, SKV_SCORES_TOKENS for select_tokens. Returns NULL or an error text.
 */
const char *skv_select_check(const struct skv_select *s, uint32_t scores, const struct skv_plan *plans,
                             uint32_t n_layers);
/* The same for score_pages and score_sketches. */
const char *skv_score_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_sketch_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers);
/* The same for select_union, which uses SKV_SCORES_TOKENS. */
const char *skv_union_check(const struct skv_select *s, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_window_check(const struct skv_window *w);
/* Checks a compression plan by itself, without the rest of its layer's plan. */
const char *skv_compress_check(const struct skv_compress *k);
/*
 * Check requests for primitives of layers with an eviction plan: accumulate_scores, evict_to_budget, touch_pages; and
 * evict_outside, for layers without one.
 */
const char *skv_accumulate_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_evict_to_budget_check(const struct skv_evict_to_budget *k, const struct skv_plan *plans,
                                      uint32_t n_layers);
const char *skv_touch_check(const struct skv_touch_pages *s, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_evict_outside_check(uint32_t layer, const struct skv_window *w, const struct skv_plan *plans,
                            uint32_t n_layers);

/* ---- rehearsal (rehearse.c) ------------------------------------------------------------------ */

/*
 * Runs every hook of the policy once, like a step, with primitives that only check their arguments: skv_spec_parse,
 * skv_policy_plan, adopt, before and after of each layer, step_end. Each layer that reuses a selection must find one
 * made in this step. `spec` NULL: the defaults. Returns 0, -EINVAL (spec) or -EBADMSG (policy) with a text that names
 * hook and layer, or -ENOMEM.
 */
int skv_policy_rehearse(const struct skv_policy *p, const char *spec, const struct skv_model *m, char *err,
                        size_t err_len);

#endif
