/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/resume.c - reads a sequence from a file into fresh memory.
 *
 * The main thread waits for the disk and passes each chunk to the helper threads (helpers.h), which compare the chunk's
 * pages with their checksums and copy them to host memory. Pages of a device are copied by the main thread, to which
 * the device's context belongs, after a helper has compared them. The sequence has no commit until everything is
 * copied, so chunks may be copied in any order.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/fd.h"
#include "daemon/disk/helpers.h"
#include "daemon/disk/pages.h"
#include "daemon/disk/reader.h"
#include "daemon/disk/transfer.h"

/* A chunk as a task of a helper thread. */
struct chunk {
	struct skv_disk_task task;
	struct resume *resume;
	struct skv_disk_work work; /* a copy of the job's, which receives the chunk's error text */
	const void *pages;
	uint32_t *ids; /* [header.chunk_pages] */
	uint64_t first;
	uint32_t n;
	int error;
};

struct resume {
	struct skv_disk_reader reader;
	struct skv_transfer *transfer;
	struct skv_disk_pages pages;
	struct skv_disk_list list; /* page ids of the pages to be read */
	struct skv_disk_helpers *helpers;
	struct chunk chunks[SKV_TRANSFER_MAX_HELD]; /* chunk i of the file is in chunks[i % SKV_TRANSFER_MAX_HELD] */
	uint64_t given, taken; /* number of chunks given to the helpers; number of chunks that they are done with */
};

/* Opens the job's file. Returns a descriptor that the caller owns, or a negative errno with a text. */
static int open_file(struct skv_disk_work *work, uint64_t *ret_bytes)
{
	int fd = openat(work->fds[SKV_DISK_FD_USER], work->job->file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), r = 0;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		r = skv_disk_refuse(work, -errno, "the file cannot be opened: %s", strerror(errno));
	else if (!S_ISREG(st.st_mode))
		r = skv_disk_refuse(work, -EBADMSG, "the file is not a regular file");
	if (r < 0) {
		skv_close_fd(fd);
		return r;
	}
	*ret_bytes = (uint64_t)st.st_size;
	return fd;
}

static bool same_model(const struct skv_wire_model *a, const struct skv_wire_model *b)
{
	return a->n_layers == b->n_layers && a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim &&
	       a->kv_dtype == b->kv_dtype && a->rank == b->rank && a->n_ranks == b->n_ranks && !strncmp(a->name, b->name, sizeof(a->name));
}

/* Checks that the file with this header belongs to the job's sequence. */
static int check_job(struct skv_disk_work *work, const struct skv_parked_header *h)
{
	const struct skv_disk_job *job = work->job;

	if (!same_model(&h->model, &job->model))
		return skv_disk_refuse(work, -EBADMSG, "the file is of a model '%s' of another shape or rank, expected "
		                                       "'%.*s'",
		                       h->model.name, (int)SKV_NAME_MAX, job->model.name);
	if (strncmp(h->name, job->name, sizeof(h->name)) != 0)
		return skv_disk_refuse(work, -EBADMSG, "the file is of sequence '%s', expected '%.*s'",
		                       h->name, (int)SKV_NAME_MAX, job->name);
	if (h->max_tokens != job->max_tokens)
		return skv_disk_refuse(work, -EBADMSG, "the sequence in the file may have %u tokens, expected %u",
		                       h->max_tokens, job->max_tokens);
	if (h->n_pages != job->n_pages || h->page_bytes != job->page_bytes)
		return skv_disk_refuse(work, -EBADMSG, "the file has %llu pages of %llu bytes, expected %llu of %llu",
		                       (unsigned long long)h->n_pages, (unsigned long long)h->page_bytes,
		                       (unsigned long long)job->n_pages, (unsigned long long)job->page_bytes);
	return 0;
}

static int read_header(struct skv_disk_work *work, int fd, uint64_t file_bytes, struct skv_parked_header *ret)
{
	ssize_t n = pread(fd, ret, sizeof(*ret), 0);
	int r;

	if (n < 0)
		return skv_disk_refuse(work, -errno, "the header of the file cannot be read: %s", strerror(errno));
	if (n != (ssize_t)sizeof(*ret))
		return skv_disk_refuse(work, -EBADMSG, "the file has %llu bytes, a header alone has %u", (unsigned long long)file_bytes,
		                       SKV_PARKED_ALIGN);
	r = skv_disk_reader_check(work, ret, file_bytes);
	return r < 0 ? r : check_job(work, ret);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static int copy(struct chunk *c, struct skv_disk_work *work)
{
	struct skv_disk_pages pages = c->resume->pages;

	pages.work = work;
	return skv_disk_pages_write(&pages, c->ids, c->n, c->pages);
}

static void compare_and_copy(struct skv_disk_task *task)
{
	struct chunk *c = (struct chunk *)task;

	c->error = skv_disk_reader_compare(&c->resume->reader, &c->work, c->first, c->n, c->pages);
	if (c->error == 0 && c->resume->pages.any_thread)
		c->error = copy(c, &c->work);
}

/* Waits until the helpers are done with the oldest chunk; copies its pages if they belong to a device. */
static int take_back(struct resume *s)
{
	struct skv_disk_work *work = s->reader.work;
	struct chunk *c = &s->chunks[s->taken++ % SKV_TRANSFER_MAX_HELD];

	skv_disk_helpers_wait(s->helpers, &c->task);
	if (c->error < 0)
		memcpy(work->why, c->work.why, sizeof(work->why));
	else if (!s->pages.any_thread)
		return copy(c, work);
	return c->error;
}

/* Waits for all chunks that the helpers have, even after an error. Returns 0 or the first error. */
static int take_all_back(struct resume *s)
{
	int r = 0;

	while (r == 0 && s->taken < s->given)
		r = take_back(s);
	while (s->taken < s->given)
		skv_disk_helpers_wait(s->helpers, &s->chunks[s->taken++ % SKV_TRANSFER_MAX_HELD].task);
	return r;
}

static int next(struct skv_disk_reader *r, size_t bytes, void **ret)
{
	struct resume *s = r->ctx;

	(void)bytes; /* the transfer computes the size of the piece itself */
	return skv_transfer_next(s->transfer, ret);
}

/*
 * Gives a chunk to the helpers. The next read reuses the buffer of the chunk that was given SKV_TRANSFER_MAX_HELD
 * chunks ago, so the helpers must be done with that one.
 */
static int chunk(struct skv_disk_reader *r, uint64_t first, uint32_t n, const void *pages)
{
	struct resume *s = r->ctx;
	struct chunk *c = &s->chunks[s->given % SKV_TRANSFER_MAX_HELD];
	int e = s->given - s->taken == SKV_TRANSFER_MAX_HELD ? take_back(s) : 0;

	if (e == 0)
		e = skv_disk_list_pages(&s->list, n, c->ids);
	if (e < 0)
		return e;
	c->first = first;
	c->n = n;
	c->pages = pages;
	s->given++;
	skv_disk_helpers_give(s->helpers, &c->task);
	return 0;
}

/* ---------------------------------------------------------------------------------------------- */

static int run(struct resume *s, struct skv_disk_work *work)
{
	struct skv_disk_reader *reader = &s->reader;
	size_t bytes;
	void *staging = skv_transfer_staging(s->transfer, &bytes);
	int r = skv_disk_pages_open(&s->pages, work, staging, bytes), last;

	if (r < 0)
		return r;
	skv_disk_memory_begin(&reader->memory, work, &reader->header, work->fds[SKV_DISK_FD_SEQ]);
	skv_disk_list_begin(&s->list, work, 0, reader->header.n_pages);
	r = skv_disk_reader_run(reader);
	last = take_all_back(s);
	skv_disk_pages_close(&s->pages);
	r = r < 0 ? r : last;
	return r < 0 ? r : skv_disk_memory_commit(&reader->memory);
}

static int prepare(struct resume *s, struct skv_disk_work *work)
{
	int r = skv_disk_helpers_new(work, &s->helpers);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < SKV_TRANSFER_MAX_HELD; i++) {
		s->chunks[i] = (struct chunk){.task.run = compare_and_copy, .resume = s, .work = *work};
		s->chunks[i].ids = malloc(s->reader.header.chunk_pages * sizeof(*s->chunks[i].ids));
		if (!s->chunks[i].ids)
			return -ENOMEM;
	}
	return 0;
}

int skv_disk_resume(struct skv_disk_work *work)
{
	struct resume s = {.reader = {.work = work, .next = next, .chunk = chunk}};
	uint64_t file_bytes;
	SKV_FD_CLEANUP int fd = open_file(work, &file_bytes);
	int r = fd < 0 ? fd : read_header(work, fd, file_bytes, &s.reader.header);

	s.reader.ctx = &s;
	if (r == 0)
		r = skv_transfer_new(work, fd, &s.reader.header, SKV_TRANSFER_MAX_HELD, &s.transfer);
	if (r == 0)
		r = prepare(&s, work);
	if (r == 0)
		r = run(&s, work);
	skv_disk_helpers_free(s.helpers);
	skv_transfer_free(s.transfer);
	free(s.reader.sums);
	for (uint32_t i = 0; i < SKV_TRANSFER_MAX_HELD; i++)
		free(s.chunks[i].ids);
	return r;
}
