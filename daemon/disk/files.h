/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/files.h - the folder of parked sequences, and the list of its files.
 *
 *   FOLDER/UID/NAME.parked   a sequence
 *   FOLDER/UID/NAME.prefix   a sealed prefix, which can be recomputed
 *
 * The daemon keeps a list of the files in memory, which it reads from the files' headers when it starts; the files are
 * authoritative. Only the daemon has access to the folder. A file belongs to the user after whose UID its folder is
 * named, whatever its header says.
 */
#ifndef SKV_DISK_FILES_H
#define SKV_DISK_FILES_H

#include <limits.h>
#include <sys/types.h>
#include "daemon/disk/parked.h"
#include "daemon/disk/use-order.h"

struct skv_parked {
	uint32_t uid, max_tokens;
	struct skv_wire_model model; /* `device`: the device that had the pages when they were parked */
	char name[SKV_NAME_MAX];
	char file[SKV_PARKED_FILE];
	uint64_t commit, n_pages, bytes;
	/* CLOCK_REALTIME: time of parking; of a sealed prefix, time of its last use (skv_files_used()) */
	uint64_t used_ns;
	uint64_t since_ns, age_ns; /* the file's age was age_ns when skv_now_ns() was since_ns; since_ns 0: unknown */
	struct skv_parked_keys *keys; /* block keys of a sealed prefix, owned by this entry; NULL: unknown */
	uint32_t n_keys;
	uint64_t pinned; /* bytes of host memory that the user is charged for the keys */
	bool indexed; /* the index of blocks has the keys of this sealed prefix */
	bool busy;    /* a job reads the file (skv_files_set_busy()) */
	bool going;   /* the file is to be removed, and then this entry (skv_files_set_going()) */
	bool leaving; /* a removal of the file is running; false while `going`: it failed and will be retried */
	bool damaged; /* a resume found that the file's contents have changed since they were written */
	uint32_t seq; /* id of the sequence in memory that the `going` file is a copy of; 0: none */
	/* private to the list */
	size_t at; /* index of this entry in all[] */
	struct skv_parked *next; /* next entry with the same hash, in list[] */
	struct skv_files_user *user;
	size_t heap_at; /* use-order.c: one more than its index in the user's `evictable`; 0: it is not there */
};

static inline bool skv_parked_is_prefix(const struct skv_parked *p)
{
	return p->name[0] == '/';
}

/* A file, or a user's folder with all its files, that could not be read from the disk. */
struct skv_unread {
	uint32_t uid;
	int error; /* negative errno */
	char file[SKV_PARKED_FILE]; /* name of the file; "": the user's whole folder */
};

/* Number and bytes of a user's files, not counting files to be removed: has[0] of sequences, has[1] of prefixes. */
struct skv_files_user {
	struct skv_files_user *next;
	uint32_t uid;
	struct {
		uint64_t files, bytes;
	} has[2];
	size_t entries; /* all of the user's entries, also reserved ones */
	struct skv_use_order evictable; /* prefixes that are not busy and not to be removed */
};

#define SKV_FILES_LISTS 65536u

struct skv_files {
	int folder;
	struct skv_parked **all; /* [n]: all entries, unordered; the address of an entry does not change */
	size_t n, cap, reserved;
	struct skv_parked **list; /* [SKV_FILES_LISTS]: the entries of all[] by a hash of user, model and name */
	uint32_t seed; /* secret seed of the hash in list[], so that users cannot choose names that collide */
	struct skv_files_user *users;
	struct skv_unread *unread;
	size_t n_unread;
};
#define SKV_FILES_NULL {.folder = -1}

/*
 * Opens the folder of parked sequences and waits up to a second until no worker of another daemon writes to it. Removes
 * files that a worker did not complete, and reads the headers of all other files. A file that is not a parked sequence
 * is reported to `odd` and left alone; a file that the disk cannot read is reported to `odd` and listed in `unread`.
 * Returns 0 or a negative errno with a text in `why`.
 */
typedef void (*skv_files_odd)(const char *file, const char *why);
int skv_files_open(struct skv_files *, const char *path, skv_files_odd odd, char *why, size_t len);
void skv_files_close(struct skv_files *);

/*
 * Opens the user's folder in the folder of parked sequences. Returns a descriptor that the caller owns, or a negative
 * errno. With `make`, the user's folder is created if it does not exist, and made durable by fsync() of its parent even
 * if it exists, since the process that created it may have died before fsync().
 */
int skv_files_user(int folder, uint32_t uid, bool make);
/* Removes a file of a user's folder durably. Returns 0, also if the file is already gone, or a negative errno. */
int skv_files_remove(int user, const char *file);
/*
 * Reads the header of a file in a user's folder, and the block keys of a sealed prefix, which the caller then owns; for
 * a sequence, *ret_keys is NULL. Returns 0 or a negative errno; with -EBADMSG, *ret_why is a static text.
 */
int skv_files_header(int user, const char *file, struct skv_parked_header *ret, struct skv_parked_keys **ret_keys, const char **ret_why);

/*
 * skv_files_reserve() allocates an entry of the list for a file that is to be written; NULL: out of memory. When the
 * file is written, skv_files_put() enters it into the list, which cannot fail, and takes ownership of `keys`. If the
 * file is not written, skv_files_unreserve() frees the entry; NULL is allowed.
 */
struct skv_parked *skv_files_reserve(struct skv_files *, uint32_t uid);
void skv_files_put(struct skv_files *, struct skv_parked *reserved, const char *file, const struct skv_parked_header *,
                   struct skv_parked_keys *keys);
void skv_files_unreserve(struct skv_files *, struct skv_parked *reserved);

/* The result of reading one file of a user's folder: a parked sequence, another file, or an error. */
struct skv_files_found {
	char file[NAME_MAX + 1];
	char odd[128];  /* reason why the file is no parked sequence and is left alone; "": it is one, or error < 0 */
	int32_t error;  /* 0, or a negative errno: the disk could not read the file, but may be able to later */
	uint32_t reserved;
	struct skv_parked_header header;
};
/* `keys`: block keys of a sealed prefix, or NULL; the callee owns them. A returned negative errno ends the search. */
typedef int (*skv_files_found_fn)(void *ctx, const struct skv_files_found *, struct skv_parked_keys *keys);
/*
 * Passes a file of a user's folder to the function, or each file if `file` is "". Removes sealed prefixes whose file is
 * damaged. Returns 0, or a negative errno if the folder cannot be read or the system lacks resources.
 */
int skv_files_look(int user, const char *file, skv_files_found_fn, void *ctx);
/*
 * Enters a file that skv_files_look() found into the list, and takes ownership of `keys`. A file that is no parked
 * sequence is only reported to `odd`. Returns 0 or -ENOMEM.
 */
int skv_files_enter(struct skv_files *, uint32_t uid, const struct skv_files_found *, struct skv_parked_keys *keys, skv_files_odd odd);
bool skv_files_is_listed(const struct skv_files *, uint32_t uid, const struct skv_files_found *);
/* Records the result of another attempt to read a file in `unread`. `error`: 0 if it was read, or a negative errno. */
void skv_files_looked(struct skv_files *, uint32_t uid, const char *file, int error, skv_files_odd odd);
/* Returns a negative errno if a file that could not be read may be the user's parked sequence of this name. */
int skv_files_unread(const struct skv_files *, uint32_t uid, const char *name);
/* Is the file among those that could not be read, by itself or with the user's whole folder? */
bool skv_files_is_unread(const struct skv_files *, uint32_t uid, const char *file);
/* Removes the entry from the list and frees the entry. The file itself stays on the disk. */
void skv_files_forget(struct skv_files *, struct skv_parked *);
/* Returns the entry of the user's file with this model, rank and name; NULL: there is none. */
struct skv_parked *skv_files_find(const struct skv_files *, uint32_t uid, const char *model, uint32_t rank, uint32_t n_ranks, const char *name);
/*
 * Returns the entry after `p` of the user's files with this model and name, of any rank; the first one if `p` is NULL.
 * NULL: there are no more.
 */
struct skv_parked *skv_files_next(const struct skv_files *, const struct skv_parked *p, uint32_t uid, const char *model, const char *name);
/* Marks a file as to be removed, so that the sums of its user no longer count it. `going` false: reverts the mark. */
void skv_files_set_going(struct skv_parked *, bool going);
/* Marks a file as being read by a job, or no longer. */
void skv_files_set_busy(struct skv_parked *, bool busy);
/* Records when the file was last used, on CLOCK_REALTIME. */
void skv_files_used(struct skv_parked *, uint64_t real_ns);
/*
 * Returns the least recently used sealed prefix of a user, or of all users (uid UINT32_MAX), that is not busy and not
 * to be removed. NULL: there is none.
 */
struct skv_parked *skv_files_oldest_prefix(const struct skv_files *, uint32_t uid);
/*
 * Returns number and bytes of the files of a user, or of all users (uid UINT32_MAX): the files of sequences, or with
 * `prefixes` those of sealed prefixes. Files to be removed do not count.
 */
void skv_files_sum(const struct skv_files *, uint32_t uid, bool prefixes, uint64_t *ret_files, uint64_t *ret_bytes);

#endif
