/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/policy-compress.h - parameters and plans of policies that compress tokens older than a residual window, as
 * in several papers (KIVI, Palu, DeltaKV). Only policy.h includes this header.
 */
#ifndef SPARSEKV_POLICY_COMPRESS_H
#define SPARSEKV_POLICY_COMPRESS_H

#ifndef SPARSEKV_POLICY_H
#error "include <sparsekv/policy.h>"
#endif

#define SKV_QUANT_BLOCK 32u /* tokens whose K share a scale; blocks of quantized tokens are multiples of this number */

struct skv_compress_config {
	uint32_t bits;
	uint32_t scale_block;
	uint32_t residual;
	uint32_t block;
};

/* Rows of a parameter table, in the order of specs. The parameter `bits` is not here: each policy defines its own. */
#define SKV_COMPRESS_SCALE_PARAM(config, field, scale_block_default)                                        \
	{"scale_block", SKV_PARAM_UINT, offsetof(config, field.scale_block), scale_block_default,           \
	 "elements that share a scale: 32 or 64"}
#define SKV_COMPRESS_WINDOW_PARAMS(config, field)                                                           \
	{"residual", SKV_PARAM_UINT, offsetof(config, field.residual), "128",                               \
	 "residual window: last tokens that stay uncompressed, at least"},                                  \
	{"block", SKV_PARAM_UINT, offsetof(config, field.block), "32", "tokens compressed at a time"}

/*
 * Are the parameters' values valid, with blocks of a multiple of `multiple` tokens? 0, or -1 and a text that names the
 * bad parameter.
 */
static inline int skv_compress_config_check(const struct skv_compress_config *c, const struct skv_prefill_config *prefill,
                                     uint32_t multiple, char *err, size_t err_len)
{
	if (c->scale_block != 32 && c->scale_block != 64)
		snprintf(err, err_len, "scale_block=%u, expected 32 or 64", c->scale_block);
	else if (c->residual == 0)
		snprintf(err, err_len, "residual=0, expected at least 1");
	else if (c->block == 0 || c->block % multiple != 0)
		snprintf(err, err_len, "block=%u, expected a multiple of %u", c->block, multiple);
	else
		return skv_prefill_check(prefill, err, err_len);
	return -1;
}

/* Fill a layer's compression plan from the config; the plan has no reference tokens. */
static inline void skv_compress_plan(const struct skv_compress_config *c, enum skv_compress_kind kind,
                                     struct skv_compress *compress)
{
	compress->kind = kind;
	compress->bits = c->bits;
	compress->scale_block = c->scale_block;
	compress->residual = c->residual;
	compress->block = c->block;
}

#endif
