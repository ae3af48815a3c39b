/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/files.h - the folder of parked sequences, and the list of its files.
 *
 *   FOLDER/UID/NAME.parked   a sequence
 *   FOLDER/UID/NAME.prefix   a sealed prefix, which can be recomputed
 *
 * The list is in memory, and read from the files' headers when the daemon starts; the files are authoritative. Only the
 * daemon has access to the folder. The folder of a file determines its owner.
 */
#ifndef SKV_DISK_FILES_H
#define SKV_DISK_FILES_H

#include <limits.h>
#include <sys/types.h>
#include "daemon/disk/parked.h"

struct skv_parked {
	uint32_t uid, max_tokens;
	struct skv_wire_model model; /* `device`: where the pages were */
	char name[SKV_NAME_MAX];
	char file[SKV_PARKED_FILE];
	uint64_t commit, n_pages, bytes;
	uint64_t used_ns; /* CLOCK_REALTIME: time of parking; of a sealed prefix, time of its last use */
	uint64_t since_ns, age_ns; /* skv_now_ns() at which its age was age_ns (skv_parking_tick()); 0: unset */
	struct skv_parked_keys *keys; /* of a sealed prefix, owned; NULL: unknown */
	uint32_t n_keys;
	uint64_t pinned; /* bytes that the user is charged for the keys */
	bool indexed; /* the index of blocks has the keys of this sealed prefix */
	bool busy;    /* a job reads the file */
	bool going;   /* to be removed and forgotten (skv_files_set_going()) ... */
	bool leaving; /* ... a removal is running; otherwise it failed, and will be retried */
	bool damaged; /* reading it found that its contents have changed */
	uint32_t seq; /* `going` because this sequence is in memory; 0: for another reason */
	/* private to the list */
	size_t at; /* all[at] */
	struct skv_parked *next; /* in its list[] */
	struct skv_files_user *user;
};

static inline bool skv_parked_is_prefix(const struct skv_parked *p)
{
	return p->name[0] == '/';
}

/* A file, or a user's folder with all its files, that could not be read from the disk. */
struct skv_unread {
	uint32_t uid;
	int error; /* negative errno */
	char file[SKV_PARKED_FILE]; /* "": the whole folder */
};

/* Files and bytes of a user, without files to be removed: [0] of sequences, [1] of sealed prefixes. */
struct skv_files_user {
	struct skv_files_user *next;
	uint32_t uid;
	struct {
		uint64_t files, bytes;
	} has[2];
};

#define SKV_FILES_LISTS 65536u

struct skv_files {
	int folder;
	struct skv_parked **all; /* unordered; an entry's address does not change */
	size_t n, cap, reserved;
	struct skv_parked **list; /* [SKV_FILES_LISTS]: the same entries, by a hash of user, model and name ... */
	uint32_t seed; /* ... seeded with a number unknown to users, who choose the names */
	struct skv_files_user *users;
	struct skv_unread *unread;
	size_t n_unread;
};
#define SKV_FILES_NULL {.folder = -1}

/*
 * Opens the folder and waits up to a second until no worker of another daemon writes to it. Removes unfinished files
 * and reads the headers of the others. Files that are not parked sequences are reported to `odd` and left alone; files
 * that the disk cannot read are reported and remembered. Returns 0 or a negative errno with a text in `why`.
 */
typedef void (*skv_files_odd)(const char *file, const char *why);
int skv_files_open(struct skv_files *, const char *path, skv_files_odd odd, char *why, size_t len);
void skv_files_close(struct skv_files *);

/*
 * Opens the user's folder in the folder of parked sequences. Returns a descriptor that the caller owns, or a negative
 * errno. `make` creates the folder if needed and makes it durable, even if a process that died had created it.
 */
int skv_files_user(int folder, uint32_t uid, bool make);
/* Removes a file of a user's folder durably. Returns 0, also if the file is already gone, or a negative errno. */
int skv_files_remove(int user, const char *file);
/*
 * Reads the header of a file in a user's folder, and the keys of a sealed prefix (owned by the caller; otherwise NULL).
 * Returns 0 or a negative errno; with -EBADMSG, *ret_why is a static text.
 */
int skv_files_header(int user, const char *file, struct skv_parked_header *ret, struct skv_parked_keys **ret_keys, const char **ret_why);

/*
 * Reserves an entry for a file to be written; NULL if out of memory. Afterwards skv_files_put() enters the file, which
 * cannot fail, or skv_files_unreserve() frees the entry (NULL is allowed). skv_files_put() consumes `keys`.
 */
struct skv_parked *skv_files_reserve(struct skv_files *, uint32_t uid);
void skv_files_put(struct skv_files *, struct skv_parked *reserved, const char *file, const struct skv_parked_header *,
                   struct skv_parked_keys *keys);
void skv_files_unreserve(struct skv_files *, struct skv_parked *reserved);

/* The result of reading one file of a user's folder: a parked sequence, another file, or an error. */
struct skv_files_found {
	char file[NAME_MAX + 1];
	char odd[128];  /* why it is no parked sequence; the file is left alone. Otherwise "" */
	int32_t error;  /* 0, or a negative errno: the disk could not read it, but may be able to later */
	uint32_t reserved;
	struct skv_parked_header header;
};
/* `keys` are those of a sealed prefix, otherwise NULL; the callee owns them. A negative errno ends the iteration. */
typedef int (*skv_files_found_fn)(void *ctx, const struct skv_files_found *, struct skv_parked_keys *keys);
/*
 * Looks up a file of a user's folder, or all of them if its name is "". Removes damaged prefixes. Returns 0, or a
 * negative errno if the folder cannot be read or the system lacks resources.
 */
int skv_files_look(int user, const char *file, skv_files_found_fn, void *ctx);
/* Enters a result into the list and consumes the keys. Odd files are reported. Returns 0 or -ENOMEM. */
int skv_files_enter(struct skv_files *, uint32_t uid, const struct skv_files_found *, struct skv_parked_keys *keys, skv_files_odd odd);
bool skv_files_is_listed(const struct skv_files *, uint32_t uid, const struct skv_files_found *);
/* Records the result of another attempt to read an unread file: 0 if it was read, or a negative errno. */
void skv_files_looked(struct skv_files *, uint32_t uid, const char *file, int error, skv_files_odd odd);
/*
 * Returns a negative errno if the user may have a parked sequence of this name (and any model) that could not be read.
 */
int skv_files_unread(const struct skv_files *, uint32_t uid, const char *name);
/* Removes the entry from the list and frees it. The file itself stays. */
void skv_files_forget(struct skv_files *, struct skv_parked *);
/* Returns NULL if there is none. */
struct skv_parked *skv_files_find(const struct skv_files *, uint32_t uid, const char *model, uint32_t rank, uint32_t n_ranks, const char *name);
/* Returns the next entry of any rank after `p`, or the first one if `p` is NULL; NULL if there are no more. */
struct skv_parked *skv_files_next(const struct skv_files *, const struct skv_parked *p, uint32_t uid, const char *model, const char *name);
/* Marks a file as to be removed, so that it no longer counts; or reverts the mark. */
void skv_files_set_going(struct skv_parked *, bool going);
/*
 * Sums files and bytes of a user, or of all users (UINT32_MAX): of sequences or of sealed prefixes, without files to be
 * removed.
 */
void skv_files_sum(const struct skv_files *, uint32_t uid, bool prefixes, uint64_t *ret_files, uint64_t *ret_bytes);

#endif
