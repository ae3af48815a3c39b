/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/runtime/table.c - one ISA's kernels. */
#include "kernels/host/runtime/host.h"

#define NAME2(isa) #isa
#define NAME(isa) NAME2(isa)

/* The functions use the scratch one at a time, each from its start. */
static size_t work_bytes(const struct skv_shape *sh, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
                         int threads)
{
	const size_t bytes[] = {
		ISA(decode_bytes)(sh, n_seqs, max_len),
		ISA(prefill_bytes)(sh, n_seqs, threads), /* append and bounds take less */
		ISA(union_bytes)(n_seqs, max_len, threads),
		ISA(votes_bytes)(sh, n_seqs, n_rows, threads),
		ISA(rank_bytes)(max_len, threads),
		ISA(keep_bytes)(max_len, threads),
		ISA(allot_bytes)(sh, max_len, threads),
		sh->code ? ISA(pack_bytes)(sh, n_seqs, threads) : 0,
		sh->code ? ISA(rebuild_bytes)(sh, n_seqs, threads) : 0,
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
	.decode_chosen = ISA(decode_chosen),
	.update_bounds = ISA(update_bounds),
	.score_pages = ISA(score_pages),
	.place = ISA(place),
	.lift = ISA(lift),
	.place_prompt = ISA(place_prompt),
	.note_resident = ISA(note_resident),
	.tally = ISA(tally),
	.tally_list = ISA(tally_list),
	.tally_prompt = ISA(tally_prompt),
	.rank = ISA(rank),
	.keep = ISA(keep),
	.allot = ISA(allot),
	.list_awake = ISA(list_awake),
	.stamp = ISA(stamp),
	.prefill_dense = ISA(prefill_dense),
	.prefill_sparse = ISA(prefill_sparse),
	.sparse_bytes = ISA(sparse_bytes),
	.keep_queries = ISA(keep_queries),
	.tile_best = ISA(tile_best),
	.tile_stages = ISA(tile_stages),
	.tile_lines = ISA(tile_lines),
	.select = ISA(select),
	.select_union = ISA(select_union),
	.recall = ISA(recall),
	.unsupported_codes = skv_host_unsupported_codes,
	.pack = ISA(pack),
	.rebuild = ISA(rebuild),
	/* decode_codes is none: what rebuild leaves is read at once, out of the cache, and most of the time goes into Dec */
};
