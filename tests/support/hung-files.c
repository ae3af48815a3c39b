/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/hung-files.c - see hung-files.h. The server knows only as much of FUSE as open(2) needs. */
#include "tests/support/hung-files.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_NODE 2

static void reply(int fd, uint64_t unique, int error, const void *body, size_t bytes)
{
	struct fuse_out_header h = {.len = (uint32_t)(sizeof(h) + bytes), .error = -error, .unique = unique};
	struct iovec iov[2] = {{&h, sizeof(h)}, {(void *)body, bytes}};

	(void)!writev(fd, iov, 2);
}

static struct fuse_attr attr_of(uint64_t node)
{
	return (struct fuse_attr){
	        .ino = node, .mode = node == FILE_NODE ? S_IFREG | 0666 : S_IFDIR | 0777, .nlink = 1, .blksize = 4096};
}

static void serve_one(int fd, const struct fuse_in_header *h)
{
	struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096, .max_readahead = 4096};
	struct fuse_entry_out entry = {.nodeid = FILE_NODE, .attr_valid = 600, .entry_valid = 600, .attr = attr_of(FILE_NODE)};
	struct fuse_attr_out attr = {.attr_valid = 600, .attr = attr_of(h->nodeid)};
	struct fuse_open_out open = {.fh = 1};

	switch (h->opcode) {
	case FUSE_INIT: reply(fd, h->unique, 0, &init, sizeof(init)); break;
	case FUSE_LOOKUP: reply(fd, h->unique, 0, &entry, sizeof(entry)); break;
	case FUSE_GETATTR: reply(fd, h->unique, 0, &attr, sizeof(attr)); break;
	case FUSE_OPEN: reply(fd, h->unique, 0, &open, sizeof(open)); break;
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT: break; /* no reply: the first two never get one */
	default: reply(fd, h->unique, ENOSYS, NULL, 0); break;
	}
}

_Noreturn static void serve(int fd)
{
	static _Alignas(8) char request[65536];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(fd, request, sizeof(request)) > 0)
		serve_one(fd, (const void *)request);
	_exit(0);
}

bool hung_fs_start(struct hung_fs *fs)
{
	char options[128];
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	strcpy(fs->dir, "/tmp/sparsekv-hung-XXXXXX");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd);
	if (fd < 0 || unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    !mkdtemp(fs->dir))
		return false;
	if (mount("hung", fs->dir, "fuse", MS_NOSUID | MS_NODEV, options) < 0) {
		rmdir(fs->dir);
		return false;
	}
	fs->server = fork();
	ck_assert_int_ge(fs->server, 0);
	if (fs->server == 0)
		serve(fd);
	close(fd);
	return true;
}

int hung_fs_open(const struct hung_fs *fs)
{
	char path[96];
	int fd;

	snprintf(path, sizeof(path), "%s/file", fs->dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

void hung_fs_stop(struct hung_fs *fs)
{
	/* once its last server is gone the file system is dead, and every waiting close(2) returns */
	kill(fs->server, SIGKILL);
	waitpid(fs->server, NULL, 0);
	umount2(fs->dir, MNT_DETACH);
	rmdir(fs->dir);
}

int hung_socket(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct linger linger = {.l_onoff = 1, .l_linger = 600};
	socklen_t len = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static const char data[4096];

	setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(listener, 1), 0);
	ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&addr, &len), 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	ck_assert_int_ge(accept(listener, NULL, NULL), 0); /* stays open, and is never read */
	close(listener);
	while (send(fd, data, sizeof(data), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
	ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	return fd;
}
