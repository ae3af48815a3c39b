/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/session/model.c - copies and checks the model that the engine gave to skv_open.
 *
 * The caller's layers are read only during skv_open. The copy is an array of the library's own struct, followed by the
 * sinks of all layers in the same allocation; policies see the copy.
 */
#include "libclient/session/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rope.h"
#include "common/wire.h"
#include "libclient/error.h"
#include "libclient/struct-size.h"

static int check_number(uint32_t layer, const char *name, float x)
{
	if (isfinite(x) && x >= 0)
		return 0;
	return error_set(-EINVAL, "model: layer %u: %s is %g, expected a positive number, or 0", layer, name, (double)x);
}

static int check_shared(const struct skv_model_layer *all, uint32_t layer)
{
	const uint32_t from = all[layer].shares_kv;

	if (from > layer)
		return error_set(-EINVAL, "model: layer %u: shares_kv is %u, expected 1 + an earlier layer, or 0", layer, from);
	if (from > 0 && all[from - 1].shares_kv)
		return error_set(-EINVAL, "model: layer %u: shares_kv is %u, but layer %u shares another's itself: expected one with "
		                 "K and V of its own", layer, from, from - 1);
	return 0;
}

static int check_layer(const struct skv_model *m, const struct skv_model_layer *all, uint32_t layer)
{
	const struct skv_model_layer *l = &all[layer];
	int e = check_number(layer, "scale", l->scale);

	if (e == 0)
		e = check_number(layer, "softcap", l->softcap);
	for (uint32_t h = 0; l->sinks && h < m->n_heads && e == 0; h++)
		if (!isfinite(l->sinks[h]))
			e = error_set(-EINVAL, "model: layer %u: sinks[%u] is %g, expected a finite logit", layer, h,
			              (double)l->sinks[h]);
	return e < 0 ? e : check_shared(all, layer);
}

/* Copy the caller's layers, whose distance is the first layer's `size`. The sinks are stored behind the copy. */
static int copy_layers(struct skv_model *m, const struct skv_model_layer *from)
{
	const size_t sinks = (size_t)m->n_layers * m->n_heads;
	struct skv_model_layer *all = calloc(1, m->n_layers * sizeof(*all) + sinks * sizeof(float));
	float *sink = (float *)(all + m->n_layers);
	int e = 0;

	if (!all)
		return error_set(-ENOMEM, "out of memory for a model of %u layers", m->n_layers);
	for (uint32_t i = 0; i < m->n_layers && e == 0; i++) {
		char name[32];

		snprintf(name, sizeof(name), "model: layer %u", i);
		e = sized_get(&all[i], sizeof(*all), (const char *)from + (size_t)i * from->size,
		              sizeof(*all), name);
		e = e < 0 ? e : check_layer(m, all, i);
		if (e < 0 || !all[i].sinks)
			continue;
		memcpy(sink, all[i].sinks, m->n_heads * sizeof(*sink));
		all[i].sinks = sink;
		sink += m->n_heads;
	}
	if (e < 0)
		free(all);
	m->layers = e < 0 ? NULL : all;
	return e;
}

int model_copy(struct skv_model *to, const struct skv_model *from)
{
	const struct skv_model_layer *layers;
	const char *wrong;
	int e;

	if (!from)
		return error_set(-EINVAL, "model: is NULL");
	e = sized_get(to, sizeof(*to), from, sizeof(from->size), "model");
	if (e < 0)
		return e;
	layers = to->layers;
	to->layers = NULL;
	wrong = skv_model_check(to);
	wrong = wrong ? wrong : skv_rope_check(&to->rope, to->head_dim);
	if (!wrong && (strnlen(to->files, sizeof(to->files)) == sizeof(to->files) || (*to->files && *to->files != '/')))
		wrong = "model: files must be an absolute path of at most 255 bytes, or empty";
	if (wrong)
		return error_set(-EINVAL, "%s", wrong);
	return layers ? copy_layers(to, layers) : 0;
}

void model_free(struct skv_model *m)
{
	free((void *)m->layers);
	m->layers = NULL;
}
