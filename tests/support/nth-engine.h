/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/nth-engine.h - engines whose daemon, or library, has calls that fail.
 *
 * A victim does everything that an engine does with two named sequences. A call of its may fail, with an error that says what, and then
 * changes nothing; done again, it succeeds. What it has committed stays, and what comes out of steps is what comes out of an undisturbed run,
 * bit by bit. A witness then finds both sequences as the victim left them. A bystander generates all the while.
 */
#ifndef SKV_TEST_NTH_ENGINE_H
#define SKV_TEST_NTH_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fail_nth;

/* A new folder with the two policies that they run, and nothing else: more take longer to probe. */
#define NTH_POLICIES 2
extern const char *const nth_engine_policy_files[NTH_POLICIES];
void nth_engine_policies(char ret_folder[64]);
/* Before a daemon is started; and with one, which nothing happens to: the run to compare with. */
void nth_engine_setup(const char *socket);
void nth_engine_undisturbed(void);
/* Another daemon, at another socket. */
void nth_engine_use_socket(const char *socket);

struct nth_engine_result {
	uint32_t errors; /* calls that failed */
	bool gave_up;    /* one failed again and again */
	char first[256]; /* of them */
};

enum nth_engine_part { NTH_ALL, NTH_AND_DIES /* in the middle of a step */ };

/* A process; `fails` (may be NULL): the calls that its library makes fail as that says. */
pid_t nth_engine_start(enum nth_engine_part, struct fail_nth *fails);
struct nth_engine_result nth_engine_result(void);
/* The same, with other acts in its place, each done again until it succeeds: 0, or negative errno with a text, the library's or NTH_ENGINE_SAID. */
struct nth_engine_act {
	const char *what;
	int (*call)(void);
};
pid_t nth_engine_start_acts(const struct nth_engine_act *acts, size_t n);
#define NTH_ENGINE_SAID (-EREMOTE) /* the text is in nth_engine_said, and is that of a program */
extern char nth_engine_said[2000];

/* What acts are made of. The victim's model is "victim"; its sequences are these two, the second one a fork of the first. */
enum { NTH_FIRST, NTH_SECOND, NTH_NAMED };
extern const char *const nth_engine_names[NTH_NAMED];
#define NTH_PROMPT 40u /* tokens of the first step; up to 119 there are */
int nth_engine_make_first(void);
int nth_engine_fork_second(void);
/* Attached, and decoded up to this length; outputs are compared. */
int nth_engine_decode_to(int which, uint32_t goal);
int nth_engine_detach(int which);
/* A prompt of a block and some tokens: sealed; and another sequence begins with it. */
int nth_engine_seal(void);
int nth_engine_begin_sealed(void);
/* It was dropped: until it is attached again nobody expects it. */
void nth_engine_dropped(int which);
/* In a process of its own that must succeed: the victim's sequences are as they were left, and are dropped. */
pid_t nth_engine_start_witness(void);
/* In one, too: the first is parked and cannot be read, so it is neither attached nor is another one made in its place. */
pid_t nth_engine_start_refused(void);

/* Its model is "bystander", and its session may be swapped between the policies of the undisturbed run: nth_engine_specs. */
extern const char *const nth_engine_specs[2];
pid_t nth_engine_start_bystander(void);
uint32_t nth_engine_bystander_steps(void);
/* Calls of its that failed so far: in the daemon something failed for it. */
uint32_t nth_engine_bystander_errors(void);
void nth_engine_tell_bystander_to_end(void);

#endif
