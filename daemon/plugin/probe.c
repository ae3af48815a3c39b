/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/probe.c - starts probes of plugins and reads their reports, in the daemon. See probe.h.
 *
 * A probe has two operations in the loop, a poll of the child's pidfd and a timer, and ends when both have ended. The
 * child, whether it ended by itself or was killed, is always reaped.
 */
#include <config.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/plugin/probe.h"
#include "daemon/sys/child.h"
#include "daemon/sys/log.h"

struct skv_probe {
	struct skv_loop *loop;
	skv_probe_fn done;
	void *ctx;
	uint64_t timeout_ns;
	int pidfd, report_fd;
	bool timed_out, cancelled;
	siginfo_t end;
	struct skv_op exit_op, timer_op;
};

static bool read_at(int fd, void *to, size_t bytes, off_t at)
{
	return pread(fd, to, bytes, at) == (ssize_t)bytes;
}

/* Gets the last line that the child printed to standard output or error; "" if it printed nothing. */
static void last_words(int fd, char *to, size_t len)
{
	char text[2048];
	ssize_t n = pread(fd, text, sizeof(text) - 1, SKV_PROBE_OUTPUT_AT);
	char *line;

	*to = 0;
	if (n <= 0)
		return;
	text[n] = 0;
	n = (ssize_t)strlen(text);
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
		text[--n] = 0;
	line = strrchr(text, '\n');
	snprintf(to, len, "%s", line ? line + 1 : text);
	for (char *p = to; *p; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
}

/*
 * Reads the child's answer. Returns NULL if there is no valid answer, or (*ret_starved) if the daemon has no memory for
 * it.
 */
static json_t *read_answer(int fd, bool *ret_starved)
{
	char *text = malloc(SKV_PROBE_REPORT_MAX);
	ssize_t n = text ? pread(fd, text, SKV_PROBE_REPORT_MAX, SKV_PROBE_ANSWER_AT) : -1;
	json_t *answer;

	errno = 0; /* ENOMEM in errno tells a lack of memory, for which Jansson does not always have an error code */
	answer = n > 0 ? json_loadb(text, (size_t)n, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
	*ret_starved = !text || (n > 0 && !answer && errno == ENOMEM);
	free(text);
	return answer;
}

static void describe_death(struct skv_probe *p, char *text, size_t len)
{
	char stage[SKV_PROBE_STAGE_BYTES], said[256];
	int n;

	if (!read_at(p->report_fd, stage, sizeof(stage), 0) || !memchr(stage, 0, sizeof(stage)) || !*stage)
		strcpy(stage, "the probe, before it was loaded");
	if (p->end.si_code == CLD_EXITED)
		n = snprintf(text, len, "the plugin ended the probe with exit status %d in %s", p->end.si_status,
		             stage);
	else
		n = snprintf(text, len, "the plugin was killed by signal %d (%s) in %s", p->end.si_status,
		             strsignal(p->end.si_status), stage);
	last_words(p->report_fd, said, sizeof(said));
	if (*said && n > 0 && (size_t)n < len)
		snprintf(text + n, len - (size_t)n, ": %s", said);
}

static void report(struct skv_probe *p)
{
	char text[SKV_TEXT_MAX];
	struct skv_probe_result result = {.text = text};
	const char *error;
	json_t *answer = NULL;
	bool starved = false;

	if (p->cancelled) {
		result.error = ECANCELED;
		result.text = "the daemon is stopping";
	} else if (p->timed_out) {
		char stage[SKV_PROBE_STAGE_BYTES] = "";

		if (!read_at(p->report_fd, stage, sizeof(stage), 0))
			strcpy(stage, "the probe");
		stage[sizeof(stage) - 1] = 0;
		result.error = ETIMEDOUT;
		snprintf(text, sizeof(text), "the plugin was still in %s after %llu s (probe-timeout) and was killed",
		         stage, (unsigned long long)(p->timeout_ns / 1000000000u));
	} else if (p->end.si_code != CLD_EXITED || p->end.si_status != 0 ||
	           !(answer = read_answer(p->report_fd, &starved))) {
		result.error = starved ? ENOMEM : EBADMSG;
		describe_death(p, text, sizeof(text));
		if (starved)
			snprintf(text, sizeof(text), "out of memory while reading the answer of the probe");
	} else if ((error = json_string_value(json_object_get(answer, "error")))) {
		result.error = (int)json_integer_value(json_object_get(answer, "errno"));
		/* an error that the child reports as a shortage is the plugin's fault */
		if (result.error <= 0 || skv_is_shortage(-result.error))
			result.error = EBADMSG;
		snprintf(text, sizeof(text), "%s", error);
	} else {
		result.info = answer;
	}
	p->done(p->ctx, &result);
	json_decref(answer);
}

static void finish_when_idle(struct skv_probe *p)
{
	if (skv_op_running(&p->exit_op) || skv_op_running(&p->timer_op))
		return;
	report(p);
	skv_close_fd(p->pidfd);
	skv_close_fd(p->report_fd);
	free(p);
}

static void on_exit_of_child(struct skv_op *op, int res)
{
	struct skv_probe *p = SKV_OP_OWNER(op, struct skv_probe, exit_op);

	if (res < 0) {
		/* the loop is being drained, or the poll failed: kill the child */
		p->cancelled = true;
		(void)pidfd_send_signal(p->pidfd, SIGKILL, NULL, 0);
	}
	while (waitid(P_PIDFD, (id_t)p->pidfd, &p->end, WEXITED) < 0 && errno == EINTR)
		;
	skv_op_cancel(p->loop, &p->timer_op);
	finish_when_idle(p);
}

static void on_timer(struct skv_op *op, int res)
{
	struct skv_probe *p = SKV_OP_OWNER(op, struct skv_probe, timer_op);

	if (res == 0 && skv_op_running(&p->exit_op)) {
		p->timed_out = true;
		(void)pidfd_send_signal(p->pidfd, SIGKILL, NULL, 0);
	}
	finish_when_idle(p);
}

/* Starts sparsekv-probe with the three descriptors and at most two environment variables. */
static int spawn(const char *probe, const int fds[3], unsigned seconds, int *ret_pidfd)
{
	char arg[16];
	char *argv[] = {(char *)"sparsekv-probe", (char *)PACKAGE_VERSION, arg, NULL};
	char *envp[] = {(char *)"LC_ALL=C", NULL, NULL};
	pid_t pid;

	_Static_assert(SKV_PROBE_PLUGIN_FD == SKV_CHILD_FIRST_FD, "the plugin comes first");
	for (char **e = environ; *e; e++)
		if (!strncmp(*e, "LD_LIBRARY_PATH=", 16))
			envp[1] = *e; /* the probe finds its libraries where the daemon finds them */
	snprintf(arg, sizeof(arg), "%u", seconds);
	return skv_child_start(probe, argv, envp, fds, 3, fds[2], &pid, ret_pidfd);
}

int skv_probe_start(struct skv_loop *loop, const char *probe, int plugin_fd,
                    const struct skv_probe_case *cases, uint32_t n_cases, uint64_t timeout_ns,
                    skv_probe_fn done, void *ctx)
{
	SKV_FD_CLEANUP int cases_memfd = -1, report_memfd = -1;
	struct skv_probe *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return -ENOMEM;
	cases_memfd = skv_memfd_new_sealed("sparsekv-probe-cases", cases, n_cases * sizeof(*cases));
	report_memfd = memfd_create("sparsekv-probe-report", MFD_CLOEXEC);
	if (cases_memfd < 0 || report_memfd < 0 || lseek(report_memfd, SKV_PROBE_OUTPUT_AT, SEEK_SET) < 0) {
		r = cases_memfd < 0 ? cases_memfd : -errno;
		free(p);
		return r;
	}
	r = spawn(probe, (int[]){plugin_fd, cases_memfd, report_memfd},
	          (unsigned)(timeout_ns / 1000000000u) + 1, &p->pidfd);
	if (r < 0) {
		skv_log(LOG_ERR, "the probe %s cannot be started: %s", probe, strerror(-r));
		free(p);
		return r;
	}
	p->report_fd = report_memfd;
	report_memfd = -1;
	p->loop = loop;
	p->done = done;
	p->ctx = ctx;
	p->timeout_ns = timeout_ns;
	skv_op_poll(loop, &p->exit_op, p->pidfd, POLLIN, on_exit_of_child);
	skv_op_timer(loop, &p->timer_op, timeout_ns, on_timer);
	return 0;
}
