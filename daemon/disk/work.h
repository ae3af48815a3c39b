/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/work.h - the jobs of a disk worker (see job.h), as functions that run in the calling process.
 *
 * Each returns 0, or a negative errno with a text in `why`. When it returns, the file has its name or is removed, and
 * staging buffers are freed. The caller owns the descriptors.
 */
#ifndef SKV_DISK_WORK_H
#define SKV_DISK_WORK_H

#include "common/refuse.h"
#include "daemon/disk/job.h"

struct skv_disk_work {
	const struct skv_disk_job *job;
	const int *fds; /* [job->n_fds]; includes the user's folder */
	/*
	 * Reports progress. Negative: the daemon has closed the connection, and the job ends. NULL: no progress
	 * reports.
	 */
	int (*say)(const struct skv_disk_work *);
	uint64_t said_ns;
	uint64_t bytes; /* of the file, written or read so far */
	bool broken; /* the process must exit, whatever the job's result is: a context does not recover from a fault */
	bool left; /* the job failed, but its file still has its name: the daemon removes it */
	char why[SKV_DISK_TEXT_MAX];
	char file[SKV_PARKED_FILE]; /* IMPORT: name of the new file */
	struct skv_parked_header header; /* PARK, IMPORT: header of the written file */
	uint64_t inode, changed_ns; /* SEND: of the file */
	uint32_t n_blocks; /* STORE_FIND, STORE_GET: see the answer */
	uint32_t n_nixl; /* STORE_GET: number and bytes of values that NIXL has read */
	uint64_t nixl_bytes;
};

int skv_disk_park(struct skv_disk_work *);
int skv_disk_resume(struct skv_disk_work *);
int skv_disk_import(struct skv_disk_work *);
int skv_disk_send(struct skv_disk_work *);
int skv_disk_remove(struct skv_disk_work *);
int skv_disk_look(struct skv_disk_work *);

/* Adds `bytes` to the work done, and reports progress if SKV_DISK_SAYS_NS have passed since the last report. */
int skv_disk_progress(struct skv_disk_work *, uint64_t bytes);

#define skv_disk_refuse(work, error, ...) skv_refuse(error, (work)->why, sizeof((work)->why), __VA_ARGS__)

#endif
