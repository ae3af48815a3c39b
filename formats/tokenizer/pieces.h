/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/pieces.h - pre-tokenization: how a text is cut into the pieces that byte-pair encoding sees.
 *
 * It is a list of rules; each cuts what the one before it left, as if a piece were all the text there is. Patterns are
 * those of Oniguruma, which the package `tokenizers` uses. They are translated to PCRE2 where both mean the same, and
 * refused by what they contain where they may not.
 */
#ifndef SKV_TOKENIZER_PIECES_H
#define SKV_TOKENIZER_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKV_RULES_MAX 16u

/* What becomes of what a pattern matches. */
enum skv_split {
	SKV_SPLIT_ISOLATED,      /* a piece of its own */
	SKV_SPLIT_REMOVED,       /* left out */
	SKV_SPLIT_CONTIGUOUS,    /* one piece with matches beside it */
	SKV_SPLIT_WITH_PREVIOUS, /* the end of the piece before it */
	SKV_SPLIT_WITH_NEXT,     /* the beginning of the piece behind it */
};

struct skv_rule {
	bool add_space;  /* first, before a piece that does not begin with one */
	bool invert;     /* what does not match is what matches */
	enum skv_split split;
	struct pcre2_real_code_8 *pattern; /* NULL: no cut */
};

struct skv_rules {
	struct skv_rule list[SKV_RULES_MAX];
	uint32_t n;
};

/* Compile a pattern. -EINVAL with a text of what is not known; -ENOMEM. skv_rules_deinit() frees it. */
int skv_pattern(struct pcre2_real_code_8 **ret, const char *pattern, size_t len, char *err, size_t err_len);
/* The pattern that matches exactly this text, which is not empty. */
int skv_pattern_literal(struct pcre2_real_code_8 **ret, const char *text, size_t len, char *err, size_t err_len);

/* One character of a word as Rust's \w has it, and one of white space. NULL: no memory. */
struct pcre2_real_code_8 *skv_pattern_word(void);
struct pcre2_real_code_8 *skv_pattern_space(void);
/* Does it match in this valid UTF-8? No, too, without memory. */
bool skv_pattern_matches(const struct pcre2_real_code_8 *pattern, const char *text, size_t n);
void skv_pattern_free(struct pcre2_real_code_8 *pattern);

void skv_rules_deinit(struct skv_rules *rules);

/*
 * Cut UTF-8 text, handing over the pieces in their order; none is empty, and each is valid during the call. Stops at
 * the first negative value that `piece` returns, and returns it. -E2BIG: a pattern took too long. -ENOMEM.
 */
int skv_pieces(const struct skv_rules *rules, const char *text, size_t n,
               int (*piece)(void *arg, const char *text, size_t n), void *arg);

#endif
