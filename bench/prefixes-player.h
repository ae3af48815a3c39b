/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/prefixes-player.h - an engine without a model, which plays requests of one user against one daemon.
 *
 * It is a process of its own, since users are told apart by their ids, and by the daemon. K, V and q of a token follow from
 * the ids of all tokens up to it, as those of a model do: so a block that is another prompt's, or in another place, gives another
 * output, if its tokens are the same, too.
 */
#ifndef SKV_BENCH_PREFIXES_PLAYER_H
#define SKV_BENCH_PREFIXES_PLAYER_H

#include <sparsekv/types.h>
#include <stdbool.h>
#include <sys/types.h>

struct player_setup {
	const char *socket, *policy;
	struct skv_model model; /* io_dtype is fp32 */
	uid_t uid;              /* 0: the caller's */
	bool check;             /* each prompt is read once more, from nothing, and its last output compared */
};

struct player_told {
	uint32_t hit_tokens; /* of the prompt, those that were there */
	bool differs;        /* what was there is not what reading the prompt gives */
	double ms;           /* of skv_seq_new_from() */
};

struct player {
	int fd;
	pid_t pid;
};

/* 0, or negative errno. What goes wrong in it later, it says itself. */
int player_start(struct player *, const struct player_setup *);
/* A prompt and its answer: token ids. 0; -1 if the player has ended, which has said why. */
int player_play(struct player *, const int32_t *ids, uint32_t n_prompt, uint32_t n_answer, struct player_told *ret);
void player_stop(struct player *);

#endif
