/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/emulate/emulate.h - CUDA's language for a CPU: the first header of each source of kernels/cuda/ that is
 * compiled as C++ with SKV_EMULATE.
 *
 * The blocks of a launch run one after the other. Each thread of a block is a fiber (lanes.cpp); fibers switch when
 * they wait for each other. A collective operation of a warp is a meeting: each lane leaves its part there and
 * continues when all lanes have done so. There is a single host thread, so atomic operations need no host atomics.
 */
#ifndef SKV_TEST_EMULATE_H
#define SKV_TEST_EMULATE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <new>
#include <tuple>
#include <type_traits>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __noinline__
#define __shared__ static /* one copy is enough, since blocks run one after the other */

/* ---- lanes ------------------------------------------------------------------------------------ */

#define EMULATE_THREADS 1024u /* max threads of a block */
#define EMULATE_SHARED (227u << 10) /* max bytes of dynamic shared memory, as on an H100 */

/* Collective operations of a warp. All of its lanes must do the same one. */
enum emulate_meeting { EMULATE_SYNC, EMULATE_SHUFFLE, EMULATE_REDUCE, EMULATE_MMA, EMULATE_MATRIX };

struct emulate_lane {
	uint3 thread;
	uint32_t number, lane; /* number in the block; number in the warp */
	struct emulate_warp *warp;
	/* The lane is not ready as long as *wait_on is wait_while. */
	const volatile uint32_t *wait_on;
	uint32_t wait_while;
	bool done;
	void *context;
};

/*
 * The data that lanes leave for each other: that of this meeting, and that of the previous one, which slow lanes may
 * still read.
 */
struct emulate_warp {
	uint32_t lanes, arrived, turn; /* lanes that have not ended; lanes at the meeting; completed meetings */
	enum emulate_meeting what;
	alignas(16) uint8_t left[2][32][64];
};

extern struct emulate_lane *emulate_me;
extern dim3 blockIdx, gridDim, blockDim;
extern uint8_t emulate_shared[];

#define threadIdx (emulate_me->thread)
#define SHARED_MEMORY(type, name, align) type *const name = (type *)emulate_shared

void emulate_wait(const volatile uint32_t *on, uint32_t while_it_is);
void emulate_yield(void); /* in a loop that waits for other lanes */
[[noreturn]] void emulate_wrong(const char *what);

/* Leaves `bytes` bytes of `mine` for the warp. Returns the data of all lanes, by lane. */
uint8_t (*emulate_meet(enum emulate_meeting what, const void *mine, size_t bytes))[64];

void emulate_barrier(uint32_t id, uint32_t threads); /* 0 threads: all threads of the block that have not ended */

static inline void __syncthreads(void)
{
	emulate_barrier(0, 0);
}
static inline void __syncwarp(void)
{
	emulate_meet(EMULATE_SYNC, NULL, 0);
}
static inline void __nanosleep(uint32_t)
{
	emulate_yield();
}
static inline void __threadfence(void)
{
}
static inline void __threadfence_block(void)
{
}
static inline void __threadfence_system(void)
{
}

/* ---- a warp's exchanges ------------------------------------------------------------------------ */

static inline void emulate_whole_warp(uint32_t mask)
{
	if (mask != ~0u)
		emulate_wrong("a part of a warp exchanges data: not emulated");
}

template <class T> static T emulate_from(uint8_t (*left)[64], uint32_t lane)
{
	T x;
	memcpy(&x, left[lane], sizeof(x));
	return x;
}

template <class T> static T emulate_shuffle(uint32_t mask, T x, uint32_t from)
{
	emulate_whole_warp(mask);
	uint8_t (*left)[64] = emulate_meet(EMULATE_SHUFFLE, &x, sizeof(x));
	return from < 32 ? emulate_from<T>(left, from) : x;
}
template <class T> static T __shfl_sync(uint32_t mask, T x, uint32_t lane)
{
	return emulate_shuffle(mask, x, lane % 32);
}
template <class T> static T __shfl_xor_sync(uint32_t mask, T x, uint32_t by)
{
	return emulate_shuffle(mask, x, emulate_me->lane ^ by);
}
template <class T> static T __shfl_up_sync(uint32_t mask, T x, uint32_t by)
{
	return emulate_shuffle(mask, x, emulate_me->lane < by ? emulate_me->lane : emulate_me->lane - by);
}
template <class T> static T __shfl_down_sync(uint32_t mask, T x, uint32_t by)
{
	return emulate_shuffle(mask, x, emulate_me->lane + by < 32 ? emulate_me->lane + by : emulate_me->lane);
}

template <class F> static uint32_t emulate_reduce(uint32_t mask, uint32_t x, F add)
{
	uint8_t (*left)[64];
	uint32_t all;

	emulate_whole_warp(mask);
	left = emulate_meet(EMULATE_REDUCE, &x, sizeof(x));
	all = emulate_from<uint32_t>(left, 0);
	for (uint32_t i = 1; i < 32; i++)
		all = add(all, emulate_from<uint32_t>(left, i));
	return all;
}
static inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t x)
{
	return emulate_reduce(mask, x, [](uint32_t a, uint32_t b) { return a + b; });
}
static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t x)
{
	return emulate_reduce(mask, x, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
static inline uint32_t __ballot_sync(uint32_t mask, bool x)
{
	return emulate_reduce(mask, (uint32_t)x << emulate_me->lane, [](uint32_t a, uint32_t b) { return a | b; });
}
static inline bool __any_sync(uint32_t mask, bool x)
{
	return __ballot_sync(mask, x) != 0;
}
static inline bool __all_sync(uint32_t mask, bool x)
{
	return __ballot_sync(mask, x) == ~0u;
}

/* ---- memory ------------------------------------------------------------------------------------ */

template <class T, class U> static T atomicAdd(T *p, U x)
{
	const T was = *p;
	*p = was + (T)x;
	return was;
}
template <class T, class U> static T atomicMax(T *p, U x)
{
	const T was = *p;
	*p = was > (T)x ? was : (T)x;
	return was;
}
template <class T, class U> static T atomicMin(T *p, U x)
{
	const T was = *p;
	*p = was < (T)x ? was : (T)x;
	return was;
}
template <class T, class U> static T atomicOr(T *p, U x)
{
	const T was = *p;
	*p = was | (T)x;
	return was;
}
template <class T, class U> static T atomicExch(T *p, U x)
{
	const T was = *p;
	*p = (T)x;
	return was;
}
static inline uint32_t atomicInc(uint32_t *p, uint32_t most)
{
	const uint32_t was = *p;
	*p = was >= most ? 0 : was + 1;
	return was;
}

/* Loads require aligned addresses, as on a device. */
template <class T> static const T &emulate_aligned(const T *p)
{
	if ((uintptr_t)p % sizeof(T))
		emulate_wrong("an address is not aligned");
	return *p;
}
template <class T> static T __ldcg(const T *p)
{
	return emulate_aligned(p);
}
template <class T> static T __ldg(const T *p)
{
	return emulate_aligned(p);
}

static inline size_t __cvta_generic_to_shared(const void *p)
{
	return (size_t)((const uint8_t *)p - emulate_shared);
}
static inline uint8_t *emulate_at(uint32_t shared)
{
	return emulate_shared + (int32_t)shared;
}

/* ---- arithmetic -------------------------------------------------------------------------------- */

template <class A, class B> static constexpr typename std::common_type<A, B>::type min(A a, B b)
{
	typedef typename std::common_type<A, B>::type T;
	return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B> static constexpr typename std::common_type<A, B>::type max(A a, B b)
{
	typedef typename std::common_type<A, B>::type T;
	return (T)a < (T)b ? (T)b : (T)a;
}

template <class To, class From> static To emulate_bits(From x)
{
	To y;
	static_assert(sizeof(y) == sizeof(x), "as many bits");
	memcpy(&y, &x, sizeof(y));
	return y;
}
static inline uint32_t __float_as_uint(float x)
{
	return emulate_bits<uint32_t>(x);
}
static inline float __uint_as_float(uint32_t x)
{
	return emulate_bits<float>(x);
}
static inline float __int_as_float(int32_t x)
{
	return emulate_bits<float>(x);
}
static inline float __fdividef(float a, float b)
{
	return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
	return fmaf(a, b, c);
}
static inline float __fmul_rn(float a, float b)
{
	return a * b;
}
static inline float __saturatef(float x)
{
	return x > 0 ? x < 1 ? x : 1 : 0;
}
static inline float rsqrtf(float x)
{
	return 1 / sqrtf(x);
}
#define __expf(x) expf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
static inline unsigned long long __double2ull_rn(double x)
{
	return (unsigned long long)nearbyint(x);
}
static inline int __popc(uint32_t x)
{
	return __builtin_popcount(x);
}
static inline int __clz(uint32_t x)
{
	return x ? __builtin_clz(x) : 32;
}
static inline int __ffs(uint32_t x)
{
	return __builtin_ffs((int)x);
}
static inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
	return (uint32_t)((uint64_t)a * b >> 32);
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t by)
{
	const uint64_t both = (uint64_t)b << 32 | a;
	uint32_t r = 0;

	for (uint32_t i = 0; i < 4; i++) {
		const uint32_t byte = (uint32_t)(both >> (by >> 4 * i & 7) * 8) & 0xff;
		r |= (by >> 4 * i & 8 ? byte >> 7 ? 0xffu : 0 : byte) << 8 * i;
	}
	return r;
}
static inline uint32_t emulate_halves(uint32_t a, uint32_t b, bool larger)
{
	uint32_t r = 0;

	for (uint32_t i = 0; i < 32; i += 16) {
		const uint32_t x = a >> i & 0xffff, y = b >> i & 0xffff;
		r |= ((x > y) == larger ? x : y) << i;
	}
	return r;
}
static inline uint32_t __vmaxu2(uint32_t a, uint32_t b)
{
	return emulate_halves(a, b, true);
}
static inline uint32_t __vminu2(uint32_t a, uint32_t b)
{
	return emulate_halves(a, b, false);
}

static inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c)
{
	const float2 x = __bfloat1622float2(a), y = __bfloat1622float2(b), z = __bfloat1622float2(c);
	return __floats2bfloat162_rn(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y));
}

/* ---- launches ---------------------------------------------------------------------------------- */

/* A unit of queued work. It is allocated by malloc() and released by free(). */
struct emulate_work {
	void (*run)(struct emulate_work *);
};
void emulate_queue(cudaStream_t, struct emulate_work *);
template <class F> static void emulate_later(cudaStream_t stream, F f)
{
	struct work : emulate_work {
		F f;
		work(F f_) : f(f_) {}
	};
	static_assert(std::is_trivially_destructible<F>::value, "what is queued is freed as it is");
	void *room = malloc(sizeof(work));
	work *w = new (room) work(f);

	w->run = [](emulate_work *it) { static_cast<work *>(it)->f(); };
	emulate_queue(stream, w);
}

struct emulate_shape {
	const char *name;
	dim3 blocks, threads;
	size_t smem;
};
/* Runs all blocks: body(arg) in each thread. */
void emulate_grid(const struct emulate_shape *, void (*body)(const void *arg), const void *arg);

template <class... Params, class... Args>
static void emulate_launch(const char *name, void (*kernel)(Params...), dim3 blocks, dim3 threads, size_t smem,
                           cudaStream_t stream, const Args &...args)
{
	const struct emulate_shape shape = {name, blocks, threads, smem};
	struct started {
		void (*kernel)(Params...);
		std::tuple<Params...> args;

		static void in_thread(const void *arg)
		{
			const struct started *s = (const struct started *)arg;
			std::apply(s->kernel, s->args);
		}
	};
	const struct started c = {kernel, std::tuple<Params...>(args...)};

	emulate_later(stream, [shape, c]() {
		emulate_grid(&shape, started::in_thread, &c);
	});
}
#define launch_grid(...) emulate_launch(#__VA_ARGS__, __VA_ARGS__)

/*
 * A cooperative launch, whose blocks wait for each other, has one block here: its kernels work with any number of
 * blocks.
 */
template <class Params>
static void emulate_launch_config(const cudaLaunchConfig_t *config, void (*kernel)(Params), const Params &params)
{
	dim3 blocks = config->gridDim;

	for (uint32_t i = 0; i < config->numAttrs; i++)
		if (config->attrs[i].id == cudaLaunchAttributeCooperative)
			blocks = 1;
	emulate_launch(__PRETTY_FUNCTION__, kernel, blocks, config->blockDim, config->dynamicSmemBytes, config->stream,
	               params);
}
#define cudaLaunchKernelEx emulate_launch_config

template <class... Params> static cudaError_t cudaFuncSetAttribute(void (*)(Params...), cudaFuncAttribute what, int value)
{
	const bool fits = what != cudaFuncAttributeMaxDynamicSharedMemorySize || value <= (int)EMULATE_SHARED;
	return fits ? cudaSuccess : cudaErrorInvalidValue;
}
template <class... Params>
static cudaError_t cudaOccupancyMaxActiveClusters(int *ret, void (*)(Params...), const cudaLaunchConfig_t *)
{
	*ret = 0; /* clusters are not emulated */
	return cudaSuccess;
}

#include "tests/emulate/ptx.h"

#endif
