/* SPDX-License-Identifier: Apache-2.0 */
/* A valid policy for new sequences that refuses sequences of another policy. */
#include <stdio.h>
#include "tests/support/plugins/plugin.h"

static int adopt(const struct skv_policy_ctx *ctx, char *err, size_t err_len)
{
	snprintf(err, err_len, "%u sequences to take over, this policy takes none", ctx->n_seqs);
	return -1;
}

static const struct skv_policy policy = {GOOD_POLICY("refuse-adopt"), .adopt = adopt};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
