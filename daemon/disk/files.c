/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/disk/lock.h"

#define GROW 64u

/* ---- the list -------------------------------------------------------------------------------- */

/* Returns the user's entry, creating it if there is none. NULL: out of memory. */
static struct skv_files_user *get_user(struct skv_files *f, uint32_t uid)
{
	struct skv_files_user *u = f->users;

	while (u && u->uid != uid)
		u = u->next;
	if (!u && (u = calloc(1, sizeof(*u)))) {
		u->uid = uid;
		u->next = f->users;
		f->users = u;
	}
	return u;
}

static uint32_t hash_text(uint32_t h, const char *text)
{
	do
		h = (h ^ (uint8_t)*text) * 16777619u;
	while (*text++);
	return h;
}

static struct skv_parked **list_of(const struct skv_files *f, uint32_t uid, const char *model, const char *name)
{
	const uint32_t h = hash_text(hash_text(f->seed + uid, model), name);

	return &f->list[(h ^ h >> 16) % SKV_FILES_LISTS];
}

struct skv_parked *skv_files_reserve(struct skv_files *f, uint32_t uid)
{
	struct skv_files_user *user = get_user(f, uid);
	struct skv_parked *p = user ? malloc(sizeof(*p)) : NULL;

	if (f->n + f->reserved == f->cap) {
		struct skv_parked **more = realloc(f->all, (f->cap + GROW) * sizeof(struct skv_parked *));

		if (more) {
			f->all = more;
			f->cap += GROW;
		}
	}
	if (!p || f->n + f->reserved == f->cap || !skv_use_order_reserve(&user->evictable, user->entries + 1)) {
		free(p);
		return NULL;
	}
	f->reserved++;
	user->entries++;
	p->user = user;
	return p;
}

/* Adds a file to the number and bytes of its user's files (`in`), or subtracts it. */
static void count(struct skv_parked *p, bool in)
{
	const bool prefix = skv_parked_is_prefix(p);

	p->user->has[prefix].files += in ? 1 : -UINT64_C(1);
	p->user->has[prefix].bytes += in ? p->bytes : -p->bytes;
}

/* Enters the file into its user's `evictable`, where its last use places it, or takes it out. */
static void update_evictable(struct skv_parked *p)
{
	if (skv_parked_is_prefix(p) && !p->busy && !p->going)
		skv_use_order_put(&p->user->evictable, p);
	else
		skv_use_order_take(&p->user->evictable, p);
}

void skv_files_put(struct skv_files *f, struct skv_parked *p, const char *file, const struct skv_parked_header *h,
                   struct skv_parked_keys *keys)
{
	struct skv_parked **list;

	*p = (struct skv_parked){
		.uid = p->user->uid,
		.max_tokens = h->max_tokens,
		.model = h->model,
		.commit = h->commit,
		.n_pages = h->n_pages,
		.bytes = h->file_bytes,
		.used_ns = h->parked_ns,
		.keys = keys,
		.n_keys = h->n_keys,
		.at = f->n,
		.user = p->user,
	};
	memcpy(p->name, h->name, sizeof(p->name));
	snprintf(p->file, sizeof(p->file), "%s", file);
	list = list_of(f, p->uid, p->model.name, p->name);
	p->next = *list;
	*list = p;
	count(p, true);
	update_evictable(p);
	f->reserved--;
	f->all[f->n++] = p;
}

void skv_files_unreserve(struct skv_files *f, struct skv_parked *p)
{
	if (!p)
		return;
	f->reserved--;
	p->user->entries--;
	free(p);
}

void skv_files_set_going(struct skv_parked *p, bool going)
{
	if (p->going != going)
		count(p, !going);
	p->going = going;
	update_evictable(p);
}

void skv_files_set_busy(struct skv_parked *p, bool busy)
{
	p->busy = busy;
	update_evictable(p);
}

void skv_files_used(struct skv_parked *p, uint64_t real_ns)
{
	p->used_ns = real_ns;
	update_evictable(p);
}

struct skv_parked *skv_files_oldest_prefix(const struct skv_files *f, uint32_t uid)
{
	struct skv_parked *found = NULL;

	for (const struct skv_files_user *u = f->users; u; u = u->next)
		if ((uid == UINT32_MAX || u->uid == uid) && u->evictable.n > 0 &&
		    (!found || u->evictable.entry[0]->used_ns < found->used_ns))
			found = u->evictable.entry[0];
	return found;
}

void skv_files_forget(struct skv_files *f, struct skv_parked *p)
{
	struct skv_parked **at = list_of(f, p->uid, p->model.name, p->name);

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	skv_files_set_going(p, true);
	f->all[p->at] = f->all[--f->n];
	f->all[p->at]->at = p->at;
	p->user->entries--;
	free(p->keys);
	free(p);
}

struct skv_parked *skv_files_next(const struct skv_files *f, const struct skv_parked *p, uint32_t uid,
                                  const char *model, const char *name)
{
	struct skv_parked *next = p ? p->next : *list_of(f, uid, model, name);

	while (next && (next->uid != uid || strcmp(next->name, name) || strcmp(next->model.name, model)))
		next = next->next;
	return next;
}

struct skv_parked *skv_files_find(const struct skv_files *f, uint32_t uid, const char *model, uint32_t rank,
                                  uint32_t n_ranks, const char *name)
{
	struct skv_parked *p = NULL;

	while ((p = skv_files_next(f, p, uid, model, name)))
		if (p->model.rank == rank && p->model.n_ranks == n_ranks)
			return p;
	return NULL;
}

void skv_files_sum(const struct skv_files *f, uint32_t uid, bool prefixes, uint64_t *ret_files, uint64_t *ret_bytes)
{
	*ret_files = *ret_bytes = 0;
	for (const struct skv_files_user *u = f->users; u; u = u->next)
		if (uid == UINT32_MAX || u->uid == uid) {
			*ret_files += u->has[prefixes].files;
			*ret_bytes += u->has[prefixes].bytes;
		}
}

/* ---- what could not be read ------------------------------------------------------------------- */

static bool may_be_read_later(int r)
{
	return r == -EIO || r == -ETIMEDOUT || r == -ESTALE;
}

/* Adds a file, or with the name "" a user's whole folder, to the list of unread ones. Returns 0 or -ENOMEM. */
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

int skv_files_unread(const struct skv_files *f, uint32_t uid, const char *name)
{
	char file[SKV_PARKED_FILE];

	/* a file name is a hash of model and rank, '-', and the sequence's name: only what follows '-' is compared */
	skv_parked_file("", 0, 1, name, file);
	for (size_t i = 0; i < f->n_unread; i++) {
		const struct skv_unread *u = &f->unread[i];
		const char *end = strchr(u->file, '-');

		if (u->uid == uid && (!*u->file || (end && !strcmp(end, strchr(file, '-')))))
			return u->error;
	}
	return 0;
}

bool skv_files_is_unread(const struct skv_files *f, uint32_t uid, const char *file)
{
	for (size_t i = 0; i < f->n_unread; i++)
		if (f->unread[i].uid == uid && (!*f->unread[i].file || !strcmp(f->unread[i].file, file)))
			return true;
	return false;
}

/* ---- the folder ------------------------------------------------------------------------------ */

int skv_files_user(int folder, uint32_t uid, bool make)
{
	char name[16];
	int fd;

	snprintf(name, sizeof(name), "%u", uid);
	if (make && mkdirat(folder, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	/*
	 * Without fsync(), the user's files could be lost with the folder in a power cut. An existing folder is
	 * synchronized as well: the process that created it may have died before fsync().
	 */
	if (make && fsync(folder) < 0)
		return -errno;
	fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int skv_files_remove(int user, const char *file)
{
	if (unlinkat(user, file, 0) < 0 && errno != ENOENT)
		return -errno;
	/*
	 * the folder is synchronized even if the file was gone: the process that removed it may have died before
	 * fsync()
	 */
	return fsync(user) < 0 ? -errno : 0;
}

/* Reads the block keys of a file that has n of them. If n is 0, *ret is NULL. */
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

int skv_files_header(int user, const char *file, struct skv_parked_header *ret, struct skv_parked_keys **ret_keys,
                     const char **ret_why)
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
 * Renames a file that has the name of a parked sequence but is none: a file that is parked later may need the name and
 * would replace it. Under its new name, NAME.odd-0 to NAME.odd-99, the file remains for manual inspection.
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
	skv_files_found_fn found;
	void *ctx;
	bool starts; /* the daemon is starting: no worker writes to the folder */
};

static bool is_its_name(const struct skv_parked_header *h, const char *name)
{
	char file[SKV_PARKED_FILE];

	skv_parked_file(h->model.name, h->model.rank, h->model.n_ranks, h->name, file);
	return strcmp(file, name) == 0;
}

/* Examines one file of a user's folder. Returns a negative errno if the system lacks resources, or found()'s result. */
static int look(const struct looking *l, int user, const char *name)
{
	struct skv_files_found f = {0};
	struct skv_parked_keys *keys = NULL;
	const char *why = "expected files of parked sequences only";
	int r = is_parked_file(name) ? skv_files_header(user, name, &f.header, &keys, &why) : -EBADMSG;

	if (r == 0 && !is_its_name(&f.header, name)) {
		free(keys);
		keys = NULL;
		r = -EBADMSG;
		why = "its header belongs to a file of another name";
	}
	if (skv_is_shortage(r))
		return r;
	if (r < 0 && !may_be_read_later(r) && is_prefix_file(name)) { /* a sealed prefix can be computed again */
		(void)unlinkat(user, name, 0); /* no fsync(): if it reappears after a power cut, it is removed again */
		return 0;
	}
	snprintf(f.file, sizeof(f.file), "%s", name);
	if (may_be_read_later(r))
		f.error = r;
	else if (r < 0)
		snprintf(f.odd, sizeof(f.odd), "%s", r == -EBADMSG ? why : strerror(-r));
	if (*f.odd && is_parked_file(name) && r != -ENOENT)
		set_aside(user, name);
	return l->found(l->ctx, &f, keys);
}

static int look_at_file(void *ctx, int user, const char *name)
{
	const struct looking *l = ctx;

	if (*name != '.')
		return look(l, user, name);
	if (l->starts) /* a file that a dead worker left unfinished; once jobs run, one of them may be writing it */
		(void)unlinkat(user, name, 0);
	return 0;
}

/*
 * Calls `cb` for each entry of a folder except "." and "..". If `cb` returns a negative errno, the loop ends with it.
 */
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

int skv_files_look(int user, const char *file, skv_files_found_fn found, void *ctx)
{
	struct looking l = {.found = found, .ctx = ctx};

	return *file ? look(&l, user, file) : each(user, ".", look_at_file, &l);
}

bool skv_files_is_listed(const struct skv_files *f, uint32_t uid, const struct skv_files_found *found)
{
	struct skv_parked *p = NULL;

	if (!found->error && !*found->odd) {
		while ((p = skv_files_next(f, p, uid, found->header.model.name, found->header.name)) &&
		       strcmp(p->file, found->file) != 0)
			;
		return p != NULL;
	}
	for (size_t i = 0; i < f->n; i++) /* the found file has no header to hash; such files are few */
		if (f->all[i]->uid == uid && !strcmp(f->all[i]->file, found->file))
			return true;
	return false;
}

static void tell_unread(uint32_t uid, const char *file, int error, skv_files_odd odd)
{
	char name[32 + NAME_MAX], why[128];

	snprintf(name, sizeof(name), "%u%s%s", uid, *file ? "/" : "", file);
	snprintf(why, sizeof(why), "%s (a reload tries again)", strerror(-error));
	odd(name, why);
}

int skv_files_enter(struct skv_files *f, uint32_t uid, const struct skv_files_found *found,
                    struct skv_parked_keys *keys, skv_files_odd odd)
{
	char name[32 + NAME_MAX];
	struct skv_parked *p;

	if (found->error) {
		tell_unread(uid, found->file, found->error, odd);
		return add_unread(f, uid, found->file, found->error);
	}
	if (*found->odd) {
		snprintf(name, sizeof(name), "%u/%s", uid, found->file);
		odd(name, found->odd);
		return 0;
	}
	p = skv_files_reserve(f, uid);
	if (p)
		skv_files_put(f, p, found->file, &found->header, keys);
	else
		free(keys);
	return p ? 0 : -ENOMEM;
}

void skv_files_looked(struct skv_files *f, uint32_t uid, const char *file, int error, skv_files_odd odd)
{
	for (size_t i = 0; i < f->n_unread; i++) {
		struct skv_unread *u = &f->unread[i];

		if (u->uid != uid || strcmp(u->file, file) != 0)
			continue;
		u->error = error;
		if (error)
			tell_unread(uid, file, error, odd);
		else
			*u = f->unread[--f->n_unread];
		return;
	}
}

/* ---- all folders ----------------------------------------------------------------------------- */

struct starting {
	struct skv_files *files;
	skv_files_odd odd;
	uint32_t uid;
};

static int enter_at_start(void *ctx, const struct skv_files_found *found, struct skv_parked_keys *keys)
{
	struct starting *s = ctx;

	return skv_files_enter(s->files, s->uid, found, keys, s->odd);
}

static int look_at_user(void *ctx, int folder, const char *name)
{
	struct starting *s = ctx;
	struct looking l = {.found = enter_at_start, .ctx = s, .starts = true};
	unsigned long uid;
	char *end;
	int r;

	errno = 0;
	uid = strtoul(name, &end, 10);
	if (*name < '0' || *name > '9' || *end || errno || uid >= UINT32_MAX) {
		s->odd(name, "expected folders only, each named after a UID");
		return 0;
	}
	s->uid = (uint32_t)uid;
	r = each(folder, name, look_at_file, &l);
	if (r == 0 || skv_is_shortage(r))
		return r;
	if (may_be_read_later(r)) {
		tell_unread(s->uid, "", r, s->odd);
		return add_unread(s->files, s->uid, "", r);
	}
	s->odd(name, strerror(-r));
	return 0;
}

int skv_files_open(struct skv_files *f, const char *path, skv_files_odd odd, char *why, size_t len)
{
	struct starting s = {.files = f, .odd = odd};
	struct stat st;
	int r;

	f->list = calloc(SKV_FILES_LISTS, sizeof(struct skv_parked *));
	if (!f->list) {
		snprintf(why, len, "%s", strerror(ENOMEM));
		return -ENOMEM;
	}
	if (getrandom(&f->seed, sizeof(f->seed), GRND_NONBLOCK) != sizeof(f->seed))
		f->seed = (uint32_t)(uintptr_t)f->list;
	f->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = f->folder < 0 || fstat(f->folder, &st) < 0 ? -errno : 0;
	if (r == 0 && (st.st_uid != geteuid() || st.st_mode & 077)) {
		snprintf(why, len, "expected a folder of user %u with mode 0700, got user %u with mode %04o",
		         (unsigned)geteuid(),
		         (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
		r = -EPERM;
	} else if (r == 0) {
		r = skv_disk_lock_out(f->folder);
		snprintf(why, len, r == -EWOULDBLOCK ? "a worker of another daemon is writing to the folder" : "%s",
		         strerror(-r));
	} else {
		snprintf(why, len, "%s", strerror(-r));
	}
	if (r == 0) {
		r = each(f->folder, ".", look_at_user, &s);
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
	while (f->users) {
		struct skv_files_user *u = f->users;

		f->users = u->next;
		free(u->evictable.entry);
		free(u);
	}
	free(f->all);
	free(f->list);
	free(f->unread);
	skv_close_fd(f->folder);
	*f = (struct skv_files)SKV_FILES_NULL;
}
