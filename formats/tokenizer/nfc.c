/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/tokenizer/nfc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Korean syllables are composed arithmetically: The Unicode Standard, section 3.12. */
#define L_FIRST 0x1100u
#define V_FIRST 0x1161u
#define T_FIRST 0x11a7u /* one before the first trailing consonant */
#define S_FIRST 0xac00u
#define L_N 19u
#define V_N 21u
#define T_N 28u

/* A decomposed character of the text. */
struct part {
	uint32_t c, class;
	uint32_t at; /* original position: marks of equal class keep their order */
};

/* ---- tables ------------------------------------------------------------------------------------ */

static int in_class(const void *key, const void *entry)
{
	uint32_t c = *(const uint32_t *)key;
	const struct skv_nfc_class *e = entry;

	return c < e->first ? -1 : c > e->last;
}

static uint32_t class_of(uint32_t c)
{
	const struct skv_nfc_class *e = c < 0x300 ? NULL : bsearch(&c, skv_nfc_classes, skv_nfc_classes_n, sizeof(*e), in_class);

	return e ? e->class : 0;
}

static int is_whole(const void *key, const void *entry)
{
	uint32_t c = *(const uint32_t *)key, e = ((const struct skv_nfc_decomposition *)entry)->whole;

	return c < e ? -1 : c > e;
}

static int is_pair(const void *key, const void *entry)
{
	const uint32_t *pair = key;
	const struct skv_nfc_composition *e = entry;

	if (pair[0] != e->first)
		return pair[0] < e->first ? -1 : 1;
	return pair[1] < e->second ? -1 : pair[1] > e->second;
}

/* Returns the character that is the composition of these two characters, or 0. */
static uint32_t compose(uint32_t first, uint32_t second)
{
	const uint32_t pair[] = {first, second};
	const struct skv_nfc_composition *e;

	if (first - L_FIRST < L_N && second - V_FIRST < V_N)
		return S_FIRST + ((first - L_FIRST) * V_N + (second - V_FIRST)) * T_N;
	if (first - S_FIRST < L_N * V_N * T_N && (first - S_FIRST) % T_N == 0 && second > T_FIRST && second < T_FIRST + T_N)
		return first + (second - T_FIRST);
	e = bsearch(pair, skv_nfc_compositions, skv_nfc_compositions_n, sizeof(*e), is_pair);
	return e ? e->whole : 0;
}

/* ---- the three steps ---------------------------------------------------------------------------- */

static void append(struct part *parts, size_t *n, uint32_t c)
{
	parts[*n] = (struct part){c, class_of(c), (uint32_t)*n};
	++*n;
}

/*
 * Appends the full decomposition of a character. Of the two parts of a decomposition step, only the first can be
 * decomposed further. A character has at most four parts.
 */
static void decompose(struct part *parts, size_t *n, uint32_t c)
{
	const struct skv_nfc_decomposition *e;
	uint32_t behind[4], n_behind = 0, s = c - S_FIRST;

	if (s < L_N * V_N * T_N) {
		append(parts, n, L_FIRST + s / (V_N * T_N));
		append(parts, n, V_FIRST + s % (V_N * T_N) / T_N);
		if (s % T_N)
			append(parts, n, T_FIRST + s % T_N);
		return;
	}
	while (c >= 0xc0 && (e = bsearch(&c, skv_nfc_decompositions, skv_nfc_decompositions_n, sizeof(*e), is_whole))) {
		if (e->second)
			behind[n_behind++] = e->second;
		c = e->first;
	}
	append(parts, n, c);
	while (n_behind)
		append(parts, n, behind[--n_behind]);
}

static int by_class(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	if (x->class != y->class)
		return x->class < y->class ? -1 : 1;
	return x->at < y->at ? -1 : 1;
}

static void order(struct part *parts, size_t n)
{
	for (size_t at = 0, end; at < n; at = end + 1) {
		for (end = at; end < n && parts[end].class; end++)
			;
		if (end - at > 1)
			qsort(parts + at, end - at, sizeof(*parts), by_class);
	}
}

/*
 * Composes the parts in place and returns the number of parts that remain. A mark combines with the last starter,
 * unless a mark of the same or a higher class is between the two.
 */
static size_t join(struct part *parts, size_t n)
{
	size_t out = 0, starter = SIZE_MAX;

	for (size_t i = 0; i < n; i++) {
		uint32_t c = parts[i].c, class = parts[i].class, last = out ? parts[out - 1].class : 0, whole = 0;

		if (starter != SIZE_MAX && (starter + 1 == out || last < class))
			whole = compose(parts[starter].c, c);
		if (whole) {
			parts[starter].c = whole;
			continue;
		}
		if (!class)
			starter = out;
		parts[out++] = parts[i];
	}
	return out;
}

/* ---- UTF-8 --------------------------------------------------------------------------------------- */

static size_t get(const uint8_t *s, uint32_t *ret)
{
	uint32_t n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

	*ret = n == 1 ? s[0] : s[0] & (0x7fu >> n);
	for (uint32_t i = 1; i < n; i++)
		*ret = *ret << 6 | (s[i] & 0x3f);
	return n;
}

static size_t put(uint32_t c, char *to)
{
	uint32_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

	for (uint32_t i = n - 1; i > 0; i--, c >>= 6)
		to[i] = (char)(0x80 | (c & 0x3f));
	to[0] = (char)(n == 1 ? c : (0xf00u >> n & 0xff) | c);
	return n;
}

int skv_nfc(const char *text, size_t n, char **ret, size_t *ret_len)
{
	size_t ascii = 0, n_parts = 0, len = 0;
	struct part *parts;
	char *to;

	*ret = NULL;
	while (ascii < n && !(text[ascii] & 0x80))
		ascii++;
	if (ascii == n)
		return 0;
	/* a two-byte character has at most three parts, a longer one at most four */
	parts = reallocarray(NULL, 2 * n, sizeof(*parts));
	if (!parts)
		return -ENOMEM;
	for (size_t at = 0; at < n;) {
		uint32_t c;

		at += get((const uint8_t *)text + at, &c);
		decompose(parts, &n_parts, c);
	}
	order(parts, n_parts);
	n_parts = join(parts, n_parts);
	to = malloc(4 * n_parts + 1);
	for (size_t i = 0; to && i < n_parts; i++)
		len += put(parts[i].c, to + len);
	free(parts);
	if (!to)
		return -ENOMEM;
	to[len] = '\0';
	*ret = to;
	*ret_len = len;
	return 0;
}
