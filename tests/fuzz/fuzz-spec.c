/* SPDX-License-Identifier: Apache-2.0 */
/* Parses a spec: an accepted one can be printed and parsed to the same config; a rejected one has a text. */
#include <string.h>

#include "common/spec.h"
#include "common/wire.h"
#include "tests/fuzz/fuzz.h"

struct config {
	struct skv_budget budget;
	uint32_t recent;
	float alpha;
	uint32_t pin, unused, variant;
	struct skv_layer_set layers;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "64", "units"},
        {"recent", SKV_PARAM_UINT, offsetof(struct config, recent), "0", "units"},
        {"alpha", SKV_PARAM_FLOAT, offsetof(struct config, alpha), "1e-4", "threshold"},
        {"pin", SKV_PARAM_BOOL, offsetof(struct config, pin), "0", "whether"},
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "auto", "layers"},
        {"variant", SKV_PARAM_CHOICE, offsetof(struct config, variant), "paper,eval,sglang-0_3", "whose"},
};

const char fuzz_name[] = "spec";
const int fuzz_copies = 300;

void fuzz_one(const uint8_t *data, size_t size)
{
	const struct skv_policy policy = {SKV_POLICY_HEADER, .name = "p", .params = params, .n_params = 6,
	                                  .config_size = sizeof(struct config)};
	const struct skv_model model = {.n_layers = 32};
	char err[SKV_TEXT_MAX] = "", printed[2048], *spec = malloc(size + 1);
	struct config c, again;

	MUST(spec);
	if (size)
		memcpy(spec, data, size);
	spec[size] = '\0';
	if (skv_spec_parse(&policy, spec, &model, &c, err, sizeof(err)) < 0) {
		MUST(err[0] != '\0');
		for (const char *p = err; *p; p++)
			MUST(*p >= 0x20 && *p < 0x7f);
	} else {
		MUST((c.budget.share > 0 && c.budget.share < 1) != (c.budget.count > 0));
		MUST(c.pin <= 1 && c.unused == 0 && c.variant <= 2);
		MUST((size_t)skv_spec_print(&policy, &c, printed, sizeof(printed)) < SKV_SPEC_MAX);
		MUST(skv_spec_parse(&policy, printed, &model, &again, err, sizeof(err)) == 0);
		MUST(memcmp(&c, &again, sizeof(c)) == 0 || c.alpha == 0);
	}
	free(spec);
}
