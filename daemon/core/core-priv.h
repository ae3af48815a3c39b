/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/core-priv.h - what the files of core/ share: struct skv_core and its operations.
 *
 * State is in core->state (the memfd). Beside it are companions, indexed as its tables, of what a
 * process can reopen or remake: fds, maps, scratch. A companion is there exactly while its row is.
 *
 * Ways of a change: skv_page_set() is the only writer of owner words, and keeps every count that
 * follows from them. After pages became FREE call skv_pool_shrink(), which withdraws segments that are no
 * longer needed, and the pool itself.
 */
#ifndef SKV_CORE_PRIV_H
#define SKV_CORE_PRIV_H

#include <string.h>
#include "daemon/core/core.h"
#include "daemon/core/state.h"
#include "daemon/mem/mem.h"

/* The daemon's view of a sequence's memory: everything but the policy's state area. */
struct skv_seq_local {
	int fd;
	struct skv_seqmem *mem;
	struct skv_seqmem_layout layout;
};
struct skv_session_local {
	int fd;
	struct skv_session_page *page;
};
struct skv_pool_local {
	struct skv_mem_handle *handles; /* [max_segments], of LIVE segments */
	uint8_t *marks;   /* [page]: scratch of a validation or release, all zero outside of one */
};

/* Host memory or a device. */
struct skv_memory {
	const struct skv_mem_ops *mem; /* NULL: not there */
	struct skv_core_memory_limits limits;
};

struct skv_core {
	struct skv_core_config config;
	struct skv_memory memory[SKV_MEMORY_KINDS];
	struct skv_state state;
	struct skv_seq_local *seqs;
	struct skv_session_local *sessions;
	struct skv_pool_local *pools;
	int control_fd;
	struct skv_control_page *control;
	void (*corrupt_cb)(void *, uid_t, const char *, const char *, const char *);
	void *corrupt_data;
	char why[256];
};

/* Remember why a call is refused; the value is the error, in a form that the compiler can see is not 0. */
#define skv_core_refuse(core, error, ...) (skv_set_why(core, __VA_ARGS__), (int)(error))
void skv_set_why(struct skv_core *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The system refused (negative errno r) to give `what`. */
#define skv_core_refuse_system(core, r, what) \
	skv_core_refuse(core, SKV_CORE_E_NOSPC, "the system gave no %s: %s", what, strerror(-(r)))

/* lookup.c: the rows that a client's ids name; E_NOENT when they are not its own. */
int skv_find_client(struct skv_core *, uint32_t id, uint32_t *ret_index);
int skv_find_session(struct skv_core *, uint32_t client_id, uint32_t session_id, uint32_t *ret_client,
                     uint32_t *ret_session);
int skv_find_held(struct skv_core *, uint32_t client_id, uint32_t session_id, uint32_t seq_id,
                  uint32_t *ret_client, uint32_t *ret_seq);

/* accounts.c */
uint32_t skv_account_get(struct skv_core *, uid_t uid); /* made when it is not there */
void skv_account_put(struct skv_core *, uint32_t account); /* removed when nothing is charged to it */

/* pools.c */
int skv_pool_get(struct skv_core *, uint32_t account, uint32_t device, uint64_t page_bytes,
                 uint32_t *ret_index);
void skv_pool_shrink(struct skv_core *, uint32_t pool);

/* pages.c */
bool skv_page_exists(const struct skv_core *, uint32_t pool, uint32_t page);
void skv_page_set(struct skv_core *, uint32_t pool, uint32_t page, skv_owner to);
/* The n pages with owner word `from` become `to` (FREE = 0). */
void skv_pages_hand_over(struct skv_core *, uint32_t pool, skv_owner from, skv_owner to, uint64_t n);

/* segments.c */
int skv_pool_grow(struct skv_core *, uint32_t pool, uint64_t least, uint64_t want);
/* It has memory: LIVE, its pages FREE, to be announced to the pool's members. The handle is consumed. */
void skv_segment_arrive(struct skv_core *, uint32_t pool, uint32_t segment, const struct skv_mem_handle *);
void skv_segment_withdraw(struct skv_core *, uint32_t pool, uint32_t segment);
/* Its memory is not charged to the account and the pool any more. */
void skv_segment_uncharge(struct skv_core *, uint32_t pool);

/* pending.c */
void skv_segment_request(struct skv_core *, uint32_t pool, uint32_t segment);
void skv_segment_cancel(struct skv_core *, uint32_t pool, uint32_t segment); /* WANTED or STARTED */
void skv_pool_cancel_all(struct skv_core *, uint32_t pool);

/* segments.c: clients and their pools */
void skv_member_join(struct skv_core *, uint32_t pool, uint32_t client);
void skv_member_leave(struct skv_core *, uint32_t pool, uint32_t client); /* leases go with the last one */

/* refs.c */
/* Blocks that n more references take; seq may be SKV_NO_INDEX, a sequence without any. */
uint64_t skv_refs_blocks_for(const struct skv_core *, uint32_t seq, uint64_t n);
uint64_t skv_refs_blocks_left(const struct skv_core *);
void skv_refs_add(struct skv_core *, uint32_t seq, uint32_t page); /* a block must be left */
void skv_refs_mark(struct skv_core *, uint32_t seq, uint8_t mark);
void skv_refs_release(struct skv_core *, uint32_t seq, uint8_t mark); /* those whose mark is this */
#define SKV_EACH_REF_BLOCK(block, s, seq)                                                                   \
	for (const struct skv_ref_block *block = skv_refs_first(s, seq); block;                             \
	     block = skv_refs_next(s, block))
#define SKV_EACH_REF(block, i, s, seq)                                                                      \
	SKV_EACH_REF_BLOCK(block, s, seq)                                                                   \
		for (uint32_t i = 0; i < block->n; i++)
static inline const struct skv_ref_block *skv_refs_first(const struct skv_state *s, uint32_t seq)
{
	uint32_t head = skv_seq_row(s, seq)->ref_head;

	return head ? skv_ref_block_row(s, head - 1) : NULL;
}
static inline const struct skv_ref_block *skv_refs_next(const struct skv_state *s,
                                                        const struct skv_ref_block *b)
{
	return b->next ? skv_ref_block_row(s, b->next - 1) : NULL;
}

/* validate.c: a sequence's committed page tables, checked against the owner words. */
enum skv_mark {
	SKV_MARK_NONE = 0,
	SKV_MARK_REF = 1,   /* the sequence holds a reference ... */
	SKV_MARK_NAMED = 2, /* ... and its tables name the page */
	SKV_MARK_OWN = 3,   /* on lease to the holder, and named */
	SKV_MARK_RELEASE = 4,
};
struct skv_validated {
	uint32_t *own; /* pages on lease that the tables name */
	uint64_t n_own, n_named;
};
/*
 * Check and mark. 0: `ret` and the marks tell what the tables name, until skv_validate_end(). E_CORRUPT:
 * nothing is marked. Negative: out of memory.
 */
int skv_validate_begin(struct skv_core *, uint32_t seq, uint32_t client, struct skv_validated *ret);
void skv_validate_end(struct skv_core *, uint32_t seq, struct skv_validated *);
/* Recover the memory of a sequence without a holder, for its next holder. 0 or E_CORRUPT. */
int skv_validate_reopen(struct skv_core *, uint32_t seq);
/* In the committed tables of `seq`, FULL entries of pages that are marked OWN become SHARED. */
void skv_validate_rewrite_shared(struct skv_core *, uint32_t seq);

/* sequences.c */
/* It has no holder any more: named ones are validated, anonymous and corrupt ones dropped (E_CORRUPT). */
int skv_seq_let_go(struct skv_core *, uint32_t seq, uint32_t client);
void skv_seq_remove(struct skv_core *, uint32_t seq);

/* sessions.c */
int skv_session_shut(struct skv_core *, uint32_t session); /* negative or 0 */

#endif
