/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the correction of sparse prompts with the kernels that ship. If neighbouring rows have similar errors, the
 * correction removes a large part of the error, and recomputing some rows does not. If the errors differ, the
 * correction makes them larger.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include "bench/fidelity.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define LAYERS 3u
#define LAST 64u
#define TRIALS 6

static const struct skv_prefill plan = {
	.how = SKV_PREFILL_STREAMING, .gamma = 64, .tail = 128, .sinks = 16, .window = 64};

struct trial {
	struct synthetic_shape s;
	struct synthetic_layers *stack;
	struct synthetic_layer *dense;
};

/* A method's results in each layer compared with dense attention in all layers; sums over trials. */
struct outcome {
	double error[LAYERS], ranks[LAYERS];
};

static struct trial begin(double topic)
{
	struct trial t = {.s = {.tokens = 1000 + rnd_below(200), .heads = 4, .kv_heads = 2, .dim = 32, .layers = LAYERS,
	                        .topic = topic, .seed = rnd64(), .threads = 1, .kern = skv_kernels_host(NULL)}};
	const struct synthetic_method dense = {.name = "dense"};

	t.stack = synthetic_layers_new(&t.s);
	ck_assert_ptr_nonnull(t.stack);
	t.dense = synthetic_run(t.stack, &dense);
	ck_assert_ptr_nonnull(t.dense);
	return t;
}

static void end(struct trial *t)
{
	synthetic_outputs_free(t->stack, t->dense);
	synthetic_layers_free(t->stack);
}

static void read_so(struct trial *t, uint32_t correct, struct outcome *sum)
{
	struct synthetic_method way = {.name = "sparse", .plan = plan};
	struct synthetic_layer *got;

	way.plan.correct = correct;
	got = synthetic_run(t->stack, &way);
	ck_assert_ptr_nonnull(got);
	for (uint32_t l = 0; l < LAYERS; l++) {
		sum->error[l] += fidelity_error(&t->s, got[l].out, t->dense[l].out, 0, t->s.tokens);
		sum->ranks[l] += fidelity_ranks(&t->s, &got[l], &t->dense[l], t->s.tokens - LAST, t->s.tokens);
	}
	synthetic_outputs_free(t->stack, got);
}

/* A single stack may have topics that hardly need distant tokens; several stacks average this out. */
static void run_trials(double topic, struct outcome of[3])
{
	for (int i = 0; i < TRIALS; i++) {
		struct trial t = begin(topic);

		read_so(&t, SKV_CORRECT_NONE, &of[SKV_CORRECT_NONE]);
		read_so(&t, SKV_CORRECT_RECOMPUTE, &of[SKV_CORRECT_RECOMPUTE]);
		read_so(&t, SKV_CORRECT_DELTA, &of[SKV_CORRECT_DELTA]);
		end(&t);
	}
}

/* The last queries' ranks of keys improve, too: they depend on the outputs of the layers before. */
START_TEST(gives_back_what_rows_miss_alike)
{
	struct outcome of[3] = {0}, *none = &of[SKV_CORRECT_NONE], *some = &of[SKV_CORRECT_RECOMPUTE],
	               *delta = &of[SKV_CORRECT_DELTA];

	run_trials(0.998, of);
	for (uint32_t l = 0; l < LAYERS; l++) {
		/* over 40 seeds a fifth to a third is left at the mean, 0.47 at most */
		ck_assert_msg(delta->error[l] < 0.75 * none->error[l], "layer %u: of %g is left %g", l, none->error[l],
		              delta->error[l]);
		ck_assert_msg(some->error[l] > 0.95 * none->error[l], "layer %u: of %g is left %g, recomputed", l,
		              none->error[l], some->error[l]);
		if (l == 0)
			continue;
		ck_assert_msg(TRIALS - delta->ranks[l] < 0.6 * (TRIALS - none->ranks[l]), "layer %u: ranks %g, were %g", l,
		              delta->ranks[l] / TRIALS, none->ranks[l] / TRIALS);
		ck_assert_double_le(fabs(some->ranks[l] - none->ranks[l]), 0.01 * TRIALS);
	}
}
END_TEST

START_TEST(does_harm_where_they_do_not)
{
	struct outcome of[3] = {0}, *none = &of[SKV_CORRECT_NONE], *delta = &of[SKV_CORRECT_DELTA];

	run_trials(0, of);
	for (uint32_t l = 0; l < LAYERS; l++) {
		ck_assert_double_gt(delta->error[l], 1.3 * none->error[l]);
		if (l)
			ck_assert_double_lt(delta->ranks[l], none->ranks[l]);
	}
}
END_TEST

/* Also checks the bound of Lemma 1, for streaming's tokens and for the best tokens. */
static void look_at(struct trial *t, struct eng_delta_similarity sum[LAYERS])
{
	const struct synthetic_method way = {.name = "streaming", .plan = plan};
	float *out = malloc((size_t)t->s.tokens * t->s.heads * t->s.dim * sizeof *out);

	for (uint32_t l = 0; l < LAYERS; l++) {
		struct eng_delta_similarity a;

		ck_assert(synthetic_attend(t->stack, &t->dense[l], &way, out));
		a = fidelity_alike(&t->s, t->dense[l].out, out, plan.gamma);
		eng_delta_similarity_merge(&sum[l], &a);
		for (int best = 0; best < 2; best++) {
			const struct fidelity_lemma f =
				fidelity_lemma(&t->s, &t->dense[l], &plan, best, out, t->s.tokens - LAST, t->s.tokens);

			ck_assert_msg(f.worst <= 1 && f.rest > 0, "layer %u: %g of the bound", l, f.worst);
		}
	}
	free(out);
}

START_TEST(is_foretold_by_how_alike_they_are)
{
	const double topics[] = {0.998, 0};

	for (int i = 0; i < 2; i++) {
		struct eng_delta_similarity sum[LAYERS] = {0};

		for (int j = 0; j < TRIALS; j++) {
			struct trial t = begin(topics[i]);

			look_at(&t, sum);
			end(&t);
		}
		for (uint32_t l = 0; l < LAYERS; l++) {
			const double cosine = eng_delta_similarity_cosine(&sum[l]), left = eng_delta_similarity_left(&sum[l]);

			ck_assert_msg(i ? cosine < 0.3 : cosine > 0.6, "layer %u: cosine %g", l, cosine);
			ck_assert_msg(i ? left > 1.3 : left < 0.75, "layer %u: left %g", l, left);
		}
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-correction");

	add_case(s, "correction", 300, NULL, NULL, gives_back_what_rows_miss_alike,
	         does_harm_where_they_do_not, is_foretold_by_how_alike_they_are, NULL);
	return run_suite(s);
}
