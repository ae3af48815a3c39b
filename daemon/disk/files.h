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

#include <limits.h>
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
	bool going;   /* it is removed, and will be forgotten (skv_files_set_going()) ... */
	bool leaving; /* ... right now: else that failed, and is tried again */
	bool damaged; /* it was read, and is not what was written */
	uint32_t seq; /* that goes because of this sequence in memory; 0: of another reason */
	/* the list's own */
	size_t at; /* all[at] */
	struct skv_parked *next; /* in its list[] */
	struct skv_files_user *user;
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

/* What a user has, without files that go: of sequences, and of sealed prefixes. */
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
	struct skv_parked **all; /* in no order; an entry stays where it is */
	size_t n, cap, reserved;
	struct skv_parked **list; /* [SKV_FILES_LISTS]: the same by a hash of user, model and name ... */
	uint32_t seed; /* ... which users, who choose names, do not know */
	struct skv_files_user *users;
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

/*
 * The user's folder, in the folder of parked sequences: the caller's, or negative errno. With `make` it is made if it is not there, and is there
 * after a power cut, too, also where another process has made it and died.
 */
int skv_files_user(int folder, uint32_t uid, bool make);
/* A file of a user's folder goes, and does not come back after a power cut. 0, also if it is gone already; or negative errno. */
int skv_files_remove(int user, const char *file);
/* The header of a file in a user's folder, and the keys of a sealed prefix (the caller's; else NULL); or negative errno, -EBADMSG with a static text. */
int skv_files_header(int user, const char *file, struct skv_parked_header *ret, struct skv_parked_keys **ret_keys, const char **ret_why);

/*
 * Room for one that is going to be written: NULL, there is no memory. Then it is known, which cannot fail, or (NULL is fine) it is not. Of a
 * file whose header cannot be read as little is known as there is in this one. `keys` are consumed.
 */
struct skv_parked *skv_files_reserve(struct skv_files *, uint32_t uid);
void skv_files_put(struct skv_files *, struct skv_parked *reserved, const char *file, const struct skv_parked_header *,
                   struct skv_parked_keys *keys);
void skv_files_unreserve(struct skv_files *, struct skv_parked *reserved);

/* The result of reading one file of a user's folder: a parked sequence, another file, or an error. */
struct skv_files_found {
	char file[NAME_MAX + 1];
	char odd[128];  /* why it is no parked sequence: it is left alone; else "" */
	int32_t error;  /* 0; else a negative errno: the disk could not give it, and perhaps can later */
	uint32_t reserved;
	struct skv_parked_header header;
};
/* `keys`, of a sealed prefix, else NULL, are the callee's. Its negative errno ends the look. */
typedef int (*skv_files_found_fn)(void *ctx, const struct skv_files_found *, struct skv_parked_keys *keys);
/*
 * Look at a file of a user's folder, or (its name is "") at all of them. Prefixes that are damaged go. Negative errno: the folder cannot be read,
 * or the system lacks something.
 */
int skv_files_look(int user, const char *file, skv_files_found_fn, void *ctx);
/* Into the list with what was found (keys are consumed); what is odd is told. -ENOMEM. */
int skv_files_enter(struct skv_files *, uint32_t uid, const struct skv_files_found *, struct skv_parked_keys *keys, skv_files_odd odd);
bool skv_files_is_listed(const struct skv_files *, uint32_t uid, const struct skv_files_found *);
/* What could not be read was looked at again: 0, it is known what it is, or a negative errno. */
void skv_files_looked(struct skv_files *, uint32_t uid, const char *file, int error, skv_files_odd odd);
/* Negative errno: the user may have a parked sequence of this name (and any model), and it could not be read. */
int skv_files_unread(const struct skv_files *, uint32_t uid, const char *name);
/* Not known any more; the file is the caller's concern. */
void skv_files_forget(struct skv_files *, struct skv_parked *);
/* NULL: there is none. */
struct skv_parked *skv_files_find(const struct skv_files *, uint32_t uid, const char *model, uint32_t rank, uint32_t n_ranks, const char *name);
/* The next one of any rank behind `p`; NULL: the first, and where there is none. */
struct skv_parked *skv_files_next(const struct skv_files *, const struct skv_parked *p, uint32_t uid, const char *model, const char *name);
/* It goes, and counts no more; or it stays after all. */
void skv_files_set_going(struct skv_parked *, bool going);
/* Of a user, or (UINT32_MAX) of all: how many files of sequences, or of sealed prefixes, without those that go, and their bytes. */
void skv_files_sum(const struct skv_files *, uint32_t uid, bool prefixes, uint64_t *ret_files, uint64_t *ret_bytes);

#endif
