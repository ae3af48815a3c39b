/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/keeper-store.h - the descriptors that the keeper passes to each daemon: listening sockets, and what daemons
 * stored.
 *
 * As with systemd all names go into one environment variable, which the kernel limits to 128 KiB: 21,800 names of
 * five bytes. The daemon stays below that (SKV_MAX_STORED). A name beyond the limit is refused when it arrives;
 * otherwise the next daemon could not be started and everything would be lost.
 */
#ifndef SKV_STORED_H
#define SKV_STORED_H

#include <stddef.h>

#define SKV_STORED_BUCKETS 4096u

struct skv_stored_fd {
	struct skv_stored_fd *next; /* in the same bucket */
	int fd;
	char name[];
};
struct skv_stored {
	struct skv_stored_fd *bucket[SKV_STORED_BUCKETS]; /* hash table by name */
	size_t n, name_bytes;                             /* n; bytes of all names, each with a separator or NUL */
	struct skv_stored_fd *spare;                      /* skv_stored_reserve() */
};

/* Allocates one spare entry, so that the next skv_stored_add() cannot fail for lack of memory. -ENOMEM. */
int skv_stored_reserve(struct skv_stored *);

/*
 * Stores fd (consumed, at least 3). 0, also if the file is already stored under this name. -EINVAL: the name cannot
 * be passed; -E2BIG: the names would be too long; -ENOMEM.
 */
int skv_stored_add(struct skv_stored *, const char *name, int fd);
/* Closes all descriptors of this name. */
void skv_stored_remove(struct skv_stored *, const char *name);
void skv_stored_clear(struct skv_stored *);

/*
 * Returns all descriptors in ascending order, and their names in the same order, joined by ':'. The caller frees
 * both. -ENOMEM.
 */
int skv_stored_list(const struct skv_stored *, int **ret_fds, char **ret_names);
/*
 * In a child that is about to execute a program: makes these n descriptors 3, 4, ..., and marks all others
 * close-on-exec. 0 or negative errno.
 */
int skv_stored_pass(const int *fds, size_t n);

#endif
