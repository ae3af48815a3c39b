/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/output-hash.h - a hash of the outputs of a step, to compare them bit for bit. */
#ifndef SKV_TEST_OUTPUT_HASH_H
#define SKV_TEST_OUTPUT_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OUTPUT_HASH_NONE 0xcbf29ce484222325u /* of no outputs (FNV-1a) */

/* Returns the hash h extended by n more outputs. */
static inline uint64_t output_hash(uint64_t h, const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, &x[i], sizeof(bits));
		h = (h ^ bits) * 0x100000001b3u;
	}
	return h;
}

#endif
