/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-scan.cuh - computes a warp's scores of a chunk of tokens of a kv head, by their sketches.
 *
 * The scan should be bound by memory, although a sketch is a sixteenth of the bytes that attention reads of a key. So
 * the scan must do little work per key. Codes are loaded into registers and become bytes by one mask for each four
 * codes. They are the first factor of the tensor cores' integer product (mma.m16n8k32, u8 x s8), whose 8 columns are
 * the q heads of a head tile. The order of the elements in such a product is free: element i of lane c of a row is the
 * code that a shift of one of lane c's words gives, and the query's operands are arranged accordingly.
 *
 * Codes are not shifted to the lowest bits of their bytes but to the highest, by multiplications, which run on another
 * unit than the masks. Half of the codes are shifted to the bits that the other half leaves free, which saves a shift
 * for each two operands. These codes count 1 << log times as much, and have sums of their own.
 *
 * GQA groups of up to 4 heads leave half of the columns empty. Then a row of the product has two tokens (split = 2):
 * one in lanes c = 0 and 1, the other one in lanes 2 and 3, and a column has zeros for the other token's lanes. A step
 * of a warp is 16 split tokens. Lane (g, c) has token 2 g + c / 2 (if split is 2) or g, and the token 8 split further,
 * in rows g and g + 8 of the product. The lane gets the scores of both tokens for heads 2 c and 2 c + 1, modulo 4 if
 * split is 2.
 *
 * A chunk consists of several steps, all in one state page. The last chunk of a page may have fewer tokens than other
 * chunks.
 */
#ifndef SKV_CUDA_SELECT_SKETCH_SCAN_CUH
#define SKV_CUDA_SELECT_SKETCH_SCAN_CUH

#include "kernels/cuda/runtime/async-copy.cuh"
#include "kernels/cuda/select/sketch.cuh"

/* ---- codes and products -------------------------------------------------------------------------- */

/*
 * How a warp's lanes share the codes of a plane's rows, with `width` bits per element. (3-bit codes have one plane with
 * 2 bits and one with 1 bit.) Codes count 1 << lift times. If `log` is not 0 and codes come in pairs, half of them
 * count 1 << log times in addition.
 */
template <int D, int width, int split, int lift, int log> struct plane {
	static constexpr int words = D * width / 32, shifts = 8 / width;
	static constexpr int lanes = 4 / split; /* number of lanes that share a row */
	/* otherwise a lane has all words, and some of the shifts */
	static constexpr bool by_words = words % lanes == 0;
	static constexpr int own_words = by_words ? words / lanes : words;
	static constexpr int own_shifts = by_words ? shifts : shifts / lanes;
	static constexpr int operands = D / 4 / lanes;
	static constexpr int apart = log ? log / width : 1; /* distance, in shifts, of the two codes of a pair */
	static constexpr bool paired = log > 0 && own_shifts % (2 * apart) == 0 && operands % 4 == 0;

	/* Operands with this index and above count 1 << log times. */
	static constexpr int first_high = paired ? operands / 2 : operands;

	static __device__ __forceinline__ uint32_t first_word(void)
	{
		return by_words ? threadIdx.x % lanes * own_words : 0;
	}
	static __device__ __forceinline__ uint32_t first_shift(void)
	{
		return by_words ? 0 : threadIdx.x % lanes * own_shifts;
	}
	/*
	 * word_of(): the index, among the lane's words, of the word of operand i. shift_of(): its index among the
	 * lane's shifts.
	 */
	static __device__ __forceinline__ constexpr int word_of(int i)
	{
		return i % first_high / (paired ? own_shifts / 2 : own_shifts);
	}
	static __device__ __forceinline__ constexpr int shift_of(int i)
	{
		const int n = i % first_high % (paired ? own_shifts / 2 : own_shifts);
		return paired ? n / apart * 2 * apart + n % apart + (i >= first_high ? apart : 0) : n;
	}
	/* Returns the index of the first of the four elements of operand i. */
	static __device__ __forceinline__ uint32_t element(int i)
	{
		return 4 * (first_word() + word_of(i)) + (first_shift() + shift_of(i)) * (D * width / 8);
	}
	static __device__ __forceinline__ uint32_t operand(const uint32_t *word, int i)
	{
		const int at = lift + (i >= first_high ? log : 0), shift = shift_of(i) * width - at;
		const uint32_t mask = (((1u << width) - 1) << at) * 0x01010101u;
		const uint32_t w = by_words ? word[word_of(i)] : word[word_of(i)] >> first_shift() * width;
		return (shift >= 0 ? w >> shift : w << -shift) & mask;
	}
};

/* A warp makes the query's operands; they are zeros where a lane does not have the tokens of a column. */
template <class P, int split> DEVICE void make_operands(const struct sketch_query *q, uint32_t heads, uint4 (*to)[32])
{
	const uint32_t column = threadIdx.x % 32 / 4, head = split == 2 ? column % 4 : column;
	const bool mine = head < heads && (split == 1 || column / 4 == threadIdx.x % 4 / 2);
#pragma unroll
	for (int i = 0; i < P::operands; i += 2)
		((uint2 *)&to[i / 4][threadIdx.x % 32])[i / 2 % 2] =
			mine ? make_uint2(q->code[head][P::element(i) / 4], q->code[head][P::element(i + 1) / 4]) : make_uint2(0, 0);
}

#ifndef SKV_EMULATE
DEVICE void mma_u8s8(int sum[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	    : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif

/* Sources from which codes and scales are loaded: global memory, or the block's shared memory. */
struct from_memory {
	uint64_t policy;

	__device__ __forceinline__ uint4 sixteen(const uint8_t *p) const { return load16(p, policy); }
	__device__ __forceinline__ uint2 eight(const uint8_t *p) const { return load8(p, policy); }
	__device__ __forceinline__ uint32_t four(const uint8_t *p) const { return load4(p, policy); }
	__device__ __forceinline__ uint32_t two(const uint8_t *p) const { return load2(p, policy); }
};
struct from_shared { /* addresses of shared memory are integers */
	__device__ __forceinline__ uint4 sixteen(uint32_t p) const { return load_shared16(p); }
	__device__ __forceinline__ uint2 eight(uint32_t p) const { return load_shared8(p); }
	__device__ __forceinline__ uint32_t four(uint32_t p) const { return load_shared4(p); }
	__device__ __forceinline__ uint32_t two(uint32_t p) const { return load_shared2(p); }
};

/* Loads n words, from an address that is a multiple of `align` bytes. */
template <int n, int align, class From, class At> DEVICE void load_words(uint32_t *to, At p, From from)
{
	if constexpr (align % 16 == 0 && n % 4 == 0) {
#pragma unroll
		for (int i = 0; i < n; i += 4) {
			const uint4 x = from.sixteen(p + i * 4);
			to[i] = x.x;
			to[i + 1] = x.y;
			to[i + 2] = x.z;
			to[i + 3] = x.w;
		}
	} else if constexpr (align % 8 == 0 && n % 2 == 0) {
#pragma unroll
		for (int i = 0; i < n; i += 2) {
			const uint2 x = from.eight(p + i * 4);
			to[i] = x.x;
			to[i + 1] = x.y;
		}
	} else {
#pragma unroll
		for (int i = 0; i < n; i++)
			to[i] = from.four(p + i * 4);
	}
}

/* A lane's words of a plane for `steps` steps, of both of the lane's tokens in each step. */
template <class P, int steps> struct plane_words {
	uint32_t word[steps][2][P::own_words];

	/* Loads the words of step x. `align` is the alignment of rows, and of the plane in a row. */
	template <int align, class From, class At> __device__ __forceinline__ void load(int x, At row, uint32_t to_second, From from)
	{
		constexpr int each = P::by_words ? P::own_words * 4 : 16;
		row += P::first_word() * 4;
#pragma unroll
		for (int t = 0; t < 2; t++)
			load_words<P::own_words, align % each ? align % 8 || each % 8 ? 4 : 8 : align>(
				word[x][t], row + t * to_second, from);
	}
	/*
	 * Adds the products of n steps: to sum[] those of codes that count once, and to high[] those of codes that
	 * count 1 << log times.
	 */
	template <int n> __device__ __forceinline__ void add(int first, int (*sum)[4], int (*high)[4], const uint4 (*q)[32]) const
	{
#pragma unroll
		for (int i = 0; i < P::operands; i += 4) {
			const uint4 of = q[i / 4][threadIdx.x % 32];
#pragma unroll
			for (int x = 0; x < n; x++) {
				add_two(first + x, i, i >= P::first_high ? high[x] : sum[x], of.x, of.y);
				if (i + 2 < P::operands)
					add_two(first + x, i + 2, i + 2 >= P::first_high ? high[x] : sum[x], of.z, of.w);
			}
		}
	}
	__device__ __forceinline__ void add_two(int x, int i, int sum[4], uint32_t q0, uint32_t q1) const
	{
		const uint32_t (*w)[P::own_words] = word[x];
		mma_u8s8(sum, P::operand(w[0], i), P::operand(w[1], i), P::operand(w[0], i + 1), P::operand(w[1], i + 1), q0, q1);
	}
};

/*
 * Rows of codes of `bits` bits: one plane, or two planes if `bits` is 3. high[] + (sum[] << log) is `factor` times the
 * product.
 */
template <int D, int bits, int split, int steps> struct sketch_codes {
	static constexpr bool paired = plane<D, bits, split, 0, bits>::paired;
	static constexpr int log = paired ? bits : 0, lift = 8 - bits - log, factor = 1 << (lift + log);
	typedef plane<D, bits, split, lift, log> low;
	plane_words<low, steps> of_low;

	static __device__ __forceinline__ void query(struct sketch_query *q, uint32_t heads)
	{
		make_operands<low, split>(q, heads, q->operand);
	}
	template <class From, class At> __device__ __forceinline__ void load(int x, At row, uint32_t to_second, From from)
	{
		of_low.template load<D * bits / 8>(x, row, to_second, from);
	}
	template <int n> __device__ __forceinline__ void add(int first, int (*sum)[4], int (*high)[4], const struct sketch_query *q) const
	{
		of_low.template add<n>(first, sum, high, q->operand);
	}
};
template <int D, int split, int steps> struct sketch_codes<D, 3, split, steps> {
	static constexpr int log = plane<D, 2, split, 0, 2>::paired ? 2 : 0, lift = log ? 0 : 1, factor = log ? 4 : 2;
	typedef plane<D, 2, split, lift, log> low;
	typedef plane<D, 1, split, lift + 2, log> upper;
	plane_words<low, steps> of_low;
	plane_words<upper, steps> of_upper;

	static __device__ __forceinline__ void query(struct sketch_query *q, uint32_t heads)
	{
		make_operands<low, split>(q, heads, q->operand);
		make_operands<upper, split>(q, heads, q->operand + (low::operands + 3) / 4);
	}
	template <class From, class At> __device__ __forceinline__ void load(int x, At row, uint32_t to_second, From from)
	{
		constexpr int bytes = D * 3 / 8;
		of_low.template load<bytes>(x, row, to_second, from);
		of_upper.template load<(bytes % 16 == 0 && D / 4 % 16 == 0 ? 16 : bytes % 8 == 0 && D / 4 % 8 == 0 ? 8 : 4)>(
			x, row + D / 4, to_second, from);
	}
	template <int n> __device__ __forceinline__ void add(int first, int (*sum)[4], int (*high)[4], const struct sketch_query *q) const
	{
		of_low.template add<n>(first, sum, high, q->operand);
		of_upper.template add<n>(first, sum, high, q->operand + (low::operands + 3) / 4);
	}
};

/* ---- scores -------------------------------------------------------------------------------------- */

/*
 * Applies the softcap to four scores. Not inlined, so that models without a softcap, which most are, do not pay for it.
 */
static __device__ __noinline__ float4 capped(float scale, float cap, float4 x)
{
	return make_float4(scale * soft_cap(cap, x.x), scale * soft_cap(cap, x.y), scale * soft_cap(cap, x.z),
	                   scale * soft_cap(cap, x.w));
}
DEVICE void cap_scores(const struct score_scale *by, float x[4])
{
	const float4 y = capped(by->scale, by->cap, make_float4(x[0], x[1], x[2], x[3]));
	x[0] = y.x;
	x[1] = y.y;
	x[2] = y.z;
	x[3] = y.w;
}

/* Codes and scales of a lane's tokens in `steps` steps. `caps`: there may be a softcap. */
template <int D, int bits, int split, bool caps, int steps> struct sketch_steps {
	typedef sketch_codes<D, bits, split, steps> codes_type;
	static constexpr int row_bytes = D * bits / 8;
	codes_type codes;
	uint32_t scale[steps][2]; /* bf16 scales of the lane's two tokens */

	/*
	 * Loads step x. `row` and `scales` are the addresses of the lane's first token; the second token is `apart`
	 * tokens further.
	 */
	template <class From, class At> __device__ __forceinline__ void load(int x, At row, At scales, uint32_t apart, From from)
	{
		codes.load(x, row, apart * row_bytes, from);
		scale[x][0] = from.two(scales);
		scale[x][1] = from.two(scales + apart * 2);
	}
	/*
	 * Computes the scores of n steps. ret[x] has those of the lane's first token for its two heads, then those of
	 * its second token.
	 */
	template <int n>
	__device__ __forceinline__ void score(int first, const struct sketch_query *q, const struct score_scale *by, float (*ret)[4]) const
	{
		const struct sketch_query::sketch_head *heads = q->head + threadIdx.x % (4 / split) * 2;
		const struct sketch_query::sketch_head head[2] = {heads[0], heads[1]};
		int sum[n][4] = {}, high[n][4];
#pragma unroll
		for (int x = 0; x < 4 * n; x++)
			high[x / 4][x % 4] = head[x % 2].start;
		codes.template add<n>(first, sum, high, q);
#pragma unroll
		for (int x = 0; x < n; x++) {
			const float by_scale[2] = {bf16_low(scale[first + x][0]), bf16_low(scale[first + x][1])};
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const float product = __int_as_float(sum[x][i] * (1 << codes_type::log) + high[x][i]) - MAGIC;
				ret[x][i] = product * (head[i % 2].unit * by_scale[i / 2]) + head[i % 2].base;
			}
			if (caps && by->cap != 0)
				cap_scores(by, ret[x]);
		}
	}
};

/* ---- where sketches are ---------------------------------------------------------------------- */

/*
 * Where the sketches of a kv head of a sequence are: the sequence's page tables, and the head's part of the pool's
 * pages.
 */
struct sketch_list {
	const skv_pte *pages, *states;
	const uint8_t *pool;
	uint32_t len;
};
DEVICE struct sketch_list sketch_list_of(const struct sketch_params *c, const struct skv_kseq *s, uint32_t h)
{
	return {s->table + (size_t)c->layer * s->layer_stride, s->table + (size_t)c->state * s->layer_stride,
	        c->pool + (size_t)h * c->head_bytes, s->len};
}

/*
 * Returns the index of a token's state page in its table. This division by multiplication is exact for few pages per
 * state page.
 */
DEVICE uint32_t state_page_of(const struct sketch_params *c, uint32_t token)
{
	return __umulhi(token / SKV_PAGE_TOKENS, c->per_state_page);
}

/* ---- chunks -------------------------------------------------------------------------------------- */

#define TEAM 4u /* warps that share a state page in sketch-stream.cuh */

/* Shape of a state page in sketch-stream.cuh, where pages have room for K and V with two bytes per element. */
template <int D, int bits> struct state_page {
	static constexpr int row_bytes = D * bits / 8, head_bytes = SKV_PAGE_TOKENS * D * 4;
	static constexpr int tokens = head_bytes / (row_bytes + 2) / SKV_PAGE_TOKENS * SKV_PAGE_TOKENS, pages = tokens / SKV_PAGE_TOKENS;
	static constexpr int bytes = tokens * (row_bytes + 2);
};

/*
 * Shape of a chunk. Its number of steps is a power of two: as many as a warp's part of a state page has, but at most 16
 * words of codes per lane.
 */
template <int D, int bits, int split> struct chunk_shape {
	static constexpr int row_bytes = D * bits / 8, step = 16 * split; /* step: tokens of a step */
	static constexpr int part = state_page<D, bits>::tokens / (int)TEAM, most = 64 / (int)sizeof(struct sketch_codes<D, bits, split, 1>);
	static constexpr int steps = most >= 8 && part > 4 * step ? 8 : most >= 4 && part > 2 * step ? 4 : most >= 2 && part > step ? 2 : 1;
	static constexpr int tokens = steps * step, pages = tokens / SKV_PAGE_TOKENS;
};

/*
 * A chunk: the position of its first token, its number of tokens, a mask of its resident pages of K (the first page is
 * bit 0), and whether it has sketches.
 */
struct chunk {
	uint32_t first, tokens, pages;
	bool sketched;
};

/*
 * Returns table entries, one per lane. Lane 31 has the entry of state page `nth`; lane k < n has the entry of page
 * `page` + k of K. Lanes without a page have 0.
 */
DEVICE skv_pte sketch_entry(const struct sketch_list *l, uint32_t nth, uint32_t page, uint32_t n)
{
	const uint32_t lane = threadIdx.x % 32;

	if (lane == 31) /* without a full page there are no sketches */
		return l->len < SKV_PAGE_TOKENS || page * SKV_PAGE_TOKENS >= l->len ? 0 : l->states[nth];
	return lane >= n || (page + lane) * SKV_PAGE_TOKENS >= l->len ? 0 : l->pages[page + lane];
}

/*
 * Returns a mask of the lanes whose entries of sketch_entry() are resident. Bits of lanes n to 30, which have no page,
 * are set.
 */
DEVICE uint32_t resident_entries(skv_pte e, uint32_t n)
{
	const uint32_t lane = threadIdx.x % 32;
	return __ballot_sync(~0u, skv_pte_resident(e) || (lane >= n && lane < 31));
}

/* Returns the index, in a step, of the lane's first token. The lane's second token is 8 split tokens further. */
template <int split> DEVICE uint32_t lane_token(void)
{
	const uint32_t lane = threadIdx.x % 32;
	return split == 2 ? lane / 4 * 2 + lane % 4 / 2 : lane / 4;
}

/* A token has a score, or has no sketch and so no score though its page is resident, or its page is absent. */
enum sketch_kind { SKETCH_SCORED, SKETCH_NONE, SKETCH_ABSENT };

/* Sets a lane's scores of a token to -infinity if the token has no sketch or is absent. Returns the token's kind. */
DEVICE enum sketch_kind mask_token(const struct chunk *at, uint32_t token, uint32_t len, float score[2])
{
	const bool there = at->first + token < len && at->pages >> token / SKV_PAGE_TOKENS & 1;

	if (there && at->sketched)
		return SKETCH_SCORED;
	score[0] = score[1] = -INFINITY;
	return there ? SKETCH_NONE : SKETCH_ABSENT;
}

/* Does each of a chunk's tokens have a sketch, and are all of them in [from, to)? */
template <class Shape> DEVICE bool is_plain(const struct chunk *at, uint32_t from, uint32_t to)
{
	constexpr uint32_t all = (1u << Shape::pages) - 1;
	return at->sketched && (at->pages & all) == all && at->first >= from && at->first + Shape::tokens <= to;
}

/* Loads the codes and scales of a chunk. `row` and `scales` are the addresses of those of the lane's first token. */
template <class Shape, class Steps, class At, class From> DEVICE void load_chunk(Steps *to, At row, At scales, From from)
{
#pragma unroll
	for (int x = 0; x < Shape::steps; x++)
		to->load(x, row + x * Shape::step * Shape::row_bytes, scales + x * Shape::step * 2, Shape::step / 2, from);
}

/*
 * Computes a chunk's scores and passes them to a sink with two member functions. If `plain`, add() gets the chunk, the
 * index of a step's first token in it, and the lane's scores of the step. Otherwise add_any() also gets the kinds of
 * the lane's two tokens. Scores of tokens without sketches are -infinity. In a chunk with fewer tokens than others, the
 * last tokens of a step may belong to another chunk. at_once: number of steps whose products are computed side by side,
 * 1 or 2.
 */
template <class Shape, int at_once, class Steps, class Sink>
DEVICE void score_chunk(const Steps *of, const struct sketch_query *q, const struct score_scale *by, const struct chunk *at, bool plain,
                        uint32_t len, const Sink &sink)
{
	constexpr int split = Shape::step / 16, n = at_once < Shape::steps ? at_once : Shape::steps;
#pragma unroll
	for (int first = 0; first < Shape::steps; first += n) {
		float score[n][4];
		of->template score<n>(first, q, by, score);
#pragma unroll
		for (int x = 0; x < n; x++) {
			const uint32_t token = (first + x) * Shape::step;
			if (plain) {
				sink.add(at, token, score[x]);
			} else {
				enum sketch_kind kind[2];
#pragma unroll
				for (int t = 0; t < 2; t++)
					kind[t] = mask_token(at, token + lane_token<split>() + t * 8 * split, len, score[x] + 2 * t);
				sink.add_any(at, token, score[x], kind);
			}
		}
	}
}

#endif
