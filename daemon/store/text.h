/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/text.h - what went wrong, in one line.
 *
 * A text is written by the part that knows the cause, and by no other. It is printable whatever a server said, and has
 * no secret.
 */
#ifndef SKV_STORE_TEXT_H
#define SKV_STORE_TEXT_H

#define SKV_STORE_TEXT 256u /* bytes of a text, NUL included */

/* The text, and `error` again, which the caller returns. What is not printable ASCII becomes '?'. */
__attribute__((format(printf, 3, 4)))
int skv_store_refuse(char why[SKV_STORE_TEXT], int error, const char *format, ...);

#endif
