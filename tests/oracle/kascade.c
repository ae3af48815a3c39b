/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/kascade.c - kascade: anchor layers select tokens for each kv head, by the sum of α over its group; the
 * layers after an anchor attend to its tokens, kv head h to those of head map[h], here its own.
 *
 *   k = min(max(0.1 n, 128), n), rounded up like all budgets; the paper rounds down
 *
 * An anchor at layer 0 attends densely; the other anchors attend to their own selection, or densely (dense-anchors).
 * With `shared` the sum is over all heads, and there is one set. With scores=sketch α is that of the keys' sketches,
 * and the anchor at layer 0 attends to its own selection, too.
 */
#include "tests/oracle/oracle.h"

static bool dense_anchors(const char *spec)
{
	return oracle_is(spec, "variant", "dense-anchors") || oracle_is(spec, "variant", "shared-dense-anchors");
}

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	bool shared = oracle_is(spec, "variant", "shared") || oracle_is(spec, "variant", "shared-dense-anchors");
	uint32_t rows = shared ? 1 : s->model->n_kv_heads, bits = oracle_sketch_bits(spec, layer);
	struct oracle_step own = *s;

	/* an anchor that attends to its own selection selects by weights while it computes them */
	own.weight_steps = s->device_rounds && !bits && layer > 0 && !dense_anchors(spec);
	oracle_select(&own, layer, set, ORACLE_TOKENS, rows, ORACLE_SUM, bits, oracle_budget(spec, s->n, 128), 0, 0);
}

/* `auto`: the first layer, the third, and those at 2/5, 1/2 and 3/5 of the depth. */
static bool is_anchor(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	if (oracle_is(spec, "layers", "auto"))
		return layer == 0 || layer == 2 || layer == s->model->n_layers / 2 || oracle_fifths(s->model, layer);
	return oracle_layer_in(spec, "layers", layer);
}

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	oracle_followers(s, spec, set, is_anchor, choose);
	if (dense_anchors(spec))
		return;
	for (uint32_t layer = 1; layer < s->model->n_layers; layer++)
		if (is_anchor(s, spec, layer)) {
			oracle_sets_free(&set[layer], 1);
			choose(s, spec, layer, &set[layer]);
		}
}

const struct oracle_policy oracle_kascade = {.name = "kascade", .attend = attend};
