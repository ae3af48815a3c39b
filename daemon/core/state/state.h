/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/state.h - the state memfd: what must outlive the process, and nothing else.
 *
 * One sealed, sparse memfd of a fixed size: a header, then plain tables of plain rows that refer to each other by
 * index. It contains no pointer, no fd and nothing that can be derived from the rest (except counts, which
 * skv_core_balance() recounts). What a process keeps beside it (maps, fds) is indexed the same way; the names under
 * which those fds are stored follow from the rows (fdstore.h).
 *
 * Sizes follow from the geometry alone. The header repeats them, and skv_state_map() accepts a header only when both
 * agree. The tables are sized for the worst case; only pages that were touched cost memory.
 *
 * The memory is constant except through undo.h, which makes sure that a change is complete or absent.
 *
 * Rows of the tables from accounts to pools are taken and given back; they begin with a skv_row. A free row is on its
 * table's free list, or beyond `high` and was never used. A row's generation is incremented with each use, so that the
 * id of a row that was given back never names its successor (for up to 65,535 uses).
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
 * A state of another version is refused. Reading one would take: its element_bytes; a copy of each row into a new
 * state, after its undo log was applied in its own layout; fields in the middle of rows (skv_model) that do not grow;
 * and two names for states in the store (fdstore.h), because the old state may be removed only after the new one was
 * added, and removing a name removes all files of that name.
 */
#define SKV_STATE_MAGIC 0x3154415453564b53ull /* "SKVSTAT1" */
#define SKV_STATE_VERSION 13u
#define SKV_NO_INDEX UINT32_MAX

/* ---- owner words ----------------------------------------------------------------------------- */

/* The kind is in the top two bits; the rest is a row index (LEASE: client, SEQ: sequence) or a count (SHARED). */
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
	uint32_t next_free; /* index + 1, if not live */
	uint32_t reserved;
};

/*
 * Identity of the file that is a row's memory, from fstat(). Names in a store may be wrong or swapped, and no user may
 * get another user's memory.
 */
struct skv_file_id {
	uint64_t dev, ino;
};

struct skv_account_row {
	struct skv_row row;
	uint32_t uid;
	uint32_t clients, sessions, sequences, pools;
	uint32_t reserved;
	uint64_t page_bytes[SKV_MEMORY_KINDS]; /* of pages that are not FREE */
	uint64_t other_bytes; /* other host memory: charge.h */
	uint64_t copied_bytes; /* copied for its sequences by forks: sum of skv_seq_row.copied */
};

struct skv_client_row {
	struct skv_row row;
	uint32_t account;
	int32_t pid;
	uint32_t sessions;
	uint32_t notices; /* segments that the client has still to be told of */
	/* its connection ended: nothing that it has is given to another client before its process is gone */
	uint32_t fenced;
	uint32_t kept;    /* a descriptor of its process was stored */
	struct skv_file_id file; /* of that descriptor */
	uint64_t bytes;   /* charged for its connection */
	char program[SKV_NAME_MAX];
};

/* A policy as requested. */
struct skv_choice {
	uint64_t generation;
	uint32_t plugin;
	uint32_t reserved;
	char spec[SKV_SPEC_MAX];
};

struct skv_session_row {
	struct skv_row row;
	uint32_t client, pool;
	uint32_t sequences;
	uint32_t reserved;
	struct skv_file_id file; /* of its page */
	struct skv_model model;
	struct skv_choice wanted;  /* by the operator, or by the client at open */
	struct skv_choice given;   /* last given to the client */
	struct skv_choice running; /* as the client said */
	char error[SKV_TEXT_MAX];  /* of the last swap that failed */
};

struct skv_seq_row {
	struct skv_row row;
	uint32_t account, pool;
	uint32_t session; /* holder, or SKV_NO_INDEX */
	uint32_t max_tokens;
	uint32_t pages;    /* pages with owner word SEQ(this) */
	uint32_t refs;     /* references to shared pages */
	uint32_t referred; /* 1 if it ever had a reference */
	uint32_t fresh;    /* 1 if its holder made it and has held it since */
	uint64_t bytes;         /* charged for its memory and references */
	uint64_t copied;        /* of a fork: bytes that the daemon wrote */
	/* last use: value of the header's counter `uses`, larger than that of all earlier uses */
	uint64_t used;
	uint64_t idle_since_ns; /* when it was first seen without a holder; 0: not yet */
	struct skv_file_id file; /* of its memory */
	struct skv_model model;
	char name[SKV_NAME_MAX]; /* "": anonymous */
};

struct skv_pool_row {
	struct skv_row row;
	uint32_t account;
	uint32_t device; /* memory kind, as skv_model.device */
	uint32_t pages_per_segment, max_segments;
	uint32_t sessions, sequences; /* the pool exists while either is not 0 */
	uint32_t segments;           /* LIVE segments */
	uint32_t empty;              /* LIVE segments all of whose pages are FREE */
	uint32_t high;               /* segment numbers from here on were never used */
	uint32_t pending, wanted;     /* WANTED and STARTED segments; WANTED segments alone */
	uint32_t leaving;             /* segments of host memory that are being given back */
	/* ranges of strays being given back by the sweep with sweep_serial: memory written where no segment is */
	uint32_t sweeping;
	uint32_t reserved;
	uint64_t sweep_serial;
	uint64_t stray_bytes; /* charged for memory where no segment is */
	uint64_t page_bytes, segment_bytes;
	/* of its memory; none on a device, whose driver exports segments without an inode of their own */
	struct skv_file_id file;
	uint64_t count[SKV_OWNER_KINDS]; /* pages by kind of owner */
};

/* A client in a pool; at [pool][client]. */
struct skv_member {
	uint32_t sessions; /* 0: not a member */
	uint32_t lease;    /* pages with owner word LEASE(client) */
	uint32_t first_untold; /* segments before it have nothing to announce */
	uint32_t reserved;
};

enum skv_segment_state {
	SKV_SEGMENT_NONE = 0,  /* no memory; the number can be used */
	SKV_SEGMENT_LIVE = 1,
	/* being withdrawn: in host memory until its memory was given back, on a device until clients acknowledge */
	SKV_SEGMENT_LEAVING = 2,
	SKV_SEGMENT_WANTED = 3,  /* to be created outside the core; counted as memory */
	SKV_SEGMENT_STARTED = 4,  /* being created; counted as memory */
};
/* At [pool][segment]. */
struct skv_segment_row {
	uint32_t state;
	uint32_t free;    /* free pages, if LIVE */
	uint32_t waiting; /* clients that have to acknowledge, if LEAVING; 0 in host memory */
	uint32_t longest; /* upper bound of the length of runs of FREE pages */
	uint64_t serial; /* taken from the header's segment_serial */
};

/* What a client was told of a device's segment or, at segment 0, of host memory; at [pool][client][segment]. */
enum skv_told {
	SKV_TOLD_NOTHING = 0,
	SKV_TOLD_LIVE = 1,     /* announced */
	SKV_TOLD_GONE_DUE = 2, /* announced; its end is still to be announced */
	SKV_TOLD_GONE = 3,     /* its end was announced, not acknowledged */
	SKV_TOLD_AGAIN = 4,    /* announced by the previous daemon; to be announced again */
};

/* ---- the memfd ------------------------------------------------------------------------------- */

enum skv_table {
	SKV_TABLE_ACCOUNTS,
	SKV_TABLE_CLIENTS,
	SKV_TABLE_SESSIONS,
	SKV_TABLE_SEQUENCES,
	SKV_TABLE_POOLS,
	SKV_TABLE_ROWS, /* the tables above are of rows that are taken and given back */
	SKV_TABLE_MEMBERS = SKV_TABLE_ROWS,
	SKV_TABLE_SEGMENTS,
	SKV_TABLE_TOLD,
	SKV_TABLE_PAGES,
	SKV_TABLE_REFS, /* uint64_t, [sequence][skv_ref_words()]: a bit for each page to which the sequence refers */
	SKV_TABLE_UNDO, /* uint64_t: undo.h */
	SKV_TABLE_COUNT,
};

struct skv_geometry {
	uint32_t max_clients, max_sessions, max_sequences, max_pools;
	uint32_t max_segments;   /* of a pool */
	uint32_t reserved;
	uint64_t max_pages; /* of a pool */
	uint64_t segment_bytes; /* of host memory: as configured */
	uint64_t pool_bytes;    /* of host memory: limit up to which it can be raised */
};

/*
 * Words of a sequence's row of references, a bit for each page. Rounded up to whole memory pages, so that a row can be
 * given back.
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
	/* tables whose rows are taken and given back */
	uint32_t free[SKV_TABLE_ROWS]; /* index + 1 */
	uint32_t high[SKV_TABLE_ROWS]; /* rows from here on were never used */
	uint32_t live[SKV_TABLE_ROWS];
	uint32_t plugins; /* ids given to policy files so far */
	uint64_t uses; /* counts uses of sequences */
	uint64_t dropped_for_age, dropped_for_room; /* sequences */
	uint64_t policy_generation;
	uint64_t segment_serial; /* of the last segment that was made or wanted */
	uint64_t segment_bytes[SKV_MEMORY_KINDS]; /* of all segments that have memory or are pending */
};

/* Text returned by checks of the state that ran out of memory, compared by address: the state may be right. */
extern const char skv_no_memory[];

struct skv_state {
	int fd;
	const struct skv_state_header *header;
	uint64_t change; /* number of the current change, from 1 */
	struct skv_undo_seen seen[SKV_UNDO_SETS];
};
#define SKV_STATE_NULL {.fd = -1}

/* Creates a memfd for these sizes and maps it; every table is empty. -EINVAL for a size of 0 or beyond the id space. */
int skv_state_new(struct skv_state *, const struct skv_geometry *);
/*
 * Does the header of file `fd` (borrowed) say that it is a state of this version? 0, or negative errno with a text;
 * -EBADMSG: it is not.
 */
int skv_state_check(int fd, const char **ret_why);
/* Maps the state in `fd` (consumed, also on failure). -EBADMSG with a static text: not a state of this version. */
int skv_state_map(struct skv_state *, int fd, const char **ret_why);
void skv_state_deinit(struct skv_state *);

/* Element `index` of a table. An index out of range is a bug or a broken state: the daemon aborts. */
static inline const void *skv_state_at(const struct skv_state *s, enum skv_table t, uint64_t index)
{
	const struct skv_state_header *h = s->header;

	assert(index < h->elements[t]);
	return (const char *)h + h->offset[t] + index * h->element_bytes[t];
}

/* Takes a row: zeroed and live. Returns its index, or SKV_NO_INDEX if the table is full. */
uint32_t skv_state_take(struct skv_state *, enum skv_table);
void skv_state_give(struct skv_state *, enum skv_table, uint32_t index);

/* Ids of clients, sessions and sequences: the id of a live row, and the live row of an id, or SKV_NO_INDEX. */
uint32_t skv_state_id(const struct skv_state *, enum skv_table, uint32_t index);
uint32_t skv_state_find(const struct skv_state *, enum skv_table, uint32_t id);

/* The first live row from `index` on, or SKV_NO_INDEX; and a loop over all live rows. */
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

/* The same for writing, until the next commit. */
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
/* Of n adjacent segments. */
static inline uint8_t *skv_write_told(struct skv_state *s, uint32_t pool, uint32_t client, uint32_t segment, uint32_t n)
{
	return skv_undo_save(s, skv_told(s, pool, client, segment), n);
}
/* Of n adjacent pages. */
static inline skv_owner *skv_write_owners(struct skv_state *s, uint32_t pool, uint32_t page, uint32_t n)
{
	return skv_undo_save(s, skv_owner_word(s, pool, page), n * sizeof(skv_owner));
}

#endif
