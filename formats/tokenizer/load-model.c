/* SPDX-License-Identifier: Apache-2.0 */
/* formats/tokenizer/load-model.c - loads vocabulary, merges and added tokens from a tokenizer's JSON. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include "formats/tokenizer/load.h"
#include "formats/tokenizer/nfc.h"

#define NAME_MAX_BYTES 65536u /* limit for the bytes of a token */

/* ---- errors ------------------------------------------------------------------------------------- */

int skv_load_bad(const struct skv_loader *l, const char *format, ...)
{
	int n = snprintf(l->err, l->err_len, "%.250s: ", l->name);
	va_list ap;

	va_start(ap, format);
	if (n >= 0 && (size_t)n < l->err_len)
		vsnprintf(l->err + n, l->err_len - (size_t)n, format, ap);
	va_end(ap);
	return -EBADMSG;
}

int skv_load_no_memory(const struct skv_loader *l)
{
	skv_load_bad(l, "no memory for it");
	return -ENOMEM;
}

int skv_load_unexpected(const struct skv_loader *l, const char *path, const json_t *value, const char *expected)
{
	char *is = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;

	skv_load_bad(l, "\"%s\" is %.60s, %s expected", path, is ? is : "missing", expected);
	free(is);
	return -EBADMSG;
}

const char *skv_load_type(const json_t *object)
{
	const char *type = json_string_value(json_object_get(object, "type"));

	return type ? type : "";
}

int skv_load_bool(const struct skv_loader *l, const json_t *object, const char *path, const char *key, bool def, bool *ret)
{
	const json_t *v = json_object_get(object, key);
	char whole[80];

	*ret = v && !json_is_null(v) ? json_is_true(v) : def;
	if (!v || json_is_null(v) || json_is_boolean(v))
		return 0;
	snprintf(whole, sizeof(whole), "%s.%s", path, key);
	return skv_load_unexpected(l, whole, v, "true or false");
}

/* ---- the model: vocabulary and merges ---------------------------------------------------------- */

/*
 * Returns the byte that this character represents in GPT-2's mapping of bytes to characters, or -1. In the mapping,
 * printable bytes of Latin-1 are themselves, and the other bytes are U+0100 and up, in order.
 */
static int byte_of(uint32_t c)
{
	static const struct {
		uint32_t first, last;
	} themselves[] = {{'!', '~'}, {0xa1, 0xac}, {0xae, 0xff}};
	uint32_t at = 0x100;

	for (uint32_t byte = 0; byte < 256; byte++) {
		bool itself = false;

		for (int i = 0; i < 3; i++)
			itself |= byte >= themselves[i].first && byte <= themselves[i].last;
		if ((itself ? byte : at++) == c)
			return (int)byte;
	}
	return -1;
}

/*
 * Converts a token's name to the bytes that its characters represent. Returns false if a character represents no byte;
 * then the token's bytes are the name itself.
 */
static bool spell(const char *name, size_t n, char *to, size_t *ret_len)
{
	static int16_t table[0x180]; /* [character]: byte_of() + 1; 0: not computed yet; -1: no byte */

	*ret_len = 0;
	for (size_t i = 0; i < n; i++) {
		uint32_t c = (unsigned char)name[i];

		if (c >= 0x80) {
			if (c < 0xc2 || c > 0xc5) /* only characters up to U+017F can represent a byte */
				return false;
			c = (c & 0x1f) << 6 | ((unsigned char)name[++i] & 0x3f);
		}
		if (!__atomic_load_n(&table[c], __ATOMIC_RELAXED)) {
			int byte = byte_of(c);

			__atomic_store_n(&table[c], (int16_t)(byte < 0 ? -1 : byte + 1), __ATOMIC_RELAXED);
		}
		if (table[c] < 0)
			return false;
		to[(*ret_len)++] = (char)(table[c] - 1);
	}
	return true;
}

/* Defines a token. `text`: the model's vocabulary has the token, so that it can result from text. */
static int define(const struct skv_loader *l, const char *name, size_t n, int64_t id, bool text)
{
	char bytes[NAME_MAX_BYTES];
	size_t len;
	bool spelled;
	int r;

	if (n > sizeof(bytes))
		return skv_load_bad(l, "a token of %zu bytes, at most %u expected", n, NAME_MAX_BYTES);
	spelled = spell(name, n, bytes, &len);
	r = skv_bpe_define(&l->t->bpe, id, spelled ? bytes : name, spelled ? len : n, spelled && text);
	if (r == -ERANGE)
		return skv_load_bad(l, "token \"%.60s\": id %lld, one below %u expected", name, (long long)id, SKV_TOKENIZER_IDS_MAX);
	if (r == -EEXIST)
		return skv_load_bad(l, "token \"%.60s\": id %lld is another token's, too", name, (long long)id);
	return r ? skv_load_no_memory(l) : 0;
}

static int load_vocab(struct skv_loader *l, const json_t *model)
{
	const json_t *vocab = json_object_get(model, "vocab"), *id;
	const char *name;
	int r = 0;

	if (!json_is_object(vocab) || !json_object_size(vocab))
		return skv_load_unexpected(l, "model.vocab", json_is_object(vocab) ? vocab : NULL, "an object that is not empty");
	l->vocab = vocab;
	json_object_foreach((json_t *)vocab, name, id) {
		if (!json_is_integer(id))
			return skv_load_bad(l, "\"model.vocab\": token \"%.60s\": a whole number expected", name);
		r = define(l, name, strlen(name), json_integer_value(id), true);
		if (r)
			return r;
	}
	return 0;
}

static int32_t id_of(const struct skv_loader *l, const char *name)
{
	const json_t *id = json_object_get(l->vocab, name);

	return id ? (int32_t)json_integer_value(id) : -1;
}

/*
 * Splits a merge, "a b" or ["a", "b"], into its two names, in allocated memory: a, NUL, b, NUL. NULL: malformed, or
 * memory is exhausted.
 */
static char *merge_names(const json_t *merge, const char **ret_right)
{
	const char *left = json_string_value(json_is_array(merge) ? json_array_get(merge, 0) : merge), *right;
	size_t n;
	char *both;

	if (!left || (json_is_array(merge) && json_array_size(merge) != 2))
		return NULL;
	right = json_is_array(merge) ? json_string_value(json_array_get(merge, 1)) : strchr(left, ' ');
	if (!right || (!json_is_array(merge) && (right == left || strchr(right + 1, ' '))))
		return NULL;
	n = json_is_array(merge) ? strlen(left) : (size_t)(right++ - left);
	both = malloc(n + strlen(right) + 2);
	if (!both)
		return NULL;
	memcpy(both, left, n);
	both[n] = '\0';
	*ret_right = strcpy(both + n + 1, right);
	return both;
}

static int load_merge(const struct skv_loader *l, const json_t *merge, uint32_t rank)
{
	const char *right = NULL;
	char *left = merge_names(merge, &right), whole[2 * NAME_MAX_BYTES + 1];
	int32_t ids[3];

	if (!left)
		return skv_load_bad(l, "\"model.merges\": number %u: two tokens, as \"a b\" or [\"a\", \"b\"], expected", rank);
	ids[0] = id_of(l, left);
	ids[1] = id_of(l, right);
	ids[2] = -1;
	if (ids[0] >= 0 && ids[1] >= 0) {
		snprintf(whole, sizeof(whole), "%s%s", left, right);
		ids[2] = id_of(l, whole);
	}
	free(left);
	if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0)
		return skv_load_bad(l, "\"model.merges\": number %u: tokens of the vocabulary, and what they make one, too, expected", rank);
	skv_bpe_merge(&l->t->bpe, ids[0], ids[1], rank, ids[2]);
	return 0;
}

static int load_merges(const struct skv_loader *l, const json_t *model)
{
	const json_t *merges = json_object_get(model, "merges");
	int r = 0;

	if (!json_is_array(merges))
		return skv_load_unexpected(l, "model.merges", merges, "a list");
	if (skv_bpe_reserve_merges(&l->t->bpe, json_array_size(merges)))
		return skv_load_no_memory(l);
	for (size_t i = 0; !r && i < json_array_size(merges); i++)
		r = load_merge(l, json_array_get(merges, i), (uint32_t)i);
	return r;
}

/* Requires that the key is absent, null or empty. */
static int check_without(const struct skv_loader *l, const json_t *model, const char *key)
{
	const json_t *v = json_object_get(model, key);
	char path[64];

	snprintf(path, sizeof(path), "model.%s", key);
	if (!v || json_is_null(v) || (json_is_string(v) && !json_string_length(v)) ||
	    (json_is_number(v) && json_number_value(v) == 0))
		return 0;
	return skv_load_unexpected(l, path, v, "null (nothing else is computed)");
}

int skv_load_model(struct skv_loader *l, const json_t *root)
{
	const json_t *model = json_object_get(root, "model"), *unknown = json_object_get(model, "unk_token");
	struct skv_bpe *b = &l->t->bpe;
	bool byte_fallback;
	int r;

	if (!json_is_object(model))
		return skv_load_unexpected(l, "model", model, "an object");
	if (strcmp(skv_load_type(model), "BPE") && (json_object_get(model, "type") || !json_object_get(model, "merges")))
		return skv_load_unexpected(l, "model.type", json_object_get(model, "type"), "\"BPE\", of bytes");
	if (skv_load_bool(l, model, "model", "byte_fallback", false, &byte_fallback) ||
	    skv_load_bool(l, model, "model", "fuse_unk", false, &b->fuse_unknown) ||
	    skv_load_bool(l, model, "model", "ignore_merges", false, &b->ignore_merges) || check_without(l, model, "dropout") ||
	    check_without(l, model, "continuing_subword_prefix") || check_without(l, model, "end_of_word_suffix"))
		return -EBADMSG;
	if (byte_fallback)
		return skv_load_unexpected(l, "model.byte_fallback", json_true(), "false: byte-level BPE");
	r = load_vocab(l, model);
	r = r ? r : load_merges(l, model);
	if (r || !unknown || json_is_null(unknown))
		return r;
	b->unknown = json_is_string(unknown) ? id_of(l, json_string_value(unknown)) : -1;
	return b->unknown >= 0 ? 0 : skv_load_unexpected(l, "model.unk_token", unknown, "null or a token of model.vocab");
}

/* ---- added tokens ------------------------------------------------------------------------------- */

/*
 * Checks that an added token has the same id in the vocabulary, if the vocabulary has it. Otherwise defines a new
 * token, which decodes to its own text.
 */
static int check_added_id(const struct skv_loader *l, const char *content, const struct skv_added *a)
{
	int32_t known = id_of(l, content);

	if (known >= 0 && known != a->id)
		return skv_load_bad(l, "\"added_tokens\": \"%.60s\" has id %d, %d as in model.vocab expected", content, a->id, known);
	return known >= 0 ? 0 : define(l, a->text, a->len, a->id, false);
}

static int load_added_token(const struct skv_loader *l, const json_t *token)
{
	const json_t *content = json_object_get(token, "content"), *id = json_object_get(token, "id");
	struct skv_added a = {.len = (uint32_t)json_string_length(content), .text = (char *)json_string_value(content)};
	bool normalized;
	char *composed = NULL;
	int r;

	if (!a.text || json_string_length(content) > NAME_MAX_BYTES || strlen(a.text) != a.len)
		return skv_load_unexpected(l, "added_tokens[].content", content, "a string without NUL");
	if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= SKV_TOKENIZER_IDS_MAX)
		return skv_load_unexpected(l, "added_tokens[].id", id, "a whole number, an id");
	a.id = (int32_t)json_integer_value(id);
	if (skv_load_bool(l, token, "added_tokens[]", "single_word", false, &a.single_word) ||
	    skv_load_bool(l, token, "added_tokens[]", "lstrip", false, &a.lstrip) ||
	    skv_load_bool(l, token, "added_tokens[]", "rstrip", false, &a.rstrip) ||
	    skv_load_bool(l, token, "added_tokens[]", "special", false, &a.special) ||
	    skv_load_bool(l, token, "added_tokens[]", "normalized", !a.special, &normalized))
		return -EBADMSG;
	if (!a.len)
		return 0;
	if (normalized && l->t->nfc) {
		size_t len;

		if (skv_nfc(a.text, a.len, &composed, &len))
			return skv_load_no_memory(l);
		a.len = composed ? (uint32_t)len : a.len;
		a.text = composed ? composed : a.text;
	}
	r = check_added_id(l, json_string_value(content), &a);
	if (!r && skv_added_put(normalized ? &l->t->added_normalized : &l->t->added, &a))
		r = skv_load_no_memory(l);
	if (!r)
		l->t->bpe.tokens[a.id].special |= a.special;
	free(composed);
	return r;
}

int skv_load_added(const struct skv_loader *l, const json_t *root)
{
	const json_t *list = json_object_get(root, "added_tokens");
	int r = 0;

	if (list && !json_is_null(list) && !json_is_array(list))
		return skv_load_unexpected(l, "added_tokens", NULL, "a list");
	for (size_t i = 0; !r && i < json_array_size(list); i++)
		r = load_added_token(l, json_array_get(list, i));
	if (r)
		return r;
	r = skv_added_ready(&l->t->added);
	r = r ? r : skv_added_ready(&l->t->added_normalized);
	if (r == -EEXIST)
		return skv_load_bad(l, "\"added_tokens\": two have the same content");
	return r ? skv_load_no_memory(l) : 0;
}
