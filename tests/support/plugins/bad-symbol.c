/* SPDX-License-Identifier: Apache-2.0 */
/* A valid shared object that is no policy: it exports another symbol. */
#include "tests/support/plugins/plugin.h"

SKV_POLICY_EXPORT const struct skv_policy *sparsekv_policy_v0(void);

static const struct skv_policy policy = {GOOD_POLICY("bad-symbol")};

const struct skv_policy *sparsekv_policy_v0(void)
{
	return &policy;
}
