/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/seqmem.h - the memory of a sequence: page tables, token ids, policy state.
 *
 * Each sequence has one sealed memfd. The daemon creates the memfd; the daemon and the client that holds the sequence
 * map it. Sequence memory outlives the engine, so it must be consistent whatever the instruction at which the engine
 * dies. The rules for that:
 *
 *   1. `commit` is one atomic 64-bit word, epoch << 32 | length. The word `commit` alone determines the committed
 *   state.
 *   2. Before its commit, a step writes only what the last commit does not cover: table entries, token ids, and K and V
 *      rows beyond the committed length. The one exception is copy-on-write of the last, partly filled page: once the
 *      copy is complete, one store replaces the page's table entry by that of the copy, which has the same committed
 *      contents.
 *   3. An eviction is first written to the journal, stamped with the next epoch. After the commit, the entries become
 *      holes and the journal is emptied. If the engine dies before that, the next process that opens the memory carries
 *      out or discards the journal: skv_seqmem_recover(). A writer stamps the journal before it writes evictions to it,
 *      so that the stamp of an old commit never applies to new evictions.
 *   4. Pages of evicted entries may be reused only after the commit of their eviction.
 *   5. State pages. Besides its page table, each layer has a table for every other kind of pages (enum skv_page_kind).
 *      As in a page table, the entries for the committed length are valid; each is a page or SKV_PTE_NONE. A step may
 *      fill NONE entries, replace an entry as in rule 2, and write to state pages what a repeated step would compute
 *      again. The code here does not know whether a state page is still useful: the page counts as a page of the
 *      sequence, and the client that holds the sequence keeps or removes it. Page bounds, key sketches and slot
 *      metadata (kernels/evict.h) are such state. Codes and references hold compressed tokens. Codes and references are
 *      contents, like K and V, and cannot be recomputed: a step does not write to the codes and references of the last
 *      commit. Saved prefill state (kernels/prefill.h), which later rows of a prompt need, is kept in two sets by the
 *      parity of the epoch: a step reads the set of the last commit and writes the other one. The size of saved prefill
 *      state does not depend on the length of the sequence: the first `kept` entries of its tables (struct
 *      skv_seqmem_layout) are valid at any committed length. Pages of all kinds are evicted through the journal;
 *      entries other than those of K and V then become SKV_PTE_NONE.
 *   6. Slots. A layer that evicts single tokens has fewer slots than the sequence has tokens. Its page table has pages
 *      only for its slots; the other entries up to the committed length are holes from the beginning. lay[epoch & 1]
 *      has the number of slots of each layer, if about[epoch & 1] says that it is valid. A step may put a page into one
 *      of these holes before its commit. After a torn step (one whose process died before its commit) the page is still
 *      there, empty; the next holder of the sequence removes it.
 *   7. Compressed tokens. A layer may hold tokens before slots[].n_compressed as codes and references. Such a layer has
 *      all tokens of the sequence, in order, and a slot for each. The table entries of compressed tokens are holes,
 *      except those of the first `form.first` pages. A step compresses tokens whose pages belong to the last commit,
 *      into codes and references beyond those of that commit, and evicts the pages.
 *   8. A commit may have fewer tokens than its predecessor (truncation, forks of a sequence's first tokens). Such a
 *      commit writes nothing that the predecessor covers, except its own half of fields that exist twice, and removes
 *      state only through the journal. Table entries beyond the new length are freed after the commit, like those of a
 *      torn step.
 *   9. The next input token that a step publishes exists twice, as `next[epoch & 1]`: a torn step may have overwritten
 *      tokens[length], and recovery restores the committed token there.
 *   10. Joint commits. The ranks of a tensor-parallel group each have a sequence of the same name, and may commit
 *      together: a commit counts when all of them have made it. Until a rank knows that all ranks have made a commit
 *      (`joint`), it does not carry out the journal of that commit, and begins no step after it. So a commit that only
 *      some of the ranks made can be reverted: skv_seqmem_rewind(). The memory is then as after a torn step.
 *
 * The layout depends only on the model's shape and max_tokens and both the daemon and the client compute it; the memory
 * contains no offsets. Everything that the daemon reads from sequence memory was written by a client and must be
 * checked.
 */
#ifndef SKV_SEQMEM_H
#define SKV_SEQMEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sparsekv/types.h>

#define SKV_SEQMEM_MAGIC 0x34514553u /* "SEQ4" */

/*
 * The form of a layer's compressed tokens, with the meanings of struct skv_compress (sparsekv/policy.h). If all fields
 * are 0, the layer compresses no tokens. The form determines in which pages the records are: common/records.h.
 */
struct skv_form {
	uint8_t kind, bits, scale_block, stride, n_refs, ref_bits;
	uint8_t id_bytes; /* bytes of a reference's number: 2 or 4, or 0 without references */
	uint8_t first;    /* number of pages of the first tokens, which are never compressed */
	uint16_t code_size, ref_size; /* size of a code's record and of a reference's record, in units of 16 bytes */
};

struct skv_seqmem {
	uint32_t magic;
	uint32_t n_layers;
	uint32_t max_tokens; /* maximum of tokens of the sequence, fixed when it is created */
	uint32_t max_pages;  /* number of entries of each page table */
	_Atomic uint64_t commit;
	/*
	 * stamp and number of entries of the eviction journal, which is valid if journal_epoch is the committed epoch
	 */
	_Atomic uint32_t journal_epoch;
	_Atomic uint32_t journal_n;
	/* name of the policy whose state is in the state area; checked before the state is used */
	char state_policy[SKV_NAME_MAX];
	uint32_t state_version;
	/*
	 * epoch of the commit that the policy's state belongs to. If the policy has state pages but no other state:
	 * epoch of the first commit with state pages
	 */
	uint32_t state_epoch;
	/* next[epoch & 1]: next input token as of that epoch's commit, -1: none; the same as tokens[length] */
	int32_t next[2];
	/* about[epoch & 1]: properties of the sequence as of the commit of that epoch (SKV_ABOUT_...) */
	uint32_t about[2];
	/* id of the client that holds the sequence, set by the daemon; 0: none. No other client commits */
	_Atomic uint32_t holder;
	uint32_t len[2]; /* len[epoch & 1]: committed length as of the last commit whose epoch has this parity */
	/*
	 * For tensor-parallel ranks that commit together (rule 10): 1 + the epoch, in this memory's count, of the last
	 * commit that all ranks are known to have made. 0: each rank commits by itself.
	 */
	_Atomic uint32_t joint;
	/*
	 * Number of tokens that are compressed because they were sealed (skv_seq_seal) or came from a sealed prefix,
	 * regardless of how many tokens the policy would compress. Written after the commit that compresses the tokens.
	 */
	uint32_t sealed;
	/*
	 * Fingerprint of the spec of the policy under which all tokens were computed; 0: they were computed under
	 * several policies. A client writes the fingerprint before its first step under another policy. So the
	 * fingerprint may become 0 too early, if the client dies before that step, but never too late.
	 */
	uint64_t policy;
	/*
	 * For compressed tokens: fingerprints of the codec's file and of the model's RoPE, and the path of the codec's
	 * file. These fields are written only while the last commit has no compressed tokens, so they need not exist
	 * twice, as `lay` does.
	 */
	uint64_t codec, rope;
	char codec_path[SKV_PROFILE_PATH];
	/* lay[epoch & 1]: layout as of the last commit of that parity; valid if about[epoch & 1] says so */
	struct skv_lay {
		struct skv_prompt {
			/* fingerprint of how the prompt's rows attend, which must fit the saved prefill state */
			uint64_t how;
			uint32_t begin; /* position of the prompt's first row */
			uint32_t reserved;
		} prompt;
		struct skv_layer_slots {
			/* number of slots with a token; if it is below slot_end, slot metadata says which */
			uint32_t live;
			uint32_t slot_end;     /* all slots from this index on are free */
			/* tokens per entry of the layer's slot metadata: 1 or SKV_PAGE_TOKENS; 0: there is none */
			uint32_t granularity;
			/*
			 * number of slots that the layer attends to; the mean over the heads, if the heads share a
			 * budget
			 */
			uint32_t n_active;
			/*
			 * tokens before this position are compressed, except those of the first form.first pages; 0: no
			 * tokens are
			 */
			uint32_t n_compressed;
			struct skv_form form;
		} slots[SKV_MAX_LAYERS];
	} lay[2];
};

/*
 * Bits of `about` with the number of prompt tokens before the sequence's first decode step. The other bits are flags.
 */
#define SKV_ABOUT_PROMPT 0x03ffffffu
/* K and V of some tokens may have been compressed and decompressed, and differ from those that were appended */
#define SKV_ABOUT_DECOMPRESSED (1u << 28)
/* the commit is in the middle of a prompt with sparse prefill: lay[].prompt is valid */
#define SKV_ABOUT_PREFILL (1u << 29)
#define SKV_ABOUT_PROMPTED (1u << 30) /* the last committed token was appended as part of a prompt */
/* lay[].slots is valid; without this flag every layer has one slot for each committed token */
#define SKV_ABOUT_SLOTS (1u << 31)

/* A page table's entry that an eviction frees. */
struct skv_eviction {
	uint32_t table;
	uint32_t page; /* index of the entry in the page table */
};

/* Kinds of contents of pages. Each layer has one page table of every kind. */
enum skv_page_kind {
	SKV_PAGES_KV, /* K and V */
	SKV_PAGES_STATE, /* page bounds, or sketches of keys */
	SKV_PAGES_SLOT_META,
	SKV_PAGES_CODES,
	SKV_PAGES_REFS,
	SKV_PAGES_SAVED, /* prefill state that later rows of an unfinished prompt need */
	SKV_PAGE_KINDS
};

/* Numbers of page tables: the tables of one kind have consecutive numbers, in the order of their layers. */
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

/* Returns whether pages of this kind hold K and V of tokens, compressed or not, as opposed to state of a policy. */
static inline bool skv_page_kind_holds_tokens(enum skv_page_kind group)
{
	return group == SKV_PAGES_KV || group == SKV_PAGES_CODES || group == SKV_PAGES_REFS;
}

/*
 * Maximum of bytes of a policy's state per sequence, in the part that only the host reads. Policy state that grows with
 * the number of tokens is in state pages instead.
 */
#define SKV_SEQ_STATE_MAX 65536u

/*
 * Key of a block of a sealed prefix (daemon/prefix/prefix-keys.h): two keys are equal if all tokens from the sequence's
 * beginning to the block's end are.
 */
struct skv_block_key {
	uint8_t bytes[16];
};

/* maximum of page table entries of a sequence for each page kind; limits how long a validation takes */
#define SKV_SEQ_MAX_ENTRIES (1u << 24)

/* Sizes of the tables in a sequence's memory, and their byte offsets. */
struct skv_seqmem_layout {
	uint32_t n_layers, max_tokens;
	uint32_t max_pages; /* number of entries of each page table */
	uint32_t kept; /* number of valid entries in a table of kind SKV_PAGES_SAVED, at most max_pages */
	uint32_t n_tables; /* number of page tables: SKV_PAGE_KINDS for each layer, numbered by skv_table() */
	size_t table;   /* offset of the page tables, skv_pte [n_tables][max_pages] */
	size_t tokens;  /* offset of the token ids, int32_t [max_tokens + 1] */
	size_t journal; /* offset of the journal, struct skv_eviction [journal_most] */
	size_t journal_most;
	size_t state;   /* offset of the policy's state, of state_bytes bytes */
	size_t state_bytes;
	size_t total;   /* bytes of the whole memory, a multiple of 4096 */
};

/*
 * Computes the layout of a sequence of at most max_tokens tokens. A sequence's memfd is sparse: only pages that were
 * written use memory.
 */
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

/* Returns how many entries of a page table are valid if `len` tokens are committed. */
static inline uint32_t skv_seqmem_entries(const struct skv_seqmem_layout *l, uint32_t table, uint32_t len)
{
	return skv_table_page_kind(l->n_layers, table) == SKV_PAGES_SAVED ? l->kept : skv_pages_of(len);
}

/*
 * Initialize zeroed sequence memory. The first function writes the header and tokens[0] = -1 (no next input token), the
 * second one writes only the header.
 */
void skv_seqmem_init(struct skv_seqmem *s, const struct skv_seqmem_layout *l);
void skv_seqmem_init_header(struct skv_seqmem *s, const struct skv_seqmem_layout *l);

/* Returns the value that an entry of this page table has after its eviction. */
static inline skv_pte skv_seqmem_evicted(const struct skv_seqmem_layout *l, uint32_t table)
{
	bool hole = skv_table_page_kind(l->n_layers, table) == SKV_PAGES_KV;

	return skv_pte_make(hole ? SKV_PTE_HOLE : SKV_PTE_NONE, 0);
}

/*
 * Return the value of `about`, and the slots of a layer, for a commit of the first n tokens, derived from those of a
 * longer commit. Unless n is 0, the layer must hold its tokens in order.
 */
uint32_t skv_about_cut(uint32_t about, uint32_t n);
struct skv_layer_slots skv_layer_slots_cut(const struct skv_layer_slots *slots, uint32_t n);

/*
 * Commits the first n tokens, without a next input token; does nothing if no more than n tokens are committed. The
 * daemon calls this function for a fork that no client has seen yet. Page table entries beyond the new length stay as
 * they are. The function accesses only the header.
 */
void skv_seqmem_cut(struct skv_seqmem *s, uint32_t n);

/*
 * Parameters that determine, together with the tokens and the model, the contents of a sequence and the form in which
 * they are stored. Sequences that begin with the same sealed prefix have the same parameters.
 */
struct skv_made {
	uint64_t policy, codec, rope; /* fingerprints, as in struct skv_seqmem */
	char codec_path[SKV_PROFILE_PATH];
	/* smallest number of compressed tokens of the layers with a form; SKV_MAX_TOKENS if no layer has a form */
	uint32_t n_compressed;
	struct skv_form form[SKV_MAX_LAYERS]; /* kind 0: the layer stores uncompressed rows of K and V */
};

/*
 * Reads a sequence's struct skv_made as of the last commit. A client may write to the sequence memory at the same time.
 */
void skv_seqmem_made(const struct skv_seqmem *s, uint32_t n_layers, struct skv_made *ret);
/*
 * Checks that `made` describes tokens of this model that can be sealed: in each layer with a form, all tokens but those
 * of the first pages are compressed. Returns NULL or an error text.
 */
const char *skv_made_check(const struct skv_made *, const struct skv_model *);

/*
 * Makes the first commit of new sequence memory: n tokens of a prompt, without a next input token. The caller has
 * filled in the table entries and the token ids. n must be a multiple of SKV_BLOCK_TOKENS, the tokens must be
 * compressed as `made` says, and `made` must have been checked.
 */
void skv_seqmem_begin_with(struct skv_seqmem *s, uint32_t n, uint32_t n_layers, const struct skv_made *made);

/*
 * Returns the sum over all layers of the tokens that are stored as latent codes, as of the commit of this epoch, which
 * is that of the last commit or of its predecessor. A client may write to the sequence memory at the same time.
 */
uint64_t skv_seqmem_compressed(const struct skv_seqmem *s, uint32_t epoch, uint32_t n_layers);

/*
 * Reverts the sequence to the commit before the last one, because not all ranks have made the last commit. Returns
 * false if the data of the earlier commit is invalid. Only the sole writer of the memory may call this function, and
 * must call skv_seqmem_recover() afterwards.
 */
bool skv_seqmem_rewind(struct skv_seqmem *s);

/*
 * Checks that the slots and flags of a commit of this length are consistent. Returns NULL or an error text. The client
 * library calls this function on its own copy before it uses slots and flags; the daemon does not call it.
 */
const char *skv_layer_slots_check(const struct skv_layer_slots *slots, uint32_t about, uint32_t len, uint32_t n_layers);

/*
 * Checks header, committed length and journal length against the layout. Returns NULL or an error text. The entries of
 * the page tables are checked elsewhere, by code that knows the pool.
 */
const char *skv_seqmem_check(const struct skv_seqmem *s, const struct skv_seqmem_layout *l);

/*
 * Carries out the eviction journal if its stamp is the committed epoch, and discards it otherwise. This is the first
 * half of recovery. It suffices for finding the pages of a sequence, and costs nothing if the journal is empty. Only
 * the sole holder of the sequence may call this function.
 */
void skv_seqmem_replay(struct skv_seqmem *s, const struct skv_seqmem_layout *l);

/*
 * Restores the state of the last commit: carries out or discards the eviction journal, as skv_seqmem_replay() does;
 * sets the entries of all page tables beyond the committed length to SKV_PTE_NONE, and tokens[length] to the committed
 * next input token. Calling the function twice has no further effect. Memory that was never written stays unallocated.
 * Only the sole holder of the sequence may call this function.
 */
void skv_seqmem_recover(struct skv_seqmem *s, const struct skv_seqmem_layout *l);

#endif
