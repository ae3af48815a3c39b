/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/fail-nth.c - see fail-nth.h. Each function replaces the C library's or liburing's function of the same
 * name.
 */
#include "tests/support/fail-nth.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <liburing.h>
#include <link.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define INTERPOSED __attribute__((visibility("default")))
#define FRAMES 10

static struct fail_nth *page;
static uintptr_t program_begin, program_end; /* code of the program itself, whose own calls do not fail */
static uint32_t me = FAIL_DAEMON;
static _Thread_local bool inside; /* true while code of this file makes calls: they do not count */

/* ---- which call fails ------------------------------------------------------------------------ */

static void tell_where(void)
{
	void *at[FRAMES];
	const int n = backtrace(at, FRAMES);
	size_t len = 0;
	Dl_info info;

	for (int i = 2; i < n; i++) {
		const bool known = dladdr(at[i], &info) != 0;
		const char *file = known ? strrchr(info.dli_fname, '/') : NULL;
		const uintptr_t base = known ? (uintptr_t)info.dli_fbase : 0;

		len += (size_t)snprintf(page->where + len, sizeof(page->where) - len, " %s+%#lx", file ? file + 1 : "?",
		                        (unsigned long)((uintptr_t)at[i] - base));
		if (len >= sizeof(page->where))
			return;
	}
}

static bool counts(enum fail_kind kind, const void *caller)
{
	const uintptr_t at = (uintptr_t)caller;
	uint32_t n;

	if (!page || page->kind != kind || inside || (page->processes && !(page->processes & me)) || (at >= program_begin && at < program_end))
		return false;
	n = ++page->seen;
	if (!page->nth || n < page->nth || (n > page->nth && !page->onwards))
		return false;
	inside = true;
	if (page->fired++ == 0)
		tell_where();
	inside = false;
	return true;
}

#define FAILS(kind) counts(kind, __builtin_return_address(0))

static int error_of(int usual)
{
	return page->error ? (int)page->error : usual;
}

static int refused(int usual)
{
	errno = error_of(usual);
	return -1;
}

static int find_program(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
			program_begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			program_end = program_begin + info->dlpi_phdr[i].p_memsz;
		}
	return 1; /* the program comes first */
}

/* Calls backtrace() once, so that the libraries that it needs are loaded before any call fails. */
static void begin(struct fail_nth *p)
{
	void *at[FRAMES];

	(void)backtrace(at, FRAMES);
	page = p;
}

void fail_nth_use(struct fail_nth *p)
{
	dl_iterate_phdr(find_program, NULL);
	begin(p);
}

static uint32_t process_of(const char *option)
{
	static const struct {
		const char *option;
		uint32_t process;
	} known[] = {
		{"disk", FAIL_DISK_WORKER}, {"cuda", FAIL_DEVICE_WORKER}, {"--keeper", FAIL_KEEPER},
	};

	for (size_t i = 0; option && i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(option, known[i].option) == 0)
			return known[i].process;
	return FAIL_DAEMON;
}

__attribute__((constructor)) static void preloaded(int argc, char **argv)
{
	const char *path = getenv(FAIL_NTH_PAGE);
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	struct fail_nth *p;

	if (fd < 0)
		return;
	p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		abort();
	me = process_of(argc > 2 && !strcmp(argv[0], "sparsekv-worker") ? argv[2] : argc > 1 ? argv[1] : NULL);
	if (!p->processes) {
		unsetenv("LD_PRELOAD");
		unsetenv(FAIL_NTH_PAGE);
	}
	begin(p);
}

/* The original function of this name. */
#define NEXT(name)                                                                  \
	({                                                                          \
		static __typeof__(&name) next_;                                     \
		if (!next_) {                                                       \
			inside = true;                                              \
			*(void **)&next_ = dlsym(RTLD_NEXT, #name);                 \
			inside = false;                                             \
		}                                                                   \
		next_;                                                              \
	})

/* ---- alloc ----------------------------------------------------------------------------------- */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static void *no_memory(void)
{
	errno = ENOMEM;
	return NULL;
}

INTERPOSED void *malloc(size_t bytes)
{
	return FAILS(FAIL_ALLOC) ? no_memory() : __libc_malloc(bytes);
}

INTERPOSED void *calloc(size_t n, size_t bytes)
{
	return FAILS(FAIL_ALLOC) ? no_memory() : __libc_calloc(n, bytes);
}

INTERPOSED void *realloc(void *p, size_t bytes)
{
	return FAILS(FAIL_ALLOC) ? no_memory() : __libc_realloc(p, bytes);
}

INTERPOSED void *aligned_alloc(size_t alignment, size_t bytes)
{
	return FAILS(FAIL_ALLOC) ? no_memory() : __libc_memalign(alignment, bytes);
}

/* ---- memory ---------------------------------------------------------------------------------- */

INTERPOSED int memfd_create(const char *name, unsigned flags)
{
	return FAILS(FAIL_MEMORY) ? refused(ENOMEM) : FAILS(FAIL_DESCRIPTOR) ? refused(EMFILE) : NEXT(memfd_create)(name, flags);
}

INTERPOSED int ftruncate(int fd, off_t bytes)
{
	return FAILS(FAIL_MEMORY) ? refused(ENOMEM) : NEXT(ftruncate)(fd, bytes);
}

INTERPOSED int fallocate(int fd, int mode, off_t at, off_t bytes)
{
	return FAILS(FAIL_MEMORY) ? refused(ENOMEM) : NEXT(fallocate)(fd, mode, at, bytes);
}

INTERPOSED void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	if (!FAILS(FAIL_MEMORY))
		return NEXT(mmap)(at, bytes, prot, flags, fd, offset);
	errno = error_of(ENOMEM);
	return MAP_FAILED;
}

INTERPOSED void *mremap(void *at, size_t bytes, size_t to_bytes, int flags, ...)
{
	va_list ap;
	void *to;

	if (FAILS(FAIL_MEMORY)) {
		errno = error_of(ENOMEM);
		return MAP_FAILED;
	}
	va_start(ap, flags);
	to = flags & MREMAP_FIXED ? va_arg(ap, void *) : NULL;
	va_end(ap);
	return NEXT(mremap)(at, bytes, to_bytes, flags, to);
}

INTERPOSED int posix_spawn(pid_t *ret, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attr,
                           char *const *argv, char *const *envp)
{
	return FAILS(FAIL_MEMORY) ? error_of(EAGAIN) : NEXT(posix_spawn)(ret, path, actions, attr, argv, envp);
}

INTERPOSED pid_t fork(void)
{
	return FAILS(FAIL_MEMORY) ? refused(EAGAIN) : NEXT(fork)();
}

INTERPOSED int pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	return FAILS(FAIL_MEMORY) ? error_of(EAGAIN) : NEXT(pthread_create)(ret, attr, start, arg);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

INTERPOSED int fcntl(int fd, int command, ...)
{
	va_list ap;
	void *arg;

	if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && FAILS(FAIL_DESCRIPTOR))
		return refused(EMFILE);
	va_start(ap, command);
	arg = va_arg(ap, void *);
	va_end(ap);
	return NEXT(fcntl)(fd, command, arg);
}

INTERPOSED int open(const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	if (FAILS(FAIL_DESCRIPTOR))
		return refused(EMFILE);
	if (FAILS(FAIL_FILE))
		return refused(EIO);
	va_start(ap, flags);
	if (flags & (O_CREAT | O_TMPFILE))
		mode = va_arg(ap, mode_t);
	va_end(ap);
	return NEXT(open)(path, flags, mode);
}

INTERPOSED int openat(int folder, const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	if (FAILS(FAIL_DESCRIPTOR))
		return refused(EMFILE);
	if (FAILS(FAIL_FILE))
		return refused(EIO);
	va_start(ap, flags);
	if (flags & (O_CREAT | O_TMPFILE))
		mode = va_arg(ap, mode_t);
	va_end(ap);
	return NEXT(openat)(folder, path, flags, mode);
}

INTERPOSED int pipe2(int ends[2], int flags)
{
	return FAILS(FAIL_DESCRIPTOR) ? refused(EMFILE) : NEXT(pipe2)(ends, flags);
}

INTERPOSED int dup2(int from, int to)
{
	return FAILS(FAIL_DESCRIPTOR) ? refused(EMFILE) : NEXT(dup2)(from, to);
}

INTERPOSED FILE *fopen(const char *path, const char *mode)
{
	if (!FAILS(FAIL_DESCRIPTOR))
		return NEXT(fopen)(path, mode);
	errno = error_of(EMFILE);
	return NULL;
}

INTERPOSED int socket(int domain, int type, int protocol)
{
	return FAILS(FAIL_DESCRIPTOR) ? refused(EMFILE) : NEXT(socket)(domain, type, protocol);
}

INTERPOSED int socketpair(int domain, int type, int protocol, int ret[2])
{
	return FAILS(FAIL_DESCRIPTOR) ? refused(EMFILE) : NEXT(socketpair)(domain, type, protocol, ret);
}

INTERPOSED int eventfd(unsigned value, int flags)
{
	return FAILS(FAIL_DESCRIPTOR) ? refused(EMFILE) : NEXT(eventfd)(value, flags);
}

INTERPOSED int signalfd(int fd, const sigset_t *set, int flags)
{
	return FAILS(FAIL_DESCRIPTOR) ? refused(EMFILE) : NEXT(signalfd)(fd, set, flags);
}

INTERPOSED int pidfd_open(pid_t pid, unsigned flags)
{
	return FAILS(FAIL_DESCRIPTOR) ? refused(EMFILE) : NEXT(pidfd_open)(pid, flags);
}

/* ---- writes and sends ------------------------------------------------------------------------ */

INTERPOSED ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
	return FAILS(FAIL_WRITE) ? refused(ENOSPC) : NEXT(pwrite)(fd, data, bytes, at);
}

INTERPOSED ssize_t write(int fd, const void *data, size_t bytes)
{
	return FAILS(FAIL_WRITE) ? refused(ENOSPC) : NEXT(write)(fd, data, bytes);
}

INTERPOSED ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
	return FAILS(FAIL_SEND) ? refused(ENOBUFS) : NEXT(send)(fd, data, bytes, flags);
}

INTERPOSED ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	return FAILS(FAIL_SEND) ? refused(ENOBUFS) : NEXT(sendmsg)(fd, message, flags);
}

INTERPOSED ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	return FAILS(FAIL_RECEIVE) ? refused(ENOMEM) : NEXT(recvmsg)(fd, message, flags);
}

/* ---- files ----------------------------------------------------------------------------------- */

INTERPOSED int linkat(int from_folder, const char *from, int folder, const char *to, int flags)
{
	return FAILS(FAIL_FILE) ? refused(EIO) : NEXT(linkat)(from_folder, from, folder, to, flags);
}

INTERPOSED int renameat2(int from_folder, const char *from, int folder, const char *to, unsigned flags)
{
	return FAILS(FAIL_FILE) ? refused(EIO) : NEXT(renameat2)(from_folder, from, folder, to, flags);
}

INTERPOSED int unlinkat(int folder, const char *name, int flags)
{
	return FAILS(FAIL_FILE) ? refused(EIO) : NEXT(unlinkat)(folder, name, flags);
}

INTERPOSED int unlink(const char *path)
{
	return FAILS(FAIL_FILE) ? refused(EIO) : NEXT(unlink)(path);
}

INTERPOSED int mkdirat(int folder, const char *name, mode_t mode)
{
	return FAILS(FAIL_FILE) ? refused(EIO) : NEXT(mkdirat)(folder, name, mode);
}

INTERPOSED int fsync(int fd)
{
	return FAILS(FAIL_FILE) ? refused(EIO) : NEXT(fsync)(fd);
}

INTERPOSED int flock(int fd, int operation)
{
	return FAILS(FAIL_FILE) ? refused(EIO) : NEXT(flock)(fd, operation);
}

/* memfds have no I/O errors as a disk has, but a read may lack memory. */
static bool has_errors(int fd)
{
	return page && (page->error == ENOMEM || NEXT(fcntl)(fd, F_GET_SEALS) < 0);
}

INTERPOSED ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
	return has_errors(fd) && FAILS(FAIL_FILE) ? refused(EIO) : NEXT(pread)(fd, to, bytes, at);
}

INTERPOSED ssize_t read(int fd, void *to, size_t bytes)
{
	return FAILS(FAIL_FILE) ? refused(EIO) : NEXT(read)(fd, to, bytes);
}

INTERPOSED ssize_t splice(int from, off_t *from_at, int to, off_t *at, size_t bytes, unsigned flags)
{
	return FAILS(FAIL_FILE) ? refused(EIO) : NEXT(splice)(from, from_at, to, at, bytes, flags);
}

/* ---- the ring -------------------------------------------------------------------------------- */

/* The error that the operation fails with; 0: operations of this kind do not fail. */
static int result_of(int opcode)
{
	switch (opcode) {
	case IORING_OP_ACCEPT: return -ENFILE;
	case IORING_OP_SENDMSG: return -ENOBUFS;
	case IORING_OP_FSYNC: return -EIO;
	case IORING_OP_RECVMSG:
	case IORING_OP_READ:
	case IORING_OP_WRITE:
	case IORING_OP_POLL_ADD:
	case IORING_OP_TIMEOUT:
	case IORING_OP_FALLOCATE: return -ENOMEM;
	default: return 0;
	}
}

static bool is_transfer(int opcode)
{
	return opcode == IORING_OP_READ || opcode == IORING_OP_WRITE || opcode == IORING_OP_READ_FIXED || opcode == IORING_OP_WRITE_FIXED;
}

/* An operation that was replaced, if any: its tag, and the result that it completes with. */
struct replaced {
	bool is;
	uint64_t tag;
	int result;
};

static void shorten(struct io_uring_sqe *sqe)
{
	const unsigned block = 4096, half = sqe->len / 2;

	if (page->error)
		sqe->len = page->error < sqe->len ? page->error : sqe->len;
	else
		/* O_DIRECT transfers whole blocks, and the rest must begin at one */
		sqe->len = half >= block ? half / block * block : half ? half : 1;
}

static int fails_with(struct io_uring_sqe *sqe, const void *caller)
{
	const int usual = result_of(sqe->opcode);

	if (usual && counts(FAIL_OPERATION, caller))
		return -error_of(-usual);
	if (is_transfer(sqe->opcode) && counts(FAIL_TRANSFER, caller))
		return -error_of(EIO);
	if (is_transfer(sqe->opcode) && counts(FAIL_SHORT, caller))
		shorten(sqe);
	return 0;
}

/* Replaces at most one of the operations about to be submitted, or refuses the submission. */
static int before_submit(struct io_uring *ring, struct replaced *ret, const void *caller)
{
	*ret = (struct replaced){.is = false};
	if (counts(FAIL_RING, caller))
		return -error_of(EAGAIN);
	for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail && !ret->is; i++) {
		struct io_uring_sqe *sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];
		const int result = fails_with(sqe, caller);

		if (!result)
			continue;
		*ret = (struct replaced){.is = true, .tag = sqe->user_data, .result = result};
		io_uring_prep_nop(sqe);
		sqe->user_data = ret->tag;
	}
	return 0;
}

/* The replacement is a NOP, which completes at once. */
static int after_submit(struct io_uring *ring, const struct replaced *replaced, int r)
{
	unsigned head;
	struct io_uring_cqe *cqe;

	if (replaced->is)
		io_uring_for_each_cqe(ring, head, cqe)
			if (cqe->user_data == replaced->tag)
				cqe->res = replaced->result;
	return r;
}

INTERPOSED int io_uring_submit(struct io_uring *ring)
{
	struct replaced replaced;
	int r = before_submit(ring, &replaced, __builtin_return_address(0));

	return r < 0 ? r : after_submit(ring, &replaced, NEXT(io_uring_submit)(ring));
}

INTERPOSED int io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
	struct replaced replaced;
	int r = before_submit(ring, &replaced, __builtin_return_address(0));

	return r < 0 ? r : after_submit(ring, &replaced, NEXT(io_uring_submit_and_wait)(ring, n));
}

INTERPOSED int io_uring_submit_and_get_events(struct io_uring *ring)
{
	struct replaced replaced;
	int r = before_submit(ring, &replaced, __builtin_return_address(0));

	return r < 0 ? r : after_submit(ring, &replaced, NEXT(io_uring_submit_and_get_events)(ring));
}

INTERPOSED int io_uring_queue_init_params(unsigned entries, struct io_uring *ring, struct io_uring_params *params)
{
	return FAILS(FAIL_RING) ? -error_of(ENOMEM) : NEXT(io_uring_queue_init_params)(entries, ring, params);
}

INTERPOSED int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n, struct __kernel_timespec *time,
                                                sigset_t *mask)
{
	struct replaced replaced;
	int r = before_submit(ring, &replaced, __builtin_return_address(0));

	return r < 0 ? r : after_submit(ring, &replaced, NEXT(io_uring_submit_and_wait_timeout)(ring, cqe, n, time, mask));
}

/* ---- the driver ------------------------------------------------------------------------------ */

INTERPOSED uint32_t fail_nth_of_driver(void)
{
	return FAILS(FAIL_DRIVER) ? page->error : 0;
}
