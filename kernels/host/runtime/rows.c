/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/rows.c - converts strided or 16-bit rows of q, k, v and out to contiguous fp32 rows, and back.
 */
#include "kernels/host/runtime/rows.h"
#include "kernels/host/runtime/simd.h"

#define ROWS_PER_ITEM 16u

struct convert_params {
	uint32_t dtype, n, width;
	size_t from_bytes, to_bytes; /* distances in bytes from one row to the next */
	const uint8_t *from;
	uint8_t *to;
};

INLINE void load_row(uint32_t dtype, const uint8_t *from, float *to, uint32_t width)
{
	for (uint32_t d = 0; d < width; d += VL)
		v_storef(to + d, v_load(dtype, from + d * skv_dtype_bytes(dtype)));
}

static void load_item(void *ctx, uint32_t item, int thread)
{
	const struct convert_params *c = ctx;
	(void)thread;

	for (uint32_t i = item * ROWS_PER_ITEM; i < skv_min(c->n, (item + 1) * ROWS_PER_ITEM); i++)
		BY_DTYPE(c->dtype, load_row, c->from + i * c->from_bytes, (float *)(c->to + i * c->to_bytes), c->width);
}

INLINE void store_row(uint32_t dtype, const float *from, uint8_t *to, uint32_t width)
{
	for (uint32_t d = 0; d < width; d += VL)
		v_store(dtype, to + d * skv_dtype_bytes(dtype), v_loadf(from + d));
}

static void store_item(void *ctx, uint32_t item, int thread)
{
	const struct convert_params *c = ctx;
	(void)thread;

	for (uint32_t i = item * ROWS_PER_ITEM; i < skv_min(c->n, (item + 1) * ROWS_PER_ITEM); i++)
		BY_DTYPE(c->dtype, store_row, (const float *)(c->from + i * c->from_bytes), c->to + i * c->to_bytes, c->width);
}

/* Uses one thread for the few rows of a decode step: converting them takes less time than waking a thread. */
static void run(const struct convert_params *c, skv_item_fn *fn, const struct skv_workspace *work)
{
	const uint32_t items = (c->n + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;

	skv_run(items > 4 ? work->threads : 1, items, fn, (void *)c);
}

void ISA(load_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const void *from, float *to,
                    const struct skv_workspace *work)
{
	const struct convert_params c = {.dtype = dtype, .n = n, .width = width, .from = from, .to = (uint8_t *)to,
	                                 .from_bytes = stride * skv_dtype_bytes(dtype), .to_bytes = width * sizeof(float)};

	run(&c, load_item, work);
}

void ISA(store_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const float *from, void *to,
                     const struct skv_workspace *work)
{
	const struct convert_params c = {.dtype = dtype, .n = n, .width = width, .from = (const uint8_t *)from, .to = to,
	                                 .from_bytes = width * sizeof(float), .to_bytes = stride * skv_dtype_bytes(dtype)};

	run(&c, store_item, work);
}
