/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/tokens.h - the text of a model: its bytes to token ids and back.
 *
 * A directory with a tokenizer.json has that. Without one a token is a byte: ids 0 … 255 are the bytes, and the model's
 * own bos and eos, above them, begin a text and end an answer. Read-only once loaded; any number of threads may use it.
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
	struct skv_ids begin;            /* what every text begins with: bos, or nothing */
	uint32_t vocab;                  /* ids of the model */
	int32_t eos;                     /* ends an answer */
	int32_t ends[ENG_TOKENS_ENDS];   /* each ends a text, when the model says it; eos is among them */
	uint32_t n_ends;
};
#define ENG_TOKENS_NULL ((struct eng_tokens){.tokenizer = NULL})

/*
 * Load what a model's directory says of its text: config.json, tokenizer.json, and the ids that end a text in
 * generation_config.json and config.json; *ret_config: config.json, unless it is NULL. Negative errno with a text that names the file and what was expected.
 */
int eng_tokens_load(struct eng_tokens *ret, const char *directory, struct eng_config *ret_config, struct eng_error *err);
/* The same where ids alone come and go: a folder without tokenizer.json will do. */
int eng_tokens_load_ids(struct eng_tokens *ret, const char *directory, struct eng_config *ret_config, struct eng_error *err);
void eng_tokens_deinit(struct eng_tokens *t);

/* -EINVAL with a text unless the vocabulary of this configuration is bytes. */
int eng_tokens_check_bytes(const struct eng_config *c, struct eng_error *err);

/* Append the ids of n bytes of text, without what texts begin with. -EILSEQ, -EFBIG, -E2BIG, -ENOMEM with a text. */
int eng_tokens_encode(const struct eng_tokens *t, const char *text, size_t n, struct skv_ids *to, struct eng_error *err);
/* The same, behind what every text begins with. */
int eng_tokens_prompt(const struct eng_tokens *t, const char *text, size_t n, struct skv_ids *to, struct eng_error *err);

/* Does it end a text? */
bool eng_tokens_is_end(const struct eng_tokens *t, int32_t id);
/* Does it end a line: has it a '\n', or ends it the text? */
bool eng_tokens_ends_line(const struct eng_tokens *t, int32_t id);

/* A text on its way out, token by token; special tokens are left out, and unfinished characters wait. */
struct eng_printer {
	const struct eng_tokens *tokens;
	struct skv_utf8_stream stream;
	FILE *to;
};

void eng_print(struct eng_printer *p, int32_t id);
/* The text ends here. */
void eng_print_end(struct eng_printer *p);

/* The text of n ids, in UTF-8, to be freed; NULL: no memory. */
char *eng_tokens_text(const struct eng_tokens *t, const int32_t *ids, size_t n);

#endif
