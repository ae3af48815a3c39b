/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/wgmma.cuh - wgmma instructions, by which a warpgroup multiplies matrices (sm_90a): 64 rows by 64
 * or 128 columns, fp32 sums of products of 16-bit elements.
 *
 * Matrices in shared memory are stored as panels, with 64 elements (128 bytes) of each row. The 16-byte pieces of a
 * panel's row are in the hardware's 128-byte swizzle: piece p of row r is at p ^ (r % 8). Panels begin at multiples of
 * 1,024 bytes.
 *
 * The accumulators d have the layout of mma.m16n8k16, with 16 rows per warp. With g = lane / 4 and c = lane % 4, d[4 j]
 * and d[4 j + 1] are columns 8 j + 2 c and 8 j + 2 c + 1 of row g; d[4 j + 2] and d[4 j + 3] are the same columns of
 * row g + 8. A first factor in registers has the same layout, 16 columns at a time.
 */
#ifndef SKV_CUDA_WGMMA_CUH
#define SKV_CUDA_WGMMA_CUH

#include "kernels/cuda/runtime/async-copy.cuh"

/* Byte offset of piece p of row r in a panel. */
DEVICE uint32_t panel_at(uint32_t r, uint32_t p)
{
	return r * 128 + (p ^ r % 8) * 16;
}

/*
 * Returns the descriptor by which wgmma finds a matrix in shared memory. The descriptor's stride is the number of bytes
 * from eight rows of a panel to the next eight. `lead` is the number of bytes from a panel to the next one, if a
 * product spans panels (a second factor of 128 columns, stored row by row).
 */
DEVICE uint64_t matrix_descriptor(uint32_t at, uint32_t lead)
{
	return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/*
 * wgmma_fence() is called before products: their registers are ready. wgmma_commit(), after products, closes a batch of
 * products. wgmma_wait() waits until all but the last n batches are done.
 */
DEVICE void wgmma_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int n> DEVICE void wgmma_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

/* Together with a barrier, makes ordinary writes to shared memory visible to the tensor cores. */
DEVICE void fence_proxy_async(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define SUMS_32                                                                                             \
	"{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"    \
	"%27,%28,%29,%30,%31}, "
#define SUMS_64                                                                                             \
	"{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"    \
	"%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"   \
	"%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
#define WGMMA(n, type) "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " "

/* Products of two factors in shared memory, each [row][16 elements]; sums begin at 0 unless `add` is set. */
#define SCORES_64(type)                                                                                     \
	asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; " WGMMA("64", type) SUMS_32                    \
		     "%32, %33, p, 1, 1, 0, 0; }"                                                            \
		     : D16(0), D16(16) : "l"(a), "l"(b), "r"(add))
#define SCORES_128(type)                                                                                    \
	asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; " WGMMA("128", type) SUMS_64                   \
		     "%64, %65, p, 1, 1, 0, 0; }"                                                            \
		     : D16(0), D16(16), D16(32), D16(48) : "l"(a), "l"(b), "r"(add))

/* Products of a first factor in registers and a second in shared memory, [16 rows][columns]; always added to d. */
#define VALUES_64(type)                                                                                     \
	asm volatile(WGMMA("64", type) SUMS_32 "{%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                         \
		     : D16(0), D16(16) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(b))
#define VALUES_128(type)                                                                                    \
	asm volatile(WGMMA("128", type) SUMS_64 "{%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                        \
		     : D16(0), D16(16), D16(32), D16(48)                                                     \
		     : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(b))

/* d = a bᵀ, or d += a bᵀ with `add`, over 16 elements of each row. */
template <class T> DEVICE void wgmma_scores(float (&d)[32], uint64_t a, uint64_t b, int add)
{
	if constexpr (T::dtype == SKV_F16)
		SCORES_64("f16");
	else
		SCORES_64("bf16");
}
template <class T> DEVICE void wgmma_scores(float (&d)[64], uint64_t a, uint64_t b, int add)
{
	if constexpr (T::dtype == SKV_F16)
		SCORES_128("f16");
	else
		SCORES_128("bf16");
}

/* d += w b, over 16 rows of b. */
template <class T> DEVICE void wgmma_values(float (&d)[32], const uint32_t (&w)[4], uint64_t b)
{
	if constexpr (T::dtype == SKV_F16)
		VALUES_64("f16");
	else
		VALUES_64("bf16");
}
template <class T> DEVICE void wgmma_values(float (&d)[64], const uint32_t (&w)[4], uint64_t b)
{
	if constexpr (T::dtype == SKV_F16)
		VALUES_128("f16");
	else
		VALUES_128("bf16");
}

#undef D4
#undef D16
#undef SUMS_32
#undef SUMS_64
#undef WGMMA
#undef SCORES_64
#undef SCORES_128
#undef VALUES_64
#undef VALUES_128

#endif
