/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/worker/worker.c - starts a worker process, sends jobs to it, and watches it; see worker.h.
 *
 * The life of a process: it runs → it is killed, or if it is idle asked to exit by shutting its socket down → its pidfd
 * reports the exit → it is reaped, and the loop's operations for it are cancelled → the last of these operations has
 * completed, and the next process may start. A closed socket alone never counts as the exit of the process.
 *
 * While a process exists, a timer checks every TICK_NS whether `deadline_ns` has passed.
 */
#include "daemon/worker/worker.h"

#include <config.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/sys/child.h"
#include "daemon/sys/log.h"

#define TICK_NS 100000000u
#define TRIES 2u

enum state { NONE, RUNNING, ENDING };

struct skv_worker {
	struct skv_loop *loop;
	struct skv_worker_config config;
	struct skv_worker_counters counters;
	struct skv_queue jobs;          /* jobs that wait */
	struct skv_worker_job *current; /* the job that the process runs; NULL: none */
	bool keep, closed;

	/* the process */
	enum state state;
	int pidfd, socket;
	pid_t pid;
	bool reaped;
	uint64_t deadline_ns; /* time by which the answer, the next job (if idle) or the exit (if asked) must come */
	char why[SKV_WORKER_TEXT]; /* reason why the daemon has killed the process, or could not start it; or "" */
	struct skv_op exit_op, recv_op, send_op, timer_op;
	struct msghdr send_msg, recv_msg;
	struct iovec send_iov, recv_iov;
	uint32_t sent_fds; /* number of descriptors of the current job that were sent so far */
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(SKV_WORKER_PACKET_FDS * sizeof(int))];
	_Alignas(8) char answer[SKV_WORKER_MAX_ANSWER];
};

/* The beginning of each answer, of whatever kind of worker. */
struct answer_head {
	int32_t error;
	uint32_t more;
};

static void next(struct skv_worker *w);

/* ---- jobs ---- */

/* Takes the next job from the queue; NULL: it is empty. */
static struct skv_worker_job *take(struct skv_queue *jobs)
{
	struct skv_queued *e = skv_queue_take(jobs);

	return e ? SKV_QUEUED_OWNER(e, struct skv_worker_job, queued) : NULL;
}

static void finish(struct skv_worker *w, struct skv_worker_job *job, int error, const char *why, const void *answer)
{
	w->counters.jobs++;
	w->counters.failed += error != 0;
	job->done(job, error, why, answer);
}

/* Fails the current job and all waiting ones, but not jobs that their callbacks submit meanwhile. */
static void fail_all(struct skv_worker *w, int error, const char *why)
{
	struct skv_worker_job *job = w->current;
	struct skv_queue rest = {0};

	w->current = NULL;
	skv_queue_move(&rest, &w->jobs);
	if (job)
		finish(w, job, error, why, NULL);
	while ((job = take(&rest)))
		finish(w, job, error, why, NULL);
}

void skv_worker_submit(struct skv_worker *w, struct skv_worker_job *job)
{
	job->tries = 0;
	job->canceled = false;
	skv_queue_put(&w->jobs, &job->queued, job->user);
	if (w->closed && w->state == NONE)
		fail_all(w, -ECANCELED, "the daemon is stopping");
	else
		next(w);
}

/* ---- end of a process -------- */

static void kill_process(struct skv_worker *w)
{
	(void)pidfd_send_signal(w->pidfd, SIGKILL, NULL, 0);
}

static void describe_end(struct skv_worker *w, const siginfo_t *end, char *text, size_t len)
{
	if (*w->why)
		snprintf(text, len, "%s", w->why);
	else if (end->si_code == CLD_EXITED)
		snprintf(text, len, "the worker process ended with exit status %d", end->si_status);
	else
		snprintf(text, len, "the worker process was killed by signal %d (%s)", end->si_status,
		         strsignal(end->si_status));
}

static void finish_when_idle(struct skv_worker *w)
{
	if (!w->reaped || skv_op_running(&w->exit_op) || skv_op_running(&w->recv_op) ||
	    skv_op_running(&w->send_op) || skv_op_running(&w->timer_op))
		return;
	w->pidfd = skv_close_fd(w->pidfd);
	w->socket = skv_close_fd(w->socket);
	w->pid = 0;
	w->state = NONE;
	w->reaped = false;
	if (w->closed)
		fail_all(w, -ECANCELED, "the daemon is stopping");
	else
		next(w);
}

/* Ends waiting jobs that free memory of the process with success: the exit of the process has freed that memory. */
static void finish_frees(struct skv_worker *w)
{
	struct skv_queue rest = {0};
	struct skv_worker_job *job;

	skv_queue_move(&rest, &w->jobs);
	while ((job = take(&rest)))
		if (job->frees)
			finish(w, job, 0, "", NULL);
		else
			skv_queue_put(&w->jobs, &job->queued, job->user);
}

/*
 * Called when the process has died while it ran a job. The job is retried before all waiting jobs, or fails if it must
 * not be retried. After TRIES attempts at the same job, that job and all waiting ones fail.
 */
static void job_lost(struct skv_worker *w, const char *why)
{
	struct skv_worker_job *job = w->current;

	if (job && job->canceled) {
		w->current = NULL;
		finish(w, job, -ECANCELED, "the job was canceled", NULL);
	} else if (job && !job->once && ++job->tries < TRIES) {
		w->current = NULL;
		skv_queue_put_first(&w->jobs, &job->queued, job->user);
	} else if (job && job->once) {
		w->current = NULL;
		finish(w, job, -EIO, why, NULL);
	} else if (job) {
		fail_all(w, -EIO, why);
	}
}

static void on_exit_of_worker(struct skv_op *op, int res)
{
	struct skv_worker *w = SKV_OP_OWNER(op, struct skv_worker, exit_op);
	bool asked = w->state == ENDING && !*w->why;
	char text[SKV_WORKER_TEXT];
	siginfo_t end = {0};

	if (res == -ECANCELED) /* the loop is being drained: no child process must stay behind */
		skv_worker_close(w);
	else if (res < 0) /* the loop cannot watch the process, so it must end now */
		kill_process(w);
	while (waitid(P_PIDFD, (id_t)w->pidfd, &end, WEXITED) < 0 && errno == EINTR)
		;
	w->reaped = true;
	skv_op_cancel(w->loop, &w->recv_op);
	skv_op_cancel(w->loop, &w->send_op);
	skv_op_cancel(w->loop, &w->timer_op);
	if (!w->closed && (!asked || w->current)) {
		describe_end(w, &end, text, sizeof(text));
		if (!w->current || !w->current->canceled) {
			w->counters.died++;
			skv_log(LOG_WARNING, "%s: %s", w->config.name, text);
		}
		if (w->config.lost)
			w->config.lost(w->config.ctx);
		job_lost(w, text);
		finish_frees(w);
	}
	finish_when_idle(w);
}

/* ---- a running process ---- */

/* Kills a process that misbehaves. */
static void give_up(struct skv_worker *w, const char *why)
{
	if (!*w->why)
		snprintf(w->why, sizeof(w->why), "%s", why);
	w->state = ENDING;
	kill_process(w);
}

void skv_worker_cancel(struct skv_worker *w, struct skv_worker_job *job)
{
	if (job == w->current) {
		job->canceled = true;
		give_up(w, "the worker process was killed to cancel its job");
	} else if (job->queued.in) {
		skv_queue_remove(&job->queued);
		finish(w, job, -ECANCELED, "the job was canceled", NULL);
	}
}

static void on_tick(struct skv_op *op, int res)
{
	struct skv_worker *w = SKV_OP_OWNER(op, struct skv_worker, timer_op);
	char why[SKV_WORKER_TEXT];

	if (res == 0 && !w->reaped && skv_now_ns() >= w->deadline_ns) {
		if (w->state == RUNNING && !w->current && !w->keep) {
			w->state = ENDING; /* the process reads an end of file and exits */
			(void)shutdown(w->socket, SHUT_RDWR);
			w->deadline_ns = skv_now_ns() + w->config.timeout_ns;
		} else if (w->current || w->state == ENDING) {
			snprintf(why, sizeof(why), "the worker process did not answer in %llu s",
			         (unsigned long long)(w->config.timeout_ns / 1000000000u));
			give_up(w, why);
		}
	}
	if (res == 0 && !w->reaped)
		skv_op_timer(w->loop, op, TICK_NS, on_tick);
	finish_when_idle(w);
}

static void on_answer(struct skv_op *op, int res);

static void listen_to(struct skv_worker *w)
{
	w->recv_iov = (struct iovec){w->answer, sizeof(w->answer)};
	w->recv_msg = (struct msghdr){.msg_iov = &w->recv_iov, .msg_iovlen = 1};
	skv_op_recvmsg(w->loop, &w->recv_op, w->socket, &w->recv_msg, 0, on_answer);
}

/* Handles the answer to the current job. */
static void answered(struct skv_worker *w, int32_t error)
{
	struct skv_worker_job *job = w->current;
	_Alignas(8) char answer[SKV_WORKER_MAX_ANSWER];
	char *why = answer + w->config.why_at;

	memcpy(answer, w->answer, w->config.answer_bytes);
	why[SKV_WORKER_TEXT - 1] = 0;
	w->current = NULL;
	w->deadline_ns = skv_now_ns() + w->config.idle_ns;
	listen_to(w);
	/* a device's context is usable after a lack of memory, but not after a fault */
	if (w->config.frail && error && error != -ENOMEM)
		give_up(w, "the worker process reported an error and was killed");
	finish(w, job, error, why, answer);
	next(w);
}

static void on_answer(struct skv_op *op, int res)
{
	struct skv_worker *w = SKV_OP_OWNER(op, struct skv_worker, recv_op);
	const struct answer_head *head = (const void *)w->answer;
	bool listening = w->state == RUNNING && !w->reaped;

	if (listening && res == (int)w->config.answer_bytes && w->current && head->more) {
		w->deadline_ns = skv_now_ns() + w->config.timeout_ns;
		listen_to(w);
		return;
	}
	if (listening && res == (int)w->config.answer_bytes && w->current && head->error <= 0) {
		answered(w, head->error);
		return;
	}
	if (listening && res != 0 && res != -ECANCELED && res != -ECONNRESET)
		give_up(w, "the worker process sent an answer that is not valid");
	finish_when_idle(w); /* the process exits soon after its end of the socket is closed */
}

static void send_some(struct skv_worker *w);

static void on_sent(struct skv_op *op, int res)
{
	struct skv_worker *w = SKV_OP_OWNER(op, struct skv_worker, send_op);

	char why[SKV_WORKER_TEXT];

	if (res < 0 && res != -ECANCELED && res != -EPIPE && res != -ECONNRESET && w->state == RUNNING && !w->reaped) {
		snprintf(why, sizeof(why), "a job could not be sent to the worker process: %s", strerror(-res));
		give_up(w, why); /* otherwise the daemon would wait for an answer to a job that was not sent */
	}
	if (res > 0 && w->state == RUNNING && !w->reaped && w->current && w->sent_fds < w->current->n_fds) {
		send_some(w);
		return;
	}
	next(w);
	finish_when_idle(w);
}

/* Sends a packet: the current job with its first descriptors, or one byte with the next descriptors. */
static void send_some(struct skv_worker *w)
{
	static const char byte;
	const struct skv_worker_job *job = w->current;
	uint32_t n = job->n_fds - w->sent_fds;

	n = n < SKV_WORKER_PACKET_FDS ? n : SKV_WORKER_PACKET_FDS;
	w->send_iov = w->sent_fds ? (struct iovec){(void *)(uintptr_t)&byte, 1}
	                          : (struct iovec){(void *)(uintptr_t)job->job, job->bytes};
	w->send_msg = (struct msghdr){.msg_iov = &w->send_iov, .msg_iovlen = 1};
	if (n) {
		struct cmsghdr *c = (struct cmsghdr *)w->control;

		memset(w->control, 0, sizeof(w->control));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), job->fds + w->sent_fds, n * sizeof(int));
		w->send_msg.msg_control = w->control;
		w->send_msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
	}
	w->sent_fds += n;
	skv_op_sendmsg(w->loop, &w->send_op, w->socket, &w->send_msg, on_sent);
}

static void send_job(struct skv_worker *w, struct skv_worker_job *job)
{
	w->current = job;
	w->sent_fds = 0;
	w->deadline_ns = skv_now_ns() + w->config.timeout_ns;
	send_some(w);
}

static int start(struct skv_worker *w)
{
	char *argv[] = {(char *)"sparsekv-worker", (char *)PACKAGE_VERSION, (char *)(uintptr_t)w->config.option,
	                (char *)(uintptr_t)w->config.argument, NULL};
	int pair[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	/* the environment is passed on (CUDA_VISIBLE_DEVICES): daemon and worker must number devices alike */
	r = skv_child_start(w->config.program, argv, environ, &pair[1], 1, -1, &w->pid, &w->pidfd);
	skv_close_fd(pair[1]);
	if (r < 0) {
		skv_close_fd(pair[0]);
		return r;
	}
	w->socket = pair[0];
	w->state = RUNNING;
	w->counters.started++;
	*w->why = 0;
	skv_log(LOG_DEBUG, "%s: worker started, pid %d", w->config.name, (int)w->pid);
	skv_op_poll(w->loop, &w->exit_op, w->pidfd, POLLIN, on_exit_of_worker);
	skv_op_timer(w->loop, &w->timer_op, TICK_NS, on_tick);
	listen_to(w);
	return 0;
}

static void on_no_start(struct skv_op *op, int res)
{
	struct skv_worker *w = SKV_OP_OWNER(op, struct skv_worker, timer_op);

	(void)res;
	fail_all(w, -EIO, w->why);
}

/*
 * Sends the next job to the process, and starts one if there is none. Never calls a job's done(), because the caller
 * may be in the middle of a change of the core's state.
 */
static void next(struct skv_worker *w)
{
	int r;

	if (!w->jobs.first || w->closed || w->current || w->state == ENDING || w->reaped || skv_op_running(&w->send_op))
		return;
	if (w->state == NONE && skv_op_running(&w->timer_op))
		return; /* starting a process has failed, and on_no_start() will fail the jobs */
	if (w->state == NONE) {
		r = start(w);
		if (r < 0) {
			skv_log(LOG_ERR, "%s: the worker process %s %s cannot be started: %s",
			        w->config.name, w->config.program, w->config.option, strerror(-r));
			snprintf(w->why, sizeof(w->why), "the worker process cannot be started: %s", strerror(-r));
			skv_op_timer(w->loop, &w->timer_op, 0, on_no_start);
			return;
		}
	}
	send_job(w, take(&w->jobs));
}

/* ---- creation and removal ---- */

int skv_worker_new(struct skv_loop *loop, const struct skv_worker_config *config, struct skv_worker **ret)
{
	struct skv_worker *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->loop = loop;
	w->config = *config;
	w->pidfd = w->socket = -1;
	*ret = w;
	return 0;
}

void skv_worker_close(struct skv_worker *w)
{
	if (!w)
		return;
	w->closed = true;
	if (w->state == NONE)
		fail_all(w, -ECANCELED, "the daemon is stopping");
	else
		kill_process(w);
}

struct skv_worker *skv_worker_free(struct skv_worker *w)
{
	free(w);
	return NULL;
}

void skv_worker_set_times(struct skv_worker *w, uint64_t timeout_ns, uint64_t idle_ns)
{
	w->config.timeout_ns = timeout_ns;
	w->config.idle_ns = idle_ns;
}

void skv_worker_keep(struct skv_worker *w, bool keep)
{
	w->keep = keep;
}

const struct skv_worker_counters *skv_worker_counters(const struct skv_worker *w)
{
	return &w->counters;
}

pid_t skv_worker_pid(const struct skv_worker *w)
{
	return w->pid;
}
