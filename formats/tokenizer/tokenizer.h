/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/tokenizer.h - converts text to token ids and back, according to a Hugging Face tokenizer.json.
 *
 * It implements byte-level BPE, as used by GPT-2, Llama 3, Qwen, SmolLM and similar models. Ids equal those of the
 * package `tokenizers`. NFC normalization is that of Unicode 9, as in that package; character categories are those of
 * PCRE2, which can differ only for characters added to Unicode later. Unsupported features of a file are rejected by
 * name. The file is untrusted: loading returns a tokenizer or an error text. A tokenizer is read-only and may be shared
 * by threads.
 */
#ifndef SKV_TOKENIZER_H
#define SKV_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "formats/tokenizer/ids.h"

struct skv_tokenizer;

/*
 * Loads a file. -EBADMSG with a text that names file, key and what was expected; -ENOMEM; or the negative errno of
 * reading the file.
 */
int skv_tokenizer_load(struct skv_tokenizer **ret, const char *path, char *err, size_t err_len);
/* The same for JSON in memory; `name` replaces the file name in texts. */
int skv_tokenizer_parse(struct skv_tokenizer **ret, const char *json, size_t n, const char *name, char *err,
                        size_t err_len);
void skv_tokenizer_free(struct skv_tokenizer *t);

enum skv_tokenizer_flags {
	SKV_TOKENIZER_TEMPLATE = 1u << 0, /* add what the post-processor puts around a text, such as bos */
	SKV_TOKENIZER_QUOTED = 1u << 1,   /* the text contains output of skv_tokenizer_quote() */
};

/* U+FDD0, a noncharacter: splits the names of special tokens in quoted text. */
#define SKV_TOKENIZER_QUOTE "\xef\xb7\x90"

/*
 * Appends the ids of a text of n bytes, which may contain NUL. On failure returns a negative errno with a text and
 * leaves `to` unchanged: -EILSEQ not UTF-8, -EFBIG more than 1 GiB, -E2BIG a pattern took too long, -ENOMEM.
 */
int skv_tokenizer_encode(const struct skv_tokenizer *t, const char *text, size_t n, unsigned flags, struct skv_ids *to,
                         char *err, size_t err_len);

/*
 * Quotes untrusted text for use within a text with special tokens: names of special tokens in it are treated as
 * ordinary text. The caller frees *ret, which has *ret_n bytes and a NUL. U+FDD0 in the text itself is lost. -EILSEQ,
 * -EFBIG, -ENOMEM with a text.
 */
int skv_tokenizer_quote(const struct skv_tokenizer *t, const char *text, size_t n, char **ret, size_t *ret_n, char *err,
                        size_t err_len);

/* Returns the ids that the post-processor adds before and after a text. */
void skv_tokenizer_template(const struct skv_tokenizer *t, const struct skv_ids **ret_before,
                            const struct skv_ids **ret_behind);

/* Returns the bytes of a token, possibly part of a character; NULL: no such id. */
const char *skv_tokenizer_bytes(const struct skv_tokenizer *t, int32_t id, size_t *ret_len);
bool skv_tokenizer_special(const struct skv_tokenizer *t, int32_t id);
/* Returns the added token with this text, or -1. */
int32_t skv_tokenizer_added(const struct skv_tokenizer *t, const char *text);
/* Returns a number that all ids are below. */
uint32_t skv_tokenizer_n_ids(const struct skv_tokenizer *t);

/*
 * Converts bytes of consecutive tokens to UTF-8. Incomplete characters are held back until they are complete; each
 * maximal invalid prefix becomes U+FFFD.
 */
struct skv_utf8_stream {
	uint8_t held[4];
	uint32_t n;
};
#define SKV_UTF8_STREAM_NULL ((struct skv_utf8_stream){.n = 0})

/* Consumes n bytes and writes complete characters to `to`, which has room for 3 (n + 3) bytes. Returns their length. */
size_t skv_utf8_push(struct skv_utf8_stream *s, const char *bytes, size_t n, char *to);
/* Ends the stream: held bytes become U+FFFD. `to` has room for 9 bytes. Returns the length. */
size_t skv_utf8_end(struct skv_utf8_stream *s, char *to);

#endif
