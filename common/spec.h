/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/spec.h - policy specs, `name:variant?key=value&key=value`, and policy plugins.
 *
 * One parser and one set of checks for client, daemon (in its probe child) and tests. Texts go to
 * `err` (cut to err_len, never more than a line of ASCII) on failure only.
 *
 * What is checked here is what a mistaken plugin gets wrong. A hostile one runs code in the process
 * that loads it: that is why the operator alone loads plugins, and a child process tries them first.
 */
#ifndef SKV_SPEC_H
#define SKV_SPEC_H

#include <stdbool.h>
#include <sparsekv/policy.h>

/* ---- specs (spec.c) -------------------------------------------------------------------------- */

/* The name in front of ':' or '?', into ret_name. 0, or -EINVAL with a text. */
int skv_spec_name(const char *spec, char ret_name[SKV_NAME_MAX], char *err, size_t err_len);

/* Equal for equal specs, and for others unless by chance; never 0. */
uint64_t skv_spec_fingerprint(const char *spec);

/*
 * Parse a spec for policy `p` into `config` (p->config_size bytes, zeroed and filled with defaults
 * here), then ask p->check. Unknown or repeated keys, values out of form, missing values: -EINVAL
 * with a text that names the key and what was expected. `m` NULL: what depends on a model (layer
 * numbers, profiles, p->check) is not looked at. A profile that cannot be read: as skv_profile_read.
 */
int skv_spec_parse(const struct skv_policy *p, const char *spec, const struct skv_model *m, void *config,
                   char *err, size_t err_len);

/*
 * Write the canonical spec, every parameter with its value, into `to`. Returns its length, as snprintf.
 * Parsed again it gives the same config.
 */
int skv_spec_print(const struct skv_policy *p, const void *config, char *to, size_t len);

/* Parse one value as written in a spec to config + param->offset. NULL, else what was expected instead. */
const char *skv_spec_value(const struct skv_param *param, const char *value, void *config);

/*
 * Read the file profile->path, written by sparsekv-calibrate, into the rest of it. Opened like anything that a
 * peer names: a regular file and no link, of at most SKV_PROFILE_MAX bytes, every field checked against the model.
 * -EINVAL, or what opening it said, with a text that names the file and the field.
 */
#define SKV_PROFILE_MAX (4u << 20)
int skv_profile_read(struct skv_profile *profile, const struct skv_model *m, char *err, size_t err_len);

/* Is this a list of words (a,b,c), each once: what a choice has as its `def`? */
bool skv_spec_words(const char *list);

/* ---- plugins (plugin.c) ---------------------------------------------------------------------- */

/*
 * Is the block one that this build can run? Field by field: geometry, names, parameter table within
 * config_size, defaults that parse. 0, or -EBADMSG with a text that names the field, what it is and what
 * was expected.
 */
int skv_policy_check(const struct skv_policy *p, char *err, size_t err_len);

/*
 * Load the policy in an open file (borrowed fd): dlopen of /proc/self/fd/N, symbol, skv_policy_check.
 * *ret_handle keeps it mapped (dlclose lets go). 0, or -EBADMSG with a text; where the system lacks
 * something that error (skv_is_shortage()).
 */
int skv_policy_dlopen(int fd, const struct skv_policy **ret, void **ret_handle, char *err, size_t err_len);

/*
 * Ask the policy for the plan of every layer, plans[m->n_layers], and check that they fit together: a
 * source is an earlier layer that leaves the scores that a selection needs, windows have a budget. Layers of the model
 * with a sliding window get a plan of their own in place of the policy's.
 * 0, -EBADMSG, or -EINVAL for a policy that does not go with the model, with a text that names the layer.
 */
int skv_policy_plan(const struct skv_policy *p, const void *config, const struct skv_model *m,
                    struct skv_plan *plans, char *err, size_t err_len);

/* Does the layer attend to tokens that it chooses itself, by the weights of all of its keys, in its own before()? */
static inline bool skv_plan_chooses(const struct skv_plan *p, uint32_t layer)
{
	return p->attend == SKV_ATTEND_TOKENS && p->source == layer && !p->evict.granularity && !(p->scores & SKV_SCORES_SKETCHES);
}

/* The same by sketches: scores first, then the selection. */
static inline bool skv_plan_chooses_by_sketches(const struct skv_plan *p, uint32_t layer)
{
	return p->attend == SKV_ATTEND_TOKENS && p->source == layer && p->scores & SKV_SCORES_SKETCHES;
}

/*
 * Does a request that a hook makes of a primitive fit the plans? `scores`, any of them will do: SKV_SCORES_PAGES and
 * SKV_SCORES_PAGE_BOUNDS for select_pages, SKV_SCORES_TOKENS for select_tokens. NULL when it does, else what is wrong.
 */
const char *skv_select_check(const struct skv_select *s, uint32_t scores, const struct skv_plan *plans,
                             uint32_t n_layers);
/* The same of score_pages and score_sketches. */
const char *skv_score_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_sketch_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers);
/* And select_union? It goes by SKV_SCORES_TOKENS. */
const char *skv_union_check(const struct skv_select *s, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_window_check(const struct skv_window *w);
/* A compression plan alone, without the rest of its layer's plan. */
const char *skv_compress_check(const struct skv_compress *k);
/*
 * The primitives of layers with an eviction plan: accumulate_scores, evict_to_budget, touch_pages; not evict_outside.
 */
const char *skv_accumulate_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_evict_to_budget_check(const struct skv_evict_to_budget *k, const struct skv_plan *plans,
                                      uint32_t n_layers);
const char *skv_touch_check(const struct skv_touch_pages *s, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_evict_outside_check(uint32_t layer, const struct skv_window *w, const struct skv_plan *plans,
                            uint32_t n_layers);

/* ---- rehearsal (rehearse.c) ------------------------------------------------------------------ */

/*
 * Run every hook of the policy once, as a step would, with primitives that only check what is asked
 * of them: skv_spec_parse, skv_policy_plan, adopt, before and after of each layer, step_end. Each
 * layer that reuses a selection must find one made in this step. `spec` NULL: the defaults.
 * 0, -EINVAL (the spec) or -EBADMSG (the policy) with a text that names hook and layer; -ENOMEM.
 */
int skv_policy_rehearse(const struct skv_policy *p, const char *spec, const struct skv_model *m, char *err,
                        size_t err_len);

#endif
