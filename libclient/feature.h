/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/feature.h - the functions of each feature in the life of a policy, a session, a sequence and a step.
 *
 * A feature is a row of functions; a function is NULL if the feature has nothing to do there. features.c lists the rows
 * in the order in which they run. So the code that runs a step names no feature, and each feature keeps its own memory.
 */
#ifndef SKV_CLIENT_FEATURE_H
#define SKV_CLIENT_FEATURE_H

#include <stdbool.h>
#include <stdint.h>

struct policy;
struct skv_seq;
struct skv_session;

struct feature {
	/*
	 * make(): a policy was planned; make the feature's data for it. unmake(): free them, also if make() failed or
	 * did not run.
	 */
	int (*make)(struct skv_session *s, struct policy *p);
	void (*unmake)(struct policy *p);

	/*
	 * open(): a session with kernels begins. close(): it ends (the last feature first), also if open() failed or
	 * did not run.
	 */
	int (*open)(struct skv_session *s);
	void (*close)(struct skv_session *s);

	/* turn(): a step begins; agree with other ranks, and with the daemon. */
	int (*turn)(struct skv_session *s);
	/*
	 * ready(): prepare a sequence for a step with n_tokens (may be 0) of its tokens. The call may take over the
	 * sequence's policy state, and may commit maintenance transactions.
	 */
	int (*ready)(struct skv_seq *q, uint32_t n_tokens, bool prompt);
	/*
	 * prepare(): the step is laid out; make room for what the feature computes. Memory of a step grows only here.
	 */
	int (*prepare)(struct skv_session *s);
	/* begin(): the step is open. */
	void (*begin)(struct skv_session *s);
	/* end(): all layers have attended; the commit follows. Cancelled sequences take no part in the commit. */
	void (*end)(struct skv_session *s);
};

extern const struct feature fork_feature, adopt_feature, device_feature, layer_feature, joint_feature, swap_feature;
extern const struct feature decompress_feature, evict_feature, seal_feature;
extern const struct feature layout_feature, workspace_feature, padding_feature, attn_feature, select_feature, hooks_feature;
extern const struct feature compress_feature, prefill_feature, recall_feature, branches_feature, replay_feature;
extern const struct feature pages_feature, stock_feature, stats_feature;

/* Each calls one function of every feature, up to the first error: 0, or a negative errno with the last error set. */
int features_make(struct skv_session *s, struct policy *p);
void features_unmake(struct policy *p);
int features_open(struct skv_session *s);
void features_close(struct skv_session *s);
int features_turn(struct skv_session *s);
int features_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt);
int features_prepare(struct skv_session *s);
void features_begin(struct skv_session *s);
void features_end(struct skv_session *s); /* stops if a hook has misused a primitive (session.hook.misused) */

#endif
