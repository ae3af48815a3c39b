/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/prefixes-player.h - an engine without a model, which plays requests of one user against one daemon.
 *
 * There is a process for each user and daemon, because a daemon identifies a user by the user id of the process. K, V
 * and q of a token depend on the ids of all tokens up to it, as in a model. So a block of another prompt, or at
 * another position, gives another output, even if it has the same tokens.
 */
#ifndef SKV_BENCH_PREFIXES_PLAYER_H
#define SKV_BENCH_PREFIXES_PLAYER_H

#include <sparsekv/types.h>
#include <stdbool.h>
#include <sys/types.h>

struct player_setup {
	const char *socket, *policy;
	struct skv_model model; /* io_dtype must be fp32 */
	uid_t uid;              /* 0: the caller's user id */
	bool check;             /* read each prompt again without prefixes, and compare the last output */
};

struct player_told {
	uint32_t hit_tokens; /* tokens of the prompt that were found */
	bool differs;        /* the output differs from that of reading the whole prompt */
	double ms;           /* of skv_seq_new_from() */
};

struct player {
	int fd;
	pid_t pid;
};

/* Returns 0 or a negative errno. Later errors are printed by the process itself. */
int player_start(struct player *, const struct player_setup *);
/* Plays a prompt and its answer, given as token ids. Returns 0; -1: the player has printed an error and ended. */
int player_play(struct player *, const int32_t *ids, uint32_t n_prompt, uint32_t n_answer, struct player_told *ret);
void player_stop(struct player *);

#endif
