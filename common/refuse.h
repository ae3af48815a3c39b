/* SPDX-License-Identifier: Apache-2.0 */
/* common/refuse.h - errors with a text. */
#ifndef SKV_REFUSE_H
#define SKV_REFUSE_H

#include <stddef.h>

/*
 * Writes a text into err (truncated to err_len) and returns `error`. Texts quote users and plugins and reach terminals,
 * logs and JSON, so characters other than printable ASCII become '?'.
 */
__attribute__((format(printf, 4, 5)))
int skv_refuse(int error, char *err, size_t err_len, const char *format, ...);

#endif
