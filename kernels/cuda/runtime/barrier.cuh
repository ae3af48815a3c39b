/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/barrier.cuh - barriers in shared memory with separate arrive and wait operations (mbarrier).
 *
 * A barrier's phase ends when as many threads have arrived as the barrier was initialized with. Data that threads write
 * before they arrive is visible to threads that wait for the end of that phase. Phases are told apart only by their
 * parity, so no thread may fall two phases behind, or wait for a phase before the previous phase has ended.
 */
#ifndef SKV_CUDA_BARRIER_CUH
#define SKV_CUDA_BARRIER_CUH

#include "kernels/cuda/runtime/convert.cuh"

#ifndef SKV_EMULATE
typedef uint64_t barrier;

DEVICE uint32_t barrier_at(barrier *b)
{
	return (uint32_t)__cvta_generic_to_shared(b);
}

/* Called by one thread before any other thread uses the barrier. Each phase ends after `threads` arrivals. */
DEVICE void barrier_init(barrier *b, uint32_t threads)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier_at(b)), "r"(threads) : "memory");
}

DEVICE void barrier_arrive(barrier *b)
{
	asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier_at(b)) : "memory");
}

/* Waits for the end of a phase; the barrier's first phase is number 0. Only the parity of `phase` matters. */
DEVICE void barrier_wait(barrier *b, uint32_t phase)
{
	uint32_t done;
	for (;;) {
		asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
		             : "=r"(done) : "r"(barrier_at(b)), "r"(phase % 2) : "memory");
		if (done)
			return;
		__nanosleep(100);
	}
}

/*
 * Sets a counter in shared memory, on which other threads wait with count_await(). Unlike a barrier's phase, the
 * counter may be any number of steps ahead of a waiting thread. Called by one thread, after a __syncwarp() of its warp.
 */
DEVICE void count_store(uint32_t *count, uint32_t n)
{
	__threadfence_block();
	atomicExch(count, n);
}

/* Waits until the counter is at least n. */
DEVICE void count_await(uint32_t *count, uint32_t n)
{
	while (atomicOr(count, 0) < n)
		__nanosleep(100);
	__threadfence_block();
}

/* Waits at the block's named barrier `id`, which some of its warps use, with `threads` threads in all. */
DEVICE void warps_sync(uint32_t id, uint32_t threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/*
 * The following functions are for Hopper and later. Bulk copies (cp.async.bulk) are asynchronous: one thread starts
 * them, and a barrier's phase ends when all of their bytes have arrived. Before it starts copies, the thread arrives
 * with barrier_expect(), which announces the number of bytes.
 */
DEVICE void barrier_expect(barrier *b, uint32_t bytes)
{
	asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier_at(b)), "r"(bytes)
	             : "memory");
}

/* Copies from global memory to the block's shared memory. Both addresses and `bytes` are multiples of 16. */
DEVICE void copy_bulk(void *to, const void *from, uint32_t bytes, barrier *b, uint64_t policy)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
			     (uint32_t)__cvta_generic_to_shared(to)),
	             "l"(from), "r"(bytes), "r"(barrier_at(b)), "l"(policy)
	             : "memory");
}

/*
 * Waits for the end of a phase of this parity, of the barrier at shared memory address `at`. The hardware suspends and
 * wakes the thread.
 */
DEVICE void wait_phase(uint32_t at, uint32_t parity)
{
	asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }"
	             ::"r"(at), "r"(parity) : "memory");
}

/* Waits like barrier_wait(), but by wait_phase(), which is better for waits of less than a microsecond. */
DEVICE void barrier_await(barrier *b, uint32_t phase)
{
	wait_phase(barrier_at(b), phase % 2);
}

/*
 * Makes initialized barriers visible to bulk copies. Called after barrier_init(), by the same thread, before copies
 * begin.
 */
DEVICE void barrier_publish(void)
{
	asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

#endif
