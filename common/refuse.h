/* SPDX-License-Identifier: Apache-2.0 */
/* common/refuse.h - formats the text of an error. */
#ifndef SKV_REFUSE_H
#define SKV_REFUSE_H

#include <stddef.h>

/*
 * Formats a text into err (truncated to err_len bytes) and returns `error`. Since error texts quote what users and
 * plugins wrote, and reach terminals, logs and JSON, every character that is not printable ASCII is replaced by '?'.
 */
__attribute__((format(printf, 4, 5)))
int skv_refuse(int error, char *err, size_t err_len, const char *format, ...);

#endif
