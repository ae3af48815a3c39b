/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/folder.h - a test's temporary folder, and files in it. */
#ifndef SKV_TEST_FOLDER_H
#define SKV_TEST_FOLDER_H

#include <stddef.h>

/* Makes a folder under $TMPDIR or /tmp; fx_remove() removes it with its files. */
char *fx_folder(void);
void fx_remove(char *folder);

/* Returns the path of a file in a folder; the static buffer is valid until the fourth next call. */
const char *fx_path(const char *folder, const char *name);
void fx_write(const char *path, const void *bytes, size_t n);
void fx_text(const char *path, const char *text);
/* Reads the whole file and appends a NUL byte; the caller frees it. */
char *fx_read(const char *path, size_t *ret_n);

#endif
