/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/client-test.h - macros shared by the tests of libclient/. */
#ifndef SKV_CLIENT_TEST_H
#define SKV_CLIENT_TEST_H

#include <check.h>
#include <sparsekv/client.h>

#include "tests/support/daemon-fixture.h"
#include "tests/support/device-helper.h"
#include "tests/support/random.h"
#include "tests/support/reference-model.h"
#include "tests/support/suite.h"

#define OK(call)                                                                                            \
	do {                                                                                                \
		int ok_ = (call);                                                                           \
		ck_assert_msg(ok_ == 0, "%s: %d %s", #call, ok_, skv_last_error());                         \
	} while (0)

/* The call fails with `error`, and the text of the last error contains `word`. */
#define FAILS(call, error, word)                                                                            \
	do {                                                                                                \
		int got_ = (call);                                                                          \
		ck_assert_msg(got_ == -(error), "%s: %d %s, expected %d", #call, got_, skv_last_error(),    \
		              -(error));                                                                    \
		ck_assert_msg(strstr(skv_last_error(), word), "%s: '%s' does not say '%s'", #call,          \
		              skv_last_error(), word);                                                      \
	} while (0)

/* `canonical`, the spec that a session runs, means the same as `spec`. */
#define RUNS_SPEC(canonical, spec)                                                                               \
	do {                                                                                                \
		const char *runs_ = (canonical), *says_ = (spec);                                           \
		ck_assert_msg(refmodel_runs(runs_, says_), "runs %s, expected %s", runs_, says_);              \
	} while (0)

#endif
