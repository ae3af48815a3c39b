/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/import.c - imports a parked file from a file or pipe of any origin.
 *
 * Another process may change the source while it is read. So data is checked in a staging buffer, to which no other
 * process can write, and written to the new file from there. Imports of other users wait until this one ends, so an
 * import whose source sends nothing for long, or too slowly, fails.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/clock.h"
#include "daemon/disk/reader.h"
#include "daemon/disk/writer.h"

#define MS UINT64_C(1000000)
#define LOOK_MS (SKV_DISK_SAYS_NS / 1000000)

struct import {
	struct skv_disk_reader reader;
	struct skv_disk_writer writer;
	bool regular;
	uint64_t at; /* number of bytes of the source read so far */
	uint64_t waited_ns; /* time spent waiting for the source so far */
};

/* ---- the source ------------------------------------------------------------------------------ */

/* Waits until a pipe has data or its writer has closed it. */
static int wait_for_more(struct skv_disk_work *work, int fd)
{
	const uint64_t patience_ms = work->job->patience_ms, end_ns = skv_now_ns() + patience_ms * MS;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int r = 0;

	while (r == 0 && poll(&p, 1, (int)(patience_ms < LOOK_MS ? patience_ms : LOOK_MS)) <= 0) {
		if (skv_now_ns() >= end_ns)
			return skv_disk_refuse(work, -ETIMEDOUT, "nothing was received of the file for %llu s",
			                       (unsigned long long)(patience_ms / 1000));
		r = skv_disk_progress(work, 0);
	}
	return r;
}

/* Checks the source's average rate: bytes read so far over the time spent waiting for them. */
static int check_rate(const struct import *s)
{
	const uint64_t waited_ms = s->waited_ns / MS, patience_ms = s->reader.work->job->patience_ms;

	if (waited_ms <= patience_ms || s->at >= (waited_ms - patience_ms) / 1000 * SKV_DISK_IMPORT_RATE)
		return 0;
	return skv_disk_refuse(s->reader.work, -ETIMEDOUT, "got %llu bytes of the file in %llu s, expected %u a second",
	                       (unsigned long long)s->at,
	                       (unsigned long long)(waited_ms / 1000), SKV_DISK_IMPORT_RATE);
}

static int read_exactly(struct import *s, char *to, size_t bytes)
{
	struct skv_disk_work *work = s->reader.work;
	int fd = work->fds[SKV_DISK_FD_OTHER], r = 0;

	for (size_t done = 0; r == 0 && done < bytes;) {
		const uint64_t begun_ns = skv_now_ns();
		ssize_t n;

		if (!s->regular)
			r = wait_for_more(work, fd);
		if (r < 0)
			break;
		n = s->regular ? pread(fd, to + done, bytes - done, (off_t)s->at) : read(fd, to + done, bytes - done);
		s->waited_ns += skv_now_ns() - begun_ns;
		if (n > 0) {
			done += (size_t)n;
			s->at += (uint64_t)n;
			r = check_rate(s);
			if (r == 0)
				r = skv_disk_progress(work, 0);
		} else if (n == 0) {
			r = skv_disk_refuse(work, -EBADMSG, "the file ends after %llu bytes, expected %llu",
			                    (unsigned long long)s->at,
			                    (unsigned long long)(s->reader.header.file_bytes
			                                                 ? s->reader.header.file_bytes
			                                                 : SKV_PARKED_ALIGN));
		} else if (errno != EINTR && errno != EAGAIN) {
			r = skv_disk_refuse(work, -errno, "the file to be imported cannot be read at byte %llu: %s",
			                    (unsigned long long)s->at,
			                    strerror(errno));
		}
	}
	return r;
}

/* ---- callbacks of the reader ----------------------------------------------------------------- */

static int next(struct skv_disk_reader *r, size_t bytes, void **ret)
{
	struct import *s = r->ctx;
	int e = skv_transfer_buffer(s->writer.transfer, ret);

	return e < 0 ? e : read_exactly(s, *ret, bytes);
}

static int memory_piece(struct skv_disk_reader *r, uint64_t at, size_t bytes)
{
	struct import *s = r->ctx;

	return skv_disk_writer_put(&s->writer, at, bytes);
}

static int chunk(struct skv_disk_reader *r, uint64_t first, uint32_t n, const void *pages)
{
	const struct skv_parked_header *h = &r->header;
	struct import *s = r->ctx;
	/* `pages` are in the writer's buffer, so they are written without a copy */
	int e = skv_disk_reader_compare(r, r->work, first, n, pages);

	return e < 0 ? e
	             : skv_disk_writer_put(&s->writer, h->pages_at + first / h->chunk_pages * h->chunk_bytes,
	                                   n * h->page_bytes);
}

/* ---------------------------------------------------------------------------------------------- */

static int read_header(struct import *s)
{
	struct skv_disk_work *work = s->reader.work;
	char block[SKV_PARKED_ALIGN];
	struct stat st;
	int r;

	if (fstat(work->fds[SKV_DISK_FD_OTHER], &st) < 0)
		return skv_disk_refuse(work, -errno, "the descriptor of the file to be imported cannot be used: %s",
		                       strerror(errno));
	s->regular = S_ISREG(st.st_mode);
	if (!s->regular && !S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode))
		return skv_disk_refuse(work, -EBADMSG, "got neither a file nor a pipe, expected one of them");
	r = read_exactly(s, block, sizeof(block));
	if (r < 0)
		return r;
	memcpy(&s->reader.header, block, sizeof(s->reader.header));
	r = skv_disk_reader_check(work, &s->reader.header, s->regular ? (uint64_t)st.st_size : UINT64_MAX);
	if (r == 0 && s->reader.header.n_keys) /* a prefix's keys depend on the secret of the daemon that made them */
		return skv_disk_refuse(work, -EBADMSG,
		                       "got the file of a sealed prefix, expected that of a sequence");
	return r;
}

/* Copies everything after the header, which has been checked, to the new file, and gives that its name. */
static int run(struct import *s)
{
	struct skv_disk_reader *reader = &s->reader;
	struct skv_parked_header h = reader->header;
	int r;

	h.uid = reader->work->job->uid;
	r = skv_disk_writer_begin(&s->writer, reader->work, &h);
	if (r < 0)
		return r;
	skv_disk_memory_begin(&reader->memory, reader->work, &reader->header, -1);
	r = skv_disk_reader_run(reader);
	if (r < 0)
		return r;
	memcpy(s->writer.sums, reader->sums, h.n_pages * sizeof(*reader->sums));
	return skv_disk_writer_end(&s->writer, reader->work->file, false);
}

int skv_disk_import(struct skv_disk_work *work)
{
	struct import s = {.reader = {.work = work, .next = next, .memory_piece = memory_piece, .chunk = chunk}};
	const struct skv_wire_model *m = &s.reader.header.model;
	int r;

	s.reader.ctx = &s;
	r = read_header(&s);
	if (r < 0)
		return r;
	skv_parked_file(m->name, m->rank, m->n_ranks, s.reader.header.name, work->file);
	if (faccessat(work->fds[SKV_DISK_FD_USER], work->file, F_OK, 0) == 0)
		return skv_disk_refuse(work, -EEXIST, "there is a parked sequence '%s' of model '%s' already",
		                       s.reader.header.name, m->name);
	r = run(&s);
	skv_disk_writer_free(&s.writer);
	free(s.reader.sums);
	return r;
}
