/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/tokens.h - the vocabulary: a token is a byte.
 *
 * Ids 0 … 255 are the bytes; the model's own bos and eos, above them, begin a prompt and end an
 * answer. A model with another vocabulary needs a tokenizer that this engine does not have.
 */
#ifndef ENG_TOKENS_H
#define ENG_TOKENS_H

#include <stddef.h>
#include "engine/config.h"

/* -EINVAL with a text unless the model's tokens are bytes. */
int eng_tokens_check(const struct eng_config *c, struct eng_error *err);

/* Write bos and the bytes to `to`, which has room for n + 1 ids. Returns n + 1. */
size_t eng_tokens_prompt(const struct eng_config *c, const char *bytes, size_t n, int32_t *to);

#endif
