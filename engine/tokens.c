/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokens.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "formats/json.h"

#define PATH_ROOM 4096

int eng_tokens_check_bytes(const struct eng_config *c, struct eng_error *err)
{
	if (c->vocab <= 256 || c->bos < 256 || c->eos < 256)
		return eng_fail(err, -EINVAL,
		                "the model's vocabulary is not bytes: %u ids, bos %d, eos %d; a tokenizer.json expected, or "
		                "ids 0 to 255 for the bytes and bos, eos above them",
		                c->vocab, c->bos, c->eos);
	if (c->vocab > 512)
		return eng_fail(err, -EINVAL, "%u ids need a tokenizer: a tokenizer.json beside config.json expected", c->vocab);
	return 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

static int file_of(const char *directory, const char *name, char path[PATH_ROOM], struct eng_error *err)
{
	if (snprintf(path, PATH_ROOM, "%s/%s", directory, name) >= PATH_ROOM)
		return eng_fail(err, -ENAMETOOLONG, "%.60s...: a shorter path expected", directory);
	return 0;
}

static int add_end(struct eng_tokens *t, json_int_t id, const char *path, struct eng_error *err)
{
	if (id < 0 || id >= (json_int_t)t->vocab)
		return eng_fail(err, -EINVAL, "%s: \"eos_token_id\": an id below %u expected", path, t->vocab);
	if (eng_tokens_is_end(t, (int32_t)id))
		return 0;
	if (t->n_ends == ENG_TOKENS_ENDS)
		return eng_fail(err, -EINVAL, "%s: \"eos_token_id\": at most %u ids expected", path, ENG_TOKENS_ENDS);
	t->ends[t->n_ends++] = (int32_t)id;
	return 0;
}

/* Reads "eos_token_id" of a file: an id, or a list of ids. A missing file or key adds none. */
static int add_ends(struct eng_tokens *t, const char *directory, const char *name, struct eng_error *err)
{
	char path[PATH_ROOM];
	const json_t *v;
	json_t *root;
	int r = file_of(directory, name, path, err);

	if (r || access(path, F_OK))
		return r;
	r = skv_json_load(&root, path, JSON_REJECT_DUPLICATES, err->text, sizeof(err->text));
	if (r < 0)
		return r == -EBADMSG ? -EINVAL : r;
	v = json_object_get(root, "eos_token_id");
	if (json_is_integer(v))
		r = add_end(t, json_integer_value(v), path, err);
	else if (v && !json_is_null(v) && !json_is_array(v))
		r = eng_fail(err, -EINVAL, "%s: \"eos_token_id\": an id or a list of ids expected", path);
	for (size_t i = 0; !r && i < json_array_size(v); i++)
		r = add_end(t, json_is_integer(json_array_get(v, i)) ? json_integer_value(json_array_get(v, i)) : -1, path, err);
	json_decref(root);
	return r;
}

static int load_tokenizer(struct eng_tokens *t, const char *path, struct eng_error *err)
{
	const struct skv_ids *before, *behind;
	int r = skv_tokenizer_load(&t->tokenizer, path, err->text, sizeof(err->text));

	if (r)
		return r;
	if (skv_tokenizer_n_ids(t->tokenizer) > t->vocab)
		return eng_fail(err, -EINVAL, "%.300s: %u ids, at most the %u of config.json's vocab_size expected", path,
		                skv_tokenizer_n_ids(t->tokenizer), t->vocab);
	skv_tokenizer_template(t->tokenizer, &before, &behind);
	if (behind->n)
		return eng_fail(err, -EINVAL, "%.300s: \"post_processor\": nothing behind a text expected, which is to go on",
		                path);
	return skv_ids_add(&t->begin, before->id, before->n) ? eng_fail(err, -ENOMEM, "no memory for a tokenizer") : 0;
}

static int load(struct eng_tokens *t, const char *directory, bool has_text, struct eng_config *ret_config, struct eng_error *err)
{
	struct eng_config c;
	char path[PATH_ROOM];
	int r = file_of(directory, "config.json", path, err);

	r = r ? r : eng_config_load(&c, path, err);
	if (r)
		return r;
	if (ret_config)
		*ret_config = c;
	t->vocab = c.vocab;
	t->eos = c.eos;
	r = file_of(directory, "tokenizer.json", path, err);
	if (!r && !access(path, F_OK)) {
		r = load_tokenizer(t, path, err);
	} else if (!r && has_text) {
		r = eng_tokens_check_bytes(&c, err);
		if (!r && skv_ids_add(&t->begin, &c.bos, 1))
			r = eng_fail(err, -ENOMEM, "no memory for a tokenizer");
	}
	if (!r && c.eos >= 0)
		r = add_end(t, c.eos, path, err);
	r = r ? r : add_ends(t, directory, "config.json", err);
	return r ? r : add_ends(t, directory, "generation_config.json", err);
}

static int load_or_nothing(struct eng_tokens *ret, const char *directory, bool has_text, struct eng_config *ret_config, struct eng_error *err)
{
	struct eng_tokens t = ENG_TOKENS_NULL;
	int r = load(&t, directory, has_text, ret_config, err);

	if (r) {
		eng_tokens_deinit(&t);
		return r;
	}
	*ret = t;
	return 0;
}

int eng_tokens_load(struct eng_tokens *ret, const char *directory, struct eng_config *ret_config, struct eng_error *err)
{
	return load_or_nothing(ret, directory, true, ret_config, err);
}

int eng_tokens_load_ids(struct eng_tokens *ret, const char *directory, struct eng_config *ret_config, struct eng_error *err)
{
	return load_or_nothing(ret, directory, false, ret_config, err);
}

void eng_tokens_deinit(struct eng_tokens *t)
{
	skv_tokenizer_free(t->tokenizer);
	skv_ids_deinit(&t->begin);
	*t = ENG_TOKENS_NULL;
}

/* ---- text to ids ------------------------------------------------------------------------------ */

static int encode_bytes(const char *text, size_t n, struct skv_ids *to)
{
	int r = 0;

	for (size_t i = 0; !r && i < n; i++) {
		int32_t id = (unsigned char)text[i];

		r = skv_ids_add(to, &id, 1);
	}
	return r;
}

int eng_tokens_encode(const struct eng_tokens *t, const char *text, size_t n, struct skv_ids *to, struct eng_error *err)
{
	if (t->tokenizer)
		return skv_tokenizer_encode(t->tokenizer, text, n, 0, to, err->text, sizeof(err->text));
	return encode_bytes(text, n, to) ? eng_fail(err, -ENOMEM, "no memory for a text of %zu bytes", n) : 0;
}

int eng_tokens_prompt(const struct eng_tokens *t, const char *text, size_t n, struct skv_ids *to, struct eng_error *err)
{
	if (skv_ids_add(to, t->begin.id, t->begin.n))
		return eng_fail(err, -ENOMEM, "no memory for a text of %zu bytes", n);
	return eng_tokens_encode(t, text, n, to, err);
}

/* ---- ids to text ------------------------------------------------------------------------------ */

bool eng_tokens_is_end(const struct eng_tokens *t, int32_t id)
{
	for (uint32_t i = 0; i < t->n_ends; i++)
		if (t->ends[i] == id)
			return true;
	return false;
}

bool eng_tokens_ends_line(const struct eng_tokens *t, int32_t id)
{
	const char *bytes;
	size_t n;

	if (eng_tokens_is_end(t, id) || !t->tokenizer)
		return id == '\n' || eng_tokens_is_end(t, id);
	bytes = skv_tokenizer_bytes(t->tokenizer, id, &n);
	return bytes && memchr(bytes, '\n', n);
}

static void print_piece(struct eng_printer *p, const char *bytes, size_t n)
{
	char out[3 * 64];

	while (n) {
		size_t part = n < 60 ? n : 60;

		fwrite(out, 1, skv_utf8_push(&p->stream, bytes, part, out), p->to);
		bytes += part;
		n -= part;
	}
}

void eng_print(struct eng_printer *p, int32_t id)
{
	const struct skv_tokenizer *t = p->tokens->tokenizer;
	const char *bytes;
	size_t n;

	if (!t && id >= 0 && id < 256)
		print_piece(p, &(char){(char)id}, 1);
	else if (t && (bytes = skv_tokenizer_bytes(t, id, &n)) && !skv_tokenizer_special(t, id))
		print_piece(p, bytes, n);
	fflush(p->to);
}

void eng_print_end(struct eng_printer *p)
{
	char out[9];

	fwrite(out, 1, skv_utf8_end(&p->stream, out), p->to);
	fflush(p->to);
}

char *eng_tokens_text(const struct eng_tokens *t, const int32_t *ids, size_t n)
{
	char *text = NULL;
	size_t size;
	struct eng_printer p = {.tokens = t, .to = open_memstream(&text, &size)};
	bool bad;

	if (!p.to)
		return NULL;
	for (size_t i = 0; i < n; i++)
		eng_print(&p, ids[i]);
	eng_print_end(&p);
	bad = ferror(p.to);
	if (!fclose(p.to) && !bad)
		return text;
	free(text);
	return NULL;
}
