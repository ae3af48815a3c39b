/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/files.h - the folder of parked sequences, and what is in it.
 *
 *   FOLDER/UID/NAME.parked   a sequence
 *   FOLDER/UID/NAME.prefix   a sealed prefix, which can be computed again
 *
 * The list is in memory, read from the files' headers when the daemon starts; the files are the truth. The folder is the daemon's
 * alone: whose a file is says the folder that it is in.
 */
#ifndef SKV_DISK_FILES_H
#define SKV_DISK_FILES_H

#include <sys/types.h>
#include "daemon/disk/parked.h"

struct skv_parked {
	uint32_t uid, max_tokens;
	struct skv_wire_model model; /* `device`: where it was */
	char name[SKV_NAME_MAX];
	char file[SKV_PARKED_FILE];
	uint64_t commit, n_pages, bytes;
	uint64_t used_ns; /* CLOCK_REALTIME: when it was parked; of a sealed prefix, or when it was used last */
	uint64_t since_ns, age_ns; /* skv_now_ns() when it was this old (skv_parking_tick()); 0: not known yet */
	struct skv_parked_keys *keys; /* of a sealed prefix, owned; NULL: not known */
	uint32_t n_keys;
	uint64_t pinned; /* bytes that its user is charged for them */
	bool indexed; /* a sealed prefix is found by these */
	bool busy;    /* it is being read */
	bool going;   /* it is removed, and will be forgotten ... */
	bool leaving; /* ... right now: else that failed, and is tried again */
	bool damaged; /* it was read, and is not what was written */
	uint32_t seq; /* that goes because of this sequence in memory; 0: of another reason */
};

static inline bool skv_parked_is_prefix(const struct skv_parked *p)
{
	return p->name[0] == '/';
}

/* What the disk could not give: a file, or a user's folder with all that is in it. */
struct skv_unread {
	uint32_t uid;
	int error; /* negative errno */
	char file[SKV_PARKED_FILE]; /* "": the folder */
};

struct skv_files {
	int folder;
	struct skv_parked **all; /* in no order; an entry stays where it is */
	size_t n, cap, reserved;
	struct skv_unread *unread;
	size_t n_unread;
};
#define SKV_FILES_NULL {.folder = -1}

/*
 * The folder is opened, and waited for, up to a second, until no worker of another daemon writes there; what was not finished is removed, the
 * headers of the rest are read, and what is no parked sequence is told and left alone; what the disk could not give is told, and remembered.
 * Negative errno, with a text.
 */
typedef void (*skv_files_odd)(const char *file, const char *why);
int skv_files_open(struct skv_files *, const char *path, skv_files_odd odd, char *why, size_t len);
void skv_files_close(struct skv_files *);

/* The user's folder, made if it is not there: the caller's, or negative errno. */
int skv_files_user(const struct skv_files *, uint32_t uid);
/* The header of a file in a user's folder, and the keys of a sealed prefix (the caller's; else NULL); or negative errno, -EBADMSG with a static text. */
int skv_files_header(int user, const char *file, struct skv_parked_header *ret, struct skv_parked_keys **ret_keys, const char **ret_why);

/*
 * Room for one that is going to be written: NULL, there is no memory. Then it is known, which cannot fail, or (NULL is fine) it is not. Of a
 * file whose header cannot be read as little is known as there is in this one. `keys` are consumed.
 */
struct skv_parked *skv_files_reserve(struct skv_files *);
void skv_files_put(struct skv_files *, struct skv_parked *reserved, uint32_t uid, const char *file, const struct skv_parked_header *,
                   struct skv_parked_keys *keys);
void skv_files_unreserve(struct skv_files *, struct skv_parked *reserved);
/*
 * The files in a user's folder that are whole, and neither known nor (is_known) about to be: a worker that ended has left them. They go. A
 * folder is read for it.
 */
typedef bool (*skv_files_is_known)(const void *ctx, uint32_t uid, const char *file);
void skv_files_remove_unknown(const struct skv_files *, int user, uint32_t uid, skv_files_is_known is_known, const void *ctx);
/* What could not be read is, perhaps, now. As above: what is neither known nor about to be is. */
void skv_files_look_again(struct skv_files *, skv_files_odd odd, skv_files_is_known is_known, const void *ctx);
/* Negative errno: the user may have a parked sequence of this name (and any model), and it could not be read. */
int skv_files_unread(const struct skv_files *, uint32_t uid, const char *name);
/* Not known any more; the file is the caller's concern. */
void skv_files_forget(struct skv_files *, struct skv_parked *);
/* NULL: there is none. */
struct skv_parked *skv_files_find(const struct skv_files *, uint32_t uid, const char *model, uint32_t rank, uint32_t n_ranks, const char *name);
/* The next one of any rank, from *at on, which begins with 0. */
struct skv_parked *skv_files_next(const struct skv_files *, uint32_t uid, const char *model, const char *name, size_t *at);
/* Of a user, or (UINT32_MAX) of all: how many files of sequences, or of sealed prefixes, without those that go, and their bytes. */
void skv_files_sum(const struct skv_files *, uint32_t uid, bool prefixes, uint64_t *ret_files, uint64_t *ret_bytes);

#endif
