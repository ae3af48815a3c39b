/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/full.c - full: everything in memory. */
#include "tests/oracle/oracle.h"

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	(void)spec;
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++)
		oracle_dense(s, layer, &set[layer]);
}

const struct oracle_policy oracle_full = {.name = "full", .attend = attend};
