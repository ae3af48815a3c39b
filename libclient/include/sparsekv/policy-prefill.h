/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/policy-prefill.h - parameters that say how prompts attend, which any policy can offer to its user. Only
 * policy.h includes this header.
 *
 * A policy that offers them has a struct skv_prefill_config in its config, SKV_PREFILL_PARAMS(struct config, FIELD) in
 * its parameter table, skv_prefill_check() in its check() and skv_prefill_plan() in its plan(). The parameter `prefill`
 * names the method. The names of all other prefill parameters begin with prefill_, which keeps them apart from the
 * policy's own.
 */
#ifndef SPARSEKV_POLICY_PREFILL_H
#define SPARSEKV_POLICY_PREFILL_H

#ifndef SPARSEKV_POLICY_H
#error "include <sparsekv/policy.h>"
#endif

struct skv_prefill_config {
	uint32_t method; /* index into SKV_PREFILL_METHODS, which gives `how` and `correct` of struct skv_prefill */
	uint32_t sinks;  /* number of attention sinks; 0: the method's default */
	uint32_t window; /* tokens of the window; 0: the method's default */
	uint32_t gamma;
	uint32_t tail;   /* number of dense rows at a prompt's end; 0: 128, or gamma if gamma is larger */
	/* number of tokens that HiP's last stage keeps; the second stage keeps 4 times as many, the first 16 times */
	uint32_t keep;
	uint32_t segment;
	uint32_t vertical, slash;
	struct skv_budget top;
	/* empty: the first full layer, and four evenly spaced ones from the third layer on */
	struct skv_layer_set anchors;
};

#define SKV_PREFILL_METHODS                                                                                 \
	"dense,streaming,streaming+delta,streaming+recompute,hip,hip+delta,hip+recompute,"                  \
	"minference,minference+delta,minference+recompute,kascade,kascade+delta,kascade+recompute"

#define SKV_PREFILL_PARAMS(config, field)                                                                   \
	SKV_PREFILL_PARAMS_BUT_ANCHORS(config, field),                                                      \
	{"prefill_anchors", SKV_PARAM_LAYERS, offsetof(config, field.anchors), "auto",                      \
	 "kascade: layers that select for those after them; auto: the first, and four evenly spaced from the third"}

/* For a policy that determines itself which layers select: all prefill parameters except prefill_anchors. */
#define SKV_PREFILL_PARAMS_BUT_ANCHORS(config, field)                                                       \
	{"prefill", SKV_PARAM_CHOICE, offsetof(config, field.method), SKV_PREFILL_METHODS,                  \
	 "how a prompt's rows attend; +recompute: some rows are dense, +delta: and these correct the others"}, \
	{"prefill_sinks", SKV_PARAM_UINT, offsetof(config, field.sinks), "0",                               \
	 "streaming, hip: attention sinks, first tokens that all rows attend to; 0: 1024, hip 256"},        \
	{"prefill_window", SKV_PARAM_UINT, offsetof(config, field.window), "0",                             \
	 "streaming, hip: last tokens before a row that it attends to; 0: 2048, hip 1024"},                 \
	{"prefill_gamma", SKV_PARAM_UINT, offsetof(config, field.gamma), "64",                              \
	 "+delta, +recompute: one row in so many is dense"},                                                \
	{"prefill_tail", SKV_PARAM_UINT, offsetof(config, field.tail), "0",                                 \
	 "+delta, +recompute: last rows of a prompt that are dense; 0: 128, or gamma if that is more"},     \
	{"prefill_keep", SKV_PARAM_UINT, offsetof(config, field.keep), "2048",                              \
	 "hip: tokens between sinks and window that a q head selects, in stages of 16, 4 and 1 times as many"}, \
	{"prefill_segment", SKV_PARAM_UINT, offsetof(config, field.segment), "2048",                        \
	 "minference: tokens of a segment, whose first 64 rows select for all of it"},                      \
	{"prefill_vertical", SKV_PARAM_UINT, offsetof(config, field.vertical), "1000",                      \
	 "minference: tokens that a q head's rows attend to"},                                              \
	{"prefill_slash", SKV_PARAM_UINT, offsetof(config, field.slash), "6096",                            \
	 "minference: distances at which they attend to tokens"},                                           \
	{"prefill_top", SKV_PARAM_BUDGET, offsetof(config, field.top), "0.1",                               \
	 "kascade: tokens selected for a tile and kv head; below 1 a share of those before it, at least 128"}

#define SKV_PREFILL_WAYS 3u /* names of each method in SKV_PREFILL_METHODS: one for each enum skv_correction */

static inline uint32_t skv_prefill_how(const struct skv_prefill_config *c)
{
	return (c->method + SKV_PREFILL_WAYS - 1) / SKV_PREFILL_WAYS;
}

/* Are the values of the prefill parameters valid? Returns 0, or -1 with a text that names the bad parameter. */
static inline int skv_prefill_check(const struct skv_prefill_config *c, char *err, size_t err_len)
{
	const uint32_t most = SKV_MAX_TOKENS;

	if (c->gamma < 2 || c->gamma > 4096 || (c->gamma & (c->gamma - 1)))
		snprintf(err, err_len, "prefill_gamma=%u, expected a power of two, 2 to 4096", c->gamma);
	else if (c->tail > most || (c->tail && c->tail < c->gamma))
		snprintf(err, err_len, "prefill_tail=%u, expected 0 or at least the gamma of %u", c->tail, c->gamma);
	else if (c->sinks > most || (skv_prefill_how(c) == SKV_PREFILL_HIP && c->sinks % 64))
		snprintf(err, err_len, "prefill_sinks=%u, expected at most %u, with hip a multiple of 64", c->sinks,
		         most);
	else if (c->window > most || (skv_prefill_how(c) == SKV_PREFILL_HIP && c->window % 64))
		snprintf(err, err_len, "prefill_window=%u, expected at most %u, with hip a multiple of 64", c->window,
		         most);
	else if (c->keep == 0 || c->keep % 8 || c->keep > most / 16)
		snprintf(err, err_len, "prefill_keep=%u, expected a multiple of 8, at most %u", c->keep, most / 16);
	else if (c->segment < 128 || c->segment > most || (c->segment & (c->segment - 1)))
		snprintf(err, err_len, "prefill_segment=%u, expected a power of two, 128 to %u", c->segment, most);
	else if (c->vertical < SKV_MINFERENCE_FORCED || c->vertical > most)
		snprintf(err, err_len, "prefill_vertical=%u, expected %u to %u", c->vertical, SKV_MINFERENCE_FORCED,
		         most);
	else if (c->slash < SKV_MINFERENCE_FORCED || c->slash > most)
		snprintf(err, err_len, "prefill_slash=%u, expected %u to %u", c->slash, SKV_MINFERENCE_FORCED, most);
	else
		return 0;
	return -1;
}

static inline int skv_prefill_anchor(const struct skv_prefill_config *c, const struct skv_model *m, uint32_t layer)
{
	if (skv_layer_set_empty(&c->anchors))
		return layer == skv_full_layer(m, 0, 0) || skv_layer_even(m, 2, 4, layer);
	return skv_layer_in(&c->anchors, layer);
}

/*
 * Fill the fields that are the same for all layers, in a zeroed struct skv_prefill. The caller sets the layer's
 * `source`.
 */
static inline void skv_prefill_of(const struct skv_prefill_config *c, struct skv_prefill *p)
{
	p->how = skv_prefill_how(c);
	p->correct = p->how ? (c->method - 1) % SKV_PREFILL_WAYS : (uint32_t)SKV_CORRECT_NONE;
	if (p->correct) {
		p->gamma = c->gamma;
		p->tail = c->tail ? c->tail : c->gamma > 128 ? c->gamma : 128;
	}
	if (p->how == SKV_PREFILL_STREAMING) {
		p->sinks = c->sinks ? c->sinks : 1024;
		p->window = c->window ? c->window : 2048;
	} else if (p->how == SKV_PREFILL_HIP) {
		p->sinks = c->sinks ? c->sinks : 256;
		p->window = c->window ? c->window : 1024;
		p->keep[0] = 16 * c->keep;
		p->keep[1] = 4 * c->keep;
		p->keep[2] = c->keep;
	} else if (p->how == SKV_PREFILL_MINFERENCE) {
		p->segment = c->segment;
		p->vertical = c->vertical;
		p->slash = c->slash;
	} else if (p->how == SKV_PREFILL_KASCADE) {
		p->top = c->top;
		p->top_floor = c->top.share > 0 ? 128 : 1;
	}
}

/*
 * Fill a layer's plan.prefill. With HiP the first three layers stay dense, with Kascade the layers before the first
 * anchor.
 */
static inline void skv_prefill_plan(const struct skv_prefill_config *c, const struct skv_model *m, uint32_t layer,
                                    struct skv_plan *plan)
{
	uint32_t source = layer;

	while (source > 0 && !skv_prefill_anchor(c, m, source))
		source--;
	if (skv_prefill_how(c) == SKV_PREFILL_HIP ? layer < 3
	                                          : skv_prefill_how(c) == SKV_PREFILL_KASCADE && !skv_prefill_anchor(c, m, source))
		return;
	skv_prefill_of(c, &plan->prefill);
	if (plan->prefill.how == SKV_PREFILL_KASCADE) {
		plan->prefill.source = source;
		plan->prefill.dense = layer == skv_full_layer(m, 0, 0);
	}
}

#endif
