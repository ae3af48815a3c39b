/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/parked-chats.h - named sequences that are continued again and again, under policies of each form, and
 * may be parked in between.
 *
 * Each chat records its steps and their outputs, so that chat_check() can repeat the steps in an undisturbed sequence
 * and compare bit for bit.
 */
#ifndef SKV_TEST_PARKED_CHATS_H
#define SKV_TEST_PARKED_CHATS_H

#include <sparsekv/client.h>

#include "tests/support/policies.h"
#include "tests/support/reference-model.h"

#define MAX_CHATS 128u
#define CHAT_MAX_STEPS 64u
#define CHAT_MAX_TOKENS 600u
#define MAX_CHAT_SPECS 16
#define CHAT_SPECS ((size_t)policy_rows(SET_CHATS))

/* A named sequence and the record of its steps. */
struct chat {
	char name[16];
	struct refmodel *w;
	uint32_t len, steps, at[CHAT_MAX_STEPS + 1]; /* positions at which steps began */
	uint64_t content[CHAT_MAX_TOKENS], hash[CHAT_MAX_STEPS]; /* hash: of the outputs of each step */
};

extern struct chat chats[MAX_CHATS];
extern struct refmodel world[MAX_CHAT_SPECS]; /* the same model, each with a session under another spec */
extern uint32_t chats_first_prompt;       /* minimum tokens of a chat's first step */

void chats_models(void);
void chats_open(struct skv_client *);
/* Makes the first n chats, each with a few steps. */
void chats_make(unsigned n);
/* Attaches or makes the sequence, runs some steps, detaches it. */
void chat_talk(struct chat *, unsigned steps);
/* Checks that all its outputs so far are those of an undisturbed sequence. */
void chat_check(struct chat *);

#endif
