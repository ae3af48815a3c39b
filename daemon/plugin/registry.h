/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/registry.h - the registry of policy plugins, whose files the daemon sends to clients.
 *
 * A plugin's file is read once, into a sealed memfd, so clients get exactly the bytes that were probed, whatever
 * happens to the file. Loading a policy whose name is known replaces the plugin for sessions that are opened from then
 * on. Sessions that run the old plugin keep it until an operator swaps their policy, so a replaced plugin stays as long
 * as in_use() reports that a session uses it. max_files limits the number of plugins, including replaced ones.
 *
 * Probing takes time, so each function that probes reports its result through a callback. The callback is called
 * exactly once: later, or before the function returns if the probe could not be started.
 */
#ifndef SKV_REGISTRY_H
#define SKV_REGISTRY_H

#include "daemon/plugin/probe.h"

struct skv_plugin {
	struct skv_plugin *next;
	uint32_t id; /* never 0; no other plugin ever gets the same id, not even after a restart of the daemon */
	char name[SKV_NAME_MAX];
	char file[256]; /* name of the plugin's file, for messages */
	int fd;         /* sealed memfd with the plugin's file, marked as executable; owned */
	json_t *info;   /* description of the policy, see struct skv_probe_result */
	bool current;   /* the plugin is the one of its name; false: it has been replaced */
	uint32_t scan;  /* number of the directory scan that found the file; 0: an operator loaded it */
};

struct skv_registry;

struct skv_registry_ops {
	bool (*in_use)(void *ctx, uint32_t plugin); /* returns whether a session still uses this replaced plugin */
	uint32_t (*next_id)(void *ctx);
};
/*
 * Makes a registry. `program`: path of the program sparsekvd (skv_child_find()). ops and ctx must outlive the registry.
 * Returns 0 or -ENOMEM.
 */
int skv_registry_new(struct skv_loop *, const char *program, const struct skv_registry_ops *, void *ctx, struct skv_registry **ret);
void skv_registry_set_limits(struct skv_registry *, uint32_t max_files, uint64_t probe_timeout_ns);
struct skv_loop *skv_registry_loop(const struct skv_registry *);
/* Frees a registry, after skv_loop_drain(). Accepts NULL; returns NULL. */
struct skv_registry *skv_registry_free(struct skv_registry *);

/*
 * Callback with the result of a probe. `error`: 0, or a positive errno with a text; `plugin` is NULL if there is an
 * error.
 */
typedef void (*skv_registry_fn)(void *ctx, int error, const char *text, const struct skv_plugin *plugin);

/*
 * Probes the plugin in `fd`, a sealed memfd (borrowed until the call returns), and adds it to the registry. `file`:
 * name of the plugin's file in messages.
 */
void skv_registry_load(struct skv_registry *, int fd, const char *file, skv_registry_fn done, void *ctx);
/* Probes a plugin of the registry with these n cases of model and spec. */
void skv_registry_try(struct skv_registry *, const struct skv_plugin *, const struct skv_probe_case *,
                      uint32_t n, skv_registry_fn done, void *ctx);
/*
 * Copies a regular file, probes the copy and adds it to the registry, for scan number `scan` of the policy directories
 * (scan.h). If a scan finds two files with the same policy, the second file is refused with EEXIST. Returns 0 if `done`
 * will be called; or a positive errno with a text, and then `done` is not called.
 */
int skv_registry_start_file(struct skv_registry *, int fd, const char *file, uint32_t scan,
                            skv_registry_fn done, void *ctx, char *text, size_t len);

/* Frees replaced plugins that no session uses. Pointers to plugins are invalid after the call. */
void skv_registry_collect(struct skv_registry *);

/*
 * Return the current plugin of this name, the plugin with this id (current or replaced), and the first plugin of the
 * list of all. NULL: there is none.
 */
const struct skv_plugin *skv_registry_find(const struct skv_registry *, const char *name);
const struct skv_plugin *skv_registry_by_id(const struct skv_registry *, uint32_t id);
const struct skv_plugin *skv_registry_first(const struct skv_registry *);
/* Returns the bytes of memory of all plugins' files, including those of replaced plugins. */
uint64_t skv_registry_bytes(const struct skv_registry *);
/* Writes the names of the current plugins, such as "delta, full, streaming", for error texts. */
void skv_registry_names(const struct skv_registry *, char *to, size_t len);

#endif
