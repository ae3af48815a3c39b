/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/step-delta.c - sparsekv-bench step: compares steps under the policy delta with steps under full, with the whole
 * stack (daemon, client library, kernels): attention alone, and within a model.
 *
 * The two policies take turns with the same sequences, which are handed over from one session to the other. On a device
 * a step is a replay of a recording. The time of attention includes storing K and V of new tokens. The model has the
 * shape of a model that the paper (DELTA) measures, and random weights.
 */
#include "bench/stack-fixture.h"
#include "bench/step.h"
#include "engine/forward.h"
#include <stdlib.h>

#define TURNS 3 /* how often each policy is measured */
#define WARM 3  /* number of steps after each change of the session that are not counted */

/* ---- attention alone ------------------------------------------------------------------------- */

static void attend_steps(struct stack_fixture *stack, const struct eng_model *model, long n, struct step_times *to)
{
	struct stack_times t;
	(void)model;
	for (long i = -WARM; i < n; i++) {
		stack_step(stack, stack->device ? STACK_REPLAY : STACK_CALLS, &t);
		if (i < 0 || t.recorded)
			continue;
		to->device_ms[to->n++] = t.device_ms;
		to->whole_ms[to->n_whole++] = t.whole / 1e3;
	}
}

/* ---- a model --------------------------------------------------------------------------------- */

static void need(int r, const struct eng_error *err)
{
	if (r < 0) {
		fprintf(stderr, "sparsekv-bench: %s\n", err->text);
		exit(1);
	}
}

/*
 * Returns the shape of a model. With 12 heads of dimension 128, `hidden` is 1536; the other sizes have the proportions
 * of DeepSeek-R1-Distill-Qwen-1.5B.
 */
static struct eng_config config_of(const struct step_options *o, uint32_t positions)
{
	uint32_t hidden = o->heads * (uint32_t)o->dim;
	return (struct eng_config){
		.hidden = hidden,
		.n_layers = (uint32_t)o->layers,
		.n_heads = o->heads,
		.n_kv_heads = o->kv_heads,
		.head_dim = (uint32_t)o->dim,
		.ffn = hidden / 6 * 35,
		.vocab = hidden * 99,
		.max_positions = positions,
		.rms_eps = 1e-6f,
		.rope = {.type = SKV_ROPE_DEFAULT, .theta = 10000},
		.bos = -1,
		.eos = -1,
	};
}

/* Runs steps of the model. The host reads the chosen tokens of each step before the next step begins. */
static void model_steps(struct stack_fixture *stack, const struct eng_model *model, long n, struct step_times *to)
{
	static const int32_t any = 0;
	struct eng_forward f;
	struct eng_error err;
	const int32_t *ids;

	need(eng_forward_init(&f, model, stack->n, &err), &err);
	for (uint32_t s = 0; s < stack->n; s++)
		stack->item[s].tokens = &any;
	for (long i = -WARM; i < n; i++) {
		double begun = bench_now();
		need(eng_forward(&f, stack->session, stack->item, stack->n, &err), &err);
		stack_need(skv_step_end(stack->session, f.id, NULL));
		need(eng_forward_fetch(&f, &err), &err);
		need(eng_forward_fetched(&f, &ids, &err), &err);
		if (i >= 0)
			to->whole_ms[to->n_whole++] = (bench_now() - begun) * 1e3;
		for (uint32_t s = 0; s < stack->n; s++)
			stack->item[s].tokens = NULL; /* NULL: the input is the tokens that the last step chose */
	}
	eng_forward_deinit(&f);
}

/* ---- both ------------------------------------------------------------------------------------ */

typedef void take_steps(struct stack_fixture *, const struct eng_model *, long n, struct step_times *);

/* Measures both policies. The policies take turns, because the speed of a machine varies over time. */
static void take_turns(struct report *r, const char *setting, const struct step_options *o, struct stack_fixture *stack,
                       const struct skv_model *shape, const struct eng_model *model, take_steps *steps)
{
	struct step_times *full = calloc(2, sizeof *full), *delta = full + 1;
	const long each = (o->repeat + TURNS - 1) / TURNS;
	char spec[64];

	snprintf(spec, sizeof spec, "delta?budget=%u", skv_pages_of((uint32_t)o->budget));
	stack_open(stack, shape, "full");
	stack_fill(stack, (uint32_t)o->batch, (uint32_t)o->tokens, 2 * TURNS * (uint32_t)(each + WARM));
	for (int turn = 0; turn < TURNS; turn++) {
		steps(stack, model, each, full);
		stack_hand_over(stack, spec);
		steps(stack, model, each, delta);
		stack_hand_over(stack, "full");
	}
	step_report(r, setting, o, "full", full, "delta", delta);
	stack_empty(stack);
	stack_close(stack);
	free(full);
}

static void measure(struct report *r, const char *setting, const struct step_options *given, take_steps *steps)
{
	struct eng_model model = ENG_MODEL_NULL;
	struct skv_model shape = SKV_MODEL_INIT;
	struct step_options o = *given;
	struct eng_backend *backend = NULL;
	struct eng_config config;
	struct eng_error err;
	struct stack_fixture stack;

	step_defaults(&o, &(struct step_options){.heads = 12, .kv_heads = 2, .layers = 28, .dim = 128, .batch = 64,
	                                         .tokens = 18432, .budget = 1024});
	config = config_of(&o, (uint32_t)o.tokens + 2 * TURNS * ((uint32_t)o.repeat + WARM));
	shape.n_layers = config.n_layers;
	shape.n_heads = config.n_heads;
	shape.n_kv_heads = config.n_kv_heads;
	shape.head_dim = config.head_dim;
	shape.max_tokens = config.max_positions;
	shape.kv_dtype = SKV_BF16;
	snprintf(shape.name, sizeof shape.name, "bench");

	stack_start(&stack, o.device);
	if (steps == model_steps) {
		need(eng_backend_open(&backend, o.device, &err), &err);
		need(eng_model_random(&model, &config, backend, o.device ? SKV_BF16 : SKV_F32, 1, &err), &err);
	}
	take_turns(r, setting, &o, &stack, &shape, &model, steps);
	eng_model_deinit(&model);
	eng_backend_close(backend);
	stack_stop(&stack);
}

void step_delta(struct report *r, const struct step_options *o)
{
	measure(r, "delta", o, attend_steps);
}

void step_model(struct report *r, const struct step_options *o)
{
	measure(r, "model", o, model_steps);
}
