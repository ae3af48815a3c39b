/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/run-job.h - the jobs of a disk worker (see job.h), as functions that run in the calling process.
 *
 * Each function returns 0, or a negative errno with a text in `why`. When it returns, a file that it wrote has its
 * final name or is removed again, and staging buffers are freed. The caller owns the descriptors.
 */
#ifndef SKV_DISK_RUN_JOB_H
#define SKV_DISK_RUN_JOB_H

#include "common/refuse.h"
#include "daemon/disk/job.h"

struct skv_disk_work {
	const struct skv_disk_job *job;
	const int *fds; /* [job->n_fds]; fds[SKV_DISK_FD_USER] of a job on files is the user's folder */
	/*
	 * Reports progress to the daemon. Returns a negative errno if the daemon has closed the connection; the job
	 * then ends. NULL: no progress reports.
	 */
	int (*say)(const struct skv_disk_work *);
	uint64_t said_ns; /* time of the last progress report */
	uint64_t bytes; /* number of bytes of the file written or read so far */
	bool broken; /* the process must exit, whatever the job's result: its context or NIXL agent is unusable */
	bool left; /* the job failed, but the new file has its final name already: the daemon must remove it */
	char why[SKV_DISK_TEXT_MAX];
	char file[SKV_PARKED_FILE]; /* IMPORT: name of the new file */
	struct skv_parked_header header; /* PARK, IMPORT: header of the written file */
	uint64_t inode, changed_ns; /* SEND: inode number and change time of the file */
	uint32_t n_blocks; /* STORE_FIND, STORE_GET: as in struct skv_disk_answer */
	uint32_t n_nixl; /* STORE_GET: number of values that NIXL has read; nixl_bytes is their size */
	uint64_t nixl_bytes;
};

int skv_disk_park(struct skv_disk_work *);
int skv_disk_resume(struct skv_disk_work *);
int skv_disk_import(struct skv_disk_work *);
int skv_disk_send(struct skv_disk_work *);
int skv_disk_remove(struct skv_disk_work *);
int skv_disk_look(struct skv_disk_work *);

/* Adds `bytes` to work->bytes, and reports progress if SKV_DISK_SAYS_NS have passed since the last report. */
int skv_disk_progress(struct skv_disk_work *, uint64_t bytes);

#define skv_disk_refuse(work, error, ...) skv_refuse(error, (work)->why, sizeof((work)->why), __VA_ARGS__)

#endif
