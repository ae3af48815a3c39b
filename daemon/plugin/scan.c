/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/scan.c - scans the policy directories for plugins.
 *
 * One file is probed at a time. A file counts as unchanged while its device, inode, size and time of modification are
 * the same. So a reload loads files that were installed since the last scan, and does not replace a plugin that an
 * operator has loaded.
 *
 * If the daemon has no memory or descriptors left, the scan waits and then continues where it was, so that a policy is
 * refused only for its own faults.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/fd.h"
#include "daemon/plugin/scan.h"
#include "daemon/sys/log.h"

#define RETRY_NS 100000000u

struct seen {
	char *file;
	struct stat st;
};

struct skv_scan {
	struct skv_registry *reg;
	uint32_t number;
	struct seen *seen;
	size_t n_seen;
	/* state of a scan that is running */
	bool running, starved;
	struct skv_op retry_op;
	const char *path;
	char **files;
	size_t n_files, at;
	void (*done)(void *ctx);
	void *ctx;
};

static void next(struct skv_scan *s);
static void forget_files(struct skv_scan *s);

int skv_scan_new(struct skv_registry *reg, struct skv_scan **ret)
{
	struct skv_scan *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->reg = reg;
	*ret = s;
	return 0;
}

struct skv_scan *skv_scan_free(struct skv_scan *s)
{
	if (!s)
		return NULL;
	forget_files(s);
	for (size_t i = 0; i < s->n_seen; i++)
		free(s->seen[i].file);
	free(s->seen);
	free(s);
	return NULL;
}

bool skv_scan_running(const struct skv_scan *s)
{
	return s->running;
}

/*
 * Returns whether the file is the same as in the last scan, and records its current size, time and so on for the next
 * scan.
 */
static bool unchanged(struct skv_scan *s, const char *file, const struct stat *st)
{
	struct seen *seen, *grown;
	size_t i = 0;

	while (i < s->n_seen && strcmp(s->seen[i].file, file) != 0)
		i++;
	if (i == s->n_seen) {
		grown = realloc(s->seen, (i + 1) * sizeof(*grown));
		if (!grown)
			return false;
		s->seen = grown;
		seen = &grown[i];
		*seen = (struct seen){.file = strdup(file)};
		if (!seen->file)
			return false;
		s->n_seen++;
	} else {
		seen = &s->seen[i];
		if (seen->st.st_dev == st->st_dev && seen->st.st_ino == st->st_ino && seen->st.st_size == st->st_size &&
		    seen->st.st_mtim.tv_sec == st->st_mtim.tv_sec && seen->st.st_mtim.tv_nsec == st->st_mtim.tv_nsec)
			return true;
	}
	seen->st = *st;
	return false;
}

/* Forgets that a scan has seen the file, so that the next scan tries the file again. */
static void unsee(struct skv_scan *s, const char *file)
{
	for (size_t i = 0; i < s->n_seen; i++)
		if (strcmp(s->seen[i].file, file) == 0)
			s->seen[i].st = (struct stat){0};
}

/*
 * Logs that a file is refused. The next reload tries the file again, since a fault of the disk may have been the
 * reason.
 */
static void refuse(struct skv_scan *s, const char *file, const char *text)
{
	skv_log(LOG_ERR, "policy file %s is refused: %s", file, text);
	unsee(s, file);
}

/* ---- shortages ---- */

static void search(struct skv_scan *s);

static void again(struct skv_op *op, int res)
{
	struct skv_scan *s = SKV_OP_OWNER(op, struct skv_scan, retry_op);

	if (res < 0) /* the loop is being drained, so the scan ends */
		s->at = s->n_files;
	if (res == 0 && !s->n_files)
		search(s);
	else
		next(s);
}

static void wait_for_it(struct skv_scan *s, const char *file, const char *text)
{
	if (!s->starved)
		skv_log(LOG_ERR, "policy file %s cannot be tried now; the daemon tries it again soon: %s", file, text);
	s->starved = true;
	skv_op_timer(skv_registry_loop(s->reg), &s->retry_op, RETRY_NS, again);
}

/* Waits a moment, and then tries the current file again. */
static void try_again(struct skv_scan *s, const char *text)
{
	unsee(s, s->files[s->at]);
	wait_for_it(s, s->files[s->at], text);
}

/* ---- files ---- */

static void loaded(void *ctx, int error, const char *text, const struct skv_plugin *plugin)
{
	struct skv_scan *s = ctx;
	const char *file = s->files[s->at];

	if (error != ENOSPC && skv_is_shortage(-error)) {
		try_again(s, text);
		return;
	}
	s->at++;
	s->starved = false;
	if (error == EEXIST)
		skv_log(LOG_NOTICE, "policy file %s is not loaded: %s", file, text);
	else if (error)
		refuse(s, file, text);
	else
		skv_log(LOG_INFO, "policy file %s is loaded: policy %s, version %s", file, plugin->name,
		        json_string_value(json_object_get(plugin->info, "version")));
	if (error == ECANCELED)
		s->at = s->n_files;
	next(s);
}

static void next(struct skv_scan *s)
{
	while (s->at < s->n_files) {
		const char *file = s->files[s->at];
		SKV_FD_CLEANUP int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		char text[SKV_TEXT_MAX];
		struct stat st;
		int r;

		if (fd < 0 && skv_is_shortage(-errno)) {
			try_again(s, strerror(errno));
			return;
		}
		if (fd < 0 || fstat(fd, &st) < 0) {
			skv_log(LOG_ERR, "policy file %s cannot be read: %s", file, strerror(errno));
		} else if (!unchanged(s, file, &st)) {
			r = skv_registry_start_file(s->reg, fd, file, s->number, loaded, s, text,
			                            sizeof(text));
			if (skv_is_shortage(-r))
				try_again(s, text);
			if (r == 0 || skv_is_shortage(-r))
				return;
			refuse(s, file, text);
		}
		s->at++;
	}
	forget_files(s);
	s->running = false;
	s->done(s->ctx);
}

/* ---- directories ---- */

static void forget_files(struct skv_scan *s)
{
	for (size_t i = 0; i < s->n_files; i++)
		free(s->files[i]);
	free(s->files);
	s->files = NULL;
	s->n_files = 0;
}

static int is_plugin(const struct dirent *d)
{
	const size_t n = strlen(d->d_name);

	return d->d_name[0] != '.' && n > 3 && strcmp(d->d_name + n - 3, ".so") == 0;
}

/* Appends the paths of the n files to the list of the scan. Returns 0 or -ENOMEM. */
static int add_files(struct skv_scan *s, const char *dir, struct dirent *const *found, size_t n)
{
	char **more = realloc(s->files, (s->n_files + n) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	s->files = more;
	for (size_t i = 0; i < n; i++) {
		if (asprintf(&more[s->n_files], "%s/%s", dir, found[i]->d_name) < 0)
			return -ENOMEM;
		s->n_files++;
	}
	return 0;
}

/*
 * Adds the plugin files of a directory. Returns their number, or a negative errno. The function does not use glob(3),
 * since that of glibc frees memory twice if memory is short.
 */
static int search_dir(struct skv_scan *s, const char *dir)
{
	struct dirent **found;
	int n = scandir(dir, &found, is_plugin, alphasort), r;

	if (n < 0)
		return -errno;
	r = n ? add_files(s, dir, found, (size_t)n) : 0;
	for (int i = 0; i < n; i++)
		free(found[i]);
	free(found);
	return r < 0 ? r : n;
}

/*
 * Makes the list of files of all policy directories, and begins to try them. If memory or descriptors are short, starts
 * over later.
 */
static void search(struct skv_scan *s)
{
	for (const char *path = s->path; *path; path += *path == ':') {
		const size_t len = strcspn(path, ":");
		char *dir = len ? strndup(path, len) : NULL;
		const int r = dir ? search_dir(s, dir) : len ? -ENOMEM : 1;

		free(dir);
		if (skv_is_shortage(r)) {
			forget_files(s);
			wait_for_it(s, s->path, strerror(-r));
			return;
		}
		if (r == 0 || r == -ENOENT)
			skv_log(LOG_WARNING, "%.*s: no policies (*.so) in this directory of policy-path",
			        (int)len, path);
		else if (r < 0)
			skv_log(LOG_ERR, "%.*s: cannot be searched for policies: %s", (int)len, path, strerror(-r));
		path += len;
	}
	next(s);
}

void skv_scan_start(struct skv_scan *s, const char *path, void (*done)(void *ctx), void *ctx)
{
	s->number++;
	s->at = 0;
	s->path = path;
	s->done = done;
	s->ctx = ctx;
	s->running = true;
	s->starved = false;
	search(s);
}
