/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/run.h - the steps that one session makes with the sequences of a case. */
#ifndef SKV_ORACLE_STINT_H
#define SKV_ORACLE_STINT_H

#include "tests/oracle/case.h"
#include "tests/oracle/verify.h"

/* Records the first failure. Returns false. */
bool verify_fails(struct verify *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Does the session run the policy that is being verified? */
bool verify_is_own(const struct verify *, struct skv_session *);

/*
 * Attaches the sequences, or makes them with their prompts if they do not exist yet, decodes `steps` tokens of each,
 * and checks everything. Then detaches them; with `last`, and after a failure, drops them.
 */
bool stint(struct verify *, struct oracle_case *, struct skv_session *, uint32_t steps, bool last);

#endif
