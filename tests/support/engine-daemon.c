/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/engine-daemon.h"

#include <check.h>
#include <stdlib.h>

char *folder;
struct eng_private *engine_daemon;
struct skv_client *engine_client;

void daemon_setup(void)
{
	struct eng_error err;
	int r;

	folder = fx_folder();
	setenv("TMPDIR", folder, 1);
	setenv("SPARSEKVD", run_built("daemon/sparsekvd"), 1);
	r = eng_private_start(0, NULL, &engine_daemon, &engine_client, &err);
	ck_assert_msg(!r, "%s", err.text);
}

void daemon_teardown(void)
{
	skv_disconnect(engine_client);
	eng_private_stop(engine_daemon);
	fx_remove(folder);
}

void ok(int r)
{
	ck_assert_msg(r >= 0, "%s", skv_last_error());
}
