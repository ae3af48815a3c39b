/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/fail-nth.h - lets the Nth call of a kind fail, in a process whose calls go through fail-nth.c.
 *
 * What is to fail, and what was counted, is in a page of memory that the process and its test share. The test can thus
 * see whether the failure was reached, and can request the next one without a new process. An executed program has
 * fail-nth.so preloaded and finds the page by its path in $SKV_FAIL_NTH. A test program that links fail-nth.c forks
 * processes that call fail_nth_use().
 *
 * Processes that the program starts are not affected, unless `processes` is set in the page at that time: then they use
 * the page, too.
 */
#ifndef SKV_TEST_FAIL_NTH_H
#define SKV_TEST_FAIL_NTH_H

#include <stdint.h>

#define FAIL_NTH_PAGE "SKV_FAIL_NTH" /* path of the page, in the environment */

enum fail_kind {
	FAIL_NOTHING = 0, /* nothing fails and nothing is counted */
	FAIL_ALLOC,       /* malloc() and related functions: ENOMEM */
	FAIL_MEMORY,      /* memfds, their sizes, mappings, processes and threads: ENOMEM or EAGAIN */
	FAIL_DESCRIPTOR,  /* EMFILE */
	FAIL_WRITE,       /* writes to files and memfds: ENOSPC */
	FAIL_SEND,        /* messages sent without the ring: ENOBUFS */
	FAIL_RING,        /* setup of a ring, or submission to it: EAGAIN, or `error` */
	FAIL_OPERATION,   /* an operation of a ring: is not carried out, and completes with ENOMEM or the like */
	FAIL_TRANSFER,    /* a read or write of a ring: EIO */
	FAIL_SHORT,       /* a read or write of a ring: transfers only `error` bytes, or half if `error` is 0 */
	FAIL_FILE,        /* system calls that open, link, rename, remove, sync, lock or read files: EIO */
	FAIL_RECEIVE,     /* messages received without the ring: ENOMEM */
	FAIL_DRIVER,      /* calls of the fake CUDA driver (fake-libcuda.c): they return `error` */
};

enum fail_process {
	FAIL_DAEMON = 1, /* and any other program */
	FAIL_DISK_WORKER = 2,
	FAIL_DEVICE_WORKER = 4,
	FAIL_KEEPER = 8,
};

/* The test writes the first five fields, `kind` last. */
struct fail_nth {
	_Atomic uint32_t kind;
	uint32_t nth;  /* from 1; 0: calls are only counted */
	uint32_t error; /* positive errno; 0: the kind's default */
	uint32_t onwards; /* all later calls fail, too */
	/* mask of enum fail_process: whose calls count and fail; 0: those of the process that the test started */
	uint32_t processes;
	_Atomic uint32_t seen, fired;
	char where[512]; /* stack of the first call that failed, for addr2line */
};

/*
 * Calls of this process fail as the page says, except calls that the program's own code makes: the test is about
 * libraries. NULL: off.
 */
void fail_nth_use(struct fail_nth *);

/* Returns the error of the driver's next call; 0: it succeeds. The fake driver calls this if it is preloaded. */
uint32_t fail_nth_of_driver(void) __attribute__((weak));

#endif
