/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/barrier.cuh - barriers in shared memory at which arriving and waiting are apart (mbarrier).
 *
 * A barrier's phase ends when the number of threads that it was initialised with have arrived; what they had
 * written before is visible to the threads that then wait for the end of that phase. Phases are told apart by
 * their parity, so no thread may be two phases behind, or wait for a phase before the one before it has ended.
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

/* By one thread, before any other uses it. A phase ends when so many threads have arrived. */
DEVICE void barrier_init(barrier *b, uint32_t threads)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier_at(b)), "r"(threads) : "memory");
}

DEVICE void barrier_arrive(barrier *b)
{
	asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier_at(b)) : "memory");
}

/* Wait for the end of the phase that is the first (0), the second (1), the third (0) ... */
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
 * A count in shared memory: for threads that do not wait at each phase, and may be any number of them ahead. By one thread, after a
 * __syncwarp() for its warp.
 */
DEVICE void count_store(uint32_t *count, uint32_t n)
{
	__threadfence_block();
	atomicExch(count, n);
}

/* Until it is n or more. */
DEVICE void count_await(uint32_t *count, uint32_t n)
{
	while (atomicOr(count, 0) < n)
		__nanosleep(100);
	__threadfence_block();
}

/* A named barrier of some warps. */
DEVICE void warps_sync(uint32_t id, uint32_t threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/*
 * From here on for Hopper and later. Copies that run by themselves (cp.async.bulk): a thread starts them, and a barrier's phase
 * ends when all of their bytes are there. That thread arrives for them, with barrier_expect(), before.
 */
DEVICE void barrier_expect(barrier *b, uint32_t bytes)
{
	asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier_at(b)), "r"(bytes)
	             : "memory");
}

/* From global memory to the block's; both, and their number, are multiples of 16 bytes. */
DEVICE void copy_bulk(void *to, const void *from, uint32_t bytes, barrier *b, uint64_t policy)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
			     (uint32_t)__cvta_generic_to_shared(to)),
	             "l"(from), "r"(bytes), "r"(barrier_at(b)), "l"(policy)
	             : "memory");
}

/* Wait for the end of a phase of this parity of the barrier at an address in shared memory; the processor wakes the thread. */
DEVICE void wait_phase(uint32_t at, uint32_t parity)
{
	asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }"
	             ::"r"(at), "r"(parity) : "memory");
}

/* As barrier_wait(), for waits of less than a microsecond. */
DEVICE void barrier_await(barrier *b, uint32_t phase)
{
	wait_phase(barrier_at(b), phase % 2);
}

/* After barrier_init(), by the same thread, before copies begin. */
DEVICE void barrier_publish(void)
{
	asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

#endif
