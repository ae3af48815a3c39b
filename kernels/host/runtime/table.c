/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/runtime/table.c - one ISA's table of kernels. */
#include "kernels/host/compress/compress.h"
#include "kernels/host/decode/decode.h"
#include "kernels/host/evict/evict.h"
#include "kernels/host/prefill/prefill.h"
#include "kernels/host/runtime/append.h"
#include "kernels/host/select/select.h"

#define NAME2(isa) #isa
#define NAME(isa) NAME2(isa)

/* The functions use the workspace one at a time, each from its start. */
static size_t work_bytes(const struct skv_shape *sh, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
                         int threads)
{
	const size_t bytes[] = {
		ISA(decode_bytes)(sh, n_seqs, max_len),
		ISA(prefill_bytes)(sh, n_seqs, threads), /* append and bounds take less */
		ISA(union_bytes)(n_seqs, max_len, threads),
		ISA(accumulate_bytes)(sh, n_seqs, n_rows, threads),
		ISA(rank_bytes)(max_len, threads),
		ISA(evict_bytes)(max_len, threads),
		ISA(touch_bytes)(max_len, threads),
		ISA(head_budgets_bytes)(sh, max_len, threads),
		sh->code ? ISA(compress_bytes)(sh, n_seqs, threads) : 0,
		sh->code ? ISA(decompress_bytes)(sh, n_seqs, threads) : 0,
	};
	size_t most = 0;
	for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
		most = bytes[i] > most ? bytes[i] : most;
	return most;
}

#define TABLE2(isa) skv_kernels_##isa
#define TABLE(isa) TABLE2(isa)
const struct skv_kernels TABLE(SKV_ISA) = {
	.name = NAME(SKV_ISA),
	.unsupported = skv_host_unsupported,
	.work_bytes = work_bytes,
	.append = ISA(append),
	.copy_pages = ISA(copy_pages),
	.decode_dense = ISA(decode_dense),
	.decode_window = ISA(decode_window),
	.decode_pages = ISA(decode_pages),
	.decode_tokens = ISA(decode_tokens),
	.decode_chosen = ISA(decode_topk),
	.update_bounds = ISA(update_bounds),
	.score_pages = ISA(score_pages),
	.place = ISA(alloc_slots),
	.lift = ISA(move_partial_page),
	.place_prompt = ISA(alloc_prompt_slots),
	.note_resident = ISA(init_slot_meta),
	.tally = ISA(accumulate_scores),
	.tally_list = ISA(accumulate_list),
	.tally_prompt = ISA(accumulate_prompt),
	.rank = ISA(rank_tokens),
	.keep = ISA(evict),
	.allot = ISA(allocate_head_budgets),
	.list_awake = ISA(list_active),
	.stamp = ISA(touch_pages),
	.prefill_dense = ISA(prefill_dense),
	.prefill_sparse = ISA(prefill_sparse),
	.sparse_bytes = ISA(prefill_sparse_bytes),
	.keep_queries = ISA(save_queries),
	.tile_best = ISA(kascade_lists),
	.tile_stages = ISA(hip_lists),
	.tile_lines = ISA(minference_lists),
	.select = ISA(select),
	.select_union = ISA(select_union),
	.recall = ISA(recall),
	.unsupported_codes = skv_host_unsupported_codes,
	.pack = ISA(compress),
	.rebuild = ISA(decompress),
	/* no decode_latent: decompressed rows are read at once, from the cache, and most of the time is Dec's */
};
