/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/step-delta.c - steps through the whole stack: daemon, client library, the policy delta, against
 * full.
 *
 * The same sequences step under both, handed over from one session to the other in turns. What is measured
 * is attention, with the new tokens' K and V written; on a device as a replay of a recording.
 */
#include "bench/rig.h"
#include "bench/step.h"
#include <sparsekv/types.h>

#define TURNS 3 /* of each policy */
#define WARM 3  /* steps after a change of sessions that do not count */

static void take_steps(struct rig *rig, long n, struct step_times *to)
{
	struct rig_times t;
	for (long i = -WARM; i < n; i++) {
		rig_step(rig, rig->device, &t);
		if (i < 0 || t.recorded)
			continue;
		to->device_ms[to->n++] = t.device_ms;
		to->whole_ms[to->n_whole++] = t.whole / 1e3;
	}
}

void step_delta(struct report *r, const struct step_options *given)
{
	static struct step_times full, delta;
	struct skv_model m = SKV_MODEL_INIT;
	struct step_options o = *given;
	struct rig rig;
	char spec[64];

	step_defaults(&o, &(struct step_options){.heads = 12, .kv_heads = 2, .layers = 28, .dim = 128, .batch = 64,
	                                         .tokens = 18432, .budget = 1024});
	const long each = (o.repeat + TURNS - 1) / TURNS;
	m.n_layers = (uint32_t)o.layers;
	m.n_heads = o.heads;
	m.n_kv_heads = o.kv_heads;
	m.head_dim = (uint32_t)o.dim;
	m.kv_dtype = SKV_BF16;
	m.max_tokens = (uint32_t)(o.tokens + 2 * TURNS * (each + WARM));
	snprintf(m.name, sizeof m.name, "bench");
	snprintf(spec, sizeof spec, "delta?budget=%u", skv_pages_of((uint32_t)o.budget));

	rig_start(&rig, o.device);
	rig_open(&rig, &m, "full");
	rig_fill(&rig, (uint32_t)o.batch, (uint32_t)o.tokens, m.max_tokens - (uint32_t)o.tokens);
	for (int turn = 0; turn < TURNS; turn++) {
		take_steps(&rig, each, &full);
		rig_hand_over(&rig, spec);
		take_steps(&rig, each, &delta);
		rig_hand_over(&rig, "full");
	}
	step_report(r, "delta", &o, "full", &full, "delta", &delta);
	rig_empty(&rig);
	rig_close(&rig);
	rig_stop(&rig);
}
