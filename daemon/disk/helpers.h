/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/helpers.h - threads of a disk worker that verify and copy pages while the main thread waits for the disk.
 *
 * Tasks start in order and finish in any order. They share the data that their owner passes, and do not send answers to
 * the daemon.
 */
#ifndef SKV_DISK_HELPERS_H
#define SKV_DISK_HELPERS_H

#include "daemon/disk/work.h"

/* Embedded in the data of the task; must stay valid until skv_disk_helpers_wait() has returned. */
struct skv_disk_task {
	void (*run)(struct skv_disk_task *);
	/* private to the helpers */
	struct skv_disk_task *next;
	bool done;
};

struct skv_disk_helpers;

/*
 * Starts one thread per processor, at most MAX_HELPERS. Fewer are accepted if the system refuses more; none is an
 * error.
 */
int skv_disk_helpers_new(struct skv_disk_work *, struct skv_disk_helpers **ret);
/* All tasks must have been waited for. NULL is allowed. */
void skv_disk_helpers_free(struct skv_disk_helpers *);
void skv_disk_helpers_give(struct skv_disk_helpers *, struct skv_disk_task *);
void skv_disk_helpers_wait(struct skv_disk_helpers *, const struct skv_disk_task *);

#endif
