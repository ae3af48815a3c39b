/* SPDX-License-Identifier: Apache-2.0 */
/* Crashes the process that loads it. */
#include <stdlib.h>
#include "tests/support/plugins/plugin.h"

__attribute__((constructor)) static void crash(void)
{
	abort();
}

static const struct skv_policy policy = {GOOD_POLICY("bad-crash")};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
