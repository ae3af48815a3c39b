/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/client-fixture.h"

struct fix daemon_;
struct raw *op;
struct skv_client *client;

void client_begin(const char *const *options)
{
	fix_start_process(&daemon_, options);
	op = raw_operator(daemon_.socket);
	OK(skv_connect(&client, daemon_.socket));
}

void client_end(void)
{
	skv_disconnect(client);
	raw_close(op);
	fix_stop(&daemon_);
}
