/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/worker.c - main loop of the disk worker process, see job.h.
 *
 * Jobs come from the daemon and are trusted; files may have been written by anyone and are not trusted. Errors are
 * reported to the daemon in answers. The process exits on an invalid job packet, or when the daemon is gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/fd.h"
#include "common/process.h"
#include "daemon/disk/files.h"
#include "daemon/disk/lock.h"
#include "daemon/disk/run-job.h"
#include "daemon/store/values.h"

/* ---- jobs in --------------------------------------------------------------------------------- */

/* Receives a packet and appends its descriptors to fds, up to `most`. Returns 0 if the daemon has closed its end. */
static ssize_t receive(void *to, size_t bytes, int *fds, uint32_t *n_fds, uint32_t most)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(SKV_DISK_PACKET_FDS * sizeof(int))];
	struct iovec iov = {to, bytes};
	struct msghdr msg = {.msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = control,
	                     .msg_controllen = sizeof(control)};
	struct cmsghdr *c;
	uint32_t n = 0;
	ssize_t got;

	do
		got = recvmsg(SKV_DISK_WORKER_FD, &msg, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	c = got > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (c && c->cmsg_type == SCM_RIGHTS)
		n = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
	if (n > most - *n_fds || msg.msg_flags & MSG_CTRUNC)
		return -EMSGSIZE; /* the process then exits, which closes the packet's descriptors */
	if (n)
		memcpy(fds + *n_fds, CMSG_DATA(c), n * sizeof(int));
	*n_fds += n;
	return got;
}

/* Returns false if the daemon has closed its end or sent an invalid packet. The caller closes and frees *ret_fds. */
static bool next_job(struct skv_disk_job *job, int **ret_fds)
{
	uint32_t n = 0;
	int first[SKV_DISK_PACKET_FDS], *fds;
	char byte;

	if (receive(job, sizeof(*job), first, &n, SKV_DISK_PACKET_FDS) != (ssize_t)sizeof(*job) || job->n_fds < n)
		return false;
	fds = malloc((job->n_fds + UINT64_C(1)) * sizeof(*fds));
	if (!fds)
		return false;
	memcpy(fds, first, n * sizeof(*fds));
	while (n < job->n_fds)
		if (receive(&byte, 1, fds, &n, job->n_fds) != 1)
			return false;
	*ret_fds = fds;
	return true;
}

/* ---- work ------------------------------------------------------------------------------------ */

static int say(const struct skv_disk_work *work)
{
	struct skv_disk_answer answer = {.more = 1, .bytes = work->bytes};

	return send(SKV_DISK_WORKER_FD, &answer, sizeof(answer), MSG_NOSIGNAL) < 0 ? -ECANCELED : 0;
}

static int lock(struct skv_disk_work *work, int fd)
{
	const int r = skv_disk_lock(fd);

	return r < 0 ? skv_disk_refuse(work, r, "the worker cannot take the lock that keeps the next daemon from "
	                                        "starting meanwhile: %s",
	                               strerror(-r))
	             : r;
}

/*
 * Returns whether the daemon's end of the socket is open; jobs of a daemon that has exited may still be queued in it.
 */
static bool daemon_lives(void)
{
	struct pollfd p = {.fd = SKV_DISK_WORKER_FD, .events = POLLRDHUP};

	return poll(&p, 1, 0) == 0;
}

/* Replaces the descriptor of the folder of parked sequences by one of the user's folder in it. */
static int open_user(struct skv_disk_work *work, int *fds, bool make)
{
	const int r = skv_files_user(fds[SKV_DISK_FD_USER], work->job->uid, make);

	if (r < 0)
		return skv_disk_refuse(work, r, "the user's folder for parked sequences cannot be opened: %s",
		                       strerror(-r));
	skv_close_fd(fds[SKV_DISK_FD_USER]);
	fds[SKV_DISK_FD_USER] = r;
	return 0;
}

static int work_on(struct skv_disk_work *work, int *fds)
{
	enum { NO_FOLDER, OPENS, MAKES };
	static const struct {
		uint32_t least_fds;
		int (*run)(struct skv_disk_work *);
		int user; /* whether the job needs no folder, opens the user's folder, or creates it if needed */
	} kinds[] = {
		[SKV_DISK_PARK] = {SKV_DISK_FD_PAGES, skv_disk_park, MAKES},
		[SKV_DISK_RESUME] = {SKV_DISK_FD_PAGES, skv_disk_resume, OPENS},
		[SKV_DISK_IMPORT] = {SKV_DISK_FD_OTHER + 1, skv_disk_import, MAKES},
		[SKV_DISK_SEND] = {SKV_DISK_FD_OTHER + 1, skv_disk_send, OPENS},
		[SKV_DISK_REMOVE] = {SKV_DISK_FD_USER + 1, skv_disk_remove, OPENS},
		[SKV_DISK_LOOK] = {SKV_DISK_FD_OTHER + 1, skv_disk_look, OPENS},
		[SKV_DISK_STORE_PUT] = {SKV_DISK_FD_PAGES, skv_store_put_job, NO_FOLDER},
		[SKV_DISK_STORE_FIND] = {SKV_DISK_FD_STORE + 1, skv_store_find_job, NO_FOLDER},
		[SKV_DISK_STORE_GET] = {SKV_DISK_FD_PAGES, skv_store_get_job, NO_FOLDER},
	};
	const struct skv_disk_job *job = work->job;
	SKV_FD_CLEANUP int memory = -1, folder = -1;
	bool known = job->kind < sizeof(kinds) / sizeof(*kinds) && kinds[job->kind].run;
	bool on_files;
	int r;

	if (!known || job->n_fds < kinds[job->kind].least_fds)
		return skv_disk_refuse(work, -EINVAL, "job %u with %u descriptors is unknown", job->kind, job->n_fds);
	on_files = kinds[job->kind].user != NO_FOLDER;
	memory = lock(work, fds[SKV_DISK_FD_LOCK]);
	folder = memory >= 0 && on_files ? lock(work, fds[SKV_DISK_FD_USER]) : -1;
	if (memory < 0 || (on_files && folder < 0))
		return memory < 0 ? memory : folder;
	if (!daemon_lives()) /* the next daemon may have tested the locks before this worker took them */
		return skv_disk_refuse(work, -ECANCELED, "the daemon has ended");
	r = on_files ? open_user(work, fds, kinds[job->kind].user == MAKES) : 0;
	return r < 0 ? r : kinds[job->kind].run(work);
}

static bool answer(const struct skv_disk_work *work, int error)
{
	struct skv_disk_answer answer = {.error = error,
	                                 .bytes = work->bytes,
	                                 .inode = work->inode,
	                                 .changed_ns = work->changed_ns,
	                                 .n_blocks = work->n_blocks,
	                                 .n_nixl = work->n_nixl,
	                                 .nixl_bytes = work->nixl_bytes};

	if (error) {
		memcpy(answer.why, work->why, sizeof(answer.why));
		if (!*answer.why)
			skv_refuse(error, answer.why, sizeof(answer.why), "%s", strerror(-error));
	}
	if (!error)
		answer.header = work->header;
	if (!error || work->left)
		memcpy(answer.file, work->file, sizeof(answer.file));
	return send(SKV_DISK_WORKER_FD, &answer, sizeof(answer), MSG_NOSIGNAL) == (ssize_t)sizeof(answer);
}

int skv_disk_worker_main(void)
{
	struct skv_disk_job job;
	bool listens = true;
	int *fds;

	skv_process_conceal();
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	(void)prctl(PR_SET_NAME, "sparsekvd-disk");
	skv_process_serve();
	(void)skv_fd_raise_limit();
	while (listens && next_job(&job, &fds)) {
		struct skv_disk_work work = {.job = &job, .fds = fds, .say = say};
		const int error = work_on(&work, fds);

		listens = answer(&work, error);
		if (work.broken || (error == -EIO && job.model.device != SKV_DEVICE_HOST))
			return EXIT_SUCCESS; /* the device's context may be unusable; the next process has a new one */
		for (uint32_t i = 0; i < job.n_fds; i++)
			skv_close_fd(fds[i]);
		free(fds);
	}
	return listens ? EXIT_SUCCESS : EXIT_FAILURE;
}
