/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/json.h - JSON as text. */
#ifndef SKV_SYS_JSON_H
#define SKV_SYS_JSON_H

#include <jansson.h>

/*
 * As json_dumps(), which (jansson 2.14) silently omits a key if it lacks memory to write it. NULL if the value is
 * NULL, or for lack of memory.
 */
char *skv_json_text(const json_t *, size_t flags);

#endif
