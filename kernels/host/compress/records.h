/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/records.h - reads records of compressed tokens into fp32, and applies RoPE, for compress.c and
 * decompress.c.
 *
 * Numbers of references are read from records that another process may have written, so numbers are clamped to those of
 * references that exist.
 */
#ifndef SKV_HOST_RECORDS_H
#define SKV_HOST_RECORDS_H

#include <math.h>
#include "kernels/compress.h"
#include "kernels/host/compress/bits.h"
#include "kernels/host/runtime/host.h"
#include "kernels/host/runtime/simd.h"

#define TOKENS 32u /* number of tokens of a tile, which are processed together */

/* The shape of a layer with latent compression, and values derived from its codec. */
struct latent {
	const struct skv_shape *sh;
	const struct skv_codec *c;
	uint32_t d, half;   /* number of elements of x over all ranks, and of the half of x that is K */
	uint32_t own_d, own_half; /* number of elements of x of this rank's heads, and of its K */
	uint32_t own;       /* index of the first element of this rank's heads in the K half of x, and in the V half */
	uint32_t parts;     /* number of independent parts of E and Dec */
	uint32_t code_bytes, ref_bytes;
};

static inline struct latent latent_of(const struct skv_shape *sh)
{
	const struct skv_codec *c = sh->codec;
	const uint32_t d = skv_codec_dims(sh), own = skv_token_dims(sh);

	return (struct latent){.sh = sh, .c = c, .d = d, .half = d / 2, .own_d = own, .own_half = own / 2, .own = c->rank * (own / 2),
	                       .parts = c->spans ? 2 * c->spans : 1,
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

/* How n numbers are stored in a record; `dtype` is the type of an element if bits is 16. */
struct stored {
	uint32_t n, bits, block, dtype;
};

/* Reads numbers [from, to) of a record as fp32; from and to are multiples of 16. */
static inline void read_numbers(const struct stored *f, const uint8_t *p, uint32_t from, uint32_t to, float *x)
{
	const uint8_t *q = p + f->n / f->block * 4;

	for (uint32_t i = from; i < to; i += VL, x += VL) {
		if (f->bits == 16) {
			v_storef(x, v_load(f->dtype, p + i * skv_dtype_bytes(f->dtype)));
			continue;
		}
		const uint8_t *shared = p + i / f->block * 4;
		v_storef(x, v_fma(f->bits == 8 ? v_load_u8(q + i) : v_load_u4(q + i / 2), v_set(of_bf16(shared)), v_set(of_bf16(shared + 2))));
	}
}

static inline void read_ref(const struct latent *k, const struct skv_kseq *s, uint32_t number, float *to)
{
	const struct stored f = {k->d, k->c->ref_bits, SKV_REF_SCALE_BLOCK, k->sh->dtype};

	read_numbers(&f, ref_at(k, s, number), 0, k->d, to);
}

/* Reads those elements of a reference that belong to this rank's heads, to to[own_d]. */
static inline void read_own_ref(const struct latent *k, const struct skv_kseq *s, uint32_t number, float *to)
{
	const struct stored f = {k->d, k->c->ref_bits, SKV_REF_SCALE_BLOCK, k->sh->dtype};
	const uint8_t *p = ref_at(k, s, number);

	read_numbers(&f, p, k->own, k->own + k->own_half, to);
	read_numbers(&f, p, k->half + k->own, k->half + k->own + k->own_half, to + k->own_half);
}

/* Reads the numbers of a token's references from the record of its code. Numbers of n and more become n - 1. */
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

typedef void read_ref_fn(const struct latent *, const struct skv_kseq *, uint32_t number, float *);

/*
 * Computes b[d], the mean of the references in ids[], which `read` returns with d elements each; zeros if the codec has
 * no references. `row` is workspace for one reference.
 */
static inline void mean_of(const struct latent *k, const struct skv_kseq *s, read_ref_fn *read, uint32_t d, const uint32_t *ids, float *row,
                           float *b)
{
	const uint32_t near = k->c->n_refs;

	if (near == 0)
		memset(b, 0, d * sizeof *b);
	for (uint32_t i = 0; i < near; i++) {
		read(k, s, ids[i], i ? row : b);
		for (uint32_t x = 0; x < d && i; x += VL)
			v_storef(b + x, v_loadf(b + x) + v_loadf(row + x));
	}
	for (uint32_t x = 0; x < d && near > 1; x += VL)
		v_storef(b + x, v_loadf(b + x) / (float)near);
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

/*
 * The cosine and the sine of each rotary pair's angle at a position, times `scale`. angles_at() with sign 1 makes them
 * for a rotation to the position, with sign -1 for a rotation back from the position.
 */
struct angles {
	float cos[SKV_MAX_HEAD_DIM / 2], sin[SKV_MAX_HEAD_DIM / 2];
};

static inline void angles_at(const struct latent *k, uint32_t position, float sign, float scale, struct angles *a)
{
	for (uint32_t i = 0; i < k->c->rope_dims / 2; i++) {
		/* computed in double, because fp32 is not precise enough for the angles of large positions */
		const double angle = position * k->c->rope_freq[i];
		const float rest = (float)(angle - 2 * M_PI * rint(angle / (2 * M_PI)));
		a->cos[i] = cosf(rest) * scale;
		a->sin[i] = sign * sinf(rest) * scale;
	}
}

/* Rotates the rotary pairs of K in x[own_d], for all heads of this rank. */
static inline void rotate(const struct latent *k, const struct angles *a, float *x)
{
	const uint32_t dim = k->sh->head_dim, pairs = k->c->rope_dims / 2;
	const uint32_t step = k->c->interleaved ? 2 : 1, other = k->c->interleaved ? 1 : pairs;

	for (float *head = x; head < x + k->own_half; head += dim)
		for (uint32_t i = 0; i < pairs; i++) {
			const float p = head[i * step], q = head[i * step + other];
			head[i * step] = p * a->cos[i] - q * a->sin[i];
			head[i * step + other] = p * a->sin[i] + q * a->cos[i];
		}
}

#endif
