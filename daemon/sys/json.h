/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/json.h - writes JSON as text. */
#ifndef SKV_SYS_JSON_H
#define SKV_SYS_JSON_H

#include <jansson.h>

/*
 * Returns a JSON value as text, which the caller frees; NULL if the value is NULL or there is no memory. Replaces
 * json_dumps() of jansson 2.14, which silently leaves out a key if there is no memory to write it.
 */
char *skv_json_text(const json_t *, size_t flags);

#endif
