/* SPDX-License-Identifier: Apache-2.0 */
/* formats/tokenizer/load.h - what the parts of loading share. */
#ifndef SKV_TOKENIZER_LOAD_H
#define SKV_TOKENIZER_LOAD_H

#include <jansson.h>
#include "formats/tokenizer/tokenizer-priv.h"

struct skv_loader {
	struct skv_tokenizer *t;
	const char *name; /* of the file */
	const json_t *vocab;
	char *err;
	size_t err_len;
};

/* Write "file: text". Returns -EBADMSG. */
int skv_load_bad(const struct skv_loader *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same: there is no memory. Returns -ENOMEM. */
int skv_load_no_memory(const struct skv_loader *l);
/* The same: what a key is, and what was expected. `path`: the key with those that it is in. Returns -EBADMSG. */
int skv_load_unexpected(const struct skv_loader *l, const char *path, const json_t *value, const char *expected);

/* "type" of an object, or "". */
const char *skv_load_type(const json_t *object);
/* true, false, or `def` where the key is missing or null. -EBADMSG. */
int skv_load_bool(const struct skv_loader *l, const json_t *object, const char *path, const char *key, bool def,
                  bool *ret);

/* "model": vocabulary and merges; then "added_tokens", which need to know the normalizer. -EBADMSG, -ENOMEM. */
int skv_load_model(struct skv_loader *l, const json_t *root);
int skv_load_added(const struct skv_loader *l, const json_t *root);

#endif
