/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/tokens.h - converts a model's text to token ids and back.
 *
 * If the model's directory has a tokenizer.json, that tokenizer is used. Otherwise each byte of a text is a token: ids
 * 0 to 255 are the bytes, and the model's bos and eos, with larger ids, begin a text and end an answer. A struct
 * eng_tokens is not changed after loading; any number of threads may use it.
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
	struct skv_tokenizer *tokenizer; /* NULL: each byte is a token */
	struct skv_ids begin;            /* tokens at the beginning of every text: bos, or none */
	uint32_t vocab;                  /* number of token ids of the model */
	int32_t eos;                     /* token that ends an answer; -1: none */
	int32_t ends[ENG_TOKENS_ENDS];   /* tokens that end a text when the model chooses one of them; contains eos */
	uint32_t n_ends;
};
#define ENG_TOKENS_NULL ((struct eng_tokens){.tokenizer = NULL})

/*
 * Loads a model's tokenizer.json, and from config.json and generation_config.json the ids of tokens that end a text.
 * *ret_config is what config.json contains; ret_config may be NULL. Returns a negative errno with a text that names the
 * file and what was expected.
 */
int eng_tokens_load(struct eng_tokens *ret, const char *directory, struct eng_config *ret_config, struct eng_error *err);
/* As eng_tokens_load(), for programs that use only ids: the directory needs no tokenizer.json. */
int eng_tokens_load_ids(struct eng_tokens *ret, const char *directory, struct eng_config *ret_config, struct eng_error *err);
void eng_tokens_deinit(struct eng_tokens *t);

/* Returns -EINVAL with a text unless a model with this configuration may use bytes as tokens. */
int eng_tokens_check_bytes(const struct eng_config *c, struct eng_error *err);

/*
 * Appends the ids of n bytes of text to `to`, without the tokens that every text begins with. Returns 0, or -EILSEQ,
 * -EFBIG, -E2BIG or -ENOMEM with a text.
 */
int eng_tokens_encode(const struct eng_tokens *t, const char *text, size_t n, struct skv_ids *to, struct eng_error *err);
/* As eng_tokens_encode(), but appends the tokens that every text begins with before the ids of the text. */
int eng_tokens_prompt(const struct eng_tokens *t, const char *text, size_t n, struct skv_ids *to, struct eng_error *err);

/* Returns whether a token ends a text. */
bool eng_tokens_is_end(const struct eng_tokens *t, int32_t id);
/* Returns whether a token ends a line: it contains '\n', or it ends the text. */
bool eng_tokens_ends_line(const struct eng_tokens *t, int32_t id);

/*
 * Prints a text token by token. Special tokens are not printed. The bytes of an incomplete UTF-8 character are printed
 * when the tokens with its other bytes have come.
 */
struct eng_printer {
	const struct eng_tokens *tokens;
	struct skv_utf8_stream stream;
	FILE *to;
};

void eng_print(struct eng_printer *p, int32_t id);
/* Ends the text: prints the bytes of a character that stays incomplete. */
void eng_print_end(struct eng_printer *p);

/* Returns the text of n ids as UTF-8, which the caller frees. NULL: no memory. */
char *eng_tokens_text(const struct eng_tokens *t, const int32_t *ids, size_t n);

#endif
