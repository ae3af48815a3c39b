/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/emulate/ptx.h - the instructions for which kernels/cuda/ has functions: see emulate.h.
 *
 * An asynchronous operation takes effect as late as it may on a device: a copy to shared memory is made when it is
 * waited for.
 */
#ifndef SKV_TEST_EMULATE_PTX_H
#define SKV_TEST_EMULATE_PTX_H

static inline float exp2_fast(float x)
{
	return exp2f(x);
}

static inline uint64_t evict_first_policy(void)
{
	return 0;
}
static inline uint64_t evict_last_policy(void)
{
	return 0;
}

template <class T> static T emulate_load(const void *p)
{
	return emulate_aligned((const T *)p);
}
template <class T> static void emulate_store(void *p, T x)
{
	(void)emulate_aligned((const T *)p);
	memcpy(p, &x, sizeof(x));
}

static inline uint4 load16(const void *p, uint64_t)
{
	return emulate_load<uint4>(p);
}
static inline uint2 load8(const void *p, uint64_t)
{
	return emulate_load<uint2>(p);
}
static inline uint32_t load4(const void *p, uint64_t)
{
	return emulate_load<uint32_t>(p);
}
static inline uint32_t load2(const void *p, uint64_t)
{
	return emulate_load<uint16_t>(p);
}
static inline void store4(void *p, uint32_t x, uint64_t)
{
	emulate_store(p, x);
}
static inline void store8(float *p, float2 x, uint64_t)
{
	emulate_store(p, x);
}
static inline void store16(float *p, float4 x, uint64_t)
{
	emulate_store(p, x);
}
static inline uint32_t load_acquire(const uint32_t *p)
{
	return *(const volatile uint32_t *)p;
}

/* ---- shared memory ----------------------------------------------------------------------------- */

/*
 * emulate_copy() copies n bytes, or zeros if `from` is NULL. Copies form groups; emulate_await_copies() makes the
 * copies of all groups but the last `but` ones.
 */
void emulate_copy(uint32_t to, const void *from, uint32_t n);
void emulate_commit(void);
void emulate_await_copies(uint32_t but);

static inline void cp_async16(uint32_t to, const void *from, bool exists)
{
	emulate_copy(to, exists ? from : NULL, 16);
}
static inline void cp_async4(uint32_t to, const void *from)
{
	emulate_copy(to, from, 4);
}
static inline void cp_async_commit(void)
{
	emulate_commit();
}
template <int n> static void cp_async_wait(void)
{
	emulate_await_copies(n);
}

static inline void store_shared16(uint32_t to, uint4 x)
{
	emulate_store(emulate_at(to), x);
}
static inline uint4 load_shared16(uint32_t at)
{
	return emulate_load<uint4>(emulate_at(at));
}
static inline uint2 load_shared8(uint32_t at)
{
	return emulate_load<uint2>(emulate_at(at));
}
static inline uint32_t load_shared4(uint32_t at)
{
	return emulate_load<uint32_t>(emulate_at(at));
}
static inline uint32_t load_shared2(uint32_t at)
{
	return emulate_load<uint16_t>(emulate_at(at));
}
static inline uint32_t load_shared1(uint32_t at)
{
	return emulate_load<uint8_t>(emulate_at(at));
}

/* ---- matrices: lane = 4 g + c ------------------------------------------------------------------- */

/*
 * Lanes 8 m + r have the addresses of rows r of matrix m. A lane gets elements 2 c and 2 c + 1 of row g of each matrix.
 */
static inline uint4 ldmatrix_x4(uint32_t at)
{
	const uint4 own = load_shared16(at);
	const uint32_t g = emulate_me->lane / 4, c = emulate_me->lane % 4;
	uint8_t (*left)[64] = emulate_meet(EMULATE_MATRIX, &own, sizeof(own));
	uint32_t r[4];

	for (uint32_t m = 0; m < 4; m++)
		memcpy(&r[m], left[8 * m + g] + 4 * c, 4);
	return make_uint4(r[0], r[1], r[2], r[3]);
}

/* The same for columns. */
static inline uint4 ldmatrix_x4_trans(uint32_t at)
{
	const uint4 own = load_shared16(at);
	const uint32_t g = emulate_me->lane / 4, c = emulate_me->lane % 4;
	uint8_t (*left)[64] = emulate_meet(EMULATE_MATRIX, &own, sizeof(own));
	uint16_t r[4][2];
	uint32_t word[4];

	for (uint32_t m = 0; m < 4; m++)
		for (uint32_t i = 0; i < 2; i++)
			memcpy(&r[m][i], left[8 * m + 2 * c + i] + 2 * g, 2);
	memcpy(word, r, sizeof(word));
	return make_uint4(word[0], word[1], word[2], word[3]);
}

static inline uint32_t transpose8x8(uint32_t x)
{
	const uint32_t g = emulate_me->lane / 4, c = emulate_me->lane % 4;
	uint8_t (*left)[64] = emulate_meet(EMULATE_MATRIX, &x, sizeof(x));
	uint16_t r[2];
	uint32_t word;

	for (uint32_t i = 0; i < 2; i++)
		memcpy(&r[i], left[4 * (2 * c + i) + g / 2] + g % 2 * 2, 2);
	memcpy(&word, r, sizeof(word));
	return word;
}

static inline float emulate_of_f16(uint32_t x)
{
	uint32_t y = (x & 0x7fff) << 13;

	y = y >= 0x7c00u << 13 ? y | 0x7f800000 : __float_as_uint(__uint_as_float(y) * 0x1p112f);
	return __uint_as_float(y | (x & 0x8000) << 16);
}
static inline float emulate_of_bf16(uint32_t x)
{
	return __uint_as_float(x << 16);
}

/*
 * Of A, a lane has rows g and g + 8, elements 2 c, 2 c + 1 and those 8 further. Of B it has column g, the same
 * elements. Of C it has rows g and g + 8, columns 2 c and 2 c + 1.
 */
template <float (*of)(uint32_t)>
static void emulate_mma(float sum[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	const uint32_t words[6] = {a0, a2, a1, a3, b0, b1}, g = emulate_me->lane / 4, c = emulate_me->lane % 4;
	float own[12], (*left)[16];

	for (int i = 0; i < 6; i++) {
		own[2 * i] = of(words[i] & 0xffff);
		own[2 * i + 1] = of(words[i] >> 16);
	}
	left = (float (*)[16])emulate_meet(EMULATE_MMA, own, sizeof(own));
	for (uint32_t lane = 0; lane < 4; lane++) {
		const float *a = left[4 * g + lane], *b = left[8 * c + lane] + 8, *next = left[8 * c + 4 + lane] + 8;
		for (int k = 0; k < 4; k++) {
			sum[0] += a[k] * b[k];
			sum[1] += a[k] * next[k];
			sum[2] += a[4 + k] * b[k];
			sum[3] += a[4 + k] * next[k];
		}
	}
}
static inline void mma_f16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	emulate_mma<emulate_of_f16>(c, a0, a1, a2, a3, b0, b1);
}
static inline void mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	emulate_mma<emulate_of_bf16>(c, a0, a1, a2, a3, b0, b1);
}

/* Unsigned bytes times signed bytes: a lane has elements 4 c … 4 c + 3 and those 16 further. */
static inline void mma_u8s8(int sum[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	const uint32_t own[6] = {a0, a2, a1, a3, b0, b1}, g = emulate_me->lane / 4, c = emulate_me->lane % 4;
	uint8_t (*left)[64] = emulate_meet(EMULATE_MMA, own, sizeof(own));

	for (uint32_t lane = 0; lane < 4; lane++) {
		const uint8_t *a = left[4 * g + lane];
		const int8_t *b = (const int8_t *)left[8 * c + lane] + 16, *next = (const int8_t *)left[8 * c + 4 + lane] + 16;
		for (int k = 0; k < 8; k++) {
			sum[0] += a[k] * b[k];
			sum[1] += a[k] * next[k];
			sum[2] += a[8 + k] * b[k];
			sum[3] += a[8 + k] * next[k];
		}
	}
}

/* ---- barriers ---------------------------------------------------------------------------------- */

struct barrier {
	uint32_t phase; /* phases that have ended */
	uint16_t threads, missing;
};
static_assert(sizeof(barrier) == 8, "as a device's");

static inline void barrier_init(barrier *b, uint32_t threads)
{
	*b = {0, (uint16_t)threads, (uint16_t)threads};
}
static inline void barrier_arrive(barrier *b)
{
	if (--b->missing)
		return;
	b->missing = b->threads;
	b->phase++;
}
/* A device sees only the parity of the phase, so a wait for any other phase is an error here. */
static inline void barrier_wait(barrier *b, uint32_t phase)
{
	while (b->phase == phase)
		emulate_wait(&b->phase, phase);
	if (b->phase != phase + 1)
		emulate_wrong("a thread waits at a barrier for another phase than the last one or this");
}
static inline void count_store(uint32_t *count, uint32_t n)
{
	*count = n;
}
static inline void count_await(uint32_t *count, uint32_t n)
{
	while (*count < n)
		emulate_wait(count, *count);
}
static inline void warps_sync(uint32_t id, uint32_t threads)
{
	emulate_barrier(id, threads);
}

#endif
