/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/tokens.h - converts a model's text to token ids and back.
 *
 * A directory with a tokenizer.json uses it. Otherwise a token is a byte: ids 0 … 255 are the bytes, and the model's
 * bos and eos, with larger ids, begin a text and end an answer. Read-only after loading; any number of threads may
 * use it.
 */
#ifndef ENG_TOKENS_H
#define ENG_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "engine/config.h"
#include "formats/tokenizer/tokenizer.h"

#define ENG_TOKENS_ENDS 16u

struct eng_tokens {
	struct skv_tokenizer *tokenizer; /* NULL: a token is a byte */
	struct skv_ids begin;            /* tokens that every text begins with: bos, or none */
	uint32_t vocab;                  /* number of the model's ids */
	int32_t eos;                     /* ends an answer; -1: none */
	int32_t ends[ENG_TOKENS_ENDS];   /* each of these ends a text when the model chooses it; contains eos */
	uint32_t n_ends;
};
#define ENG_TOKENS_NULL ((struct eng_tokens){.tokenizer = NULL})

/*
 * Loads a model's config.json and tokenizer.json, and the ids that end a text in generation_config.json and
 * config.json. *ret_config: config.json, unless ret_config is NULL. Returns a negative errno with a text that names
 * the file and what was expected.
 */
int eng_tokens_load(struct eng_tokens *ret, const char *directory, struct eng_config *ret_config, struct eng_error *err);
/* The same for programs that use ids only: the directory needs no tokenizer.json. */
int eng_tokens_load_ids(struct eng_tokens *ret, const char *directory, struct eng_config *ret_config, struct eng_error *err);
void eng_tokens_deinit(struct eng_tokens *t);

/* Returns -EINVAL with a text unless the tokens of this configuration are bytes. */
int eng_tokens_check_bytes(const struct eng_config *c, struct eng_error *err);

/*
 * Appends the ids of n bytes of text, without the tokens that texts begin with. -EILSEQ, -EFBIG, -E2BIG, -ENOMEM with
 * a text.
 */
int eng_tokens_encode(const struct eng_tokens *t, const char *text, size_t n, struct skv_ids *to, struct eng_error *err);
/* The same, preceded by the tokens that every text begins with. */
int eng_tokens_prompt(const struct eng_tokens *t, const char *text, size_t n, struct skv_ids *to, struct eng_error *err);

/* Returns whether a token ends a text. */
bool eng_tokens_is_end(const struct eng_tokens *t, int32_t id);
/* Returns whether a token ends a line: it contains '\n', or ends the text. */
bool eng_tokens_ends_line(const struct eng_tokens *t, int32_t id);

/* Prints a text token by token. Special tokens are skipped; incomplete UTF-8 characters wait for their rest. */
struct eng_printer {
	const struct eng_tokens *tokens;
	struct skv_utf8_stream stream;
	FILE *to;
};

void eng_print(struct eng_printer *p, int32_t id);
/* Ends the text. */
void eng_print_end(struct eng_printer *p);

/* Returns the text of n ids in UTF-8, which the caller frees; NULL: no memory. */
char *eng_tokens_text(const struct eng_tokens *t, const int32_t *ids, size_t n);

#endif
