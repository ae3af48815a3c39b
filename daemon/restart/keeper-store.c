/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/restart/keeper-store.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/fd.h"

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */
#define NAME_MOST 255u
/*
 * Bytes for names in the environment variable: the kernel's MAX_ARG_STRLEN, with pages of 4 KiB, less the variable's
 * own name.
 */
#define NAMES_MOST (131072u - sizeof("LISTEN_FDNAMES="))

static unsigned bucket_of(const char *name)
{
	unsigned h = 2166136261u;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 16777619u;
	return h % SKV_STORED_BUCKETS;
}

static bool is_valid(const char *name)
{
	const char *c = name;

	while (*c > ' ' && *c < 0x7f && *c != ':')
		c++;
	return *c == 0 && c > name && c - name <= (ptrdiff_t)NAME_MOST;
}

/*
 * Returns whether two descriptors refer to the same file. Files that share the kernel's anonymous inode look like the
 * same file here; they differ in their stored names.
 */
static bool is_same_file(int a, int b)
{
	struct stat x, y;

	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int skv_stored_reserve(struct skv_stored *s)
{
	if (!s->spare)
		s->spare = malloc(sizeof(*s->spare) + NAME_MOST + 1);
	return s->spare ? 0 : -ENOMEM;
}

static struct skv_stored_fd *take_spare(struct skv_stored *s)
{
	struct skv_stored_fd *f = s->spare;

	s->spare = NULL;
	return f;
}

static int add(struct skv_stored *s, const char *name, int fd)
{
	struct skv_stored_fd **at = &s->bucket[bucket_of(name)], *f;
	const size_t bytes = strlen(name) + 1;

	if (!is_valid(name))
		return -EINVAL;
	for (f = *at; f; f = f->next)
		if (strcmp(f->name, name) == 0 && is_same_file(f->fd, fd))
			return 1;
	if (s->name_bytes + bytes > NAMES_MOST)
		return -E2BIG;
	f = malloc(sizeof(*f) + bytes);
	if (!f)
		f = take_spare(s);
	if (!f)
		return -ENOMEM;
	f->fd = fd;
	memcpy(f->name, name, bytes);
	f->next = *at;
	*at = f;
	s->n++;
	s->name_bytes += bytes;
	return 0;
}

int skv_stored_add(struct skv_stored *s, const char *name, int fd)
{
	int r = add(s, name, fd);

	if (r != 0)
		skv_close_fd(fd);
	return r < 0 ? r : 0;
}

static void remove_from(struct skv_stored *s, struct skv_stored_fd **at, const char *name)
{
	while (*at) {
		struct skv_stored_fd *f = *at;

		if (name && strcmp(f->name, name) != 0) {
			at = &f->next;
			continue;
		}
		*at = f->next;
		s->n--;
		s->name_bytes -= strlen(f->name) + 1;
		skv_close_fd(f->fd);
		free(f);
	}
}

void skv_stored_remove(struct skv_stored *s, const char *name)
{
	remove_from(s, &s->bucket[bucket_of(name)], name);
}

void skv_stored_clear(struct skv_stored *s)
{
	for (unsigned i = 0; i < SKV_STORED_BUCKETS; i++)
		remove_from(s, &s->bucket[i], NULL);
	free(take_spare(s));
}

static int by_number(const void *a, const void *b)
{
	const struct skv_stored_fd *const *x = a, *const *y = b;

	return (*x)->fd - (*y)->fd;
}

int skv_stored_list(const struct skv_stored *s, int **ret_fds, char **ret_names)
{
	struct skv_stored_fd **all = calloc(s->n + 1, sizeof(struct skv_stored_fd *));
	char *names = malloc(s->name_bytes + 1), *end = names;
	int *fds = calloc(s->n + 1, sizeof(*fds));
	size_t n = 0;

	if (!all || !names || !fds) {
		free(all);
		free(names);
		free(fds);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < SKV_STORED_BUCKETS; i++)
		for (struct skv_stored_fd *f = s->bucket[i]; f; f = f->next)
			all[n++] = f;
	qsort(all, n, sizeof(struct skv_stored_fd *), by_number);
	*end = 0;
	for (size_t i = 0; i < n; i++) {
		fds[i] = all[i]->fd;
		end = stpcpy(end, all[i]->name);
		if (i + 1 < n)
			end = stpcpy(end, ":");
	}
	free(all);
	*ret_fds = fds;
	*ret_names = names;
	return 0;
}

/*
 * Since the descriptors are in ascending order, dup2() overwrites none that is still needed: fds[i] is at least
 * FIRST_FD + i.
 */
int skv_stored_pass(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const int to = FIRST_FD + (int)i;

		if ((fds[i] == to ? fcntl(to, F_SETFD, 0) : dup2(fds[i], to)) < 0)
			return -errno;
	}
	return close_range((unsigned)(FIRST_FD + n), ~0u, CLOSE_RANGE_CLOEXEC) < 0 ? -errno : 0;
}
