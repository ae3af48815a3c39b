/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/dispatch.c - which of the compiled ISAs this processor runs, and what all of them expect.
 */
#include "config.h"
#include "kernels/host/host.h"
#include <stdlib.h>
#include <string.h>
#ifdef SKV_X86_64
#include <cpuid.h>
#endif

static bool runs_generic(void)
{
	return true;
}

#ifdef SKV_X86_64
/* clang before 18 does not know "f16c" as a feature. */
static bool has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool runs_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool runs_avx512(void)
{
	return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

static const struct {
	const struct skv_kernels *kernels;
	bool (*runs)(void);
} isas[] = {
#ifdef SKV_X86_64
	{&skv_kernels_avx512, runs_avx512},
	{&skv_kernels_avx2, runs_avx2},
#endif
	{&skv_kernels_generic, runs_generic},
};

const struct skv_kernels *skv_kernels_host(const char *isa)
{
	if (!isa || !*isa)
		isa = getenv("SPARSEKV_ISA");
	for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
		bool wanted = !isa || !*isa || !strcmp(isa, isas[i].kernels->name);
		if (wanted && isas[i].runs())
			return isas[i].kernels;
	}
	return NULL;
}

const char *skv_host_unsupported(const struct skv_shape *sh)
{
	if (!sh->head_dim || sh->head_dim % 16 || sh->head_dim > SKV_MAX_HEAD_DIM)
		return "head_dim must be a multiple of 16, from 16 to 256";
	if (!sh->n_heads || sh->n_heads > SKV_MAX_HEADS)
		return "n_heads must be from 1 to 256";
	if (!sh->n_kv_heads || sh->n_heads % sh->n_kv_heads)
		return "n_heads must be a multiple of n_kv_heads";
	if (!skv_dtype_bytes(sh->dtype))
		return "the page dtype must be fp32, fp16 or bf16";
	if (sh->io_dtype != SKV_F32)
		return "q, k, v and out must be fp32 on host memory";
	return NULL;
}

/* What is wrong with references, or NULL. */
static const char *unsupported_refs(const struct skv_codes *c)
{
	if (!c->stride != !c->near)
		return "stride and near must both be 0, or neither";
	if (!c->stride)
		return NULL;
	if (c->stride < 2 || c->near > SKV_NEAR_MOST || c->near > c->first)
		return "stride must be at least 2, near at most 4 and first";
	if (c->ref_bits != 16 && c->ref_bits != 8 && c->ref_bits != 4)
		return "ref_bits must be 16, 8 or 4";
	if (c->id_bytes != 2 && c->id_bytes != 4)
		return "id_bytes must be 2 or 4";
	return NULL;
}

const char *skv_host_unsupported_codes(const struct skv_shape *sh)
{
	const struct skv_codes *c = sh->code;
	const uint32_t d = skv_token_dims(sh), parts = c->spans ? 2 * c->spans : 1;
	const char *wrong = unsupported_refs(c);

	if (wrong)
		return wrong;
	if (d > SKV_CODED_MOST || d % SKV_REF_GROUP)
		return "2 * n_kv_heads * head_dim must be a multiple of 64, at most 4096";
	if (c->first % SKV_PAGE_TOKENS)
		return "first must be a multiple of 16";
	if (c->turn_dims > sh->head_dim || c->turn_dims % 2)
		return "turn_dims must be even, at most head_dim";
	if (c->bits == 0)
		return c->stride ? NULL : "bits must not be 0 without references";
	if (c->bits != 16 && c->bits != 8 && c->bits != 4)
		return "bits must be 16, 8, 4 or 0";
	if ((c->group != 32 && c->group != 64) || !c->width || c->width > d || c->width % c->group)
		return "group must be 32 or 64, and width a multiple of it, at most 2 * n_kv_heads * head_dim";
	if (c->hidden % 64 || c->wide % 64 || c->hidden > SKV_CODED_MOST || c->wide > SKV_CODED_MOST)
		return "hidden and wide must be multiples of 64, at most 4096";
	if (c->spans && (sh->n_kv_heads % c->spans || c->width % (16 * parts) || c->hidden || c->wide))
		return "spans must divide n_kv_heads, and width be a multiple of 32 spans, without hidden and wide";
	return NULL;
}
