/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-stream.cuh - a block's scan of consecutive state pages, by asynchronous copies to shared
 * memory (Hopper and later): no thread waits for a load, and no register holds data in flight.
 *
 * A kv head's part of a state page is contiguous, so one copy suffices for it. Teams of four warps take turns at the
 * pages; each team has one slot in shared memory, which holds a page. A warp takes every fourth chunk of a page into
 * registers. When all warps of the team have taken their last chunks, one of them, each in its turn, starts the copy of
 * the next page to the slot. The other warps do not wait for the copy but compute scores. (More slots per team, which
 * would take shared memory from the keys, were not faster.)
 */
#ifndef SKV_CUDA_SELECT_SKETCH_STREAM_CUH
#define SKV_CUDA_SELECT_SKETCH_STREAM_CUH

#include "kernels/cuda/runtime/barrier.cuh"
#include "kernels/cuda/select/sketch-scan.cuh"

/* Shared memory that a block with `teams` teams needs for its scan. */
template <int D, int bits, int teams> struct stream_room {
	alignas(128) uint8_t slot[teams][state_page<D, bits>::head_bytes];
	/* Phases of each slot: of `full`, its page has arrived; of `taken`, all warps of the team have read it. */
	barrier full[teams], taken[teams];
	uint32_t entries[teams];           /* resident_entries() of the pages in slots, one mask per slot */
};

#if __CUDA_ARCH__ >= 900
/*
 * A warp's state in the scan. The scan has several member functions, so that the first copies run while the queries are
 * made.
 */
template <int D, int bits, int split, bool caps, int teams> struct sketch_stream {
	typedef chunk_shape<D, bits, split> shape;
	typedef state_page<D, bits> state;
	typedef struct stream_room<D, bits, teams> room_type;
	/* Max number of chunks of a page that a warp processes. */
	static constexpr int rounds = (state::tokens + TEAM * shape::tokens - 1) / (TEAM * shape::tokens);

	const struct sketch_params *c;
	const struct sketch_list *list;
	room_type *room;
	uint32_t next, end; /* the page that this warp copies next; the end of the block's pages */
	skv_pte ahead;      /* sketch_entry() of `next` */

	static __device__ __forceinline__ uint32_t team(void)
	{
		return threadIdx.x / 32 / TEAM;
	}
	static __device__ __forceinline__ uint32_t in_team(void)
	{
		return threadIdx.x / 32 % TEAM;
	}
	__device__ __forceinline__ void look_ahead(void)
	{
		ahead = next < end ? sketch_entry(list, next, next * state::pages, state::pages) : 0;
	}

	/*
	 * Copies state page `next` to the team's slot: all of the kv head's part, including rows that the sequence does
	 * not have yet. Pages at `end` and after it are not copied.
	 */
	__device__ __forceinline__ void copy(void)
	{
		const uint32_t resident = resident_entries(ahead, state::pages);
		barrier *full = &room->full[team()];

		if (threadIdx.x % 32 == 31) {
			room->entries[team()] = resident;
			if (skv_pte_resident(ahead)) {
				barrier_expect(full, state::bytes);
				copy_bulk(room->slot[team()], list->pool + skv_pte_id(ahead) * c->page_bytes, state::bytes, full, evict_first_policy());
			} else {
				barrier_arrive(full);
			}
		}
	}

	/*
	 * Sets up the scan of state pages [first, last). This function reads page tables only, so it may run before the
	 * sketches of this step exist.
	 */
	__device__ __forceinline__ void locate(const struct sketch_params *params, const struct sketch_list *of, uint32_t first, uint32_t last,
	                                       room_type *memory)
	{
		c = params;
		list = of;
		room = memory;
		next = first + team() + in_team() * teams;
		end = last;
		if (threadIdx.x % (32 * TEAM) == 31) { /* this thread also starts the copy of the first page */
			barrier_init(&room->full[team()], 1);
			barrier_init(&room->taken[team()], TEAM * 32);
			barrier_publish();
		}
		look_ahead();
	}
	/* Starts the first copies. The block synchronizes all of its warps between begin() and run(). */
	__device__ __forceinline__ void begin(void)
	{
		if (in_team() == 0)
			copy();
		next += teams;
		look_ahead();
	}

	/*
	 * Scans all of the block's state pages, from `first` to `end`, and passes scores to the sink. Chunks are plain
	 * if all their tokens are in [plain_from, plain_to) and have sketches.
	 */
	template <class Sink>
	__device__ __forceinline__ void run(const struct sketch_query *q, uint32_t first, uint32_t plain_from, uint32_t plain_to, const Sink &sink)
	{
		uint32_t own_row = in_team() * shape::tokens;
		uint32_t codes = (uint32_t)__cvta_generic_to_shared(room->slot[team()]) + (own_row + lane_token<split>()) * shape::row_bytes;
		uint32_t scales = (uint32_t)__cvta_generic_to_shared(room->slot[team()]) + state::tokens * shape::row_bytes +
		                  (own_row + lane_token<split>()) * 2;

		/* Keeps these values in registers; without this the compiler computes them again and again. */
		asm volatile("" : "+r"(own_row), "+r"(codes), "+r"(scales));
		for (uint32_t page = first + team(), turn = 0; page < end; page += teams, turn++) {
			barrier_await(&room->full[team()], turn);
			const uint32_t resident = room->entries[team()];
#pragma unroll
			for (int round = 0; round < rounds; round++) {
				const uint32_t row = own_row + round * TEAM * shape::tokens, token = page * state::tokens + row;
				const bool mine = round + 1 < rounds || state::tokens % (TEAM * shape::tokens) == 0 || row < state::tokens;
				sketch_steps<D, bits, split, caps, shape::steps> steps;

				if (mine)
					load_chunk<shape>(&steps, codes + round * TEAM * shape::tokens * shape::row_bytes,
					                  scales + round * TEAM * shape::tokens * 2, from_shared());
				if (round + 1 == rounds)
					give_back(turn);
				const struct chunk at = {token, min((uint32_t)shape::tokens, state::tokens - row),
				                         resident >> row / SKV_PAGE_TOKENS, (resident >> 31) != 0};
				if (mine && token < list->len)
					score_chunk<shape, 2>(&steps, q, &c->scale, &at, is_plain<shape>(&at, plain_from, plain_to), list->len, sink);
			}
		}
	}

	/*
	 * Called when the warp has loaded all it needs of the page. When it is this warp's turn, the warp waits until
	 * the team's other warps have loaded theirs, and refills the slot.
	 */
	__device__ __forceinline__ void give_back(uint32_t turn)
	{
		barrier *taken = &room->taken[team()];

		barrier_arrive(taken);
		if (turn % TEAM != in_team())
			return;
		barrier_await(taken, turn);
		copy();
		next += TEAM * teams;
		look_ahead();
	}
};
#endif

#endif
