/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/tokenizer.h - text to token ids and back, as a tokenizer.json of Hugging Face says.
 *
 * Byte-level BPE: the rules of GPT-2, Llama 3, Qwen, SmolLM and their kin. Ids equal those of the package `tokenizers`.
 * Normalization to NFC is that of Unicode 9, as theirs is; categories of characters are as new as PCRE2, which
 * matters for characters alone that Unicode took in later. What a file asks for beyond that is refused by its name. The
 * file comes from anywhere: whatever it is, loading ends with a tokenizer or with a text. A tokenizer is read-only, so
 * any number of threads may use it.
 */
#ifndef SKV_TOKENIZER_H
#define SKV_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "formats/tokenizer/ids.h"

struct skv_tokenizer;

/* Read a file. -EBADMSG with a text that names the file, the key and what was expected, -ENOMEM; -errno of the file. */
int skv_tokenizer_load(struct skv_tokenizer **ret, const char *path, char *err, size_t err_len);
/* The same of JSON in memory; `name` stands for the file in texts. */
int skv_tokenizer_parse(struct skv_tokenizer **ret, const char *json, size_t n, const char *name, char *err,
                        size_t err_len);
void skv_tokenizer_free(struct skv_tokenizer *t);

enum skv_tokenizer_flags {
	SKV_TOKENIZER_TEMPLATE = 1u << 0, /* with what the post-processor puts around a text, such as bos */
	SKV_TOKENIZER_QUOTED = 1u << 1,   /* the text has pieces of skv_tokenizer_quote() */
};

/* U+FDD0, no character: keeps names apart in a quoted text. */
#define SKV_TOKENIZER_QUOTE "\xef\xb7\x90"

/*
 * Append the ids of a text of n bytes, NUL among them if it has some. Negative errno with a text, and `to` is as it was:
 * -EILSEQ it is not UTF-8, -EFBIG more than 1 GiB, -E2BIG a pattern took too long, -ENOMEM.
 */
int skv_tokenizer_encode(const struct skv_tokenizer *t, const char *text, size_t n, unsigned flags, struct skv_ids *to,
                         char *err, size_t err_len);

/*
 * Quote a text of strangers, to be put into one that has special tokens: names of special tokens in it are text like any.
 * *ret is to be freed, and has *ret_n bytes and a NUL. U+FDD0 in the text itself is lost. -EILSEQ, -EFBIG, -ENOMEM with a text.
 */
int skv_tokenizer_quote(const struct skv_tokenizer *t, const char *text, size_t n, char **ret, size_t *ret_n, char *err,
                        size_t err_len);

/* The post-processor's ids before a text, and behind it. */
void skv_tokenizer_template(const struct skv_tokenizer *t, const struct skv_ids **ret_before,
                            const struct skv_ids **ret_behind);

/* The bytes of a token, maybe a part of a character; NULL: there is no such id. */
const char *skv_tokenizer_bytes(const struct skv_tokenizer *t, int32_t id, size_t *ret_len);
bool skv_tokenizer_special(const struct skv_tokenizer *t, int32_t id);
/* The added token of this text, or -1. */
int32_t skv_tokenizer_added(const struct skv_tokenizer *t, const char *text);
/* All ids are below. */
uint32_t skv_tokenizer_n_ids(const struct skv_tokenizer *t);

/*
 * Bytes of tokens, one after another, become UTF-8: an unfinished character is held back until the rest of it comes, and
 * what can be no character becomes U+FFFD, one for each longest beginning of one.
 */
struct skv_utf8_stream {
	uint8_t held[4];
	uint32_t n;
};
#define SKV_UTF8_STREAM_NULL ((struct skv_utf8_stream){.n = 0})

/* Take in n bytes; what is finished goes to `to`, which has room for 3 (n + 3). Returns its length. */
size_t skv_utf8_push(struct skv_utf8_stream *s, const char *bytes, size_t n, char *to);
/* There is no more: what is held is no character. Room for 9. Returns the length. */
size_t skv_utf8_end(struct skv_utf8_stream *s, char *to);

#endif
