/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/nth-case.h - programs in which the Nth call of each kind fails, for all N, in each of some scenarios.
 *
 * N grows until a whole scenario passes without that failure. SKV_NTH=all: all N; a number: from that one on; else some of them, at random.
 * SKV_NTH_PART=K/M: the Kth part, from 0 on, of M that processes beside each other do together.
 * SKV_NTH_KIND=text: failures alone that have it in their name. CK_RUN_CASE=name: of that scenario alone.
 */
#ifndef SKV_TEST_NTH_CASE_H
#define SKV_TEST_NTH_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/support/fail-nth.h"

struct nth_failure {
	enum fail_kind kind;
	const char *name;
	uint32_t error; /* see struct fail_nth */
	bool onwards;
	uint32_t processes;
};

struct nth_scenario {
	const char *name;
	void (*run)(uint32_t n); /* which arms the failure; n is 0 once: nothing fails */
};

struct nth_program {
	const char *name;
	const struct nth_scenario *scenarios;
	const struct nth_failure *failures; /* all of them are tried in each scenario */
	int n_scenarios, n_failures;
	void (*begin)(void), (*end)(void); /* once for each pair of them */
	void (*check)(void);               /* after each N; NULL: the scenario has done it */
	void (*tell)(char *to, size_t size); /* what else there is to say when a pair is through; NULL: nothing */
	unsigned sample;    /* N of a pair, unless all are asked for ... */
	unsigned one_of;    /* ... and of so many pairs one is taken; 0: all */
};

/* The program's main(): 77 where allocations cannot be made to fail. */
int nth_main(const struct nth_program *);

extern struct fail_nth *nth_fails;
extern struct nth_failure nth_failure; /* that is being tried */

void nth_arm(uint32_t n);
void nth_disarm(void);
/* Where the first failure was is remembered, should the test fail: done by nth_disarm(). */
void nth_note_where(void);
/* What is executed now, and (in a process that is about to be replaced) by it, has its calls fail as the page says. */
void nth_preload(bool on);

/* A folder for the case's files, with the policies that engines run (nth-engine.h); and the option for it. */
extern char nth_folder[64], nth_policy_path[96];

/* Nothing was lost, says the daemons' log. */
void nth_check_log(const char *log);

#endif
