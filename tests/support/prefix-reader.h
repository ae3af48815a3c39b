/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefix-reader.h - prompts that are read, or begin with a sealed prefix, and the tokens after them:
 * outputs must be the same bit for bit, whatever a sequence began with.
 */
#ifndef SKV_TEST_PREFIX_READER_H
#define SKV_TEST_PREFIX_READER_H

#include "tests/support/client-test.h"

#define PREFIX_PROMPT 700u
#define PREFIX_SEALED 512u
#define PREFIX_TOKENS 1024u /* maximum tokens of a sequence */
#define PREFIX_STEPS 12u

/* A small model of that name, and the prompt of a seed, which is the same in all processes. */
void prefix_model(struct refmodel *, const char *name);
void prefix_prompt(int32_t ids[PREFIX_PROMPT], uint64_t seed);
/*
 * Runs tokens [from, to), as a prompt or decoded. Their ids are content numbers, which determine K, V and q. `out` may
 * be NULL.
 */
void prefix_read(struct refmodel *, struct skv_seq *, const int32_t *ids, uint32_t from, uint32_t to, bool prompt, float *out);
/*
 * Reads the rest of the prompt, then decodes PREFIX_STEPS tokens. Returns the outputs of the latter; the caller frees
 * them.
 */
float *prefix_go_on(struct refmodel *, struct skv_seq *, const int32_t ids[PREFIX_PROMPT]);
bool prefix_same(const struct refmodel *, const float *a, const float *b);
/* Begins a sequence with the sealed prefix of this prompt, if there is one; returns how many tokens it has. */
uint32_t prefix_begin(struct refmodel *, const int32_t *ids, uint32_t n, struct skv_seq **ret);

#endif
