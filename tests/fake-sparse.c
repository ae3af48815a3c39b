/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's kernels of prompts that do not attend densely: queued as those of fake-backend.c, run by the host's. */
#include "tests/fake-backend.h"

/* Structs are read at the call, what they lead to when the work runs. */
static struct op *later(fake_run_fn *run, const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                        const struct skv_sparse *sp, const struct skv_work *w)
{
	struct op *o = fake_kernel(ELSEWHERE, sh, b, q, out, w);

	o->elsewhere = run;
	o->sparse = *sp;
	if (sp->units) {
		o->units = *sp->units;
		o->sparse.units = &o->units;
	}
	if (sp->more) {
		o->more = *sp->more;
		o->sparse.more = &o->more;
	}
	return o;
}

static void run_prefill_sparse(const struct skv_kernels *host, const struct op *o)
{
	host->prefill_sparse(&o->shape, &o->batch, o->in[0], o->out, &o->sparse, &o->work);
}

static void prefill_sparse(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                           const struct skv_sparse *sp, const struct skv_work *w)
{
	later(run_prefill_sparse, sh, b, q, out, sp, w);
}

static void run_keep_queries(const struct skv_kernels *host, const struct op *o)
{
	host->keep_queries(&o->shape, &o->batch, o->in[0], &o->sparse, &o->work);
}

static void keep_queries(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_sparse *sp,
                         const struct skv_work *w)
{
	later(run_keep_queries, sh, b, q, NULL, sp, w);
}

static size_t sparse_bytes(const struct skv_shape *sh, const struct skv_batch *bounds, const struct skv_sparse *sp,
                           int threads)
{
	return skv_kernels_host(NULL)->sparse_bytes(sh, bounds, sp, threads);
}

void fake_sparse(struct skv_kernels *k)
{
	k->prefill_sparse = prefill_sparse;
	k->sparse_bytes = sparse_bytes;
	k->keep_queries = keep_queries;
}
