/* SPDX-License-Identifier: Apache-2.0 */
/* formats/tokenizer/load.c - creates a tokenizer from its JSON. */
#include <errno.h>
#include <string.h>
#include "formats/json.h"
#include "formats/tokenizer/load.h"

/* GPT-2's pattern, the default of ByteLevel. */
static const char gpt2_pattern[] =
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- normalizer, decoder, post-processor --------------------------------------------------------- */

/* Maximum depth of nested lists. */
#define DEPTH_MAX 4

static int load_normalizer(const struct skv_loader *l, const json_t *n, int depth)
{
	const json_t *list = json_object_get(n, "normalizers");
	int r = 0;

	if (!n || json_is_null(n))
		return 0;
	if (!strcmp(skv_load_type(n), "NFC")) {
		l->t->nfc = true;
		return 0;
	}
	if (strcmp(skv_load_type(n), "Sequence") || !json_is_array(list) || depth == DEPTH_MAX)
		return skv_load_unexpected(l, "normalizer", n, "null or NFC");
	for (size_t i = 0; !r && i < json_array_size(list); i++)
		r = load_normalizer(l, json_array_get(list, i), depth + 1);
	return r;
}

static int check_decoder(const struct skv_loader *l, const json_t *d, int depth)
{
	const json_t *list = json_object_get(d, "decoders");

	if (!strcmp(skv_load_type(d), "ByteLevel"))
		return 0;
	if (strcmp(skv_load_type(d), "Sequence") || json_array_size(list) != 1 || depth == DEPTH_MAX)
		return skv_load_unexpected(l, "decoder", d, "ByteLevel");
	return check_decoder(l, json_array_get(list, 0), depth + 1);
}

/* Appends to `to` the ids of the template's special token with this name. */
static int template_ids(const struct skv_loader *l, const json_t *processor, const char *name, struct skv_ids *to)
{
	const json_t *ids = json_object_get(json_object_get(json_object_get(processor, "special_tokens"), name), "ids");

	if (!json_array_size(ids))
		return skv_load_bad(l, "\"post_processor.special_tokens\": \"%.60s\" with its ids expected", name);
	for (size_t i = 0; i < json_array_size(ids); i++) {
		json_int_t v = json_integer_value(json_array_get(ids, i));
		int32_t id = (int32_t)v;

		if (!json_is_integer(json_array_get(ids, i)) || v < 0 || v >= l->t->bpe.n_ids || !l->t->bpe.tokens[id].bytes)
			return skv_load_bad(l, "\"post_processor.special_tokens\": \"%.60s\": ids of tokens expected", name);
		if (skv_ids_add(to, &id, 1))
			return skv_load_no_memory(l);
	}
	return 0;
}

/* Reads the ids that a template puts before and after a text, which the template calls sequence A. */
static int load_template(const struct skv_loader *l, const json_t *p, struct skv_ids *before, struct skv_ids *behind)
{
	const json_t *single = json_object_get(p, "single");
	bool seen = false;
	int r = 0;

	for (size_t i = 0; !r && i < json_array_size(single); i++) {
		const json_t *item = json_array_get(single, i);
		const char *token = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
		const char *text = json_string_value(json_object_get(json_object_get(item, "Sequence"), "id"));

		if (token)
			r = template_ids(l, p, token, seen ? behind : before);
		else if (text && !strcmp(text, "A") && !seen)
			seen = true;
		else
			return skv_load_unexpected(l, "post_processor.single[]", item, "a SpecialToken, or Sequence A once");
	}
	return r || seen ? r : skv_load_unexpected(l, "post_processor.single", single, "a list with Sequence A");
}

/* The template of a later processor encloses the results of earlier ones. */
static int load_processor(const struct skv_loader *l, const json_t *p, int depth)
{
	const json_t *list = json_object_get(p, "processors");
	struct skv_tokenizer *t = l->t;
	int r = 0;

	if (!p || json_is_null(p) || !strcmp(skv_load_type(p), "ByteLevel"))
		return 0;
	if (!strcmp(skv_load_type(p), "TemplateProcessing")) {
		struct skv_ids before = SKV_IDS_NULL;

		r = load_template(l, p, &before, &t->behind);
		if (!r && skv_ids_add(&before, t->before.id, t->before.n))
			r = skv_load_no_memory(l);
		skv_ids_deinit(&t->before);
		t->before = before;
		return r;
	}
	if (strcmp(skv_load_type(p), "Sequence") || !json_is_array(list) || depth == DEPTH_MAX)
		return skv_load_unexpected(l, "post_processor", p, "null, ByteLevel or TemplateProcessing");
	for (size_t i = 0; !r && i < json_array_size(list); i++)
		r = load_processor(l, json_array_get(list, i), depth + 1);
	return r;
}

/* ---- pre-tokenizers ------------------------------------------------------------------------------ */

/* Takes ownership of the rule if `r` is 0; otherwise reports the pattern's error with the file's name. */
static int add_rule(const struct skv_loader *l, const char *path, const struct skv_rule *rule, int r, const char *why)
{
	struct skv_rules *rules = &l->t->rules;

	if (r)
		return r == -ENOMEM ? skv_load_no_memory(l) : skv_load_bad(l, "\"%s\": %s", path, why);
	if (rules->n == SKV_RULES_MAX) {
		skv_rules_deinit(&(struct skv_rules){.list = {*rule}, .n = 1});
		return skv_load_bad(l, "\"pre_tokenizer\": more than %u rules", SKV_RULES_MAX);
	}
	rules->list[rules->n++] = *rule;
	return 0;
}

static int load_byte_level(const struct skv_loader *l, const json_t *p)
{
	struct skv_rule rule = {.split = SKV_SPLIT_ISOLATED};
	bool use_regex;
	char why[300] = "";
	int r = 0;

	if (skv_load_bool(l, p, "pre_tokenizer", "add_prefix_space", true, &rule.add_space) ||
	    skv_load_bool(l, p, "pre_tokenizer", "use_regex", true, &use_regex))
		return -EBADMSG;
	if (use_regex)
		r = skv_pattern(&rule.pattern, gpt2_pattern, strlen(gpt2_pattern), why, sizeof(why));
	return add_rule(l, "pre_tokenizer", &rule, r, why);
}

static int load_digits(const struct skv_loader *l, const json_t *p)
{
	struct skv_rule rule = {.split = SKV_SPLIT_ISOLATED};
	char why[300] = "";
	bool each;

	if (skv_load_bool(l, p, "pre_tokenizer", "individual_digits", false, &each))
		return -EBADMSG;
	if (!each)
		rule.split = SKV_SPLIT_CONTIGUOUS;
	return add_rule(l, "pre_tokenizer", &rule, skv_pattern(&rule.pattern, "\\p{N}", 5, why, sizeof(why)), why);
}

static int load_split(const struct skv_loader *l, const json_t *p)
{
	static const char *const names[] = {
		[SKV_SPLIT_ISOLATED] = "Isolated", [SKV_SPLIT_REMOVED] = "Removed", [SKV_SPLIT_CONTIGUOUS] = "Contiguous",
		[SKV_SPLIT_WITH_PREVIOUS] = "MergedWithPrevious", [SKV_SPLIT_WITH_NEXT] = "MergedWithNext"};
	const json_t *pattern = json_object_get(p, "pattern"), *text = json_object_get(pattern, "String");
	const json_t *regex = json_object_get(pattern, "Regex"), *behavior = json_object_get(p, "behavior");
	struct skv_rule rule = {.pattern = NULL};
	const json_t *is = regex ? regex : text;
	char why[300] = "";
	size_t split = 0;
	int r;

	while (split < 5 && (!json_is_string(behavior) || strcmp(json_string_value(behavior), names[split])))
		split++;
	if (split == 5)
		return skv_load_unexpected(l, "pre_tokenizer.behavior", behavior,
		                  "Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext");
	rule.split = (enum skv_split)split;
	if (skv_load_bool(l, p, "pre_tokenizer", "invert", false, &rule.invert))
		return -EBADMSG;
	if (!json_is_string(is) || !json_string_length(is) || (regex && text))
		return skv_load_unexpected(l, "pre_tokenizer.pattern", pattern, "{\"Regex\": …} or {\"String\": …}");
	r = regex ? skv_pattern(&rule.pattern, json_string_value(is), json_string_length(is), why, sizeof(why))
	          : skv_pattern_literal(&rule.pattern, json_string_value(is), json_string_length(is), why, sizeof(why));
	return add_rule(l, "pre_tokenizer.pattern", &rule, r, why);
}

/*
 * Loads the rules of a pre-tokenizer. Sets *done if it has a ByteLevel, which converts text to bytes and therefore must
 * be the last.
 */
static int load_pre_tokenizer(const struct skv_loader *l, const json_t *p, int depth, bool *done)
{
	const json_t *list = json_object_get(p, "pretokenizers");
	const char *type = skv_load_type(p);
	int r = 0;

	if (!strcmp(type, "Sequence") && json_is_array(list) && depth < DEPTH_MAX) {
		for (size_t i = 0; !r && i < json_array_size(list); i++)
			r = load_pre_tokenizer(l, json_array_get(list, i), depth + 1, done);
		return r;
	}
	if (*done)
		return skv_load_unexpected(l, "pre_tokenizer", p, "nothing behind ByteLevel");
	*done = !strcmp(type, "ByteLevel");
	if (*done)
		return load_byte_level(l, p);
	if (!strcmp(type, "Digits"))
		return load_digits(l, p);
	if (!strcmp(type, "Split"))
		return load_split(l, p);
	return skv_load_unexpected(l, "pre_tokenizer", p, "ByteLevel, Split, Digits or a Sequence of them");
}

/* ---- complete tokenizer -------------------------------------------------------------------------- */

static int load(struct skv_loader *l, const json_t *root)
{
	const json_t *pre = json_object_get(root, "pre_tokenizer");
	bool byte_level = false;
	int r;

	if (!json_is_object(root))
		return skv_load_bad(l, "not a JSON object");
	r = skv_load_model(l, root);
	r = r ? r : load_normalizer(l, json_object_get(root, "normalizer"), 0);
	r = r ? r : skv_load_added(l, root);
	r = r ? r : load_pre_tokenizer(l, pre, 0, &byte_level);
	if (!r && !byte_level)
		r = skv_load_unexpected(l, "pre_tokenizer", pre, "ByteLevel at its end");
	r = r ? r : check_decoder(l, json_object_get(root, "decoder"), 0);
	r = r ? r : load_processor(l, json_object_get(root, "post_processor"), 0);
	return r || !skv_bpe_ready(&l->t->bpe) ? r : skv_load_no_memory(l);
}

static int from_json(struct skv_tokenizer **ret, json_t *root, const char *name, char *err, size_t err_len)
{
	struct skv_tokenizer *t = calloc(1, sizeof(*t));
	struct skv_loader l = {.t = t, .name = name, .err = err, .err_len = err_len};
	int r;

	if (t) {
		t->bpe = SKV_BPE_NULL;
		r = load(&l, root);
	} else {
		r = skv_load_no_memory(&l);
	}
	json_decref(root);
	if (r) {
		skv_tokenizer_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

#define JSON_FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)

int skv_tokenizer_parse(struct skv_tokenizer **ret, const char *json, size_t n, const char *name, char *err,
                        size_t err_len)
{
	json_error_t je;
	json_t *root = skv_json_parse(json, n, JSON_FLAGS, &je);

	if (!root) {
		skv_load_bad(&(struct skv_loader){.name = name, .err = err, .err_len = err_len}, "line %d: %s", je.line, je.text);
		return -EBADMSG;
	}
	return from_json(ret, root, name, err, err_len);
}

int skv_tokenizer_load(struct skv_tokenizer **ret, const char *path, char *err, size_t err_len)
{
	json_t *root;
	int r = skv_json_load(&root, path, JSON_FLAGS, err, err_len);

	if (r < 0)
		return r;
	return from_json(ret, root, path, err, err_len);
}
