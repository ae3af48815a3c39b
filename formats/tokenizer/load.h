/* SPDX-License-Identifier: Apache-2.0 */
/* formats/tokenizer/load.h - functions shared by load.c and load-model.c, which load a tokenizer from JSON. */
#ifndef SKV_TOKENIZER_LOAD_H
#define SKV_TOKENIZER_LOAD_H

#include <jansson.h>
#include "formats/tokenizer/tokenizer-priv.h"

struct skv_loader {
	struct skv_tokenizer *t;
	const char *name; /* name of the file, for error texts */
	const json_t *vocab;
	char *err;
	size_t err_len;
};

/* Writes "FILE: " and a formatted text to l->err. Returns -EBADMSG. */
int skv_load_bad(const struct skv_loader *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes to l->err that memory is exhausted. Returns -ENOMEM. */
int skv_load_no_memory(const struct skv_loader *l);
/*
 * Writes to l->err the value of a key and which value was expected. `path`: the key with its parents. Returns -EBADMSG.
 */
int skv_load_unexpected(const struct skv_loader *l, const char *path, const json_t *value, const char *expected);

/* Returns the string under the object's key "type", or "". */
const char *skv_load_type(const json_t *object);
/* Reads a boolean under the key; `def` if the key is missing or null. Returns 0, or -EBADMSG for another value. */
int skv_load_bool(const struct skv_loader *l, const json_t *object, const char *path, const char *key, bool def,
                  bool *ret);

/*
 * skv_load_model() loads "model" (vocabulary and merges); skv_load_added() loads "added_tokens", after the normalizer,
 * which changes their texts. Both return 0, -EBADMSG or -ENOMEM.
 */
int skv_load_model(struct skv_loader *l, const json_t *root);
int skv_load_added(const struct skv_loader *l, const json_t *root);

#endif
