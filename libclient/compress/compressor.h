/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/compressor.h - the compressor of a policy or a sequence: how each layer compresses, in the structs
 * that the kernels read.
 */
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
	char path[SKV_PROFILE_PATH]; /* path of the codec's file, or "" */
	uint64_t rope; /* fingerprint of the model's RoPE; 0: no layer needs it */
	double *turn; /* [head_dim / 2]: the model's RoPE frequencies */
	/* device that holds the arrays which the kernels read, unless they are in host memory */
	const struct skv_backend *backend; /* NULL: the arrays are in host memory */
	unsigned device;                   /* number of the device in the backend */
	void **held; /* [n_held]: allocations on the device */
	uint32_t n_held;
	struct {
		struct skv_codec code;
		struct skv_form form; /* the form of compressed tokens, as a sequence's memory records it */
		/* the selection that the hooks request by this layer's scores, for later layers */
		struct skv_select select;
	} layer[]; /* [n_layers] */
};

/*
 * Make p->compressor if the policy compresses; reads the codec's file. Returns 0, or a negative errno with the last
 * error set.
 */
int compressor_make(struct skv_session *s, struct policy *p);
/*
 * Make the compressor that decompresses the sequence; the caller frees it. Returns 0, or a negative errno with the last
 * error set.
 */
int compressor_of_seq(struct skv_seq *q, struct compressor **ret);
/* Does the sequence's memory record the fingerprints of the compressor's codec and of this model's RoPE? */
bool compressor_matches(const struct compressor *k, const struct skv_seqmem *m);
/* Do two policies' compressors, each NULL if its policy does not compress, have the same codec and RoPE? */
bool compressor_equal(const struct compressor *a, const struct compressor *b);
/* Record the fingerprints of codec and RoPE in the memory of a sequence that has no compressed token. */
void compressor_sign(const struct compressor *k, struct skv_seqmem *m);
/*
 * Can prefixes be sealed in the compressor's form? Only if in all layers the first tokens, which stay uncompressed, are
 * fewer than a block.
 */
bool compressor_seals(const struct skv_session *s, const struct compressor *k);
/*
 * Record how the session's policy would compress, in the memory of a temporary sequence without tokens: from this the
 * daemon knows in which form the sealed prefixes that it looks for are stored.
 */
void compressor_announce(const struct skv_session *s, struct skv_seqmem *m);
void compressor_free(struct compressor *k); /* NULL is fine */
void compressor_unmake(struct policy *p);

#endif
