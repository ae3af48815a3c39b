/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/disk-fixture.h"

#include <config.h>
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/sys/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/folder.h"

struct disk_fixture disk;

void disk_begin(void)
{
	disk.root_dir = fx_folder();
	ck_assert_int_ge(asprintf(&disk.dir, "%s/%u", disk.root_dir, PARKED_UID), 0);
	ck_assert_int_eq(mkdir(disk.dir, 0700), 0);
	disk_open_folders();
	disk_worker_start();
}

void disk_open_folders(void)
{
	disk.root = open(disk.root_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	disk.folder = open(disk.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert(disk.root >= 0 && disk.folder >= 0);
}

void disk_close_folders(void)
{
	close(disk.root);
	close(disk.folder);
}

void disk_remove_folders(void)
{
	disk_close_folders();
	fx_remove(disk.dir);
	fx_remove(disk.root_dir);
}

void disk_end(void)
{
	disk_worker_stop();
	disk_remove_folders();
}

unsigned disk_count_files(void)
{
	DIR *d = opendir(disk.dir);
	unsigned n = 0;

	for (const struct dirent *e; (e = readdir(d));)
		n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	closedir(d);
	return n;
}

/* ---- the worker ------------------------------------------------------------------------------ */

void disk_worker_start(void)
{
	char *const argv[] = {(char *)"sparsekv-worker", (char *)PACKAGE_VERSION, (char *)"disk", NULL};
	int ends[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	ck_assert_int_eq(skv_child_start(fix_built("daemon/sparsekv-worker"), argv, environ, &ends[1], 1, -1, &disk.pid, &disk.pidfd), 0);
	close(ends[1]);
	disk.socket = ends[0];
}

static int end_of_worker(void)
{
	int status;

	close(disk.socket);
	ck_assert_int_eq(waitpid(disk.pid, &status, 0), disk.pid);
	close(disk.pidfd);
	return status;
}

void disk_worker_stop(void)
{
	ck_assert_int_eq(end_of_worker(), 0);
}

void disk_worker_kill(void)
{
	(void)kill(disk.pid, SIGKILL);
	(void)end_of_worker();
}

static void send_packet(int to, const void *data, size_t bytes, const int *fds, uint32_t n)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(SKV_DISK_PACKET_FDS * sizeof(int))];
	struct iovec iov = {(void *)data, bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(n * sizeof(int))};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	ck_assert_int_eq(sendmsg(to, &msg, MSG_NOSIGNAL), (ssize_t)bytes);
}

void disk_post(const struct skv_disk_job *job, const int *fds)
{
	uint32_t n = job->n_fds < SKV_DISK_PACKET_FDS ? job->n_fds : SKV_DISK_PACKET_FDS;

	send_packet(disk.socket, job, sizeof(*job), fds, n);
	for (uint32_t at = n; at < job->n_fds; at += n) {
		n = job->n_fds - at < SKV_DISK_PACKET_FDS ? job->n_fds - at : SKV_DISK_PACKET_FDS;
		send_packet(disk.socket, "", 1, fds + at, n);
	}
}

void disk_wait(void)
{
	struct skv_disk_answer *a = &disk.answer;

	disk.more = 0;
	for (;;) {
		ck_assert_int_eq(recv(disk.socket, a, sizeof(*a), 0), sizeof(*a));
		if (!a->more)
			break;
		ck_assert_int_eq(a->error, 0);
		disk.more++;
	}
	ck_assert_msg(a->error == 0 ? !*a->why : a->error < 0 && *a->why, "%d, and says \"%s\"", a->error, a->why);
}

static void post(const struct parked_case *c, const void *list, size_t bytes)
{
	int fds[] = {disk.root, disk.root, c->seq, skv_memfd_new("list", bytes), c->pages};

	ck_assert_int_eq(pwrite(fds[SKV_DISK_FD_LIST], list, bytes, 0), (ssize_t)bytes);
	disk_post(&c->job, fds);
	close(fds[SKV_DISK_FD_LIST]);
}

void disk_park_post(const struct parked_case *c)
{
	post(c, c->entries, c->job.n_entries * sizeof(*c->entries));
}

int disk_park(const struct parked_case *c)
{
	disk_park_post(c);
	disk_wait();
	return disk.answer.error;
}

int disk_resume(const struct parked_case *to)
{
	post(to, to->ids, to->job.n_pages * sizeof(*to->ids));
	disk_wait();
	return disk.answer.error;
}

int disk_import(int from, uint64_t max_bytes)
{
	const struct skv_disk_job job = {.kind = SKV_DISK_IMPORT, .n_fds = SKV_DISK_FD_OTHER + 1, .max_bytes = max_bytes, .patience_ms = 10000, .uid = PARKED_UID};
	const int fds[] = {disk.root, disk.root, from};

	disk_post(&job, fds);
	disk_wait();
	return disk.answer.error;
}

void disk_expect_resumes(const struct parked_case *was)
{
	struct parked_case *to = parked_target(was);

	DISK_EXPECT(disk_resume(to), 0);
	parked_expect(was, to);
	parked_case_free(to);
	free(to);
}
