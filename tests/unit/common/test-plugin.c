/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policy blocks, each with one wrong field: each is refused with a text that names it. Plans are tested in
 * test-plugin-plan.c.
 */
#include <stddef.h>

#include "tests/support/policy-file.h"
#include "tests/support/suite.h"

static void dense(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	(void)config;
	(void)m;
	(void)layer;
	(void)plan;
}

struct config {
	uint32_t a, b;
	struct skv_layer_set layers;
};

static struct skv_param params[3];
static struct skv_policy block;

static void reset(void)
{
	params[0] = (struct skv_param){"a", SKV_PARAM_UINT, offsetof(struct config, a), "1", "one"};
	params[1] = (struct skv_param){"b", SKV_PARAM_BOOL, offsetof(struct config, b), "true", "two"};
	params[2] = (struct skv_param){"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "1,2",
	                               "three"};
	block = (struct skv_policy){
	        SKV_POLICY_HEADER,
	        .name = "block",
	        .version = "1",
	        .summary = "A block",
	        .params = params,
	        .n_params = 3,
	        .config_size = sizeof(struct config),
	        .plan = dense,
	};
}

#define REFUSED(change, says)                                                                               \
	do {                                                                                                \
		reset();                                                                                    \
		change;                                                                                     \
		ck_assert_int_eq(skv_policy_check(&block, err, sizeof(err)), -EBADMSG);                     \
		ck_assert_text(err, says);                                                                  \
	} while (0)

START_TEST(spoiled_blocks)
{
	char name[SKV_NAME_MAX + 1];

	reset();
	ck_assert_int_eq(skv_policy_check(&block, err, sizeof(err)), 0);

	REFUSED(block.abi = 0, "abi is 0, expected 12");
	REFUSED(block.size -= 8, "size is");
	REFUSED(block.page_tokens = 32, "page_tokens is 32, expected 16");
	REFUSED(block.param_size++, "param_size is");
	REFUSED(block.plan_size = 0, "plan_size is 0");
	REFUSED(block.prims_size += 8, "prims_size is");
	REFUSED(block.name = NULL, "name");
	REFUSED(block.name = "", "name");
	REFUSED(block.name = "Block", "name is \"Block\"");
	REFUSED(block.name = "a?b", "name");
	memset(name, 'n', sizeof(name));
	name[SKV_NAME_MAX] = '\0';
	REFUSED(block.name = name, "name");
	REFUSED(block.version = NULL, "version");
	REFUSED(block.summary = "two\nlines", "summary");
	REFUSED(block.summary = NULL, "summary");
	REFUSED(block.action = 4, "action is 4, expected 0 to 3");
	REFUSED(block.granularity = 2, "granularity is 2");
	REFUSED(block.evidence = 5, "evidence is 5");
	REFUSED(block.scope = 3, "scope is 3");
	REFUSED(block.sharing = 3, "sharing is 3");
	REFUSED(block.plan = NULL, "plan is NULL");
	REFUSED(block.params = NULL, "n_params is 3 and params NULL");
	REFUSED(block.n_params = SKV_POLICY_MAX_PARAMS + 1, "n_params is 65");
	REFUSED(block.config_size = 1u << 20, "config_size is 1048576");
	REFUSED(block.config_size = 4,
	        "parameter b: offset is 4, expected a multiple of 4 within the 4 bytes");
	REFUSED(params[0].name = "", "parameter 0: name");
	REFUSED(params[0].name = "a=b", "parameter 0: name");
	REFUSED(params[1].help = NULL, "parameter b: help");
	REFUSED(params[1].type = 0, "parameter b: type is 0, expected 1 to 8");
	REFUSED(params[1].type = 9, "parameter b: type is 9");
	REFUSED(params[1].offset = 2, "parameter b: offset is 2");
	REFUSED(params[1].offset = UINT32_MAX - 3, "parameter b: offset is 4294967292");
	REFUSED(params[1].offset = 0, "parameter b: offset 0 is inside parameter a");
	REFUSED(params[1].offset = 16, "parameter layers: offset 8 is inside parameter b");
	REFUSED(params[2].name = "a", "parameter a: is there twice");
	REFUSED(params[0].def = "-1", "parameter a: default is \"-1\", expected a whole number");
	REFUSED(params[1].def = "yes", "parameter b: default is \"yes\", expected 0, 1, true or false");
	REFUSED(params[2].def = "", "parameter layers: default is \"\"");
	REFUSED((params[1].type = SKV_PARAM_CHOICE, params[1].def = "paper,"),
	        "parameter b: its choices are \"paper,\", expected words such as paper,eval, each once");
	REFUSED((params[1].type = SKV_PARAM_CHOICE, params[1].def = NULL), "parameter b: its choices are \"\"");
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-plugin");

	add_case(s, "block", 60, NULL, NULL, spoiled_blocks, NULL);
	return run_suite(s);
}
