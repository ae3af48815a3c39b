/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/struct-size.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <sparsekv/client.h>

#include "libclient/error.h"

int sized_get(void *to, size_t known, const void *from, size_t least, const char *name)
{
	uint32_t size;

	memcpy(&size, from, sizeof(size));
	if (size < least || size > known)
		return error_set(-EINVAL, "%s: size is %u, expected %zu to %zu: what its init function or macro sets", name, size,
		                 least, known);
	memset(to, 0, known);
	memcpy(to, from, size);
	memcpy(to, &(uint32_t){(uint32_t)known}, sizeof(uint32_t));
	return 0;
}

/* ---- for callers without the macros ---------------------------------------------------------- */

/*
 * Initialise a caller's struct from `initial`. `size` is that of the caller's declaration: no byte after it is written.
 */
static void init(void *to, size_t size, const void *initial, size_t known)
{
	memset(to, 0, size);
	memcpy(to, initial, size < known ? size : known);
	memcpy(to, &(uint32_t){(uint32_t)size}, sizeof(uint32_t));
}

void skv_model_init(struct skv_model *m, size_t size)
{
	init(m, size, &(struct skv_model)SKV_MODEL_INIT, sizeof(*m));
}

void skv_model_layer_init(struct skv_model_layer *layer, size_t size)
{
	init(layer, size, &SKV_MODEL_LAYER(.window = 0), sizeof(*layer));
}

void skv_step_item_init(struct skv_step_item *item, size_t size)
{
	init(item, size, &SKV_STEP_ITEM(.n_tokens = 1), sizeof(*item));
}

void skv_attn_init(struct skv_attn *a, size_t size)
{
	init(a, size, &SKV_ATTN(.q = NULL), sizeof(*a));
}

void skv_stats_init(struct skv_stats *stats, size_t size)
{
	init(stats, size, &(struct skv_stats){0}, sizeof(*stats));
}

void skv_selection_info_init(struct skv_selection_info *info, size_t size)
{
	init(info, size, &(struct skv_selection_info){0}, sizeof(*info));
}
