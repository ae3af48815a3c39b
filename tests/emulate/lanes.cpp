/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/emulate/lanes.cpp - the threads of a block, as fibers of one thread: see emulate.h.
 *
 * A lane runs until it waits. Then another one of its warp goes on, or, where all of those wait, one of the next
 * warp. $SKV_EMULATE_BACKWARDS has them take turns in the other direction: lanes that should have waited for each
 * other and have not often show so in one of both.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <vector>

#include "tests/emulate/emulate.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define STACK ((size_t)512 << 10)
#else
#define ASAN_POISON_MEMORY_REGION(at, n) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(at, n) ((void)0)
#define STACK ((size_t)128 << 10)
#endif

#define UNWRITTEN 0xa5
#define UNWRITTEN_STACK 8192u /* bytes: about what a thread has in registers; NaNs, until it writes them */
#define FENCE 1024u /* bytes after a block's shared memory that nobody writes to */
#define MOST_YIELDS 20000000u /* between two things that lanes do: then what they wait for does not come */
#define BARRIERS 16u

struct emulate_lane *emulate_me;
dim3 blockIdx, gridDim, blockDim;
alignas(1024) uint8_t emulate_shared[EMULATE_SHARED + FENCE];

static struct emulate_lane lanes[EMULATE_THREADS];
static struct emulate_warp warps[EMULATE_THREADS / 32];
static struct named_barrier {
	uint32_t arrived, turn;
} barriers[BARRIERS];
static uint32_t n_lanes, n_running, yields;
static bool backwards;

/* The copies of a lane that nobody has waited for. */
struct copy {
	uint32_t to, bytes, group;
	const void *from;
};
static std::vector<struct copy> copies[EMULATE_THREADS];
static uint32_t groups[EMULATE_THREADS];

static const struct emulate_shape *shape;
static void (*body)(const void *);
static const void *body_arg;

void emulate_wrong(const char *what)
{
	const dim3 b = blockIdx;

	fprintf(stderr, "emulated kernel: %s: block (%u, %u, %u) of (%u, %u, %u)", what, b.x, b.y, b.z,
	        gridDim.x, gridDim.y, gridDim.z);
	if (emulate_me)
		fprintf(stderr, ", thread (%u, %u, %u)", emulate_me->thread.x, emulate_me->thread.y, emulate_me->thread.z);
	fprintf(stderr, ", of %s\n", shape ? shape->name : "no kernel");
	abort();
}

/* ---- fibers ------------------------------------------------------------------------------------ */

static void lane_main(void);

#ifdef __x86_64__
static void *main_context;

/* Save the registers that a function keeps, and the stack: *from is where. */
extern "C" __attribute__((visibility("hidden"))) void emulate_switch(void **from, void *to);
asm(".text\n"
    ".p2align 4\n"
    ".hidden emulate_switch\n"
    ".globl emulate_switch\n"
    ".type emulate_switch, @function\n"
    "emulate_switch:\n"
    "	push %rbp\n	push %rbx\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
    "	mov %rsp, (%rdi)\n"
    "	mov %rsi, %rsp\n"
    "	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbx\n	pop %rbp\n"
    "	ret\n"
    ".size emulate_switch, . - emulate_switch\n"
    ".section .note.GNU-stack, \"\", @progbits\n"
    ".text\n");

static void new_context(struct emulate_lane *l, uint8_t *stack)
{
	void **top = (void **)(stack + STACK);

	*--top = NULL; /* where lane_main() would return to */
	*--top = (void *)lane_main;
	for (int i = 0; i < 6; i++)
		*--top = NULL;
	l->context = top;
}

static void switch_to(struct emulate_lane *from, struct emulate_lane *to)
{
	emulate_me = to;
	emulate_switch(from ? &from->context : &main_context, to ? to->context : main_context);
}
#else
#include <ucontext.h>
static ucontext_t contexts[EMULATE_THREADS], main_context;

static ucontext_t *context_of(struct emulate_lane *l)
{
	return l ? (ucontext_t *)l->context : &main_context;
}

static void new_context(struct emulate_lane *l, uint8_t *stack)
{
	ucontext_t *c = &contexts[l->number];

	l->context = c;
	getcontext(c);
	c->uc_stack.ss_sp = stack;
	c->uc_stack.ss_size = STACK;
	makecontext(c, lane_main, 0);
}

static void switch_to(struct emulate_lane *from, struct emulate_lane *to)
{
	emulate_me = to;
	swapcontext(context_of(from), context_of(to));
}
#endif

/* One below the other, each with a page before it that nobody may touch. */
static uint8_t *stack_of(uint32_t lane)
{
	static uint8_t *stacks;
	const size_t page = 4096, all = EMULATE_THREADS * (STACK + page);

	if (!stacks) {
		stacks = (uint8_t *)mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (stacks == MAP_FAILED)
			emulate_wrong("no memory for stacks");
		for (uint32_t i = 0; i < EMULATE_THREADS; i++)
			mprotect(stacks + i * (STACK + page), page, PROT_NONE);
	}
	return stacks + lane * (STACK + page) + page;
}

/* ---- turns ------------------------------------------------------------------------------------- */

static bool ready(const struct emulate_lane *l)
{
	return !l->done && (!l->wait_on || *l->wait_on != l->wait_while);
}

/* Of the lanes [first, first + n) one that may go on, from number `from` of these on. */
static struct emulate_lane *find_ready(uint32_t first, uint32_t n, uint32_t from)
{
	for (uint32_t k = 0, at = from; k < n; k++) {
		if (ready(&lanes[first + at]))
			return &lanes[first + at];
		if (backwards)
			at = at == 0 ? n - 1 : at - 1;
		else
			at = at + 1 == n ? 0 : at + 1;
	}
	return NULL;
}

static void next_lane(bool own_warp_first)
{
	struct emulate_lane *const me = emulate_me, *next = NULL;
	const uint32_t first = me->number - me->lane, all = n_lanes - first < 32 ? n_lanes - first : 32;

	if (own_warp_first)
		next = find_ready(first, all, me->lane);
	if (!next)
		next = find_ready(0, n_lanes, (backwards ? first + n_lanes - 1 : first + all) % n_lanes);
	if (!next)
		emulate_wrong("all threads wait");
	if (next != me)
		switch_to(me, next);
	me->wait_on = NULL;
}

void emulate_wait(const volatile uint32_t *on, uint32_t while_it_is)
{
	emulate_me->wait_on = on;
	emulate_me->wait_while = while_it_is;
	yields = 0;
	next_lane(true);
}

void emulate_yield(void)
{
	if (++yields > MOST_YIELDS)
		emulate_wrong("threads wait for what does not come");
	next_lane(false);
}

/* Threads that have ended are not waited for. */
static void end_meeting(struct emulate_warp *w)
{
	if (w->arrived < w->lanes || w->lanes == 0)
		return;
	w->arrived = 0;
	w->turn++;
}
static void end_barrier(struct named_barrier *b, uint32_t threads)
{
	if (b->arrived < threads || threads == 0)
		return;
	b->arrived = 0;
	b->turn++;
}

uint8_t (*emulate_meet(enum emulate_meeting what, const void *mine, size_t bytes))[64]
{
	struct emulate_warp *w = emulate_me->warp;
	const uint32_t turn = w->turn;
	uint8_t (*left)[64] = w->left[turn % 2];

	if (w->arrived++ && w->what != what)
		emulate_wrong("lanes of a warp do different things together");
	w->what = what;
	if (bytes)
		memcpy(left[emulate_me->lane], mine, bytes);
	end_meeting(w);
	if (w->turn == turn)
		emulate_wait(&w->turn, turn);
	return left;
}

void emulate_barrier(uint32_t id, uint32_t threads)
{
	struct named_barrier *b = &barriers[id % BARRIERS];
	const uint32_t turn = b->turn;

	b->arrived++;
	end_barrier(b, threads ? threads : n_running);
	if (b->turn == turn)
		emulate_wait(&b->turn, turn);
}

static void lane_main(void)
{
	body(body_arg);

	emulate_me->done = true;
	emulate_me->warp->lanes--;
	n_running--;
	if (emulate_me->warp->arrived)
		end_meeting(emulate_me->warp);
	if (barriers[0].arrived)
		end_barrier(&barriers[0], n_running);
	if (n_running)
		next_lane(true);
	else
		switch_to(emulate_me, NULL);
	abort();
}

/* ---- copies ------------------------------------------------------------------------------------ */

void emulate_copy(uint32_t to, const void *from, uint32_t n)
{
	const uint32_t me = emulate_me->number;

	if (to % n || (uintptr_t)from % n)
		emulate_wrong("a copy between addresses that are not aligned");
	copies[me].push_back({to, n, groups[me], from});
}

void emulate_commit(void)
{
	groups[emulate_me->number]++;
}

void emulate_await_copies(uint32_t but)
{
	const uint32_t me = emulate_me->number;
	std::vector<struct copy> &c = copies[me];
	size_t n = 0;

	for (; n < c.size() && c[n].group + but < groups[me]; n++)
		if (c[n].from)
			memcpy(emulate_at(c[n].to), c[n].from, c[n].bytes);
		else
			memset(emulate_at(c[n].to), 0, c[n].bytes);
	c.erase(c.begin(), c.begin() + (ptrdiff_t)n);
}

/* ---- blocks ------------------------------------------------------------------------------------ */

static void begin_block(void)
{
	const dim3 t = blockDim;

	ASAN_UNPOISON_MEMORY_REGION(emulate_shared, sizeof(emulate_shared));
	memset(emulate_shared, UNWRITTEN, shape->smem + FENCE);
	ASAN_POISON_MEMORY_REGION(emulate_shared + shape->smem, sizeof(emulate_shared) - shape->smem);
	memset(barriers, 0, sizeof(barriers));
	n_running = n_lanes;
	for (uint32_t i = 0; i < n_lanes; i++) {
		struct emulate_warp *w = &warps[i / 32];

		if (i % 32 == 0)
			w->lanes = w->arrived = w->turn = 0;
		w->lanes++;
		lanes[i] = {};
		lanes[i].thread = {i % t.x, i / t.x % t.y, i / t.x / t.y};
		lanes[i].number = i;
		lanes[i].lane = i % 32;
		lanes[i].warp = w;
		copies[i].clear();
		groups[i] = 0;
#ifndef __SANITIZE_ADDRESS__
		memset(stack_of(i) + STACK - UNWRITTEN_STACK, 0xff, UNWRITTEN_STACK);
#endif
		new_context(&lanes[i], stack_of(i));
	}
}

static void end_block(void)
{
	ASAN_UNPOISON_MEMORY_REGION(emulate_shared, sizeof(emulate_shared));
	for (uint32_t i = 0; i < FENCE; i++)
		if (emulate_shared[shape->smem + i] != UNWRITTEN)
			emulate_wrong("a write behind the block's shared memory");
}

void emulate_grid(const struct emulate_shape *of, void (*run)(const void *), const void *arg)
{
	const dim3 n = of->blocks;

	shape = of;
	body = run;
	body_arg = arg;
	backwards = getenv("SKV_EMULATE_BACKWARDS") != NULL;
	gridDim = n;
	blockDim = of->threads;
	n_lanes = of->threads.x * of->threads.y * of->threads.z;
	if (n_lanes == 0 || n_lanes > EMULATE_THREADS || of->smem > EMULATE_SHARED || !n.x || !n.y || !n.z ||
	    n.y > 65535 || n.z > 65535)
		emulate_wrong("a launch that no device takes");
	for (uint64_t i = 0; i < (uint64_t)n.x * n.y * n.z; i++) {
		blockIdx = {(uint32_t)(i % n.x), (uint32_t)(i / n.x % n.y), (uint32_t)(i / n.x / n.y)};
		begin_block();
		switch_to(NULL, backwards ? &lanes[n_lanes - 1] : &lanes[0]);
		end_block();
	}
	shape = NULL;
}
