/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between skv_step_begin and the return of skv_step_end there is no system call but futex (which wakes the kernels'
 * threads) and no allocation; and what skv_attend costs besides its kernels.
 *
 * The first is enforced: a seccomp filter over all threads of a child process, installed after skv_step_begin, turns
 * any other system call into SIGSYS. The second is counted by a malloc of this program. On a device the driver has
 * threads that work in the background and allocate: there the filter covers the calling thread only, and allocations
 * are not counted.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/device-helper.h"
#include "tests/support/policies.h"

/* ---- counting allocations -------------------------------------------------------------------- */

static _Atomic bool watching;
static _Atomic unsigned long allocations;

#if !SANITIZED
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static void count_allocation(void)
{
	if (atomic_load_explicit(&watching, memory_order_relaxed))
		atomic_fetch_add(&allocations, 1);
}

/* visible, or the library would call libc's */
#pragma GCC visibility push(default)
void *malloc(size_t n)
{
	count_allocation();
	return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	count_allocation();
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	count_allocation();
	return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
	count_allocation();
	return __libc_memalign(align, n);
}

int posix_memalign(void **ret, size_t align, size_t n)
{
	count_allocation();
	*ret = __libc_memalign(align, n);
	return *ret ? 0 : ENOMEM;
}

void free(void *p)
{
	if (p)
		count_allocation();
	__libc_free(p);
}
#pragma GCC visibility pop
#endif

/* ---- forbidding system calls ----------------------------------------------------------------- */

static void on_sigsys(int sig, siginfo_t *info, void *context)
{
	char text[] = "system call 000 inside of a step\n";

	(void)sig;
	(void)context;
	for (int i = 14, n = info->si_syscall; i > 11; i--, n /= 10)
		text[i] = (char)('0' + n % 10);
	_exit(write(STDERR_FILENO, text, sizeof(text) - 1) > 0 ? 3 : 4);
}

static void allow_futex_alone(void)
{
	struct sock_filter code[] = {
	        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 3, 0),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0), /* the report above */
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
	struct sigaction a = {.sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO};

	sigaction(SIGSYS, &a, NULL);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, devmem_is_device() ? 0 : SECCOMP_FILTER_FLAG_TSYNC,
	            &program) != 0)
		_exit(5);
}

/* ---- the step -------------------------------------------------------------------------------- */

static struct fix daemon_;
static struct skv_model model = {
        .size = sizeof(model), .n_layers = 6, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .kv_dtype = SKV_BF16,
        .max_tokens = 2048, .n_ranks = 1, .name = "quiet", .rope = {.type = SKV_ROPE_DEFAULT, .theta = 1e4}};
static struct skv_session *session;
static struct skv_seq *seq[3];
#define ROWS_BYTES (128 * 4 * 64 * sizeof(float))
static struct skv_attn attn;

/* A connection with a session for the model. */
static struct skv_client *open_session(const char *spec)
{
	struct skv_client *c;
	void *rows, *zeros = calloc(1, ROWS_BYTES);

	model.device = devmem_is_device() ? SKV_DEVICE_CUDA(0) : SKV_DEVICE_HOST;
	OK(skv_connect(&c, daemon_.socket));
	OK(skv_open(c, &model, spec, &session));
	rows = devmem_get(ROWS_BYTES);
	devmem_to(rows, zeros, ROWS_BYTES);
	free(zeros);
	attn = SKV_ATTN(.q = rows, .k = rows, .v = rows, .out = rows);
	return c;
}

static void begin_items(const struct skv_step_item *items, uint32_t n)
{
	OK(skv_step_begin(session, items, n, devmem_stream()));
}

/* One step of the sequences: seq[0] and seq[1] decode, seq[2] gets a chunk of its prompt. */
static void begin_step(void)
{
	struct skv_step_item items[3] = {
		SKV_STEP_ITEM(.seq = seq[0], .n_tokens = 1),
		SKV_STEP_ITEM(.seq = seq[1], .n_tokens = 1),
		SKV_STEP_ITEM(.seq = seq[2], .n_tokens = 40, .flags = SKV_STEP_PROMPT),
	};

	begin_items(items, 3);
}

static void attend_and_end(void)
{
	for (uint32_t layer = 0; layer < model.n_layers; layer++)
		if (skv_attend(session, layer, &attn) != 0)
			_exit(6);
	if (skv_step_end(session, NULL, NULL) != 0)
		_exit(7);
}

#define N_SPECS policy_rows(SET_QUIET)

/* Runs in a child: only this process's threads get the filter. */
static void quiet_steps(void *arg)
{
	int n = *(int *)arg;

	OK(skv_set_threads(open_session(policy_row(SET_QUIET, n % N_SPECS)->spec), 1 + n / N_SPECS % 2));
	for (int i = 0; i < 3; i++)
		OK(skv_seq_new(session, NULL, 0, &seq[i]));
	for (int i = 0; i < 2; i++) {
		begin_items(&SKV_STEP_ITEM(.seq = seq[i], .n_tokens = 100, .flags = SKV_STEP_PROMPT), 1);
		attend_and_end();
	}
	/* the loader binds names at the first calls */
	for (int i = 0; i < 2; i++) {
		begin_step();
		attend_and_end();
	}
	/* once for each policy: the shared last page is copied, shared pages are evicted */
	if ((n % N_SPECS + n / N_SPECS) % 2) {
		struct skv_seq *child;

		OK(skv_seq_fork(seq[0], NULL, SKV_ALL, &child));
	}
	for (int i = 0; i < 20; i++) {
		begin_step();
		atomic_store(&watching, !devmem_is_device());
		attend_and_end();
		atomic_store(&watching, false);
		if (atomic_load(&allocations) > 0) {
			fprintf(stderr, "%lu allocations in step %d\n", atomic_load(&allocations), i);
			_exit(8);
		}
	}
	begin_step();
	allow_futex_alone();
	attend_and_end();
	_exit(0);
}

static void setup(void)
{
	fix_start_process(&daemon_, NULL);
}

static void teardown(void)
{
	fix_stop(&daemon_);
}

START_TEST(no_call_no_allocation)
{
	if (slowed())
		return; /* sanitizers make system calls of their own */
	fix_in_child(0, quiet_steps, &_i);
}
END_TEST

static void *graph; /* of all layers, recorded under graph_key */
static uint64_t graph_key;

/* All layers, by launching a recording, which is made if there is none for this step. */
static int launch(void)
{
	const struct skv_backend *d = devmem_device();
	uint64_t key = skv_step_key(session);
	int r;

	if (key == graph_key) {
		r = d->graph_launch(graph, devmem_stream());
		return r < 0 ? r : skv_step_replayed(session, key);
	}
	graph_key = key;
	OK(d->begin_capture(devmem_stream()));
	for (uint32_t layer = 0; layer < model.n_layers; layer++)
		OK(skv_attend(session, layer, &attn));
	OK(d->end_capture(devmem_stream(), &graph));
	return d->graph_launch(graph, devmem_stream());
}

/*
 * Decode steps on a device: replays of the caller's recording, or calls with the same buffers in each step, which the
 * library replays itself.
 */
static void quiet_replays(void *arg)
{
	struct skv_step_item items[2] = {SKV_STEP_ITEM(.n_tokens = 1), SKV_STEP_ITEM(.n_tokens = 1)};
	bool whole = *(int *)arg >= N_SPECS;

	open_session(policy_row(SET_QUIET, *(int *)arg % N_SPECS)->spec);
	for (int i = 0; i < 2; i++) {
		OK(skv_seq_new(session, NULL, 0, &seq[i]));
		items[i].seq = seq[i];
	}
	for (int i = 0; i < 20; i++) {
		begin_items(items, 2);
		if (!whole) {
			attend_and_end();
			continue;
		}
		if (launch() < 0)
			_exit(10);
		OK(skv_step_end(session, NULL, NULL));
	}
	begin_items(items, 2);
	allow_futex_alone();
	if (!whole)
		attend_and_end();
	else if (skv_step_key(session) != graph_key || launch() < 0 || skv_step_end(session, NULL, NULL) < 0)
		_exit(11);
	_exit(0);
}

/* The filter and the counter detect what they must: under them the begin of a step fails. */
static void loud_step(void *arg)
{
	(void)arg;
	open_session("full");
	for (int i = 0; i < 3; i++)
		OK(skv_seq_new(session, NULL, 0, &seq[i]));
	atomic_store(&watching, true);
	begin_step();
	atomic_store(&watching, false);
	if (atomic_load(&allocations) == 0)
		_exit(9);
	attend_and_end();
	freopen("/dev/null", "w", stderr);
	allow_futex_alone();
	begin_step();
	_exit(0);
}

START_TEST(no_call_in_a_replay)
{
	if (devmem_is_device())
		fix_in_child(0, quiet_replays, &_i);
}
END_TEST

START_TEST(the_test_can_fail)
{
	int status;
	pid_t pid;

	if (slowed())
		return;
	pid = child_fork();
	if (pid == 0)
		loud_step(NULL);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 3, "%#x", (unsigned)status);
}
END_TEST

/* ---- cost ------------------------------------------------------------------------------------ */

/* Seconds of the two kernel calls that a dense layer of one short sequence needs. */
static double kernels_alone(uint32_t calls)
{
	const struct skv_kernels *k = skv_kernels_host(NULL);
	struct skv_shape shape = {.n_heads = model.n_heads, .n_kv_heads = model.n_kv_heads, .head_dim = model.head_dim,
	                          .dtype = model.kv_dtype, .scale = 0.2f, .page_bytes = skv_page_bytes(&model)};
	skv_pte table = skv_pte_make(SKV_PTE_PRIVATE, 0);
	struct skv_kseq q = {.table = &table, .len = 8, .n_q = 1};
	struct skv_batch batch = {.seq = &q, .n = 1, .max_len = 8, .max_q = 1};
	struct skv_workspace work = {.bytes = k->workspace_bytes(&shape, 1, 1, 1024, 1), .threads = 1};
	double begin;

	work.mem = aligned_alloc(64, (work.bytes + 63) / 64 * 64);
	shape.pool = aligned_alloc(64, shape.page_bytes);
	memset(shape.pool, 0, shape.page_bytes);
	begin = fix_now();
	for (uint32_t i = 0; i < calls; i++) {
		k->append(&shape, &batch, NULL, attn.k, attn.v, &work);
		k->decode_dense(&shape, &batch, attn.q, attn.out, NULL, &work);
	}
	begin = fix_now() - begin;
	free(work.mem);
	free(shape.pool);
	return begin;
}

START_TEST(cost_of_attend)
{
	const uint32_t steps = 500;
	const double most = 3e-6;
	double best = 1, bare = 1;
	struct skv_client *c;

	if (devmem_is_device())
		return; /* sparsekv-bench ipc measures it */
	c = open_session("full");
	OK(skv_set_threads(c, 1));
	OK(skv_seq_new(session, NULL, 0, &seq[0]));
	for (int round = 0; round < 5 || (round < 200 && best - bare >= most); round++) { /* the machine may be busy */
		double spent = 0, alone = kernels_alone(steps * model.n_layers) / (steps * model.n_layers);

		for (uint32_t i = 0; i < steps; i++) {
			double begin;

			/* always the same short step: the overhead is measured, not the attention */
			OK(skv_step_begin(session, &SKV_STEP_ITEM(.seq = seq[0], .n_tokens = 1), 1, NULL));
			begin = fix_now();
			for (uint32_t layer = 0; layer < model.n_layers; layer++)
				skv_attend(session, layer, &attn);
			spent += fix_now() - begin;
			skv_step_abort(session);
		}
		spent /= steps * model.n_layers;
		best = spent < best ? spent : best;
		bare = alone < bare ? alone : bare;
	}
	printf("skv_attend: %.2f us, its kernels alone %.2f us\n", best * 1e6, bare * 1e6);
	if (!slowed())
		ck_assert_double_lt(best - bare, most);
	skv_disconnect(c);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-maintenance");
	TCase *t = add_case(s, "quiet", 60, setup, teardown, the_test_can_fail, cost_of_attend, NULL);

	tcase_add_loop_test(t, no_call_no_allocation, 0, 2 * N_SPECS);
	tcase_add_loop_test(t, no_call_in_a_replay, 0, 2 * N_SPECS);
	return run_suite(s);
}
