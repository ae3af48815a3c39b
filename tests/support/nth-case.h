/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/nth-case.h - programs in which the Nth call of each kind fails, for all N, in several scenarios.
 *
 * N grows until a whole scenario passes without the failure. SKV_NTH=all: all N; SKV_NTH=number: from that N on;
 * otherwise some N at random. SKV_NTH_PART=K/M: the Kth part, from 0, of M parts that processes can run in parallel.
 * SKV_NTH_KIND=text: only failures with this text in their name. CK_RUN_CASE=name: only that scenario.
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
	void (*run)(uint32_t n); /* arms the failure; called once with n = 0: nothing fails */
};

struct nth_program {
	const char *name;
	const struct nth_scenario *scenarios;
	const struct nth_failure *failures; /* each of them is tried in each scenario */
	int n_scenarios, n_failures;
	void (*begin)(void), (*end)(void); /* called once for each pair of scenario and failure */
	void (*check)(void);               /* called after each N; NULL: the scenario checks by itself */
	void (*tell)(char *to, size_t size); /* adds to the line printed after a pair; NULL: nothing */
	unsigned sample;    /* number of N tried for a pair, unless SKV_NTH is set ... */
	unsigned one_of;    /* ... and only one of so many pairs is tried; 0: all */
};

/* The program's main(). Returns 77 if allocations cannot be made to fail. */
int nth_main(const struct nth_program *);

extern struct fail_nth *nth_fails;
extern struct nth_failure nth_failure; /* the one being tried */

void nth_arm(uint32_t n);
void nth_disarm(void);
/* Saves where the first failing call came from, in case the test fails; nth_disarm() also does this. */
void nth_note_where(void);
/* While on, programs that this process executes have fail-nth.so preloaded and use the page. */
void nth_preload(bool on);

/* Folder of the case's files, with the policies that engines run (nth-engine.h); and the daemon's option for it. */
extern char nth_folder[64], nth_policy_path[96];

/* Checks that the daemons' log reports no loss. */
void nth_check_log(const char *log);

#endif
