/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/keeper-store.h - the descriptors that the keeper passes to each daemon: its listening sockets, and
 * descriptors that daemons have stored with it.
 *
 * As with systemd, the names of all descriptors are passed in one environment variable, which the kernel limits to 128
 * KiB: 21,800 names of five bytes. The daemon stores fewer descriptors (SKV_MAX_STORED). The keeper refuses a name
 * beyond the limit when it arrives, because otherwise it could not start the next daemon, and all sequences would be
 * lost.
 */
#ifndef SKV_STORED_H
#define SKV_STORED_H

#include <stddef.h>

#define SKV_STORED_BUCKETS 4096u

struct skv_stored_fd {
	struct skv_stored_fd *next; /* next descriptor in the same bucket */
	int fd;
	char name[];
};
struct skv_stored {
	struct skv_stored_fd *bucket[SKV_STORED_BUCKETS]; /* hash table of the descriptors, by name */
	/* number of descriptors; bytes of all names, each with a separator or NUL */
	size_t n, name_bytes;
	struct skv_stored_fd *spare;                      /* spare entry of skv_stored_reserve(), or NULL */
};

/* Allocates one spare entry, so that the next skv_stored_add() cannot fail for lack of memory. Returns 0 or -ENOMEM. */
int skv_stored_reserve(struct skv_stored *);

/*
 * Stores fd (consumed, at least 3) under a name. Returns 0, also if the same file is already stored under this name;
 * -EINVAL if the name cannot be passed to a daemon; -E2BIG if all names together would be too long; -ENOMEM.
 */
int skv_stored_add(struct skv_stored *, const char *name, int fd);
/* Closes and forgets all descriptors of this name. */
void skv_stored_remove(struct skv_stored *, const char *name);
void skv_stored_clear(struct skv_stored *);

/*
 * Makes an array of all descriptors in ascending order, and a string of their names in the same order, joined by ':'.
 * The caller frees both. Returns 0 or -ENOMEM.
 */
int skv_stored_list(const struct skv_stored *, int **ret_fds, char **ret_names);
/*
 * Called in a child process before it executes the daemon: moves these n descriptors to the numbers 3, 4, ..., and
 * marks all later ones close-on-exec. Returns 0 or a negative errno.
 */
int skv_stored_pass(const int *fds, size_t n);

#endif
