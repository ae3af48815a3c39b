/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/disk-fixture.h - a disk worker, asked as the daemon asks, and a folder for its files, all of one user.
 *
 * What fails in here fails the test.
 */
#ifndef SKV_TEST_DISK_FIXTURE_H
#define SKV_TEST_DISK_FIXTURE_H

#include <sys/types.h>
#include "daemon/disk/job.h"
#include "tests/support/parked-case.h"

extern struct disk_fixture {
	char *root_dir, *dir; /* of parked files; in it, the user's (PARKED_UID) */
	int root, folder;
	int socket, pidfd; /* of the worker */
	pid_t pid;
	/* of the last job */
	struct skv_disk_answer answer;
	unsigned more; /* answers that said that it goes on */
} disk;

/* Folders, and a worker; and that it ends well when the daemon closes its end. */
void disk_begin(void);
void disk_end(void);
/* The folders alone, which are there: opened and closed, and gone. */
void disk_open_folders(void);
void disk_close_folders(void);
void disk_remove_folders(void);
unsigned disk_count_files(void);

void disk_worker_start(void);
void disk_worker_stop(void);
/* Dead already, or about to be. */
void disk_worker_kill(void);

void disk_post(const struct skv_disk_job *, const int *fds);
/* The end of the job. */
void disk_wait(void);

/* Jobs: what the worker answers. The case's `job` says which pages, and how many. */
void disk_park_post(const struct parked_case *);
int disk_park(const struct parked_case *);
int disk_resume(const struct parked_case *to);
int disk_import(int from, uint64_t max_bytes);

#define DISK_EXPECT(call, expected) \
	ck_assert_msg((call) == (expected), "%d, expected %d: %s", disk.answer.error, expected, disk.answer.why)
/* To be resumed into other memory; it must be what was parked. */
void disk_expect_resumes(const struct parked_case *was);

#endif
