/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decode-quant.cu - dense decoding of layers that keep older tokens in few bits: see decode.cuh.
 *
 * A tile is half a block. A lane reads the numbers of those elements whose rows it would read, and the pairs that they
 * share: of K a pair is for all tokens, so each lane that reads the same elements reads one of their eight, and gets the
 * others from the rest. So all that is on its way fits where rows would be, and it is made rows of 16 bits, as rebuild()
 * would give them, when it is used. Numbers of a row are read by parts, each of which is less than what memory gives: so
 * they go through the first cache.
 */
#include "kernels/cuda/decode/decode-kernel.cuh"

/* Where a tile begins in its record, and which of the block's tokens is its first. */
struct low_tile {
	const uint8_t *record;
	uint32_t token;
};

DEVICE struct low_tile low_tile_at(const struct call *c, uint32_t page, uint32_t at)
{
	return {c->pool + page * c->page_bytes + (at & ~1u), at % 2 * SKV_PAGE_TOKENS};
}

template <int set, class T, int D>
__device__ static void low_load_k(struct walk<T, D> *w, const struct call *c, const struct job *j,
                                  const struct tiles *ts, uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, e = threadIdx.x % 4 * 8;
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = __shfl_sync(~0u, ts->page, k);
	const uint32_t at = __shfl_sync(~0u, ts->low, k);
	if (at == LOW_ROWS) {
		load_k<set, false>(w, c, j, ts, k);
		return;
	}
	if (!mask)
		return;
	const struct low_tile t = low_tile_at(c, page, at);
	const uint8_t *row = t.record + c->low.at.k + (t.token + g) * (D * c->low.bits / 8);
#pragma unroll
	for (int b = 0; b < D / 32; b++) {
		const uint32_t from = (b * 32 + e) * c->low.bits / 8;
		w->k[set][b][0].x = low_word(&c->low, row + from);
		w->k[set][b][1].x = low_word(&c->low, row + 8 * (D * c->low.bits / 8) + from);
		w->k[set][b][0].y = __ldg((const uint32_t *)t.record + b * 32 + e + g);
	}
}

template <int set, class T, int D>
__device__ static void low_load_v(struct walk<T, D> *w, const struct call *c, const struct job *j,
                                  const struct tiles *ts, uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = __shfl_sync(~0u, ts->page, k);
	const uint32_t at = __shfl_sync(~0u, ts->low, k), bits = c->low.bits, group = c->low.group;
	if (at == LOW_ROWS) {
		load_v<set, false>(w, c, j, ts, k);
		return;
	}
	if (!mask)
		return;
	const struct low_tile x = low_tile_at(c, page, at);
#pragma unroll
	for (int t = 0; t < 4; t++) {
		const uint32_t token = x.token + pair + t % 2 + t / 2 * 8;
		const uint8_t *row = x.record + c->low.at.v + token * (D * bits / 8);
		const uint32_t *shared = (const uint32_t *)(x.record + c->low.at.v_shared) + token * (D / group);
#pragma unroll
		for (int b = 0; b < w->WIDE; b++) {
			const uint32_t e = b * 64 + g * 8;
			w->v[set][b][t].x = low_word(&c->low, row + e * bits / 8);
			w->v[set][b][t].y = __ldg(shared + e / group);
		}
		if (w->REST) { /* four numbers */
			const uint32_t e = w->WIDE * 64 + g * 4;
			const uint8_t *from = row + e * bits / 8;
			w->v_rest[set][t] = make_uint2(bits == 4 ? __ldg((const uint16_t *)from) : __ldg(from),
			                               __ldg(shared + e / group));
		}
	}
}

/* Elements 2 i and 2 i + 1 of a word, which have these pairs. */
template <class T>
DEVICE uint32_t low_two(const struct low_form *f, uint32_t word, int i, uint32_t first, uint32_t second)
{
	return T::pair(low_meaning(low_number(f, word, 2 * i), first), low_meaning(low_number(f, word, 2 * i + 1), second));
}

template <int set, class T, int D>
__device__ static void low_widen_k(struct walk<T, D> *w, const struct call *c, const struct tiles *ts, uint32_t k)
{
	const uint32_t lane = threadIdx.x % 4;
	if (__shfl_sync(~0u, ts->low, k) == LOW_ROWS)
		return;
#pragma unroll
	for (int b = 0; b < D / 32; b++) {
		const uint32_t lo = w->k[set][b][0].x, hi = w->k[set][b][1].x, own = w->k[set][b][0].y;
		uint32_t a[4], z[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t first = __shfl_sync(~0u, own, 8 * i + lane), second = __shfl_sync(~0u, own, 8 * i + 4 + lane);
			a[i] = low_two<T>(&c->low, lo, i, first, second);
			z[i] = low_two<T>(&c->low, hi, i, first, second);
		}
		w->k[set][b][0] = make_uint4(a[0], a[1], a[2], a[3]);
		w->k[set][b][1] = make_uint4(z[0], z[1], z[2], z[3]);
	}
}

template <int set, class T, int D>
__device__ static void low_widen_v(struct walk<T, D> *w, const struct call *c, const struct tiles *ts, uint32_t k)
{
	if (__shfl_sync(~0u, ts->low, k) == LOW_ROWS)
		return;
#pragma unroll
	for (int t = 0; t < 4; t++) {
#pragma unroll
		for (int b = 0; b < w->WIDE; b++) {
			const uint32_t word = w->v[set][b][t].x, own = w->v[set][b][t].y;
			w->v[set][b][t] = make_uint4(low_two<T>(&c->low, word, 0, own, own), low_two<T>(&c->low, word, 1, own, own),
			                             low_two<T>(&c->low, word, 2, own, own), low_two<T>(&c->low, word, 3, own, own));
		}
		if (w->REST) {
			const uint32_t word = w->v_rest[set][t].x, own = w->v_rest[set][t].y;
			w->v_rest[set][t] = make_uint2(low_two<T>(&c->low, word, 0, own, own), low_two<T>(&c->low, word, 1, own, own));
		}
	}
}

/* ---- launches -------------------------------------------------------------------------------- */

template <class T, int D> static cudaError_t init_dim(void)
{
	cudaError_t e = init<T, D, LOW>();
	return e ? e : init<T, D, LOW_KEEP>();
}

template <class T> static cudaError_t init_dtype(void)
{
	cudaError_t e = init_dim<T, 64>();
	e = e ? e : init_dim<T, 96>();
	e = e ? e : init_dim<T, 128>();
	return e ? e : init_dim<T, 256>();
}

cudaError_t skv_cuda_decode_low_init(void)
{
	cudaError_t e = init_dtype<F16>();
	return e ? e : init_dtype<BF16>();
}

template <class T, int D> static void launch_dim(const struct call *c, uint32_t jobs, cudaStream_t stream)
{
	if (c->slots)
		launch_kernel<T, D, LOW_KEEP>(c, jobs, stream);
	else
		launch_kernel<T, D, LOW>(c, jobs, stream);
}

template <class T> static void launch(const struct call *c, uint32_t head_dim, uint32_t jobs, cudaStream_t stream)
{
	if (head_dim == 64)
		launch_dim<T, 64>(c, jobs, stream);
	else if (head_dim == 96)
		launch_dim<T, 96>(c, jobs, stream);
	else if (head_dim == 128)
		launch_dim<T, 128>(c, jobs, stream);
	else
		launch_dim<T, 256>(c, jobs, stream);
}

void skv_cuda_decode_low(const struct call *c, uint32_t dtype, uint32_t head_dim, uint32_t jobs, cudaStream_t stream)
{
	if (dtype == SKV_F16)
		launch<F16>(c, head_dim, jobs, stream);
	else
		launch<BF16>(c, head_dim, jobs, stream);
}
