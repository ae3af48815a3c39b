/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/pieces.h - pre-tokenization: splits text into the pieces for byte-pair encoding.
 *
 * Rules are applied in order. Each rule splits the pieces of the previous rule, as if each piece were the entire text.
 * Patterns have the syntax of Oniguruma, which the package `tokenizers` uses. Constructs with the same meaning in PCRE2
 * are translated; a pattern with any other construct is rejected with an error text that names the construct.
 */
#ifndef SKV_TOKENIZER_PIECES_H
#define SKV_TOKENIZER_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKV_RULES_MAX 16u

/* What a rule does with the matches of its pattern. */
enum skv_split {
	SKV_SPLIT_ISOLATED,      /* each match is a piece */
	SKV_SPLIT_REMOVED,       /* matches are dropped */
	SKV_SPLIT_CONTIGUOUS,    /* adjacent matches form one piece */
	SKV_SPLIT_WITH_PREVIOUS, /* a match is appended to the piece before it */
	SKV_SPLIT_WITH_NEXT,     /* a match is prepended to the piece after it */
};

struct skv_rule {
	bool add_space;  /* first put a space before pieces that do not begin with one */
	bool invert;     /* matches are treated as the text between matches, and vice versa */
	enum skv_split split;
	struct pcre2_real_code_8 *pattern; /* NULL: the rule does not split */
};

struct skv_rules {
	struct skv_rule list[SKV_RULES_MAX];
	uint32_t n;
};

/*
 * Compiles a pattern; skv_rules_deinit() frees the patterns of rules. Returns 0; -EINVAL with an error text that names
 * the unsupported construct; or -ENOMEM.
 */
int skv_pattern(struct pcre2_real_code_8 **ret, const char *pattern, size_t len, char *err, size_t err_len);
/* Compiles a pattern that matches exactly this nonempty text. Returns as skv_pattern(). */
int skv_pattern_literal(struct pcre2_real_code_8 **ret, const char *text, size_t len, char *err, size_t err_len);

/*
 * Return patterns that match one word character, as Rust's \w does, and one white space character. NULL: memory is
 * exhausted.
 */
struct pcre2_real_code_8 *skv_pattern_word(void);
struct pcre2_real_code_8 *skv_pattern_space(void);
/* Returns whether the pattern matches anywhere in this text of valid UTF-8; false also if memory is exhausted. */
bool skv_pattern_matches(const struct pcre2_real_code_8 *pattern, const char *text, size_t n);
void skv_pattern_free(struct pcre2_real_code_8 *pattern);

void skv_rules_deinit(struct skv_rules *rules);

/*
 * Splits UTF-8 text and passes the nonempty pieces to `piece` in order; a piece's text is valid only during its call.
 * Stops at the first negative value that `piece` returns, and returns it. Also returns -E2BIG if matching a pattern
 * took too many steps, and -ENOMEM.
 */
int skv_pieces(const struct skv_rules *rules, const char *text, size_t n,
               int (*piece)(void *arg, const char *text, size_t n), void *arg);

#endif
