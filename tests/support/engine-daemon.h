/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/engine-daemon.h - a daemon and a folder of a test's own, for the engine's tests. */
#ifndef SKV_TEST_ENGINE_DAEMON_H
#define SKV_TEST_ENGINE_DAEMON_H

#include "engine/private-daemon.h"
#include "tests/support/engine-fixture.h"
#include "tests/support/run-program.h"
#include "tests/support/suite.h"

#define LIMIT (slowed() ? 300 : 60) /* seconds that a program may take */

extern char *folder; /* of the test; also TMPDIR, so that the test sees files that programs leave behind */
extern struct eng_private *engine_daemon;
extern struct skv_client *engine_client;

/* A checked fixture. */
void daemon_setup(void);
void daemon_teardown(void);

/* Fails the test with the library's text if r < 0. */
void ok(int r);

#endif
