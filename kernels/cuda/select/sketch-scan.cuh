/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-scan.cuh - the scan: a warp scores units of tokens of a kv head by their sketches.
 *
 * It is to be bound by memory, though a key is a sixteenth of what attention reads: so little may be done for each. Codes
 * go into registers, become bytes by a mask for each four, and are one side of the tensor cores' product of
 * whole numbers (mma.m16n8k32, u8 x s8), whose 8 columns are the q heads of a head tile. The order of the elements in such
 * a product is free: element i of lane c of a row is what the shift of a word of lane c gives, and the query's operands
 * are put together accordingly.
 *
 * Half of a word's elements are not shifted to the lowest bits of their bytes, which saves a shift for each two operands: they
 * count `factor` times, and have sums of their own. The others' are multiplied when both are added.
 *
 * Groups of up to 4 heads leave half of the columns empty. Then a row of the product has two tokens (split = 2): of one in
 * lanes c = 0 and 1, of the other in lanes 2 and 3, and a column has zeros for the other's lanes. A step of a warp is 16
 * split tokens, or as many pages of K. Lane (g, c) has tokens g and g + 8 of page c / 2 (split) or of the only one, in
 * rows g and g + 8, so that a load takes eight rows without gaps, and gets the scores of both for heads 2 c and 2 c + 1, modulo 4 if
 * split.
 *
 * What becomes of a step's scores is up to the scan's user: its sink gets them.
 */
#ifndef SKV_CUDA_SELECT_SKETCH_SCAN_CUH
#define SKV_CUDA_SELECT_SKETCH_SCAN_CUH

#include "kernels/cuda/select/sketch.cuh"

/*
 * How a warp's lanes share the codes of rows, of `width` bits each; of 3 bits, 2 are in one such plane and 1 in another. Codes count
 * 1 << lift times, and where `log` is not 0, half of them 1 << log times besides, if they come in pairs.
 */
template <int D, int width, int split, int lift, int log> struct plane {
	static constexpr int words = D * width / 32, shifts = 8 / width;
	static constexpr int lanes = 4 / split; /* that share a row */
	static constexpr bool by_words = words % lanes == 0; /* else a lane has all words, and some of the shifts */
	static constexpr int own_words = by_words ? words / lanes : words;
	static constexpr int own_shifts = by_words ? shifts : shifts / lanes;
	static constexpr int operands = D / 4 / lanes;
	static constexpr int apart = log ? log / width : 1; /* shifts from a code to the one that it is not shifted with */
	static constexpr bool paired = log > 0 && own_shifts % (2 * apart) == 0 && operands % 4 == 0;

	/* Operands from here on count 1 << log times. */
	static constexpr int first_high = paired ? operands / 2 : operands;

	static __device__ __forceinline__ uint32_t first_word(void)
	{
		return by_words ? threadIdx.x % lanes * own_words : 0;
	}
	static __device__ __forceinline__ uint32_t first_shift(void)
	{
		return by_words ? 0 : threadIdx.x % lanes * own_shifts;
	}
	/* An operand's word among the lane's, and its shift among these. */
	static __device__ __forceinline__ constexpr int word_of(int i)
	{
		return i % first_high / (paired ? own_shifts / 2 : own_shifts);
	}
	static __device__ __forceinline__ constexpr int shift_of(int i)
	{
		const int n = i % first_high % (paired ? own_shifts / 2 : own_shifts);
		return paired ? n / apart * 2 * apart + n % apart + (i >= first_high ? apart : 0) : n;
	}
	/* The elements of operand i begin here, four of them. */
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

/* A warp puts the query's side together: zeros where a column's tokens are not in a lane. */
template <class P, int split> DEVICE void make_operands(const struct sketch_query *q, uint32_t heads, uint2 (*to)[32])
{
	const uint32_t column = threadIdx.x % 32 / 4, head = split == 2 ? column % 4 : column;
	const bool mine = head < heads && (split == 1 || column / 4 == threadIdx.x % 4 / 2);
#pragma unroll
	for (int i = 0; i < P::operands; i += 2)
		to[i / 2][threadIdx.x % 32] = mine ? make_uint2(q->code[head][P::element(i) / 4], q->code[head][P::element(i + 1) / 4])
		                                   : make_uint2(0, 0);
}

DEVICE void mma_u8s8(int sum[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	    : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE uint32_t load2(const void *p, uint64_t policy)
{
	uint16_t v;
	asm volatile("ld.global.L1::no_allocate.L2::cache_hint.u16 %0, [%1], %2;" : "=h"(v) : "l"(p), "l"(policy));
	return v;
}

/* n words, at a multiple of `align` bytes, that are read once. */
template <int n, int align> DEVICE void load_words(uint32_t *to, const uint8_t *from, uint64_t once)
{
	if constexpr (align % 16 == 0 && n % 4 == 0) {
#pragma unroll
		for (int i = 0; i < n; i += 4) {
			const uint4 x = load16(from + i * 4, once);
			to[i] = x.x;
			to[i + 1] = x.y;
			to[i + 2] = x.z;
			to[i + 3] = x.w;
		}
	} else if constexpr (align % 8 == 0 && n % 2 == 0) {
#pragma unroll
		for (int i = 0; i < n; i += 2) {
			const uint2 x = load8(from + i * 4, once);
			to[i] = x.x;
			to[i + 1] = x.y;
		}
	} else {
#pragma unroll
		for (int i = 0; i < n; i++)
			to[i] = load4(from + i * 4, once);
	}
}

/* What a lane loads of a plane in a step: of both of its tokens. */
template <class P> struct plane_words {
	uint32_t word[2][P::own_words];

	/* `align`: of rows, and of the plane in them. */
	template <int align> __device__ __forceinline__ void load(const uint8_t *row, uint32_t to_second, uint64_t once)
	{
		constexpr int each = P::by_words ? P::own_words * 4 : 16;
		row += P::first_word() * 4;
#pragma unroll
		for (int t = 0; t < 2; t++)
			load_words<P::own_words, align % each ? align % 8 || each % 8 ? 4 : 8 : align>(
				word[t], row + t * to_second, once);
	}
	/* To sums of codes that count once, and of the others. */
	__device__ __forceinline__ void add(int sum[4], int high[4], const uint2 (*q)[32]) const
	{
#pragma unroll
		for (int i = 0; i < P::operands; i += 2) {
			const uint2 of = q[i / 2][threadIdx.x % 32];
			mma_u8s8(i >= P::first_high ? high : sum, P::operand(word[0], i), P::operand(word[1], i), P::operand(word[0], i + 1),
			         P::operand(word[1], i + 1), of.x, of.y);
		}
	}
};

/* Rows of `bits` bits: one plane, or with 3 bits two. What sum() gives is `factor` times the product. */
template <int D, int bits, int split> struct step_codes {
	static constexpr int log = bits;
	typedef plane<D, bits, split, 0, log> low;
	static constexpr int factor = low::paired ? 1 << log : 2;
	plane_words<low> of_low;

	static __device__ __forceinline__ void query(struct sketch_query *q, uint32_t heads)
	{
		make_operands<low, split>(q, heads, q->operand);
	}
	__device__ __forceinline__ void load(const uint8_t *row, uint32_t to_second, uint64_t once)
	{
		of_low.template load<D * bits / 8>(row, to_second, once);
	}
	__device__ __forceinline__ void add(int sum[4], int high[4], const struct sketch_query *q) const
	{
		of_low.add(sum, high, q->operand);
	}
};
template <int D, int split> struct step_codes<D, 3, split> {
	static constexpr int log = plane<D, 2, split, 0, 2>::paired ? 2 : 0;
	typedef plane<D, 2, split, 0, log> low;
	typedef plane<D, 1, split, 2, log> upper;
	static constexpr int factor = log ? 4 : 2;
	plane_words<low> of_low;
	plane_words<upper> of_upper;

	static __device__ __forceinline__ void query(struct sketch_query *q, uint32_t heads)
	{
		make_operands<low, split>(q, heads, q->operand);
		make_operands<upper, split>(q, heads, q->operand + low::operands / 2);
	}
	__device__ __forceinline__ void load(const uint8_t *row, uint32_t to_second, uint64_t once)
	{
		constexpr int bytes = D * 3 / 8;
		of_low.template load<bytes>(row, to_second, once);
		of_upper.template load<(bytes % 16 == 0 && D / 4 % 16 == 0 ? 16 : bytes % 8 == 0 && D / 4 % 8 == 0 ? 8 : 4)>(
			row + D / 4, to_second, once);
	}
	__device__ __forceinline__ void add(int sum[4], int high[4], const struct sketch_query *q) const
	{
		of_low.add(sum, high, q->operand);
		of_upper.add(sum, high, q->operand + low::operands / 2);
	}
};

/* ---- where sketches are ---------------------------------------------------------------------- */

/* Of a token, or the first one of a page of K: its row of codes, NULL if it has none, and its scale. */
struct alignas(16) sketch_at {
	const uint8_t *codes, *scales;
};

/* A kv head of a sequence: its part of the tables, and of the pool's pages. */
struct sketch_list {
	const skv_pte *pages, *states;
	const uint8_t *pool;
	uint32_t len, h;
};
DEVICE struct sketch_list sketch_list_of(const struct sketch_params *c, const struct skv_kseq *s, uint32_t h)
{
	return {s->table + (size_t)c->layer * s->layer_stride, s->table + (size_t)c->state * s->layer_stride,
	        c->pool + (size_t)h * c->head_bytes, s->len, h};
}

/* Entries of the tables for a token, and where in its state page it is; without a full page there are no sketches. */
struct sketch_entries {
	skv_pte page, state;
	uint32_t row;
};
DEVICE struct sketch_entries load_entries(const struct sketch_params *c, const struct sketch_list *l, uint32_t token)
{
	/* a division by the pages that a state page has sketches of: exact, as these are few */
	const uint32_t nth = __umulhi(token / SKV_PAGE_TOKENS, c->per_state_page);
	if (token >= l->len)
		return {0, 0, 0};
	return {l->pages[token / SKV_PAGE_TOKENS], l->len < SKV_PAGE_TOKENS ? 0 : l->states[nth], token - nth * c->page_tokens};
}

template <int row_bytes>
DEVICE struct sketch_at locate_sketch(const struct sketch_params *c, const struct sketch_list *l, struct sketch_entries e)
{
	const uint8_t *part = l->pool + skv_pte_id(e.state) * c->page_bytes;

	if (!skv_pte_resident(e.page) || !skv_pte_resident(e.state))
		return {NULL, NULL};
	return {part + e.row * row_bytes, part + c->page_tokens * row_bytes + e.row * 2};
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Out of line: where there is no softcap, as nearly everywhere, it is not to cost anything. */
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

/* caps: there may be a softcap. */
template <int D, int bits, int split, bool caps> struct sketch_step {
	typedef step_codes<D, bits, split> codes_type;
	static constexpr int row_bytes = D * bits / 8;
	codes_type codes;
	uint32_t scale[2]; /* in bf16 */

	/* Codes and scales of the lane's two tokens, so many apart. Of those without a sketch nothing is loaded. */
	__device__ __forceinline__ void load(struct sketch_at at, uint32_t apart, uint64_t once)
	{
		if (!at.codes)
			return;
		codes.load(at.codes, apart * row_bytes, once);
		scale[0] = load2(at.scales, once);
		scale[1] = load2(at.scales + apart * 2, once);
	}
	/* Scores of the lane's first token for its two heads, then of its second. */
	__device__ __forceinline__ void score(const struct sketch_query *q, const struct score_scale *by, float ret[4]) const
	{
		const struct sketch_query::sketch_head *heads = q->head + threadIdx.x % (4 / split) * 2;
		const float by_scale[2] = {bf16_low(scale[0]), bf16_low(scale[1])};
		int sum[4] = {0, 0, 0, 0}, high[4] = {heads[0].start, heads[1].start, heads[0].start, heads[1].start};
		codes.add(sum, high, q);
#pragma unroll
		for (int x = 0; x < 4; x++) {
			const float product = __int_as_float(sum[x] * codes_type::factor + high[x]) - MAGIC;
			ret[x] = product * (heads[x % 2].unit * by_scale[x / 2]) + heads[x % 2].base;
		}
		if (caps && by->cap != 0)
			cap_scores(by, ret);
	}
};

#define TOKENS_APART 8u /* a lane's two tokens of a step of the scan */

/* The lane's first token of a unit's step x. */
template <int split> DEVICE uint32_t step_token(uint32_t unit, uint32_t x)
{
	const uint32_t lane = threadIdx.x % 32, page = split == 2 ? 2 * x + lane % 4 / 2 : x;
	return (unit * UNIT_PAGES + page) * SKV_PAGE_TOKENS + lane / 4;
}

/* ---- the scan -------------------------------------------------------------------------------- */

/* A token that has no score: its page is there, or not. */
enum sketch_kind { SKETCH_SCORED, SKETCH_NONE, SKETCH_ABSENT };

/*
 * A warp's scan of a unit and each stride-th one after it below `end`, `deep` steps in flight, in parts, so that what the query's
 * operands wait for can come while the first codes do. A sink has two members: add() gets of each step its unit, its number in that, and the
 * lane's scores, if all of the unit's tokens have sketches and lie in [plain_from, plain_to); else add_any(), also what kind the two
 * tokens are. Scores of tokens without sketches are -infinity.
 */
template <int D, int bits, int split, bool caps, int deep> struct sketch_scan {
	typedef sketch_step<D, bits, split, caps> step;
	static constexpr int steps = UNIT_PAGES / split;

	const struct sketch_params *c;
	const struct sketch_list *list;
	struct sketch_at *pages; /* [2][UNIT_PAGES]: the warp's, of a unit and its next one */
	uint32_t plain_from, plain_to;
	uint64_t once;
	step ring[deep];
	uint32_t now; /* the unit's pages: locate_unit() */
	struct sketch_entries first, ahead; /* of the first unit, and of the next one */

	static __device__ __forceinline__ uint32_t first_token(uint32_t unit)
	{
		return (unit * UNIT_PAGES + threadIdx.x % UNIT_PAGES) * SKV_PAGE_TOKENS;
	}

	/* Fills to[UNIT_PAGES]. Returns a mask of the pages that are resident, and in its upper half of those that have sketches. */
	__device__ __forceinline__ uint32_t locate_unit(struct sketch_entries e, struct sketch_at *to) const
	{
		const struct sketch_at at = locate_sketch<step::row_bytes>(c, list, e);

		__syncwarp(); /* what was there has been read */
		if (threadIdx.x % 32 < UNIT_PAGES)
			to[threadIdx.x % UNIT_PAGES] = at;
		__syncwarp();
		return __byte_perm(__ballot_sync(~0u, skv_pte_resident(e.page)), __ballot_sync(~0u, at.codes != NULL), 0x5410);
	}

	/* Load what this lane has of step `x` of a unit. */
	__device__ __forceinline__ void load(step *to, const struct sketch_at *unit, uint32_t x)
	{
		const uint32_t lane = threadIdx.x % 32;
		struct sketch_at at = unit[split == 2 ? 2 * x + lane % 4 / 2 : x];
		if (!at.codes)
			return;
		at.codes += lane / 4 * step::row_bytes;
		at.scales += lane / 4 * 2;
		to->load(at, TOKENS_APART, once);
	}

	/* By tables alone, before the sketches of this step need be there. */
	__device__ __forceinline__ void locate(const struct sketch_params *params, const struct sketch_list *of, uint32_t unit, uint32_t stride)
	{
		c = params;
		list = of;
		first = load_entries(c, list, first_token(unit));
		ahead = load_entries(c, list, first_token(unit + stride));
	}
	__device__ __forceinline__ void begin(struct sketch_at *room, uint32_t unit, uint32_t end)
	{
		pages = room;
		plain_from = 0;
		plain_to = list->len;
		once = evict_first_policy();
		if (unit >= end)
			return;
		now = locate_unit(first, pages);
#pragma unroll
		for (int x = 0; x < deep; x++)
			load(&ring[x], pages, x);
	}

	/* Of a token that has no sketch, or is not there, scores become -infinity. */
	__device__ __forceinline__ enum sketch_kind mask(uint32_t token, float *score) const
	{
		const uint32_t page = token / SKV_PAGE_TOKENS % UNIT_PAGES;

		if (token < list->len && now >> page >> 16 & 1)
			return SKETCH_SCORED;
		score[0] = score[1] = -INFINITY;
		return token < list->len && now >> page & 1 ? SKETCH_NONE : SKETCH_ABSENT;
	}

	template <class Sink>
	__device__ __forceinline__ void run(const struct sketch_query *q, uint32_t unit, uint32_t stride, uint32_t end, const Sink &sink)
	{
		uint32_t turn = 0; /* whose pages are in which half of `pages` */

		for (; unit < end; unit += stride, turn ^= 1) {
			const bool more = unit + stride < end;
			const bool plain = now == ~0u && unit * SKETCH_UNIT >= plain_from && (unit + 1) * SKETCH_UNIT <= plain_to;
			const struct sketch_at *own = pages + turn * UNIT_PAGES;
			struct sketch_at *other = pages + (turn ^ 1) * UNIT_PAGES;
			uint32_t next = 0;
#pragma unroll
			for (int x = 0; x < steps; x++) {
				step &now_step = ring[x % deep];
				float score[4];
				now_step.score(q, &c->scale, score);
				if (x + deep == steps && more) {
					next = locate_unit(ahead, other);
					ahead = load_entries(c, list, first_token(unit + 2 * stride));
				}
				if (x + deep < steps)
					load(&now_step, own, x + deep);
				else if (more)
					load(&now_step, other, x + deep - steps);
				if (plain) {
					sink.add(unit, x, score);
				} else {
					const uint32_t token = step_token<split>(unit, x);
					enum sketch_kind kind[2];
#pragma unroll
					for (int t = 0; t < 2; t++)
						kind[t] = mask(token + t * TOKENS_APART, score + 2 * t);
					sink.add_any(unit, x, score, kind);
				}
			}
			now = next;
		}
	}
};

#endif
