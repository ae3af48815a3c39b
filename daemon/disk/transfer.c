/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/transfer.c - reads and writes files with io_uring, see transfer.h.
 *
 * The pieces of a file are numbered; piece i uses buffer i % n_buffers. The caller has some of the buffers, and the
 * others have a read or write in flight. Operations complete in any order; the transfer waits for the piece with the
 * lowest number.
 *
 * The process has one ring, which is created once and has no operation in flight between transfers. The kernel releases
 * the memory of a closed ring only after a delay, during which it counts against RLIMIT_MEMLOCK. So if each of many
 * small jobs had a ring of its own, creating one would fail.
 */
#include "daemon/disk/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_BUFFERS (SKV_DISK_FLIGHT + SKV_TRANSFER_MAX_HELD)
#define CALL MAX_BUFFERS /* user data of an operation without a buffer (fsync, fallocate); there is one at a time */

struct operation {
	char *data;
	uint64_t at;
	size_t bytes, done;
	bool busy;   /* the operation is in flight */
	bool direct; /* the operation was submitted with O_DIRECT */
};

struct skv_transfer {
	struct skv_disk_work *work;
	const struct skv_parked_header *header;
	int fd;
	bool direct, registered, reads;
	int error;
	char *staging;
	size_t buffer_bytes;
	uint32_t n_buffers;
	struct operation ops[MAX_BUFFERS]; /* [n_buffers] */
	uint64_t begun, out; /* number of pieces submitted; number of pieces that the caller has read */
	uint64_t read_at;    /* byte offset of the next piece to be read */
	bool calling; /* an operation without a buffer is in flight */
	int called; /* result of the last such operation */
};

/* ---- the ring -------------------------------------------------------------------------------- */

static struct io_uring ring;
static bool has_ring;

static int make_ring(struct skv_disk_work *work)
{
	struct io_uring_params params = {.flags = IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN};
	int r = has_ring ? 0 : io_uring_queue_init_params(2 * MAX_BUFFERS, &ring, &params);

	has_ring = r == 0;
	return r < 0 ? skv_disk_refuse(work, r, "the disk worker cannot set up an io_uring: %s", strerror(-r)) : 0;
}

static void begin(struct skv_transfer *t, uint32_t i)
{
	struct operation *op = &t->ops[i];
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring); /* never NULL: the ring has an entry for each operation */
	char *data = op->data + op->done;
	unsigned n = (unsigned)(op->bytes - op->done);

	if (t->reads && t->registered)
		io_uring_prep_read_fixed(sqe, t->fd, data, n, op->at + op->done, (int)i);
	else if (t->reads)
		io_uring_prep_read(sqe, t->fd, data, n, op->at + op->done);
	else if (t->registered)
		io_uring_prep_write_fixed(sqe, t->fd, data, n, op->at + op->done, (int)i);
	else
		io_uring_prep_write(sqe, t->fd, data, n, op->at + op->done);
	io_uring_sqe_set_data64(sqe, i);
	op->direct = t->direct;
	op->busy = true;
	/* if submitting fails now, the next begin() or wait_for_some() submits the operation */
	(void)io_uring_submit(&ring);
}

static void broken(struct skv_transfer *t, int error, uint64_t at)
{
	if (t->error)
		return;
	if (error == 0)
		t->error = skv_disk_refuse(t->work, t->reads ? -EBADMSG : -EIO, "the file ends at byte %llu", (unsigned long long)at);
	else
		t->error = skv_disk_refuse(t->work, error, "%s the file at byte %llu: %s", t->reads ? "reading" : "writing",
		                           (unsigned long long)at, strerror(-error));
}

/* Clears O_DIRECT: some file systems accept the flag, but then direct reads and writes fail or need larger blocks. */
static void go_through_cache(struct skv_transfer *t)
{
	int flags = fcntl(t->fd, F_GETFL);

	if (flags >= 0 && t->direct)
		(void)fcntl(t->fd, F_SETFL, flags & ~O_DIRECT);
	t->direct = false;
}

static void completed(struct skv_transfer *t, uint32_t i, int res)
{
	struct operation *op = &t->ops[i];

	op->busy = false;
	if (res == -EINVAL && op->direct) {
		go_through_cache(t);
	} else if (res <= 0 && res != -EINTR && res != -EAGAIN) {
		broken(t, res, op->at + op->done);
	} else if (res > 0) {
		op->done += (size_t)res;
	}
	if (op->done < op->bytes && !t->error)
		begin(t, i);
}

/* Waits until an operation completes or a progress report is due. A negative errno: the ring is unusable. */
static int wait_for_some(struct skv_transfer *t)
{
	struct __kernel_timespec time = {.tv_sec = SKV_DISK_SAYS_NS / 1000000000u, .tv_nsec = SKV_DISK_SAYS_NS % 1000000000u};
	struct io_uring_cqe *cqe;
	int r = io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &time, NULL);

	if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY) {
		broken(t, r, 0);
		return r;
	}
	while (io_uring_peek_cqe(&ring, &cqe) == 0) {
		uint64_t i = io_uring_cqe_get_data64(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&ring, cqe);
		if (i != CALL) {
			completed(t, (uint32_t)i, res);
			continue;
		}
		t->called = res;
		t->calling = false;
	}
	r = skv_disk_progress(t->work, 0);
	if (r < 0 && !t->error)
		t->error = r;
	return 0;
}

static int wait_for(struct skv_transfer *t, const struct operation *op)
{
	while (op->busy && !t->error)
		(void)wait_for_some(t);
	return t->error;
}

static int wait_for_all(struct skv_transfer *t)
{
	for (uint32_t i = 0; i < t->n_buffers; i++)
		(void)wait_for(t, &t->ops[i]);
	return t->error;
}

/* Submits a prepared operation and waits for it. Returns its result, which does not become t->error if negative. */
static int call(struct skv_transfer *t, struct io_uring_sqe *sqe)
{
	io_uring_sqe_set_data64(sqe, CALL);
	t->calling = true;
	while (t->calling && !t->error)
		(void)wait_for_some(t);
	return t->error ? t->error : t->called;
}

/* ---- creation and removal -------------------------------------------------------------------- */

static void register_buffers(struct skv_transfer *t)
{
	struct iovec buffers[MAX_BUFFERS];

	for (uint32_t i = 0; i < t->n_buffers; i++)
		buffers[i] = (struct iovec){t->ops[i].data, t->buffer_bytes};
	/* registering may fail because of RLIMIT_MEMLOCK; unregistered buffers work, too */
	t->registered = io_uring_register_buffers(&ring, buffers, t->n_buffers) == 0;
}

int skv_transfer_new(struct skv_disk_work *work, int fd, const struct skv_parked_header *h, uint32_t held, struct skv_transfer **ret)
{
	const uint32_t n_buffers = SKV_DISK_FLIGHT + held;
	const size_t buffer_bytes = h->chunk_bytes < h->file_bytes ? h->chunk_bytes : h->file_bytes;
	struct skv_transfer *t = calloc(1, sizeof(*t));
	int flags = fcntl(fd, F_GETFL), r = make_ring(work);
	void *staging;

	staging = r < 0 ? MAP_FAILED : mmap(NULL, n_buffers * buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!t || staging == MAP_FAILED) {
		if (staging != MAP_FAILED)
			munmap(staging, n_buffers * buffer_bytes);
		free(t);
		return r < 0 ? r : skv_disk_refuse(work, -ENOMEM, "the disk worker has no memory for %u buffers of %zu bytes", n_buffers, buffer_bytes);
	}
	*t = (struct skv_transfer){
		.work = work, .header = h, .fd = fd, .staging = staging, .buffer_bytes = buffer_bytes, .n_buffers = n_buffers, .read_at = h->memory_at};
	for (uint32_t i = 0; i < n_buffers; i++)
		t->ops[i].data = t->staging + i * buffer_bytes;
	register_buffers(t);
	t->direct = flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
	*ret = t;
	return 0;
}

void skv_transfer_free(struct skv_transfer *t)
{
	bool empty = true;

	if (!t)
		return;
	for (uint32_t i = 0; i <= CALL; i++)
		while (empty && (i < CALL ? t->ops[i].busy : t->calling)) {
			if (!t->error)
				t->error = -ECANCELED; /* so that completed() does not resubmit incomplete operations */
			empty = wait_for_some(t) == 0;
		}
	if (t->registered)
		(void)io_uring_unregister_buffers(&ring);
	if (!empty) { /* operations in flight may still write to the buffers, so the buffers stay mapped */
		io_uring_queue_exit(&ring);
		has_ring = false;
	} else {
		munmap(t->staging, t->n_buffers * t->buffer_bytes);
	}
	free(t);
}

void *skv_transfer_staging(const struct skv_transfer *t, size_t *ret_bytes)
{
	*ret_bytes = t->n_buffers * t->buffer_bytes;
	return t->staging;
}

/* ---- writing --------------------------------------------------------------------------------- */

int skv_transfer_allocate(struct skv_transfer *t, uint64_t bytes)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	int r;

	io_uring_prep_fallocate(sqe, t->fd, 0, 0, (off_t)bytes);
	r = call(t, sqe);
	if (r < 0 && r != -EOPNOTSUPP && !t->error)
		t->error = skv_disk_refuse(t->work, r, "disk space for %llu bytes cannot be allocated: %s",
		                           (unsigned long long)bytes, strerror(-r));
	return t->error;
}

int skv_transfer_buffer(struct skv_transfer *t, void **ret)
{
	struct operation *op = &t->ops[t->begun % t->n_buffers];
	int r = wait_for(t, op);

	if (r == 0)
		*ret = op->data;
	return r;
}

int skv_transfer_write(struct skv_transfer *t, uint64_t at, size_t bytes)
{
	uint32_t i = (uint32_t)(t->begun % t->n_buffers);

	if (t->error)
		return t->error;
	t->ops[i].at = at;
	t->ops[i].bytes = bytes;
	t->ops[i].done = 0;
	begin(t, i);
	t->begun++;
	return skv_disk_progress(t->work, bytes);
}

int skv_transfer_sync(struct skv_transfer *t)
{
	struct io_uring_sqe *sqe;
	int r = wait_for_all(t);

	if (r < 0)
		return r;
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_fsync(sqe, t->fd, 0);
	r = call(t, sqe);
	if (r < 0 && !t->error)
		t->error = skv_disk_refuse(t->work, r, "the file cannot be synchronized: %s", strerror(-r));
	return t->error;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Submits reads of the next pieces, except into the `held` buffers that skv_transfer_next() returned last. */
static void read_ahead(struct skv_transfer *t)
{
	size_t bytes;

	while (t->begun < t->out + SKV_DISK_FLIGHT && (bytes = skv_parked_piece(t->header, t->read_at)) > 0) {
		uint32_t i = (uint32_t)(t->begun % t->n_buffers);

		t->ops[i].at = t->read_at;
		t->ops[i].bytes = bytes;
		t->ops[i].done = 0;
		begin(t, i);
		t->begun++;
		t->read_at += bytes;
	}
}

int skv_transfer_next(struct skv_transfer *t, void **ret)
{
	struct operation *op = &t->ops[t->out % t->n_buffers];
	int r = t->error;

	t->reads = true;
	if (r == 0) {
		read_ahead(t);
		r = wait_for(t, op);
	}
	if (r < 0)
		return r;
	t->out++;
	*ret = op->data;
	return skv_disk_progress(t->work, op->bytes);
}
