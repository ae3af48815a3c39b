/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/registry.h - the policy files that the daemon hands out.
 *
 * A plugin is read once, into a sealed memfd: clients get exactly what was probed, whatever happens to the file.
 * Loading a policy under a known name replaces it for sessions opened from then on. Sessions that run the old file
 * keep it until they are swapped, so a replaced file stays as long as the owner reports it in use. max_files limits
 * all files together.
 *
 * Probing takes time: each function that probes answers through a callback, exactly once, usually later; an immediate
 * failure calls it before the function returns.
 */
#ifndef SKV_REGISTRY_H
#define SKV_REGISTRY_H

#include "daemon/plugin/probe.h"

struct skv_plugin {
	struct skv_plugin *next;
	uint32_t id; /* never 0, never reused, not even after a restart of the daemon */
	char name[SKV_NAME_MAX];
	char file[256]; /* where it came from, for messages */
	int fd;         /* sealed, executable, read-only; owned */
	json_t *info;   /* see skv_probe_result */
	bool current;   /* its name refers to this file; else it has been replaced */
	uint32_t scan;  /* the scan that found it; 0: loaded by an operator */
};

struct skv_registry;

struct skv_registry_ops {
	bool (*in_use)(void *ctx, uint32_t plugin); /* does a session still use this replaced plugin? */
	uint32_t (*next_id)(void *ctx);
};
/* `program`: path of the daemon itself (skv_child_find()). ops and ctx must outlive the registry. -ENOMEM. */
int skv_registry_new(struct skv_loop *, const char *program, const struct skv_registry_ops *, void *ctx, struct skv_registry **ret);
void skv_registry_set_limits(struct skv_registry *, uint32_t max_files, uint64_t probe_timeout_ns);
struct skv_loop *skv_registry_loop(const struct skv_registry *);
/* After skv_loop_drain(). NULL is fine; returns NULL. */
struct skv_registry *skv_registry_free(struct skv_registry *);

/* error: 0, or a positive errno with a text; then plugin is NULL. */
typedef void (*skv_registry_fn)(void *ctx, int error, const char *text, const struct skv_plugin *plugin);

/* Loads the plugin in `fd` (borrowed until the call returns), a sealed memfd; `file` is its name in messages. */
void skv_registry_load(struct skv_registry *, int fd, const char *file, skv_registry_fn done, void *ctx);
/* Tries this plugin in these cases. */
void skv_registry_try(struct skv_registry *, const struct skv_plugin *, const struct skv_probe_case *,
                      uint32_t n, skv_registry_fn done, void *ctx);
/*
 * Loads a copy of a regular file, for scan number `scan` of the directories (scan.h). If a scan finds two files with
 * the same policy, the second is refused with EEXIST. An immediate failure returns a positive errno with a text and
 * calls no callback.
 */
int skv_registry_start_file(struct skv_registry *, int fd, const char *file, uint32_t scan,
                            skv_registry_fn done, void *ctx, char *text, size_t len);

/* Frees replaced files that no session uses. Invalidates pointers to plugins. */
void skv_registry_collect(struct skv_registry *);

/* The current plugin of this name; any by its id; the first of all. NULL: none. */
const struct skv_plugin *skv_registry_find(const struct skv_registry *, const char *name);
const struct skv_plugin *skv_registry_by_id(const struct skv_registry *, uint32_t id);
const struct skv_plugin *skv_registry_first(const struct skv_registry *);
/* Memory of all files, including replaced ones. */
uint64_t skv_registry_bytes(const struct skv_registry *);
/* "delta, full, streaming": names of the current plugins, for error texts. */
void skv_registry_names(const struct skv_registry *, char *to, size_t len);

#endif
