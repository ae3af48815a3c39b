/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/seqmem.h - the memory of a sequence: page tables, token ids, policy state.
 *
 * Each sequence has one sealed memfd, which the daemon creates, and which the daemon and the client that holds the
 * sequence map. It survives the engine, so it must be consistent after death at any instruction:
 *
 *   1. `commit` is one atomic 64-bit word, epoch << 32 | length. It alone determines the committed state.
 *   2. Before its commit, a step writes only what the last commit does not cover: table entries, token ids, and K and V
 *      rows beyond its length. The one exception is copy-on-write of the last, partly filled page: once the copy is
 *      complete, one store replaces its entry by a page with the same committed contents.
 *   3. An eviction is first written to the journal, stamped with the next epoch. After the commit, the entries become
 *      holes and the journal is emptied. The next process that opens the memory completes or discards the journal:
 *      skv_seqmem_recover(). A writer stamps the journal before it enters evictions, so that an old stamp never applies
 *      to new entries.
 *   4. Pages of evicted entries may be reused only after the commit.
 *   5. State pages. Besides its page table, each layer has a table for every other enum skv_page_kind. As in a page
 *      table, entries for the committed length count; each is a page or SKV_PTE_NONE. A step may fill NONE entries,
 *      replace an entry as in 2, and write to state pages what a repeated step would compute again. Whether such a page
 *      is still useful is not known here: it counts as a page of the sequence, and the holder keeps or removes it. Page
 *      bounds, key sketches and slot metadata (kernels/evict.h) are such state. Codes and references hold compressed
 *      tokens. They are contents, like K and V, and cannot be recomputed: a step does not write to those of the last
 *      commit. Saved prefill state (kernels/prefill.h), which later rows of a prompt need, is kept in two sets by the
 *      parity of the epoch: a step reads the set of the last commit and writes the other one. Its size does not depend
 *      on the length: the first `kept` entries of its tables (struct skv_seqmem_layout) count at any committed length.
 *      Pages of all kinds are evicted through the journal; entries other than those of K and V then become
 *      SKV_PTE_NONE.
 *   6. Slots. A layer that evicts single tokens has fewer slots than the sequence has tokens. Its page table has pages
 *      only for its slots; the other entries up to the committed length are holes from the beginning. lay[epoch & 1]
 *      has the number of slots of each layer, if about[epoch & 1] says that it is valid. A step may put a page into
 *      such an entry before its commit. After a torn step the page is still there, empty; the next holder removes it.
 *   7. Compressed tokens. A layer may hold tokens before slots[].n_compressed as codes and references. It then has all
 *      tokens, in order, and slots for all; pages of compressed tokens are holes, except the first ones. A step
 *      compresses tokens whose pages belong to the last commit, into codes and references beyond those of that commit,
 *      and evicts the pages.
 *   8. A commit may have fewer tokens than its predecessor (truncation, forks of a sequence's first tokens). It writes
 *      nothing that the predecessor covers, except its own half of fields that exist twice, and removes state only
 *      through the journal. Entries beyond its length are freed after it, like those of a torn step.
 *   9. The next input token that a step publishes exists twice, as `next[epoch & 1]`: a torn step may have overwritten
 *      tokens[length], and recovery restores the committed one.
 *   10. Joint commits. The ranks of a tensor-parallel group each have a sequence of the same name, and may commit
 *      together: a commit counts when all of them have made it. Until a rank knows that (`joint`), it does not carry
 *      out the journal of that commit, and begins nothing after it. So a commit that only some of them made can be
 *      reverted: skv_seqmem_rewind(). The memory is then as after a torn step.
 *
 * The layout depends only on the model's shape and max_tokens and is computed by both sides; the memory contains no
 * offsets. Everything read from it was written by a client and must be checked.
 */
#ifndef SKV_SEQMEM_H
#define SKV_SEQMEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sparsekv/types.h>

#define SKV_SEQMEM_MAGIC 0x34514553u /* "SEQ4" */

/*
 * The form of a layer's compressed tokens, as in struct skv_compress (sparsekv/policy.h). All 0: none are compressed.
 * It determines the position of records: common/records.h.
 */
struct skv_form {
	uint8_t kind, bits, scale_block, stride, n_refs, ref_bits;
	uint8_t id_bytes; /* bytes of a reference's number: 2 or 4, or 0 without references */
	uint8_t first;    /* pages of the first tokens, which are never compressed */
	uint16_t code_size, ref_size; /* size of a record of codes, and of references, in multiples of 16 bytes */
};

struct skv_seqmem {
	uint32_t magic;
	uint32_t n_layers;
	uint32_t max_tokens; /* maximum at creation */
	uint32_t max_pages;  /* entries of a table */
	_Atomic uint64_t commit;
	/* eviction journal: valid if journal_epoch is the committed epoch */
	_Atomic uint32_t journal_epoch;
	_Atomic uint32_t journal_n;
	/* policy whose state is in the state area; checked before use */
	char state_policy[SKV_NAME_MAX];
	uint32_t state_version;
	/*
	 * epoch of the commit that the state belongs to; if there are state pages but no other state, of the first such
	 * commit
	 */
	uint32_t state_epoch;
	/* next[epoch & 1]: next input token of that commit, or -1; tokens[length] shows it */
	int32_t next[2];
	uint32_t about[2]; /* properties of the sequence as of that commit, see SKV_ABOUT_ */
	/* client that holds the sequence, as set by the daemon, or 0; no other client commits */
	_Atomic uint32_t holder;
	uint32_t len[2]; /* committed length of the last commit of either parity */
	/*
	 * Ranks that commit together (10): 1 + the epoch of the last commit that all of them are known to have made, in
	 * this memory's epochs; 0: each commits by itself.
	 */
	_Atomic uint32_t joint;
	/*
	 * Number of tokens that are compressed because they were sealed (skv_seq_seal) or came from a sealed prefix,
	 * regardless of how many the policy would compress. Written after the commit that compresses them.
	 */
	uint32_t sealed;
	/*
	 * Fingerprint of the spec of the policy under which all tokens were computed; 0: of several policies. Written
	 * before the first step under a policy, so it may become 0 too early, but never too late.
	 */
	uint64_t policy;
	/*
	 * Of compressed tokens: fingerprints of the codec's file and of the model's RoPE, and the file's path. Written
	 * only while the last commit has no compressed tokens, so one copy suffices.
	 */
	uint64_t codec, rope;
	char codec_path[SKV_PROFILE_PATH];
	/* for the commits of either parity, valid if their `about` says so */
	struct skv_lay {
		struct skv_prompt {
			uint64_t how;   /* fingerprint of how its rows attend: identifies the state saved for it */
			uint32_t begin; /* position of its first row */
			uint32_t reserved;
		} prompt;
		struct skv_layer_slots {
			/* slots with tokens; if slot_end is larger, the slot metadata determines which */
			uint32_t live;
			uint32_t slot_end;     /* all slots from here on are free */
			/* of the layer's slot metadata: 1 token or SKV_PAGE_TOKENS; 0: the layer has none */
			uint32_t granularity;
			/* slots that are attended to; the mean over the heads if these share a budget */
			uint32_t n_active;
			/* tokens before this are compressed, except those of form.first pages; 0: none */
			uint32_t n_compressed;
			struct skv_form form;
		} slots[SKV_MAX_LAYERS];
	} lay[2];
};

/* Number of prompt tokens before the sequence's first decode step; followed by flags. */
#define SKV_ABOUT_PROMPT 0x03ffffffu
#define SKV_ABOUT_DECOMPRESSED (1u << 28) /* K and V of some tokens may be decompressed instead of as appended */
#define SKV_ABOUT_PREFILL (1u << 29)  /* in a prompt whose rows do not attend to everything: lay[].prompt is valid */
#define SKV_ABOUT_PROMPTED (1u << 30) /* the commit was that of a prompt */
#define SKV_ABOUT_SLOTS (1u << 31)    /* lay[].slots is valid; else layers have the slots of the committed length */

/* An entry that an eviction frees. */
struct skv_eviction {
	uint32_t table;
	uint32_t page; /* index in the table */
};

/* Contents of pages. Each layer has a table of every kind. */
enum skv_page_kind {
	SKV_PAGES_KV, /* K and V */
	SKV_PAGES_STATE, /* page bounds, or sketches of keys */
	SKV_PAGES_SLOT_META,
	SKV_PAGES_CODES,
	SKV_PAGES_REFS,
	SKV_PAGES_SAVED, /* of a prompt in progress */
	SKV_PAGE_KINDS
};

/* Table numbers: those of a kind are consecutive, in the order of the layers. */
static inline uint32_t skv_table(uint32_t n_layers, enum skv_page_kind group, uint32_t layer)
{
	return (uint32_t)group * n_layers + layer;
}
static inline enum skv_page_kind skv_table_page_kind(uint32_t n_layers, uint32_t table)
{
	return (enum skv_page_kind)(table / n_layers);
}
static inline uint32_t skv_table_layer(uint32_t n_layers, uint32_t table)
{
	return table % n_layers;
}

/* Returns whether pages of this kind hold the tokens themselves, as opposed to state of a policy. */
static inline bool skv_page_kind_holds_tokens(enum skv_page_kind group)
{
	return group == SKV_PAGES_KV || group == SKV_PAGES_CODES || group == SKV_PAGES_REFS;
}

/*
 * Limit for a policy's per-sequence state that only the host reads. State that grows with tokens has pages of its own.
 */
#define SKV_SEQ_STATE_MAX 65536u

/* Key of a block of a sealed prefix (daemon/prefix/prefix-keys.h): equal for equal tokens up to the block's end. */
struct skv_block_key {
	uint8_t bytes[16];
};

#define SKV_SEQ_MAX_ENTRIES (1u << 24) /* entries per sequence and page kind: bounds the duration of a validation */

/* Byte offsets in the memory. */
struct skv_seqmem_layout {
	uint32_t n_layers, max_tokens;
	uint32_t max_pages; /* entries of a table */
	uint32_t kept; /* valid entries of tables of SKV_PAGES_SAVED: at most max_pages */
	uint32_t n_tables; /* SKV_PAGE_KINDS per layer, see skv_table() */
	size_t table;   /* skv_pte [n_tables][max_pages] */
	size_t tokens;  /* int32_t [max_tokens + 1] */
	size_t journal; /* struct skv_eviction [journal_most] */
	size_t journal_most;
	size_t state;   /* state_bytes of the policy's state */
	size_t state_bytes;
	size_t total;   /* multiple of 4096 */
};

/* Computes the layout for at most max_tokens tokens. The memory is sparse: only touched pages use memory. */
void skv_seqmem_layout(const struct skv_model *m, uint32_t max_tokens, struct skv_seqmem_layout *ret);

static inline skv_pte *skv_seqmem_table(struct skv_seqmem *s, const struct skv_seqmem_layout *l,
                                        uint32_t table)
{
	return (skv_pte *)((char *)s + l->table) + (size_t)table * l->max_pages;
}
static inline int32_t *skv_seqmem_tokens(struct skv_seqmem *s, const struct skv_seqmem_layout *l)
{
	return (int32_t *)((char *)s + l->tokens);
}
static inline struct skv_eviction *skv_seqmem_journal(struct skv_seqmem *s, const struct skv_seqmem_layout *l)
{
	return (struct skv_eviction *)((char *)s + l->journal);
}
static inline uint32_t skv_commit_len(uint64_t commit)
{
	return (uint32_t)commit;
}
static inline uint32_t skv_commit_epoch(uint64_t commit)
{
	return (uint32_t)(commit >> 32);
}

/* Returns how many entries of a table are valid at this committed length. */
static inline uint32_t skv_seqmem_entries(const struct skv_seqmem_layout *l, uint32_t table, uint32_t len)
{
	return skv_table_page_kind(l->n_layers, table) == SKV_PAGES_SAVED ? l->kept : skv_pages_of(len);
}

/* Initialize fresh (zeroed) memory: the header and tokens[0] = -1 (no next input token), or only the header. */
void skv_seqmem_init(struct skv_seqmem *s, const struct skv_seqmem_layout *l);
void skv_seqmem_init_header(struct skv_seqmem *s, const struct skv_seqmem_layout *l);

/* Returns the value of an evicted entry of this table. */
static inline skv_pte skv_seqmem_evicted(const struct skv_seqmem_layout *l, uint32_t table)
{
	bool hole = skv_table_page_kind(l->n_layers, table) == SKV_PAGES_KV;

	return skv_pte_make(hole ? SKV_PTE_HOLE : SKV_PTE_NONE, 0);
}

/*
 * `about`, or a layer's slots, of a commit of the first n tokens, derived from those of a longer commit. The layer must
 * hold its tokens in order, unless n is 0.
 */
uint32_t skv_about_cut(uint32_t about, uint32_t n);
struct skv_layer_slots skv_layer_slots_cut(const struct skv_layer_slots *slots, uint32_t n);

/*
 * Commits the first n tokens, without a next input token; does nothing if there are no more. Used by the daemon on a
 * fork that no client has seen yet: entries beyond remain. Accesses only the header.
 */
void skv_seqmem_cut(struct skv_seqmem *s, uint32_t n);

/*
 * What determines the contents of a sequence besides its tokens and the model, and how they are stored. Sequences that
 * begin with the same sealed prefix share it.
 */
struct skv_made {
	uint64_t policy, codec, rope; /* as in struct skv_seqmem */
	char codec_path[SKV_PROFILE_PATH];
	/* compressed tokens that all layers with a form have in common; SKV_MAX_TOKENS if no layer has a form */
	uint32_t n_compressed;
	struct skv_form form[SKV_MAX_LAYERS]; /* kind 0: the layer has rows */
};

/* Reads it as of the last commit. A client may be writing concurrently. */
void skv_seqmem_made(const struct skv_seqmem *s, uint32_t n_layers, struct skv_made *ret);
/*
 * Checks that it is the form of sealable tokens of this model, compressed except the first ones. Returns NULL or an
 * error text.
 */
const char *skv_made_check(const struct skv_made *, const struct skv_model *);

/*
 * Makes the first commit of fresh memory whose entries and ids were filled in: n tokens of a prompt, without a next
 * input token. n must be whole blocks (SKV_BLOCK_TOKENS), compressed according to `made`, which must have been checked.
 */
void skv_seqmem_begin_with(struct skv_seqmem *s, uint32_t n, uint32_t n_layers, const struct skv_made *made);

/*
 * Returns the number of tokens with latent codes, over all layers, in the commit of this epoch: the last one or its
 * predecessor. A client may be writing concurrently.
 */
uint64_t skv_seqmem_compressed(const struct skv_seqmem *s, uint32_t epoch, uint32_t n_layers);

/*
 * Reverts the last commit, which not all ranks have made, to its predecessor. Returns false if the predecessor's data
 * is invalid. Only for the sole writer; must be followed by recovery.
 */
bool skv_seqmem_rewind(struct skv_seqmem *s);

/*
 * Checks that slots and flags of a commit of this length are consistent. Returns NULL or an error text. For a client
 * library, on its own copy before use; the daemon does not use them.
 */
const char *skv_layer_slots_check(const struct skv_layer_slots *slots, uint32_t about, uint32_t len, uint32_t n_layers);

/*
 * Checks header, committed length and journal length against the layout. Returns NULL or an error text. Entries are
 * checked by code that knows the pool.
 */
const char *skv_seqmem_check(const struct skv_seqmem *s, const struct skv_seqmem_layout *l);

/*
 * Carries out an eviction journal of the committed epoch, and discards any other. This is the first half of recovery:
 * it suffices for determining the sequence's pages, and costs nothing without a journal. Only for the sole holder of
 * the sequence.
 */
void skv_seqmem_replay(struct skv_seqmem *s, const struct skv_seqmem_layout *l);

/*
 * Restores the state of the last commit: carries out an eviction journal of its epoch, or discards another one; sets
 * entries of all tables beyond the committed length to SKV_PTE_NONE and tokens[length] to the committed next id.
 * Idempotent. Memory that was never touched stays unallocated. Only for the sole holder of the sequence.
 */
void skv_seqmem_recover(struct skv_seqmem *s, const struct skv_seqmem_layout *l);

#endif
