/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/stored.h - the descriptors that the keeper passes to each daemon: listening sockets, and what daemons stored.
 *
 * As systemd does it: all names go into one environment variable, and of one the kernel takes 128 KiB: 21,800 names of five bytes. The
 * daemon makes no more than that (SKV_MAX_STORED); what is beyond it is refused when it comes, not when the next daemon is to be
 * started, which would then lose everything.
 */
#ifndef SKV_STORED_H
#define SKV_STORED_H

#include <stddef.h>

#define SKV_STORED_BUCKETS 4096u

struct skv_stored_fd {
	struct skv_stored_fd *next; /* of the same bucket */
	int fd;
	char name[];
};
struct skv_stored {
	struct skv_stored_fd *bucket[SKV_STORED_BUCKETS]; /* by name */
	size_t n, name_bytes;                             /* with a separator or NUL each */
	struct skv_stored_fd *spare;                      /* skv_stored_reserve() */
};

/* Until one was added: that will not fail for a lack of memory. -ENOMEM. */
int skv_stored_reserve(struct skv_stored *);

/*
 * Store fd (consumed, at least 3). 0, also for a file that is stored by that name already; -EINVAL: no name that could be passed; -E2BIG:
 * names would be too long; -ENOMEM.
 */
int skv_stored_add(struct skv_stored *, const char *name, int fd);
/* Close all of this name. */
void skv_stored_remove(struct skv_stored *, const char *name);
void skv_stored_clear(struct skv_stored *);

/* All descriptors, in ascending order, and their names in that order, joined by ':'. -ENOMEM. The caller frees both. */
int skv_stored_list(const struct skv_stored *, int **ret_fds, char **ret_names);
/* In a child that is about to execute a program: give it these n as 3, 4, ..., and no others. 0 or negative errno. */
int skv_stored_pass(const int *fds, size_t n);

#endif
