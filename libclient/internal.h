/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/internal.h - how the parts of libsparsekv-client see each other.
 *
 *   error.c    the thread's last error
 *   conn.c     the socket: requests with serials and deadlines, notices, what to do with late replies
 *   connect.c  skv_connect, skv_disconnect
 *   pool.c     address ranges: page id x page size is an address
 *   stock.c    free pages on lease, asked for ahead of need
 *   session.c  skv_open, skv_close, statistics
 *   seq.c      sequences: new, attach, fork, detach, drop
 *   step.c     begin (admission, copy-on-write), end (commit), abort
 *   attend.c   one layer: append, attention as planned
 *   policy.c   plugins, specs, plans, hooks, the swap
 *   prims.c    the primitives that hooks call
 *   device.c   what a session on a device has besides, steps that run later
 *   replay.c   recorded attends
 *   looked.c   what a layer looked at, for who asks
 *
 * Locks. session->lock guards a session, its sequences, stock and step; client->lock guards the socket,
 * requests, pools and the plugin cache. A session's lock is taken first. Nobody waits for the daemon
 * with client->lock held, so sessions do not wait for each other.
 */
#ifndef SKV_CLIENT_INTERNAL_H
#define SKV_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sparsekv/client.h>
#include <sparsekv/policy.h>

#include "common/seqmem.h"
#include "common/wire.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

/* ---- error.c --------------------------------------------------------------------------------- */

/* Set the thread's last error to the text and return `error`, a negative errno. */
int fail(int error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- conn.c ---------------------------------------------------------------------------------- */

/* A request that was sent, or waits to be sent, until its reply is dealt with. */
struct request {
	struct request *next;
	uint32_t serial;
	uint16_t type;
	bool done;       /* a reply is in, or none will come: see `error` */
	bool orphan;     /* nobody will look at the reply: it is undone and freed when it comes */
	bool then_close; /* an orphaned LEASE_GET of a session that waits to be closed */
	uint32_t session;
	uint32_t device;         /* OPEN: of the model */
	struct pool *pool;       /* OPEN, when it succeeded, and CLOSE */
	int error;              /* 0, or negative errno ... */
	char text[SKV_TEXT_MAX]; /* ... and why */
	void *body;             /* of the reply, well-formed for its type; owned */
	int fds[SKV_WIRE_MAX_FDS]; /* owned; -1 once taken */
};

struct early_segment;
struct out;

struct skv_client {
	pthread_mutex_t lock;
	pthread_cond_t news; /* a request was completed, or nobody polls the socket any more */
	int fd;
	_Atomic uint32_t timeout_ms;
	bool polling;             /* a thread sleeps on the socket; it alone reads from it */
	bool debug;               /* SPARSEKV_DEBUG=wire */
	bool welcome;             /* HELLO was answered */
	uint32_t serial;
	int broken;               /* 0, or the negative errno that all calls get from now on */
	bool expelled;            /* the daemon said why it hangs up: our pages are not ours any more */
	uint64_t alive_at_end;    /* control->alive when the connection ended */
	char broken_text[SKV_TEXT_MAX];
	struct request *requests; /* without a reply so far */
	struct out *out, **out_end; /* packets that the socket did not take yet */
	char *packet;             /* SKV_WIRE_MAX bytes to receive into */

	const struct skv_control_page *control;
	size_t control_bytes;
	struct pool *pools;
	struct early_segment *early; /* announced before the pool's shape was known */
	struct plugin *plugins;
	struct skv_session *sessions;
};

/*
 * Send a request, or queue it when the socket is full; never blocks. *ret is the caller's until
 * request_free or conn_orphan; with ret NULL the reply is of no interest (a refusal breaks the
 * connection if it means that daemon and client disagree about pages). -ENOMEM, or why the connection ended.
 */
int conn_post(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

/* The same, with client->lock held. */
int conn_post_locked(struct skv_client *c, uint16_t type, const void *body, size_t bytes,
                     struct request **ret);

/* CLOSE a session of the pool. */
int conn_close_session_locked(struct skv_client *c, uint32_t session, struct pool *pool,
                              struct request **ret);

/*
 * Wait for the reply until `deadline` (now_ms). 0: it is in (see ->error); -ETIMEDOUT. The request stays
 * the caller's.
 */
int conn_wait(struct skv_client *c, struct request *r, int64_t deadline);

/* Tell the daemon that this is the end, and wait until it has settled what was ours. */
void conn_hang_up(struct skv_client *c);

/*
 * Post, wait as long as skv_set_timeout says, free on failure, with the last error set. Success leaves a
 * reply without error.
 */
int conn_call(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

/* Send what is queued and take what has come, without waiting. */
void conn_turn(struct skv_client *c);

/* Is everything sent? Then a request may be posted without growing the queue. */
bool conn_all_sent(struct skv_client *c);

/* Nobody waits for the request any more (NULL is fine). */
void conn_orphan(struct skv_client *c, struct request *r);
bool request_done(struct skv_client *c, const struct request *r);
struct request *request_free(struct request *r);
int request_take_fd(struct request *r, unsigned i);

/* The daemon broke the protocol, or the two disagree: fail all that needs the daemon from now on. */
void conn_break_locked(struct skv_client *c, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Are the pages that we hold still ours? They are while the daemon is there, and after its death. */
int conn_check_pages(struct skv_client *c);

int64_t now_ms(void);
int64_t conn_deadline(const struct skv_client *c);

/* ---- pool.c ---------------------------------------------------------------------------------- */

struct pool {
	struct pool *next;
	uint32_t id, pages_per_segment, max_segments;
	uint64_t page_bytes, segment_bytes;
	uint32_t sessions;
	uint8_t *base; /* where page 0 is, or would be */
	bool reserved; /* from there on, addresses for all segments */
	const struct skv_backend *backend; /* NULL: host memory */
	unsigned device;                   /* of the backend */
	struct pool_segment {
		bool mapped;
		uint32_t held; /* pages in it that stocks and tables of this process refer to */
		/* on a device: page numbers of its first page for kernels, to write and to read only */
		uint32_t own, shared;
		void *ipc; /* where an older handle was opened, else NULL */
	} *segments;
};

/* All need client->lock. */
/* One more session on the pool that the daemon describes. 0, or -EPROTO, -ENOMEM with a text. */
/* `device` as in struct skv_model; its backend is loaded. */
int pool_open(struct skv_client *c, const struct skv_msg_open_ok *ok, uint32_t device, struct pool **ret,
              char *err, size_t err_len);
/* One less; with the last the daemon takes all segments as unmapped. NULL is ignored. */
void pool_close(struct skv_client *c, struct pool *p);
/* Consumes fd. Without one, `m` has a handle. */
void pool_segment_add(struct skv_client *c, const struct skv_msg_segment_ipc *m, int fd);
void pool_segment_gone(struct skv_client *c, const struct skv_msg_segment *m);
bool pool_has(const struct pool *p, uint32_t page); /* in a mapped segment? */
bool pool_hold(struct pool *p, uint32_t page);      /* false: it is not */
void pool_unhold(struct pool *p, uint32_t page);
/* The page's number for kernels, which have it at base + number * page_bytes; it must be held. Needs no lock then. */
uint32_t pool_place(const struct pool *p, uint32_t page, bool shared);
void pools_free(struct skv_client *c);

/* ---- stock.c --------------------------------------------------------------------------------- */

struct stock {
	uint32_t *ids; /* free pages, a stack */
	uint32_t n, cap;
	uint64_t leased;     /* free or in tables: at most cap, so a push never allocates */
	uint32_t demand;     /* what one step may take at most, decaying */
	uint32_t n_release;  /* shared pages that sequences gave up and the daemon was not told of */
	uint32_t pause;      /* steps until the next request after a refusal */
	struct request *get; /* LEASE_GET on its way, or its reply not taken yet */
	struct skv_msg_runs *msg; /* with room for SKV_WIRE_MAX_RUNS runs */
};

int stock_init(struct skv_session *s);
void stock_deinit(struct skv_session *s);
/* `n` more pages of this session's tables are on lease: a push of each must fit. */
int stock_grow(struct skv_session *s, uint64_t n);
/* At least `need` pages in stock, waiting if it must. */
int stock_reserve(struct skv_session *s, uint32_t need);
/* Ahead of need: ask for more, give surplus and released pages back; never waits. */
void stock_tend(struct skv_session *s, uint32_t demand);
/* Everything back, as far as the daemon can be reached; for the end of a session. */
void stock_return(struct skv_session *s);
/*
 * Post LEASE_PUT or SEQ_RELEASE of these pages, in as many messages as it takes; sorts them, returns how
 * many were told.
 */
uint32_t stock_post(struct skv_session *s, uint16_t type, uint32_t seq, uint32_t *ids, uint32_t n);
/* Tell of the shared pages that the sequence gave up; only while the socket takes them unless `flush`. */
void stock_release(struct skv_seq *q, bool flush);

static inline uint32_t stock_pop(struct stock *st)
{
	return st->ids[--st->n];
}
static inline void stock_push(struct stock *st, uint32_t page)
{
	st->ids[st->n++] = page;
}

/* ---- policy.c, prims.c ----------------------------------------------------------------------- */

/* A file of the daemon, loaded; cached in the client, shared by its sessions. */
struct plugin {
	struct plugin *next;
	uint32_t id;
	unsigned users;
	void *handle;
	const struct skv_policy *block;
};

/* A policy as a session runs it. */
struct policy {
	struct plugin *plugin;
	const struct skv_policy *block;
	uint64_t generation;
	void *config;
	char given[SKV_SPEC_MAX]; /* spec as the daemon gave it ... */
	char *spec;               /* ... and with every value */
	bool unites[SKV_MAX_LAYERS]; /* its hooks asked for the layer's union: one list, in every step, also when replayed */
	uint32_t n_bounds;      /* layers that keep bounds of their pages, so have state pages */
	struct skv_plan plan[]; /* n_layers */
};

static inline bool plan_keeps_bounds(const struct skv_plan *plan)
{
	return plan->evidence & SKV_EV_BOUNDS;
}

/* Where a hook is: primitives check that they are called where they make sense. */
enum phase { PHASE_NONE, PHASE_ADOPT, PHASE_BEFORE, PHASE_AFTER, PHASE_END };

/* fd is borrowed */
int policy_load(struct skv_session *s, const struct skv_msg_policy *m, int fd, struct policy **ret);
struct policy *policy_free(struct skv_client *c, struct policy *p);
void policy_ack(struct skv_session *s, uint64_t generation, int error, const char *text);
/* Pick up a swap, if there is one. */
void policy_follow(struct skv_session *s);
/* Make the sequence one of the session's policy; 0 or a negative errno with the last error set. */
int policy_take_over(struct skv_session *s, struct skv_seq *q);
void policy_start(struct skv_session *s, struct skv_seq *q); /* a new, empty one */
void policy_hook(struct skv_session *s, enum phase phase, uint32_t layer);
void plugins_free(struct skv_client *c);

extern const struct skv_prims policy_prims;
void policy_misuse(struct skv_session *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- step -------------------------------------------------------------------------------------- */

/* Evidence and selection of one layer in the open step. */
struct selection {
	bool has_evidence; /* made in this step */
	uint32_t made;     /* 0, SKV_ATTEND_PAGES or SKV_ATTEND_TOKENS */
	struct skv_select select; /* by which the layer itself chooses, if it does */
	struct skv_evidence evidence;
	struct skv_list list;
};

struct step {
	bool open;
	uint32_t cap;
	uint32_t rows; /* of all items */
	uint32_t next_layer;
	const void *q; /* of the layer that attends */
	struct skv_seq **seqs; /* [cap]: those that decode come first */
	uint32_t *item;        /* [cap]: the caller's index of seqs[i] */
	struct skv_kseq *kseq; /* [cap]: seqs[i] for the kernels */
	/* parts of kseq, or of the device's copy of it */
	struct skv_batch all, decoding, prompts;
	struct skv_work work;  /* with room for the kernels */
	struct selection *selection; /* [n_layers] */
	void *arena;           /* what the selections point into */
	size_t arena_bytes;
};

/* ---- device.c -------------------------------------------------------------------------------- */

#define DEVICE_SLOTS 4u /* steps that the host may be ahead */

/* A step on its way: pinned memory, and what it is to be remembered for when it has run. */
struct device_slot {
	bool busy;
	void *event; /* recorded behind its end */
	void *mem;   /* pinned, what the next four point into */
	size_t bytes;
	struct skv_kseq *kseq;       /* [n] */
	struct skv_entry *entry;     /* [n_entries] */
	struct skv_publish *publish; /* [n] */
	uint64_t *sum;               /* [n]: the attended counters */
	uint32_t n, n_decode, n_entries, cap;
	uint64_t n_evict; /* entries that its commits take away ... */
	bool staged;      /* ... and the device's tables have the holes, or will have at that time */
	struct skv_seq **seqs;       /* [n] of room for cap; none of them goes before the step has run */
};

/* Recordings of the layers; see replay.c. */
struct replay {
	uint64_t key;        /* of the open step, or the last one; 0: it cannot be replayed */
	uint64_t layers_key; /* of the steps that the layers were seen in */
	struct replay_layer *layer, *behind; /* [n_layers]; the one whose hooks did not run last, or NULL */
	void *recorder; /* a stream, made when it is needed */
	bool recorded;
	uint32_t tries; /* to record, under this key */
};

struct device {
	const struct skv_backend *backend;
	unsigned number; /* of the backend */
	struct skv_device_info info;
	/* [cap], the device's: what the kernels of a step read, and what they count */
	struct skv_kseq *kseq;
	uint64_t *attended;
	uint32_t cap;
	struct device_slot slot[DEVICE_SLOTS];
	uint32_t next; /* slot of the open step, or of the next one */
	/* entries within the committed length that the device's tables do not show as they are */
	struct device_stale {
		struct skv_seq *seq;
		uint32_t table, page;
	} *stale;
	uint32_t n_stale;
	uint64_t cap_stale;
	struct replay replay;
};

/* Set the last error from the backend's, and return `error`. */
int device_failed(const struct device *d, int error, const char *what);

/* The kernels and the device of the session's model. */
int device_open(struct skv_session *s);
void device_close(struct skv_session *s);
/* Work on the session's device, and put back what was current; nothing on host memory. */
int device_enter(struct skv_session *s, void **ret_was);
void device_leave(struct skv_session *s, void *was);
/* Memory of the device, zeroed, in place of what there was; *mem is NULL after a failure. */
int device_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need);
int device_grow_batch(struct skv_session *s, uint32_t n);
int device_check(struct skv_session *s); /* did all launches succeed? */
int device_wait(struct skv_session *s);  /* for the stream of the step */
/* Take note of the steps that have run; waits for one if the host is too far ahead. The device is entered. */
int device_turn(struct skv_session *s);
/* Wait for all steps, and take note; the device need not be entered. */
int device_settle(struct skv_session *s);
bool device_evicts(const struct skv_session *s); /* are there evictions whose commits were not seen? */
int device_seq_open(struct skv_seq *q);
int device_seq_refresh(struct skv_seq *q); /* the daemon changed the tables */
void device_seq_close(struct skv_seq *q);
/*
 * A step, from its beginning to its end. prepare() makes room for so many entries: entry() notes one of this step down,
 * stale() one that is true whatever becomes of the step. Both do nothing on host memory.
 */
int device_prepare(struct skv_session *s, uint32_t entries);
void device_entry(struct skv_seq *q, uint32_t table, uint32_t page);
void device_stale(struct skv_seq *q, uint32_t table, uint32_t page);
int device_stage(struct skv_session *s);
int device_not_recording(struct skv_session *s); /* -EBUSY: the step's stream is being recorded */
int device_publish(struct skv_session *s, const int32_t *next); /* on failure nothing has changed */

/* ---- replay.c -------------------------------------------------------------------------------- */

int replay_init(struct device *d, uint32_t n_layers);
void replay_free(struct device *d, uint32_t n_layers); /* the device is entered */
/* The step is laid out: its key, and recordings of its layers if it is time to make them. */
void replay_begin(struct skv_session *s);
/* 1: the layer was replayed. 0: attend as it comes. */
int replay_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a);

/* ---- session, sequence ----------------------------------------------------------------------- */

struct skv_session {
	pthread_mutex_t lock;
	struct skv_client *client;
	struct skv_session *next; /* under client->lock */
	uint32_t id;
	uint64_t serial; /* of this process: no two sessions ever have the same */
	struct skv_model model;
	struct pool *pool;
	struct skv_shape shape; /* of layer 0 */
	const struct skv_kernels *kernels;
	struct device *device; /* NULL: host memory */
	struct skv_session_page *page;
	size_t page_bytes;
	struct skv_seq *seqs;
	uint32_t n_seqs;
	struct stock stock;
	struct step step;

	struct policy *policy;
	enum phase phase;
	uint32_t hook_layer; /* whose before() or after() it is */
	void *adopting_state;
	bool misused;
	char misuse[256];
	uint64_t seen_generation; /* of the control page, when POLICY_GET was last asked */
	struct request *policy_get;
	char policy_error[SKV_TEXT_MAX];

	struct skv_stats stats;
};

struct skv_seq {
	struct skv_session *session;
	struct skv_seq *next, **prev;
	uint32_t id;
	bool named;
	struct skv_seqmem *mem;
	struct skv_seqmem_layout layout;
	/* committed, on a device as soon as it is queued; kept here so that shared memory is not believed twice */
	uint32_t len, epoch;
	uint64_t n_shared;   /* entries, of all layers */
	uint32_t *holes;     /* [n_layers] */
	/* [n_layers]: pages [from, to) are holes, or will be with this commit: no need to look again */
	struct span {
		uint32_t from, to;
	} *gone;
	uint32_t *release; /* shared pages given up, to be told; room for all that the tables have */
	uint32_t n_release, cap_release;
	struct request *fork; /* a fork without an answer so far: the table may change under us */
	uint64_t attended, causal;
	/* addresses there of the tables' copy, of the header and of the token ids */
	struct {
		skv_pte *table;
		struct skv_seqmem *mem;
		int32_t *tokens;
	} on_device;
	bool evicting; /* a device has the journal's commit before it: no other journal until that is seen */

	/* the open step */
	bool in_step;
	uint32_t n_new;        /* tokens */
	/* id of the first of them: tokens[len] still shows the last commit's next, which it is without has_first */
	int32_t first;
	bool has_first;
	uint32_t n_evict;      /* entries in the journal, not yet counted there */
	uint64_t step_attended; /* tokens, once for each q head */
	bool state_torn;       /* the policy's state was touched in a step that was given up */
	/*
	 * It has the state pages that its policy wants, with the bounds of all that is committed. Without it, it has
	 * none: the next step supplies them.
	 */
	bool bounded;
};

static inline skv_pte *seq_table(const struct skv_seq *q, uint32_t table)
{
	return skv_seqmem_table(q->mem, &q->layout, table);
}

/* Entries of a layer's state table that so many tokens take: a state page has the bounds of SKV_PAGE_TOKENS pages. */
static inline uint32_t state_pages_of(uint32_t tokens)
{
	return skv_pages_of(skv_pages_of(tokens));
}

/* It no longer refers to a page that it shared; stock_release() tells. */
static inline void seq_give_up(struct skv_seq *q, uint32_t page)
{
	q->release[q->n_release++] = page;
	q->n_shared--;
	q->session->stock.n_release++;
}

static inline struct skv_shape layer_shape(const struct skv_session *s, uint32_t layer)
{
	struct skv_shape shape = s->shape;

	shape.layer = layer;
	shape.state = s->model.n_layers + layer;
	shape.notes = 2 * s->model.n_layers + layer;
	return shape;
}

/* Free what a session and its sequences have here, without a word to the daemon. */
void session_free(struct skv_session *s);
void seq_free(struct skv_seq *q);
/*
 * The pages of one kind in its tables are of no more use here. To be said before the daemon is told that
 * they are free: from then on it may withdraw their segments at any moment.
 */
void seq_unhold(struct skv_seq *q, enum skv_pte_kind kind);
void seq_take_own(struct skv_seq *q); /* its own pages, still on lease, into the stock */
/* Take its state pages out of entries [from, end). Nothing that runs may need them. */
void seq_drop_state(struct skv_seq *q, uint32_t from, uint32_t end);
/* Has a fork that timed out been answered by now? Then the table is looked at again. 0, or -ETIMEDOUT. */
int seq_settle_fork(struct skv_seq *q);
uint64_t seq_resident(const struct skv_seq *q); /* pages, of all layers */
/*
 * Carry out the committed journal: entries become holes, their pages are free for the next step. `stale`: the tables
 * of the device show nothing of it so far.
 */
void seq_carry_out(struct skv_seq *q, bool stale);
/* A decoding row at this length looked at so many tokens, each counted once for each kv head. */
void seq_attended(struct skv_seq *q, uint32_t len, uint64_t tokens);

/* Append and attend, as planned. The arguments have been looked at. */
void attend_layer(struct skv_session *s, uint32_t layer, const struct skv_attn *a);
/* Evidence and lists for the decoding sequences of the step. */
int selections_prepare(struct skv_session *s);
void step_abort(struct skv_session *s);
/* Scratch that grows: `need` bytes of the session's memory at least. The contents are lost. */
int step_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need);
void step_deinit(struct skv_session *s);

#endif
