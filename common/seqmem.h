/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/seqmem.h - the memory of a sequence: page tables, token ids, policy state.
 *
 * One sealed memfd a sequence, made by the daemon, mapped by it and by the client that holds the
 * sequence. It is what survives an engine, so it must be readable after death at any instruction:
 *
 *   1. `commit` is one atomic 64-bit word, epoch << 32 | length. It alone says what is true.
 *   2. Before a commit a step writes only what the last commit does not cover: table entries of
 *      pages beyond its length, token ids beyond its length, K and V rows beyond its length. The one
 *      exception is copy-on-write of the last, partly filled page: its entry is replaced, in one
 *      store, after the copy is complete, by a page with the same committed contents.
 *   3. What an eviction takes away is first written to the journal, stamped with the epoch to come.
 *      After the commit the entries become holes, then the journal is emptied. The next opener of the
 *      memory finishes or discards it: skv_seqmem_recover().
 *      A writer stamps the journal before it puts entries in: an old stamp is never on new entries.
 *   4. Pages of evicted entries may be reused only after the commit.
 *   5. State pages. Beside its page table each layer has tables of pages that hold other things, a table for each
 *      enum skv_page_kind. Entries of the pages of the committed length count, as in a page table; each is a page, or
 *      SKV_PTE_NONE. A step may fill entries that are NONE, replace one as in 2, and write into state pages whatever a
 *      repeated step computes again. Whether such a page is of use is not known here: it counts as a page of the
 *      sequence, and the holder keeps it or removes it.
 *      Bounds of pages, sketches of keys and slot metadata (kernels/evict.h) are such state.
 *      Codes and references hold compressed tokens. They are contents, as K and V are, and cannot be computed again:
 *      a step does not write to what the last commit has of them.
 *      Saved prefill state (kernels/prefill.h), which later rows of a prompt need, is kept in two sets by the
 *      parity of the epoch: a step reads the last commit's and writes the other one. Its size does not depend on the
 *      length: the first `saved` entries of its tables count, whatever the committed length.
 *      Pages of all kinds are evicted through the journal; except of K and V their entries then become SKV_PTE_NONE.
 *   6. Slots. A layer that evicts single tokens has fewer slots than the sequence has tokens, and its page table has
 *      pages for its slots alone: the entries beyond, up to the committed length, are holes from the beginning. The
 *      number of slots of each layer is in lay[epoch & 1], if about[epoch & 1] says that it counts. A step may put a
 *      page into such an entry before its commit. After a torn step it is still there, empty: the next holder
 *      removes it.
 *   7. Compressed tokens. A layer may hold tokens before slots[].n_compressed as codes and references. It has then all
 *      tokens, in order, and slots for all; the pages of compressed tokens are holes, but for the first ones. A step
 *      compresses tokens whose pages the last commit has, into codes and references beyond those that it has, and
 *      evicts the pages.
 *   8. A commit may be of fewer tokens than the one before it (truncation, forks of a sequence's first tokens). It writes
 *      nothing that the one before covers, but for its own half of what has two, and what of state it takes away goes through
 *      the journal. Entries beyond it are given up after it, as those of a torn step.
 *   9. The id that a step publishes to go on from is kept twice, `next[epoch & 1]`: a torn step may
 *      have overwritten tokens[length], recovery puts the committed one back.
 *  10. Joint commits. Ranks of a tensor-parallel group have a sequence of one name each, and may commit together: a commit counts
 *      when all of them have made it. Until a rank knows that (`joint`), it carries out no journal of that commit, and begins
 *      nothing after it. So a commit that was made by some of them alone can be taken back: skv_seqmem_rewind(). Then the memory
 *      is what a torn step leaves.
 *
 * The layout follows from the model's shape and max_tokens alone, computed by both sides; nothing
 * in the memory is an offset. Everything read from it was written by a client and is checked.
 */
#ifndef SKV_SEQMEM_H
#define SKV_SEQMEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sparsekv/types.h>

#define SKV_SEQMEM_MAGIC 0x34514553u /* "SEQ4" */

/*
 * The form of a layer's compressed tokens: as in struct skv_compress (sparsekv/policy.h). All 0: none are compressed.
 * Where records lie follows from it: common/records.h.
 */
struct skv_form {
	uint8_t kind, bits, scale_block, stride, n_refs, ref_bits;
	uint8_t id_bytes; /* of a reference's number: 2 or 4, or 0 without references */
	uint8_t first;    /* pages of the first tokens, which are never compressed */
	uint16_t code_size, ref_size; /* of a record of codes, and of references, in units of 16 bytes */
};

struct skv_seqmem {
	uint32_t magic;
	uint32_t n_layers;
	uint32_t max_tokens; /* as the sequence was made with */
	uint32_t max_pages;  /* entries of a table */
	_Atomic uint64_t commit;
	/* the eviction journal: meaningful when journal_epoch is the committed epoch */
	_Atomic uint32_t journal_epoch;
	_Atomic uint32_t journal_n;
	/* whose state is in the state area; checked before it is used */
	char state_policy[SKV_NAME_MAX];
	uint32_t state_version;
	/* of the commit that the state belongs to; if there are state pages and no other state, of the first that they do */
	uint32_t state_epoch;
	/* next[epoch & 1]: the id to go on from as of that commit, or -1; tokens[length] shows it */
	int32_t next[2];
	uint32_t about[2]; /* what is known of the sequence as of that commit, see SKV_ABOUT_ */
	_Atomic uint32_t holder; /* client that has it, by the daemon's word, or 0: nobody else commits */
	uint32_t len[2]; /* committed length as of the commits of either parity */
	/*
	 * Ranks that commit together (10): 1 + this memory's epoch of the last commit that all of them are known to have; 0: each
	 * commits for itself.
	 */
	_Atomic uint32_t joint;
	/*
	 * Tokens that are compressed because they were sealed (skv_seq_seal), or came so from a sealed prefix, whatever the policy says of
	 * their number. Written after the commit that has them so.
	 */
	uint32_t sealed;
	/*
	 * Fingerprint of the spec of the policy under which all tokens were computed; 0: of several. Written before the first step under
	 * one, and so it may be 0 too early, but never too late.
	 */
	uint64_t policy;
	/*
	 * Of compressed tokens: fingerprints of their codec's file and of the model's RoPE, and the file's path.
	 * Written only while the last commit has no compressed tokens, and so never twice.
	 */
	uint64_t codec, rope;
	char codec_path[SKV_PROFILE_PATH];
	/* as of the commits of either parity, where their `about` says that it counts */
	struct skv_lay {
		struct skv_prompt {
			uint64_t how;   /* a fingerprint of how its rows attend: identifies the state saved for it */
			uint32_t begin; /* position of its first row */
			uint32_t reserved;
		} prompt;
		struct skv_layer_slots {
			uint32_t live;         /* slots with tokens; if slot_end is larger, the slot metadata tells which */
			uint32_t slot_end;     /* all slots from here on are free */
			uint32_t granularity;  /* of the layer's slot metadata: 1 token, SKV_PAGE_TOKENS; 0: it has none */
			/* slots that are attended to: the mean over the heads where these share a budget */
			uint32_t n_active;
			uint32_t n_compressed; /* tokens before this are compressed, but for form.first pages; 0: none */
			struct skv_form form;
		} slots[SKV_MAX_LAYERS];
	} lay[2];
};

/* The tokens that came as prompts before the sequence first decoded; then flags. */
#define SKV_ABOUT_PROMPT 0x03ffffffu
#define SKV_ABOUT_DECOMPRESSED (1u << 28) /* K and V of tokens may be what their codes were, not what was appended */
#define SKV_ABOUT_PREFILL (1u << 29)  /* a prompt is being read, whose rows do not see all: lay[].prompt counts */
#define SKV_ABOUT_PROMPTED (1u << 30) /* the commit was a prompt's */
#define SKV_ABOUT_SLOTS (1u << 31)    /* lay[].slots counts; else each layer has the slots of the committed length */

/* An entry that an eviction frees. */
struct skv_eviction {
	uint32_t table;
	uint32_t page; /* index in the table */
};

/* What pages hold. Each layer has a table of every kind. */
enum skv_page_kind {
	SKV_PAGES_KV, /* K and V */
	SKV_PAGES_STATE, /* page bounds, or sketches of keys */
	SKV_PAGES_SLOT_META,
	SKV_PAGES_CODES,
	SKV_PAGES_REFS,
	SKV_PAGES_SAVED, /* of a prompt that is being read */
	SKV_PAGE_KINDS
};

/* Tables have numbers: those of a group come one after the other, in the order of the layers. */
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

/* Do pages of the group hold the tokens themselves, and not what a policy knows of them? */
static inline bool skv_page_kind_holds_tokens(enum skv_page_kind group)
{
	return group == SKV_PAGES_KV || group == SKV_PAGES_CODES || group == SKV_PAGES_REFS;
}

/* Of what a policy keeps of a sequence and the host alone reads. What grows with tokens has pages of its own. */
#define SKV_SEQ_STATE_MAX 65536u

/* Of a block of a sealed prefix (daemon/prefix-keys.h): equal where all tokens up to the block's end are. */
struct skv_block_key {
	uint8_t bytes[16];
};

#define SKV_SEQ_MAX_ENTRIES (1u << 24) /* table entries of a sequence, all layers, in each group: bounds the time of a validation */

/* Byte offsets in the memory. */
struct skv_seqmem_layout {
	uint32_t n_layers, max_tokens;
	uint32_t max_pages; /* entries of a table */
	uint32_t kept; /* of those of SKV_PAGES_SAVED, that count: at most max_pages */
	uint32_t n_tables; /* SKV_PAGE_KINDS of each layer, see skv_table() */
	size_t table;   /* skv_pte [n_tables][max_pages] */
	size_t tokens;  /* int32_t [max_tokens + 1] */
	size_t journal; /* struct skv_eviction [journal_most] */
	size_t journal_most;
	size_t state;   /* state_bytes, the policy's */
	size_t state_bytes;
	size_t total;   /* multiple of 4096 */
};

/* The layout for at most max_tokens tokens. Memory is sparse: what is touched counts. */
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

/* Entries of a table that count in a sequence of this committed length. */
static inline uint32_t skv_seqmem_entries(const struct skv_seqmem_layout *l, uint32_t table, uint32_t len)
{
	return skv_table_page_kind(l->n_layers, table) == SKV_PAGES_SAVED ? l->kept : skv_pages_of(len);
}

/* Of fresh (zeroed) memory: the header, and with it that there is no token to go on from, or the header alone. */
void skv_seqmem_init(struct skv_seqmem *s, const struct skv_seqmem_layout *l);
void skv_seqmem_init_header(struct skv_seqmem *s, const struct skv_seqmem_layout *l);

/* What an entry of this table becomes when it is evicted. */
static inline skv_pte skv_seqmem_evicted(const struct skv_seqmem_layout *l, uint32_t table)
{
	bool hole = skv_table_page_kind(l->n_layers, table) == SKV_PAGES_KV;

	return skv_pte_make(hole ? SKV_PTE_HOLE : SKV_PTE_NONE, 0);
}

/*
 * What a commit says of the first n tokens of a sequence where another one said this of more: its `about`, a layer's
 * slots. The layer holds its tokens in order, or n is 0.
 */
uint32_t skv_about_cut(uint32_t about, uint32_t n);
struct skv_layer_slots skv_layer_slots_cut(const struct skv_layer_slots *slots, uint32_t n);

/*
 * Another commit, of the first n tokens, with no token to go on from; nothing if there are no more. For the daemon, on a
 * fork that nobody has seen: entries beyond are still there. Only the header is touched.
 */
void skv_seqmem_cut(struct skv_seqmem *s, uint32_t n);

/* What a sequence's tokens follow from beside themselves and the model, and how they are stored: what one that begins with them has, too. */
struct skv_made {
	uint64_t policy, codec, rope; /* as in struct skv_seqmem */
	char codec_path[SKV_PROFILE_PATH];
	uint32_t n_compressed; /* tokens that all layers with a form have compressed; SKV_MAX_TOKENS where there are none */
	struct skv_form form[SKV_MAX_LAYERS]; /* kind 0: the layer has rows */
};

/* As of the last commit. A client may be writing it. */
void skv_seqmem_made(const struct skv_seqmem *s, uint32_t n_layers, struct skv_made *ret);
/* Is it the form of tokens of this model that can be sealed, all but the first ones compressed? NULL, or what is wrong. */
const char *skv_made_check(const struct skv_made *, const struct skv_model *);

/*
 * Fresh memory whose entries and ids were filled in: its first commit, of n tokens of a prompt, with no token to go on from. n whole blocks
 * (SKV_BLOCK_TOKENS), compressed as `made`, which was checked.
 */
void skv_seqmem_begin_with(struct skv_seqmem *s, uint32_t n, uint32_t n_layers, const struct skv_made *made);

/* Tokens that a commit has latent codes of, over all layers: the last one's, or the one's before. A client may be writing it. */
uint64_t skv_seqmem_compressed(const struct skv_seqmem *s, uint32_t epoch, uint32_t n_layers);

/*
 * Take the last commit back, which not all ranks have made: the memory is of the one before it. False: what it says of that one
 * cannot be. For who alone may write to it: recovery follows.
 */
bool skv_seqmem_rewind(struct skv_seqmem *s);

/*
 * Do slots and flags of one commit of this length fit together? NULL, or what is wrong. For a library about to use
 * them, on its own copy: the daemon has no use for them.
 */
const char *skv_layer_slots_check(const struct skv_layer_slots *slots, uint32_t about, uint32_t len, uint32_t n_layers);

/*
 * Is the memory what the layout says? Checks header, committed length, journal length. A text that
 * says what is wrong, NULL when all is well. Entries are checked by code that knows the pool.
 */
const char *skv_seqmem_check(const struct skv_seqmem *s, const struct skv_seqmem_layout *l);

/*
 * Make the committed entries what the last commit says: an eviction journal of that epoch is carried out,
 * any other discarded. The first half of recovery: enough to know which pages the sequence has, and it
 * costs nothing where no journal is. Only for the sole holder of the sequence.
 */
void skv_seqmem_replay(struct skv_seqmem *s, const struct skv_seqmem_layout *l);

/*
 * Make the memory say what its last commit says: an eviction journal of that epoch is carried out,
 * any other discarded; entries of all tables beyond the committed length become SKV_PTE_NONE; tokens[length] is
 * the committed next id. Idempotent. What was never touched stays without memory. Only for the sole
 * holder of the sequence.
 */
void skv_seqmem_recover(struct skv_seqmem *s, const struct skv_seqmem_layout *l);

#endif
