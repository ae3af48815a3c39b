/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/spec.c - converts `name:variant?key=value&…` to a policy's config and back.
 *
 * Parsing is strict: the whole text of a value must be valid, otherwise the error text describes the values that the
 * parameter accepts. Numbers are read and written in the "C" locale, so that a spec has the same meaning in every
 * locale.
 */
#include "common/spec.h"
#include "common/refuse.h"
#include "common/wire.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define bad(err, err_len, ...) skv_refuse(-EINVAL, err, err_len, __VA_ARGS__)

/* ---- values ---------------------------------------------------------------------------------- */

static bool digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Parses the n characters at s, which must all be digits, as a number of at most `most`. */
static bool parse_whole(const char *s, size_t n, uint32_t most, uint32_t *ret)
{
	uint64_t x = 0;

	if (n == 0)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (!digit(s[i]))
			return false;
		x = x * 10 + (uint64_t)(s[i] - '0');
		if (x > most)
			return false;
	}
	*ret = (uint32_t)x;
	return true;
}

/*
 * Returns whether s is a number of the form [-]digits[.digits][e[+-]digits]. A spec may not use other forms that strtof
 * accepts (hexadecimal numbers, inf, leading spaces).
 */
static bool decimal_form(const char *s)
{
	size_t before, after = 0;

	if (*s == '-')
		s++;
	before = strspn(s, "0123456789");
	s += before;
	if (*s == '.') {
		after = strspn(s + 1, "0123456789");
		s += 1 + after;
	}
	if (before + after == 0)
		return false;
	if (*s == 'e' || *s == 'E') {
		s += s[1] == '+' || s[1] == '-' ? 2 : 1;
		if (!digit(*s))
			return false;
		s += strspn(s, "0123456789");
	}
	return *s == '\0';
}

/* Switches the calling thread to the C locale until leave_c() is called. Returns the previous locale. */
static locale_t enter_c(locale_t *c)
{
	*c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	return uselocale(*c);
}

static void leave_c(locale_t old, locale_t c)
{
	uselocale(old);
	if (c)
		freelocale(c);
}

static bool parse_float(const char *s, float *ret)
{
	locale_t c, old;
	float x;

	if (!decimal_form(s))
		return false;
	old = enter_c(&c);
	x = strtof(s, NULL);
	leave_c(old, c);
	if (!isfinite(x))
		return false;
	*ret = x;
	return true;
}

static bool parse_budget(const char *s, struct skv_budget *ret)
{
	struct skv_budget b = {0};

	if (parse_whole(s, strlen(s), UINT32_MAX, &b.count)) {
		if (b.count == 0)
			return false;
	} else if (!parse_float(s, &b.share) || !(b.share > 0 && b.share < 1)) {
		return false;
	}
	*ret = b;
	return true;
}

static bool parse_bool(const char *s, uint32_t *ret)
{
	if (!strcmp(s, "1") || !strcmp(s, "true"))
		*ret = 1;
	else if (!strcmp(s, "0") || !strcmp(s, "false"))
		*ret = 0;
	else
		return false;
	return true;
}

static bool parse_layers(const char *s, struct skv_layer_set *ret)
{
	struct skv_layer_set set = {0};
	uint32_t layer;

	if (strcmp(s, "auto") != 0) {
		for (;;) {
			size_t n = strcspn(s, ",");

			if (!parse_whole(s, n, SKV_MAX_LAYERS - 1, &layer) || skv_layer_in(&set, layer))
				return false;
			set.bits[layer / 64] |= (uint64_t)1 << (layer % 64);
			if (s[n] == '\0')
				break;
			s += n + 1;
		}
	}
	*ret = set;
	return true;
}

#define WORD "abcdefghijklmnopqrstuvwxyz0123456789_-"
#define CHOICE WORD "+"

/* Finds the word of `len` characters in a list (a,b,c), and returns its index. */
static bool find_word(const char *list, const char *word, size_t len, uint32_t *ret)
{
	for (uint32_t i = 0;; i++) {
		size_t n = strcspn(list, ",");

		if (n == len && !memcmp(list, word, n)) {
			*ret = i;
			return true;
		}
		if (list[n] == '\0')
			return false;
		list += n + 1;
	}
}

bool skv_spec_words(const char *list)
{
	const char *s = list;

	for (uint32_t i = 0, first;; i++) {
		size_t n = strspn(s, CHOICE);

		if (n == 0 || (s[n] != ',' && s[n] != '\0') || !find_word(list, s, n, &first) || first != i)
			return false;
		if (s[n] == '\0')
			return true;
		s += n + 1;
	}
}

/*
 * Parses the path of a file, or the word in `none` ("none" or "auto"), which stands for no path. The file itself is
 * read later, when the model is known.
 */
static bool parse_path(const char *s, const char *none, char ret[SKV_PROFILE_PATH])
{
	if (!strcmp(s, none))
		s = "";
	else if (s[0] != '/' || strlen(s) >= SKV_PROFILE_PATH)
		return false;
	strcpy(ret, s);
	return true;
}

static bool parse_profile(const char *s, struct skv_profile *ret)
{
	memset(ret, 0, sizeof(*ret));
	return parse_path(s, "none", ret->path);
}

static bool parse_codec(const char *s, struct skv_codec_file *ret)
{
	memset(ret, 0, sizeof(*ret));
	return parse_path(s, "auto", ret->path);
}

const char *skv_spec_value(const struct skv_param *param, const char *value, void *config)
{
	void *to = (char *)config + param->offset;
	const char *expected = "a parameter type that this version knows";
	bool good = false;

	switch (param->type) {
	case SKV_PARAM_BUDGET:
		good = parse_budget(value, to);
		expected = "a share above 0 and below 1 such as 0.25, or a whole count from 1";
		break;
	case SKV_PARAM_UINT:
		good = parse_whole(value, strlen(value), UINT32_MAX, to);
		expected = "a whole number, 0 to 4294967295";
		break;
	case SKV_PARAM_FLOAT:
		good = parse_float(value, to);
		expected = "a number such as 0.5 or 1e-4";
		break;
	case SKV_PARAM_BOOL:
		good = parse_bool(value, to);
		expected = "0, 1, true or false";
		break;
	case SKV_PARAM_LAYERS:
		good = parse_layers(value, to);
		expected = "layer numbers such as 2,7,12, each once and below 256, or auto";
		break;
	case SKV_PARAM_CHOICE:
		good = find_word(param->def, value, strlen(value), to);
		expected = param->def;
		break;
	case SKV_PARAM_PROFILE:
		good = parse_profile(value, to);
		expected = "the absolute path of a profile, shorter than 256 bytes, or none";
		break;
	case SKV_PARAM_CODEC:
		good = parse_codec(value, to);
		expected = "the absolute path of a compressor, shorter than 256 bytes, or auto";
		break;
	}
	return good ? NULL : expected;
}

uint64_t skv_spec_fingerprint(const char *spec)
{
	uint64_t h = 14695981039346656037u; /* FNV-1a */

	for (; *spec; spec++)
		h = (h ^ (uint8_t)*spec) * 1099511628211u;
	return h ? h : 1;
}

/* ---- parsing --------------------------------------------------------------------------------- */

int skv_spec_name(const char *spec, char ret_name[SKV_NAME_MAX], char *err, size_t err_len)
{
	size_t n = strspn(spec, WORD);

	if (strlen(spec) >= SKV_SPEC_MAX)
		return bad(err, err_len, "policy spec: %zu characters, expected at most %u", strlen(spec),
		           SKV_SPEC_MAX - 1);
	if (n == 0 || n >= SKV_NAME_MAX || (spec[n] != '\0' && spec[n] != '?' && spec[n] != ':'))
		return bad(err, err_len,
		           "policy spec \"%.60s\": expected name, name:variant or name?key=value&key=value, the "
		           "name of a-z, 0-9, _ and -, at most %u characters",
		           spec, SKV_NAME_MAX - 1);
	memcpy(ret_name, spec, n);
	memset(ret_name + n, 0, SKV_NAME_MAX - n);
	return 0;
}

/* Writes the names of the policy's parameters to `to`, such as "budget, recent, layers", and returns `to`. */
static const char *list_params(const struct skv_policy *p, char *to, size_t len)
{
	size_t at = 0;

	to[0] = '\0';
	for (uint32_t i = 0; i < p->n_params && at < len; i++)
		at += (size_t)snprintf(to + at, len - at, "%s%s", i ? ", " : "", p->params[i].name);
	return to;
}

static const struct skv_param *find_param(const struct skv_policy *p, const char *key, size_t n)
{
	for (uint32_t i = 0; i < p->n_params; i++)
		if (strlen(p->params[i].name) == n && !memcmp(p->params[i].name, key, n))
			return &p->params[i];
	return NULL;
}

/* Checks that the layer sets in the config contain only layers of the model, and no layers with a sliding window. */
static int check_layers(const struct skv_policy *p, const struct skv_model *m, const void *config, char *err,
                        size_t err_len)
{
	for (uint32_t i = 0; i < p->n_params; i++) {
		const struct skv_layer_set *set = (const void *)((const char *)config + p->params[i].offset);

		if (p->params[i].type != SKV_PARAM_LAYERS)
			continue;
		for (uint32_t layer = m->n_layers; layer < SKV_MAX_LAYERS; layer++)
			if (skv_layer_in(set, layer))
				return bad(err, err_len,
				           "%s: %s names layer %u, but the model's layers are 0 to %u",
				           p->name, p->params[i].name, layer, m->n_layers - 1);
		for (uint32_t layer = 0; layer < m->n_layers; layer++)
			if (skv_layer_in(set, layer) && skv_model_window(m, layer))
				return bad(err, err_len,
				           "%s: %s names layer %u, which has a sliding window of %u tokens: expected layers without one",
				           p->name, p->params[i].name, layer, skv_model_window(m, layer));
	}
	return 0;
}

static int read_profiles(const struct skv_policy *p, const struct skv_model *m, void *config, char *err,
                         size_t err_len)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < p->n_params; i++) {
		struct skv_profile *profile = (void *)((char *)config + p->params[i].offset);

		if (p->params[i].type == SKV_PARAM_PROFILE && profile->path[0])
			r = skv_profile_read(profile, m, err, err_len);
	}
	return r;
}

/* Parses the n characters at s as the value of a parameter. seen[i] records that parameter i was given. */
static int parse_value(const struct skv_policy *p, const struct skv_param *param, const char *s, size_t n, bool *seen,
                       void *config, char *err, size_t err_len)
{
	char value[SKV_SPEC_MAX];
	const char *expected;

	if (seen[param - p->params])
		return bad(err, err_len, "%s: %s is given twice", p->name, param->name);
	seen[param - p->params] = true;
	memcpy(value, s, n);
	value[n] = '\0';
	expected = skv_spec_value(param, value, config);
	if (expected)
		return bad(err, err_len, "%s: %s=%.60s: expected %s%s", p->name, param->name, value,
		           param->type == SKV_PARAM_CHOICE ? "one of " : "", expected);
	return 0;
}

/* Parses the n characters at s, one `key=value` of a spec. */
static int parse_item(const struct skv_policy *p, const char *s, size_t n, bool *seen, void *config,
                      char *err, size_t err_len)
{
	const char *equals = memchr(s, '=', n);
	const struct skv_param *param;
	char known[SKV_SPEC_MAX];

	if (!equals)
		return bad(err, err_len, "%s: \"%.*s\": expected key=value", p->name, (int)(n < 60 ? n : 60),
		           s);
	param = find_param(p, s, (size_t)(equals - s));
	if (!param)
		return bad(err, err_len, "%s: unknown parameter \"%.*s\", %s%s", p->name,
		           (int)(equals - s < 60 ? equals - s : 60), s,
		           p->n_params ? "known are " : "it has none", list_params(p, known, sizeof(known)));
	return parse_value(p, param, equals + 1, n - (size_t)(equals + 1 - s), seen, config, err, err_len);
}

/* Parses the n characters at s, the variant of a spec `name:variant`. */
static int parse_variant(const struct skv_policy *p, const char *s, size_t n, bool *seen, void *config, char *err,
                         size_t err_len)
{
	const struct skv_param *param = find_param(p, "variant", strlen("variant"));

	if (!param)
		return bad(err, err_len, "%s: there is no variant \"%.*s\", it has none", p->name,
		           (int)(n < 60 ? n : 60), s);
	return parse_value(p, param, s, n, seen, config, err, err_len);
}

int skv_spec_parse(const struct skv_policy *p, const char *spec, const struct skv_model *m, void *config,
                   char *err, size_t err_len)
{
	bool seen[SKV_POLICY_MAX_PARAMS] = {false};
	char name[SKV_NAME_MAX];
	int r = skv_spec_name(spec, name, err, err_len);

	if (r < 0)
		return r;
	if (strcmp(name, p->name) != 0)
		return bad(err, err_len, "policy spec is for \"%s\", expected \"%s\"", name, p->name);

	if (p->config_size) /* `config` may be NULL if config_size is 0 */
		memset(config, 0, p->config_size);
	for (uint32_t i = 0; i < p->n_params; i++)
		/* a choice has the value 0 by default, which is its first word */
		if (p->params[i].def && p->params[i].type != SKV_PARAM_CHOICE &&
		    skv_spec_value(&p->params[i], p->params[i].def, config))
			return bad(err, err_len, "%s: the default of %s is not a value of its type", p->name,
			           p->params[i].name);

	spec += strlen(name);
	if (*spec == ':') {
		size_t n = strcspn(++spec, "?");

		r = parse_variant(p, spec, n, seen, config, err, err_len);
		if (r < 0)
			return r;
		spec += n;
	}
	while (*spec) { /* `spec` points to the '?' or '&' before the next key=value */
		size_t n = strcspn(++spec, "&");

		r = parse_item(p, spec, n, seen, config, err, err_len);
		if (r < 0)
			return r;
		spec += n;
	}
	for (uint32_t i = 0; i < p->n_params; i++)
		if (!p->params[i].def && !seen[i])
			return bad(err, err_len, "%s: %s must be given (%s)", p->name, p->params[i].name,
			           p->params[i].help);

	if (!m)
		return 0;
	r = check_layers(p, m, config, err, err_len);
	r = r ? r : read_profiles(p, m, config, err, err_len);
	if (r == 0 && p->check) {
		char text[256] = "";

		if (p->check(config, m, text, sizeof(text)) != 0)
			return bad(err, err_len, "%s: %.255s", p->name,
			           text[0] ? text : "the parameters do not fit the model");
	}
	return r;
}

/* ---- printing -------------------------------------------------------------------------------- */

/* Prints the shortest decimal number that is parsed as exactly x. */
static int print_float(char *to, size_t len, float x)
{
	char text[32];
	locale_t c, old = enter_c(&c);

	for (int digits = 1; digits <= 9; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, (double)x);
		if (strtof(text, NULL) == x)
			break;
	}
	leave_c(old, c);
	return snprintf(to, len, "%s", text);
}

static int print_layers(char *to, size_t len, const struct skv_layer_set *set)
{
	size_t at = 0;

	for (uint32_t layer = 0; layer < SKV_MAX_LAYERS; layer++)
		if (skv_layer_in(set, layer))
			at += (size_t)snprintf(at < len ? to + at : NULL, at < len ? len - at : 0, "%s%u",
			                       at ? "," : "", layer);
	return at ? (int)at : snprintf(to, len, "auto");
}

static int print_word(char *to, size_t len, const char *list, uint32_t i)
{
	for (; i > 0; i--)
		list += strcspn(list, ",") + 1;
	return snprintf(to, len, "%.*s", (int)strcspn(list, ","), list);
}

static int print_value(char *to, size_t len, const struct skv_param *param, const void *config)
{
	const void *from = (const char *)config + param->offset;
	const struct skv_budget *b = from;

	switch (param->type) {
	case SKV_PARAM_BUDGET:
		return b->share > 0 ? print_float(to, len, b->share) : snprintf(to, len, "%u", b->count);
	case SKV_PARAM_FLOAT:
		return print_float(to, len, *(const float *)from);
	case SKV_PARAM_LAYERS:
		return print_layers(to, len, from);
	case SKV_PARAM_PROFILE:
		return snprintf(to, len, "%s", *(const char *)from ? (const char *)from : "none");
	case SKV_PARAM_CODEC:
		return snprintf(to, len, "%s", *(const char *)from ? (const char *)from : "auto");
	case SKV_PARAM_CHOICE:
		return print_word(to, len, param->def, *(const uint32_t *)from);
	default:
		return snprintf(to, len, "%u", *(const uint32_t *)from);
	}
}

int skv_spec_print(const struct skv_policy *p, const void *config, char *to, size_t len)
{
	size_t at = (size_t)snprintf(to, len, "%s", p->name);

	/* As in snprintf, the length is counted further when there is no space left. */
	for (uint32_t i = 0; i < p->n_params; i++) {
		at += (size_t)snprintf(at < len ? to + at : NULL, at < len ? len - at : 0,
		                       "%c%s=", i ? '&' : '?', p->params[i].name);
		at += (size_t)print_value(at < len ? to + at : NULL, at < len ? len - at : 0, &p->params[i],
		                          config);
	}
	return (int)at;
}
