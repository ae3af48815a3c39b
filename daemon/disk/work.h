/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/work.h - the jobs of a disk worker, in the process that calls them: job.h says what they are.
 *
 * Each returns 0, or negative errno with a text in `why`. Nothing of a job is left when it returns: the file is under its name
 * or is gone, staging buffers are freed. The descriptors are the caller's.
 */
#ifndef SKV_DISK_WORK_H
#define SKV_DISK_WORK_H

#include "common/refuse.h"
#include "daemon/disk/job.h"

struct skv_disk_work {
	const struct skv_disk_job *job;
	const int *fds; /* [job->n_fds]; that of the user's folder is there */
	/* That it goes on; negative: nobody listens any more, and it ends. NULL: nobody ever did. */
	int (*say)(const struct skv_disk_work *);
	uint64_t said_ns;
	uint64_t bytes; /* of the file, written or read so far */
	bool broken; /* the process is good for nothing more, whatever became of the job: a context does not recover from a fault */
	bool left; /* an error, and yet the file has its name: the daemon removes it */
	char why[SKV_DISK_TEXT_MAX];
	char file[SKV_PARKED_FILE]; /* IMPORT: what became of it */
	struct skv_parked_header header; /* PARK, IMPORT: of what was written */
	uint64_t inode, changed_ns; /* SEND: of the file */
	uint32_t n_blocks; /* STORE_FIND, STORE_GET: of the answer */
	uint32_t n_nixl; /* STORE_GET: values that NIXL has read, and their bytes */
	uint64_t nixl_bytes;
};

int skv_disk_park(struct skv_disk_work *);
int skv_disk_resume(struct skv_disk_work *);
int skv_disk_import(struct skv_disk_work *);
int skv_disk_send(struct skv_disk_work *);
int skv_disk_remove(struct skv_disk_work *);
int skv_disk_look(struct skv_disk_work *);

/* `bytes` more are done; say so if it is time. */
int skv_disk_progress(struct skv_disk_work *, uint64_t bytes);

#define skv_disk_refuse(work, error, ...) skv_refuse(error, (work)->why, sizeof((work)->why), __VA_ARGS__)

#endif
