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
 *   step.c     begin (admission), end (commit), abort
 *   layout.c   a step as the kernels see it
 *   pages.c    the pages of a step: supply, copy-on-write, eviction
 *   keep.c     which units of a layer live, from lengths alone
 *   coded.c    which tokens of a layer are packed, from lengths alone
 *   packs.c    when they are, and when unpacked
 *   codec.c    files of compressors
 *   packing.c  how a policy's layers pack, for the kernels
 *   packed.c   attention of layers that pack
 *   slots.c    layers that keep units: steps without tokens, kernels around attention
 *   attend.c   one layer: append, attention as planned
 *   prompt.c   rows of prompts that do not see all: what is kept of them, their lists, their attention
 *   policy.c   plugins, specs, plans, hooks, the swap
 *   prims.c    the primitives that hooks call
 *   device.c   what a session on a device has besides, steps that run later
 *   replay.c   recorded attends
 *   recall.c   how good the selections are, measured in one step of many
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
/* Pages that are set aside for prompts, those of the open step as it will leave them. */
uint64_t stock_ahead(const struct skv_session *s);
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

/* A policy as sequences run it: those of a session that are without their own, and any that were given it. */
struct policy {
	unsigned users;  /* the session, sequences */
	uint64_t serial; /* of this process: no two ever have the same */
	struct plugin *plugin;
	const struct skv_policy *block;
	uint64_t generation;
	void *config;
	char given[SKV_SPEC_MAX]; /* spec as the daemon gave it ... */
	char *spec;               /* ... and with every value */
	bool unites[SKV_MAX_LAYERS]; /* its hooks asked for the layer's union: one list, in every step, also when replayed */
	uint32_t n_bounds;      /* layers that keep bounds of their pages, so have state pages */
	uint32_t n_keep;        /* layers that keep units, so have notes ... */
	uint32_t n_keep_pages;  /* ... of them pages */
	uint32_t n_pack;        /* layers that pack */
	struct packing *packing; /* NULL: none does */
	struct reading *reading; /* how prompts attend that do not see all; NULL: they do */
	struct skv_plan plan[]; /* n_layers */
};

static inline bool plan_keeps_bounds(const struct skv_plan *plan)
{
	return plan->scores & SKV_SCORES_PAGE_BOUNDS;
}

/* Where a hook is: primitives check that they are called where they make sense. */
enum phase { PHASE_NONE, PHASE_ADOPT, PHASE_BEFORE, PHASE_AFTER, PHASE_END };

/* The policy that the daemon names, for one more user: loaded, or one that the session has. fd is borrowed. */
int policy_get(struct skv_session *s, const struct skv_msg_policy *m, int fd, struct policy **ret);
struct policy *policy_put(struct skv_client *c, struct policy *p); /* NULL is fine; returns NULL */
void policy_ack(struct skv_session *s, uint64_t generation, int error, const char *text);
/* Pick up a swap, if there is one. */
void policy_follow(struct skv_session *s);
/* Make the sequence one of the policy that it runs; 0 or a negative errno with the last error set. */
int policy_take_over(struct skv_seq *q);
void policy_start(struct skv_seq *q); /* a new, empty one */
/* The commit to come has what was written to the state in this step; death before it must show that it has not. */
void policy_state_of_commit(struct skv_seq *q);
struct group;
void policy_hook(struct skv_session *s, struct group *g, enum phase phase, uint32_t layer);
void plugins_free(struct skv_client *c);

extern const struct skv_prims policy_prims;
void policy_misuse(struct skv_session *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#include "step.h"

struct device;

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
	struct group *group; /* whose sequences attend, or whose hook runs; NULL in adopt() */
	enum phase phase;
	uint32_t hook_layer; /* whose before() or after() it is */
	void *adopting_state;
	bool misused;
	char misuse[256];
	const char *misuser; /* the policy's name */
	uint64_t seen_generation; /* of the control page, when POLICY_GET was last asked */
	struct request *policy_get;
	char policy_error[SKV_TEXT_MAX];

	struct skv_stats stats;
	int64_t recall_every; /* steps; -1: as the daemon says */
};

/* Steps without tokens, after which a sequence is the same and lies in another way. */
enum quiet {
	QUIET_NOT,
	QUIET_SETTLE, /* what lives moves down, until no slot below is free */
	QUIET_LIFT,   /* the page that is being filled is taken out from among the others, the next SETTLE puts it last */
	QUIET_NOTE,   /* notes as the policy wants them */
	QUIET_BIND,   /* bounds of all pages */
	QUIET_PACK,   /* older tokens are packed */
	QUIET_UNPACK, /* all that are packed become rows again */
};

struct skv_seq {
	struct skv_session *session;
	struct skv_seq *next, **prev;
	uint32_t id;
	bool named;
	struct policy *own; /* NULL: it runs the session's */
	struct skv_seqmem *mem;
	struct skv_seqmem_layout layout;
	/* committed, on a device as soon as it is queued; kept here so that shared memory is not believed twice */
	uint32_t len, epoch;
	uint64_t n_shared;   /* entries, of all layers */
	uint32_t about;      /* as in seqmem.h, with SKV_ABOUT_SLOTS ... */
	struct skv_layer_slots *slots; /* ... [n_layers] */
	struct skv_prompt prompt; /* with SKV_ABOUT_READING, which is there only if it attends as the policy says */
	uint64_t ahead;      /* pages that are set aside for what is still to come of it */
	bool gaps;           /* pages are missing below slots of a layer that keeps units: it is about to be settled */
	/* [n_layers]: pages [from, to) are holes, or will be with this commit: no need to look again */
	struct span {
		uint32_t from, to;
	} *gone;
	uint32_t *release; /* shared pages given up, to be told; room for all that the tables have */
	uint32_t n_release, cap_release;
	struct request *fork; /* a fork without an answer so far: the table may change under us */
	uint64_t attended, causal;
	uint64_t recall_layers; /* times that it was measured, and the sum of the figures */
	double recall_sum;
	/* addresses there of the tables' copy, of the header and of the token ids */
	struct {
		skv_pte *table;
		struct skv_seqmem *mem;
		int32_t *tokens;
		bool old; /* the copy shows pages that the tables do not name any more: made anew before the next step */
	} on_device;
	bool evicting; /* a device has the journal's commit before it: no other journal until that is seen */

	/* layers that pack: does the policy's do so with this sequence? Looked at when another policy takes it */
	bool packs, packs_known;
	struct packing *unpacking; /* in QUIET_UNPACK: how it was packed */

	/* the open step */
	bool in_step;
	uint32_t n_new;        /* tokens */
	uint32_t n_prompt_remaining;      /* and those of its prompt that are still to come */
	uint32_t next_about;   /* what its commit will say */
	struct skv_layer_slots *next_slots; /* [n_layers]; `extent`: the slots that the step has */
	struct skv_prompt next_prompt; /* where a prompt's rows are of one that began there */
	uint64_t next_ahead;
	enum quiet quiet;      /* without tokens, slots.c alone knows what for */
	bool takes;            /* pages: some table has not all that the step needs */
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

static inline struct policy *seq_policy(const struct skv_seq *q)
{
	return q->own ? q->own : q->session->policy;
}

static inline skv_pte *seq_table(const struct skv_seq *q, uint32_t table)
{
	return skv_seqmem_table(q->mem, &q->layout, table);
}

/* Entries of a table that count as of the last commit. */
static inline uint32_t seq_entries(const struct skv_seq *q, uint32_t table)
{
	return skv_seqmem_entries(&q->layout, table, q->len);
}

/* Does each layer have slots of its own number? */
static inline bool seq_by_layer(const struct skv_seq *q)
{
	return q->about & SKV_ABOUT_SLOTS || q->quiet;
}

/* As of the last commit the layer has no token in slots from here on. */
static inline uint32_t seq_extent(const struct skv_seq *q, uint32_t layer)
{
	return seq_by_layer(q) ? q->slots[layer].extent : q->len;
}

/* And the slots that the open step has. */
static inline uint32_t seq_reach(const struct skv_seq *q, uint32_t layer)
{
	return seq_by_layer(q) ? q->next_slots[layer].extent : q->len + q->n_new;
}

/* Entries of a layer's state table that so many tokens take: a state page has the bounds of SKV_PAGE_TOKENS pages. */
static inline uint32_t state_pages_of(uint32_t tokens)
{
	return skv_pages_of(skv_pages_of(tokens));
}

/* Some of a batch's sequences, under the same bounds. */
static inline struct skv_batch batch_part(struct skv_batch b, uint32_t first, uint32_t n)
{
	b.seq += first;
	b.n = n;
	return b;
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
	shape.state = skv_table(s->model.n_layers, SKV_GROUP_BOUNDS, layer);
	shape.notes = skv_table(s->model.n_layers, SKV_GROUP_NOTES, layer);
	shape.codes = skv_table(s->model.n_layers, SKV_GROUP_CODES, layer);
	shape.refs = skv_table(s->model.n_layers, SKV_GROUP_REFS, layer);
	shape.kept = skv_table(s->model.n_layers, SKV_GROUP_KEPT, layer);
	return shape;
}

static inline struct layer_class *layer_class(struct skv_session *s, uint32_t layer)
{
	return &s->step.class[s->step.class_of[layer]];
}

/* A group's sequences that decode, and those with rows of prompts, as the layer's kernels see them. */
static inline struct skv_batch group_decoding(struct skv_session *s, const struct group *g, uint32_t layer)
{
	return batch_part(layer_class(s, layer)->decoding, g->first, g->n);
}
static inline struct skv_batch group_prompts(struct skv_session *s, const struct group *g, uint32_t layer)
{
	return batch_part(layer_class(s, layer)->prompts, g->first_prompt - s->step.n_decode, g->n_prompts);
}

/* Number `at` of the step as the kernels of the layer see it. */
static inline const struct skv_kseq *layer_kseq(const struct skv_session *s, uint32_t layer, uint32_t at)
{
	return &s->step.kseq[(size_t)s->step.class_of[layer] * s->step.n + at];
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
/* Give up what is in an entry, which becomes what it is without a page. Nothing that runs may need the page. */
void seq_drop_page(struct skv_seq *q, uint32_t table, uint32_t page);
/* Has a fork that timed out been answered by now? Then the table is looked at again. 0, or -ETIMEDOUT. */
int seq_settle_fork(struct skv_seq *q);
uint64_t seq_resident(const struct skv_seq *q); /* pages, of all layers */
/* Has it the pages that its slots are in? 0, or -EBADMSG; looks for gaps. */
int seq_check_pages(struct skv_seq *q);

/* ---- pages.c: which pages a step takes, writes to and lets go -------------------------------- */

/*
 * Pages that a step takes, of them copies of shared ones, what one like it could take, and entries of holes; and
 * pages that its prompts will still take.
 */
struct pages {
	uint64_t need, copies, demand, holes, ahead;
};
int pages_count(struct skv_seq *q, struct pages *p);
/* No sequence of the step will write to a page that it shares. */
int pages_unshare(struct skv_session *s);
/* Room to note down so many pages of the step's. */
int pages_prepare(struct skv_session *s, uint64_t need);
/* Pages for what is missing; the stock has them. */
void pages_supply(struct skv_session *s, struct skv_seq *q);
/* They are in the stock again. */
void pages_undo(struct skv_session *s);
/* The page in this entry goes with the step's commit. False: the journal is full. */
bool pages_evict(struct skv_seq *q, uint32_t table, uint32_t page);
/* So do those that the sequence has beyond its slots, and what was kept of a prompt that is over with it. */
void pages_evict_surplus(struct skv_seq *q);
/* Nothing is kept of the prompt that was being read: what comes begins anew. The device, if any, is waited for. */
void pages_forget_prompt(struct skv_seq *q);
void pages_unpark(struct skv_seq *q); /* the entry beyond the committed length, after an attach and a settling */
/* Drop what a torn step has left in entries of no use; of bounds, what is beyond the layer's slots. Was there any? */
bool pages_trim(struct skv_seq *q);
/* Does the sequence have the pages that its slots are in? NULL, or what is wrong. Finds gaps. */
const char *pages_check(struct skv_seq *q);

/* ---- keep.c: which units of a layer live, from lengths alone --------------------------------- */

/*
 * What a step does to the slots of a layer, in which it has ks->len of them: keep, tally and pinned of `ks`, and what
 * the commit will say. `about`: of the last commit; `awake`: slots of it, and the new one.
 */
void keep_schedule(const struct skv_evict *k, uint32_t about, bool decodes, uint32_t awake, struct skv_kseq *ks,
                   struct skv_layer_slots *ret);

/* ---- slots.c: layers that keep units --------------------------------------------------------- */

/* Make slots and notes of the sequence what the policy's plans and the item want; commits steps of its own. */
int slots_ready(struct skv_session *s, struct skv_seq *q, bool prompt);
/* One step without tokens, of this kind. */
int slots_quiet(struct skv_session *s, struct skv_seq *q, enum quiet kind);
uint32_t slots_about(const struct skv_seq *q); /* what is known of a sequence after a quiet step */
/* Before the attention of a layer that keeps units: find room for what is new, and put it there. */
void slots_place(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_attn *a);

/* ---- prompt.c: rows of prompts that do not see all ------------------------------------------- */

/* How the policy's layers read prompts, if any does not see all. -ENOMEM. */
int reading_make(const struct skv_session *s, struct policy *p);
void reading_free(struct reading *r); /* NULL is fine */
/* Pages that the layer keeps of a prompt that is being read: of both sets. */
uint32_t reading_pages(const struct policy *p, uint32_t layer);
/* Is what was kept of the prompt that is being read what this policy goes on with? */
bool reading_fits(const struct skv_seq *q, const struct policy *p);
/* How the open step's commit will speak of the prompt, and what the kernels are told of it. */
uint32_t reading_about(struct skv_seq *q, bool prompt);
void reading_schedule(const struct skv_seq *q, struct skv_kseq *ks);
/* Lists for the prompts of the step, and what the kernels need besides. */
int reading_prepare(struct skv_session *s);
/* The attention of a group's prompts in a layer that does not pack. */
void reading_attend(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_attn *a);
/* Rows of the open step had no queries: nobody knows what they would have looked at. */
void reading_blind(struct skv_session *s);

#include "device.h"
#include "packing.h"

#endif
