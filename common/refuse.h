/* SPDX-License-Identifier: Apache-2.0 */
/* common/refuse.h - errors that come with a text. */
#ifndef SKV_REFUSE_H
#define SKV_REFUSE_H

#include <stddef.h>

/*
 * Write a text into err (cut to err_len) and return `error`. Texts quote users and plugins and reach terminals, logs
 * and JSON: what is not printable ASCII becomes '?'.
 */
__attribute__((format(printf, 4, 5)))
int skv_refuse(int error, char *err, size_t err_len, const char *format, ...);

#endif
