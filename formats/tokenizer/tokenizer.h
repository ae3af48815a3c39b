/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/tokenizer.h - converts text to token ids and back, according to a Hugging Face tokenizer.json.
 *
 * The tokenizer implements byte-level BPE, as used by GPT-2, Llama 3, Qwen, SmolLM and similar models. Its ids equal
 * those of the Python package `tokenizers`. NFC normalization is that of Unicode 9, as in that package; character
 * categories are those of PCRE2, which can differ only for characters added to Unicode later. A file with an
 * unsupported feature is rejected with an error text that names the feature. The file is untrusted: loading returns
 * either a tokenizer or an error text. A tokenizer is read-only and may be shared by threads.
 */
#ifndef SKV_TOKENIZER_H
#define SKV_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "formats/tokenizer/ids.h"

struct skv_tokenizer;

/*
 * Loads a tokenizer.json. Returns 0; -EBADMSG with an error text that names the file, the key and the expected value;
 * -ENOMEM; or the negative errno of reading the file.
 */
int skv_tokenizer_load(struct skv_tokenizer **ret, const char *path, char *err, size_t err_len);
/* Like skv_tokenizer_load(), for JSON text in memory; `name` replaces the file name in error texts. */
int skv_tokenizer_parse(struct skv_tokenizer **ret, const char *json, size_t n, const char *name, char *err,
                        size_t err_len);
void skv_tokenizer_free(struct skv_tokenizer *t);

enum skv_tokenizer_flags {
	SKV_TOKENIZER_TEMPLATE = 1u << 0, /* add the ids that the post-processor puts around a text, such as bos */
	SKV_TOKENIZER_QUOTED = 1u << 1,   /* the text contains output of skv_tokenizer_quote() */
};

/* U+FDD0, a noncharacter: skv_tokenizer_quote() puts it between the characters of special tokens' names. */
#define SKV_TOKENIZER_QUOTE "\xef\xb7\x90"

/*
 * Appends the ids of a text of n bytes, which may contain NUL. On failure returns a negative errno with an error text
 * and leaves `to` unchanged: -EILSEQ if the text is not UTF-8, -EFBIG if it has more than 1 GiB, -E2BIG if matching a
 * pattern took too many steps, or -ENOMEM.
 */
int skv_tokenizer_encode(const struct skv_tokenizer *t, const char *text, size_t n, unsigned flags, struct skv_ids *to,
                         char *err, size_t err_len);

/*
 * Quotes untrusted text for use within a text with special tokens: names of special tokens in the quoted text are
 * treated as ordinary text. The caller frees *ret, which has *ret_n bytes and a NUL. A character U+FDD0 in the text
 * itself is lost. Returns 0, or -EILSEQ, -EFBIG or -ENOMEM with an error text.
 */
int skv_tokenizer_quote(const struct skv_tokenizer *t, const char *text, size_t n, char **ret, size_t *ret_n, char *err,
                        size_t err_len);

/* Sets *ret_before and *ret_behind to the ids that the post-processor adds before and after a text. */
void skv_tokenizer_template(const struct skv_tokenizer *t, const struct skv_ids **ret_before,
                            const struct skv_ids **ret_behind);

/* Returns the bytes of a token, which may be a part of a character; NULL: the tokenizer has no such id. */
const char *skv_tokenizer_bytes(const struct skv_tokenizer *t, int32_t id, size_t *ret_len);
bool skv_tokenizer_special(const struct skv_tokenizer *t, int32_t id);
/* Returns the id of the added token with this text, or -1. */
int32_t skv_tokenizer_added(const struct skv_tokenizer *t, const char *text);
/* Returns an upper bound of the ids: all ids of tokens are below this number. */
uint32_t skv_tokenizer_n_ids(const struct skv_tokenizer *t);

/*
 * Converts the bytes of consecutive tokens to valid UTF-8. An incomplete character is held back until its last byte
 * comes. Invalid bytes become U+FFFD, one for each maximal prefix of a character.
 */
struct skv_utf8_stream {
	uint8_t held[4];
	uint32_t n;
};
#define SKV_UTF8_STREAM_NULL ((struct skv_utf8_stream){.n = 0})

/*
 * Consumes n bytes and writes complete characters to `to`, which has room for 3 (n + 3) bytes. Returns the number of
 * bytes written.
 */
size_t skv_utf8_push(struct skv_utf8_stream *s, const char *bytes, size_t n, char *to);
/* Ends the stream: held bytes become U+FFFD. `to` has room for 9 bytes. Returns the number of bytes written. */
size_t skv_utf8_end(struct skv_utf8_stream *s, char *to);

#endif
