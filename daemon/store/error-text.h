/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/error-text.h - error texts of one line.
 *
 * The code that finds the cause of an error writes the text; callers only pass it on. A text is printable ASCII,
 * whatever a server has sent, and never contains a secret.
 */
#ifndef SKV_STORE_ERROR_TEXT_H
#define SKV_STORE_ERROR_TEXT_H

#define SKV_STORE_TEXT 256u /* bytes of a text, including NUL */

/* Writes a text like snprintf() and returns `error`. Characters other than printable ASCII become '?'. */
__attribute__((format(printf, 3, 4)))
int skv_store_refuse(char why[SKV_STORE_TEXT], int error, const char *format, ...);

#endif
