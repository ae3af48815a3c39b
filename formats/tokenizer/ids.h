/* SPDX-License-Identifier: Apache-2.0 */
/* formats/tokenizer/ids.h - a growing list of token ids. */
#ifndef SKV_TOKENIZER_IDS_H
#define SKV_TOKENIZER_IDS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct skv_ids {
	int32_t *id;
	size_t n, room;
};
#define SKV_IDS_NULL ((struct skv_ids){.id = NULL})

/* Appends n ids. Returns 0; or -ENOMEM, and then the list is unchanged. */
static inline int skv_ids_add(struct skv_ids *to, const int32_t *id, size_t n)
{
	if (to->room - to->n < n) {
		size_t room = 2 * to->room + n + 16;
		int32_t *more = reallocarray(to->id, room, sizeof(*more));

		if (!more)
			return -ENOMEM;
		to->id = more;
		to->room = room;
	}
	if (n)
		memcpy(to->id + to->n, id, n * sizeof(*id));
	to->n += n;
	return 0;
}

static inline void skv_ids_deinit(struct skv_ids *ids)
{
	free(ids->id);
	*ids = SKV_IDS_NULL;
}

#endif
