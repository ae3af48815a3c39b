/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/run.h - the steps that one session takes with the sequences of a oc. */
#ifndef SKV_ORACLE_STINT_H
#define SKV_ORACLE_STINT_H

#include "tests/oracle/case.h"
#include "tests/oracle/verify.h"

/* Note what failed, once. Returns false. */
bool verify_fails(struct verify *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Does the session run the policy that is verified? */
bool verify_is_own(const struct verify *, struct skv_session *);

/*
 * Attach the sequences, or make them with their prompts when nobody has had them, decode `steps` tokens of each
 * and check all of it. Then they are detached, or with `last` and after a failure dropped.
 */
bool stint(struct verify *, struct oracle_case *, struct skv_session *, uint32_t steps, bool last);

#endif
