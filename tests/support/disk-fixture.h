/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/disk-fixture.h - a disk worker that gets jobs as from the daemon, and a folder for its files, all of
 * one user.
 *
 * Any failure fails the test.
 */
#ifndef SKV_TEST_DISK_FIXTURE_H
#define SKV_TEST_DISK_FIXTURE_H

#include <sys/types.h>
#include "daemon/disk/job.h"
#include "tests/support/parked-case.h"

extern struct disk_fixture {
	char *root_dir, *dir; /* folder of parked files, and in it the user's (PARKED_UID) */
	int root, folder;
	int socket, pidfd; /* of the worker */
	pid_t pid;
	/* of the last job */
	struct skv_disk_answer answer;
	unsigned more; /* answers that said that the job goes on */
} disk;

/*
 * disk_begin() makes the folders and starts a worker; disk_end() expects that it ends with 0 when its socket is closed.
 */
void disk_begin(void);
void disk_end(void);
/* Open and close folders that exist; remove them. */
void disk_open_folders(void);
void disk_close_folders(void);
void disk_remove_folders(void);
unsigned disk_count_files(void);

void disk_worker_start(void);
void disk_worker_stop(void);
/* The worker may be dead already. */
void disk_worker_kill(void);

void disk_post(const struct skv_disk_job *, const int *fds);
/* Waits for the end of the job. */
void disk_wait(void);

/* Jobs; they return the worker's error. The case's `job` says which pages, and how many. */
void disk_park_post(const struct parked_case *);
int disk_park(const struct parked_case *);
int disk_resume(const struct parked_case *to);
int disk_import(int from, uint64_t max_bytes);

#define DISK_EXPECT(call, expected) \
	ck_assert_msg((call) == (expected), "%d, expected %d: %s", disk.answer.error, expected, disk.answer.why)
/* Resumes into other memory, which must equal what was parked. */
void disk_expect_resumes(const struct parked_case *was);

#endif
