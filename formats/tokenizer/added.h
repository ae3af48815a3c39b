/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/added.h - added tokens: texts that become one token wherever they occur. The text is searched for
 * them before any other step of encoding.
 *
 * The leftmost match wins, and the longest of several at the same place. The search continues after the match.
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
	bool single_word;    /* matches only if no word character (letter, digit, …) is next to it */
	bool lstrip, rstrip; /* the match includes white space before (lstrip) or after (rstrip) the text */
	bool special;        /* control token; omitted from decoded text */
};

/* A set of added tokens. */
struct skv_added_set {
	struct skv_added *list; /* sorted by text after skv_added_ready() */
	uint32_t n;
	struct pcre2_real_code_8 *word, *space; /* patterns for a word character and a white space character */
	/* tokens whose text begins with byte b have the indices [first[b], first[b + 1]) in `list` */
	uint32_t first[257];
};
#define SKV_ADDED_SET_NULL ((struct skv_added_set){.list = NULL})

/* Adds a token and copies its text. Returns 0 or -ENOMEM. */
int skv_added_put(struct skv_added_set *set, const struct skv_added *token);
/*
 * Prepares the set for searching; called after the last skv_added_put(). Returns 0; -EEXIST if two tokens have the same
 * text; or -ENOMEM.
 */
int skv_added_ready(struct skv_added_set *set);
void skv_added_deinit(struct skv_added_set *set);

/*
 * Splits UTF-8 text at added tokens: calls `part` for each token found and for each text between tokens (token NULL),
 * in the order of the text. Stops at the first negative value that `part` returns, and returns it.
 */
int skv_added_cut(const struct skv_added_set *set, const char *text, size_t n,
                  int (*part)(void *arg, const struct skv_added *token, const char *text, size_t n), void *arg);

/* Sets within[i] if byte i of a text of n bytes is in the name of a special token, but not its first byte. */
void skv_added_find_special(const struct skv_added_set *set, const char *text, size_t n, bool *within);

#endif
