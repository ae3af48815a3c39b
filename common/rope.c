/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/rope.c - rotary position embedding (RoPE): the angle by which each pair of a head's elements is rotated from
 * one token to the next.
 *
 * The engine and the client library both compute their rotations with the functions of this file.
 */
#include "common/rope.h"

#include <math.h>
#include <stdbool.h>
#include <sparsekv/client.h>

/*
 * The frequency of a pair under Llama 3.1's RoPE scaling. A pair that makes more than `high` full turns over the
 * original context keeps its frequency. A pair with fewer than `low` turns has its frequency divided by the factor.
 * Between the two limits the frequency is interpolated linearly in the number of turns.
 */
static double llama3(const struct skv_rope *r, double f)
{
	const double turns = r->original * f / (2 * M_PI);
	double fast;

	if (turns > r->high)
		return f;
	if (turns < r->low)
		return f / r->factor;
	fast = (turns - r->low) / (r->high - r->low);
	return fast * f + (1 - fast) * f / r->factor;
}

/* Returns the (fractional) index of the pair that makes this number of full turns over the original context. */
static double pair_of(const struct skv_rope *r, uint32_t dims, double turns)
{
	return dims * log(r->original / (2 * M_PI * turns)) / (2 * log(r->theta));
}

/*
 * The frequency of pair i under YaRN, which interpolates linearly in the index of the pair, between two whole indices.
 * The YaRN paper interpolates in the number of turns; its authors' code, and all models trained with that code,
 * interpolate in the index.
 */
static double yarn(const struct skv_rope *r, uint32_t dims, uint32_t i, double f)
{
	const double first = fmax(floor(pair_of(r, dims, r->high)), 0);
	const double last = fmin(ceil(pair_of(r, dims, r->low)), dims - 1);
	const double slow = fmin(fmax((i - first) / fmax(last - first, 0.001), 0), 1);

	return slow * f / r->factor + (1 - slow) * f;
}

double skv_rope_frequency(const struct skv_rope *r, uint32_t head_dim, uint32_t i)
{
	const uint32_t dims = r->dims ? r->dims : head_dim;
	const double f = pow(r->theta, -2.0 * i / dims);

	switch (r->type) {
	case SKV_ROPE_DEFAULT:
		return f;
	case SKV_ROPE_LINEAR:
		return f / r->factor;
	case SKV_ROPE_LLAMA3:
		return llama3(r, f);
	case SKV_ROPE_YARN:
		return yarn(r, dims, i, f);
	default:
		return 0;
	}
}

double skv_rope_scale(const struct skv_rope *r)
{
	if (r->type != SKV_ROPE_YARN)
		return 1;
	if (r->attention > 0)
		return r->attention;
	return r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1;
}

static bool positive(double x)
{
	return isfinite(x) && x > 0;
}

const char *skv_rope_check(const struct skv_rope *r, uint32_t head_dim)
{
	const bool passage = r->type == SKV_ROPE_LLAMA3 || r->type == SKV_ROPE_YARN;

	if (r->type > SKV_ROPE_YARN)
		return "model: rope.type must be 0 to 5, one of enum skv_rope_type";
	if (r->type == SKV_ROPE_UNKNOWN || r->type == SKV_ROPE_NONE)
		return NULL;
	if (r->dims > head_dim || r->dims % 2)
		return "model: rope.dims must be even and at most head_dim, or 0 for all of it";
	if (r->interleaved > 1 || r->reserved)
		return "model: rope.interleaved must be 0 or 1, and what is reserved 0";
	if (!isfinite(r->theta) || r->theta <= 1)
		return "model: rope.theta must be above 1";
	if (r->type != SKV_ROPE_DEFAULT && !positive(r->factor))
		return "model: rope.factor must be above 0";
	if (passage && (!positive(r->low) || !positive(r->original) || !isfinite(r->high) || r->high <= r->low))
		return "model: rope.low and rope.original must be above 0, and rope.high above rope.low";
	if (!isfinite(r->attention) || r->attention < 0)
		return "model: rope.attention must be positive, or 0 for what follows from the factor";
	return NULL;
}
