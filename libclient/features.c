/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/features.c - the table of features, in the order in which their functions run. */
#include "libclient/feature.h"

#include "libclient/session.h"

static const struct feature *const features[] = {
	/* fork, adopt: a sequence as the daemon, another process or another policy has left it */
	&fork_feature,
	&adopt_feature,
	&device_feature, /* before all features with device memory, so that the device closes last */
	&layer_feature,
	&joint_feature, /* before swap: ranks must have met before one of them swaps its policy */
	&swap_feature,
	/* these change a sequence's form: rows are decompressed before slots change, and slots change before codes */
	&decompress_feature,
	&evict_feature,
	&seal_feature,
	/*
	 * the memory of a step: workspaces and lists are first, because they decide how the features after them compute
	 */
	&layout_feature,
	&workspace_feature,
	&padding_feature,
	&attn_feature,
	&select_feature,
	&hooks_feature, /* hooks must see the step before it is compressed or loses pages */
	&compress_feature,
	&prefill_feature,
	&recall_feature,
	&branches_feature,
	&replay_feature, /* after all features whose memory the recordings (CUDA graphs) refer to */
	&pages_feature,
	&stock_feature,
	&stats_feature,
};
#define N_FEATURES (sizeof(features) / sizeof(*features))

int features_make(struct skv_session *s, struct policy *p)
{
	int e = 0;

	for (size_t i = 0; i < N_FEATURES && e == 0; i++)
		if (features[i]->make)
			e = features[i]->make(s, p);
	return e;
}

void features_unmake(struct policy *p)
{
	for (size_t i = 0; i < N_FEATURES; i++)
		if (features[i]->unmake)
			features[i]->unmake(p);
}

int features_open(struct skv_session *s)
{
	int e = 0;

	for (size_t i = 0; i < N_FEATURES && e == 0; i++)
		if (features[i]->open)
			e = features[i]->open(s);
	return e;
}

void features_close(struct skv_session *s)
{
	for (size_t i = N_FEATURES; i-- > 0;)
		if (features[i]->close)
			features[i]->close(s);
}

int features_turn(struct skv_session *s)
{
	int e = 0;

	for (size_t i = 0; i < N_FEATURES && e == 0; i++)
		if (features[i]->turn)
			e = features[i]->turn(s);
	return e;
}

int features_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	int e = 0;

	for (size_t i = 0; i < N_FEATURES && e == 0; i++)
		if (features[i]->ready)
			e = features[i]->ready(q, n_tokens, prompt);
	return e;
}

int features_prepare(struct skv_session *s)
{
	int e = 0;

	for (size_t i = 0; i < N_FEATURES && e == 0; i++)
		if (features[i]->prepare)
			e = features[i]->prepare(s);
	return e;
}

void features_begin(struct skv_session *s)
{
	for (size_t i = 0; i < N_FEATURES; i++)
		if (features[i]->begin)
			features[i]->begin(s);
}

void features_end(struct skv_session *s)
{
	for (size_t i = 0; i < N_FEATURES; i++) {
		if (!features[i]->end)
			continue;
		features[i]->end(s);
		if (s->hook.misused)
			return;
	}
}
