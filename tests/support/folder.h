/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/folder.h - a test's folder, and files in it. */
#ifndef SKV_TEST_FOLDER_H
#define SKV_TEST_FOLDER_H

#include <stddef.h>

/* A fresh folder under $TMPDIR or /tmp; fx_remove() removes it with the files in it. */
char *fx_folder(void);
void fx_remove(char *folder);

/* Path of a file in a folder; a static buffer, good until the fourth next call. */
const char *fx_path(const char *folder, const char *name);
void fx_write(const char *path, const void *bytes, size_t n);
void fx_text(const char *path, const char *text);
/* The whole file, NUL-terminated besides; to be freed. */
char *fx_read(const char *path, size_t *ret_n);

#endif
