/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/kivi.c - kivi: attends to everything. A block is compressed as soon as `residual` tokens follow it.
 */
#include "tests/oracle/oracle.h"

/* Each head has one record for every 32 tokens. */
static uint32_t pages_of(const struct skv_model *m, uint32_t coded, uint32_t bits, uint32_t group)
{
	uint32_t numbers = 2 * 32 * m->head_dim, pairs = m->head_dim + 32 * (m->head_dim / group);
	uint32_t each = (uint32_t)(skv_page_bytes(m) / (numbers * bits / 8 + pairs * 4));

	return (coded / 32 * m->n_kv_heads + each - 1) / each;
}

struct oracle_compress oracle_quantized(const struct oracle_step *s, uint32_t bits, uint32_t group, uint32_t residual,
                                   uint32_t block)
{
	struct oracle_compress x = {0};

	if (bits == 16)
		return x;
	while (x.coded + residual + block <= s->n)
		x.coded += block;
	x.pages = pages_of(s->model, x.coded, bits, group);
	x.bits = bits;
	x.group = group;
	return x;
}

static struct oracle_compress compress(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	uint32_t bits = layer < oracle_number(spec, "dense") ? 16 : (uint32_t)oracle_number(spec, "bits");

	return oracle_quantized(s, bits, (uint32_t)oracle_number(spec, "scale_block"), (uint32_t)oracle_number(spec, "residual"),
	                       (uint32_t)oracle_number(spec, "block"));
}

const struct oracle_policy oracle_kivi = {.name = "kivi", .attend = oracle_attend_all, .compress = compress};
