/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/decode.cu - launches of decode_kernel: see decode.cuh. */
#include "kernels/cuda/decode/decode-kernel.cuh"

template <class T, int D> static cudaError_t init_dim(void)
{
	cudaError_t e = init<T, D, MODE_PLAIN>();
	e = e ? e : init<T, D, MODE_SCORES>();
	e = e ? e : init<T, D, MODE_TOPK_KEYS>();
	return e ? e : init<T, D, MODE_TOPK_VALUES>();
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
	e = e ? e : skv_cuda_decode_listed_init();
	return e ? e : skv_cuda_decode_quant_init();
}

template <class T, int D> static void launch_dim(const struct decode_params *c, uint32_t items, cudaStream_t stream)
{
	if (c->source == KV_TOKENS)
		launch_kernel<T, D, MODE_TOPK_VALUES>(c, items, stream);
	else if (c->topk_scores)
		launch_kernel<T, D, MODE_TOPK_KEYS>(c, items, stream);
	else if (c->ring_entries)
		launch_kernel<T, D, MODE_SCORES>(c, items, stream);
	else
		launch_kernel<T, D, MODE_PLAIN>(c, items, stream);
}

template <class T>
static void launch(const struct decode_params *c, uint32_t head_dim, uint32_t items, cudaStream_t stream)
{
	if (head_dim == 64)
		launch_dim<T, 64>(c, items, stream);
	else if (head_dim == 96)
		launch_dim<T, 96>(c, items, stream);
	else if (head_dim == 128)
		launch_dim<T, 128>(c, items, stream);
	else
		launch_dim<T, 256>(c, items, stream);
}

/* `tiles`: of a request, at most. */
static void decode(struct decode_params *c, const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                   void *out, uint32_t tiles, const struct workspace_layout *l, const struct skv_workspace *work)
{
	uint8_t *mem = (uint8_t *)work->mem;

	c->seq = b->seq;
	c->pool = sh->pool;
	c->page_bytes = sh->page_bytes;
	c->q = q;
	c->out = out;
	c->q_stride = skv_q_stride(sh);
	c->out_stride = skv_out_stride(sh);
	c->scale = score_scale_of(sh);
	c->sinks = sh->sinks;
	c->lse = out ? sh->lse : NULL;
	c->n_heads = sh->n_heads;
	c->n_kv_heads = sh->n_kv_heads;
	c->group = sh->n_heads / sh->n_kv_heads;
	c->layer = sh->layer;
	c->io_dtype = sh->io_dtype;
	c->partial = (float *)(mem + l->partial);
	c->tokens = l->tokens;
	if (c->list.rows == 0)
		c->list.rows = 1;
	c->tile_heads = c->list.rows > c->n_kv_heads ? 1 : HEAD_TILE;
	c->tiles_per_kv_head = ceil_div(c->group, c->tile_heads);
	c->heads = c->n_kv_heads * c->tiles_per_kv_head;
	c->request_head_tiles = c->heads / c->list.rows;
	c->cols = score_columns(sh);
	if (c->source == KV_TOKENS && !c->topk_scores) {
		skv_cuda_decode_listed(c, sh->dtype, sh->head_dim, b->n, tiles, (uint32_t *)(mem + l->arrived), stream_of(work));
		return;
	}
	const uint32_t rows = c->list.rows, most = MAX_REQUESTS / rows; /* sequences */
	const uint32_t max_chunks = n_chunks(tiles);
	for (uint32_t from = 0; from < b->n; from += most) {
		const uint32_t n = min(most, b->n - from);
		const uint32_t items = n * c->heads * max_chunks;
		c->first_request = from * rows;
		c->n_requests = n * rows;
		if (c->quant.bits)
			skv_cuda_decode_quant(c, sh->dtype, sh->head_dim, items, stream_of(work));
		else if (sh->dtype == SKV_F16)
			launch<F16>(c, sh->head_dim, items, stream_of(work));
		else
			launch<BF16>(c, sh->head_dim, items, stream_of(work));
	}
	if (max_chunks > 1 && b->n && out)
		skv_cuda_merge_chunks(c, b->n, sh->head_dim, stream_of(work));
}

/* Requests of a pass that writes scores: q heads with rows of their own share one request for each kv head. */
static uint32_t score_requests_of(const struct skv_shape *sh, const struct skv_scores *ev)
{
	return ev->rows < sh->n_kv_heads ? ev->rows : sh->n_kv_heads;
}

/* Have a dense pass write its scores to the ring, for the helper warps. */
static void fill_score_ring(struct decode_params *c, const struct skv_shape *sh, const struct skv_scores *ev,
                            const struct workspace_layout *l, const struct skv_workspace *work)
{
	uint8_t *mem = (uint8_t *)work->mem;
	c->list.rows = score_requests_of(sh, ev);
	c->ev = *ev;
	c->ring = (struct ring_entry *)(mem + l->ring);
	c->ring_entries = l->ring_entries;
	c->score = (__half *)(mem + l->score);
	c->page_max = (float *)(mem + l->page_max);
}

void skv_cuda_decode_dense(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                           const struct skv_scores *ev, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len,
	                                                      ev ? score_requests_of(sh, ev) : 1);
	struct decode_params c = {.source = KV_DENSE};

	if (sh->codec && sh->codec->kind == SKV_COMPRESS_QUANT)
		c.quant = quant_form_of(sh);
	if (ev && (ev->token || ev->page))
		fill_score_ring(&c, sh, ev, &l, work);
	else if (ev)
		c.ev.lse = ev->lse;
	decode(&c, sh, b, q, out, skv_pages_of(b->max_len), &l, work);
}

void skv_cuda_decode_topk(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                          const struct skv_scores *ev, const struct skv_select *select, struct skv_index_list *list,
                          const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, ev->rows);
	struct decode_params keys = {.source = KV_DENSE, .select = *select}, values = {.source = KV_TOKENS};

	list->max_count = max_selected(select, b->max_len);
	fill_score_ring(&keys, sh, ev, &l, work);
	keys.list = *list;
	keys.topk_scores = (__half *)((uint8_t *)work->mem + l.topk_scores);
	keys.topk_max = (float *)((uint8_t *)work->mem + l.topk_max);
	keys.keys_fit_shared_memory = keys_fit_shared(b->max_len);
	decode(&keys, sh, b, q, NULL, skv_pages_of(b->max_len), &l, work);
	values.list = *list;
	values.topk_scores = keys.topk_scores;
	values.topk_max = keys.topk_max;
	decode(&values, sh, b, q, out, skv_pages_of(list->max_count), &l, work);
}

void skv_cuda_decode_window(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_window *w, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	struct decode_params c = {.source = KV_WINDOW, .window = *w};
	/* sinks, and recent tokens, both with a page cut at either end */
	uint32_t seen = b->max_len - skv_window_start(w, b->max_len) + w->sinks;

	decode(&c, sh, b, q, out, skv_pages_of(seen < b->max_len ? seen : b->max_len) + 3, &l, work);
}

void skv_cuda_decode_pages(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                           const struct skv_index_list *list, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	struct decode_params c = {.source = KV_PAGES, .list = *list};

	decode(&c, sh, b, q, out, list->max_count, &l, work);
}

void skv_cuda_decode_tokens(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_index_list *list, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	struct decode_params c = {.source = KV_TOKENS, .list = *list};

	decode(&c, sh, b, q, out, skv_pages_of(list->max_count), &l, work);
}
