/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/rows.c - the rows of q, k, v and out that an engine hands over: checked, and on the host made what kernels
 * take.
 *
 * A device's kernels take rows as they are. The host's take fp32 without gaps: other rows are gathered into scratch
 * memory, and what comes out of it goes back.
 */
#include "libclient/rows.h"

#include <errno.h>
#include <stdbool.h>

#include "libclient/error.h"
#include "libclient/session.h"

/* One of the four, as the error messages name it. */
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

/* Which of the pointers must be there. */
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

int rows_check(const struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	const uint32_t q = s->model.n_heads * s->model.head_dim, kv = s->model.n_kv_heads * s->model.head_dim;
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
