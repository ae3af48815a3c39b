/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/evict/slot-mapping.h - layers that evict tokens, or pages of single kv heads: which slots the rows of K and
 * V are in.
 */
#ifndef SKV_CLIENT_EVICT_SLOT_MAPPING_H
#define SKV_CLIENT_EVICT_SLOT_MAPPING_H

#include <stdbool.h>

struct layer;

/*
 * Called before the attention of a layer that evicts: allocates slots for the new rows of decoding sequences, or of
 * prompts, and appends the rows to them.
 */
void slots_append(const struct layer *l, bool prompts);

#endif
