/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/json.h - JSON as text. */
#ifndef SKV_SYS_JSON_H
#define SKV_SYS_JSON_H

#include <jansson.h>

/* json_dumps(), which (jansson 2.14) leaves out a key where it has no memory to write it, and goes on. NULL of NULL, or for want of memory. */
char *skv_json_text(const json_t *, size_t flags);

#endif
