/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/registry.h - the policy files that the daemon hands out.
 *
 * A plugin is read once, into a sealed memfd: what was probed is what clients get, whatever happens
 * to the file. Loading a name that is there replaces it for sessions opened from then on; sessions
 * that run the old file keep it until they are swapped, so a replaced file stays as long as the
 * owner says that it is in use. max_files bounds all of them together.
 *
 * Probing takes time; everything that probes answers through a callback, exactly once, most often
 * later: what fails at once calls it before it returns.
 */
#ifndef SKV_REGISTRY_H
#define SKV_REGISTRY_H

#include "daemon/plugin/probe.h"

struct skv_plugin {
	struct skv_plugin *next;
	uint32_t id; /* never used twice, also by the daemon before, never 0 */
	char name[SKV_NAME_MAX];
	char file[256]; /* where it came from, for people */
	int fd;         /* sealed, executable, read-only; owned */
	json_t *info;   /* see skv_probe_result */
	bool current;   /* what its name means now; else replaced */
	uint32_t scan;  /* the scan that found it, 0: loaded by hand */
};

struct skv_registry;

struct skv_registry_ops {
	bool (*in_use)(void *ctx, uint32_t plugin); /* has a session a plugin still that was replaced? */
	uint32_t (*next_id)(void *ctx);
};
/* `program`: the daemon's own (skv_probe_find()). ops and ctx must outlive the registry. -ENOMEM. */
int skv_registry_new(struct skv_loop *, const char *program, const struct skv_registry_ops *, void *ctx, struct skv_registry **ret);
void skv_registry_set_limits(struct skv_registry *, uint32_t max_files, uint64_t probe_timeout_ns);
/* After skv_loop_drain(). NULL is fine; returns NULL. */
struct skv_loop *skv_registry_loop(const struct skv_registry *);
struct skv_registry *skv_registry_free(struct skv_registry *);

/* error: 0, or a positive errno with a text; plugin: NULL then. */
typedef void (*skv_registry_fn)(void *ctx, int error, const char *text, const struct skv_plugin *plugin);

/* Load the plugin in `fd` (borrowed until the call returns), a sealed memfd; `file` is what people call it. */
void skv_registry_load(struct skv_registry *, int fd, const char *file, skv_registry_fn done, void *ctx);
/* Would this plugin run in these cases? */
void skv_registry_try(struct skv_registry *, const struct skv_plugin *, const struct skv_probe_case *,
                      uint32_t n, skv_registry_fn done, void *ctx);
/*
 * The same of a copy of a regular file, for number `scan` of a scan of the directories (scan.h): of two files of one
 * scan with the same policy the second is refused with EEXIST. An immediate failure is a positive errno with a text,
 * and no callback.
 */
int skv_registry_start_file(struct skv_registry *, int fd, const char *file, uint32_t scan,
                            skv_registry_fn done, void *ctx, char *text, size_t len);

/* Release replaced files that no session uses. Invalidates pointers to plugins. */
void skv_registry_collect(struct skv_registry *);

/* The current one of this name; any by its id. NULL when there is none. */
const struct skv_plugin *skv_registry_find(const struct skv_registry *, const char *name);
const struct skv_plugin *skv_registry_by_id(const struct skv_registry *, uint32_t id);
const struct skv_plugin *skv_registry_first(const struct skv_registry *);
/* Memory of all files, replaced ones too. */
uint64_t skv_registry_bytes(const struct skv_registry *);
/* "delta, full, streaming": the current ones, for error texts. */
void skv_registry_names(const struct skv_registry *, char *to, size_t len);

#endif
