/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/json.h - JSON as other programs write it.
 *
 * Python writes integers of any size, and NaN, Infinity and -Infinity, which JSON does not have; transformers does both in
 * files whose other keys we need. Numbers that 64 bits do not hold are read as floating-point numbers, and those that are
 * no finite number as null.
 */
#ifndef SKV_FORMATS_JSON_H
#define SKV_FORMATS_JSON_H

#include <jansson.h>
#include <stddef.h>

/* `flags` as json_loadb() takes them. NULL, with *error as json_loadb() sets it; its text is "" where memory lacks. */
json_t *skv_json_parse(const char *text, size_t n, size_t flags, json_error_t *error);

/*
 * The file at `path`. 0, and a reference in *ret; -EBADMSG with "PATH:LINE: what is wrong"; the negative errno of open(2) or read(2),
 * with "PATH: its text".
 */
int skv_json_load(json_t **ret, const char *path, size_t flags, char *err, size_t err_len);

#endif
