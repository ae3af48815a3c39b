/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/restart/life.h - the core as a whole: created, reconfigured, committed, checked, ended, and resumed by
 * the next process.
 */
#ifndef SKV_CORE_LIFE_H
#define SKV_CORE_LIFE_H

#include "daemon/core/core.h"

/*
 * Creates a core with an empty state. `mem` is host memory (daemon/mem/mem.h), borrowed. -EINVAL if a table size is 0
 * or above SKV_CORE_MAX_ROWS, or if pool_bytes is less than one segment.
 */
int skv_core_new(const struct skv_core_config *, const struct skv_mem_ops *mem, struct skv_core **ret);
/* Frees the core. Drops all clients and sequences first, unless the core was given up. Accepts NULL; returns NULL. */
struct skv_core *skv_core_free(struct skv_core *);
/*
 * Changes limits and quotas on reload. Table sizes and segment_bytes keep their old values, and pool_bytes stays within
 * four times its value at creation; returns false if the new configuration asks for anything else. Memory that is
 * already in use beyond a lowered limit stays in use.
 */
bool skv_core_reconfigure(struct skv_core *, const struct skv_core_config *);

/*
 * Adds a device (number as in skv_model) with the memory `mem`, borrowed. If the device exists already, changes its
 * limits, except segment_bytes and most_bytes, which keep their values.
 */
void skv_core_set_device(struct skv_core *, uint32_t device, const struct skv_mem_ops *mem,
                         const struct skv_core_memory_limits *);
/*
 * Called when a device's memory is lost: drops all sequences on the device, and the sessions of fenced clients there.
 */
void skv_core_device_lost(struct skv_core *, uint32_t device);

/* fd of the control page, borrowed. Nobody can map the control page writable any more. */
int skv_core_control_fd(const struct skv_core *, uint64_t *ret_bytes);
/* fd of the state memfd, borrowed. If the next process resumes this state, it has the same memfd. */
int skv_core_state_fd(const struct skv_core *);
uint32_t skv_core_sequences(const struct skv_core *);
/* Sets a callback, for the log: called for each corrupt sequence before it is dropped. `cb` must not call the core. */
void skv_core_on_corrupt(struct skv_core *,
                         void (*cb)(void *, uid_t uid, const char *model, const char *name, const char *why),
                         void *userdata);

/*
 * Commits the changes since the last commit, so that the changes survive the death of the process. Call
 * skv_core_commit() before any client or other process can learn of the changes: if the process dies, the next one
 * finds the state as it was at the last commit (undo.h). False: the core was given up, and nobody may be told of the
 * changes.
 */
bool skv_core_commit(struct skv_core *);

/*
 * Called when the daemon cannot continue, perhaps in the middle of a change: from now on nothing is committed, and the
 * next process finds the state as of the last commit.
 */
void skv_core_give_up(struct skv_core *);

/*
 * Recounts all counts from the owner words of pages up and compares them with the state. NULL: the state balances, or
 * the core was given up. Otherwise returns a text that says what is wrong (static, overwritten by the next call). With
 * `empty` all tables must also be empty: for shutdown, after skv_core_drop_all().
 */
const char *skv_core_balance(struct skv_core *, bool empty);
void skv_core_drop_all(struct skv_core *);

/* ---- resuming the state of a previous process ---- */
/* A descriptor that the fd store has from a core whose process is gone. */
struct skv_core_found {
	const char *name;
	int fd;       /* -1: the core has taken the descriptor; else the state does not use it: it is the caller's */
	/* set if the state refers to the name; the core has removed other files of that name from the store */
	bool claimed;
};
struct skv_core_past_client {
	uint32_t client;
	uid_t uid;
	pid_t pid;
	int pidfd;
};
struct skv_core_past {
	struct skv_core_found *found; /* [n]; the core sorts the array */
	size_t n;
	struct skv_core_fdstore fdstore; /* add NULL: there is no store */
	/*
	 * Called for a device on which the state has memory in use; calls skv_core_set_device() for the device. Returns
	 * 0; 1: the device is gone, and everything in its memory is lost; negative errno: the system lacks something.
	 */
	int (*device)(void *ctx, struct skv_core *, uint32_t device);
	/*
	 * Called for each client of the state. `pidfd` is the stored descriptor of the client's process
	 * (skv_core_client_store()), owned by the callee; -1: none was stored. Negative errno.
	 */
	int (*client)(void *ctx, const struct skv_core_past_client *);
	/* Called, for the log, when the object whose descriptor has this name cannot be recovered. */
	void (*lost)(void *ctx, const char *name, const char *why);
	void *ctx;
};
/*
 * Restores the core as of its last commit: ids of clients, sessions and sequences stay valid, and pages keep their
 * owners. Table sizes are those of the state, not of the configuration. Clients are restored, too: call
 * skv_core_client_gone() for each client that does not come back. If the row or the memory of a sequence is wrong, only
 * that sequence is lost.
 * *ret_why is a static text. -ENOENT: there is no stored state. -EBADMSG: the stored file is not a state, or a state of
 * another version. -EUCLEAN: a row is damaged, or the state does not balance. If the system lacks something
 * (skv_is_shortage()), the state is unchanged and can be resumed later.
 */
int skv_core_resume(const struct skv_core_config *, const struct skv_mem_ops *, const struct skv_core_past *,
                    struct skv_core **ret, const char **ret_why);
/*
 * Frees the core, but leaves the state and everything that the state refers to as of the last commit, for the process
 * that gets the descriptors. Returns NULL.
 */
struct skv_core *skv_core_abandon(struct skv_core *);

#endif
