/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/packing.h - layers that keep tokens in less than rows: coded.c, packs.c, packing.c, packed.c. See internal.h. */
#ifndef SKV_CLIENT_PACKING_H
#define SKV_CLIENT_PACKING_H

/* ---- coded.c: which tokens of a layer are packed, from lengths alone -------------------------- */

uint32_t packs_first(const struct skv_compress *k); /* first tokens that never are */
/* Tokens of a sequence of n below which all others are packed, or 0: none are. */
uint32_t packs_coded(const struct skv_compress *k, uint32_t n);
/* And how, in sequences of a model of so many tokens at most; for a plan that packs. */
struct skv_form packs_form(const struct skv_compress *k, uint32_t max_tokens);

/* A layer's codes, or its references, when the tokens below `coded` are packed as sh->code says. */
struct records {
	uint32_t n, each; /* in all, and in a page */
};
struct records packs_records(const struct skv_shape *sh, enum skv_group group, uint32_t coded);
static inline uint32_t records_pages(struct records x)
{
	return (x.n + x.each - 1) / x.each;
}

/* ---- packs.c: when they are -------------------------------------------------------------------- */

/* As of the last commit: tokens of the layer below are packed, but for the first ones; 0: none is. */
uint32_t seq_coded(const struct skv_seq *q, uint32_t layer);
/* Is this page of K and V one whose tokens are packed, now or with the step's commit? */
bool packs_has(const struct skv_seq *q, uint32_t layer, uint32_t page);
/* How the layer's tokens are packed, those of the open step too; NULL: none is. */
const struct skv_codes *packs_code(const struct skv_seq *q, uint32_t layer);
/* A sequence is another holder's, or policy's: if it is packed as its policy packs, that is known from here on. */
void packs_take_over(struct skv_seq *q);
/*
 * Before a step, and before the sequence's slots are looked at: what is packed in another way than its policy packs is
 * unpacked. Commits a step of its own.
 */
int packs_settle(struct skv_session *s, struct skv_seq *q);
/* And when slots are as the policy wants them: before a decode step packed up to where it should be. The same. */
int packs_ready(struct skv_session *s, struct skv_seq *q, bool prompt);
/* What a step does to a layer: `ks` for the kernels, and what the commit will say. */
void packs_schedule(struct skv_seq *q, uint32_t layer, bool decodes, struct skv_kseq *ks, struct skv_layer_slots *next);
/* And where a quiet step leads. */
void packs_schedule_quiet(const struct skv_seq *q, uint32_t layer, struct skv_layer_slots *next);
/* Pack what the decoding sequences' commits will say is packed: kernels, and evictions. */
void packs_end(struct skv_session *s);
void packs_evict(struct skv_seq *q);

/* ---- packing.c: how layers pack, for the kernels ----------------------------------------------- */

/* How the layers of a policy pack, or have packed what a sequence has. */
struct packing {
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
		struct skv_codes code;
		struct skv_select select; /* what the hooks ask of the layer for others */
	} layer[]; /* [n_layers] */
};

/* What the policy's layers that pack need; its compressor is read. 0, or a negative errno with the last error set. */
int packing_make(struct skv_session *s, struct policy *p);
/* What a sequence needs to be unpacked; to be freed. The same. */
int packing_of(struct skv_seq *q, struct packing **ret);
/* Is the sequence's memory about this compressor, and this model? */
bool packing_is(const struct packing *k, const struct skv_seqmem *m);
/* Say so, in the memory of a sequence that has nothing packed. */
void packing_sign(const struct packing *k, struct skv_seqmem *m);
void packing_free(struct packing *k); /* NULL is fine */
/* Of sequences of at most `len` tokens: how many the layer attends to at most. */
uint32_t packing_most(const struct policy *p, uint32_t layer, uint32_t len);

/* ---- packed.c: their attention ---------------------------------------------------------------- */

/* Does the layer keep older tokens of the group's sequences packed? */
static inline bool group_packs(const struct group *g, uint32_t layer)
{
	return g->packs && g->policy->plan[layer].compress.kind;
}

/* The layer, for kernels that pack and rebuild. */
struct skv_shape coded_shape(const struct skv_session *s, uint32_t layer, const struct packing *k);
/* And as a group keeps it, packed or not. */
struct skv_shape group_shape(const struct skv_session *s, const struct group *g, uint32_t layer);
/* Room for rows that are rebuilt in the open step. 0, or -ENOMEM. */
int packed_prepare(struct skv_session *s);
/* Attention of a group whose sequences pack residuals: of decode rows to the listed tokens, or with NULL to all. */
void packed_decode(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_list *list,
                   const struct skv_attn *a);
void packed_prompts(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_attn *a);

#endif
