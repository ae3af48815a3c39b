/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/tokenizer/added.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "formats/tokenizer/pieces.h"

/* ---- the set --------------------------------------------------------------------------------- */

int skv_added_put(struct skv_added_set *set, const struct skv_added *token)
{
	struct skv_added *list = reallocarray(set->list, set->n + 1, sizeof(*list));
	char *text = list ? malloc(token->len + 1) : NULL;

	if (list)
		set->list = list;
	if (!text)
		return -ENOMEM;
	memcpy(text, token->text, token->len);
	text[token->len] = '\0';
	list[set->n] = *token;
	list[set->n++].text = text;
	return 0;
}

/* Compares bytes; a prefix sorts before longer texts. */
static int by_text(const void *a, const void *b)
{
	const struct skv_added *x = a, *y = b;
	int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);

	return c ? c : x->len < y->len ? -1 : x->len > y->len;
}

int skv_added_ready(struct skv_added_set *set)
{
	uint32_t at = 0;

	set->word = skv_pattern_word();
	set->space = skv_pattern_space();
	if (!set->word || !set->space)
		return -ENOMEM;
	if (set->n)
		qsort(set->list, set->n, sizeof(*set->list), by_text);
	for (uint32_t b = 0; b <= 256; b++) {
		while (at < set->n && (unsigned char)set->list[at].text[0] < b)
			at++;
		set->first[b] = at;
	}
	for (uint32_t i = 1; i < set->n; i++)
		if (!by_text(&set->list[i - 1], &set->list[i]))
			return -EEXIST;
	return 0;
}

void skv_added_deinit(struct skv_added_set *set)
{
	for (uint32_t i = 0; i < set->n; i++)
		free(set->list[i].text);
	free(set->list);
	skv_pattern_free(set->word);
	skv_pattern_free(set->space);
	*set = SKV_ADDED_SET_NULL;
}

/*
 * Returns the index of the first entry in list[low … high) whose byte `at` is at least `byte`, or `high`. All these
 * entries have the same first `at` bytes.
 */
static uint32_t first_from(const struct skv_added_set *set, uint32_t low, uint32_t high, uint32_t at, unsigned byte)
{
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct skv_added *t = &set->list[middle];

		if (t->len <= at || (unsigned char)t->text[at] < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Returns the longest added token with which the text begins, or NULL. Each byte of the text narrows the range of
 * candidates.
 */
static const struct skv_added *longest(const struct skv_added_set *set, const char *text, size_t n)
{
	uint32_t low = set->first[(unsigned char)text[0]], high = set->first[(unsigned char)text[0] + 1];
	const struct skv_added *found = NULL;

	for (uint32_t at = 1; low < high; at++) {
		if (set->list[low].len == at)
			found = &set->list[low];
		if (at == n)
			break;
		low = first_from(set, low, high, at, (unsigned char)text[at]);
		high = first_from(set, low, high, at, (unsigned char)text[at] + 1u);
	}
	return found;
}

/* ---- neighbours ------------------------------------------------------------------------------ */

/*
 * before() returns the length of the UTF-8 character that ends at `at`, or 0 at the beginning of the text. behind()
 * returns the length of the character that begins at `at`, or 0 at the end of the text.
 */
static size_t before(const char *text, size_t at)
{
	size_t n = 1;

	while (at && (text[at - n] & 0xc0) == 0x80)
		n++;
	return at ? n : 0;
}

static size_t behind(const char *text, size_t at, size_t n)
{
	size_t len = 1;

	while (at + len < n && (text[at + len] & 0xc0) == 0x80)
		len++;
	return at < n ? len : 0;
}

static bool within_word(const struct skv_added_set *set, const char *text, size_t begin, size_t end, size_t n)
{
	size_t left = before(text, begin), right = behind(text, end, n);

	return (left && skv_pattern_matches(set->word, text + begin - left, left)) ||
	       (right && skv_pattern_matches(set->word, text + end, right));
}

/*
 * space_before() returns the beginning of the white space that ends at `at`; space_behind() returns the end of the
 * white space that begins at `at`.
 */
static size_t space_before(const struct skv_added_set *set, const char *text, size_t at)
{
	for (size_t len; (len = before(text, at)) && skv_pattern_matches(set->space, text + at - len, len);)
		at -= len;
	return at;
}

static size_t space_behind(const struct skv_added_set *set, const char *text, size_t at, size_t n)
{
	for (size_t len; (len = behind(text, at, n)) && skv_pattern_matches(set->space, text + at, len);)
		at += len;
	return at;
}

/* ---- cutting --------------------------------------------------------------------------------- */

int skv_added_cut(const struct skv_added_set *set, const char *text, size_t n,
                  int (*part)(void *arg, const struct skv_added *token, const char *text, size_t n), void *arg)
{
	size_t done = 0, at = 0;
	int r = 0;

	while (!r && set->n && at < n) {
		const struct skv_added *t = longest(set, text + at, n - at);
		size_t begin = at, end;

		if (!t) {
			at++;
			continue;
		}
		at = end = begin + t->len;
		if (t->single_word && within_word(set, text, begin, end, n))
			continue;
		if (t->lstrip) {
			begin = space_before(set, text, begin);
			begin = begin > done ? begin : done;
		}
		if (t->rstrip)
			end = space_behind(set, text, end, n);
		if (begin > done)
			r = part(arg, NULL, text + done, begin - done);
		r = r ? r : part(arg, t, text + begin, end > begin ? end - begin : 0);
		done = end;
	}
	return r || done >= n ? r : part(arg, NULL, text + done, n - done);
}

void skv_added_find_special(const struct skv_added_set *set, const char *text, size_t n, bool *within)
{
	for (size_t at = 0; set->n && at < n; at++) {
		const struct skv_added *t = longest(set, text + at, n - at);

		for (size_t i = 1; t && t->special && i < t->len; i++)
			within[at + i] = true;
	}
}
