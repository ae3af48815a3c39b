/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/fd.h"

#define GROW 64u
#define LOCK_TRIES 200u /* of 5 ms */

/* ---- the list -------------------------------------------------------------------------------- */

struct skv_parked *skv_files_reserve(struct skv_files *f)
{
	struct skv_parked *p = malloc(sizeof(*p));

	if (f->n + f->reserved == f->cap) {
		struct skv_parked **more = realloc(f->all, (f->cap + GROW) * sizeof(struct skv_parked *));

		if (more) {
			f->all = more;
			f->cap += GROW;
		}
	}
	if (!p || f->n + f->reserved == f->cap) {
		free(p);
		return NULL;
	}
	f->reserved++;
	return p;
}

void skv_files_put(struct skv_files *f, struct skv_parked *p, uint32_t uid, const char *file, const struct skv_parked_header *h,
                   struct skv_parked_keys *keys)
{
	*p = (struct skv_parked){
		.uid = uid,
		.max_tokens = h->max_tokens,
		.model = h->model,
		.commit = h->commit,
		.n_pages = h->n_pages,
		.bytes = h->file_bytes,
		.used_ns = h->parked_ns,
		.keys = keys,
		.n_keys = h->n_keys,
	};
	memcpy(p->name, h->name, sizeof(p->name));
	snprintf(p->file, sizeof(p->file), "%s", file);
	f->reserved--;
	f->all[f->n++] = p;
}

void skv_files_unreserve(struct skv_files *f, struct skv_parked *p)
{
	f->reserved -= p != NULL;
	free(p);
}

void skv_files_forget(struct skv_files *f, struct skv_parked *p)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->all[i] == p) {
			f->all[i] = f->all[--f->n];
			free(p->keys);
			free(p);
			return;
		}
}

struct skv_parked *skv_files_next(const struct skv_files *f, uint32_t uid, const char *model, const char *name, size_t *at)
{
	for (; *at < f->n; ++*at) {
		struct skv_parked *p = f->all[*at];

		if (p->uid == uid && !strcmp(p->name, name) && !strcmp(p->model.name, model)) {
			++*at;
			return p;
		}
	}
	return NULL;
}

struct skv_parked *skv_files_find(const struct skv_files *f, uint32_t uid, const char *model, uint32_t rank, uint32_t n_ranks, const char *name)
{
	struct skv_parked *p;
	size_t at = 0;

	while ((p = skv_files_next(f, uid, model, name, &at)))
		if (p->model.rank == rank && p->model.n_ranks == n_ranks)
			return p;
	return NULL;
}

void skv_files_sum(const struct skv_files *f, uint32_t uid, bool prefixes, uint64_t *ret_files, uint64_t *ret_bytes)
{
	*ret_files = *ret_bytes = 0;
	for (size_t i = 0; i < f->n; i++)
		if (!f->all[i]->going && skv_parked_is_prefix(f->all[i]) == prefixes && (uid == UINT32_MAX || f->all[i]->uid == uid)) {
			++*ret_files;
			*ret_bytes += f->all[i]->bytes;
		}
}

/* ---- what could not be read ------------------------------------------------------------------- */

static bool may_be_read_later(int r)
{
	return r == -EIO || r == -ETIMEDOUT || r == -ESTALE;
}

/* 0, or -ENOMEM. */
static int add_unread(struct skv_files *f, uint32_t uid, const char *file, int error)
{
	struct skv_unread *more = realloc(f->unread, (f->n_unread + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	f->unread = more;
	more[f->n_unread] = (struct skv_unread){.uid = uid, .error = error};
	snprintf(more[f->n_unread++].file, sizeof(more->file), "%s", file);
	return 0;
}

static bool is_unread(const struct skv_files *f, uint32_t uid, const char *file)
{
	for (size_t i = 0; i < f->n_unread; i++)
		if (f->unread[i].uid == uid && (!*f->unread[i].file || !strcmp(f->unread[i].file, file)))
			return true;
	return false;
}

int skv_files_unread(const struct skv_files *f, uint32_t uid, const char *name)
{
	char file[SKV_PARKED_FILE];

	skv_parked_file("", 0, 1, name, file); /* it begins with a hash of the model and the rank */
	for (size_t i = 0; i < f->n_unread; i++) {
		const struct skv_unread *u = &f->unread[i];
		const char *end = strchr(u->file, '-');

		if (u->uid == uid && (!*u->file || (end && !strcmp(end, strchr(file, '-')))))
			return u->error;
	}
	return 0;
}

/* ---- the folder ------------------------------------------------------------------------------ */

int skv_files_user(int folder, uint32_t uid, bool make)
{
	char name[16];
	int fd;

	snprintf(name, sizeof(name), "%u", uid);
	if (make && mkdirat(folder, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	/* its files would be lost with it; also where it is there already, for who made it may have died before this */
	if (make && fsync(folder) < 0)
		return -errno;
	fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int skv_files_remove(int user, const char *file)
{
	if (unlinkat(user, file, 0) < 0 && errno != ENOENT)
		return -errno;
	return fsync(user) < 0 ? -errno : 0; /* of a file that is gone, too: who removed it may not have come so far */
}

/* NULL where a file has none. */
static int read_keys(int fd, uint32_t n, struct skv_parked_keys **ret)
{
	const size_t size = skv_parked_keys_bytes(n);
	struct skv_parked_keys *keys = n ? malloc(size) : NULL;
	ssize_t got = keys ? pread(fd, keys, size, SKV_PARKED_ALIGN) : 0;

	if (n && (!keys || got != (ssize_t)size)) {
		free(keys);
		return !keys ? -ENOMEM : got < 0 ? -errno : -EBADMSG;
	}
	*ret = keys;
	return 0;
}

int skv_files_header(int user, const char *file, struct skv_parked_header *ret, struct skv_parked_keys **ret_keys, const char **ret_why)
{
	SKV_FD_CLEANUP int fd = openat(user, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct skv_parked_header h;
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	*ret_why = "it is not a regular file with a whole header";
	n = S_ISREG(st.st_mode) ? pread(fd, &h, sizeof(h), 0) : 0;
	if (n < 0)
		return -errno;
	if (n != (ssize_t)sizeof(h))
		return -EBADMSG;
	*ret_why = skv_parked_check(&h, (uint64_t)st.st_size);
	if (*ret_why)
		return -EBADMSG;
	*ret_why = "it ends within its keys";
	*ret = h;
	return read_keys(fd, h.n_keys, ret_keys);
}

/* Workers of a daemon that has just ended have it for as long as they live: milliseconds. */
static int lock_out_workers(int folder)
{
	const struct timespec pause = {.tv_nsec = 5000000};

	for (unsigned i = 0; flock(folder, LOCK_EX | LOCK_NB) < 0; i++) {
		if (errno != EWOULDBLOCK || i == LOCK_TRIES)
			return -errno;
		nanosleep(&pause, NULL);
	}
	return flock(folder, LOCK_UN) < 0 ? -errno : 0; /* else our own workers would wait for ever */
}

static bool ends_with(const char *name, const char *end)
{
	const size_t len = strlen(name), n = strlen(end);

	return *name != '.' && len > n && !strcmp(name + len - n, end);
}

static bool is_prefix_file(const char *name)
{
	return ends_with(name, SKV_PARKED_PREFIX_END);
}

static bool is_parked_file(const char *name)
{
	return ends_with(name, SKV_PARKED_END) || is_prefix_file(name);
}

/*
 * A file of the right name that is none: another one may get that name, and would take its place. So it gets a name of its own, under which
 * it is left to whom it may help.
 */
static void set_aside(int user, const char *name)
{
	char aside[SKV_PARKED_FILE + 16];

	for (unsigned i = 0; i < 100; i++) {
		snprintf(aside, sizeof(aside), "%.*s.odd-%u", (int)SKV_PARKED_FILE - 1, name, i);
		if (renameat2(user, name, user, aside, RENAME_NOREPLACE) == 0 || errno != EEXIST)
			return;
	}
}

struct looking {
	struct skv_files *files;
	skv_files_odd odd;
	skv_files_is_known is_known; /* NULL: nobody writes there yet */
	const void *ctx;
	uint32_t uid;
};

static bool is_listed(const struct skv_files *f, uint32_t uid, const char *file)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->all[i]->uid == uid && !strcmp(f->all[i]->file, file))
			return true;
	return false;
}

static void tell_unread(const struct looking *l, const char *file, int error)
{
	char name[32 + NAME_MAX], why[128];

	snprintf(name, sizeof(name), "%u%s%s", l->uid, *file ? "/" : "", file);
	snprintf(why, sizeof(why), "%s (a reload tries again)", strerror(-error));
	l->odd(name, why);
}

/* Negative errno: it cannot be read, and is as good as it was. */
static int look(const struct looking *l, int user, const char *name)
{
	char file[SKV_PARKED_FILE], text[64 + NAME_MAX];
	struct skv_parked_keys *keys = NULL;
	struct skv_parked_header h;
	struct skv_parked *p;
	const char *why = "";
	int r;

	r = is_parked_file(name) ? skv_files_header(user, name, &h, &keys, &why) : -EBADMSG;
	if (r == 0) {
		skv_parked_file(h.model.name, h.model.rank, h.model.n_ranks, h.name, file);
		why = strcmp(file, name) ? "its header is that of another file" : NULL;
	}
	if (r == 0 && !why) {
		p = skv_files_reserve(l->files);
		if (p)
			skv_files_put(l->files, p, l->uid, name, &h, keys);
		else
			free(keys);
		return p ? 0 : -ENOMEM;
	}
	free(keys);
	if (skv_is_shortage(r) || may_be_read_later(r))
		return r;
	if (is_prefix_file(name)) { /* it can be computed again */
		(void)unlinkat(user, name, 0); /* and if it comes back it goes again */
		return 0;
	}
	if (is_parked_file(name) && r != -ENOENT)
		set_aside(user, name);
	snprintf(text, sizeof(text), "%u/%s", l->uid, name);
	l->odd(text, why && *why ? why : r == -EBADMSG ? "expected parked sequences alone" : strerror(-r));
	return 0;
}

/* One of a user's folder. Negative errno: the system lacks something. */
static int look_at_file(void *ctx, int user, const char *name)
{
	const struct looking *l = ctx;
	int r;

	if (*name == '.') { /* what was not finished, or is about to be */
		if (!l->is_known)
			(void)unlinkat(user, name, 0);
		return 0;
	}
	if (l->is_known && (is_listed(l->files, l->uid, name) || l->is_known(l->ctx, l->uid, name)))
		return 0;
	r = look(l, user, name);
	if (!may_be_read_later(r))
		return r;
	tell_unread(l, name, r);
	return add_unread(l->files, l->uid, name, r);
}

/* The entries of a folder, but for "." and "..". The callback's negative errno ends it. */
static int each(int folder, const char *name, int (*cb)(void *ctx, int fd, const char *name), void *ctx)
{
	int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), r = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;

	if (!dir) {
		r = -errno;
		skv_close_fd(fd);
		return r;
	}
	while (r == 0 && (errno = 0, d = readdir(dir)))
		if (strcmp(d->d_name, ".") && strcmp(d->d_name, ".."))
			r = cb(ctx, fd, d->d_name);
	if (r == 0 && errno)
		r = -errno;
	closedir(dir);
	return r;
}

struct unknown {
	const struct skv_files *files;
	uint32_t uid;
	skv_files_is_known is_known;
	const void *ctx;
};

static int remove_if_unknown(void *ctx, int user, const char *name)
{
	const struct unknown *u = ctx;

	if (is_parked_file(name) && !u->is_known(u->ctx, u->uid, name) && !is_listed(u->files, u->uid, name) && !is_unread(u->files, u->uid, name))
		(void)skv_files_remove(user, name);
	return 0;
}

void skv_files_remove_unknown(const struct skv_files *f, uint32_t uid, skv_files_is_known is_known, const void *ctx)
{
	struct unknown u = {f, uid, is_known, ctx};
	char folder[16];

	snprintf(folder, sizeof(folder), "%u", uid);
	(void)each(f->folder, folder, remove_if_unknown, &u);
}

static int look_at_user(void *ctx, int folder, const char *name)
{
	struct looking *l = ctx;
	unsigned long uid;
	char *end;
	int r;

	errno = 0;
	uid = strtoul(name, &end, 10);
	if (*name < '0' || *name > '9' || *end || errno || uid >= UINT32_MAX) {
		l->odd(name, "expected folders alone, each called as a user's number");
		return 0;
	}
	l->uid = (uint32_t)uid;
	r = each(folder, name, look_at_file, l);
	if (r == 0 || skv_is_shortage(r))
		return r;
	if (may_be_read_later(r)) {
		tell_unread(l, "", r);
		return add_unread(l->files, l->uid, "", r);
	}
	l->odd(name, strerror(-r));
	return 0;
}

/* 0, or negative errno: it stays unread. */
static int look_at_unread(struct looking *l, const struct skv_unread *u)
{
	char folder[16];
	int user, r;

	snprintf(folder, sizeof(folder), "%u", u->uid);
	l->uid = u->uid;
	if (!*u->file)
		return each(l->files->folder, folder, look_at_file, l);
	if (is_listed(l->files, u->uid, u->file) || l->is_known(l->ctx, u->uid, u->file))
		return 0; /* the sequence was in memory, and was parked again */
	user = skv_files_user(l->files->folder, u->uid, false);
	r = user == -ENOENT ? 0 : user < 0 ? user : look(l, user, u->file);
	skv_close_fd(user);
	return r;
}

void skv_files_look_again(struct skv_files *f, skv_files_odd odd, skv_files_is_known is_known, const void *ctx)
{
	struct looking l = {.files = f, .odd = odd, .is_known = is_known, .ctx = ctx};

	for (size_t i = f->n_unread; i-- > 0;) {
		const struct skv_unread u = f->unread[i]; /* looking into a folder adds to them */
		const int r = look_at_unread(&l, &u);

		if (r < 0) {
			f->unread[i].error = r;
			tell_unread(&l, u.file, r);
		} else {
			f->unread[i] = f->unread[--f->n_unread];
		}
	}
}

int skv_files_open(struct skv_files *f, const char *path, skv_files_odd odd, char *why, size_t len)
{
	struct looking l = {.files = f, .odd = odd};
	struct stat st;
	int r;

	f->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = f->folder < 0 || fstat(f->folder, &st) < 0 ? -errno : 0;
	if (r == 0 && (st.st_uid != geteuid() || st.st_mode & 077)) {
		snprintf(why, len, "it must be the daemon's alone (user %u, mode 0700), and is user %u's, mode %04o", (unsigned)geteuid(),
		         (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
		r = -EPERM;
	} else if (r == 0) {
		r = lock_out_workers(f->folder);
		snprintf(why, len, r == -EWOULDBLOCK ? "a worker of another daemon writes there" : "%s", strerror(-r));
	} else {
		snprintf(why, len, "%s", strerror(-r));
	}
	if (r == 0) {
		r = each(f->folder, ".", look_at_user, &l);
		if (r < 0)
			snprintf(why, len, "%s", strerror(-r));
	}
	if (r < 0)
		skv_files_close(f);
	return r;
}

void skv_files_close(struct skv_files *f)
{
	for (size_t i = 0; i < f->n; i++) {
		free(f->all[i]->keys);
		free(f->all[i]);
	}
	free(f->all);
	free(f->unread);
	skv_close_fd(f->folder);
	*f = (struct skv_files)SKV_FILES_NULL;
}
