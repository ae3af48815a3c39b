/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/decode.cu - launches of decode attention: see decode.cuh. */
#include "kernels/cuda/decode/instance.h"

static const struct decode_instance *const instances[] = {
#define INSTANCE(head_dim, mode, ...) &skv_decode_##head_dim##_##mode,
#include "kernels/cuda/decode/instances.h"
#undef INSTANCE
};

/* Returns the kernels of a mode for pages of this shape, or NULL if this build has none. */
static const struct decode_instance *find_instance(const struct skv_shape *sh, enum decode_mode mode)
{
	for (const struct decode_instance *i : instances)
		if (i->head_dim == sh->head_dim && i->mode == mode && i->dtypes >> sh->dtype & 1)
			return i;
	return NULL;
}

bool skv_cuda_decodes(const struct skv_shape *sh, bool quantized)
{
	return find_instance(sh, quantized ? MODE_QUANT : MODE_PLAIN) != NULL;
}

cudaError_t skv_cuda_decode_init(void)
{
	cudaError_t e = cudaSuccess;

	for (const struct decode_instance *i : instances)
		e = e ? e : i->init();
	return e;
}

/*
 * Does one pass take all rows of a sequence? All rows must attend to the same tokens, except for the last ones, and
 * there must be a kernel that reads these tokens once.
 */
static bool takes_rows(const struct decode_params *c, const struct skv_shape *sh, const struct skv_batch *b)
{
	return b->rows > 1 && sh->head_dim <= TEAM_DIM && c->source == KV_DENSE && !c->ring_entries && !c->topk_scores && !c->quant.bits &&
	       !c->ev.lse;
}

/*
 * Number of warps in a team, each with a head tile: 2, 4 or 8 if kv heads have more columns than a head tile, or
 * requests have several rows. 0: no teams.
 */
static uint32_t team_of(const struct decode_params *c, const struct skv_shape *sh)
{
	if ((c->rows == 1 && c->group <= HEAD_TILE) || c->tile_heads < HEAD_TILE || sh->head_dim > TEAM_DIM || c->ring_entries ||
	    c->topk_scores || c->quant.bits || c->source == KV_TOKENS)
		return 0;
	return c->columns <= 2 * HEAD_TILE ? 2 : c->columns <= 4 * HEAD_TILE ? 4 : 8;
}

static void set_params(struct decode_params *c, const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                       const struct workspace_layout *l, const struct skv_workspace *work)
{
	uint8_t *mem = (uint8_t *)work->mem;

	c->rows = takes_rows(c, sh, b) ? b->rows : 1;
	c->seq = b->seq + b->n / c->rows * (c->rows - 1);
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
	c->taken = (uint32_t *)(mem + l->taken);
	c->partial = (float *)(mem + l->partial);
	c->tokens = l->tokens;
	c->parts = MAX_CHUNKS;
	if (c->list.rows == 0)
		c->list.rows = 1;
	c->tile_heads = c->list.rows > c->n_kv_heads ? 1 : HEAD_TILE;
	c->columns = c->group * c->rows;
	c->team = team_of(c, sh);
	c->tiles_per_kv_head = ceil_div(c->columns, c->tile_heads);
	if (c->team)
		c->tiles_per_kv_head = ceil_div(c->tiles_per_kv_head, c->team) * c->team;
	c->heads = c->n_kv_heads * c->tiles_per_kv_head;
	c->request_head_tiles = c->heads / c->list.rows;
	c->cols = score_columns(sh);
}

static enum decode_mode mode_of(const struct decode_params *c)
{
	if (c->quant.bits)
		return c->ring_entries ? MODE_QUANT_SCORES : MODE_QUANT;
	if (c->ring_entries)
		return MODE_SCORES;
	if (c->source == KV_TOKENS)
		return c->topk_scores ? MODE_TOPK_VALUES : MODE_TOKENS;
	return c->topk_scores ? MODE_TOPK_KEYS : c->team ? MODE_TEAMS : MODE_PLAIN;
}

/*
 * Chooses how launches over n sequences are divided, whose requests have at most `tiles` tiles. Returns the number of
 * work items, per head tile, of a request of `tiles` tiles.
 */
static uint32_t divide(struct decode_params *c, const struct skv_shape *sh, uint32_t n, uint32_t tiles, uint32_t beside)
{
	const uint32_t heads = min(c->tile_heads, c->columns), dims = dims_read(sh->head_dim, mode_of(c));
	struct launch_size l = {.head_tiles = n * c->heads, .heads = heads, .tiles = tiles, .head_dim = dims};

	if (c->ring_entries)
		return n_chunks(tiles);
	l.blocks = c->blocks = launch_blocks(&l, beside);
	c->result_heads = heads;
	c->run_slots = 2 * max_item_runs(heads, dims);
	c->by = c->team ? divide_among_teams(&l, c->team, TEAM_RUN_LEAVES) : divide_requests(&l, run_leaves_of(sh->head_dim, mode_of(c), heads));
	c->parts = items_of(c->by, tiles);
	return c->parts;
}

/* Queues a launch over n sequences; `from` is the index of the first. */
static void launch_sequences(struct decode_params *c, const struct skv_shape *sh, uint32_t from, uint32_t n, uint32_t max_items,
                             cudaStream_t stream)
{
	const uint32_t items = n * c->heads / (c->team ? c->team : 1) * max_items;

	c->first_request = from * c->list.rows;
	c->n_requests = n * c->list.rows;
	find_instance(sh, mode_of(c))->launch(c, sh->dtype, items, stream);
}

/* Queues a decode pass, and the merge of its results if needed. Requests have at most `tiles` tiles. */
static void decode(struct decode_params *c, const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                   void *out, uint32_t tiles, const struct workspace_layout *l, const struct skv_workspace *work)
{
	set_params(c, sh, b, q, out, l, work);
	const uint32_t n = b->n / c->rows, most = MAX_REQUESTS / c->list.rows, max_items = divide(c, sh, n, tiles, work->beside);
	const bool merges = out && !c->ring_entries && !c->team && merges_itself(n * c->heads, max_items, c->blocks);

	c->arrived = merges ? (uint32_t *)((uint8_t *)work->mem + l->arrived) : NULL;
	for (uint32_t from = 0; from < n; from += most)
		launch_sequences(c, sh, from, min(most, n - from), max_items, stream_of(work));
	if (max_items > 1 && n && out && !merges)
		skv_cuda_merge(c, n, max_items, sh->head_dim, stream_of(work));
}

/*
 * Number of requests of a sequence in a pass that writes scores. q heads with separate rows of scores share the request
 * of their kv head.
 */
static uint32_t score_requests_of(const struct skv_shape *sh, const struct skv_scores *ev)
{
	return ev->rows < sh->n_kv_heads ? ev->rows : sh->n_kv_heads;
}

/* Lets a dense pass write its scores to the score ring, from which helper warps read them. */
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

/* Top-k attention with separate kernels for weights, selection and attention, on devices without clusters of blocks. */
static void decode_topk_apart(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                              const struct skv_scores *ev, const struct skv_select *select, struct skv_index_list *list,
                              const struct skv_workspace *work)
{
	struct skv_scores weights = *ev;

	weights.page = weights.lse = NULL;
	skv_cuda_decode_dense(sh, b, q, NULL, &weights, work);
	skv_cuda_select(sh, b, &weights, true, select, list, work);
	skv_cuda_decode_tokens(sh, b, q, out, list, work);
}

/*
 * Selects tokens by a pass over all keys, then a selection. Both process so few sequences at a time that their scores
 * stay in the L2 cache.
 */
static void select_by_keys(struct decode_params *c, const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                           const struct workspace_layout *l, const struct skv_workspace *work)
{
	set_params(c, sh, b, q, NULL, l, work);
	const uint32_t most = min(l->score_seqs, MAX_REQUESTS / c->list.rows), tiles = skv_pages_of(b->max_len);
	const uint32_t max_items = divide(c, sh, min(most, b->n), tiles, work->beside);

	for (uint32_t from = 0; from < b->n; from += most) {
		launch_sequences(c, sh, from, min(most, b->n - from), max_items, stream_of(work));
		skv_cuda_topk_by_scores(c, b->max_len, stream_of(work));
	}
}

void skv_cuda_decode_topk(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                          const struct skv_scores *ev, const struct skv_select *select, struct skv_index_list *list,
                          const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, ev->rows);
	struct decode_params keys = {.source = KV_DENSE, .select = *select}, values = {.source = KV_TOKENS};
	uint8_t *mem = (uint8_t *)work->mem;

	if (!skv_cuda_selects_by_scores(b->max_len)) {
		decode_topk_apart(sh, b, q, out, ev, select, list, work);
		return;
	}
	list->max_count = max_selected(select, b->max_len);
	keys.list = *list;
	keys.ev = *ev;
	keys.score = (__half *)(mem + l.score);
	keys.page_max = (float *)(mem + l.page_max);
	keys.topk_scores = (__half *)(mem + l.topk_scores);
	keys.topk_max = (float *)(mem + l.topk_max);
	select_by_keys(&keys, sh, b, q, &l, work);
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
	/*
	 * `seen`: tokens of the sinks and of the recent part. Pages are cut at up to three positions, hence + 3 below.
	 */
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
