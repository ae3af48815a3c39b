/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/text.h - error texts of one line.
 *
 * A text is written only by the code that knows the cause. It is printable whatever a server sent, and never contains a
 * secret.
 */
#ifndef SKV_STORE_TEXT_H
#define SKV_STORE_TEXT_H

#define SKV_STORE_TEXT 256u /* bytes of a text, including NUL */

/* Writes the text and returns `error`. Characters other than printable ASCII become '?'. */
__attribute__((format(printf, 3, 4)))
int skv_store_refuse(char why[SKV_STORE_TEXT], int error, const char *format, ...);

#endif
