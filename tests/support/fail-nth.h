/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/fail-nth.h - the Nth call of a kind fails, in a process whose calls come through fail-nth.c.
 *
 * What is to fail, and what was seen, is in a page of memory that the process and its test share: so a test can tell whether the failure has
 * been reached, and can ask for the next one without a new process. A program that is executed has fail-nth.so preloaded, and finds the page
 * by its path in $SKV_FAIL_NTH. A test program that has fail-nth.c linked forks processes that call fail_nth_use().
 *
 * Processes that it starts are left alone, unless the page says, when it starts, whose calls fail: then they find the page, too.
 */
#ifndef SKV_TEST_FAIL_NTH_H
#define SKV_TEST_FAIL_NTH_H

#include <stdint.h>

#define FAIL_NTH_PAGE "SKV_FAIL_NTH" /* in the environment */

enum fail_kind {
	FAIL_NOTHING = 0, /* and nothing is counted */
	FAIL_ALLOC,       /* malloc and the like: ENOMEM */
	FAIL_MEMORY,      /* memfds, their sizes, mappings, processes and threads: ENOMEM, EAGAIN */
	FAIL_DESCRIPTOR,  /* EMFILE */
	FAIL_WRITE,       /* to files and memfds: ENOSPC */
	FAIL_SEND,        /* messages that do not go through the ring: ENOBUFS */
	FAIL_RING,        /* a ring is made, or given what was queued: EAGAIN, or `error` */
	FAIL_OPERATION,   /* of a ring: it is not carried out, and completes with ENOMEM or the like */
	FAIL_TRANSFER,    /* a read or write of a ring: EIO */
	FAIL_SHORT,       /* the same: it is carried out in part, `error` bytes, or (0) half of it */
	FAIL_FILE,        /* files are opened, linked, renamed, removed, synchronized, locked, read, by system calls: EIO */
	FAIL_RECEIVE,     /* messages that do not go through the ring: ENOMEM */
	FAIL_DRIVER,      /* of CUDA, the fake one (fake-libcuda.c): `error` is its result */
};

enum fail_process {
	FAIL_DAEMON = 1, /* and any other program */
	FAIL_DISK_WORKER = 2,
	FAIL_DEVICE_WORKER = 4,
	FAIL_KEEPER = 8,
};

/* The test writes the first five, `kind` last. */
struct fail_nth {
	_Atomic uint32_t kind;
	uint32_t nth;  /* from 1; 0: they are counted alone */
	uint32_t error; /* positive errno; 0: as of the kind */
	uint32_t onwards; /* all after it, too */
	uint32_t processes; /* whose calls are counted, and fail; 0: those of the one that the test has started */
	_Atomic uint32_t seen, fired;
	char where[512]; /* that the first one was called from, for addr2line */
};

/* From now on this process does as the page says, but for what the program itself calls: libraries are meant. NULL: no more. */
void fail_nth_use(struct fail_nth *);

/* What the next call of the driver is to return, 0: nothing is wrong. The fake one asks, which finds it where it is preloaded. */
uint32_t fail_nth_of_driver(void) __attribute__((weak));

#endif
