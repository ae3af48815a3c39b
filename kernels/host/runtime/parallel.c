/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/parallel.c - a parallel loop over independent items, on the library's own threads.
 *
 * The library runs inside other programs, so OpenMP does not fit. OpenMP's threads spin for as long as settings say
 * that OpenMP reads before the library could change them, and a loop of OpenMP waits for each thread of its team. If
 * the machine has other work, that wait takes ten times as long as the loop. In contrast, with the threads of this file
 *
 *   - the caller of a loop runs items itself, and then waits only for threads that run an item, not for those that the
 *     system has not scheduled yet;
 *   - a thread without work spins for some microseconds, then blocks on a futex: loops follow each other so closely
 *     that threads are mostly still spinning when the next one begins;
 *   - the loops of several callers are in one list, and a thread helps the first loop that has room for one more;
 *     the threads handle no signals;
 *   - a child of fork(2) has none of its parent's threads and starts its own.
 *
 * An item's result does not depend on the thread that runs the item, which only determines the workspace. With one
 * thread the caller runs all items.
 */
#include "kernels/host/runtime/host.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/threads.h"

#define LOOKS 1000       /* number of polls before a thread blocks */
#define BLOCKED (1u << 31) /* flag in loop.inside: the caller is blocked */

struct loop {
	skv_item_fn *fn;
	void *ctx;
	uint32_t n;
	/* `joined`, `most` and `next` are protected by pool.lock. */
	int joined, most; /* number of threads in the loop and its limit, both including the caller */
	struct loop *next;

	_Alignas(64) _Atomic uint64_t item; /* index of the next item to run */
	/* number of threads in the loop besides the caller's; plus BLOCKED while the caller waits */
	_Atomic uint32_t inside;
};

static struct {
	pthread_mutex_t lock;
	struct loop *loops;
	_Atomic int asked; /* number of threads that were started or failed to start; changes only under the lock */
	_Atomic uint32_t posts; /* number of loops posted so far */
	_Atomic uint32_t blocked;
} pool = {.lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP};

/* ---- waiting --------------------------------------------------------------------------------- */

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t while_it_is)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_it_is, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int threads)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

/* Waits until pool.posts is no longer `seen`. */
static void wait_for_post(uint32_t seen)
{
	for (int i = 0; i < LOOKS; i++) {
		if (atomic_load_explicit(&pool.posts, memory_order_relaxed) != seen)
			return;
		pause_briefly();
	}
	/* either the next post() sees this count and wakes the thread, or this thread sees the post */
	atomic_fetch_add(&pool.blocked, 1);
	while (atomic_load(&pool.posts) == seen)
		futex_wait(&pool.posts, seen);
	atomic_fetch_sub(&pool.blocked, 1);
}

/* Waits until no other thread is in the loop, which must be withdrawn from the list before. */
static void wait_for_leaves(struct loop *l)
{
	uint32_t inside;

	for (int i = 0; i < LOOKS; i++) {
		if (atomic_load_explicit(&l->inside, memory_order_acquire) == 0)
			return;
		pause_briefly();
	}
	inside = atomic_fetch_or_explicit(&l->inside, BLOCKED, memory_order_acquire) | BLOCKED;
	while (inside != BLOCKED) {
		futex_wait(&l->inside, inside);
		inside = atomic_load_explicit(&l->inside, memory_order_acquire);
	}
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void work(struct loop *l, int thread)
{
	uint64_t i;

	while ((i = atomic_fetch_add_explicit(&l->item, 1, memory_order_relaxed)) < l->n)
		l->fn(l->ctx, (uint32_t)i, thread);
}

static void post(struct loop *l, int helpers)
{
	struct loop **end = &pool.loops;

	pthread_mutex_lock(&pool.lock);
	while (*end)
		end = &(*end)->next;
	*end = l;
	pthread_mutex_unlock(&pool.lock);
	atomic_fetch_add(&pool.posts, 1);
	if (atomic_load(&pool.blocked) > 0)
		futex_wake(&pool.posts, helpers);
}

static void withdraw(struct loop *l)
{
	struct loop **at = &pool.loops;

	pthread_mutex_lock(&pool.lock);
	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	pthread_mutex_unlock(&pool.lock);
}

/*
 * Joins a loop that has items left and room for another thread; *ret gets the thread's number in the loop. Returns NULL
 * if there is no such loop.
 */
static struct loop *join(int *ret)
{
	struct loop *l;

	pthread_mutex_lock(&pool.lock);
	for (l = pool.loops; l; l = l->next)
		if (l->joined < l->most && atomic_load_explicit(&l->item, memory_order_relaxed) < l->n)
			break;
	if (l) {
		*ret = l->joined++;
		atomic_fetch_add_explicit(&l->inside, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&pool.lock);
	return l;
}

/* Leaves a loop. After the decrement the loop's memory may no longer exist: only its address is used from then on. */
static void leave(struct loop *l)
{
	if (atomic_fetch_sub_explicit(&l->inside, 1, memory_order_release) == (BLOCKED | 1))
		futex_wake(&l->inside, 1);
}

void skv_run(int threads, uint32_t n, skv_item_fn *fn, void *ctx)
{
	struct loop l = {.fn = fn, .ctx = ctx, .n = n, .joined = 1, .most = threads};
	uint32_t helpers = n > 0 && n - 1 < (uint32_t)threads - 1 ? n - 1 : (uint32_t)threads - 1;

	if (threads <= 1 || n <= 1) {
		for (uint32_t i = 0; i < n; i++)
			fn(ctx, i, 0);
		return;
	}
	skv_threads_ready(threads);
	post(&l, (int)helpers);
	work(&l, 0);
	withdraw(&l);
	wait_for_leaves(&l);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *help(void *unused)
{
	(void)unused;
	for (;;) {
		uint32_t seen = atomic_load(&pool.posts);
		int thread = 0;
		struct loop *l = join(&thread);

		if (l) {
			work(l, thread);
			leave(l);
		} else {
			wait_for_post(seen);
		}
	}
	return NULL;
}

/*
 * Resets the pool in a child of fork(2): the child has none of the parent's threads, and one of these may have held the
 * lock.
 */
static void forked_child(void)
{
	pool.lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
	pool.loops = NULL;
	pool.asked = 0;
	pool.blocked = 0;
}

static void watch_forks(void)
{
	(void)pthread_atfork(NULL, NULL, forked_child);
}

static bool start_one(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	bool started;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	started = pthread_create(&thread, &attr, help, NULL) == 0;
	pthread_attr_destroy(&attr);
	if (started)
		(void)pthread_setname_np(thread, "sparsekv");
	return started;
}

void skv_threads_ready(int threads)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	sigset_t all, was;
	int n;

	if (threads - 1 <= atomic_load_explicit(&pool.asked, memory_order_relaxed))
		return;
	pthread_once(&once, watch_forks);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	pthread_mutex_lock(&pool.lock);
	for (n = pool.asked; n < threads - 1 && start_one(); n++)
		;
	if (threads - 1 > pool.asked)
		pool.asked = threads - 1; /* so that threads that failed to start are not retried in every call */
	pthread_mutex_unlock(&pool.lock);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
}

int skv_threads_default(void)
{
	const char *given = getenv("OMP_NUM_THREADS");
	long n = given ? strtol(given, NULL, 10) : 0;
	cpu_set_t cpus;

	if (n <= 0)
		n = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : sysconf(_SC_NPROCESSORS_ONLN);
	return n < 1 ? 1 : n > SKV_MAX_THREADS ? SKV_MAX_THREADS : (int)n;
}
