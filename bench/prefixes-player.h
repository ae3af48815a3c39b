/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/prefixes-player.h - an engine without a model, which plays requests of one user against one daemon.
 *
 * Each pair of a user and a daemon has a process of its own, because a daemon identifies a user by the user id of the
 * process. K, V and q of a token depend on the ids of all tokens up to this token, as in a model. So if the daemon
 * gives a prompt a block of a different prompt or position, the output is different, even if the block has the same
 * tokens.
 */
#ifndef SKV_BENCH_PREFIXES_PLAYER_H
#define SKV_BENCH_PREFIXES_PLAYER_H

#include <sparsekv/types.h>
#include <stdbool.h>
#include <sys/types.h>

struct player_setup {
	const char *socket, *policy;
	struct skv_model model; /* requires io_dtype fp32 */
	uid_t uid;              /* user id of the player's process; 0: that of the caller */
	/* reads each prompt a second time without sealed prefixes, and compares the two outputs of its last token */
	bool check;
};

struct player_told {
	uint32_t hit_tokens; /* number of tokens of the prompt that were found in a sealed prefix */
	bool differs;        /* the last output differs from that of reading the whole prompt */
	double ms;           /* milliseconds that skv_seq_new_from() took */
};

struct player {
	int fd;
	pid_t pid;
};

/*
 * Starts a player's process. Returns 0 or a negative errno. Errors after the start are printed by the player's process.
 */
int player_start(struct player *, const struct player_setup *);
/*
 * Plays one request: a prompt and its answer, given as token ids. Returns 0; -1 if the player has printed an error and
 * ended.
 */
int player_play(struct player *, const int32_t *ids, uint32_t n_prompt, uint32_t n_answer, struct player_told *ret);
void player_stop(struct player *);

#endif
