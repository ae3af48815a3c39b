/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/compressor.h - how layers compress, as the kernels take it. */
#ifndef SKV_CLIENT_COMPRESS_COMPRESSOR_H
#define SKV_CLIENT_COMPRESS_COMPRESSOR_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/policy.h>

#include "common/seqmem.h"
#include "kernels/compress.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

struct policy;
struct skv_seq;
struct skv_session;

/* How the layers of a policy compress, or how the tokens of a sequence were compressed. */
struct compressor {
	struct codec *codec; /* NULL: no layer has codes */
	char path[SKV_PROFILE_PATH]; /* of its file, or "" */
	uint64_t rope; /* fingerprint of the model's RoPE; 0: no layer needs it */
	double *turn; /* [head_dim / 2]: the model's RoPE frequencies */
	/* where the arrays that the kernels read are, if not in host memory */
	const struct skv_backend *backend; /* NULL: host memory */
	unsigned device;                   /* of the backend */
	void **held; /* [n_held]: allocations on the device */
	uint32_t n_held;
	struct {
		struct skv_codec code;
		struct skv_form form; /* as a sequence's memory records it */
		struct skv_select select; /* what the hooks select by this layer's scores, for later layers */
	} layer[]; /* [n_layers] */
};

/* Make p->compressor if the policy compresses; reads the codec. 0, or a negative errno with the last error set. */
int compressor_make(struct skv_session *s, struct policy *p);
/* Make the compressor that decompresses the sequence; the caller frees it. Returns the same. */
int compressor_of_seq(struct skv_seq *q, struct compressor **ret);
/* Does the sequence's memory name this codec, and this model's RoPE? */
bool compressor_matches(const struct compressor *k, const struct skv_seqmem *m);
/* Record both in the memory of a sequence that has nothing compressed. */
void compressor_sign(const struct compressor *k, struct skv_seqmem *m);
/* Can prefixes be sealed in its form? Only if it never compresses fewer tokens than a block has. */
bool compressor_seals(const struct skv_session *s, const struct compressor *k);
/*
 * Record how the session's policy would compress, in the memory of a temporary sequence without tokens: it tells the
 * daemon which form of sealed prefixes to find.
 */
void compressor_announce(const struct skv_session *s, struct skv_seqmem *m);
void compressor_free(struct compressor *k); /* NULL is fine */
void compressor_unmake(struct policy *p);

#endif
