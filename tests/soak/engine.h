/* SPDX-License-Identifier: Apache-2.0 */
/* tests/soak/engine.h - what the files of an engine share: what it is, and what it holds. */
#ifndef SKV_TEST_SOAK_ENGINE_H
#define SKV_TEST_SOAK_ENGINE_H

#include "tests/soak/soak.h"

#define HELD 6u
#define SESSIONS 2u

extern uint32_t me; /* the process */
extern struct engine *self;
extern struct skv_session *sessions[SESSIONS]; /* the second one comes and goes */

/* What it holds. */
extern struct mine {
	struct skv_seq *seq; /* NULL: none */
	struct life *life;
	uint32_t name; /* SOAK_NONE: it has none */
	uint32_t session;
} mine[HELD];

/* Say what is about to be called; then that it has been, and what it gave. */
void engine_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
int called(int e);
#define CALLED(call) OK(called(call))

/* Steps, as soak_step() has them, and what policies they brought. */
int engine_step(uint32_t session, struct soak_item *, uint32_t n);

/* engine-seqs.c */
struct mine *any(bool held); /* one that is held, or a place for one; NULL: there is none */
uint32_t any_session(void);
uint32_t life_number(const struct life *);
const char *told(const struct mine *); /* its name and life, for what is said */
uint32_t reserve_name(void); /* one that is this process's to make; SOAK_NONE: none is free */
/* A new one, its parent's fork, or from n tokens of a prompt: of this name, or none. False: refused, as it must be. */
bool make(struct mine *, struct mine *parent, uint32_t n, uint32_t name, uint32_t prompt);
void say_name(uint32_t name, enum name_state); /* of one that this process alone changes now */
void attach(uint32_t name);
void drop(struct mine *);

/* Actions: engine.c has the table. */
void act_new(void);
void act_fork(void);
void act_truncate(void);
void act_detach(void);
void act_attach(void);
void act_drop(void);
void act_taken(void);
void act_prompt(void); /* prefixes.c, and the next one */
void act_seal(void);

#endif
