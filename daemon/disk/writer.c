/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "common/fd.h"

#define NEW_NAME 32u /* bytes */

static void new_name(char to[NEW_NAME])
{
	snprintf(to, NEW_NAME, ".new-%d", (int)getpid());
}

static int folder(const struct skv_disk_writer *w)
{
	return w->work->fds[SKV_DISK_FD_USER];
}

/* Creates a file without a name, or named ".new-" and the process id if the file system has no O_TMPFILE. */
static int create(struct skv_disk_writer *w)
{
	char name[NEW_NAME];

	w->fd = openat(folder(w), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (w->fd >= 0 || errno != EOPNOTSUPP)
		return w->fd < 0 ? -errno : 0;
	new_name(name);
	(void)unlinkat(folder(w), name, 0); /* a dead worker that had the same process id may have left such a file */
	w->fd = openat(folder(w), name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	w->linked = w->fd >= 0;
	return w->fd < 0 ? -errno : 0;
}

int skv_disk_writer_begin(struct skv_disk_writer *w, struct skv_disk_work *work, const struct skv_parked_header *h)
{
	int r;

	*w = (struct skv_disk_writer){.work = work, .header = *h, .fd = -1};
	if (h->file_bytes > work->job->max_bytes)
		return skv_disk_refuse(work, -EDQUOT, "the file would have %llu bytes, expected at most %llu",
		                       (unsigned long long)h->file_bytes, (unsigned long long)work->job->max_bytes);
	w->sums = calloc(h->n_pages + 1, sizeof(*w->sums));
	if (!w->sums)
		return skv_disk_refuse(work, -ENOMEM, "the disk worker has no memory for checksums of %llu pages", (unsigned long long)h->n_pages);
	r = create(w);
	if (r < 0)
		return skv_disk_refuse(work, r, "the file cannot be created: %s", strerror(-r));
	r = skv_transfer_new(work, w->fd, &w->header, 1, &w->transfer);
	return r < 0 ? r : skv_transfer_allocate(w->transfer, h->file_bytes);
}

int skv_disk_writer_put(struct skv_disk_writer *w, uint64_t at, size_t bytes)
{
	size_t padded = (bytes + SKV_PARKED_ALIGN - 1) / SKV_PARKED_ALIGN * SKV_PARKED_ALIGN;
	void *buffer;
	int r = skv_transfer_buffer(w->transfer, &buffer);

	if (r < 0)
		return r;
	memset((char *)buffer + bytes, 0, padded - bytes);
	return skv_transfer_write(w->transfer, at, padded);
}

/* ---- completion ------------------------------------------------------------------------------ */

static int put_sums(struct skv_disk_writer *w)
{
	const uint64_t bytes = w->header.n_pages * sizeof(*w->sums);
	int r = 0;

	for (uint64_t at = w->header.sums_at, done = 0, piece; r == 0 && done < bytes; at += piece, done += piece) {
		size_t n;
		void *buffer;

		piece = skv_parked_piece(&w->header, at);
		n = bytes - done < piece ? (size_t)(bytes - done) : (size_t)piece;
		r = skv_transfer_buffer(w->transfer, &buffer);
		if (r == 0) {
			memcpy(buffer, (const char *)w->sums + done, n);
			r = skv_disk_writer_put(w, at, n);
		}
	}
	return r;
}

static int put_header(struct skv_disk_writer *w)
{
	struct timespec now;
	void *buffer;
	int r = skv_transfer_buffer(w->transfer, &buffer);

	if (r < 0)
		return r;
	clock_gettime(CLOCK_REALTIME, &now); /* an imported file counts as parked now, too, whatever its source says */
	w->header.parked_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	skv_parked_seal(&w->header);
	memcpy(buffer, &w->header, sizeof(w->header));
	w->work->header = w->header;
	return skv_disk_writer_put(w, 0, sizeof(w->header));
}

static int link_new(struct skv_disk_writer *w, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", w->fd);
	if (linkat(AT_FDCWD, path, folder(w), name, AT_SYMLINK_FOLLOW) == 0)
		return 0;
	if (errno != EEXIST || unlinkat(folder(w), name, 0) < 0) /* a dead worker with the same process id left it */
		return -errno;
	return linkat(AT_FDCWD, path, folder(w), name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

static int publish(struct skv_disk_writer *w, const char *name, bool replaces)
{
	char new[NEW_NAME];
	int r;

	new_name(new);
	r = w->linked ? 0 : link_new(w, new);
	if (r < 0)
		return r;
	w->linked = true;
	if (renameat2(folder(w), new, folder(w), name, replaces ? 0 : RENAME_NOREPLACE) < 0)
		return -errno;
	w->linked = false;
	if (fsync(folder(w)) == 0)
		return 0;
	r = -errno;
	w->work->left = unlinkat(folder(w), name, 0) < 0;
	return r;
}

int skv_disk_writer_end(struct skv_disk_writer *w, const char *name, bool replaces)
{
	int r = put_sums(w);

	if (r == 0)
		r = put_header(w);
	if (r == 0)
		r = skv_transfer_sync(w->transfer);
	if (r < 0)
		return r;
	r = publish(w, name, replaces);
	if (r == -EEXIST)
		return skv_disk_refuse(w->work, r, "there is a parked sequence of this model and name already");
	return r < 0 ? skv_disk_refuse(w->work, r, "the file cannot be given its name: %s", strerror(-r)) : 0;
}

void skv_disk_writer_free(struct skv_disk_writer *w)
{
	char name[NEW_NAME];

	skv_transfer_free(w->transfer);
	if (w->linked) {
		new_name(name);
		(void)unlinkat(folder(w), name, 0);
	}
	skv_close_fd(w->fd);
	free(w->sums);
}
