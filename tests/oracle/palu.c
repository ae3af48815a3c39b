/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/palu.c - palu: looks at everything. A block is packed as soon as `raw` tokens are behind it. */
#include "tests/oracle/oracle.h"

static void look(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	oracle_full.look(s, spec, set);
}

static struct oracle_pack pack(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	uint32_t raw = (uint32_t)oracle_number(spec, "residual"), block = (uint32_t)oracle_number(spec, "block"), bytes;
	struct oracle_pack x = {0};

	if (layer < oracle_number(spec, "dense"))
		return x;
	while (x.coded + raw + block <= s->n)
		x.coded += block;
	bytes = oracle_numbers_bytes(s->width, (uint32_t)oracle_number(spec, "bits"), 2,
	                             (uint32_t)oracle_number(spec, "scale_block"));
	if (x.coded)
		x.pages = s->width ? oracle_record_pages(s->model, x.coded, bytes) : UINT32_MAX;
	return x;
}

const struct oracle_policy oracle_palu = {.name = "palu", .look = look, .pack = pack};
