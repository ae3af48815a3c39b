/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/deltakv.c - deltakv: filter layers select, however the tokens are stored. The layers that follow
 * a filter compress their tokens, a block at a time as soon as `residual` tokens follow it; if there are references,
 * the first page stays uncompressed. With full_bits the other layers quantize theirs.
 */
#include "tests/oracle/oracle.h"

static bool compresses(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	bool follows = false;

	for (uint32_t i = 0; i < layer; i++)
		follows |= oracle_is_filter(s, spec, i);
	return follows && layer >= oracle_number(spec, "dense") && !oracle_is_filter(s, spec, layer);
}

uint32_t oracle_record_pages(const struct skv_model *m, uint32_t n, uint32_t bytes)
{
	uint32_t each = (uint32_t)(skv_page_bytes(m) / ((bytes + 15) / 16 * 16));

	return (n + each - 1) / each;
}

uint32_t oracle_numbers_bytes(uint32_t n, uint32_t bits, uint32_t bytes_of_16, uint32_t group)
{
	return bits == 16 ? n * bytes_of_16 : bits ? n * bits / 8 + n / group * 4 : 0;
}

static struct oracle_compress compress(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	uint32_t stride = (uint32_t)oracle_number(spec, "stride"), bits = (uint32_t)oracle_number(spec, "bits");
	uint32_t residual = (uint32_t)oracle_number(spec, "residual"), block = (uint32_t)oracle_number(spec, "block");
	uint32_t d = 2 * s->model->n_kv_heads * s->model->head_dim, codes = 0, refs = stride ? ORACLE_PAGE : 0;
	struct oracle_compress x = {.first = stride ? ORACLE_PAGE : 0};
	uint32_t from = x.first, code, ref;

	if (!compresses(s, spec, layer))
		return oracle_quantized(s, (uint32_t)oracle_number(spec, "full_bits"), s->model->head_dim % 128 ? 32 : 64, residual,
		                       block % 32 ? block / 32 * 32 + 32 : block);
	for (; from + residual + block <= s->n; from += block)
		x.coded = from + block;
	for (uint32_t t = x.first; t < x.coded; t++)
		*(stride && (t - x.first) % stride == 0 ? &refs : &codes) += 1;
	if (x.coded == 0)
		return x;
	code = 2 * (uint32_t)oracle_number(spec, "n_refs") +
	       oracle_numbers_bytes(s->width, bits, 2, (uint32_t)oracle_number(spec, "scale_block"));
	ref = oracle_numbers_bytes(d, (uint32_t)oracle_number(spec, "ref_bits"),
	                           (uint32_t)skv_dtype_bytes(s->model->kv_dtype), 64);
	x.pages = bits && !s->width ? UINT32_MAX
	                            : oracle_record_pages(s->model, codes, code) + oracle_record_pages(s->model, refs,
			ref);
	return x;
}

const struct oracle_policy oracle_deltakv = {.name = "deltakv", .attend = oracle_attend_filters, .compress = compress};
