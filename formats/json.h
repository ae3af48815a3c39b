/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/json.h - parses JSON as other programs write it.
 *
 * Python writes integers of any size, and NaN, Infinity and -Infinity, which are not JSON; transformers writes both in
 * files whose other keys are needed. Integers that do not fit into 64 bits are read as floating-point numbers, numbers
 * that are not finite as null.
 */
#ifndef SKV_FORMATS_JSON_H
#define SKV_FORMATS_JSON_H

#include <jansson.h>
#include <stddef.h>

/*
 * `flags` as for json_loadb(). On failure returns NULL and sets *error as json_loadb() does; its text is "" if out of
 * memory.
 */
json_t *skv_json_parse(const char *text, size_t n, size_t flags, json_error_t *error);

/*
 * Loads the file at `path`. Returns 0 and a reference in *ret; -EBADMSG with the text "PATH:LINE: error"; or the
 * negative errno of open(2) or read(2) with the text "PATH: error".
 */
int skv_json_load(json_t **ret, const char *path, size_t flags, char *err, size_t err_len);

#endif
