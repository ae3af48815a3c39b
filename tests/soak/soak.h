/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/soak.h - what the processes of the soak test share: engines, comparers, and the test itself, which
 * disturbs them.
 *
 * All of it is in shared memory. Engines are killed at any instruction, so each part says which process may write it
 * when, and a record is written before the operation that it describes, and again after it.
 */
#ifndef SKV_TEST_SOAK_H
#define SKV_TEST_SOAK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/support/client-test.h"
#include "tests/support/times.h"

#define SOAK_ENGINES 8
#define SOAK_LASTING 2 /* the first engines are never killed */
#define SOAK_NAMES 24
#define SOAK_LIVES 320
#define SOAK_EVENTS 400
#define SOAK_TOKENS 320u
#define SOAK_BLOCKS 3u /* of a prompt, at most */
#define SOAK_LONG 860u /* tokens of a sequence that begins with a prompt */
#define SOAK_SPECS 16
#define SOAK_PROCESSES (1u << 20)
#define SOAK_SAID 48 /* actions of an engine that are recorded */
#define SOAK_SESSIONS 8u /* a client's quota */
#define SOAK_NONE UINT32_MAX

/* ---- lives: everything that has happened to a sequence (life.c) -------------------------------- */

/* SOAK_POLICY: the sequence now runs another policy */
enum soak_what { SOAK_PROMPT, SOAK_DECODE, SOAK_TRUNCATE, SOAK_FORK, SOAK_POLICY };
enum soak_stage {
	SOAK_BEGINNING, /* the call is in progress, and may have changed the form of the sequence */
	SOAK_BEGUN,     /* the call has returned; a step is open */
	SOAK_ENDING,    /* the step's outputs are known */
	SOAK_DONE,
	SOAK_GIVEN_UP, /* the step was begun and is not committed */
	SOAK_UNSURE,   /* the step may have been begun */
	SOAK_REFUSED,  /* -ESTALE: a truncation, or a fork of the first tokens */
};

struct event {
	_Atomic uint8_t stage; /* enum soak_stage */
	uint8_t what;          /* enum soak_what */
	uint8_t spec;          /* that the sequence ran; for a step that is BEGINNING, before it */
	uint8_t next_spec;     /* that its session may be about to run */
	bool given;            /* the tokens came from a sealed prefix: their outputs are unknown */
	uint16_t rows, accepted, remaining; /* of a step; remaining: prompt tokens left after it */
	uint16_t before, after;             /* tokens */
	uint16_t pages;                     /* resident when it was done; 0: unknown */
	uint32_t key;                       /* of the tokens' content */
	int32_t next;                       /* the id to continue from */
	uint64_t hash;                      /* of the outputs, from ENDING on */
};

/*
 * Written only by the process that has the sequence. An event counts once `n` includes it. Without a name the life
 * belongs to `owner`; else it belongs to its name.
 */
struct life {
	/* enum soak_life; above 8 bits the owning process, or 0: it belongs to a name or to no process */
	_Atomic uint32_t state;
	_Atomic uint32_t n;
	uint32_t most;          /* approximate limit of its tokens */
	uint32_t prompt, asked; /* prompt that it begins with, and number of its tokens; 0: none */
	uint32_t keys[SOAK_LONG + 16]; /* of each token's content, as far as there are tokens */
	struct event event[SOAK_EVENTS];
};
enum soak_life { SOAK_FREE, SOAK_LIVE, SOAK_OVER /* to be compared */, SOAK_COMPARED };

/* State of a sequence after its last event that is DONE. */
struct life_now {
	uint32_t len, remaining;
	int32_t next;
};

/* Takes a free life for this process. NULL: there is none. */
struct life *life_new(uint32_t owner);
void life_copy(struct life *to, const struct life *from);
/* The sequence has ended; an event in progress is discarded. */
void life_over(struct life *);
static inline enum soak_life life_state(const struct life *l)
{
	return (enum soak_life)(l->state & 0xff);
}
static inline uint32_t life_owner(const struct life *l)
{
	return l->state >> 8;
}
/* The life belongs to a name from now on. */
void life_named(struct life *);
struct event *life_add(struct life *, struct event);
struct life_now life_now(const struct life *);
/*
 * Records that the sequence may have come to run another policy since its last event; it may change again before the
 * next one.
 */
void life_runs(struct life *, uint8_t spec);
/*
 * The process that had the sequence died, and the sequence now has `len` tokens and this next id. False: that is
 * impossible.
 */
bool life_settle(struct life *, uint32_t len, int32_t next);
/* The content of the token at a position, existing or future. */
static inline uint64_t life_content(uint32_t key, uint32_t at)
{
	return refmodel_content(key, at);
}
/* Number of sequences that the user has or may have; are these as many as the quota allows, or nearly so? */
uint32_t lives_count(void);
bool lives_may_be_too_many(void);
/* No room for more events or tokens. */
static inline bool life_is_full(const struct life *l)
{
	return l->n > SOAK_EVENTS - 8 || life_now(l).len > l->most - 20;
}

/* ---- names (names.c) ------------------------------------------------------------------------- */

/*
 * A name's state, the process that set it, and a change counter are one word. A process records what it is about to do
 * before it asks the daemon, and that it is done after the reply. A killed process records nothing more, and the next
 * process to use the name finds out.
 */
enum name_state {
	NAME_ABSENT,
	NAME_MAKING,   /* only `holder` may create it */
	NAME_HELD,     /* attached */
	NAME_LEAVING,  /* being detached: another process may get it already */
	NAME_LEFT,     /* detached */
	NAME_DROPPING, /* `holder` holds it, and drops it */
};
struct name {
	_Atomic uint64_t word;
	_Atomic uint32_t life;   /* index of the life; SOAK_NONE if ABSENT or about to be MAKING */
	_Atomic uint32_t engine; /* number of the engine that had it last */
	_Atomic bool parked;     /* most likely; used for counting only */
};

enum name_state name_state(uint64_t word);
uint32_t name_holder(uint64_t word);
/* Changes the word. False: it has changed in the meantime. */
bool name_change(uint32_t name, uint64_t was, enum name_state, uint32_t holder);
/* The daemon let this process attach it: is that allowed? If so, the process holds it now. */
bool name_take(uint32_t name, uint32_t process);
/* May the daemon refuse it to this engine? Before the call the word was `before`. */
bool name_may_refuse(uint32_t name, uint32_t engine, uint64_t before, int error);
/* The daemon said -ENOENT: the process that was creating or dropping it is gone, and the sequence does not exist. */
void name_is_absent(uint32_t name, uint64_t before);
/* The operator has dropped it, which requires that no process held it. */
void name_erased(uint32_t name);
const char *name_of(uint32_t name); /* one of a few static buffers */

/* ---- everything ------------------------------------------------------------------------------ */

/* What is counted, with its text in the summary: first what was done, then required refusals. */
#define SOAK_LIST(X) \
	X(CALLS, "calls") \
	X(STEPS, "steps") \
	X(TOKENS, "tokens") \
	X(FORKS, "forks") \
	X(TRUNCATIONS, "truncations") \
	X(HAND_OVERS, "handed over by name, to another engine") \
	X(SESSIONS, "sessions opened") \
	X(OWN_POLICIES, "policies of sequences") \
	X(SWAPS, "policy swaps") \
	X(RELOADS, "reloads") \
	X(QUERIES, "queries") \
	X(QUIET, "quiet points") \
	X(KILLED_ENGINES, "engines killed") \
	X(KILLED_DAEMONS, "daemons killed") \
	X(STOPPED_DAEMONS, "daemons stopped") \
	X(ERASED, "dropped by name") \
	X(PARKED, "parked by name") \
	X(PARKS_ASKED, "asked to be parked, nobody waited") \
	X(RESUMED, "resumed by name") \
	X(EXPORTED, "exported") \
	X(FROM_DISK, "attached after they were parked") \
	X(SEALED, "prefixes sealed") \
	X(PROMPTS, "prompts that sequences began with") \
	X(BEGUN, "sequences begun with a sealed prefix") \
	X(GIVEN, "tokens of these, attended and not recomputed") \
	X(FROM_STORE, "tokens from the prefix store, at least") \
	X(RESTORED, "tokens of prefixes from disk, at least") \
	X(PREFIX_PAGES, "pages of prefixes compared, bit by bit") \
	X(SECRETS, "daemons with another secret") \
	X(KILLED_STORES, "prefix stores killed") \
	X(OVERWRITTEN, "values of the prefix store overwritten") \
	X(SAME_LIVES, "sequences compared with an undisturbed run") \
	X(SAME_BEGUN, "of these, begun with a sealed prefix") \
	X(SAME_STEPS, "steps compared, bit by bit") \
	X(PARTS, "sequences compared in part") \
	X(NOT_COMPARED, "sequences not compared: too many") \
	X(NAME_TAKEN, "refused: name taken") \
	X(NAME_GONE, "refused: name gone") \
	X(NAME_BUSY, "refused: name busy") \
	X(STALE, "refused: truncation or fork, evicted or compressed") \
	X(STALE_SEALS, "refused: seal, evicted or compressed") \
	X(ONE_ROW, "refused: several rows, policy of one") \
	X(QUOTA_SEQS, "refused: quota of sequences") \
	X(QUOTA_SESSIONS, "refused: quota of sessions") \
	X(SWAP_GONE, "refused: swap, the client is gone") \
	X(ERASE_GONE, "refused: drop by name, gone") \
	X(ERASE_BUSY, "refused: drop by name, busy") \
	X(PARK_GONE, "refused: park, gone") \
	X(PARK_BUSY, "refused: park, busy") \
	X(PARK_AGAIN, "refused: park, parked already") \
	X(RESUME_GONE, "refused: resume, not parked") \
	X(EXPORT_GONE, "refused: export, not parked")
#define COUNT_OF(name, text) COUNT_##name,
enum soak_count { SOAK_LIST(COUNT_OF) SOAK_COUNTS };

/* An engine, by its number; its process changes. */
struct engine {
	_Atomic uint32_t process;
	_Atomic bool idle;   /* it waits because of `quiet`, with `stock` pages in stock */
	_Atomic uint64_t stock;
	_Atomic double since; /* when its current action began */
	_Atomic uint32_t trying; /* name that it is attaching, +1: it may hold it before the name's word says so */
	_Atomic uint8_t target; /* the spec that its sessions run or are about to run */
	_Atomic uint32_t n_said;
	char said[SOAK_SAID][112];
};

enum soak_fate {
	SOAK_ALIVE,
	SOAK_DOOMED, /* it was killed, or is about to be */
	SOAK_GONE,   /* it is gone, and the daemon has nothing of it */
};

extern struct soak {
	_Atomic bool stop, quiet, mute;
	_Atomic uint32_t erasing; /* name that an operator is dropping, +1: no engine creates it meanwhile */
	_Atomic bool all_done; /* comparers end when no lives are left */
	_Atomic uint32_t n_processes;
	_Atomic int32_t failed; /* the engine whose assertion failed, +1; -1: a comparer */
	_Atomic uint64_t count[SOAK_COUNTS];
	struct times call, freed, served;
	struct engine engine[SOAK_ENGINES];
	struct name name[SOAK_NAMES];
	_Atomic uint8_t fate[SOAK_PROCESSES]; /* enum soak_fate */
	char spec[SOAK_SPECS][SKV_SPEC_MAX]; /* as sessions report them, with every parameter */
	bool one_row[SOAK_SPECS];
	uint32_t n_specs;
	uint32_t most_sequences; /* the user's quota */
	_Atomic bool may_be_sealed[1u << 20]; /* indexed by a hash of tokens */
	struct life life[SOAK_LIVES];
} *soak;

#define ADD(what, n) (soak->count[COUNT_##what] += (n))

extern struct skv_model soak_model;

/* ---- the parts ------------------------------------------------------------------------------- */

/* step.c */
struct soak_item {
	struct skv_seq *seq;
	struct life *life; /* its last event is set to this step */
	struct event event; /* uses what, rows, accepted, remaining, key, next_spec */
};
/* Makes a step of an engine and records it in the lives. 0, or the library's error at begin. */
int soak_step(struct skv_session *, struct soak_item *, uint32_t n);
/*
 * Repeats one item's step alone: the hash of its outputs goes to ret. Without `commits` it is aborted after its begin.
 */
int soak_step_again(struct skv_session *, struct skv_seq *, const struct event *, uint32_t len, bool commits,
                    uint64_t *ret);
uint8_t spec_of(const struct skv_seq *); /* number of the spec that it runs */

/* engine.c: runs an engine in this process, which does not return. */
void engine_run(int number, uint32_t process) __attribute__((noreturn));
/* Attaches and drops all named sequences that are left. */
void engine_sweep(uint32_t process) __attribute__((noreturn));

/* compare.c: repeats ended lives on an undisturbed daemon. */
void compare_begin(const char *const *specs, uint32_t n);
/* Only the life in this file. */
void compare_file(const char *path);
void compare_start(void);
void compare_check(void);
void compare_end(void);

/* disturb.c: disturbs engines and daemons. */
void disturb_begin(uint32_t engines); /* starts the daemon */
void disturb_start(void); /* starts the engines */
void disturb_once(void);
void disturb_check(void);
void disturb_end(void);
uint32_t disturb_engines(void);
pid_t disturb_engine(uint32_t number);

/* by-name.c: what operators do with sequences. Returns the daemon's option for parked sequences. */
const char *by_name_begin(void);
void by_name_drop(void);
void by_name_park(void);
void by_name_park_some(void);
void by_name_resume(void);
void by_name_export(void);
/* Checks what status says about parking. Returns what is in progress or inconsistent; or "". */
const char *parks_off(const json_t *parking);
/* At the end no file may be left. */
void parks_check_none(void);

/*
 * prefixes.c: sealed prefixes. prefixes_ask(): a life is to begin with the first n tokens of a prompt.
 * prefixes_given(): it was given `len` of them; false: that is impossible. prefixes_begun(): compares what the sequence
 * has.
 */
void prefixes_ask(struct life *, uint32_t prompt, uint32_t n);
bool prefixes_given(struct life *, uint32_t len);
int prefixes_new_from(struct skv_session *, const char *name, const struct life *, struct skv_seq **ret);
void prefixes_begun(struct life *, const struct skv_seq *);
const char *const *prefixes_begin(void); /* the daemon's options; with a store, if one is installed here */
/* switches between two secrets: the next daemon finds nothing of the current one */
void prefixes_other_secret(void);
void prefixes_disturb_store(void);
void prefixes_end(void);
void prefixes_look(const json_t *status); /* counts what came from the store and from disk */
const char *prefixes_off(const json_t *status); /* what is in progress, or "" */

/* quiet.c: checks while all engines wait. */
void quiet_point(void);
void quiet_check_log(void);

/* report.c */
void report_summary(double seconds);
void report_failure(void);

#endif
