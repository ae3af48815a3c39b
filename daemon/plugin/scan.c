/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/scan.c - policy directories.
 *
 * One file is probed at a time. A file counts as the one it was while device, inode, size and time of
 * change are the same; so a reload loads what was installed meanwhile, and does not undo what the
 * operator loaded by hand.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/fd.h"
#include "daemon/plugin/scan.h"
#include "daemon/sys/log.h"

struct seen {
	char *file;
	struct stat st;
};

struct skv_scan {
	struct skv_registry *reg;
	uint32_t number;
	struct seen *seen;
	size_t n_seen;
	/* the scan under way */
	bool running;
	glob_t found;
	size_t at;
	void (*done)(void *ctx);
	void *ctx;
};

static void next(struct skv_scan *s);

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
	if (s->running)
		globfree(&s->found);
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

/* Is it as the last scan saw it? Remembers it as it is now. */
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

static void loaded(void *ctx, int error, const char *text, const struct skv_plugin *plugin)
{
	struct skv_scan *s = ctx;
	const char *file = s->found.gl_pathv[s->at++];

	if (error == EEXIST)
		skv_log(LOG_NOTICE, "%s: left out: %s", file, text);
	else if (error)
		skv_log(LOG_ERR, "%s: refused: %s", file, text);
	else
		skv_log(LOG_INFO, "%s: policy %s %s", file, plugin->name,
		        json_string_value(json_object_get(plugin->info, "version")));
	if (error == ECANCELED)
		s->at = s->found.gl_pathc;
	next(s);
}

static void next(struct skv_scan *s)
{
	while (s->at < s->found.gl_pathc) {
		const char *file = s->found.gl_pathv[s->at];
		SKV_FD_CLEANUP int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		char text[SKV_TEXT_MAX];
		struct stat st;
		int r;

		if (fd < 0 || fstat(fd, &st) < 0) {
			skv_log(LOG_ERR, "%s: %s", file, strerror(errno));
		} else if (!unchanged(s, file, &st)) {
			r = skv_registry_start_file(s->reg, fd, file, s->number, loaded, s, text,
			                            sizeof(text));
			if (r == 0)
				return;
			skv_log(LOG_ERR, "%s: refused: %s", file, text);
		}
		s->at++;
	}
	globfree(&s->found);
	s->running = false;
	s->done(s->ctx);
}

/* The pattern of a directory's plugins, its own name taken literally. */
static char *pattern_of(const char *dir, size_t len)
{
	char *to = malloc(2 * len + sizeof("/*.so")), *at = to;

	if (!to)
		return NULL;
	for (size_t i = 0; i < len; i++) {
		if (strchr("*?[\\", dir[i]))
			*at++ = '\\';
		*at++ = dir[i];
	}
	strcpy(at, "/*.so");
	return to;
}

void skv_scan_start(struct skv_scan *s, const char *path, void (*done)(void *ctx), void *ctx)
{
	int flags = 0;

	s->number++;
	s->at = 0;
	s->done = done;
	s->ctx = ctx;
	s->running = true;
	memset(&s->found, 0, sizeof(s->found));
	while (*path) {
		size_t len = strcspn(path, ":");
		char *pattern = len ? pattern_of(path, len) : NULL;
		int r = pattern ? glob(pattern, flags, NULL, &s->found) : 0;

		if (r == GLOB_NOMATCH)
			skv_log(LOG_WARNING, "%.*s: no policies (*.so) in this directory of policy-path",
			        (int)len, path);
		else if (r)
			skv_log(LOG_ERR, "%.*s: cannot be searched for policies", (int)len, path);
		if (pattern)
			flags = GLOB_APPEND;
		free(pattern);
		path += len + (path[len] == ':');
	}
	next(s);
}
