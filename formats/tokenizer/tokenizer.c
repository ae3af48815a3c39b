/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/tokenizer/tokenizer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "formats/tokenizer/nfc.h"
#include "formats/tokenizer/tokenizer-priv.h"

#define TEXT_MAX (1u << 30)

void skv_tokenizer_free(struct skv_tokenizer *t)
{
	if (!t)
		return;
	skv_bpe_deinit(&t->bpe);
	skv_added_deinit(&t->added);
	skv_added_deinit(&t->added_normalized);
	skv_rules_deinit(&t->rules);
	skv_ids_deinit(&t->before);
	skv_ids_deinit(&t->behind);
	free(t);
}

/* ---- UTF-8 -------------------------------------------------------------------------------------- */

/*
 * Returns the length of a character with this first byte, and the range of its second byte (RFC 3629, table of section
 * 4). 0: invalid first byte.
 */
static uint32_t character(uint8_t first, uint8_t *ret_low, uint8_t *ret_high)
{
	*ret_low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
	*ret_high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
	return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* Returns the length in bytes of the longest prefix of the text that is valid UTF-8. */
static size_t valid(const char *text, size_t n)
{
	const uint8_t *s = (const uint8_t *)text;
	size_t at = 0;

	while (at < n) {
		uint8_t low, high;
		uint32_t len = character(s[at], &low, &high);

		if (!len || len > n - at || (len > 1 && (s[at + 1] < low || s[at + 1] > high)))
			break;
		for (uint32_t i = 2; i < len; i++)
			if ((s[at + i] & 0xc0) != 0x80)
				return at;
		at += len;
	}
	return at;
}

/* ---- encoding: added tokens, normalization, added tokens again, pieces, merges ------------------ */

struct encoder {
	const struct skv_tokenizer *t;
	bool quoted;
	struct skv_bpe_work work;
	struct skv_ids *to;
};

static int encode_piece(void *arg, const char *text, size_t n)
{
	struct encoder *e = arg;

	return skv_bpe_encode(&e->t->bpe, text, n, &e->work, e->to);
}

/*
 * Encodes text between added tokens. Removes quotes (SKV_TOKENIZER_QUOTE) first, which are not needed after added
 * tokens were searched for.
 */
static int encode_text(struct encoder *e, const char *text, size_t n)
{
	const size_t quote = strlen(SKV_TOKENIZER_QUOTE);
	char *bare = NULL;
	size_t len = 0;
	int r;

	if (!e->quoted || !memmem(text, n, SKV_TOKENIZER_QUOTE, quote))
		return skv_pieces(&e->t->rules, text, n, encode_piece, e);
	bare = malloc(n);
	if (!bare)
		return -ENOMEM;
	for (size_t at = 0; at < n;) {
		if (n - at >= quote && !memcmp(text + at, SKV_TOKENIZER_QUOTE, quote))
			at += quote;
		else
			bare[len++] = text[at++];
	}
	r = skv_pieces(&e->t->rules, bare, len, encode_piece, e);
	free(bare);
	return r;
}

static int encode_normalized_part(void *arg, const struct skv_added *token, const char *text, size_t n)
{
	struct encoder *e = arg;

	return token ? skv_ids_add(e->to, &token->id, 1) : encode_text(e, text, n);
}

static int encode_part(void *arg, const struct skv_added *token, const char *text, size_t n)
{
	struct encoder *e = arg;
	char *normalized = NULL;
	size_t len = 0;
	int r = 0;

	if (token)
		return skv_ids_add(e->to, &token->id, 1);
	if (e->t->nfc)
		r = skv_nfc(text, n, &normalized, &len);
	r = r ? r
	      : skv_added_cut(&e->t->added_normalized, normalized ? normalized : text, normalized ? len : n, encode_normalized_part, e);
	free(normalized);
	return r;
}

static int te_fail(char *err, size_t err_len, int code, const char *format, ...) __attribute__((format(printf, 4, 5)));

static int te_fail(char *err, size_t err_len, int code, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(err, err_len, format, ap);
	va_end(ap);
	return code;
}

static int check_text(const char *text, size_t n, char *err, size_t err_len)
{
	size_t good;

	if (n > TEXT_MAX)
		return te_fail(err, err_len, -EFBIG, "a text of %zu bytes, at most %u expected", n, TEXT_MAX);
	good = valid(text, n);
	return good == n ? 0 : te_fail(err, err_len, -EILSEQ, "the text is not UTF-8 at byte %zu: UTF-8 expected", good);
}

int skv_tokenizer_encode(const struct skv_tokenizer *t, const char *text, size_t n, unsigned flags, struct skv_ids *to,
                         char *err, size_t err_len)
{
	struct encoder e = {.t = t, .quoted = flags & SKV_TOKENIZER_QUOTED, .work = SKV_BPE_WORK_NULL, .to = to};
	bool template = flags & SKV_TOKENIZER_TEMPLATE;
	size_t before = to->n;
	int r = check_text(text, n, err, err_len);

	if (r)
		return r;
	if (template)
		r = skv_ids_add(to, t->before.id, t->before.n);
	r = r ? r : skv_added_cut(&t->added, text, n, encode_part, &e);
	if (!r && template)
		r = skv_ids_add(to, t->behind.id, t->behind.n);
	skv_bpe_work_deinit(&e.work);
	if (!r)
		return 0;
	to->n = before;
	return r == -ENOMEM ? te_fail(err, err_len, r, "no memory to encode a text of %zu bytes", n)
	                    : te_fail(err, err_len, r, "a pattern of the tokenizer takes too long on this text");
}

/*
 * Puts a quote (SKV_TOKENIZER_QUOTE) between the characters of each special token's name in the text, also of names
 * that overlap, so that the text contains no such name any more.
 */
static int quote(const struct skv_tokenizer *t, const char *text, size_t n, char **ret, size_t *ret_n)
{
	bool *within = calloc(n + 1, sizeof(*within));
	char *made;
	FILE *to = within ? open_memstream(&made, ret_n) : NULL;
	bool bad;

	if (!to) {
		free(within);
		return -ENOMEM;
	}
	skv_added_find_special(&t->added, text, n, within);
	skv_added_find_special(&t->added_normalized, text, n, within);
	for (size_t i = 0; i < n; i++) {
		if (within[i] && (text[i] & 0xc0) != 0x80)
			fputs(SKV_TOKENIZER_QUOTE, to);
		fputc(text[i], to);
	}
	free(within);
	bad = ferror(to);
	if (fclose(to) || bad) {
		free(made);
		return -ENOMEM;
	}
	*ret = made;
	return 0;
}

int skv_tokenizer_quote(const struct skv_tokenizer *t, const char *text, size_t n, char **ret, size_t *ret_n, char *err,
                        size_t err_len)
{
	int r = check_text(text, n, err, err_len);

	if (r)
		return r;
	r = quote(t, text, n, ret, ret_n);
	return r ? te_fail(err, err_len, r, "no memory to quote a text of %zu bytes", n) : 0;
}

/* ---- properties of a tokenizer ---------------------------------------------------------------- */

void skv_tokenizer_template(const struct skv_tokenizer *t, const struct skv_ids **ret_before,
                            const struct skv_ids **ret_behind)
{
	*ret_before = &t->before;
	*ret_behind = &t->behind;
}

const char *skv_tokenizer_bytes(const struct skv_tokenizer *t, int32_t id, size_t *ret_len)
{
	if (id < 0 || (uint32_t)id >= t->bpe.n_ids || !t->bpe.tokens[id].bytes)
		return NULL;
	*ret_len = t->bpe.tokens[id].len;
	return t->bpe.tokens[id].bytes;
}

bool skv_tokenizer_special(const struct skv_tokenizer *t, int32_t id)
{
	return id >= 0 && (uint32_t)id < t->bpe.n_ids && t->bpe.tokens[id].special;
}

int32_t skv_tokenizer_added(const struct skv_tokenizer *t, const char *text)
{
	const struct skv_added_set *sets[] = {&t->added, &t->added_normalized};

	for (int s = 0; s < 2; s++)
		for (uint32_t i = 0; i < sets[s]->n; i++)
			if (!strcmp(sets[s]->list[i].text, text))
				return sets[s]->list[i].id;
	return -1;
}

uint32_t skv_tokenizer_n_ids(const struct skv_tokenizer *t)
{
	return t->bpe.n_ids;
}

/* ---- decoding --------------------------------------------------------------------------------- */

static size_t replace(char *to)
{
	memcpy(to, "\xef\xbf\xbd", 3);
	return 3;
}

size_t skv_utf8_push(struct skv_utf8_stream *s, const char *bytes, size_t n, char *to)
{
	size_t out = 0;

	for (size_t i = 0; i < n; i++) {
		uint8_t c = (uint8_t)bytes[i], low, high;

		if (s->n) {
			character(s->held[0], &low, &high);
			if (s->n > 1)
				low = 0x80, high = 0xbf;
			if (c < low || c > high) {
				out += replace(to + out);
				s->n = 0;
			}
		}
		s->held[s->n++] = c;
		if (character(s->held[0], &low, &high) == 0) {
			out += replace(to + out);
			s->n = 0;
		} else if (s->n == character(s->held[0], &low, &high)) {
			memcpy(to + out, s->held, s->n);
			out += s->n;
			s->n = 0;
		}
	}
	return out;
}

size_t skv_utf8_end(struct skv_utf8_stream *s, char *to)
{
	size_t out = s->n ? replace(to) : 0;

	s->n = 0;
	return out;
}
