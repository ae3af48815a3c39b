/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/palu.c - palu: attends to everything. A block is compressed as soon as `residual` tokens follow it.
 */
#include "tests/oracle/oracle.h"

static struct oracle_compress compress(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	uint32_t residual = (uint32_t)oracle_number(spec, "residual"), block = (uint32_t)oracle_number(spec, "block"), bytes;
	struct oracle_compress x = {0};

	if (layer < oracle_number(spec, "dense"))
		return x;
	while (x.coded + residual + block <= s->n)
		x.coded += block;
	bytes = oracle_numbers_bytes(s->width, (uint32_t)oracle_number(spec, "bits"), 2,
	                             (uint32_t)oracle_number(spec, "scale_block"));
	if (x.coded)
		x.pages = s->width ? oracle_record_pages(s->model, x.coded, bytes) : UINT32_MAX;
	return x;
}

const struct oracle_policy oracle_palu = {.name = "palu", .attend = oracle_attend_all, .compress = compress};
