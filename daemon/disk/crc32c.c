/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/crc32c.c - CRC-32C (Castagnoli, RFC 3720), reflected, with the polynomial 0x1edc6f41.
 *
 * The processor's CRC32 instruction has a latency of three cycles and a throughput of one a cycle. So the checksums of
 * three neighboring lanes of LANE bytes are computed in parallel and then combined. To combine them, the checksum of a
 * lane is advanced over as many zero bytes as the lanes after it have. Advancing is a linear map of the checksum, so
 * one table of 256 values for each of the checksum's four bytes suffices.
 */
#include "daemon/disk/parked.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define WITH_INSTRUCTION __attribute__((target("sse4.2")))
#define STEP_8(sum, x) ((uint32_t)_mm_crc32_u64(sum, x))
#define STEP_1(sum, x) _mm_crc32_u8(sum, x)
static bool has_instruction(void)
{
	return __builtin_cpu_supports("sse4.2");
}
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define WITH_INSTRUCTION
#define STEP_8(sum, x) __crc32cd(sum, x)
#define STEP_1(sum, x) __crc32cb(sum, x)
static bool has_instruction(void)
{
	return true;
}
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t (*sum_of)(uint32_t, const unsigned char *, size_t);

/* ---- with a table ---------------------------------------------------------------------------- */

static uint32_t bytes[256];

static void fill_bytes(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		bytes[i] = i;
		for (int bit = 0; bit < 8; bit++)
			bytes[i] = bytes[i] >> 1 ^ (bytes[i] & 1 ? 0x82f63b78u : 0);
	}
}

static uint32_t by_table(uint32_t sum, const unsigned char *p, size_t n)
{
	for (; n > 0; n--)
		sum = sum >> 8 ^ bytes[(sum ^ *p++) & 255];
	return sum;
}

/* ---- with the instruction -------------------------------------------------------------------- */

#ifdef WITH_INSTRUCTION

#define LANE 1024u /* bytes of a lane */

static uint32_t over_lane[4][256]; /* [byte of a checksum][its value]: its checksum after LANE more zero bytes */

WITH_INSTRUCTION static uint32_t over_zeros(uint32_t sum)
{
	for (uint32_t i = 0; i < LANE; i += 8)
		sum = STEP_8(sum, 0);
	return sum;
}

static void fill_lanes(void)
{
	for (uint32_t byte = 0; byte < 4; byte++)
		for (uint32_t x = 0; x < 256; x++)
			over_lane[byte][x] = over_zeros(x << 8 * byte);
}

static inline uint32_t move_over(uint32_t sum)
{
	return over_lane[0][sum & 255] ^ over_lane[1][sum >> 8 & 255] ^ over_lane[2][sum >> 16 & 255] ^ over_lane[3][sum >> 24];
}

static inline uint64_t load(const unsigned char *p)
{
	uint64_t x;

	memcpy(&x, p, sizeof(x));
	return x;
}

WITH_INSTRUCTION static uint32_t by_instruction(uint32_t sum, const unsigned char *p, size_t n)
{
	for (; n >= 3 * LANE; p += 3 * LANE, n -= 3 * LANE) {
		uint32_t second = 0, third = 0;

		for (uint32_t i = 0; i < LANE; i += 8) {
			sum = STEP_8(sum, load(p + i));
			second = STEP_8(second, load(p + LANE + i));
			third = STEP_8(third, load(p + 2 * LANE + i));
		}
		sum = move_over(move_over(sum) ^ second) ^ third;
	}
	for (; n >= 8; p += 8, n -= 8)
		sum = STEP_8(sum, load(p));
	for (; n > 0; n--)
		sum = STEP_1(sum, *p++);
	return sum;
}

#endif

/* ---------------------------------------------------------------------------------------------- */

static void choose(void)
{
	sum_of = by_table;
#ifdef WITH_INSTRUCTION
	if (has_instruction()) {
		fill_lanes();
		sum_of = by_instruction;
		return;
	}
#endif
	fill_bytes();
}

uint32_t skv_crc32c(uint32_t before, const void *data, size_t n)
{
	(void)pthread_once(&once, choose);
	return ~sum_of(~before, data, n);
}
