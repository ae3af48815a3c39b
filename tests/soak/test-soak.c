/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything at once, at random instants, for minutes or hours: `make soak SOAK_SECONDS=3600`; `make check` runs some
 * seconds of it.
 *
 * What is mixed. Engines, each a process with a client and one or two sessions, under policies of all forms: dense,
 * selecting pages or tokens, evicting by position or by accumulated scores, quantizing, and compressing. They make
 * sequences with names and without, step them alone and in batches (prompts in chunks, single rows, several rows of
 * which some are rejected), fork and truncate them at any length, detach them and attach what others left, drop them,
 * give them policies of their own, and open and close sessions; they seal prefixes, and begin sequences with them
 * (prefixes.c). Around them, engines are killed at any instruction; daemons are killed and stopped, while idle, among
 * requests, or with replies that do not arrive; an operator swaps policies, drops sequences by name, parks and resumes
 * them; the configuration is reloaded (disturb.c, by-name.c).
 *
 * What is checked.
 * - No call of a living engine fails except with required refusals, each kind of which is justified and counted: a name
 *   that is taken, gone or busy (names.c), a length that an evicted or compressed sequence cannot go back to, quotas,
 *   several rows under a policy of one.
 * - A named sequence exists until it is dropped, whatever dies. An engine that attaches it finds the ids and the next
 *   id of its last recorded step, or of the one that was in progress; each id is compared (life.c).
 * - All outputs of all steps, bit by bit, and numbers of pages: when a sequence has been dropped, another, undisturbed
 *   daemon and a separate process do to a new sequence what its record says; death, hand-overs, batches, other
 *   sequences and sessions are not part of it (compare.c).
 * - What a sequence was given from a sealed prefix, from memory or from a store whose values are overwritten: it was
 *   sealed before, and each byte of its pages is what the prompt implies. compare.c reads these tokens as a prompt.
 * - At quiet points all figures add up, and no descriptor or memory is lost (quiet.c). The log has no complaint.
 *
 * After a failure the test prints the seed, the last actions of engines, and the end of the daemon's log, and all files
 * stay. A life that differs from the undisturbed run is written, too: SOAK_LIFE=FILE, with the SKV_SEED of that run,
 * compares it once more and does nothing else.
 */
#include "tests/soak/soak.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/manager.h"
#include "tests/support/policies.h"
#include "tests/support/reference-codec.h"

#define SHORT_S 7
#define SHORT_ENGINES 4u
#define QUIET_S 20 /* from one quiet point to the next */

struct soak *soak;
struct skv_model soak_model;

static void set_up(uint32_t engines)
{
	static char texts[SOAK_SPECS][POLICY_SPEC];
	const char *specs[SOAK_SPECS];
	const int n = policy_rows(SET_SOAK);
	struct refmodel w = {0};

	soak = mmap(NULL, sizeof(*soak), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(soak, MAP_FAILED);
	for (uint32_t i = 0; i < SOAK_NAMES; i++)
		soak->name[i].life = SOAK_NONE;
	refmodel_model(&w.model, "soak", SKV_F32, SOAK_LONG + 16);
	refmodel_packable(&w.model);
	soak_model = w.model;
	manager_open();
	child_before_failure = report_failure;
	policy_codecs(&soak_model, 1, manager_folder());
	for (int i = 0; i < n; i++)
		specs[i] = policy_row_spec(policy_row(SET_SOAK, i), manager_folder(), texts[i]);
	compare_begin(specs, (uint32_t)n);
	disturb_begin(engines);
}

static void finish(void)
{
	quiet_point();
	disturb_end();
	parks_check_none();
	compare_end();
	manager_expect_kept(0);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	quiet_check_log();
	for (uint32_t i = 0; i < SOAK_LIVES; i++)
		ck_assert_msg(life_state(&soak->life[i]) == SOAK_FREE, "life %u has no end", i);
}

START_TEST(all_of_it)
{
	const char *given = getenv("SOAK_SECONDS");
	const char *life = getenv("SOAK_LIFE");
	const double seconds = given ? atof(given) : SHORT_S, begin = fix_now();
	double quiet_s = given ? QUIET_S : 2.5, quiet = begin + quiet_s;
	uint32_t pause_us = 60000;

	set_up(given ? SOAK_ENGINES : SHORT_ENGINES);
	if (life) {
		compare_file(life);
		return;
	}
	compare_start();
	disturb_start();
	while (fix_now() < begin + seconds) {
		usleep(rnd_below(pause_us));
		disturb_check();
		compare_check();
		if (fix_now() < quiet) {
			disturb_once();
			continue;
		}
		quiet_point();
		pause_us = 10000u << rnd_below(6); /* varies between frequent and rare disturbances */
		quiet = fix_now() + quiet_s;
	}
	finish();
	report_summary(fix_now() - begin);
	manager_close();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-soak");

	setenv("CK_FORK", "no", 1); /* forked, Check cannot report a timeout of more than 35 minutes */
	add_case(s, "soak", 1e7, NULL, NULL, all_of_it, NULL);
	return run_suite(s);
}
