/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake device's kernels of layers that compress: queued as those of fake-backend.c, and run by the host's kernels,
 * for which matrices are converted back to fp32.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake-backend.h"

/* Copy of a layer at the time of the call: the host's structs are read then. */
struct fake_layer {
	struct skv_shape shape;
	struct skv_codec codec;
};

static struct op *later(fake_run_fn *run, const struct skv_shape *sh, uint32_t n_layers, const struct skv_batch *b,
                        const void *q, void *out, const struct skv_workspace *w)
{
	struct fake_layer *layers = calloc(n_layers, sizeof(*layers));
	struct op *o = fake_kernel(run, sh, b, q, out, w);

	if (!layers)
		abort();
	o->n = n_layers;
	o->own = layers;
	for (uint32_t i = 0; i < n_layers; i++)
		layers[i] = (struct fake_layer){.shape = sh[i], .codec = *sh[i].codec};
	return o;
}

/* ---- matrices -------------------------------------------------------------------------------- */

static const void *widened(const void *bf16, size_t n)
{
	const uint16_t *from = bf16;
	uint32_t *to = bf16 ? aligned_alloc(64, (n * sizeof(*to) + 63) / 64 * 64) : NULL;

	for (size_t i = 0; to && i < n; i++)
		to[i] = (uint32_t)from[i] << 16;
	return to;
}

/* Matrices converted for the host; done() frees them. */
static struct skv_shape *for_host(struct fake_layer *l)
{
	struct skv_codec *c = &l->codec;
	const size_t d = skv_codec_dims(&l->shape), parts = c->spans ? 2 * c->spans : 1;

	c->enc_in = widened(c->enc_in, 2 * c->enc_hidden * d);
	c->enc_out = widened(c->enc_out, c->width * (c->enc_hidden ? c->enc_hidden : d) / parts);
	c->dec_in = widened(c->dec_in, (size_t)c->dec_hidden * c->width);
	c->dec_out = widened(c->dec_out, d * (c->dec_hidden ? c->dec_hidden : c->width) / parts);
	l->shape.codec = c;
	return &l->shape;
}

static void done(const struct fake_layer *l)
{
	free((void *)l->codec.enc_in);
	free((void *)l->codec.enc_out);
	free((void *)l->codec.dec_in);
	free((void *)l->codec.dec_out);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void run_compress(const struct skv_kernels *host, const struct op *o)
{
	for (uint32_t i = 0; i < o->n; i++) {
		struct fake_layer l = ((const struct fake_layer *)o->own)[i];

		host->compress(for_host(&l), 1, &o->batch, o->in[0], &o->work);
		done(&l);
	}
}

static void compress(const struct skv_shape *sh, uint32_t n_layers, const struct skv_batch *b, const float *x,
                     const struct skv_workspace *w)
{
	later(run_compress, sh, n_layers, b, x, NULL, w);
}

static void run_gather_tokens(const struct skv_kernels *host, const struct op *o)
{
	struct fake_layer l = *(const struct fake_layer *)o->own;

	host->gather_tokens(for_host(&l), &o->batch, o->out, &o->work);
	done(&l);
}

static void gather_tokens(const struct skv_shape *sh, const struct skv_batch *b, float *x, const struct skv_workspace *w)
{
	later(run_gather_tokens, sh, 1, b, NULL, x, w);
}

static void run_decompress(const struct skv_kernels *host, const struct op *o)
{
	struct fake_layer l = *(const struct fake_layer *)o->own;

	host->decompress(for_host(&l), &o->batch, o->has_list ? &o->list : NULL, &o->decompressed, &o->work);
	done(&l);
}

static void decompress(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_index_list *list,
                    const struct skv_decompressed *to, const struct skv_workspace *w)
{
	struct op *o = later(run_decompress, sh, 1, b, NULL, NULL, w);

	o->has_list = list;
	if (list)
		o->list = *list;
	o->decompressed = *to;
}

/* The host's two steps, decompress and decode, with temporary memory. */
static void run_decode_latent(const struct skv_kernels *host, const struct op *o)
{
	struct fake_layer l = *(const struct fake_layer *)o->own;
	struct skv_shape *sh = for_host(&l), over = *sh;
	const uint32_t pages = skv_pages_of(o->list.max_count);
	struct skv_decompressed to = {.pool = aligned_alloc(64, (o->batch.n * pages + 1) * sh->page_bytes), .pages = pages,
	                         .seq = calloc(o->batch.n, sizeof(*to.seq)),
	                         .table = calloc(o->batch.n * pages + 1, sizeof(*to.table))};
	struct skv_batch rows = o->batch;

	if (!to.pool || !to.seq || !to.table)
		abort();
	host->decompress(sh, &o->batch, &o->list, &to, &o->work);
	over.pool = to.pool;
	over.codec = NULL;
	rows.seq = to.seq;
	host->decode_dense(&over, &rows, o->in[0], o->out, NULL, &o->work);
	free(to.pool);
	free(to.seq);
	free(to.table);
	done(&l);
}

static void decode_latent(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                         const struct skv_index_list *list, const struct skv_workspace *w)
{
	later(run_decode_latent, sh, 1, b, q, out, w)->list = *list;
}

/* The same condition as on a real device. */
static bool fuses_latent(const struct skv_shape *sh)
{
	return sh->codec->kind != SKV_COMPRESS_QUANT && !sh->codec->dec_hidden && !sh->codec->spans && !sh->codec->k_norm;
}

static const char *unsupported_codec(const struct skv_shape *sh)
{
	return skv_kernels_host(NULL)->unsupported_codec(sh);
}

void fake_compress(struct skv_kernels *k)
{
	k->gather_tokens = gather_tokens;
	k->compress = compress;
	k->decompress = decompress;
	k->unsupported_codec = unsupported_codec;
	k->fuses_latent = fuses_latent;
	k->decode_latent = decode_latent;
}
