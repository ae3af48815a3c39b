/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/jinja-tokens.c - splits the text of a template into tokens. White space around tags is removed as Jinja's
 * options trim_blocks and lstrip_blocks demand: the newline after a block tag, and the spaces between the beginning of
 * a line and a block tag.
 */
#include "engine/jinja-priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct source {
	struct eng_jinja *t;
	const char *at, *end;
	uint32_t line, room;
	/* the text begins at the start of a line, because the last tag removed the newline after it */
	bool line_begins;
	struct eng_error *err;
};

size_t eng_jinja_space(const char *s, size_t n, bool last)
{
	static const char *const wide[] = {"\xc2\x85", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005",
	                                   "\u2006", "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f",
	                                   "\u3000"};
	unsigned char c = n ? (unsigned char)s[last ? n - 1 : 0] : 'x';

	if ((c >= 9 && c <= 13) || (c >= 28 && c <= 32))
		return 1;
	for (size_t i = 0; i < sizeof(wide) / sizeof(*wide); i++) {
		size_t len = strlen(wide[i]);

		if (n >= len && !memcmp(last ? s + n - len : s, wide[i], len))
			return len;
	}
	return 0;
}

static int add(struct source *s, enum eng_jinja_kind kind, json_t *value)
{
	struct eng_jinja *t = s->t;

	if (t->n == s->room) {
		uint32_t room = 2 * s->room + 64;
		struct eng_jinja_token *more = reallocarray(t->token, room, sizeof(*more));

		if (!more) {
			json_decref(value);
			return eng_fail(s->err, -ENOMEM, "no memory for a chat template");
		}
		t->token = more;
		s->room = room;
	}
	t->token[t->n++] = (struct eng_jinja_token){.kind = kind, .line = s->line, .value = value};
	return 0;
}

static int add_text(struct source *s, enum eng_jinja_kind kind, const char *text, size_t n)
{
	json_t *v = json_stringn_nocheck(text, n);

	return v ? add(s, kind, v) : eng_fail(s->err, -ENOMEM, "no memory for a chat template");
}

/* Advances to `to`, and counts the lines. */
static void go(struct source *s, const char *to)
{
	for (; s->at < to; s->at++)
		s->line += *s->at == '\n';
}

static void skip_space(struct source *s)
{
	for (size_t n; (n = eng_jinja_space(s->at, (size_t)(s->end - s->at), false));)
		go(s, s->at + n);
}

/* ---- text outside tags --------------------------------------------------------------------------- */

/* Returns the position of the next "{{", "{%" or "{#", or the end of the source. */
static const char *next_tag(const struct source *s)
{
	const char *p = s->at;

	while (p < s->end && (p + 1 == s->end || *p != '{' || !strchr("{%#", p[1])))
		p++;
	return p;
}

static int data(struct source *s, const char *tag)
{
	const char *from = s->at, *to = tag, *line = tag;
	char sign = s->end - tag > 2 ? tag[2] : 0;
	int r = 0;

	if (tag < s->end && sign == '-') {
		for (size_t n; (n = eng_jinja_space(from, (size_t)(to - from), true));)
			to -= n;
	} else if (tag < s->end && sign != '+' && tag[1] != '{') {
		for (size_t n; line > from && line[-1] != '\n' && (n = eng_jinja_space(from, (size_t)(line - from), true));)
			line -= n;
		if ((line > from && line[-1] == '\n') || (line == from && s->line_begins))
			to = line;
	}
	if (to > from)
		r = add_text(s, ENG_JINJA_DATA, from, (size_t)(to - from));
	go(s, tag);
	return r;
}

/*
 * Returns whether a tag ends at the current position. If a tag ends, skips its end and the white space that it removes:
 * all white space if the end has a "-", otherwise one newline after a block or a comment.
 */
static bool tag_ends(struct source *s, const char *close)
{
	bool prints = !strcmp(close, "}}"), strips = *s->at == '-', keeps = *s->at == '+' && !prints;
	const char *p = s->at + (strips || keeps);

	if (s->end - p < 2 || memcmp(p, close, 2))
		return false;
	go(s, p + 2);
	if (strips)
		skip_space(s);
	else if (!prints && !keeps && s->at < s->end && *s->at == '\n')
		go(s, s->at + 1);
	s->line_begins = s->at[-1] == '\n';
	return true;
}

static int comment(struct source *s)
{
	uint32_t line = s->line;

	for (go(s, s->at + 2); s->at < s->end; go(s, s->at + 1))
		if (tag_ends(s, "#}"))
			return 0;
	return eng_fail(s->err, -EINVAL, "chat template, line %u: the comment has no end, \"#}\" expected", line);
}

/* ---- within tags --------------------------------------------------------------------------------- */

/*
 * Decodes an escape sequence, from the character after the backslash on, to UTF-8. Returns the number of bytes written;
 * 0 if the escape sequence is not supported.
 */
static size_t escape(const char **at, const char *end, char to[4])
{
	static const char names[] = "ntr\\'\"", means[] = "\n\t\r\\'\"";
	const char *name = **at ? strchr(names, **at) : NULL;
	unsigned code;
	char digits[5] = "";

	if (name) {
		*to = means[name - names];
		++*at;
		return 1;
	}
	if (**at != 'u' || end - *at < 5)
		return 0;
	memcpy(digits, *at + 1, 4);
	if (strspn(digits, "0123456789abcdefABCDEF") != 4)
		return 0;
	code = (unsigned)strtoul(digits, NULL, 16);
	if (code >= 0xd800 && code < 0xe000)
		return 0;
	*at += 5;
	if (code < 0x80) {
		to[0] = (char)code;
		return 1;
	}
	if (code < 0x800) {
		to[0] = (char)(0xc0 | code >> 6);
		to[1] = (char)(0x80 | (code & 0x3f));
		return 2;
	}
	to[0] = (char)(0xe0 | code >> 12);
	to[1] = (char)(0x80 | (code >> 6 & 0x3f));
	to[2] = (char)(0x80 | (code & 0x3f));
	return 3;
}

static int text(struct source *s)
{
	const char *p = s->at + 1;
	char quote = *s->at, *copy = malloc((size_t)(s->end - s->at) + 4);
	size_t n = 0;
	int r = 0;

	if (!copy)
		return eng_fail(s->err, -ENOMEM, "no memory for a chat template");
	while (!r && p < s->end && *p != quote) {
		size_t len;

		if (*p != '\\') {
			copy[n++] = *p++;
			continue;
		}
		p++;
		len = p < s->end ? escape(&p, s->end, copy + n) : 0;
		n += len;
		if (!len)
			r = eng_fail(s->err, -EINVAL, "chat template, line %u: \"\\%c\" in a text is not supported", s->line, *p);
	}
	if (!r && p == s->end)
		r = eng_fail(s->err, -EINVAL, "chat template, line %u: the text has no end, %c expected", s->line, quote);
	r = r ? r : add_text(s, ENG_JINJA_TEXT, copy, n);
	free(copy);
	if (!r)
		go(s, p + 1);
	return r;
}

static int integer(struct source *s)
{
	char *end;
	long long v;

	errno = 0;
	v = strtoll(s->at, &end, 10);
	if (errno || *end == '.' || *end == '_' || *end == 'e' || *end == 'E')
		return eng_fail(s->err, -EINVAL, "chat template, line %u: an integer of 64 bits expected, other numbers are not supported",
		                s->line);
	s->at = end;
	return add(s, ENG_JINJA_INTEGER, json_integer(v));
}

static int word(struct source *s)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
	static const char *const pairs[] = {"==", "!=", "<=", ">=", "//", "**"};
	size_t n = strspn(s->at, letters);
	enum eng_jinja_kind kind = n ? ENG_JINJA_NAME : ENG_JINJA_SIGN;
	int r;

	if (!n && !strchr("+-/*%~[](){}<>=!.:|,", *s->at))
		return eng_fail(s->err, -EINVAL, "chat template, line %u: the character 0x%02x is not supported in a tag", s->line,
		                (unsigned char)*s->at);
	for (size_t i = 0; !n && i < sizeof(pairs) / sizeof(*pairs); i++)
		n = strncmp(s->at, pairs[i], 2) ? 0 : 2;
	n = n ? n : 1;
	r = add_text(s, kind, s->at, n);
	s->at += n;
	return r;
}

/* Reads the inside of a tag and its end. A "}}" within brackets does not end the tag. */
static int tag(struct source *s, enum eng_jinja_kind kind, const char *close)
{
	uint32_t line = s->line, brackets = 0;
	int r = add(s, kind, NULL);

	go(s, s->at + 2);
	if (s->at < s->end && strchr("-+", *s->at))
		go(s, s->at + 1);
	while (!r && s->at < s->end) {
		if (!brackets && tag_ends(s, close))
			return add(s, kind + 1, NULL);
		if (strchr(" \t\n\r\f\v", *s->at)) {
			go(s, s->at + 1);
			continue;
		}
		if (strchr("([{", *s->at))
			brackets++;
		else if (brackets && strchr(")]}", *s->at))
			brackets--;
		r = strchr("'\"", *s->at) ? text(s) : *s->at >= '0' && *s->at <= '9' ? integer(s) : word(s);
	}
	return r ? r : eng_fail(s->err, -EINVAL, "chat template, line %u: the tag has no end, \"%s\" expected", line, close);
}

static int tokens(struct source *s)
{
	int r = 0;

	if (s->end > s->at && s->end[-1] == '\n') /* jinja2, too, removes the last newline by default */
		s->end--;
	while (!r && s->at < s->end) {
		r = data(s, next_tag(s));
		if (r || s->at == s->end)
			break;
		r = s->at[1] == '{' ? tag(s, ENG_JINJA_PRINT, "}}") : s->at[1] == '%' ? tag(s, ENG_JINJA_BLOCK, "%}") : comment(s);
	}
	return r ? r : add(s, ENG_JINJA_END, NULL);
}

int eng_jinja_tokens(struct eng_jinja *t, const char *source, struct eng_error *err)
{
	struct source s = {.t = t, .line = 1, .line_begins = true, .err = err};
	char *copy = strdup(source), *to = copy;
	int r;

	if (!copy)
		return eng_fail(err, -ENOMEM, "no memory for a chat template");
	for (const char *p = source; *p; p++) /* "\r\n" and "\r" become "\n" */
		if (*p != '\r' || p[1] != '\n')
			*to++ = *p == '\r' ? '\n' : *p;
	*to = '\0';
	s.at = copy;
	s.end = to;
	r = tokens(&s);
	free(copy);
	return r;
}
