/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/soak.h - what the processes of the soak share: engines, comparers, and the test itself, which disturbs
 * them.
 *
 * All of it is in memory that they have in common. Engines are killed at any instruction, so each part says who may
 * write it when, and a record is written before what it is of, and after it.
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
#define SOAK_LASTING 2 /* the first ones are never killed */
#define SOAK_NAMES 24
#define SOAK_LIVES 320
#define SOAK_EVENTS 400
#define SOAK_TOKENS 320u
#define SOAK_BLOCKS 3u /* of a prompt, at most */
#define SOAK_LONG 860u /* tokens of a sequence that begins with one */
#define SOAK_SPECS 16
#define SOAK_PROCESSES (1u << 20)
#define SOAK_SAID 48 /* actions of an engine that are remembered */
#define SOAK_SESSIONS 8u /* a client's quota */
#define SOAK_NONE UINT32_MAX

/* ---- lives: all that has happened to a sequence (life.c) ------------------------------------- */

enum soak_what { SOAK_PROMPT, SOAK_DECODE, SOAK_TRUNCATE, SOAK_FORK, SOAK_POLICY /* it runs another one */ };
enum soak_stage {
	SOAK_BEGINNING, /* the call is under way, and may have changed the form of the sequence ... */
	SOAK_BEGUN,     /* ... it has; a step is open ... */
	SOAK_ENDING,    /* ... and its outputs are known */
	SOAK_DONE,
	SOAK_GIVEN_UP, /* the step was begun, and is not committed */
	SOAK_UNSURE,   /* it may have been begun */
	SOAK_REFUSED,  /* -ESTALE: a truncation, a fork of the first tokens */
};

struct event {
	_Atomic uint8_t stage; /* enum soak_stage */
	uint8_t what;          /* enum soak_what */
	uint8_t spec;          /* that the sequence ran; of a step that is BEGINNING, before it ... */
	uint8_t next_spec;     /* ... and what its session may be about to run */
	bool given;            /* these tokens came from a sealed prefix: nobody has seen outputs */
	uint16_t rows, accepted, remaining; /* of a step; remaining: of a prompt, after it */
	uint16_t before, after;             /* tokens */
	uint16_t pages;                     /* resident when it was done; 0: not known */
	uint32_t key;                       /* of the tokens' content */
	int32_t next;                       /* the id to go on from */
	uint64_t hash;                      /* of the outputs, from ENDING on */
};

/*
 * Written by the one process that has the sequence. An event counts when `n` does. Without a name it belongs to
 * `owner`; else a name has it.
 */
struct life {
	_Atomic uint32_t state; /* enum soak_life; above 8 bits its owner, a process, or 0: a name has it, or nobody */
	_Atomic uint32_t n;
	uint32_t most;          /* tokens, about */
	uint32_t prompt, asked; /* that it begins with, and how many tokens of it; 0: none */
	uint32_t keys[SOAK_LONG + 16]; /* of each token's content, as far as there are any */
	struct event event[SOAK_EVENTS];
};
enum soak_life { SOAK_FREE, SOAK_LIVE, SOAK_OVER /* to be compared */, SOAK_COMPARED };

/* What a sequence is after its last event that is DONE. */
struct life_now {
	uint32_t len, remaining;
	int32_t next;
};

/* One that is free, of this process. NULL: there is none. */
struct life *life_new(uint32_t owner);
void life_copy(struct life *to, const struct life *from);
/* What was under way has not happened. */
void life_over(struct life *);
static inline enum soak_life life_state(const struct life *l)
{
	return (enum soak_life)(l->state & 0xff);
}
static inline uint32_t life_owner(const struct life *l)
{
	return l->state >> 8;
}
/* A name has it from now on. */
void life_named(struct life *);
struct event *life_add(struct life *, struct event);
struct life_now life_now(const struct life *);
/* Since its last event the sequence may have come to run another policy, and may again before the next one. */
void life_runs(struct life *, uint8_t spec);
/* The process that had it died, and the sequence has so many tokens now, and this next id: false: that cannot be. */
bool life_settle(struct life *, uint32_t len, int32_t next);
/* The token that is, or is to be, at a position. */
static inline uint64_t life_content(uint32_t key, uint32_t at)
{
	return refmodel_content(key, at);
}
/* Sequences that there are, or may be, of the user; and are these as many as it may have, or about to be? */
uint32_t lives_count(void);
bool lives_may_be_too_many(void);
/* Room for more events, and tokens. */
static inline bool life_is_full(const struct life *l)
{
	return l->n > SOAK_EVENTS - 8 || life_now(l).len > l->most - 20;
}

/* ---- names (names.c) ------------------------------------------------------------------------- */

/*
 * A name's state, the process that brought it there, and how often it changed, are one word. A process says what it
 * is about to do before it asks the daemon, and that it is done after the answer; one that was killed says nothing
 * more, and who comes next finds out.
 */
enum name_state {
	NAME_ABSENT,
	NAME_MAKING,   /* `holder` alone may make it */
	NAME_HELD,     /* attached */
	NAME_LEAVING,  /* it is being detached: who asks may get it already */
	NAME_LEFT,     /* detached */
	NAME_DROPPING, /* `holder` has it, and drops it */
};
struct name {
	_Atomic uint64_t word;
	_Atomic uint32_t life;   /* of LIVES; SOAK_NONE where it is ABSENT, or about to be MAKING */
	_Atomic uint32_t engine; /* that had it last, by its number */
	_Atomic bool parked;     /* most likely: it is only counted */
};

enum name_state name_state(uint64_t word);
uint32_t name_holder(uint64_t word);
/* False: the word is another one by now. */
bool name_change(uint32_t name, uint64_t was, enum name_state, uint32_t holder);
/* The daemon let this process attach it: may it be so? Then it holds it. */
bool name_take(uint32_t name, uint32_t process);
/* The daemon has refused it to this engine; before the call the word was `before`. */
bool name_may_refuse(uint32_t name, uint32_t engine, uint64_t before, int error);
/* As found out by -ENOENT: the process that was making or dropping it is gone, and it is not there. */
void name_is_absent(uint32_t name, uint64_t before);
/* The operator has dropped it: nobody held it then. */
void name_erased(uint32_t name);
const char *name_of(uint32_t name); /* one of a few static buffers */

/* ---- everything ------------------------------------------------------------------------------ */

/* What is counted, and how the summary says it: first what is done, then refusals that must be. */
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
	_Atomic bool idle;   /* it waits, because of `quiet`, with so many pages in stock */
	_Atomic uint64_t stock;
	_Atomic double since; /* when its current action began */
	_Atomic uint32_t trying; /* a name that it attaches, +1: it may have it before that is in the name's word */
	_Atomic uint8_t target; /* the spec that its sessions run, or will */
	_Atomic uint32_t n_said;
	char said[SOAK_SAID][112];
};

enum soak_fate {
	SOAK_ALIVE,
	SOAK_DOOMED, /* it is killed in a moment, or was */
	SOAK_GONE,   /* and the daemon has nothing of it */
};

extern struct soak {
	_Atomic bool stop, quiet, mute;
	_Atomic uint32_t erasing; /* a name that an operator drops, +1: meanwhile nobody makes it */
	_Atomic bool all_done; /* comparers end when there is nothing left */
	_Atomic uint32_t n_processes;
	_Atomic int32_t failed; /* the engine whose assertion failed, +1; a comparer: -1 */
	_Atomic uint64_t count[SOAK_COUNTS];
	struct times call, freed, served;
	struct engine engine[SOAK_ENGINES];
	struct name name[SOAK_NAMES];
	_Atomic uint8_t fate[SOAK_PROCESSES]; /* enum soak_fate */
	char spec[SOAK_SPECS][SKV_SPEC_MAX]; /* as sessions say them, with every parameter */
	bool one_row[SOAK_SPECS];
	uint32_t n_specs;
	uint32_t most_sequences; /* the user's quota */
	_Atomic bool may_be_sealed[1u << 20]; /* by a hash of tokens */
	struct life life[SOAK_LIVES];
} *soak;

#define ADD(what, n) (soak->count[COUNT_##what] += (n))

extern struct skv_model soak_model;

/* ---- the parts ------------------------------------------------------------------------------- */

/* step.c */
struct soak_item {
	struct skv_seq *seq;
	struct life *life; /* its new last event is this step */
	struct event event; /* what, rows, accepted, remaining, key, next_spec */
};
/* Steps of engines: recorded in their lives. 0; or what the library said when it began. */
int soak_step(struct skv_session *, struct soak_item *, uint32_t n);
/* The same step alone, by itself: the hash of its outputs goes to ret; `commits`, or it is given up after its begin. */
int soak_step_again(struct skv_session *, struct skv_seq *, const struct event *, uint32_t len, bool commits,
                    uint64_t *ret);
uint8_t spec_of(const struct skv_seq *); /* the number of what it runs */

/* engine.c: a process, and its end. */
void engine_run(int number, uint32_t process) __attribute__((noreturn));
/* What it holds of names is dropped, and what nobody does, too. */
void engine_sweep(uint32_t process) __attribute__((noreturn));

/* compare.c: lives that are over, once more, by a daemon that nobody disturbs. */
void compare_begin(const char *const *specs, uint32_t n);
/* Of the life in this file alone. */
void compare_file(const char *path);
void compare_start(void);
void compare_check(void);
void compare_end(void);

/* disturb.c: what is done to engines and daemons. */
void disturb_begin(uint32_t engines); /* the daemon */
void disturb_start(void); /* the engines */
void disturb_once(void);
void disturb_check(void);
void disturb_end(void);
uint32_t disturb_engines(void);
pid_t disturb_engine(uint32_t number);

/* by-name.c: what operators do with sequences. The daemon's option for parked ones comes first. */
const char *by_name_begin(void);
void by_name_drop(void);
void by_name_park(void);
void by_name_park_some(void);
void by_name_resume(void);
void by_name_export(void);
/* What is under way, or does not add up; or "". Of what status says about parking. */
const char *parks_off(const json_t *parking);
/* At the end no file is left. */
void parks_check_none(void);

/*
 * prefixes.c: sealed ones. A life is to begin with the first n tokens of a prompt; it was given so many of them: false: that cannot be. Then
 * what the sequence has is compared.
 */
void prefixes_ask(struct life *, uint32_t prompt, uint32_t n);
bool prefixes_given(struct life *, uint32_t len);
int prefixes_new_from(struct skv_session *, const char *name, const struct life *, struct skv_seq **ret);
void prefixes_begun(struct life *, const struct skv_seq *);
const char *const *prefixes_begin(void); /* the daemon's options; a store, if there is one here */
void prefixes_other_secret(void);        /* of two: the next daemon finds nothing of this one's */
void prefixes_disturb_store(void);
void prefixes_end(void);
void prefixes_look(const json_t *status); /* what came from store and disk is counted */
const char *prefixes_off(const json_t *status); /* what is under way, or "" */

/* quiet.c: while all engines wait. */
void quiet_point(void);
void quiet_check_log(void);

/* report.c */
void report_summary(double seconds);
void report_failure(void);

#endif
