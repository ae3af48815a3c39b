/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/spec.h - policy specs, `name:variant?key=value&key=value`, and policy plugins.
 *
 * The client library, the daemon (in the child process that probes plugins) and the tests share this parser and these
 * checks. On failure only, an error text of one line of ASCII is written to `err`, truncated to err_len bytes.
 *
 * The checks detect mistakes of a plugin. The checks do not protect from a malicious plugin, whose code runs in the
 * process that loads it. Therefore only the operator may load plugins, and the daemon tries each plugin in a child
 * process first.
 */
#ifndef SKV_SPEC_H
#define SKV_SPEC_H

#include <stdbool.h>
#include <sparsekv/policy.h>

/* ---- specs (spec.c) -------------------------------------------------------------------------- */

/*
 * Copies the policy's name, which is the part of the spec before ':' or '?', to ret_name. Returns 0, or -EINVAL with a
 * text.
 */
int skv_spec_name(const char *spec, char ret_name[SKV_NAME_MAX], char *err, size_t err_len);

/*
 * Returns a hash of the spec's text, which is never 0. Equal specs have equal hashes; different specs may share a hash
 * by chance.
 */
uint64_t skv_spec_fingerprint(const char *spec);

/*
 * Parses a spec for policy `p` into `config` (p->config_size bytes, which are zeroed and filled with defaults first),
 * then calls p->check. Returns 0; -EINVAL with a text that names the key and the expected value, for an unknown or
 * repeated key, or a malformed or missing value; or the error of skv_profile_read() if a profile cannot be read. With
 * `m` NULL, checks that need a model (layer numbers, profiles, p->check) are skipped.
 */
int skv_spec_parse(const struct skv_policy *p, const char *spec, const struct skv_model *m, void *config,
                   char *err, size_t err_len);

/*
 * Writes the canonical spec, with the value of every parameter, to `to`. Returns the length of the canonical spec, like
 * snprintf. Parsing the canonical spec gives the same config.
 */
int skv_spec_print(const struct skv_policy *p, const void *config, char *to, size_t len);

/*
 * Parses the value of one parameter of a spec, and stores it at config + param->offset. Returns NULL, or a text that
 * describes the values that the parameter accepts.
 */
const char *skv_spec_value(const struct skv_param *param, const char *value, void *config);

/*
 * Reads the profile that sparsekv-calibrate has written to the file profile->path into the other fields of `profile`.
 * The file must be a regular file, not a symbolic link, of at most SKV_PROFILE_MAX bytes. Every field is checked
 * against the model. Returns 0, -EINVAL or the error of opening the file, with a text that names the file and the
 * field.
 */
#define SKV_PROFILE_MAX (4u << 20)
int skv_profile_read(struct skv_profile *profile, const struct skv_model *m, char *err, size_t err_len);

/*
 * Returns whether `list` consists of distinct words separated by commas (a,b,c), as the `def` field of a parameter of
 * type choice must.
 */
bool skv_spec_words(const char *list);

/* ---- plugins (plugin.c) ---------------------------------------------------------------------- */

/*
 * Checks every field of a plugin's struct skv_policy, so that this build can run the policy: ABI version and struct
 * sizes, names, parameters that lie within config_size bytes, valid defaults. Returns 0, or -EBADMSG with a text that
 * names the field, its value and the expected value.
 */
int skv_policy_check(const struct skv_policy *p, char *err, size_t err_len);

/*
 * Loads a policy from an open plugin file (fd is borrowed): calls dlopen() on /proc/self/fd/N, looks up the policy's
 * symbol, and calls skv_policy_check(). The policy stays loaded until the caller passes *ret_handle to dlclose().
 * Returns 0, -EBADMSG with a text, or the negative errno of a shortage (skv_is_shortage()).
 */
int skv_policy_dlopen(int fd, const struct skv_policy **ret, void **ret_handle, char *err, size_t err_len);

/*
 * Asks the policy for its plan of every layer, plans[m->n_layers], and checks that the plans fit together: a layer that
 * uses another layer's selection names an earlier layer that makes the necessary scores, and windows have a budget. A
 * layer with a sliding window in the model attends to that window, and the policy's plan for the layer is ignored.
 * Returns 0, -EBADMSG for an invalid plan, or -EINVAL for a policy that does not fit the model, with a text that names
 * the layer.
 */
int skv_policy_plan(const struct skv_policy *p, const void *config, const struct skv_model *m,
                    struct skv_plan *plans, char *err, size_t err_len);

/*
 * Returns whether the layer attends to tokens that the policy's before() of this layer selects by the attention weights
 * of all keys of the layer.
 */
static inline bool skv_plan_chooses(const struct skv_plan *p, uint32_t layer)
{
	return p->attend == SKV_ATTEND_TOKENS && p->source == layer && !p->evict.granularity && !(p->scores & SKV_SCORES_SKETCHES);
}

/*
 * Returns whether the layer attends to tokens that the policy's before() of this layer selects by scores of key
 * sketches, which it has computed first.
 */
static inline bool skv_plan_chooses_by_sketches(const struct skv_plan *p, uint32_t layer)
{
	return p->attend == SKV_ATTEND_TOKENS && p->source == layer && p->scores & SKV_SCORES_SKETCHES;
}

/*
 * Checks the arguments of a hook's call of select_pages or select_tokens against the plans. The plan of the layer
 * s->layer must request at least one of `scores`, which is SKV_SCORES_PAGES | SKV_SCORES_PAGE_BOUNDS for select_pages,
 * and SKV_SCORES_TOKENS for select_tokens. Returns NULL or an error text.
 */
const char *skv_select_check(const struct skv_select *s, uint32_t scores, const struct skv_plan *plans,
                             uint32_t n_layers);
/*
 * Check the arguments of a hook's call of score_pages or score_sketches against the plans. Return NULL or an error
 * text.
 */
const char *skv_score_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_sketch_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers);
/*
 * Checks the arguments of a hook's call of select_union, which selects by SKV_SCORES_TOKENS. Returns NULL or an error
 * text.
 */
const char *skv_union_check(const struct skv_select *s, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_window_check(const struct skv_window *w);
/* Checks a layer's compression plan without regard to the rest of the layer's plan. Returns NULL or an error text. */
const char *skv_compress_check(const struct skv_compress *k);
/*
 * Check the arguments of a hook's call of accumulate_scores, evict_to_budget or touch_pages, which require a layer with
 * an eviction plan, or of evict_outside, which requires a layer without one. Return NULL or an error text.
 */
const char *skv_accumulate_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_evict_to_budget_check(const struct skv_evict_to_budget *k, const struct skv_plan *plans,
                                      uint32_t n_layers);
const char *skv_touch_check(const struct skv_touch_pages *s, const struct skv_plan *plans, uint32_t n_layers);
const char *skv_evict_outside_check(uint32_t layer, const struct skv_window *w, const struct skv_plan *plans,
                            uint32_t n_layers);

/* ---- rehearsal (rehearse.c) ------------------------------------------------------------------ */

/*
 * Runs every hook of the policy once, in the order of a step, with primitives that only check their arguments:
 * skv_spec_parse, skv_policy_plan, adopt, before and after of each layer, step_end. If a layer attends to a selection,
 * a hook must have made the selection before in this step. `spec` NULL: the policy's defaults. Returns 0, -EINVAL for
 * an invalid spec, -EBADMSG with a text that names the hook and the layer if the policy misuses a primitive, or
 * -ENOMEM.
 */
int skv_policy_rehearse(const struct skv_policy *p, const char *spec, const struct skv_model *m, char *err,
                        size_t err_len);

#endif
