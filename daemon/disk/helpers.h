/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/helpers.h - threads of a disk worker that verify and copy pages while the main thread waits for the disk.
 *
 * Tasks start in the order in which they are given, and finish in any order. A task must not send answers to the
 * daemon: only the main thread does.
 */
#ifndef SKV_DISK_HELPERS_H
#define SKV_DISK_HELPERS_H

#include "daemon/disk/run-job.h"

/* A task, embedded in the struct with its data; must stay valid until skv_disk_helpers_wait() for it has returned. */
struct skv_disk_task {
	void (*run)(struct skv_disk_task *);
	/* private to the helpers */
	struct skv_disk_task *next;
	bool done;
};

struct skv_disk_helpers;

/*
 * Starts one thread per processor, at most MAX_HELPERS. If the system refuses a thread, the threads started before have
 * to do; if it refuses the first, this is an error.
 */
int skv_disk_helpers_new(struct skv_disk_work *, struct skv_disk_helpers **ret);
/* Ends the threads. The caller must have waited for all tasks. NULL is allowed. */
void skv_disk_helpers_free(struct skv_disk_helpers *);
void skv_disk_helpers_give(struct skv_disk_helpers *, struct skv_disk_task *);
void skv_disk_helpers_wait(struct skv_disk_helpers *, const struct skv_disk_task *);

#endif
