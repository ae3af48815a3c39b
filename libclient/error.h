/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/error.h - sets the text of the thread's last error, which skv_last_error() returns. */
#ifndef SKV_CLIENT_ERROR_H
#define SKV_CLIENT_ERROR_H

/* Set the thread's last error to the text, and return `error`, a negative errno. */
int error_set(int error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
