/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "formats/tokenizer/pieces.h"

#include <errno.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_MAX 8192u
#define STEPS 10000000u /* PCRE2's match limit, to which 64 steps are added for each byte of text */

/* ---- patterns -------------------------------------------------------------------------------- */

/* State of translating a pattern from Oniguruma's syntax to PCRE2's. */
struct translation {
	const char *at, *end;
	char *to, *room_end;
	bool in_class;
	char *err;
	size_t err_len;
};

static int unknown(const struct translation *t, const char *from, size_t n)
{
	snprintf(t->err, t->err_len, "\"%.*s\" in a pattern is not known", (int)n, from);
	return -EINVAL;
}

static int put(struct translation *t, const char *text, size_t n)
{
	if ((size_t)(t->room_end - t->to) < n) {
		snprintf(t->err, t->err_len, "a pattern of more than %u bytes", PATTERN_MAX);
		return -EINVAL;
	}
	memcpy(t->to, text, n);
	t->to += n;
	return 0;
}

/* Copies the next n bytes of the pattern unchanged. */
static int copy(struct translation *t, size_t n)
{
	int r = put(t, t->at, n);

	t->at += n;
	return r;
}

/* Copies \p{Lu} and similar: general categories have the same names and meanings in Oniguruma and PCRE2. */
static int property(struct translation *t)
{
	size_t left = (size_t)(t->end - t->at), n = 3;

	while (n < left && n < 6 && t->at[n] != '}')
		n++;
	if (left < 5 || t->at[2] != '{' || n >= left || t->at[n] != '}' || n < 4 || n > 5 || !strchr("LMNPSZC", t->at[3]) ||
	    (n == 5 && (t->at[4] < 'a' || t->at[4] > 'z')))
		return unknown(t, t->at, left < 20 ? left : 20);
	return copy(t, n + 1);
}

static int escape(struct translation *t)
{
	static const struct {
		char letter;
		const char *means;
	} classes[] = {{'s', "\\p{White_Space}"}, {'S', "\\P{White_Space}"}, {'d', "\\p{Nd}"}, {'D', "\\P{Nd}"}};
	char c = t->end - t->at > 1 ? t->at[1] : '\0';

	if (c == 'p' || c == 'P')
		return property(t);
	for (size_t i = 0; i < sizeof(classes) / sizeof(*classes); i++)
		if (c == classes[i].letter) {
			t->at += 2;
			return put(t, classes[i].means, strlen(classes[i].means));
		}
	/* the only other escapes are these control characters, and punctuation */
	if (c && (strchr("rnt", c) || strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", c)))
		return copy(t, 2);
	return unknown(t, t->at, c && (c & 0x80) == 0 ? 2 : 1);
}

static int class_begins(struct translation *t)
{
	size_t n = t->end - t->at > 1 && t->at[1] == '^' ? 2 : 1;

	if (t->end - t->at > (ptrdiff_t)n && t->at[n] == ']')
		return unknown(t, t->at, n + 1);
	t->in_class = true;
	return copy(t, n);
}

static int in_class(struct translation *t)
{
	if (*t->at == '\\')
		return escape(t);
	if (*t->at == '[' || (t->end - t->at > 1 && !memcmp(t->at, "&&", 2)))
		return unknown(t, t->at, *t->at == '[' ? 1 : 2);
	t->in_class = *t->at != ']';
	return copy(t, 1);
}

static int group_begins(struct translation *t)
{
	static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"};

	if (t->end - t->at < 2 || (t->at[1] != '?' && t->at[1] != '*'))
		return copy(t, 1);
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if ((size_t)(t->end - t->at) >= strlen(known[i]) && !memcmp(t->at, known[i], strlen(known[i])))
			return copy(t, strlen(known[i]));
	return unknown(t, t->at, t->end - t->at < 4 ? (size_t)(t->end - t->at) : 4);
}

/*
 * Copies an interval {n}, {n,} or {n,m}. Rejects one that + follows, which is possessive in PCRE2 but a repetition in
 * Oniguruma.
 */
static int interval(struct translation *t)
{
	size_t n = 1, left = (size_t)(t->end - t->at);

	while (n < left && ((t->at[n] >= '0' && t->at[n] <= '9') || (n > 1 && t->at[n] == ',')))
		n++;
	if (n < 2 || n >= left || t->at[n] != '}' || (n + 1 < left && t->at[n + 1] == '+'))
		return unknown(t, t->at, n < left ? n + 1 : left);
	return copy(t, n + 1);
}

static int translate(struct translation *t)
{
	int r = 0;

	while (!r && t->at < t->end)
		if (t->in_class)
			r = in_class(t);
		else
			switch (*t->at) {
			case '\\': r = escape(t); break;
			case '[': r = class_begins(t); break;
			case '(': r = group_begins(t); break;
			case '{': r = interval(t); break;
			case '.':
			case '^':
			case '$':
			/* these characters have different meanings in Oniguruma and PCRE2 */
			case '\0': r = unknown(t, t->at, 1); break;
			default: r = copy(t, 1);
			}
	return r;
}

static int compile(pcre2_code **ret, const char *pattern, size_t len, uint32_t options, char *err, size_t err_len)
{
	PCRE2_UCHAR text[128];
	uint32_t empty = 0;
	size_t offset;
	int code;
	pcre2_code *p = pcre2_compile((PCRE2_SPTR)pattern, len,
	                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | options, &code, &offset, NULL);

	if (!p) {
		pcre2_get_error_message(code, text, sizeof(text));
		snprintf(err, err_len, "a pattern that PCRE2 does not take: %s", text);
		return code == PCRE2_ERROR_HEAP_FAILED ? -ENOMEM : -EINVAL;
	}
	pcre2_pattern_info(p, PCRE2_INFO_MATCHEMPTY, &empty);
	if (empty) {
		pcre2_code_free(p);
		snprintf(err, err_len, "a pattern that matches the empty text");
		return -EINVAL;
	}
	pcre2_jit_compile(p, PCRE2_JIT_COMPLETE); /* if PCRE2 has no JIT support, the pattern is interpreted */
	*ret = p;
	return 0;
}

int skv_pattern(pcre2_code **ret, const char *pattern, size_t len, char *err, size_t err_len)
{
	char translated[PATTERN_MAX];
	struct translation t = {.at = pattern, .end = pattern + len, .to = translated,
	                        .room_end = translated + sizeof(translated), .err = err, .err_len = err_len};
	int r = translate(&t);

	return r ? r : compile(ret, translated, (size_t)(t.to - translated), 0, err, err_len);
}

int skv_pattern_literal(pcre2_code **ret, const char *text, size_t len, char *err, size_t err_len)
{
	return compile(ret, text, len, PCRE2_LITERAL, err, err_len);
}

static pcre2_code *fixed(const char *pattern)
{
	pcre2_code *p = NULL;
	char why[1];

	return compile(&p, pattern, strlen(pattern), 0, why, sizeof(why)) ? NULL : p;
}

pcre2_code *skv_pattern_word(void)
{
	return fixed("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]");
}

pcre2_code *skv_pattern_space(void)
{
	return fixed("\\p{White_Space}");
}

bool skv_pattern_matches(const pcre2_code *pattern, const char *text, size_t n)
{
	pcre2_match_data *found = pcre2_match_data_create(1, NULL);
	int r = found ? pcre2_match(pattern, (PCRE2_SPTR)text, n, 0, PCRE2_NO_UTF_CHECK, found, NULL) : PCRE2_ERROR_NOMEMORY;

	pcre2_match_data_free(found);
	return r > 0;
}

void skv_pattern_free(pcre2_code *pattern)
{
	pcre2_code_free(pattern);
}

void skv_rules_deinit(struct skv_rules *rules)
{
	for (uint32_t i = 0; i < rules->n; i++)
		pcre2_code_free(rules->list[i].pattern);
	rules->n = 0;
}

/* ---- cutting --------------------------------------------------------------------------------- */

struct cutter {
	const struct skv_rules *rules;
	pcre2_match_data *found;
	pcre2_match_context *limits;
	int (*piece)(void *arg, const char *text, size_t n);
	void *arg;
};

/* A piece to which the rule's split behavior may still add the next part of the text. */
struct pending {
	size_t begin, end;
	bool any, match; /* any: there is a piece; match: its last part is a match */
};

static int cut(const struct cutter *c, uint32_t rule, const char *text, size_t n);

static int give(const struct cutter *c, uint32_t rule, const char *text, const struct pending *p)
{
	if (!p->any || p->begin == p->end || (c->rules->list[rule].split == SKV_SPLIT_REMOVED && p->match))
		return 0;
	return cut(c, rule + 1, text + p->begin, p->end - p->begin);
}

/* Processes the next part of the text, [begin, end), which is a match or the text between two matches. */
static int take(const struct cutter *c, uint32_t rule, const char *text, struct pending *p, size_t begin, size_t end,
                bool match)
{
	const struct skv_rule *u = &c->rules->list[rule];
	bool joins = false;
	int r = 0;

	match ^= u->invert;
	if (u->split == SKV_SPLIT_CONTIGUOUS)
		joins = match == p->match;
	else if (u->split == SKV_SPLIT_WITH_PREVIOUS)
		joins = match && !p->match;
	else if (u->split == SKV_SPLIT_WITH_NEXT)
		joins = !match && p->match;
	if (p->any && joins) {
		p->end = end;
		p->match = match;
		return 0;
	}
	r = give(c, rule, text, p);
	*p = (struct pending){begin, end, true, match};
	return r;
}

/* Finds the next match at `from` or later. Returns 1 if there is one, 0 if there is none, or -E2BIG or -ENOMEM. */
static int find(const struct cutter *c, const pcre2_code *pattern, const char *text, size_t n, size_t from)
{
	uint32_t options = PCRE2_NO_UTF_CHECK;
	int r = pcre2_match(pattern, (PCRE2_SPTR)text, n, from, options, c->found, c->limits);

	if (r == PCRE2_ERROR_JIT_STACKLIMIT)
		r = pcre2_match(pattern, (PCRE2_SPTR)text, n, from, options | PCRE2_NO_JIT, c->found, c->limits);
	if (r == PCRE2_ERROR_NOMATCH)
		return 0;
	if (r < 0)
		return r == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -E2BIG;
	return 1;
}

static int cut_by_pattern(const struct cutter *c, uint32_t rule, const char *text, size_t n)
{
	const pcre2_code *pattern = c->rules->list[rule].pattern;
	struct pending p = {.any = false};
	size_t at = 0;
	int r = 0;

	while (!r && at < n) {
		int hit = find(c, pattern, text, n, at);
		const size_t *where = pcre2_get_ovector_pointer(c->found);
		size_t begin = hit ? where[0] : n, end = hit ? where[1] : n;

		if (hit < 0)
			return hit;
		if (begin > at)
			r = take(c, rule, text, &p, at, begin, false);
		if (!r && end > begin)
			r = take(c, rule, text, &p, begin, end, true);
		at = end;
	}
	return r ? r : give(c, rule, text, &p);
}

/* Puts a space before a piece and splits it by this rule and the rules after it. */
static int cut_spaced(const struct cutter *c, uint32_t rule, const char *text, size_t n)
{
	char *spaced = malloc(n + 1);
	int r;

	if (!spaced)
		return -ENOMEM;
	spaced[0] = ' ';
	memcpy(spaced + 1, text, n);
	/* cut() does not call this function again, because the piece begins with a space now */
	r = cut(c, rule, spaced, n + 1);
	free(spaced);
	return r;
}

static int cut(const struct cutter *c, uint32_t rule, const char *text, size_t n)
{
	const struct skv_rule *u;

	if (rule == c->rules->n)
		return c->piece(c->arg, text, n);
	u = &c->rules->list[rule];
	if (u->add_space && text[0] != ' ')
		return cut_spaced(c, rule, text, n);
	return u->pattern ? cut_by_pattern(c, rule, text, n) : cut(c, rule + 1, text, n);
}

int skv_pieces(const struct skv_rules *rules, const char *text, size_t n,
               int (*piece)(void *arg, const char *text, size_t n), void *arg)
{
	struct cutter c = {.rules = rules, .piece = piece, .arg = arg};
	int r = -ENOMEM;

	if (!n)
		return 0;
	c.found = pcre2_match_data_create(1, NULL);
	c.limits = pcre2_match_context_create(NULL);
	if (c.found && c.limits) {
		pcre2_set_match_limit(c.limits, n < STEPS ? STEPS + 64 * (uint32_t)n : UINT32_MAX);
		r = cut(&c, 0, text, n);
	}
	pcre2_match_context_free(c.limits);
	pcre2_match_data_free(c.found);
	return r;
}
