/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's kernels: each call is queued, and run by the host's kernel. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake-backend.h"

static const struct skv_kernels *host;

struct op *fake_kernel(fake_run_fn *run_it, const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                       void *out, const struct skv_workspace *w)
{
	struct op *o = fake_queue(w->stream, KERNEL);

	o->run = run_it;
	o->shape = *sh;
	if (sh->codec) { /* copied at the call */
		o->codec = *sh->codec;
		o->shape.codec = &o->codec;
	}
	o->batch = *b;
	o->in[0] = q;
	o->out = out;
	o->work = *w;
	return o;
}

/* The same limits as on a real device. */
static const char *unsupported(const struct skv_shape *sh)
{
	if (sh->dtype == SKV_F32)
		return "the fake device has pages of fp16, bf16 and fp8";
	return sh->head_dim < 64 ? "the fake device has a head_dim of 64 and more" : host->unsupported(sh);
}

static size_t workspace_bytes(const struct skv_shape *sh, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
                              int threads)
{
	return host->workspace_bytes(sh, n_seqs, n_rows, max_len, threads);
}

static struct skv_kernels kernels = {
	.name = "fake",
	.unsupported = unsupported,
	.workspace_bytes = workspace_bytes,
};

const struct skv_kernels *fake_kernels(const struct skv_kernels **ret_host)
{
	*ret_host = host = skv_kernels_host(NULL);
	fake_decode(&kernels);
	fake_select(&kernels);
	fake_evict(&kernels);
	fake_compress(&kernels);
	fake_prefill(&kernels);
	return host ? &kernels : NULL;
}
