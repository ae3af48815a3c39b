/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/layer/attn.c - checks an engine's rows of q, k, v and out, and converts them for the host's kernels.
 *
 * A device's kernels take the engine's rows as they are. The host's kernels take only contiguous fp32 rows: rows in
 * another form are converted into scratch memory, and the attention output is copied from there.
 */
#include "libclient/layer/attn.h"

#include <errno.h>
#include <stdbool.h>

#include "libclient/device/scratch.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/session.h"

/* Elements of a row: q_width() of q and out, kv_width() of k and v. */
static uint32_t q_width(const struct skv_session *s)
{
	return s->model.n_heads * s->model.head_dim;
}
static uint32_t kv_width(const struct skv_session *s)
{
	return s->model.n_kv_heads * s->model.head_dim;
}

/* ---- checked --------------------------------------------------------------------------------- */

/* One of q, k, v and out, with the name that error texts use. */
struct matrix {
	const char *name;
	const void *at;
	uint32_t stride, width; /* elements */
};

static int check_matrix(const struct skv_session *s, uint32_t layer, const struct matrix *x)
{
	const size_t bytes = skv_dtype_bytes(s->model.io_dtype);

	if (x->at && x->stride > 0 && x->stride < x->width)
		return error_set(-EINVAL, "layer %u: %s_stride is %u, expected at least the %u elements of a row, or 0", layer,
		                 x->name, x->stride, x->width);
	if (s->device && (uintptr_t)x->at % 16)
		return error_set(-EINVAL, "layer %u: %s is not at a multiple of 16 bytes", layer, x->name);
	if (s->device && x->at && x->stride * bytes % 16)
		return error_set(-EINVAL, "layer %u: %s_stride is %u, expected a multiple of 16 bytes", layer, x->name, x->stride);
	return 0;
}

/* Has the engine given all pointers that the layer needs, and none that it must not have? */
static int check_given(const struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	const uint32_t from = skv_model_kv_layer(&s->model, layer);

	if (from != layer && (a->k || a->v))
		return error_set(-EINVAL, "layer %u: k and v are given, expected NULL: it shares those of layer %u", layer, from);
	if ((from == layer && (!a->k || !a->v)) || !a->q != !a->out)
		return error_set(-EINVAL, "layer %u: k and v, and q with out, must be given", layer);
	if (a->lse && !a->q)
		return error_set(-EINVAL, "layer %u: lse is given without q", layer);
	return 0;
}

int attn_check(const struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	const uint32_t q = q_width(s), kv = kv_width(s);
	const struct matrix all[] = {
	        {"q", a->q, a->q_stride, q},
	        {"k", a->k, a->k_stride, kv},
	        {"v", a->v, a->v_stride, kv},
	        {"out", a->out, a->out_stride, q},
	};
	int e = check_given(s, layer, a);

	for (size_t i = 0; i < sizeof(all) / sizeof(*all) && e == 0; i++)
		e = check_matrix(s, layer, &all[i]);
	if (e == 0 && a->q && a->q == a->out && (a->q_stride ? a->q_stride : q) != (a->out_stride ? a->out_stride : q))
		e = error_set(-EINVAL, "layer %u: out is q, but out_stride is %u and q_stride %u: expected the same", layer,
		              a->out_stride, a->q_stride);
	return e;
}

/* ---- on the host ----------------------------------------------------------------------------- */

static int attn_prepare(struct skv_session *s)
{
	struct step *st = &s->step;

	if (s->device)
		return 0;
	return scratch_grow(s, &st->attn.mem, &st->attn.bytes,
	                    (size_t)st->rows * (q_width(s) + 2 * kv_width(s)) * sizeof(float));
}

static void attn_close(struct skv_session *s)
{
	scratch_free(s, s->step.attn.mem);
}

const struct feature attn_feature = {.prepare = attn_prepare, .close = attn_close};

/* Do the host's kernels take rows of this stride and width without a copy? */
static bool plain(const struct skv_session *s, uint32_t stride, uint32_t width)
{
	return s->model.io_dtype == SKV_F32 && (stride == 0 || stride == width);
}

static const void *take(struct skv_session *s, const void *from, uint32_t *stride, uint32_t width, float *to)
{
	const uint32_t apart = *stride ? *stride : width;

	if (!from || plain(s, *stride, width))
		to = NULL;
	else
		s->kernels->load_rows(s->model.io_dtype, s->step.rows, width, apart, from, to, &s->step.work);
	*stride = 0;
	return to ? to : from;
}

/* In scratch memory there are q, then k, then v. The output overwrites q there, as kernels allow. */
struct skv_attn attn_take(struct skv_session *s, const struct skv_attn *a)
{
	const uint32_t q = q_width(s), kv = kv_width(s);
	float *to = s->step.attn.mem;
	struct skv_attn x = *a;

	if (s->device)
		return x;
	x.q = take(s, a->q, &x.q_stride, q, to);
	x.k = take(s, a->k, &x.k_stride, kv, to + (size_t)s->step.rows * q);
	x.v = take(s, a->v, &x.v_stride, kv, to + (size_t)s->step.rows * (q + kv));
	if (a->out && !plain(s, a->out_stride, q))
		x.out = to;
	x.out_stride = 0;
	return x;
}

void attn_give(struct skv_session *s, const struct skv_attn *a, const struct skv_attn *taken)
{
	const uint32_t q = q_width(s);

	if (a->out != taken->out)
		s->kernels->store_rows(s->model.io_dtype, s->step.rows, q, a->out_stride ? a->out_stride : q, taken->out, a->out,
		                       &s->step.work);
}
