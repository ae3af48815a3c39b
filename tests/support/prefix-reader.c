/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/prefix-reader.h"
#include "tests/support/reference-codec.h"

#include <stdlib.h>
#include <string.h>

static size_t out_size(const struct refmodel *w)
{
	return (size_t)w->model.n_layers * w->model.n_heads * w->model.head_dim;
}

void prefix_model(struct refmodel *w, const char *name)
{
	refmodel_model(&w->model, name, SKV_F32, PREFIX_TOKENS);
	w->model.n_layers = 4;
	w->model.n_heads = 4;
	w->model.n_kv_heads = 2;
	w->model.head_dim = 64; /* devices support this size, too */
	refmodel_packable(&w->model);
}

void prefix_prompt(int32_t ids[PREFIX_PROMPT], uint64_t seed)
{
	for (uint32_t i = 0; i < PREFIX_PROMPT; i++)
		ids[i] = refmodel_token(refmodel_content(seed, i));
}

void prefix_read(struct refmodel *w, struct skv_seq *seq, const int32_t *ids, uint32_t from, uint32_t to, bool prompt, float *out)
{
	struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = to - from, .flags = prompt ? SKV_STEP_PROMPT : 0);
	uint64_t content[PREFIX_TOKENS];

	for (uint32_t i = from; i < to; i++)
		content[i - from] = (uint64_t)ids[i];
	OK(refmodel_items(w, &item, 1, content, to - from, NULL, out));
}

float *prefix_go_on(struct refmodel *w, struct skv_seq *seq, const int32_t ids[PREFIX_PROMPT])
{
	float *out = calloc(PREFIX_STEPS * out_size(w), sizeof(*out));
	int32_t more[PREFIX_PROMPT + PREFIX_STEPS];

	memcpy(more, ids, PREFIX_PROMPT * sizeof(*more));
	if (skv_seq_len(seq) < PREFIX_SEALED)
		prefix_read(w, seq, ids, skv_seq_len(seq), PREFIX_SEALED, true, NULL);
	prefix_read(w, seq, ids, PREFIX_SEALED, PREFIX_PROMPT, true, NULL);
	for (uint32_t i = 0; i < PREFIX_STEPS; i++) {
		more[PREFIX_PROMPT + i] = (int32_t)i;
		prefix_read(w, seq, more, PREFIX_PROMPT + i, PREFIX_PROMPT + i + 1, false, out + i * out_size(w));
	}
	return out;
}

bool prefix_same(const struct refmodel *w, const float *a, const float *b)
{
	return memcmp(a, b, PREFIX_STEPS * out_size(w) * sizeof(*a)) == 0;
}

uint32_t prefix_begin(struct refmodel *w, const int32_t *ids, uint32_t n, struct skv_seq **ret)
{
	OK(skv_seq_new_from(w->session, NULL, 0, ids, n, ret));
	return skv_seq_len(*ret);
}
