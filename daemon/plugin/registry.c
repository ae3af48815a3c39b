/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/registry.c - see registry.h.
 *
 * A probe that is in progress identifies a plugin of the registry by its id instead of a pointer, since the plugin may
 * be replaced and freed meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/fd.h"
#include "daemon/plugin/registry.h"
#include "daemon/sys/child.h"
#include "daemon/sys/log.h"

struct skv_registry {
	struct skv_loop *loop;
	char *probe; /* path of the program sparsekv-probe */
	const struct skv_registry_ops *ops;
	void *ctx;
	uint32_t max_files;
	uint64_t timeout_ns;
	bool warned; /* the warning that the kernel lacks features of the sandbox was logged */
	struct skv_plugin *plugins; /* list of plugins in the order of their ids */
};

/* A probe that is in progress: of a new plugin in `fd`, or (fd -1) of the plugin `id` of the registry. */
struct job {
	struct skv_registry *reg;
	skv_registry_fn done;
	void *ctx;
	int fd;
	uint32_t id, scan;
	char file[256];
};

int skv_registry_new(struct skv_loop *loop, const char *program, const struct skv_registry_ops *ops, void *ctx,
                     struct skv_registry **ret)
{
	struct skv_registry *reg = calloc(1, sizeof(*reg));

	if (!reg)
		return -ENOMEM;
	reg->loop = loop;
	reg->probe = skv_child_find(program, "sparsekv-probe");
	if (!reg->probe) {
		free(reg);
		return -ENOMEM;
	}
	reg->ops = ops;
	reg->ctx = ctx;
	*ret = reg;
	return 0;
}

struct skv_loop *skv_registry_loop(const struct skv_registry *reg)
{
	return reg->loop;
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
	free(reg->probe);
	free(reg);
	return NULL;
}

/* ---- lookup ---- */

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

uint64_t skv_registry_bytes(const struct skv_registry *reg)
{
	uint64_t bytes = 0;
	struct stat st;

	for (const struct skv_plugin *p = reg->plugins; p; p = p->next)
		bytes += fstat(p->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
	return bytes;
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
		if (p->current || reg->ops->in_use(reg->ctx, p->id)) {
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
		snprintf(text, len, "policy %s was already loaded from %s", name, old->file);
		return EEXIST;
	}
	for (at = &reg->plugins; *at; at = &(*at)->next)
		n++;
	if (n >= reg->max_files) {
		snprintf(text, len,
		         "there are %u policy files already (max-policies): swap the policies of sessions that still "
		         "run replaced files",
		         n);
		return ENOSPC;
	}
	p = calloc(1, sizeof(*p));
	if (!p) {
		snprintf(text, len, "the daemon is out of memory");
		return ENOMEM;
	}
	p->id = reg->ops->next_id(reg->ctx);
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

static void warn_of_sandbox(struct skv_registry *reg, const json_t *info)
{
	const char *lacks = json_string_value(json_object_get(info, "sandbox_lacks"));

	if (reg->warned || !lacks || !*lacks)
		return;
	reg->warned = true;
	skv_log(LOG_WARNING,
	        "plugins are tried in an incomplete sandbox, since this kernel lacks %s; load only what you trust",
	        lacks);
}

static void probed(void *ctx, const struct skv_probe_result *result)
{
	struct job *job = ctx;
	const struct skv_plugin *plugin = NULL;
	char text[SKV_TEXT_MAX] = "";
	int error = result->error;

	warn_of_sandbox(job->reg, result->info);
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

/*
 * Begins to probe a new plugin in `memfd` (consumed). Returns 0 if done() will be called; or a positive errno with a
 * text.
 */
static int begin(struct skv_registry *reg, int memfd, const char *file, uint32_t scan, skv_registry_fn done, void *ctx,
                 char *text, size_t len)
{
	struct job *job = job_new(reg, memfd, 0, file, done, ctx);
	int r = -ENOMEM;

	if (job) {
		job->scan = scan;
		r = skv_probe_start(reg->loop, reg->probe, memfd, NULL, 0, reg->timeout_ns, probed, job);
		if (r == 0)
			return 0;
	}
	snprintf(text, len, "the probe cannot be started: %s", strerror(-r));
	skv_close_fd(memfd);
	free(job);
	return -r;
}

int skv_registry_start_file(struct skv_registry *reg, int fd, const char *file, uint32_t scan, skv_registry_fn done,
                            void *ctx, char *text, size_t len)
{
	int memfd = skv_memfd_copy_sealed("sparsekv-policy", fd, SKV_PLUGIN_BYTES_MAX);

	if (memfd >= 0)
		return begin(reg, memfd, file, scan, done, ctx, text, len);
	if (memfd == -EINVAL)
		snprintf(text, len, "a plugin must be a regular file of 1 byte to %u MiB", SKV_PLUGIN_BYTES_MAX >> 20);
	else
		snprintf(text, len, "the plugin cannot be copied: %s", strerror(-memfd));
	return -memfd;
}

void skv_registry_load(struct skv_registry *reg, int fd, const char *file, skv_registry_fn done, void *ctx)
{
	char text[SKV_TEXT_MAX];
	int memfd, r = EINVAL;
	struct stat st;

	/* a file that is not a sealed memfd could block the daemon, or change after the probe */
	if (!skv_fd_is_sealed(fd) || fstat(fd, &st) < 0 || st.st_size <= 0 || st.st_size > SKV_PLUGIN_BYTES_MAX) {
		snprintf(text, sizeof(text), "expected a plugin as a sealed memfd of 1 byte to %u MiB",
		         SKV_PLUGIN_BYTES_MAX >> 20);
	} else {
		memfd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		r = memfd < 0 ? errno : begin(reg, memfd, file, 0, done, ctx, text, sizeof(text));
		if (memfd < 0)
			snprintf(text, sizeof(text), "the descriptor of the plugin cannot be duplicated: %s",
			         strerror(r));
	}
	if (r)
		done(ctx, r, text, NULL);
}

void skv_registry_try(struct skv_registry *reg, const struct skv_plugin *plugin,
                      const struct skv_probe_case *cases, uint32_t n, skv_registry_fn done, void *ctx)
{
	struct job *job = job_new(reg, -1, plugin->id, plugin->file, done, ctx);
	int r = -ENOMEM;

	if (job)
		r = skv_probe_start(reg->loop, reg->probe, plugin->fd, cases, n, reg->timeout_ns, probed,
		                    job);
	if (r < 0) {
		free(job);
		done(ctx, -r, "the probe cannot be started", NULL);
	}
}

