/* SPDX-License-Identifier: Apache-2.0 */
/* Loading it never returns. */
#include <unistd.h>
#include "tests/support/plugins/plugin.h"

__attribute__((constructor)) static void hang(void)
{
	for (;;)
		pause();
}

static const struct skv_policy policy = {GOOD_POLICY("bad-hang")};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
