/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ctl/answer.c - functions with which all commands of sparsekvctl print a reply or an error. */
#include <errno.h>
#include "daemon/ctl/ctl.h"

int skv_ctl_complain(const struct skv_ctl *ctl, int error)
{
	fprintf(stderr, "sparsekvctl: %s\n", ctl->err);
	return error == -ETIMEDOUT || error == -ECONNRESET || error == -EPIPE ? SKV_EXIT_UNREACHABLE
	                                                                      : SKV_EXIT_REFUSED;
}

void skv_ctl_print_json(json_t *value)
{
	json_dumpf(value, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(value);
}
