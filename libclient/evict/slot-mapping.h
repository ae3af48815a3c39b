/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/evict/slot-mapping.h - layers that evict tokens, or pages of single kv heads: where their rows are. */
#ifndef SKV_CLIENT_EVICT_SLOT_MAPPING_H
#define SKV_CLIENT_EVICT_SLOT_MAPPING_H

#include <stdbool.h>

struct layer;

/*
 * Before the attention of a layer that evicts: append the new rows of decoding sequences, or of prompts, to slots that
 * it allocates.
 */
void slots_append(const struct layer *l, bool prompts);

#endif
