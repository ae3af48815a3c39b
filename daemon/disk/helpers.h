/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/helpers.h - threads of a disk worker that check and copy, while the worker's own waits for the disk.
 *
 * Tasks are begun in order, and end in any. They share what their owner gives them, and say nothing to the daemon.
 */
#ifndef SKV_DISK_HELPERS_H
#define SKV_DISK_HELPERS_H

#include "daemon/disk/work.h"

/* In what it works on, which stays until the task was waited for. */
struct skv_disk_task {
	void (*run)(struct skv_disk_task *);
	/* the helpers' own */
	struct skv_disk_task *next;
	bool done;
};

struct skv_disk_helpers;

/* As many as there are processors, up to a few; or as the system allows, but for none. */
int skv_disk_helpers_new(struct skv_disk_work *, struct skv_disk_helpers **ret);
/* Every task was waited for. NULL is fine. */
void skv_disk_helpers_free(struct skv_disk_helpers *);
void skv_disk_helpers_give(struct skv_disk_helpers *, struct skv_disk_task *);
void skv_disk_helpers_wait(struct skv_disk_helpers *, const struct skv_disk_task *);

#endif
