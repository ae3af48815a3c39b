/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefix-reader.h - prompts that are read, or begin with a sealed prefix, and the tokens after them: whatever a sequence
 * began with, they must give the same, to the bit.
 */
#ifndef SKV_TEST_PREFIX_READER_H
#define SKV_TEST_PREFIX_READER_H

#include "tests/support/client-test.h"

#define PREFIX_PROMPT 700u
#define PREFIX_SEALED 512u
#define PREFIX_TOKENS 1024u /* of a sequence, at most */
#define PREFIX_STEPS 12u

/* A small model of that name, and a prompt of a seed, the same in all processes. */
void prefix_model(struct refmodel *, const char *name);
void prefix_prompt(int32_t ids[PREFIX_PROMPT], uint64_t seed);
/* Tokens [from, to), as a prompt or decoded: their ids are content numbers, from which K, V and q follow. `out` may be NULL. */
void prefix_read(struct refmodel *, struct skv_seq *, const int32_t *ids, uint32_t from, uint32_t to, bool prompt, float *out);
/* The rest of the prompt, then PREFIX_STEPS tokens; what those gave, to be freed. */
float *prefix_go_on(struct refmodel *, struct skv_seq *, const int32_t ids[PREFIX_PROMPT]);
bool prefix_same(const struct refmodel *, const float *a, const float *b);
/* The session's next sequence, from this prompt: how many tokens it has. */
uint32_t prefix_begin(struct refmodel *, const int32_t *ids, uint32_t n, struct skv_seq **ret);

#endif
