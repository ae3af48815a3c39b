/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/parked-chats.h - named sequences that are taken up again and again, under policies of each form, and that may be anywhere in between.
 *
 * Each remembers its steps and their outputs, so that chat_check() can take the same steps in a sequence that nobody disturbs, and compare bit for bit.
 */
#ifndef SKV_TEST_PARKED_CHATS_H
#define SKV_TEST_PARKED_CHATS_H

#include <sparsekv/client.h>

#include "tests/support/reference-model.h"

#define MAX_CHATS 128u
#define CHAT_MAX_STEPS 64u
#define CHAT_MAX_TOKENS 600u
#define CHAT_SPECS 7u

/* A named sequence, and one that nobody disturbs. */
struct chat {
	char name[16];
	struct refmodel *w;
	uint32_t len, steps, at[CHAT_MAX_STEPS + 1]; /* positions at which steps began */
	uint64_t content[CHAT_MAX_TOKENS], hash[CHAT_MAX_STEPS]; /* of the outputs of each step */
};

extern struct chat chats[MAX_CHATS];
extern struct refmodel world[CHAT_SPECS]; /* the same model, each with a session under its spec */
extern uint32_t chats_first_prompt;       /* tokens of a chat's first step, at least */

void chats_models(void);
void chats_open(struct skv_client *);
/* The first n, each with a few steps. */
void chats_make(unsigned n);
/* Attach or make it, take some steps, detach. */
void chat_talk(struct chat *, unsigned steps);
/* All of its outputs so far are those of a sequence that nobody disturbed. */
void chat_check(struct chat *);

#endif
