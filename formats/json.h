/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/json.h - parses JSON as other programs write it.
 *
 * Python writes integers of any size, and also NaN, Infinity and -Infinity, which are not JSON. transformers writes
 * such numbers in files whose other keys are needed. So integers that do not fit into 64 bits are read as
 * floating-point numbers, and numbers that are not finite as null.
 */
#ifndef SKV_FORMATS_JSON_H
#define SKV_FORMATS_JSON_H

#include <jansson.h>
#include <stddef.h>

/*
 * Parses n bytes of text; takes the `flags` of json_loadb(). On failure returns NULL and sets *error as json_loadb()
 * does; error->text is "" if memory is exhausted.
 */
json_t *skv_json_parse(const char *text, size_t n, size_t flags, json_error_t *error);

/*
 * Loads and parses the JSON file at `path`. Returns 0 and a reference in *ret; -EBADMSG with the text "PATH:LINE:
 * error"; or the negative errno of open(2) or read(2) with the text "PATH: error".
 */
int skv_json_load(json_t **ret, const char *path, size_t flags, char *err, size_t err_len);

#endif
