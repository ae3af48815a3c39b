/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/client-fixture.h - a daemon, an operator connection and a client: the setup of most tests of
 * libclient/.
 */
#ifndef SKV_CLIENT_FIXTURE_H
#define SKV_CLIENT_FIXTURE_H

#include "tests/support/client-test.h"

extern struct fix daemon_;
extern struct raw *op; /* queries the core; loads and swaps policies */
extern struct skv_client *client;

/* `options`: extra options of the daemon, as for fix_start_process(). */
void client_begin(const char *const *options);
void client_end(void);

#endif
