/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine-daemon.h - a test's own daemon and a folder, for the engine's tests that need one; see run-program.h. */
#ifndef SKV_TEST_ENGINE_DAEMON_H
#define SKV_TEST_ENGINE_DAEMON_H

#include "engine/private.h"
#include "tests/engine-fixture.h"
#include "tests/run-program.h"

#define LIMIT 60 /* seconds that a program may take */

extern char *folder; /* of the test; TMPDIR too, so that whatever programs leave behind is seen */
extern struct eng_private *daemon_;
extern struct skv_client *client;

/* A checked fixture. */
void daemon_setup(void);
void daemon_teardown(void);

/* Fails the test with the library's text if r < 0. */
void ok(int r);

#endif
