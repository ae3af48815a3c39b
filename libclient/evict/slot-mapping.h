/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/evict/slot-mapping.h - layers that evict tokens, or pages of single kv heads: where their rows are. */
#ifndef SKV_CLIENT_EVICT_SLOT_MAPPING_H
#define SKV_CLIENT_EVICT_SLOT_MAPPING_H

struct layer;

/* Before the attention of a layer that evicts: append the new rows of decoding sequences to slots that it allocates. */
void slots_append(const struct layer *l);
/* The same for rows of prompts. */
void slots_append_prompts(const struct layer *l);

#endif
