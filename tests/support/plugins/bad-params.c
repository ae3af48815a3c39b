/* SPDX-License-Identifier: Apache-2.0 */
/* Has a parameter that would be written behind the end of the config. */
#include <stddef.h>
#include "tests/support/plugins/plugin.h"

struct config {
	uint32_t dense;
	struct skv_layer_set layers;
};

static const struct skv_param params[] = {
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that stay dense"},
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "auto", "layers that select"},
};

static const struct skv_policy policy = {
        GOOD_POLICY("bad-params"),
        .params = params,
        .n_params = sizeof(params) / sizeof(params[0]),
        .config_size = offsetof(struct config, layers) + sizeof(uint64_t),
};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
