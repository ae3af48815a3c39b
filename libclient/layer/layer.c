/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/layer.c - assembles a layer of the open step from its plan, policy batch and class of layers. */
#include "libclient/layer/layer.h"

#include <math.h>

#include "libclient/device/device.h"
#include "libclient/device/scratch.h"
#include "libclient/feature.h"
#include "libclient/policy.h"
#include "libclient/session.h"

const struct layer_class *layer_class(const struct skv_session *s, uint32_t layer)
{
	return &s->step.class[s->step.class_of[layer]];
}

struct skv_batch batch_part(struct skv_batch b, uint32_t first, uint32_t n)
{
	b.seq += first;
	b.n = n;
	b.rows = 0;
	return b;
}

static const struct skv_kseq *class_kseq(const struct skv_session *s, uint32_t layer)
{
	return s->step.kseq + (size_t)s->step.class_of[layer] * s->step.n_kseq;
}

const struct skv_kseq *layer_kseq(const struct skv_session *s, uint32_t layer, uint32_t at)
{
	return class_kseq(s, layer) + s->step.at_kseq[at];
}

struct skv_batch batch_decoding(struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	return batch_part(layer_class(s, layer)->decoding, pb->at_kseq, pb->n_padded);
}

struct skv_batch batch_rows(struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	struct skv_batch b = batch_decoding(s, pb, layer);

	if (pb->rows > 1)
		b = batch_part(layer_class(s, layer)->all, pb->rows_at, pb->n * pb->rows);
	b.rows = pb->rows;
	b.max_q = b.n > 0;
	return b;
}

struct skv_batch batch_prompts(struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	return batch_part(layer_class(s, layer)->prompts, pb->first_prompt - s->step.n_decode, pb->n_prompts);
}

bool batch_compresses(const struct policy_batch *pb, uint32_t layer)
{
	return pb->compresses && pb->policy->plan[layer].compress.kind;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/*
 * scale_of(), softcap_of() and sinks_of() return the attributes of a layer's softmax. softcap_of() returns 0 and
 * sinks_of() NULL if the layer has none; the scale is never 0.
 */
static float scale_of(const struct skv_model *m, uint32_t layer)
{
	const struct skv_model_layer *l = skv_model_layer(m, layer);

	if (l && l->scale > 0)
		return l->scale;
	return m->scale > 0 ? m->scale : 1.0f / sqrtf((float)m->head_dim);
}

static float softcap_of(const struct skv_model *m, uint32_t layer)
{
	const struct skv_model_layer *l = skv_model_layer(m, layer);

	return l ? l->softcap : 0;
}

static const float *sinks_of(const struct skv_model *m, uint32_t layer) /* [n_heads], host memory */
{
	const struct skv_model_layer *l = skv_model_layer(m, layer);

	return l ? l->sinks : NULL;
}

/* Copy the layers' sinks to the memory that kernels read. Every layer has a row there, even a layer without sinks. */
static int layer_open(struct skv_session *s)
{
	const struct skv_model *m = &s->model;
	const size_t row = m->n_heads * sizeof(float);
	size_t bytes = 0;
	void *mem = NULL, *was;
	bool any = false;
	int e;

	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		any |= sinks_of(m, layer) != NULL;
	if (!any)
		return 0;
	e = device_enter(s, &was);
	if (e < 0)
		return e;
	e = scratch_grow(s, &mem, &bytes, m->n_layers * row);
	s->sinks = mem;
	for (uint32_t layer = 0; layer < m->n_layers && e == 0; layer++)
		if (sinks_of(m, layer))
			e = device_put(s, s->sinks + (size_t)layer * m->n_heads, sinks_of(m, layer), row);
	device_leave(s, was);
	return e;
}

static void layer_close(struct skv_session *s)
{
	scratch_free(s, s->sinks);
}

const struct feature layer_feature = {.open = layer_open, .close = layer_close};

struct skv_shape layer_shape(const struct skv_session *s, uint32_t layer)
{
	const uint32_t n_layers = s->model.n_layers;
	struct skv_shape shape = s->shape;

	shape.layer = skv_model_kv_layer(&s->model, layer);
	shape.scale = scale_of(&s->model, layer);
	shape.softcap = softcap_of(&s->model, layer);
	shape.sinks = s->sinks && sinks_of(&s->model, layer) ? s->sinks + (size_t)layer * s->model.n_heads : NULL;
	shape.state = skv_table(n_layers, SKV_PAGES_STATE, layer);
	shape.slot_meta = skv_table(n_layers, SKV_PAGES_SLOT_META, layer);
	shape.codes = skv_table(n_layers, SKV_PAGES_CODES, layer);
	shape.refs = skv_table(n_layers, SKV_PAGES_REFS, layer);
	shape.saved = skv_table(n_layers, SKV_PAGES_SAVED, layer);
	return shape;
}

struct skv_shape batch_shape(const struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	struct skv_shape shape = layer_shape(s, layer);

	shape.codec = pb->selection[layer].compress.codec;
	shape.sketch_bits = pb->policy->plan[layer].sketch_bits;
	shape.value_bits = pb->policy->plan[layer].value_bits;
	return shape;
}

/* ---- a layer --------------------------------------------------------------------------------- */

struct layer layer_of(struct skv_session *s, struct policy_batch *pb, uint32_t number, const struct skv_attn *a)
{
	const struct skv_plan *plan = &pb->policy->plan[number];
	struct step *st = &s->step;
	struct layer l = {
	        .number = number,
	        .attn = a,
	        .plan = plan,
	        .kernels = s->kernels,
	        .work = &st->work,
	        .window = skv_model_window(&s->model, number),
	        .rows = layer_shape(s, number),
	        .compresses = batch_compresses(pb, number),
	        .bounds = plan->scores & SKV_SCORES_PAGE_BOUNDS,
	        .sketches = plan->scores & SKV_SCORES_SKETCHES,
	        .decode = batch_decoding(s, pb, number),
	        .prefill = batch_prompts(s, pb, number),
	        .each = batch_rows(s, pb, number),
	        .maker = batch_prompts(s, pb, plan->prefill.how == SKV_PREFILL_KASCADE ? plan->prefill.source : number),
	        .prompts = class_kseq(s, number) + st->n_padded + pb->first_prompt - st->n_decode,
	        .own = &pb->selection[number],
	        .source = &pb->selection[plan->source],
	        .batch = pb,
	        .step = st,
	};

	l.rows.sketch_bits = plan->sketch_bits;
	l.rows.value_bits = plan->value_bits;
	l.rows.lse = a->lse;
	l.rows.q_stride = a->q_stride;
	l.rows.k_stride = a->k_stride;
	l.rows.v_stride = a->v_stride;
	l.rows.out_stride = a->out_stride;
	l.shape = l.rows;
	if (l.compresses)
		l.shape.codec = pb->selection[number].compress.codec;
	return l;
}
