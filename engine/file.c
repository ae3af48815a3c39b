/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/error.h"

int eng_file_read(const char *path, char **ret_text, size_t *ret_len, struct eng_error *err)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "re") : stdin;
	char *text = NULL;
	size_t n = 0, room = 0, got = 1;

	while (f && got) {
		if (n == room) {
			char *more = realloc(text, room = room ? 2 * room : 65536);

			if (!more)
				break;
			text = more;
		}
		got = fread(text + n, 1, room - n, f);
		n += got;
	}
	if (!f || got || ferror(f)) {
		int r = eng_fail(err, errno ? -errno : -EIO, "%.300s: %s", path,
		                 strerror(errno ? errno : EIO));

		free(text);
		if (f && f != stdin)
			fclose(f);
		return r;
	}
	if (f != stdin)
		fclose(f);
	*ret_text = text;
	*ret_len = n;
	return 0;
}
