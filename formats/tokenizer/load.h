/* SPDX-License-Identifier: Apache-2.0 */
/* formats/tokenizer/load.h - functions shared by the files that load a tokenizer. */
#ifndef SKV_TOKENIZER_LOAD_H
#define SKV_TOKENIZER_LOAD_H

#include <jansson.h>
#include "formats/tokenizer/tokenizer-priv.h"

struct skv_loader {
	struct skv_tokenizer *t;
	const char *name; /* name of the file */
	const json_t *vocab;
	char *err;
	size_t err_len;
};

/* Writes "file: text". Returns -EBADMSG. */
int skv_load_bad(const struct skv_loader *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes that memory is exhausted. Returns -ENOMEM. */
int skv_load_no_memory(const struct skv_loader *l);
/* Writes a key's value and what was expected. `path`: the key with its parents. Returns -EBADMSG. */
int skv_load_unexpected(const struct skv_loader *l, const char *path, const json_t *value, const char *expected);

/* Returns "type" of an object, or "". */
const char *skv_load_type(const json_t *object);
/* Reads true, false, or `def` if the key is missing or null. -EBADMSG. */
int skv_load_bool(const struct skv_loader *l, const json_t *object, const char *path, const char *key, bool def,
                  bool *ret);

/* Load "model" (vocabulary and merges), and "added_tokens", which depend on the normalizer. -EBADMSG, -ENOMEM. */
int skv_load_model(struct skv_loader *l, const json_t *root);
int skv_load_added(const struct skv_loader *l, const json_t *root);

#endif
