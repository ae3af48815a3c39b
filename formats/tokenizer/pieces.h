/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/pieces.h - pre-tokenization: splits text into the pieces for byte-pair encoding.
 *
 * Rules are applied in order; each splits the pieces of the previous one, as if each piece were the entire text.
 * Patterns have the syntax of Oniguruma, which the package `tokenizers` uses. They are translated to PCRE2 where both
 * have the same meaning; other constructs are rejected by name.
 */
#ifndef SKV_TOKENIZER_PIECES_H
#define SKV_TOKENIZER_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKV_RULES_MAX 16u

/* What a rule does with the matches of its pattern. */
enum skv_split {
	SKV_SPLIT_ISOLATED,      /* each is a piece */
	SKV_SPLIT_REMOVED,       /* they are dropped */
	SKV_SPLIT_CONTIGUOUS,    /* adjacent matches form one piece */
	SKV_SPLIT_WITH_PREVIOUS, /* appended to the previous piece */
	SKV_SPLIT_WITH_NEXT,     /* prepended to the next piece */
};

struct skv_rule {
	bool add_space;  /* first put a space before pieces that do not begin with one */
	bool invert;     /* exchange matches and the text between them */
	enum skv_split split;
	struct pcre2_real_code_8 *pattern; /* NULL: do not split */
};

struct skv_rules {
	struct skv_rule list[SKV_RULES_MAX];
	uint32_t n;
};

/*
 * Compiles a pattern. -EINVAL with a text that names the unsupported construct; -ENOMEM. skv_rules_deinit() frees it.
 */
int skv_pattern(struct pcre2_real_code_8 **ret, const char *pattern, size_t len, char *err, size_t err_len);
/* Compiles a pattern that matches exactly this nonempty text. */
int skv_pattern_literal(struct pcre2_real_code_8 **ret, const char *text, size_t len, char *err, size_t err_len);

/* Patterns for one word character, as Rust's \w, and for one white space character. NULL: out of memory. */
struct pcre2_real_code_8 *skv_pattern_word(void);
struct pcre2_real_code_8 *skv_pattern_space(void);
/* Returns whether the pattern matches in this valid UTF-8; false also if out of memory. */
bool skv_pattern_matches(const struct pcre2_real_code_8 *pattern, const char *text, size_t n);
void skv_pattern_free(struct pcre2_real_code_8 *pattern);

void skv_rules_deinit(struct skv_rules *rules);

/*
 * Splits UTF-8 text and passes the nonempty pieces in order; each is valid during the call. Stops at the first negative
 * value that `piece` returns, and returns it. -E2BIG: a pattern took too long. -ENOMEM.
 */
int skv_pieces(const struct skv_rules *rules, const char *text, size_t n,
               int (*piece)(void *arg, const char *text, size_t n), void *arg);

#endif
