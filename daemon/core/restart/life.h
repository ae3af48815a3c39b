/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/restart/life.h - the core as a whole: made, changed, resumed by the next process, checked, ended. */
#ifndef SKV_CORE_LIFE_H
#define SKV_CORE_LIFE_H

#include "daemon/core/core.h"

/*
 * Creates a core. `mem` is host memory (daemon/mem/mem.h), borrowed. -EINVAL if a table size is 0 or above
 * SKV_CORE_MAX_ROWS, or if the pool does not hold one segment.
 */
int skv_core_new(const struct skv_core_config *, const struct skv_mem_ops *mem, struct skv_core **ret);
/* Frees the core. Drops everything unless the core was given up. NULL is fine; returns NULL. */
struct skv_core *skv_core_free(struct skv_core *);
/*
 * Changes limits and quotas on reload. Table sizes and segment_bytes keep their old values, and pool_bytes stays within
 * four times its value at creation; returns false if the new configuration asks for more. What is already in use beyond
 * a lowered limit stays.
 */
bool skv_core_reconfigure(struct skv_core *, const struct skv_core_config *);

/*
 * Adds a device (number as in skv_model) with the memory `mem`, borrowed. For a device that exists, changes its limits;
 * segment_bytes and most_bytes then keep their values.
 */
void skv_core_set_device(struct skv_core *, uint32_t device, const struct skv_mem_ops *mem,
                         const struct skv_core_memory_limits *);
/* The device's memory is lost: drops all sequences there, and what fenced clients have there. */
void skv_core_device_lost(struct skv_core *, uint32_t device);

/* The control page: borrowed. It can no longer be mapped writable. */
int skv_core_control_fd(const struct skv_core *, uint64_t *ret_bytes);
/* The state's file: borrowed. The next process has the same one if it has the memory that the state refers to. */
int skv_core_state_fd(const struct skv_core *);
uint32_t skv_core_sequences(const struct skv_core *);
/* Calls `cb` for a sequence found corrupt, before it is dropped; for the log. `cb` must not call into the core. */
void skv_core_on_corrupt(struct skv_core *,
                         void (*cb)(void *, uid_t uid, const char *model, const char *name, const char *why),
                         void *userdata);

/*
 * Commits the changes since the last commit, so that they survive the death of the process: call it before anything
 * outside can learn of them. If the process dies, the state is as it was at the last commit (undo.h). False: the core
 * was given up, and nothing may be told.
 */
bool skv_core_commit(struct skv_core *);

/*
 * The daemon cannot continue, perhaps in the middle of a change: nothing is committed any more, and the next process
 * finds the state as of the last commit.
 */
void skv_core_give_up(struct skv_core *);

/*
 * Recounts everything from the page owners up and compares it with the state, unless the core was given up. NULL if the
 * state balances, else a text that says what is wrong (static, overwritten by the next call). With `empty` everything
 * must also be zero: for shutdown, after skv_core_drop_all().
 */
const char *skv_core_balance(struct skv_core *, bool empty);
void skv_core_drop_all(struct skv_core *);

/* ---- resuming the state of a previous process ---- */
/* What a store has of a core whose process is gone. */
struct skv_core_found {
	const char *name;
	int fd;       /* -1: taken by the core. Else left to the caller: the state does not refer to this file */
	/* the state refers to the name, and the core has made sure that the store has no other file of that name */
	bool claimed;
};
struct skv_core_past_client {
	uint32_t client;
	uid_t uid;
	pid_t pid;
	int pidfd;
};
struct skv_core_past {
	struct skv_core_found *found; /* the core sorts it */
	size_t n;
	struct skv_core_fdstore fdstore; /* add NULL: there is no store */
	/*
	 * Makes a device with memory in use known (skv_core_set_device()). 1: the device is gone, and everything in its
	 * memory is lost. Negative errno: a shortage.
	 */
	int (*device)(void *ctx, struct skv_core *, uint32_t device);
	/*
	 * Called for each client: how it was added, and the stored descriptor of its process (skv_core_client_store()),
	 * owned by the callee, or -1. Negative errno.
	 */
	int (*client)(void *ctx, const struct skv_core_past_client *);
	/* Something of this name cannot be recovered; for the log. */
	void (*lost)(void *ctx, const char *name, const char *why);
	void *ctx;
};
/*
 * Restores the core as of its last commit: ids of clients, sessions and sequences stay valid, and pages keep their
 * owners. Sizes are those of the state. Clients are restored, too: call skv_core_client_gone() for each that does not
 * come back. If a sequence's row or memory is wrong, only that sequence is lost.
 * *ret_why is a static text. -ENOENT: there is no state. -EBADMSG: it is not a state, or of another version. -EUCLEAN:
 * a row is damaged, or the state does not balance. If the system lacks something (skv_is_shortage()), the state is
 * unchanged and can be resumed later.
 */
int skv_core_resume(const struct skv_core_config *, const struct skv_mem_ops *, const struct skv_core_past *,
                    struct skv_core **ret, const char **ret_why);
/*
 * Frees the core but leaves the state, and everything that it refers to, as of the last commit, for the process that
 * gets the descriptors. Returns NULL.
 */
struct skv_core *skv_core_abandon(struct skv_core *);

#endif
