/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/runtime/table.c - the table of kernels (struct skv_kernels) of one instruction set. */
#include "kernels/host/compress/compress.h"
#include "kernels/host/decode/decode.h"
#include "kernels/host/evict/evict.h"
#include "kernels/host/prefill/prefill.h"
#include "kernels/host/runtime/append.h"
#include "kernels/host/runtime/rows.h"
#include "kernels/host/select/select.h"

#define NAME2(isa) #isa
#define NAME(isa) NAME2(isa)

/* Returns the most that any kernel needs: only one kernel at a time uses the workspace, from its start. */
static size_t workspace_bytes(const struct skv_shape *sh, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
                         int threads)
{
	const size_t bytes[] = {
		ISA(decode_bytes)(sh, n_seqs, max_len),
		ISA(prefill_bytes)(sh, n_seqs, threads), /* append() and update_bounds() need less */
		ISA(union_bytes)(n_seqs, max_len, threads),
		ISA(accumulate_bytes)(sh, n_seqs, n_rows, threads),
		ISA(rank_bytes)(max_len, threads),
		ISA(evict_bytes)(max_len, threads),
		ISA(touch_bytes)(max_len, threads),
		ISA(head_budgets_bytes)(sh, max_len, threads),
		sh->sketch_bits ? ISA(update_sketches_bytes)(sh, n_seqs) : 0,
		sh->sketch_bits ? ISA(score_sketches_bytes)(sh, n_seqs, max_len) : 0,
		sh->value_bits ? ISA(decode_sketches_bytes)(sh, n_seqs, n_rows, max_len) : 0,
		sh->codec ? ISA(compress_bytes)(sh, n_seqs, threads) : 0,
		sh->codec ? ISA(decompress_bytes)(sh, n_seqs, threads) : 0,
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
	.workspace_bytes = workspace_bytes,
	.append = ISA(append),
	.copy_pages = ISA(copy_pages),
	.decode_dense = ISA(decode_dense),
	.decode_window = ISA(decode_window),
	.decode_pages = ISA(decode_pages),
	.decode_tokens = ISA(decode_tokens),
	.decode_sketches = ISA(decode_sketches),
	.decode_topk = ISA(decode_topk),
	.update_bounds = ISA(update_bounds),
	.score_pages = ISA(score_pages),
	.update_sketches = ISA(update_sketches),
	.score_sketches = ISA(score_sketches),
	.alloc_slots = ISA(alloc_slots),
	.move_partial_page = ISA(move_partial_page),
	.alloc_prompt_slots = ISA(alloc_prompt_slots),
	.init_slot_meta = ISA(init_slot_meta),
	.accumulate_scores = ISA(accumulate_scores),
	.accumulate_list = ISA(accumulate_list),
	.accumulate_prompt = ISA(accumulate_prompt),
	.rank_tokens = ISA(rank_tokens),
	.evict = ISA(evict),
	.allocate_head_budgets = ISA(allocate_head_budgets),
	.list_active = ISA(list_active),
	.touch_pages = ISA(touch_pages),
	.prefill_dense = ISA(prefill_dense),
	.prefill_sparse = ISA(prefill_sparse),
	.prefill_sparse_bytes = ISA(prefill_sparse_bytes),
	.save_queries = ISA(save_queries),
	.kascade_lists = ISA(kascade_lists),
	.hip_lists = ISA(hip_lists),
	.minference_lists = ISA(minference_lists),
	.sum_pages = ISA(sum_pages),
	.select = ISA(select),
	.select_union = ISA(select_union),
	.recall = ISA(recall),
	.unsupported_codec = skv_host_unsupported_codes,
	.gather_tokens = ISA(gather_tokens),
	.compress = ISA(compress),
	.decompress = ISA(decompress),
	.load_rows = ISA(load_rows),
	.store_rows = ISA(store_rows),
	/*
	 * There is no decode_latent: decompressed rows are read back from the processor's cache at once, and decoding
	 * takes most of the time.
	 */
};
