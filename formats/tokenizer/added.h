/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/added.h - added tokens: texts that become one token wherever they occur, searched for before
 * anything else.
 *
 * The leftmost match wins, then the longest; the search continues after it.
 */
#ifndef SKV_TOKENIZER_ADDED_H
#define SKV_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct skv_added {
	char *text; /* not empty */
	uint32_t len;
	int32_t id;
	bool single_word;    /* only if not adjacent to a letter or digit */
	bool lstrip, rstrip; /* also matches white space before, or after, it */
	bool special;        /* control token; omitted from decoded text */
};

/* A set of added tokens. */
struct skv_added_set {
	struct skv_added *list; /* sorted by text after skv_added_ready() */
	uint32_t n;
	struct pcre2_real_code_8 *word, *space; /* patterns for a word character and a white space character */
	/* tokens whose text begins with byte b are list[first[b]] up to, without, list[first[b + 1]] */
	uint32_t first[257];
};
#define SKV_ADDED_SET_NULL ((struct skv_added_set){.list = NULL})

/* Adds a token and copies its text. -ENOMEM. */
int skv_added_put(struct skv_added_set *set, const struct skv_added *token);
/* Called after the last skv_added_put(). -EEXIST: two tokens have the same text; -ENOMEM. */
int skv_added_ready(struct skv_added_set *set);
void skv_added_deinit(struct skv_added_set *set);

/*
 * Splits UTF-8 text at the tokens: passes tokens, and the text between them with token NULL, to `part` in order. Stops
 * at the first negative value that `part` returns, and returns it.
 */
int skv_added_cut(const struct skv_added_set *set, const char *text, size_t n,
                  int (*part)(void *arg, const struct skv_added *token, const char *text, size_t n), void *arg);

/* Sets within[i] if byte i of a text of n bytes is in the name of a special token, but not its first byte. */
void skv_added_find_special(const struct skv_added_set *set, const char *text, size_t n, bool *within);

#endif
