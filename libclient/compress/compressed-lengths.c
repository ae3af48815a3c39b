/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/compressed-lengths.c - which tokens of a layer are compressed, and in which form, computed from
 * the sequence's length and the plan alone.
 *
 * When a decode step of a sequence with n committed tokens attends, the tokens below compress_end(n) are compressed;
 * after its commit, the tokens below compress_end(n + 1) are. The other sequences of the step, and how a prompt was
 * chunked, do not matter. A step that is repeated after the engine died compresses the same tokens.
 */
#include "libclient/compress/compressed-lengths.h"

#include "kernels/compress.h"

uint32_t compress_first(const struct skv_compress *k)
{
	return skv_pages_of(k->sinks) * SKV_PAGE_TOKENS;
}

uint32_t compress_end(const struct skv_compress *k, uint32_t n)
{
	uint32_t first = compress_first(k), stays = first + k->residual;

	if (k->kind == SKV_COMPRESS_NONE || n < stays + k->block)
		return 0;
	return first + (n - stays) / k->block * k->block;
}

struct records compress_records(const struct skv_shape *sh, enum skv_page_kind group, uint32_t coded)
{
	const struct skv_codec *c = sh->codec;
	const bool codes = group == SKV_PAGES_CODES;
	const uint32_t n = codes ? skv_code_records(sh, coded) : skv_refs_before(c, coded);

	if (coded <= c->first || n == 0)
		return (struct records){.each = 1};
	return (struct records){
	        .n = n,
	        .each = (uint32_t)(sh->page_bytes /
	                           (codes ? skv_code_record_bytes(sh) : skv_ref_bytes(c, skv_codec_dims(sh), sh->dtype))),
	};
}

/* Bytes that store the number of a reference, in sequences of up to max_tokens tokens: 2 or 4; 0 without references. */
static uint32_t id_bytes(const struct skv_compress *k, uint32_t max_tokens)
{
	uint32_t first = compress_first(k), more = max_tokens > first ? max_tokens - first : 0;

	if (!k->stride)
		return 0;
	return first + (more + k->stride - 1) / k->stride <= 65536 ? 2 : 4;
}

struct skv_form compress_form(const struct skv_compress *k, uint32_t max_tokens)
{
	return (struct skv_form){
	        .kind = (uint8_t)k->kind,
	        .bits = (uint8_t)k->bits,
	        .scale_block = (uint8_t)k->scale_block,
	        .stride = (uint8_t)k->stride,
	        .n_refs = (uint8_t)k->n_refs,
	        .ref_bits = (uint8_t)k->ref_bits,
	        .id_bytes = (uint8_t)id_bytes(k, max_tokens),
	        .first = (uint8_t)(compress_first(k) / SKV_PAGE_TOKENS),
	};
}
