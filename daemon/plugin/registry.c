/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/registry.c - see registry.h.
 *
 * Anything that waits for a probe keeps ids, never pointers: the file it is about may be replaced and
 * let go of meanwhile.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/fd.h"
#include "daemon/plugin/registry.h"
#include "daemon/sys/log.h"

#define FILE_MAX ((off_t)16 << 20) /* bytes of a plugin */

struct skv_registry {
	struct skv_loop *loop;
	const char *program;
	bool (*in_use)(void *ctx, uint32_t plugin);
	void *in_use_ctx;
	uint32_t max_files, last_id;
	uint64_t timeout_ns;
	struct skv_plugin *plugins; /* by id, the latest last */
};

/* A probe under way: of a file to be added (fd >= 0), or of a plugin that is there (id). */
struct job {
	struct skv_registry *reg;
	skv_registry_fn done;
	void *ctx;
	int fd;
	uint32_t id, scan;
	char file[256];
};

int skv_registry_new(struct skv_loop *loop, const char *program, bool (*in_use)(void *ctx, uint32_t plugin),
                     void *ctx, struct skv_registry **ret)
{
	struct skv_registry *reg = calloc(1, sizeof(*reg));

	if (!reg)
		return -ENOMEM;
	reg->loop = loop;
	reg->program = program;
	reg->in_use = in_use;
	reg->in_use_ctx = ctx;
	*ret = reg;
	return 0;
}

void skv_registry_set_limits(struct skv_registry *reg, uint32_t max_files, uint64_t probe_timeout_ns)
{
	reg->max_files = max_files;
	reg->timeout_ns = probe_timeout_ns;
}

static void plugin_free(struct skv_plugin *p)
{
	skv_close_fd(p->fd);
	json_decref(p->info);
	free(p);
}

struct skv_registry *skv_registry_free(struct skv_registry *reg)
{
	struct skv_plugin *p;

	if (!reg)
		return NULL;
	while ((p = reg->plugins)) {
		reg->plugins = p->next;
		plugin_free(p);
	}
	free(reg);
	return NULL;
}

/* ---- looking ---- */

const struct skv_plugin *skv_registry_find(const struct skv_registry *reg, const char *name)
{
	for (const struct skv_plugin *p = reg->plugins; p; p = p->next)
		if (p->current && !strcmp(p->name, name))
			return p;
	return NULL;
}

const struct skv_plugin *skv_registry_by_id(const struct skv_registry *reg, uint32_t id)
{
	const struct skv_plugin *p = reg->plugins;

	while (p && p->id != id)
		p = p->next;
	return p;
}

const struct skv_plugin *skv_registry_first(const struct skv_registry *reg)
{
	return reg->plugins;
}

void skv_registry_names(const struct skv_registry *reg, char *to, size_t len)
{
	size_t at = 0;

	snprintf(to, len, "none");
	for (const struct skv_plugin *p = reg->plugins; p && at < len; p = p->next)
		if (p->current)
			at += (size_t)snprintf(to + at, len - at, "%s%s", at ? ", " : "", p->name);
}

void skv_registry_collect(struct skv_registry *reg)
{
	for (struct skv_plugin **at = &reg->plugins, *p; (p = *at);) {
		if (p->current || reg->in_use(reg->in_use_ctx, p->id)) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		plugin_free(p);
	}
}

/* ---- adding ---- */

static int add(struct job *job, const json_t *info, const struct skv_plugin **ret, char *text, size_t len)
{
	struct skv_registry *reg = job->reg;
	const char *name = json_string_value(json_object_get(info, "name"));
	struct skv_plugin *p, *old, **at;
	uint32_t n = 0;

	skv_registry_collect(reg);
	old = (struct skv_plugin *)skv_registry_find(reg, name);
	if (old && job->scan && old->scan == job->scan) {
		snprintf(text, len, "policy %s is there already, from %s", name, old->file);
		return EEXIST;
	}
	for (at = &reg->plugins; *at; at = &(*at)->next)
		n++;
	if (n >= reg->max_files) {
		snprintf(text, len,
		         "there are %u policy files already (max-policies): swap the sessions that still "
		         "run replaced ones",
		         n);
		return ENOSPC;
	}
	p = calloc(1, sizeof(*p));
	if (!p) {
		snprintf(text, len, "out of memory");
		return ENOMEM;
	}
	p->id = ++reg->last_id;
	p->fd = job->fd;
	job->fd = -1;
	p->info = json_incref((json_t *)info);
	p->current = true;
	p->scan = job->scan;
	snprintf(p->name, sizeof(p->name), "%s", name);
	snprintf(p->file, sizeof(p->file), "%s", job->file);
	*at = p;
	if (old) {
		old->current = false;
		skv_registry_collect(reg);
	}
	*ret = p;
	return 0;
}

static void probed(void *ctx, const struct skv_probe_result *result)
{
	struct job *job = ctx;
	const struct skv_plugin *plugin = NULL;
	char text[SKV_TEXT_MAX] = "";
	int error = result->error;

	if (error)
		snprintf(text, sizeof(text), "%s", result->text);
	else if (job->fd >= 0)
		error = add(job, result->info, &plugin, text, sizeof(text));
	else if (!(plugin = skv_registry_by_id(job->reg, job->id))) {
		error = ESTALE;
		snprintf(text, sizeof(text), "the policy was replaced meanwhile");
	}
	skv_close_fd(job->fd);
	job->done(job->ctx, error, text, plugin);
	free(job);
}

static struct job *job_new(struct skv_registry *reg, int fd, uint32_t id, const char *file,
                           skv_registry_fn done, void *ctx)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->reg = reg;
	job->done = done;
	job->ctx = ctx;
	job->fd = fd;
	job->id = id;
	skv_wire_string(job->file, sizeof(job->file), file);
	return job;
}

/* A sealed copy of the file (borrowed) into *ret_fd. 0, or a positive errno with a text. */
static int copy(int fd, int *ret_fd, char *text, size_t len)
{
	struct stat st;
	char *data;
	off_t n = 0;
	ssize_t r = 1;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0 || st.st_size > FILE_MAX) {
		snprintf(text, len, "a plugin must be a regular file of 1 byte to %lld MiB",
		         (long long)(FILE_MAX >> 20));
		return EINVAL;
	}
	data = malloc((size_t)st.st_size);
	while (data && n < st.st_size && r > 0) {
		r = pread(fd, data + n, (size_t)(st.st_size - n), n);
		n += r > 0 ? r : 0;
	}
	if (!data || r <= 0) {
		snprintf(text, len, "it cannot be read: %s",
		         !data || r < 0 ? strerror(errno) : "it was cut short meanwhile");
		free(data);
		return EIO;
	}
	r = skv_memfd_new_sealed("sparsekv-policy", data, (size_t)n);
	free(data);
	if (r < 0) {
		snprintf(text, len, "no sealed memory for it: %s", strerror((int)-r));
		return (int)-r;
	}
	*ret_fd = (int)r;
	return 0;
}

int skv_registry_start_load(struct skv_registry *reg, int fd, const char *file, uint32_t scan,
                            skv_registry_fn done, void *ctx, char *text, size_t len)
{
	struct job *job;
	int memfd = -1, r = copy(fd, &memfd, text, len);

	if (r)
		return r;
	job = job_new(reg, memfd, 0, file, done, ctx);
	if (job) {
		job->scan = scan;
		r = skv_probe_start(reg->loop, reg->program, memfd, NULL, 0, reg->timeout_ns, probed, job);
		if (r == 0)
			return 0;
	} else {
		r = -ENOMEM;
	}
	snprintf(text, len, "the probe cannot be started: %s", strerror(-r));
	skv_close_fd(memfd);
	free(job);
	return -r;
}

void skv_registry_load(struct skv_registry *reg, int fd, const char *file, skv_registry_fn done, void *ctx)
{
	char text[SKV_TEXT_MAX];
	int r = skv_registry_start_load(reg, fd, file, 0, done, ctx, text, sizeof(text));

	if (r)
		done(ctx, r, text, NULL);
}

void skv_registry_try(struct skv_registry *reg, const struct skv_plugin *plugin,
                      const struct skv_probe_case *cases, uint32_t n, skv_registry_fn done, void *ctx)
{
	struct job *job = job_new(reg, -1, plugin->id, plugin->file, done, ctx);
	int r = -ENOMEM;

	if (job)
		r = skv_probe_start(reg->loop, reg->program, plugin->fd, cases, n, reg->timeout_ns, probed,
		                    job);
	if (r < 0) {
		free(job);
		done(ctx, -r, "the probe cannot be started", NULL);
	}
}

