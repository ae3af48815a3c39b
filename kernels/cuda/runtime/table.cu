/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/runtime/table.cu - the table of functions, what it supports, and the layout of its scratch. */
#include "kernels/compress-check.h"
#include "kernels/cuda/runtime/cuda.h"

static const char *unsupported(const struct skv_shape *sh)
{
	if (sh->dtype != SKV_F16 && sh->dtype != SKV_BF16)
		return "the CUDA kernels have pages of fp16 and bf16";
	if (sh->io_dtype > SKV_BF16)
		return "rows of q, k, v and out are fp32, fp16 or bf16";
	if (sh->head_dim != 64 && sh->head_dim != 96 && sh->head_dim != 128 && sh->head_dim != 256)
		return "the CUDA kernels have a head_dim of 64, 96, 128 and 256";
	if (sh->n_kv_heads == 0 || sh->n_heads == 0 || sh->n_heads % sh->n_kv_heads ||
	    sh->n_heads > SKV_MAX_HEADS)
		return "n_heads is a multiple of n_kv_heads, at most 256";
	return NULL;
}

static const char *unsupported_codes(const struct skv_shape *sh)
{
	const struct skv_codes *c = sh->code;
	const char *wrong = skv_codes_wrong(sh);

	if (wrong || c->kind == SKV_COMPRESS_QUANT)
		return wrong;
	if (c->spans && c->bits != 16 && c->width / (2 * c->spans) % c->group)
		return "width / (2 * spans) must be a multiple of group";
	if (c->turn_dims % 16)
		return "a multiple of 16 elements of a head must turn on a device";
	return NULL;
}

static size_t carve(size_t *at, size_t bytes)
{
	const size_t here = *at;
	*at = (here + bytes + 255) / 256 * 256;
	return here;
}

/*
 * Room for scores, in tokens of head tiles: of all jobs that run at a time and some that are being used (what a
 * job has of a long sequence is more than a chunk's CHUNK_TILES), and of two whole sequences. More than needed
 * would leave the second cache too little for the rest: what is best was measured.
 */
static size_t slot_tokens(const struct skv_shape *sh, uint32_t n, uint32_t tokens)
{
	const size_t all = (size_t)n * head_tiles(sh) * tokens;
	const uint32_t chunk = CHUNK_TILES * SKV_PAGE_TOKENS, at_once = skv_cuda_sms() * 2;
	const uint32_t job = tokens > CHUNKS_MOST * chunk ? tokens / CHUNKS_MOST : tokens < chunk ? tokens : chunk;
	const size_t some = (size_t)at_once * job + 2 * (size_t)head_tiles(sh) * tokens;
	return all < some ? all : some;
}

struct layout layout_of(const struct skv_shape *sh, uint32_t n, uint32_t max_len, uint32_t rows)
{
	struct layout l;
	size_t at = 0;

	l.tokens = skv_pages_of(max_len) * SKV_PAGE_TOKENS;
	const size_t all = (size_t)n * head_tiles(sh) * l.tokens, some = slot_tokens(sh, n, l.tokens);
	const size_t owner = (size_t)head_tiles(sh) / rows * l.tokens;
	l.slots = owner ? some / owner < OWNERS_MOST ? (uint32_t)(some / owner) : OWNERS_MOST : 0;
	l.slot = carve(&at, OWNERS_MOST * sizeof(struct slot));
	const size_t part = (size_t)head_tiles(sh) * part_floats(HEAD_TILE, sh->head_dim);
	const size_t apart = (size_t)sh->n_heads * part_floats(1, sh->head_dim);
	l.part = carve(&at, (size_t)n * (part > apart ? part : apart) * CHUNKS_MOST * sizeof(float));
	l.chosen = carve(&at, all * columns(sh) * sizeof(uint16_t));
	l.score = carve(&at, some * columns(sh) * sizeof(uint16_t));
	l.top = carve(&at, some / SKV_PAGE_TOKENS * columns(sh) * sizeof(float));
	const size_t least = l.chosen + skv_cuda_union_bytes(sh, l.tokens);
	l.total = at > least ? at : least;
	return l;
}

static size_t most_of(size_t a, size_t b)
{
	return a > b ? a : b;
}

static size_t work_bytes(const struct skv_shape *sh, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
                         int threads)
{
	(void)threads;
	const struct layout l = layout_of(sh, n_seqs, max_len, 1);
	const size_t votes = l.part + (size_t)n_rows * sh->n_heads * CHUNKS_MOST * sizeof(float2);
	const size_t pack = sh->code ? l.part + skv_cuda_pack_bytes(sh) : 0;
	const size_t rebuild = sh->code ? l.part + skv_cuda_rebuild_bytes(sh) : 0;
	const size_t codes = sh->code && skv_cuda_fuses(sh) ? l.part + skv_cuda_decode_codes_bytes(sh, n_seqs) : 0;
	return most_of(most_of(votes, l.total), most_of(most_of(pack, rebuild), codes));
}

size_t skv_cuda_scratch_at(const struct skv_shape *sh)
{
	return layout_of(sh, 0, 0, 1).part;
}

size_t skv_cuda_tiles_bytes(const struct skv_shape *sh, const struct skv_batch *bounds, const struct skv_sparse *sp)
{
	const size_t best = skv_cuda_best_bytes(sh, bounds, sp), stages = skv_cuda_stages_bytes(sh, bounds, sp);

	if (!sp->kept_rows) /* there is no row that speaks for a tile */
		return 0;
	return skv_cuda_scratch_at(sh) + (sp->segment ? skv_cuda_lines_bytes(sh, bounds, sp) : most_of(best, stages));
}

static const struct skv_kernels cuda = {
	.name = "cuda",
	.unsupported = unsupported,
	.work_bytes = work_bytes,
	.append = skv_cuda_append,
	.copy_pages = skv_cuda_copy_pages,
	.decode_dense = skv_cuda_decode_dense,
	.decode_window = skv_cuda_decode_window,
	.decode_pages = skv_cuda_decode_pages,
	.decode_tokens = skv_cuda_decode_tokens,
	.decode_chosen = skv_cuda_decode_chosen,
	.update_bounds = skv_cuda_update_bounds,
	.score_pages = skv_cuda_score_pages,
	.place = skv_cuda_place,
	.lift = skv_cuda_lift,
	.place_prompt = skv_cuda_place_prompt,
	.note_resident = skv_cuda_note_resident,
	.tally = skv_cuda_tally,
	.tally_list = skv_cuda_tally_list,
	.tally_prompt = skv_cuda_tally_prompt,
	.rank = skv_cuda_rank,
	.keep = skv_cuda_keep,
	.allot = skv_cuda_allot,
	.list_awake = skv_cuda_list_awake,
	.stamp = skv_cuda_stamp,
	.prefill_dense = skv_cuda_prefill_dense,
	.prefill_sparse = skv_cuda_prefill_sparse,
	.sparse_bytes = skv_cuda_sparse_bytes,
	.keep_queries = skv_cuda_keep_queries,
	.tile_best = skv_cuda_tile_best,
	.tile_stages = skv_cuda_tile_stages,
	.tile_lines = skv_cuda_tile_lines,
	.select = skv_cuda_select,
	.select_union = skv_cuda_select_union,
	.recall = skv_cuda_recall,
	.unsupported_codes = unsupported_codes,
	.pack = skv_cuda_pack,
	.rebuild = skv_cuda_rebuild,
	.fuses = skv_cuda_fuses,
	.decode_codes = skv_cuda_decode_codes,
};

extern "C" const struct skv_kernels *skv_kernels_cuda(void)
{
	return &cuda;
}
