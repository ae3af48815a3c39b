/* SPDX-License-Identifier: Apache-2.0 */
/* engine/file.h - a file as a whole. */
#ifndef ENG_FILE_H
#define ENG_FILE_H

#include <stddef.h>

struct eng_error;

/* The bytes of a file, - being stdin; to be freed. */
int eng_file_read(const char *path, char **ret_text, size_t *ret_len, struct eng_error *err);

#endif
