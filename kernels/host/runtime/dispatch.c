/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/dispatch.c - selects the kernels' instruction set (ISA) for this processor, and checks shapes,
 * for which all ISAs have the same limits.
 */
#include "config.h"
#include "kernels/compress-check.h"
#include "kernels/host/runtime/host.h"
#include <stdlib.h>
#include <string.h>
#if defined(SKV_ISA_AVX2) || defined(SKV_ISA_AVX512)
#include <cpuid.h>
#endif

/* configure defines SKV_ISA_... for each instruction set that was requested for the build. */
#ifdef SKV_ISA_GENERIC
static bool runs_generic(void)
{
	return true;
}
#endif

#if defined(SKV_ISA_AVX2) || defined(SKV_ISA_AVX512)
/* Asks the processor itself for F16C, because clang before 18 does not know "f16c" as a feature. */
static bool has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool runs_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#endif

#ifdef SKV_ISA_AVX512
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
#ifdef SKV_ISA_AVX512
	{&skv_kernels_avx512, runs_avx512},
#endif
#ifdef SKV_ISA_AVX2
	{&skv_kernels_avx2, runs_avx2},
#endif
#ifdef SKV_ISA_GENERIC
	{&skv_kernels_generic, runs_generic},
#endif
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
		return "the page dtype must be fp32, fp16, bf16 or fp8";
	if (sh->io_dtype != SKV_F32)
		return "q, k, v and out must be fp32 on host memory";
	if (sh->q_stride || sh->k_stride || sh->v_stride || sh->out_stride)
		return "rows must be contiguous on host memory";
	return NULL;
}

const char *skv_host_unsupported_codes(const struct skv_shape *sh)
{
	if (sh->dtype == SKV_FP8)
		return "K and V are compressed from pages of fp32, fp16 or bf16, not of fp8";
	return skv_codec_wrong(sh);
}
