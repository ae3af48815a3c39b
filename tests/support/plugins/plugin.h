/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/plugins/plugin.h - a valid policy; each file beside it breaks one part of it. */
#ifndef SKV_TEST_PLUGIN_H
#define SKV_TEST_PLUGIN_H

#include <sparsekv/policy.h>

static void plan_dense(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	(void)config;
	(void)m;
	(void)layer;
	(void)plan;
}

#define GOOD_POLICY(name_)                                                                                  \
	SKV_POLICY_HEADER, .name = name_, .version = "1", .summary = "A test", .plan = plan_dense

#endif
