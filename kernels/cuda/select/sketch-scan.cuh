/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-scan.cuh - the scan: a warp scores units of 256 tokens of a kv head by their sketches.
 *
 * It is to be bound by memory, though a key is a sixteenth of what attention reads: so little may be done for each. Codes
 * go into registers, become bytes by a shift and a mask for each four, and are one side of the tensor cores' product of
 * whole numbers (mma.m16n8k32, u8 x s8), whose 8 columns are the q heads of a head tile. The order of the elements in such
 * a product is free: element i of lane c of a row is what the shift of a word of lane c gives, and the query's operands
 * are put together accordingly.
 *
 * Groups of up to 4 heads leave half of the columns empty. Then a row of the product has two tokens (split = 2): of one in
 * lanes c = 0 and 1, of the other in lanes 2 and 3, and a column has zeros for the other's lanes. A step of a warp is 16
 * split tokens, or as many pages of K. Lane (g, c) has tokens 2 g and 2 g + 1 of page c / 2 (split) or of the only one, in
 * rows g and g + 8, and gets the scores of both for heads 2 c and 2 c + 1, modulo 4 if split.
 *
 * What is kept of a token: the products of a tile's heads in 16 bits, and its scale; a pair of tokens together, a record for
 * each two heads. And of each unit and head the largest score, and the sum of all relative to it.
 */
#ifndef SKV_CUDA_SELECT_SKETCH_SCAN_CUH
#define SKV_CUDA_SELECT_SKETCH_SCAN_CUH

#include "kernels/cuda/select/sketch.cuh"

/* With this added, a whole number is a float's last bits, and so the float's value is the number's above MAGIC. */
#define MAGIC 12582912.0f
#define MAGIC_BITS 0x4b400000

/* How a warp's lanes share the codes of rows, of `width` bits each; of 3 bits, 2 are in one such plane and 1 in another. */
template <int D, int width, int split> struct plane {
	static constexpr int words = D * width / 32, shifts = 8 / width;
	static constexpr int lanes = 4 / split; /* that share a row */
	static constexpr bool by_words = words % lanes == 0; /* else a lane has all words, and some of the shifts */
	static constexpr int own_words = by_words ? words / lanes : words;
	static constexpr int own_shifts = by_words ? shifts : shifts / lanes;
	static constexpr int operands = D / 4 / lanes;

	static __device__ __forceinline__ uint32_t first_word(void)
	{
		return by_words ? threadIdx.x % lanes * own_words : 0;
	}
	static __device__ __forceinline__ uint32_t first_shift(void)
	{
		return by_words ? 0 : threadIdx.x % lanes * own_shifts;
	}
	/* The elements of operand i begin here, four of them. */
	static __device__ __forceinline__ uint32_t element(int i)
	{
		const uint32_t word = first_word() + i / own_shifts, shift = first_shift() + i % own_shifts;
		return 4 * word + shift * (D * width / 8);
	}
	static __device__ __forceinline__ uint32_t operand(const uint32_t *word, int i)
	{
		constexpr uint32_t mask = ((1u << width) - 1) * 0x01010101u;
		return word[i / own_shifts] >> (first_shift() + i % own_shifts) * width & mask;
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
	template <int align> __device__ __forceinline__ void load(const uint8_t *row, uint32_t row_bytes, uint64_t once)
	{
		constexpr int each = P::by_words ? P::own_words * 4 : 16;
		row += P::first_word() * 4;
#pragma unroll
		for (int t = 0; t < 2; t++)
			load_words<P::own_words, align % each ? align % 8 || each % 8 ? 4 : 8 : align>(
				word[t], row + t * row_bytes, once);
	}
	/* Every other product has sums of its own: one need not wait for the one before. */
	__device__ __forceinline__ void add(int sum[4], const uint2 (*q)[32]) const
	{
		int more[4] = {0, 0, 0, 0};
#pragma unroll
		for (int i = 0; i < P::operands; i += 2) {
			const uint2 of = q[i / 2][threadIdx.x % 32];
			mma_u8s8(i / 2 % 2 ? more : sum, P::operand(word[0], i), P::operand(word[1], i), P::operand(word[0], i + 1),
			         P::operand(word[1], i + 1), of.x, of.y);
		}
#pragma unroll
		for (int x = 0; x < 4; x++)
			sum[x] += more[x];
	}
};

/* Rows of `bits` bits: one plane, or with 3 bits two. */
template <int D, int bits, int split> struct step_codes {
	typedef plane<D, bits, split> low;
	plane_words<low> of_low;
	uint32_t scales;

	static __device__ __forceinline__ void query(struct sketch_query *q, uint32_t heads)
	{
		make_operands<low, split>(q, heads, q->operand);
	}
	__device__ __forceinline__ void load(const uint8_t *row, uint64_t once)
	{
		constexpr int bytes = D * bits / 8;
		of_low.template load<bytes>(row, bytes, once);
	}
	__device__ __forceinline__ void add(int sum[4], const struct sketch_query *q) const
	{
		of_low.add(sum, q->operand);
	}
};
template <int D, int split> struct step_codes<D, 3, split> {
	typedef plane<D, 2, split> low;
	typedef plane<D, 1, split> high;
	plane_words<low> of_low;
	plane_words<high> of_high;
	uint32_t scales;

	static __device__ __forceinline__ void query(struct sketch_query *q, uint32_t heads)
	{
		make_operands<low, split>(q, heads, q->operand);
		make_operands<high, split>(q, heads, q->operand + low::operands / 2);
	}
	__device__ __forceinline__ void load(const uint8_t *row, uint64_t once)
	{
		constexpr int bytes = D * 3 / 8;
		of_low.template load<bytes>(row, bytes, once);
		of_high.template load<(bytes % 16 == 0 && D / 4 % 16 == 0 ? 16 : bytes % 8 == 0 && D / 4 % 8 == 0 ? 8 : 4)>(
			row + D / 4, bytes, once);
	}
	__device__ __forceinline__ void add(int sum[4], const struct sketch_query *q) const
	{
		int more[4] = {0, 0, 0, 0};
		of_low.add(sum, q->operand);
		of_high.add(more, q->operand + low::operands / 2);
#pragma unroll
		for (int x = 0; x < 4; x++)
			sum[x] += 4 * more[x];
	}
};

/* ---- where a unit's sketches are ------------------------------------------------------------- */

/* Of a page of K: the first token's row of codes, NULL if it has none, and its scale. */
struct alignas(16) page_at {
	const uint8_t *codes, *scales;
};

/*
 * Fills to[UNIT_PAGES], a warp's work. Returns a mask of the pages that are resident, and in its upper half of those that
 * have sketches.
 */
template <int row_bytes>
__device__ static uint32_t locate_unit(const struct sketch_params *c, const struct skv_kseq *s, uint32_t h, uint32_t unit,
                                       struct page_at *to)
{
	const uint32_t lane = threadIdx.x % UNIT_PAGES, page = unit * UNIT_PAGES + lane, token = page * SKV_PAGE_TOKENS;
	const uint32_t nth = token / c->page_tokens, row = token - nth * c->page_tokens;
	struct page_at at = {NULL, NULL};
	bool resident = false;

	if (token < s->len) {
		resident = skv_pte_resident(s->table[(size_t)c->layer * s->layer_stride + page]);
		const skv_pte state = s->len < SKV_PAGE_TOKENS ? 0 : s->table[(size_t)c->state * s->layer_stride + nth];
		if (resident && skv_pte_resident(state)) {
			const uint8_t *part = c->pool + skv_pte_id(state) * c->page_bytes + (size_t)h * c->head_bytes;
			at = {part + row * row_bytes, part + c->page_tokens * row_bytes + row * 2};
		}
	}
	__syncwarp(); /* what was there has been read */
	if (threadIdx.x % 32 < UNIT_PAGES)
		to[lane] = at;
	__syncwarp();
	return __byte_perm(__ballot_sync(~0u, resident), __ballot_sync(~0u, at.codes != NULL), 0x5410);
}

/* ---- records --------------------------------------------------------------------------------- */

/* Where the scores of some units go: of a pair of tokens p, record [p][heads / 2] and scale [p]. */
struct sketch_records {
	uint2 *product;  /* products of the pair's first token, then of its second; two heads in a word */
	uint32_t *scale; /* of both, in bf16, or SCALE_ABSENT, SCALE_NO_SKETCH */
	uint32_t wide;   /* records of a pair: heads / 2, rounded up */
};

/* The product in the lower half of a word, less its bias. */
template <int shift> DEVICE float product(uint32_t word)
{
	const float x = __uint_as_float(0x4b000000u | ((word ^ 0x8000u) & 0xffff)) - (8388608.0f + 32768.0f);
	return shift ? x * (1 << shift) : x;
}

/* What makes weights of a head's products: unit, rest, base, and log2 of the denominator. */
DEVICE float4 head_weights_of(const struct sketch_query *q, uint32_t g, float lse)
{
	return make_float4(q->head[g].unit, q->head[g].rest, q->head[g].base, lse);
}

/* The weight in log2. */
DEVICE float head_weight(const struct score_scale *by, float4 head, float product, float scale)
{
	return sketch_score(by, product, head.y, head.x * scale, head.z) - head.w;
}

/* log2 of a sum of weights; infinite if there are none. */
DEVICE float denominator(struct partial_softmax x)
{
	return x.sum == 0 ? INFINITY : x.max + log2f(x.sum);
}

/* ---- the scan -------------------------------------------------------------------------------- */

/* The scores of a lane's two heads so far: the largest, and the sum of 2^(score - max). */
struct running {
	float max[2], sum[2];
};

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
#define NO_SCORE -1e30f /* below all, but no infinity: differences are numbers */

DEVICE void add_scores(struct running *r, const float s[4])
{
	const float top[2] = {fmaxf(r->max[0], fmaxf(s[0], s[2])), fmaxf(r->max[1], fmaxf(s[1], s[3]))};
	if (__any_sync(~0u, top[0] > r->max[0] || top[1] > r->max[1]))
#pragma unroll
		for (int x = 0; x < 2; x++) {
			r->sum[x] *= exp2_fast(r->max[x] - top[x]);
			r->max[x] = top[x];
		}
#pragma unroll
	for (int x = 0; x < 2; x++)
		r->sum[x] += exp2_fast(s[x] - r->max[x]) + exp2_fast(s[x + 2] - r->max[x]);
}

/* A unit's largest scores and sums, from all lanes that have the same heads; *to is [heads]. */
template <int split> DEVICE void store_peaks(float2 *to, uint32_t heads, const struct running *r)
{
	const uint32_t pair = threadIdx.x % (4 / split);
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float max = r->max[x], sum;
#pragma unroll
		for (int lane = 4 / split; lane < 32; lane *= 2)
			max = fmaxf(max, __shfl_xor_sync(~0u, max, lane));
		sum = r->sum[x] * exp2_fast(r->max[x] - max);
#pragma unroll
		for (int lane = 4 / split; lane < 32; lane *= 2)
			sum += __shfl_xor_sync(~0u, sum, lane);
		if (threadIdx.x % 32 == pair && 2 * pair + x < heads)
			to[2 * pair + x] = make_float2(max > NO_SCORE ? max : -INFINITY, sum);
	}
}

/*
 * A warp's scan of units first, first + stride ... below `end`, in two parts, so that what the query's operands wait for
 * can come while the first codes do.
 */
template <int D, int bits, int split> struct sketch_scan {
	typedef step_codes<D, bits, split> codes;
	static constexpr int shift = sketch_shift<D, bits>, steps = UNIT_PAGES / split, deep = 2; /* steps in flight: more of them need registers that two blocks an SM do not have */
	static constexpr int row_bytes = D * bits / 8;

	const struct sketch_params *c;
	const struct skv_kseq *s;
	struct page_at *pages; /* [2][UNIT_PAGES]: the warp's, of a unit and its next one */
	uint32_t h, len;
	uint64_t once;
	codes ring[deep];
	uint32_t now; /* the unit's pages: locate_unit() */

	/* Load what this lane has of step `x` of a unit. Of pages without sketches nothing is loaded. */
	__device__ __forceinline__ void load(codes *to, const struct page_at *unit, uint32_t x)
	{
		const uint32_t lane = threadIdx.x % 32;
		const struct page_at at = unit[split == 2 ? 2 * x + lane % 4 / 2 : x];
		if (!at.codes)
			return;
		to->load(at.codes + lane / 4 * 2 * row_bytes, once);
		to->scales = load4(at.scales + lane / 4 * 4, once);
	}

	__device__ __forceinline__ void begin(const struct sketch_params *params, const struct skv_kseq *seq, uint32_t head,
	                                      struct page_at *room, uint32_t unit, uint32_t end)
	{
		c = params;
		s = seq;
		h = head;
		pages = room;
		len = s->len;
		once = evict_first_policy();
		if (unit >= end)
			return;
		now = locate_unit<row_bytes>(c, s, h, unit, pages);
#pragma unroll
		for (int x = 0; x < deep; x++)
			load(&ring[x], pages, x);
	}

	/* The scores of a step, of this lane's two heads. */
	__device__ __forceinline__ void score(const codes &of, const struct sketch_query *q, uint32_t pair, int sum[4],
	                                      float score[4]) const
	{
		const struct sketch_query::sketch_head *heads = q->head + 2 * pair;
		const float scale[2] = {bf16_low(of.scales), bf16_high(of.scales)};
#pragma unroll
		for (int x = 0; x < 4; x++)
			sum[x] = MAGIC_BITS + (1 << shift) / 2 - heads[x % 2].bias;
		of.add(sum, q);
#pragma unroll
		for (int x = 0; x < 4; x++) {
			const float product = __int_as_float(sum[x]) - (MAGIC + (float)((1 << shift) / 2));
			score[x] = (product - heads[x % 2].rest) * (heads[x % 2].unit * scale[x / 2]) + heads[x % 2].base;
		}
		if (c->scale.cap != 0)
			cap_scores(&c->scale, score);
	}

	/* One warp of those that share the query completes it. */
	static __device__ __forceinline__ void query(struct sketch_query *q, uint32_t heads)
	{
		codes::query(q, heads);
	}

	/*
	 * Of tokens that have no sketch, or are not there, in the step's pages: scores become -infinity, and scales say so.
	 */
	__device__ __forceinline__ void mask(uint32_t unit, uint32_t x, float of[4], uint32_t *scales) const
	{
		const uint32_t lane = threadIdx.x % 32, page = split == 2 ? 2 * x + lane % 4 / 2 : x;
		const uint32_t token = (unit * UNIT_PAGES + page) * SKV_PAGE_TOKENS + lane / 4 * 2;
		const bool there = now >> page & 1, sketched = now >> page >> 16 & 1;

		if (!sketched)
			*scales = there ? SCALE_NO_SKETCH * 0x10001u : SCALE_ABSENT * 0x10001u;
		if (token + 2 > len)
			*scales = token < len ? *scales | SCALE_ABSENT << 16 : SCALE_ABSENT * 0x10001u;
		if (!sketched || token + 2 > len) {
			of[2] = of[3] = -INFINITY;
			if (!sketched || token >= len)
				of[0] = of[1] = -INFINITY;
		}
	}

	/* The warp's first unit is number `at` of those that `to` and `peaks` have room for. */
	__device__ __forceinline__ void run(const struct sketch_query *q, uint32_t heads, uint32_t unit, uint32_t stride,
	                                    uint32_t end, const struct sketch_records &to, uint32_t at, float2 *peaks,
	                                    uint32_t peak_stride)
	{
		const uint32_t lane = threadIdx.x % 32, pair = lane % (4 / split);
		const uint32_t mine = (split == 2 ? lane % 4 / 2 * SKV_PAGE_TOKENS / 2 : 0) + lane / 4; /* pair of tokens of a step */
		uint32_t turn = 0; /* whose pages are in which half of `pages` */

		for (; unit < end; unit += stride, at += stride, turn ^= 1) {
			const bool more = unit + stride < end, whole = now == ~0u && (unit + 1) * SKETCH_UNIT <= len;
			const struct page_at *own = pages + turn * UNIT_PAGES;
			struct page_at *other = pages + (turn ^ 1) * UNIT_PAGES;
			struct running r = {{NO_SCORE, NO_SCORE}, {0, 0}};
			uint2 *product = to.product + (at * SKETCH_PAIRS + mine) * to.wide + pair;
			uint32_t *scale = to.scale + at * SKETCH_PAIRS + mine, next = 0;
			if (more)
				next = locate_unit<row_bytes>(c, s, h, unit + stride, other);
			for (int first = 0; first < steps; first += deep)
#pragma unroll
				for (int d = 0; d < deep; d++) {
					const int x = first + d;
					uint32_t scales = ring[d].scales;
					int sum[4];
					float of[4];
					score(ring[d], q, pair, sum, of);
					if (x + deep < steps)
						load(&ring[d], own, x + deep);
					else if (more)
						load(&ring[d], other, x + deep - steps);
					if (!whole)
						mask(unit, x, of, &scales);
					if (pair < to.wide)
						*product = make_uint2(__byte_perm(sum[0] >> shift, sum[1] >> shift, 0x5410),
						                      __byte_perm(sum[2] >> shift, sum[3] >> shift, 0x5410));
					if (pair == 0)
						*scale = scales;
					product += split * SKV_PAGE_TOKENS / 2 * to.wide;
					scale += split * SKV_PAGE_TOKENS / 2;
					add_scores(&r, of);
				}
			store_peaks<split>(peaks + (size_t)at * peak_stride, heads, &r);
			now = next;
		}
	}
};

#endif
