/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/compressor.h - how layers compress, as the kernels are told: compressor.c, compressor-device.c. */
#ifndef SKV_CLIENT_COMPRESS_COMPRESSOR_H
#define SKV_CLIENT_COMPRESS_COMPRESSOR_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/policy.h>

#include "common/seqmem.h"
#include "kernels/device.h"
#include "kernels/compress.h"
#include "kernels/kernels.h"

struct policy;
struct skv_seq;
struct skv_session;

/* How the layers of a policy compress, or have compressed what a sequence has. */
struct compressor {
	struct codec *codec; /* NULL: none has codes */
	char path[SKV_PROFILE_PATH]; /* of its file, or "" */
	uint64_t rope; /* fingerprint of how the model turns keys; 0 where that does not matter */
	double *turn; /* [head_dim / 2], of the model */
	/* of a device, where what the kernels are told of lies then */
	const struct skv_backend *backend; /* NULL: host memory */
	unsigned device;                   /* of the backend */
	void **held; /* [n_held]: its memory */
	uint32_t n_held;
	struct {
		struct skv_codec code;
		struct skv_form form; /* what a sequence's memory says of it */
		struct skv_select select; /* what the hooks ask of the layer for others */
	} layer[]; /* [n_layers] */
};

/* What the policy's layers that compress need; its codec is read. 0, or a negative errno with the last error set. */
int compressor_make(struct skv_session *s, struct policy *p);
/* What a sequence needs to be decompressed; to be freed. The same. */
int compressor_of_seq(struct skv_seq *q, struct compressor **ret);
/* Is the sequence's memory about this codec, and this model? */
bool compressor_matches(const struct compressor *k, const struct skv_seqmem *m);
/* Say so, in the memory of a sequence that has nothing compressed. */
void compressor_sign(const struct compressor *k, struct skv_seqmem *m);
/* Can prefixes be sealed in its form? Tokens that it never compresses are fewer than a block. */
bool compressor_seals(const struct skv_session *s, const struct compressor *k);
/*
 * Say how the session's policy would compress, in the memory of a sequence without tokens that is for nothing else: what sealed prefixes
 * are of the same form.
 */
void compressor_announce(const struct skv_session *s, struct skv_seqmem *m);
void compressor_free(struct compressor *k); /* NULL is fine */
void compressor_unmake(struct policy *p);

/* ---- compressor-device.c --------------------------------------------------------------------- */

/* All that the kernels are told of, to the session's device, which is entered. */
int compressor_to_device(const struct skv_session *s, struct compressor *k);

#endif
