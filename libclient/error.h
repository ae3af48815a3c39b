/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/error.h - the thread's last error. */
#ifndef SKV_CLIENT_ERROR_H
#define SKV_CLIENT_ERROR_H

/* Set the thread's last error to the text and return `error`, a negative errno. */
int error_set(int error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
