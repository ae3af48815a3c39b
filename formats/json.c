/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* State of copying JSON text from `at` to `out`, which rewrites numbers that jansson would reject. */
struct copy {
	const char *at, *end;
	char *out;
};

static void put(struct copy *c, const char *text, size_t n)
{
	memcpy(c->out, text, n);
	c->out += n;
}

static void copy_string(struct copy *c)
{
	const char *begin = c->at++;

	while (c->at < c->end && *c->at != '"')
		c->at += *c->at == '\\' && c->at + 1 < c->end ? 2 : 1;
	c->at += c->at < c->end;
	put(c, begin, (size_t)(c->at - begin));
}

static bool is_in_number(char x)
{
	return isalnum((unsigned char)x) || x == '+' || x == '-' || x == '.';
}

/*
 * Copies a number or a word, rewritten if jansson would reject it. Words that Python does not write are copied
 * unchanged, so that the parser reports them.
 */
static void copy_number(struct copy *c)
{
	const char *begin = c->at;
	char word[512];
	size_t n;

	while (c->at < c->end && is_in_number(*c->at))
		c->at++;
	n = (size_t)(c->at - begin);
	snprintf(word, sizeof(word), "%.*s", n < sizeof(word) ? (int)n : 0, begin);
	if (n >= sizeof(word)) { /* too many digits for a finite number */
		put(c, "null", 4);
		return;
	}
	if (!strcmp(word, "NaN") || !strcmp(word, "Infinity") || !strcmp(word, "-Infinity")) {
		put(c, "null", 4);
		return;
	}
	if ((*begin == '-' || isdigit((unsigned char)*begin)) && !isfinite(strtod(word, NULL))) {
		put(c, "null", 4);
		return;
	}
	put(c, begin, n);
	errno = 0;
	if (n > 18 && strspn(word, "-0123456789") == n)
		(void)strtoll(word, NULL, 10);
	if (errno == ERANGE)
		put(c, ".0", 2);
}

json_t *skv_json_parse(const char *text, size_t n, size_t flags, json_error_t *error)
{
	/* a copy can be longer: "NaN" becomes "null", and some integers get ".0" */
	char *copied = malloc(2 * n + 4);
	struct copy c = {text, text + n, copied};
	json_t *root;

	*error = (json_error_t){.line = 0};
	if (!copied)
		return NULL;
	while (c.at < c.end) {
		if (*c.at == '"')
			copy_string(&c);
		else if (is_in_number(*c.at))
			copy_number(&c);
		else
			put(&c, c.at++, 1);
	}
	root = json_loadb(copied, (size_t)(c.out - copied), flags, error);
	free(copied);
	return root;
}

/* Reads the whole file into memory, which the caller frees. Returns 0 or a negative errno. */
static int read_file(const char *path, char **ret, size_t *ret_n)
{
	FILE *f = fopen(path, "re");
	size_t n = 0, room = 0, got = 1;
	char *text = NULL, *grown;
	int r = f ? 0 : -errno;

	while (r == 0 && got > 0) {
		if (n == room) {
			room = room ? 2 * room : 1 << 16;
			grown = realloc(text, room);
			if (!grown) {
				r = -ENOMEM;
				break;
			}
			text = grown;
		}
		got = fread(text + n, 1, room - n, f);
		n += got;
	}
	if (r == 0 && ferror(f))
		r = errno ? -errno : -EIO;
	if (f)
		fclose(f);
	if (r < 0) {
		free(text);
		return r;
	}
	*ret = text;
	*ret_n = n;
	return 0;
}

int skv_json_load(json_t **ret, const char *path, size_t flags, char *err, size_t err_len)
{
	json_error_t error;
	char *text;
	size_t n;
	int r = read_file(path, &text, &n);

	if (r < 0) {
		snprintf(err, err_len, "%.300s: %s", path, strerror(-r));
		return r;
	}
	*ret = skv_json_parse(text, n, flags, &error);
	free(text);
	if (*ret)
		return 0;
	snprintf(err, err_len, "%.300s:%d: %s", path, error.line, *error.text ? error.text : "no memory");
	return *error.text ? -EBADMSG : -ENOMEM;
}
