/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/decode.cu - launches of decode_kernel: see decode.cuh. */
#include "kernels/cuda/decode/decode-kernel.cuh"

template <class T, int D> static cudaError_t init_dim(void)
{
	cudaError_t e = init<T, D, PLAIN>();
	e = e ? e : init<T, D, KEEP>();
	e = e ? e : init<T, D, KEYS>();
	e = e ? e : init<T, D, ROWS>();
	return e ? e : init<T, D, SCORED>();
}

template <class T> static cudaError_t init_dtype(void)
{
	cudaError_t e = init_dim<T, 64>();
	e = e ? e : init_dim<T, 96>();
	e = e ? e : init_dim<T, 128>();
	return e ? e : init_dim<T, 256>();
}

cudaError_t skv_cuda_decode_init(void)
{
	cudaError_t e = init_dtype<F16>();
	e = e ? e : init_dtype<BF16>();
	return e ? e : skv_cuda_decode_low_init();
}

template <class T, int D> static void launch_dim(const struct call *c, uint32_t jobs, cudaStream_t stream)
{
	if (c->what == TOKENS && c->chosen)
		launch_kernel<T, D, SCORED>(c, jobs, stream);
	else if (c->what == TOKENS)
		launch_kernel<T, D, ROWS>(c, jobs, stream);
	else if (c->chosen)
		launch_kernel<T, D, KEYS>(c, jobs, stream);
	else if (c->slots)
		launch_kernel<T, D, KEEP>(c, jobs, stream);
	else
		launch_kernel<T, D, PLAIN>(c, jobs, stream);
}

template <class T>
static void launch(const struct call *c, uint32_t head_dim, uint32_t jobs, cudaStream_t stream)
{
	if (head_dim == 64)
		launch_dim<T, 64>(c, jobs, stream);
	else if (head_dim == 96)
		launch_dim<T, 96>(c, jobs, stream);
	else if (head_dim == 128)
		launch_dim<T, 128>(c, jobs, stream);
	else
		launch_dim<T, 256>(c, jobs, stream);
}

/* `tiles`: of an owner, at most. */
static void decode(struct call *c, const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                   void *out, uint32_t tiles, const struct layout *l, const struct skv_work *work)
{
	uint8_t *mem = (uint8_t *)work->mem;

	c->seq = b->seq;
	c->pool = sh->pool;
	c->page_bytes = sh->page_bytes;
	c->q = q;
	c->out = out;
	c->scale = sh->scale * LOG2E;
	c->n_heads = sh->n_heads;
	c->n_kv_heads = sh->n_kv_heads;
	c->group = sh->n_heads / sh->n_kv_heads;
	c->layer = sh->layer;
	c->io_dtype = sh->io_dtype;
	c->part = (float *)(mem + l->part);
	c->tokens = l->tokens;
	if (c->list.rows == 0)
		c->list.rows = 1;
	c->wide = c->list.rows > c->n_kv_heads ? 1 : HEAD_TILE;
	c->per_kv = ceil_div(c->group, c->wide);
	c->heads = c->n_kv_heads * c->per_kv;
	c->owner_heads = c->heads / c->list.rows;
	c->cols = columns(sh);
	const uint32_t rows = c->list.rows, most = OWNERS_MOST / rows; /* sequences */
	const uint32_t most_chunks = chunks_of(tiles);
	for (uint32_t from = 0; from < b->n; from += most) {
		const uint32_t n = min(most, b->n - from);
		const uint32_t jobs = n * c->heads * most_chunks;
		c->first_owner = from * rows;
		c->owners = n * rows;
		if (c->low.bits)
			skv_cuda_decode_low(c, sh->dtype, sh->head_dim, jobs, stream_of(work));
		else if (sh->dtype == SKV_F16)
			launch<F16>(c, sh->head_dim, jobs, stream_of(work));
		else
			launch<BF16>(c, sh->head_dim, jobs, stream_of(work));
	}
	if (most_chunks > 1 && b->n && out)
		skv_cuda_merge(c, b->n, sh->head_dim, stream_of(work));
}

/* Owners of a pass that leaves evidence: q heads that are told apart have passed together. */
static uint32_t owners_of(const struct skv_shape *sh, const struct skv_evidence *ev)
{
	return ev->rows < sh->n_kv_heads ? ev->rows : sh->n_kv_heads;
}

/* Have the scores of a dense pass kept until helpers have used them. */
static void keep(struct call *c, const struct skv_shape *sh, const struct skv_evidence *ev, const struct layout *l,
                 const struct skv_work *work)
{
	uint8_t *mem = (uint8_t *)work->mem;
	c->list.rows = owners_of(sh, ev);
	c->ev = *ev;
	c->slot = (struct slot *)(mem + l->slot);
	c->slots = l->slots;
	c->score = (__half *)(mem + l->score);
	c->top = (float *)(mem + l->top);
}

void skv_cuda_decode_dense(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                           const struct skv_evidence *ev, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len, ev ? owners_of(sh, ev) : 1);
	struct call c = {.what = DENSE};

	if (sh->code && sh->code->kind == SKV_COMPRESS_QUANT)
		c.low = low_form_of(sh);
	if (ev && (ev->token || ev->page))
		keep(&c, sh, ev, &l, work);
	else if (ev)
		c.ev.lse = ev->lse;
	decode(&c, sh, b, q, out, skv_pages_of(b->max_len), &l, work);
}

void skv_cuda_decode_chosen(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_evidence *ev, const struct skv_select *select, struct skv_list *list,
                            const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len, ev->rows);
	struct call keys = {.what = DENSE, .select = *select}, values = {.what = TOKENS};

	list->most = select_most(select, b->max_len);
	keep(&keys, sh, ev, &l, work);
	keys.list = *list;
	keys.chosen = (__half *)((uint8_t *)work->mem + l.chosen);
	keys.keys_fit = select_fits(b->max_len);
	decode(&keys, sh, b, q, NULL, skv_pages_of(b->max_len), &l, work);
	values.list = *list;
	values.chosen = keys.chosen;
	decode(&values, sh, b, q, out, skv_pages_of(list->most), &l, work);
}

void skv_cuda_decode_window(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_window *w, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len, 1);
	struct call c = {.what = WINDOW, .window = *w};
	/* sinks, and what is recent, both with a page cut at either end */
	uint32_t seen = b->max_len - skv_window_start(w, b->max_len) + w->sinks;

	decode(&c, sh, b, q, out, skv_pages_of(seen < b->max_len ? seen : b->max_len) + 3, &l, work);
}

void skv_cuda_decode_pages(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                           const struct skv_list *list, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len, 1);
	struct call c = {.what = PAGES, .list = *list};

	decode(&c, sh, b, q, out, list->most, &l, work);
}

void skv_cuda_decode_tokens(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_list *list, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len, 1);
	struct call c = {.what = TOKENS, .list = *list};

	decode(&c, sh, b, q, out, skv_pages_of(list->most), &l, work);
}
