/* SPDX-License-Identifier: Apache-2.0 */
/* engine/file.h - reads a whole file. */
#ifndef ENG_FILE_H
#define ENG_FILE_H

#include <stddef.h>

struct eng_error;

/* Reads all bytes of the file at `path`, or of stdin if the path is "-". The caller frees *ret_text. */
int eng_file_read(const char *path, char **ret_text, size_t *ret_len, struct eng_error *err);

#endif
