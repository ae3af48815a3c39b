/* SPDX-License-Identifier: Apache-2.0 */
/* tests/soak/engine.h - what the files of an engine share: its process, and the sequences that it holds. */
#ifndef SKV_TEST_SOAK_ENGINE_H
#define SKV_TEST_SOAK_ENGINE_H

#include "tests/soak/soak.h"

#define HELD 6u
#define SESSIONS 2u

extern uint32_t me; /* number of this process */
extern struct engine *self;
extern struct skv_session *sessions[SESSIONS]; /* the second one is opened and closed at random */

/* Sequences that the engine holds. */
extern struct mine {
	struct skv_seq *seq; /* NULL: none */
	struct life *life;
	uint32_t name; /* SOAK_NONE: without a name */
	uint32_t session;
} mine[HELD];

/* engine_say() records what is about to be called; called() that the call returned, and returns its result. */
void engine_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
int called(int e);
#define CALLED(call) OK(called(call))

/* Makes a step with soak_step(), and records policies that came with it. */
int engine_step(uint32_t session, struct soak_item *, uint32_t n);

/* engine-seqs.c */
struct mine *any(bool held); /* a random one that is held, or a free place; NULL: none */
uint32_t any_session(void);
uint32_t life_number(const struct life *);
const char *told(const struct mine *); /* its name and life, for messages */
uint32_t reserve_name(void); /* reserves a name for this process to create; SOAK_NONE: none is free */
/*
 * Makes a sequence: a new one, a fork of its parent, or one from n tokens of a prompt; `name` may be SOAK_NONE. False:
 * refused, as required.
 */
bool make(struct mine *, struct mine *parent, uint32_t n, uint32_t name, uint32_t prompt);
void say_name(uint32_t name, enum name_state); /* for a name that only this process changes now */
void attach(uint32_t name);
void drop(struct mine *);

/* The actions; engine.c has the table. */
void act_new(void);
void act_fork(void);
void act_truncate(void);
void act_detach(void);
void act_attach(void);
void act_drop(void);
void act_taken(void);
void act_prompt(void); /* this and the next one: prefixes.c */
void act_seal(void);

#endif
