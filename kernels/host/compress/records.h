/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/records.h - records of compressed tokens read into fp32, and RoPE, for compress.c and
 * decompress.c.
 *
 * Numbers of references come out of records, which another process may have written: they are clamped to what exists.
 */
#ifndef SKV_HOST_RECORDS_H
#define SKV_HOST_RECORDS_H

#include <math.h>
#include "kernels/compress.h"
#include "kernels/host/compress/bits.h"
#include "kernels/host/runtime/host.h"
#include "kernels/host/runtime/simd.h"

#define TOKENS 32u /* of a tile, processed together */

/* A layer with latent compression, and what follows from its codec. */
struct latent {
	const struct skv_shape *sh;
	const struct skv_codec *c;
	uint32_t d, half;   /* elements of x; of its K */
	uint32_t parts;     /* independent parts of E and Dec */
	uint32_t code_bytes, ref_bytes;
};

static inline struct latent latent_of(const struct skv_shape *sh)
{
	const struct skv_codec *c = sh->codec;
	const uint32_t d = skv_token_dims(sh);

	return (struct latent){.sh = sh, .c = c, .d = d, .half = d / 2, .parts = c->spans ? 2 * c->spans : 1,
	                       .code_bytes = skv_code_bytes(c), .ref_bytes = skv_ref_bytes(c, d, sh->dtype)};
}

static inline uint8_t *ref_at(const struct latent *k, const struct skv_kseq *s, uint32_t number)
{
	return skv_record_at(k->sh, s, k->sh->refs, k->ref_bytes, number);
}

static inline uint8_t *code_at(const struct latent *k, const struct skv_kseq *s, uint32_t token)
{
	return skv_record_at(k->sh, s, k->sh->codes, k->code_bytes, skv_codes_before(k->c, token));
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Dequantize n numbers, a multiple of 16; with 16 bits of `dtype`. */
static inline void read_numbers(const uint8_t *p, uint32_t n, uint32_t bits, uint32_t block, uint32_t dtype, float *to)
{
	const uint8_t *q = p + n / block * 4;

	for (uint32_t i = 0; i < n; i += VL) {
		if (bits == 16) {
			v_storef(to + i, v_load(dtype, p + i * skv_dtype_bytes(dtype)));
			continue;
		}
		const vf x = bits == 8 ? v_load_u8(q + i) : v_load_u4(q + i / 2);
		v_storef(to + i, v_fma(x, v_set(of_bf16(p + i / block * 4)), v_set(of_bf16(p + i / block * 4 + 2))));
	}
}

static inline void read_ref(const struct latent *k, const struct skv_kseq *s, uint32_t number, float *to)
{
	read_numbers(ref_at(k, s, number), k->d, k->c->ref_bits, SKV_REF_SCALE_BLOCK, k->sh->dtype, to);
}

/* Numbers of references, clamped to below n, out of a code's record. */
static inline void read_ids(const struct latent *k, const uint8_t *record, uint32_t n, uint32_t ids[SKV_MAX_REFS])
{
	for (uint32_t i = 0; i < k->c->n_refs; i++) {
		uint16_t small;
		memcpy(&small, record + 2 * i, sizeof small);
		if (k->c->id_bytes == 2)
			ids[i] = small;
		else
			memcpy(&ids[i], record + 4 * i, sizeof ids[i]);
		ids[i] = skv_min(ids[i], n - 1);
	}
}

/* b[d]: the mean of these references; `row` is workspace for one; zeros without any. */
static inline void mean_of(const struct latent *k, const struct skv_kseq *s, const uint32_t *ids, float *row, float *b)
{
	const uint32_t near = k->c->n_refs;

	if (near == 0)
		memset(b, 0, k->d * sizeof *b);
	for (uint32_t i = 0; i < near; i++) {
		read_ref(k, s, ids[i], i ? row : b);
		for (uint32_t x = 0; x < k->d && i; x += VL)
			v_storef(b + x, v_loadf(b + x) + v_loadf(row + x));
	}
	for (uint32_t x = 0; x < k->d && near > 1; x += VL)
		v_storef(b + x, v_loadf(b + x) / (float)near);
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

/* Cosine and sine, times `scale`, of each pair's angle: to a position (sign 1), or back from it (-1). */
struct angles {
	float cos[SKV_MAX_HEAD_DIM / 2], sin[SKV_MAX_HEAD_DIM / 2];
};

static inline void angles_at(const struct latent *k, uint32_t position, float sign, float scale, struct angles *a)
{
	for (uint32_t i = 0; i < k->c->rope_dims / 2; i++) {
		/* positions are too large for the angle to be left to fp32 */
		const double angle = position * k->c->rope_freq[i];
		const float rest = (float)(angle - 2 * M_PI * rint(angle / (2 * M_PI)));
		a->cos[i] = cosf(rest) * scale;
		a->sin[i] = sign * sinf(rest) * scale;
	}
}

/* Rotate the K of all heads of x. */
static inline void rotate(const struct latent *k, const struct angles *a, float *x)
{
	const uint32_t dim = k->sh->head_dim, pairs = k->c->rope_dims / 2;
	const uint32_t step = k->c->interleaved ? 2 : 1, other = k->c->interleaved ? 1 : pairs;

	for (float *head = x; head < x + k->half; head += dim)
		for (uint32_t i = 0; i < pairs; i++) {
			const float p = head[i * step], q = head[i * step + other];
			head[i * step] = p * a->cos[i] - q * a->sin[i];
			head[i * step + other] = p * a->sin[i] + q * a->cos[i];
		}
}

#endif
