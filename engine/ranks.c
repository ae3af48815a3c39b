/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/ranks-nccl.h"
#include "engine/ranks-shared.h"

struct eng_ranks {
	uint32_t n, number;
	pid_t first;
	struct eng_shared *shared;
	struct eng_nccl *nccl; /* only on devices */
	struct eng_backend *backend;
	pthread_t watcher; /* thread in the first rank that waits for the other ranks */
	pid_t pid[ENG_RANKS_MAX]; /* only in the first rank: processes of the other ranks; their exit status */
	int status[ENG_RANKS_MAX];
};

/* ---- processes ------------------------------------------------------------------------------- */

/*
 * The thread that waits until the other ranks have ended. If a rank fails, no rank on the host waits for it any more.
 * On devices the first rank may wait in NCCL forever, so the thread ends the program. Named sequences stay in the
 * daemon and can be continued from their last commit.
 */
static void *watch(void *arg)
{
	struct eng_ranks *r = arg;
	struct pollfd ends[ENG_RANKS_MAX];

	for (uint32_t i = 1; i < r->n; i++)
		ends[i - 1] = (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, r->pid[i], 0), .events = POLLIN};
	for (uint32_t left = r->n - 1; left > 0;) {
		if (poll(ends, r->n - 1, -1) < 0)
			continue;
		for (uint32_t i = 1; i < r->n; i++) {
			if (!ends[i - 1].revents)
				continue;
			waitpid(r->pid[i], &r->status[i], 0);
			close(ends[i - 1].fd);
			ends[i - 1].fd = -1; /* poll() ignores negative descriptors */
			left--;
			if (r->status[i] == 0)
				continue;
			eng_shared_give_up(r->shared);
			if (!r->nccl)
				continue;
			sleep(1); /* within this time the first rank may notice the failure itself, and report it */
			fprintf(stderr, "rank %u has ended\n", i);
			_exit(EXIT_FAILURE);
		}
	}
	return NULL;
}

/*
 * Sets up the process of a rank that is not the first: it prints only errors, and is killed when the first rank ends.
 */
static void be_other(struct eng_ranks *r, uint32_t number)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != r->first)
		_exit(EXIT_FAILURE);
	r->number = number;
	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		close(null);
	}
}

int eng_ranks_start(struct eng_ranks **ret, uint32_t n, struct eng_error *err)
{
	struct eng_ranks *r = calloc(1, sizeof(*r));

	if (r)
		r->shared = eng_shared_new(n);
	if (!r || !r->shared) {
		free(r);
		return eng_fail(err, -ENOMEM, "no memory for %u ranks", n);
	}
	r->n = n;
	r->first = getpid();
	fflush(NULL);
	for (uint32_t i = 1; i < n; i++) {
		r->pid[i] = fork();
		if (r->pid[i] < 0) {
			int e = -errno;

			for (uint32_t other = 1; other < i; other++)
				kill(r->pid[other], SIGKILL);
			return eng_fail(err, e, "a process for rank %u: %s", i, strerror(-e));
		}
		if (r->pid[i] == 0) {
			be_other(r, i);
			*ret = r;
			return 0;
		}
	}
	if (pthread_create(&r->watcher, NULL, watch, r))
		return eng_fail(err, -EAGAIN, "no thread to watch ranks");
	*ret = r;
	return 0;
}

int eng_ranks_end(struct eng_ranks *r, int result, struct eng_error *err)
{
	if (!r)
		return result;
	eng_ranks_close(r);
	if (result < 0)
		eng_shared_give_up(r->shared);
	if (r->number > 0) {
		if (result < 0 && result != -ECONNABORTED)
			fprintf(stderr, "rank %u: %s\n", r->number, err->text);
		fflush(NULL);
		_exit(result < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
	}
	pthread_join(r->watcher, NULL);
	for (uint32_t i = 1; i < r->n && result >= 0; i++)
		if (WIFSIGNALED(r->status[i]))
			result = eng_fail(err, -ECONNABORTED, "rank %u was ended by signal %d", i, WTERMSIG(r->status[i]));
		else if (r->status[i])
			result = eng_fail(err, -ECONNABORTED, "rank %u has failed", i);
	eng_shared_free(r->shared);
	free(r);
	return result;
}

uint32_t eng_ranks_number(const struct eng_ranks *r)
{
	return r ? r->number : 0;
}

pid_t eng_ranks_first(const struct eng_ranks *r)
{
	return r ? r->first : getpid();
}

/* ---- communication --------------------------------------------------------------------------- */

static int all_reduce_max(void *ctx, float *data, size_t count, void *stream)
{
	struct eng_ranks *r = ctx;

	return r->nccl ? eng_nccl_max(r->nccl, data, count, stream) : eng_shared_max(r->shared, r->number, data, count);
}

int eng_ranks_open(struct eng_ranks *r, struct eng_backend *backend, struct eng_error *err)
{
	/* room for one id of each rank; only the first rank's id is used */
	uint8_t id[ENG_RANKS_MAX][ENG_NCCL_ID_BYTES] = {{0}};
	char why[ENG_NCCL_TEXT] = "another rank has ended";
	int e = 0;

	if (!r)
		return 0;
	r->backend = backend;
	if (backend->device == SKV_DEVICE_HOST)
		return 0;
	if (r->number == 0)
		e = eng_nccl_id(id[0], why);
	if (e == 0)
		e = eng_shared_gather(r->shared, r->number, id, 1, sizeof(id[0]));
	if (e == 0)
		e = eng_nccl_open(&r->nccl, id[0], r->number, r->n, why);
	return e < 0 ? eng_fail(err, e, "ranks on devices: %s", why) : 0;
}

void eng_ranks_close(struct eng_ranks *r)
{
	if (r)
		eng_nccl_close(r->nccl);
	if (r)
		r->nccl = NULL;
}

int eng_ranks_split(struct eng_ranks *r, struct skv_model *m, struct eng_error *err)
{
	if (!r)
		return 0;
	if (m->n_kv_heads % r->n)
		return eng_fail(err, -EINVAL, "--ranks %u: the model has %u kv heads, expected a number that divides them", r->n, m->n_kv_heads);
	m->n_heads /= r->n;
	m->n_kv_heads /= r->n;
	m->rank = r->number;
	m->n_ranks = r->n;
	m->all_reduce_max = all_reduce_max;
	m->all_reduce_ctx = r;
	return 0;
}

struct eng_part eng_ranks_part(const struct eng_ranks *r, size_t row_bytes)
{
	return r ? (struct eng_part){row_bytes / r->n * r->number, row_bytes / r->n} : (struct eng_part){0, row_bytes};
}

int eng_ranks_gather(struct eng_ranks *r, void *rows, uint32_t n, size_t row_bytes, void *scratch)
{
	const size_t part = r ? row_bytes / r->n : 0;
	struct eng_backend *p = r ? r->backend : NULL;
	uint8_t *all = scratch, *to = rows;
	int e;

	if (!r)
		return 0;
	if (!r->nccl)
		return eng_shared_gather(r->shared, r->number, rows, n, part);
	/*
	 * First gather each rank's part of all rows, one rank after the other, in `scratch`; then copy the parts to
	 * their places in the rows.
	 */
	p->ops->copy_rows(p, all + r->number * n * part, part, to + r->number * part, row_bytes, part, n);
	e = eng_nccl_gather(r->nccl, all, n * part, p->stream);
	for (uint32_t other = 0; other < r->n && e == 0; other++)
		if (other != r->number)
			p->ops->copy_rows(p, to + other * part, row_bytes, all + other * n * part, part, part, n);
	return e;
}

int eng_ranks_agree(struct eng_ranks *r, int32_t *id, uint32_t n)
{
	return r && r->nccl ? eng_nccl_from_first(r->nccl, id, n, r->backend->stream) : 0;
}
