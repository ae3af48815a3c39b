/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/nth-engine.h - engines whose daemon or library has failing calls.
 *
 * A victim does all that an engine does, with two named sequences. Each of its calls may fail, with an error and a
 * text, and must then have changed nothing; the retry succeeds. Committed tokens stay, and outputs are those of an
 * undisturbed run, bit for bit. Then a witness checks that both sequences are as the victim left them. A bystander
 * generates tokens all the while.
 */
#ifndef SKV_TEST_NTH_ENGINE_H
#define SKV_TEST_NTH_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fail_nth;

/* Makes a folder with only the two policies that the engines use: others would have to be probed, too. */
#define NTH_POLICIES 2
extern const char *const nth_engine_policy_files[NTH_POLICIES];
void nth_engine_policies(char ret_folder[64]);
/*
 * nth_engine_setup() comes before the start of a daemon. nth_engine_undisturbed() then records the outputs to compare
 * with, while nothing fails.
 */
void nth_engine_setup(const char *socket);
void nth_engine_undisturbed(void);
/* Switches to another daemon's socket. */
void nth_engine_use_socket(const char *socket);

struct nth_engine_result {
	uint32_t errors; /* number of failed calls */
	bool gave_up;    /* a call failed in all its tries */
	char first[256]; /* text of the first error */
};

enum nth_engine_part { NTH_ALL, NTH_AND_DIES /* in the middle of a step */ };

/* Starts a victim in a process. If `fails` is not NULL, calls of its library fail as it says. */
pid_t nth_engine_start(enum nth_engine_part, struct fail_nth *fails);
struct nth_engine_result nth_engine_result(void);
/*
 * Starts a victim with other acts, each retried until it succeeds. An act returns 0 or a negative errno; the text is
 * the library's, or with NTH_ENGINE_SAID that in nth_engine_said.
 */
struct nth_engine_act {
	const char *what;
	int (*call)(void);
};
pid_t nth_engine_start_acts(const struct nth_engine_act *acts, size_t n);
#define NTH_ENGINE_SAID (-EREMOTE) /* the text is in nth_engine_said, and comes from a program */
extern char nth_engine_said[2000];

/* Acts. The victim's model is "victim"; it has two named sequences, and the second is a fork of the first. */
enum { NTH_FIRST, NTH_SECOND, NTH_NAMED };
extern const char *const nth_engine_names[NTH_NAMED];
#define NTH_PROMPT 40u /* tokens of the first step; sequences may have up to 119 tokens */
int nth_engine_make_first(void);
int nth_engine_fork_second(void);
/* Attaches the sequence if necessary and decodes up to this length; outputs are compared. */
int nth_engine_decode_to(int which, uint32_t goal);
int nth_engine_detach(int which);
/*
 * nth_engine_seal() reads a prompt of a block and some tokens and seals it. nth_engine_begin_sealed() begins another
 * sequence with that prefix.
 */
int nth_engine_seal(void);
int nth_engine_begin_sealed(void);
/* The sequence was dropped: it need not exist until it is attached again. */
void nth_engine_dropped(int which);
/* Starts a process that must succeed: the victim's sequences are as they were left; it drops them. */
pid_t nth_engine_start_witness(void);
/*
 * Starts a process that must succeed: the first sequence is parked and cannot be read. It can neither be attached, nor
 * can another one be made under its name.
 */
pid_t nth_engine_start_refused(void);

/*
 * The bystander's model is "bystander". Its session may be swapped between the policies of the undisturbed run,
 * nth_engine_specs.
 */
extern const char *const nth_engine_specs[2];
pid_t nth_engine_start_bystander(void);
uint32_t nth_engine_bystander_steps(void);
/* Number of the bystander's failed calls so far: something failed in the daemon. */
uint32_t nth_engine_bystander_errors(void);
void nth_engine_tell_bystander_to_end(void);

#endif
