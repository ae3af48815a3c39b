/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/folder.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *fx_folder(void)
{
	const char *base = getenv("TMPDIR");
	char *path;

	ck_assert_int_gt(asprintf(&path, "%s/skv-test-XXXXXX", base && *base ? base : "/tmp"), 0);
	ck_assert_ptr_nonnull(mkdtemp(path));
	return path;
}

void fx_remove(char *folder)
{
	DIR *d = opendir(folder);

	for (const struct dirent *e; d && (e = readdir(d));)
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(folder);
	free(folder);
}

const char *fx_path(const char *folder, const char *name)
{
	static char path[4][512];
	static unsigned next;
	char *p = path[next++ % 4];

	snprintf(p, sizeof(path[0]), "%s/%s", folder, name);
	return p;
}

void fx_write(const char *path, const void *bytes, size_t n)
{
	FILE *f = fopen(path, "we");

	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
	ck_assert_int_eq(fclose(f), 0);
}

void fx_text(const char *path, const char *text)
{
	fx_write(path, text, strlen(text));
}

char *fx_read(const char *path, size_t *ret_n)
{
	FILE *f = fopen(path, "re");
	char *bytes = NULL;
	size_t n = 0, got;

	ck_assert_msg(f, "%s: %s", path, strerror(errno));
	do {
		bytes = realloc(bytes, n + 65537);
		ck_assert_ptr_nonnull(bytes);
		got = fread(bytes + n, 1, 65536, f);
		n += got;
	} while (got);
	fclose(f);
	bytes[n] = '\0';
	if (ret_n)
		*ret_n = n;
	return bytes;
}
