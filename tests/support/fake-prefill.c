/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's sparse prefill kernels: queued as in fake-backend.c, and run by the host's kernels. */
#include "tests/support/fake-backend.h"

/* Structs are copied at the call; what they point to is read when the work runs. */
static struct op *later(fake_run_fn *run, const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                        const struct skv_sparse *sp, const struct skv_workspace *w)
{
	struct op *o = fake_kernel(run, sh, b, q, out, w);

	o->sparse = *sp;
	if (sp->lists) {
		o->lists = *sp->lists;
		o->sparse.lists = &o->lists;
	}
	if (sp->extra) {
		o->extra = *sp->extra;
		o->sparse.extra = &o->extra;
	}
	return o;
}

static void run_prefill_sparse(const struct skv_kernels *host, const struct op *o)
{
	host->prefill_sparse(&o->shape, &o->batch, o->in[0], o->out, &o->sparse, &o->work);
}

static void prefill_sparse(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                           const struct skv_sparse *sp, const struct skv_workspace *w)
{
	later(run_prefill_sparse, sh, b, q, out, sp, w);
}

static void run_save_queries(const struct skv_kernels *host, const struct op *o)
{
	host->save_queries(&o->shape, &o->batch, o->in[0], &o->sparse, &o->work);
}

static void save_queries(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_sparse *sp,
                         const struct skv_workspace *w)
{
	later(run_save_queries, sh, b, q, NULL, sp, w);
}

static void run_kascade_lists(const struct skv_kernels *host, const struct op *o)
{
	host->kascade_lists(&o->shape, &o->batch, o->in[0], &o->sparse, o->top, o->n, &o->tiles[0], &o->work);
}

static void kascade_lists(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_sparse *sp,
                      struct skv_budget top, uint32_t floor, const struct skv_tile_lists *ret, const struct skv_workspace *w)
{
	struct op *o = later(run_kascade_lists, sh, b, q, NULL, sp, w);

	o->top = top;
	o->n = floor;
	o->tiles[0] = *ret;
}

static void run_hip_lists(const struct skv_kernels *host, const struct op *o)
{
	host->hip_lists(&o->shape, &o->batch, o->in[0], &o->sparse, o->counts, &o->tiles[0], &o->work);
}

static void hip_lists(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_sparse *sp,
                        const uint32_t keep[SKV_HIP_STAGES], const struct skv_tile_lists *ret, const struct skv_workspace *w)
{
	struct op *o = later(run_hip_lists, sh, b, q, NULL, sp, w);

	for (uint32_t i = 0; i < SKV_HIP_STAGES; i++)
		o->counts[i] = keep[i];
	o->tiles[0] = *ret;
}

static void run_minference_lists(const struct skv_kernels *host, const struct op *o)
{
	host->minference_lists(&o->shape, &o->batch, o->in[0], &o->sparse, o->counts[0], o->counts[1], &o->tiles[0], &o->tiles[1],
	                 &o->work);
}

static void minference_lists(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_sparse *sp,
                       uint32_t vertical, uint32_t slash, const struct skv_tile_lists *lists, const struct skv_tile_lists *extra,
                       const struct skv_workspace *w)
{
	struct op *o = later(run_minference_lists, sh, b, q, NULL, sp, w);

	o->counts[0] = vertical;
	o->counts[1] = slash;
	o->tiles[0] = *lists;
	o->tiles[1] = *extra;
}

static size_t prefill_sparse_bytes(const struct skv_shape *sh, const struct skv_batch *bounds, const struct skv_sparse *sp,
                           int threads)
{
	return skv_kernels_host(NULL)->prefill_sparse_bytes(sh, bounds, sp, threads);
}

void fake_prefill(struct skv_kernels *k)
{
	k->prefill_sparse = prefill_sparse;
	k->prefill_sparse_bytes = prefill_sparse_bytes;
	k->save_queries = save_queries;
	k->kascade_lists = kascade_lists;
	k->hip_lists = hip_lists;
	k->minference_lists = minference_lists;
}
