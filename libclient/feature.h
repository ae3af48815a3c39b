/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/feature.h - what features do in the life of a policy, a session, a sequence and a step.
 *
 * A feature is one row of functions; NULL where it has nothing to do. features.c has the rows in the order in which
 * they run. So code that runs a step does not name the features, and each feature has its own memory.
 */
#ifndef SKV_CLIENT_FEATURE_H
#define SKV_CLIENT_FEATURE_H

#include <stdbool.h>
#include <stdint.h>

struct policy;
struct skv_seq;
struct skv_session;

struct feature {
	/* A policy is planned: make what the feature keeps for it. Free that, even if make() failed or did not run. */
	int (*make)(struct skv_session *s, struct policy *p);
	void (*unmake)(struct policy *p);

	/* A session begins, with its kernels. It ends, the last row first, even if open() failed or did not run. */
	int (*open)(struct skv_session *s);
	void (*close)(struct skv_session *s);

	/* A step begins: agree with other ranks, and with the daemon. */
	int (*turn)(struct skv_session *s);
	/*
	 * Make a sequence ready for a step with so many of its tokens, which may be none. May take over its policy
	 * state, and commit maintenance transactions.
	 */
	int (*ready)(struct skv_seq *q, uint32_t n_tokens, bool prompt);
	/* The step is laid out: make room for what the feature computes. Memory of a step grows only here. */
	int (*prepare)(struct skv_session *s);
	/* The step is open. */
	void (*begin)(struct skv_session *s);
	/* All layers have attended, and the commit follows. Cancelled sequences take no part in it. */
	void (*end)(struct skv_session *s);
};

extern const struct feature fork_feature, adopt_feature, device_feature, layer_feature, joint_feature, swap_feature;
extern const struct feature decompress_feature, evict_feature, seal_feature;
extern const struct feature layout_feature, workspace_feature, attn_feature, select_feature, hooks_feature;
extern const struct feature compress_feature, prefill_feature, recall_feature, branches_feature, replay_feature;
extern const struct feature pages_feature, stock_feature, stats_feature;

/* Each of these goes over the rows. The first error ends it: 0, or a negative errno with the last error set. */
int features_make(struct skv_session *s, struct policy *p);
void features_unmake(struct policy *p);
int features_open(struct skv_session *s);
void features_close(struct skv_session *s);
int features_turn(struct skv_session *s);
int features_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt);
int features_prepare(struct skv_session *s);
void features_begin(struct skv_session *s);
void features_end(struct skv_session *s); /* a hook that has misused a primitive (session.misused) ends it, too */

#endif
