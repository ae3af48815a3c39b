/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/added.h - added tokens: texts that are one token wherever they occur, found before anything else.
 *
 * Of those that begin leftmost the longest counts, and the search goes on behind it.
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
	bool single_word;    /* not beside a letter or digit */
	bool lstrip, rstrip; /* takes the white space before, behind it, too */
	bool special;        /* controls; left out of a decoded text */
};

/* A set of them. */
struct skv_added_set {
	struct skv_added *list; /* sorted by text once it is ready */
	uint32_t n;
	struct pcre2_real_code_8 *word, *space; /* that match a character of a word, a white one */
	uint32_t first[257]; /* those that begin with byte b are first[b] to first[b + 1] */
};
#define SKV_ADDED_SET_NULL ((struct skv_added_set){.list = NULL})

/* Add one, its text copied. -ENOMEM. */
int skv_added_put(struct skv_added_set *set, const struct skv_added *token);
/* After the last. -EEXIST: two have the same text; -ENOMEM. */
int skv_added_ready(struct skv_added_set *set);
void skv_added_deinit(struct skv_added_set *set);

/*
 * Cut UTF-8 text at the tokens: `part` gets what is between them (token NULL) and them, in their order. Stops at the first
 * negative value that `part` returns, and returns it.
 */
int skv_added_cut(const struct skv_added_set *set, const char *text, size_t n,
                  int (*part)(void *arg, const struct skv_added *token, const char *text, size_t n), void *arg);

/* Byte i of a text of n bytes is within the name of a special token, and not its first: within[i] becomes true. */
void skv_added_find_special(const struct skv_added_set *set, const char *text, size_t n, bool *within);

#endif
