/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/state.h - the state memfd: the data that must outlive the process, and nothing else.
 *
 * The state is one sealed, sparse memfd of a fixed size: a header, then plain tables whose rows refer to each other by
 * index. The state contains no pointers, no fds, and nothing that can be derived from the rest of it, except counts,
 * which skv_core_balance() recounts. Mappings and fds of a process are kept outside the state in arrays with the same
 * indices; the names under which the fd store has these fds follow from the rows (fdstore.h).
 *
 * The sizes and offsets of the tables follow from the geometry alone. The header has both, and skv_state_map() accepts
 * a header only if they agree. The tables are dimensioned for the worst case; only parts that were written take memory.
 *
 * The state is written only through undo.h, so that a change is complete or absent whenever the process dies.
 *
 * Rows of the tables from accounts to pools are taken and given back; such a row begins with a struct skv_row. A free
 * row is on its table's free list, or its index is at least `high` and it was never used. A row's generation is
 * incremented with each use, so that the id of a row that was given back does not name the next object in the row (for
 * up to 65,535 uses).
 */
#ifndef SKV_CORE_STATE_H
#define SKV_CORE_STATE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include "common/wire.h"
#include "daemon/core/core.h"
#include "daemon/core/state/undo.h"

/*
 * A state of another version is refused. To convert an old state, the daemon would have to apply its undo log in the
 * old layout and copy each row into a new state by the old element_bytes; structs in the middle of rows (skv_model)
 * could not grow. The fd store (fdstore.h) would need two names for states, because the old state may be removed only
 * after the new one was added, and removing a name removes all files of that name.
 */
#define SKV_STATE_MAGIC 0x3154415453564b53ull /* "SKVSTAT1" */
#define SKV_STATE_VERSION 13u
#define SKV_NO_INDEX UINT32_MAX

/* ---- owner words ----------------------------------------------------------------------------- */

/*
 * The owner of a page. The top two bits are the kind; the other bits are the row of the client (LEASE) or of the
 * sequence (SEQ), or the number of sequences that refer to the page (SHARED).
 */
typedef uint32_t skv_owner;
enum skv_owner_kind { SKV_OWNER_FREE = 0, SKV_OWNER_LEASE = 1, SKV_OWNER_SEQ = 2, SKV_OWNER_SHARED = 3 };
#define SKV_OWNER_KINDS 4
#define SKV_OWNER_VALUE_MASK 0x3fffffffu

static inline skv_owner skv_owner_make(enum skv_owner_kind kind, uint32_t value)
{
	return (uint32_t)kind << 30 | (value & SKV_OWNER_VALUE_MASK);
}
static inline enum skv_owner_kind skv_owner_kind(skv_owner o)
{
	return (enum skv_owner_kind)(o >> 30);
}
static inline uint32_t skv_owner_value(skv_owner o)
{
	return o & SKV_OWNER_VALUE_MASK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

struct skv_row {
	uint32_t live;
	uint32_t generation;
	uint32_t next_free; /* if not live: 1 + index of the next row of the free list; 0: end of the list */
	uint32_t reserved;
};

/*
 * Identity, from fstat(), of the file that is a row's memory. The names of stored descriptors may be wrong or swapped,
 * and no user may get another user's memory: so a restarted daemon compares the identity.
 */
struct skv_file_id {
	uint64_t dev, ino;
};

struct skv_account_row {
	struct skv_row row;
	uint32_t uid;
	uint32_t clients, sessions, sequences, pools; /* number of the user's live rows in each table */
	uint32_t reserved;
	uint64_t page_bytes[SKV_MEMORY_KINDS]; /* bytes of pages that are not FREE, in each memory */
	uint64_t other_bytes; /* bytes of other host memory that are charged: charge.h */
	uint64_t copied_bytes; /* bytes that forks copied for the user's sequences: sum of skv_seq_row.copied */
};

struct skv_client_row {
	struct skv_row row;
	uint32_t account;
	int32_t pid;
	uint32_t sessions; /* number of the client's sessions */
	uint32_t notices; /* number of announcements of segments and memfds that are due to the client: announce.c */
	/*
	 * 1: the client's connection has ended; no other client gets its sequences or pages before its process is gone
	 */
	uint32_t fenced;
	uint32_t kept;    /* 1: the fd store has a descriptor of the client's process */
	struct skv_file_id file; /* identity of the descriptor of the client's process, if `kept` */
	uint64_t bytes;   /* bytes charged for the client's connection */
	char program[SKV_NAME_MAX];
};

/* A policy of a session, and the policy generation in which it was chosen. */
struct skv_choice {
	uint64_t generation;
	uint32_t plugin;
	uint32_t reserved;
	char spec[SKV_SPEC_MAX];
};

struct skv_session_row {
	struct skv_row row;
	uint32_t client, pool; /* rows of the session's client and pool */
	uint32_t sequences; /* number of sequences that the session holds */
	uint32_t reserved;
	struct skv_file_id file; /* identity of the session page */
	struct skv_model model;
	struct skv_choice wanted;  /* policy requested by the client at open, or by an operator's swap since */
	struct skv_choice given;   /* policy that was last given to the client */
	struct skv_choice running; /* policy that the client reports to run */
	char error[SKV_TEXT_MAX];  /* error text of the client's last policy swap; "": the swap did not fail */
};

struct skv_seq_row {
	struct skv_row row;
	uint32_t account, pool; /* rows of the sequence's account and pool */
	uint32_t session; /* row of the session that holds the sequence; SKV_NO_INDEX: it has no holder */
	uint32_t max_tokens;
	uint32_t pages;    /* number of pages with owner word SEQ(this sequence) */
	uint32_t refs;     /* number of shared pages to which the sequence refers */
	uint32_t referred; /* 1: the sequence has had a reference, so its row of reference bits may take memory */
	uint32_t fresh;    /* 1: the holder of the sequence made it and has held it ever since */
	uint64_t bytes;         /* bytes charged for the sequence's memory, references and keys */
	uint64_t copied;        /* bytes that the daemon copied to make the sequence as a fork; else 0 */
	/* value of the header's counter `uses` at the last use; a larger value is a later use */
	uint64_t used;
	uint64_t idle_since_ns; /* time when the sequence was first seen without a holder; 0: not seen yet */
	struct skv_file_id file; /* identity of the sequence's memory */
	struct skv_model model;
	char name[SKV_NAME_MAX]; /* "": the sequence is anonymous */
};

struct skv_pool_row {
	struct skv_row row;
	uint32_t account; /* row of the account that the pool belongs to */
	uint32_t device; /* the pool's memory, as in skv_model.device */
	uint32_t pages_per_segment, max_segments;
	uint32_t sessions, sequences; /* numbers of both on the pool, which exists while either is not 0 */
	uint32_t segments;           /* number of LIVE segments */
	uint32_t empty;              /* number of LIVE segments all of whose pages are FREE */
	uint32_t high;               /* segment numbers from this one on were never used */
	uint32_t pending, wanted;     /* numbers of WANTED and STARTED segments together, and of WANTED segments */
	uint32_t leaving;             /* number of LEAVING segments whose host memory is being freed */
	/* number of ranges of strays (memory written where no segment is) that the current sweep is still freeing */
	uint32_t sweeping;
	uint32_t reserved;
	uint64_t sweep_serial; /* serial of the current sweep */
	uint64_t stray_bytes; /* bytes charged for memory that was written where no segment is */
	uint64_t page_bytes, segment_bytes;
	/* identity of the pool's memfd; {0} on a device, whose driver exports segments without inodes of their own */
	struct skv_file_id file;
	uint64_t count[SKV_OWNER_KINDS]; /* number of pages of each kind of owner */
};

/* A client in a pool. The table is [pool][client]. */
struct skv_member {
	uint32_t sessions; /* number of the client's sessions on the pool; 0: the client is not a member */
	uint32_t lease;    /* number of pages with owner word LEASE(client) */
	uint32_t first_untold; /* of segments with lower numbers nothing has to be announced */
	uint32_t reserved;
};

enum skv_segment_state {
	SKV_SEGMENT_NONE = 0,  /* the segment has no memory, and its number can be used */
	SKV_SEGMENT_LIVE = 1,
	/* being withdrawn: in host memory until the memory is freed, on a device until clients acknowledge the end */
	SKV_SEGMENT_LEAVING = 2,
	SKV_SEGMENT_WANTED = 3,  /* to be created outside the core; its bytes count already */
	SKV_SEGMENT_STARTED = 4,  /* being created outside the core; its bytes count already */
};
/* A segment. The table is [pool][segment]. */
struct skv_segment_row {
	uint32_t state;
	uint32_t free;    /* if LIVE: number of FREE pages */
	uint32_t waiting; /* if LEAVING on a device: number of clients that have to acknowledge the end; else 0 */
	uint32_t longest; /* upper bound of the length of the segment's runs of FREE pages */
	uint64_t serial; /* unique number from the header's segment_serial */
};

/*
 * State of the announcements of a device's segment to a client; at segment 0, of the memfd of a pool of host memory.
 * The table is [pool][client][segment].
 */
enum skv_told {
	SKV_TOLD_NOTHING = 0,  /* not announced */
	SKV_TOLD_LIVE = 1,     /* announced */
	SKV_TOLD_GONE_DUE = 2, /* announced; the segment's end is still to be announced */
	SKV_TOLD_GONE = 3,     /* the segment's end was announced, and not yet acknowledged */
	SKV_TOLD_AGAIN = 4,    /* announced by the previous daemon, and to be announced again */
};

/* ---- the memfd ------------------------------------------------------------------------------- */

enum skv_table {
	SKV_TABLE_ACCOUNTS,
	SKV_TABLE_CLIENTS,
	SKV_TABLE_SESSIONS,
	SKV_TABLE_SEQUENCES,
	SKV_TABLE_POOLS,
	SKV_TABLE_ROWS, /* number of tables above, whose rows are taken and given back */
	SKV_TABLE_MEMBERS = SKV_TABLE_ROWS,
	SKV_TABLE_SEGMENTS,
	SKV_TABLE_TOLD,
	SKV_TABLE_PAGES,
	SKV_TABLE_REFS, /* uint64_t [sequence][skv_ref_words()]: a bit for each page: does the sequence refer to it? */
	SKV_TABLE_UNDO, /* uint64_t: the words of the undo log (undo.h) */
	SKV_TABLE_COUNT,
};

struct skv_geometry {
	uint32_t max_clients, max_sessions, max_sequences, max_pools;
	uint32_t max_segments;   /* maximum of segments of one pool */
	uint32_t reserved;
	uint64_t max_pages; /* maximum of pages of one pool */
	uint64_t segment_bytes; /* bytes of a segment of host memory, as configured */
	uint64_t pool_bytes;    /* limit up to which pool_bytes of host memory can be raised by a reload */
};

/*
 * Number of words of a sequence's row of reference bits, a bit for each page. A row is rounded up to whole 4 KiB pages
 * of memory, so that its memory can be freed.
 */
static inline uint64_t skv_ref_words(const struct skv_geometry *g)
{
	return (g->max_pages + 8 * 4096 - 1) / (8 * 4096) * (4096 / sizeof(uint64_t));
}

struct skv_state_header {
	uint64_t magic;
	uint32_t version, header_bytes;
	uint64_t total_bytes;
	struct skv_geometry geometry;
	uint64_t offset[SKV_TABLE_COUNT], elements[SKV_TABLE_COUNT];
	uint32_t element_bytes[SKV_TABLE_COUNT];
	/* for each table whose rows are taken and given back: */
	uint32_t free[SKV_TABLE_ROWS]; /* 1 + index of the first row of the free list; 0: the list is empty */
	uint32_t high[SKV_TABLE_ROWS]; /* rows from this index on were never used */
	uint32_t live[SKV_TABLE_ROWS]; /* number of live rows */
	uint32_t plugins; /* last plugin id that was given to a policy's file */
	uint64_t uses; /* counter of uses of sequences, from which skv_seq_row.used is taken */
	uint64_t dropped_for_age, dropped_for_room; /* numbers of sequences dropped for either reason */
	uint64_t policy_generation;
	uint64_t segment_serial; /* last serial that was given to a segment or a sweep */
	uint64_t segment_bytes[SKV_MEMORY_KINDS]; /* bytes of all segments that are LIVE or pending, in each memory */
};

/*
 * Text returned by checks of the state that ran out of memory. Callers compare its address, because then the state may
 * be right.
 */
extern const char skv_no_memory[];

struct skv_state {
	int fd;
	const struct skv_state_header *header;
	uint64_t change; /* number of the current change; the first is 1 */
	struct skv_undo_seen seen[SKV_UNDO_SETS];
};
#define SKV_STATE_NULL {.fd = -1}

/* Creates and maps a state memfd of this geometry, with empty tables. -EINVAL: a size is 0 or beyond the id space. */
int skv_state_new(struct skv_state *, const struct skv_geometry *);
/*
 * Checks by its header whether the file `fd` (borrowed) is a state of this version. 0; -EBADMSG: it is not; another
 * negative errno: it cannot be read. *ret_why is a static text.
 */
int skv_state_check(int fd, const char **ret_why);
/* Maps the state in `fd` (consumed, also on failure). -EBADMSG, with a static text: it is no state of this version. */
int skv_state_map(struct skv_state *, int fd, const char **ret_why);
void skv_state_deinit(struct skv_state *);

/* Returns element `index` of a table. An index out of range is a bug or a broken state: the daemon aborts. */
static inline const void *skv_state_at(const struct skv_state *s, enum skv_table t, uint64_t index)
{
	const struct skv_state_header *h = s->header;

	assert(index < h->elements[t]);
	return (const char *)h + h->offset[t] + index * h->element_bytes[t];
}

/* Takes a row of a table; the row is zeroed and live. Returns its index; SKV_NO_INDEX: the table is full. */
uint32_t skv_state_take(struct skv_state *, enum skv_table);
void skv_state_give(struct skv_state *, enum skv_table, uint32_t index);

/* Convert the index of a live row to its id, and an id to the index of its live row; SKV_NO_INDEX: there is none. */
uint32_t skv_state_id(const struct skv_state *, enum skv_table, uint32_t index);
uint32_t skv_state_find(const struct skv_state *, enum skv_table, uint32_t id);

/* Returns the first live row from `index` on, or SKV_NO_INDEX. SKV_EACH() is a loop over all live rows of a table. */
uint32_t skv_state_next(const struct skv_state *, enum skv_table, uint32_t index);
#define SKV_EACH(i, s, t)                                                                                   \
	for (uint32_t i = skv_state_next(s, t, 0); i != SKV_NO_INDEX; i = skv_state_next(s, t, i + 1))

static inline const struct skv_account_row *skv_account_row(const struct skv_state *s, uint32_t i)
{
	return skv_state_at(s, SKV_TABLE_ACCOUNTS, i);
}
static inline const struct skv_client_row *skv_client_row(const struct skv_state *s, uint32_t i)
{
	return skv_state_at(s, SKV_TABLE_CLIENTS, i);
}
static inline const struct skv_session_row *skv_session_row(const struct skv_state *s, uint32_t i)
{
	return skv_state_at(s, SKV_TABLE_SESSIONS, i);
}
static inline const struct skv_seq_row *skv_seq_row(const struct skv_state *s, uint32_t i)
{
	return skv_state_at(s, SKV_TABLE_SEQUENCES, i);
}
static inline const struct skv_pool_row *skv_pool_row(const struct skv_state *s, uint32_t i)
{
	return skv_state_at(s, SKV_TABLE_POOLS, i);
}
static inline const struct skv_member *skv_member_row(const struct skv_state *s, uint32_t pool, uint32_t client)
{
	const struct skv_geometry *g = &s->header->geometry;

	return skv_state_at(s, SKV_TABLE_MEMBERS, (uint64_t)pool * g->max_clients + client);
}
static inline const struct skv_segment_row *skv_segment_row(const struct skv_state *s, uint32_t pool,
                                                      uint32_t segment)
{
	const struct skv_geometry *g = &s->header->geometry;

	return skv_state_at(s, SKV_TABLE_SEGMENTS, (uint64_t)pool * g->max_segments + segment);
}
static inline const uint8_t *skv_told(const struct skv_state *s, uint32_t pool, uint32_t client, uint32_t segment)
{
	const struct skv_geometry *g = &s->header->geometry;
	uint64_t member = (uint64_t)pool * g->max_clients + client;

	return skv_state_at(s, SKV_TABLE_TOLD, member * g->max_segments + segment);
}
static inline const skv_owner *skv_owner_word(const struct skv_state *s, uint32_t pool, uint32_t page)
{
	assert(page < s->header->geometry.max_pages);
	return skv_state_at(s, SKV_TABLE_PAGES, pool * s->header->geometry.max_pages + page);
}

/* The skv_write functions return an element for writing until the next commit; they save its old bytes (undo.h). */
static inline struct skv_state_header *skv_write_header(struct skv_state *s)
{
	return skv_undo_save(s, s->header, sizeof(*s->header));
}
static inline struct skv_account_row *skv_write_account(struct skv_state *s, uint32_t i)
{
	return skv_undo_save(s, skv_account_row(s, i), sizeof(struct skv_account_row));
}
static inline struct skv_client_row *skv_write_client(struct skv_state *s, uint32_t i)
{
	return skv_undo_save(s, skv_client_row(s, i), sizeof(struct skv_client_row));
}
static inline struct skv_session_row *skv_write_session(struct skv_state *s, uint32_t i)
{
	return skv_undo_save(s, skv_session_row(s, i), sizeof(struct skv_session_row));
}
static inline struct skv_seq_row *skv_write_seq(struct skv_state *s, uint32_t i)
{
	return skv_undo_save(s, skv_seq_row(s, i), sizeof(struct skv_seq_row));
}
static inline struct skv_pool_row *skv_write_pool(struct skv_state *s, uint32_t i)
{
	return skv_undo_save(s, skv_pool_row(s, i), sizeof(struct skv_pool_row));
}
static inline struct skv_member *skv_write_member(struct skv_state *s, uint32_t pool, uint32_t client)
{
	return skv_undo_save(s, skv_member_row(s, pool, client), sizeof(struct skv_member));
}
static inline struct skv_segment_row *skv_write_segment(struct skv_state *s, uint32_t pool, uint32_t segment)
{
	return skv_undo_save(s, skv_segment_row(s, pool, segment), sizeof(struct skv_segment_row));
}
/* Returns what a client was told of n adjacent segments, for writing. */
static inline uint8_t *skv_write_told(struct skv_state *s, uint32_t pool, uint32_t client, uint32_t segment, uint32_t n)
{
	return skv_undo_save(s, skv_told(s, pool, client, segment), n);
}
/* Returns the owner words of n adjacent pages, for writing. */
static inline skv_owner *skv_write_owners(struct skv_state *s, uint32_t pool, uint32_t page, uint32_t n)
{
	return skv_undo_save(s, skv_owner_word(s, pool, page), n * sizeof(skv_owner));
}

#endif
