/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/draft.h"

#include <string.h>

/*
 * Returns the index of the token after the latest earlier occurrence of the text's last `key` tokens; 0 if there is
 * none.
 */
static uint32_t end_of_latest(const int32_t *text, uint32_t n, uint32_t key)
{
	const int32_t *last = text + n - key;

	for (uint32_t end = n - 1; end >= key; end--)
		if (!memcmp(text + end - key, last, key * sizeof(*text)))
			return end;
	return 0;
}

uint32_t eng_draft(const int32_t *text, uint32_t n, uint32_t most, int32_t *ret)
{
	uint32_t at = 0;

	for (uint32_t key = 3; key >= 2 && !at; key--)
		if (n > key)
			at = end_of_latest(text, n, key);
	if (!at)
		return 0;
	most = most < n - at ? most : n - at;
	memcpy(ret, text + at, most * sizeof(*text));
	return most;
}

uint32_t eng_draft_accepted(const int32_t *draft, const int32_t *chosen, uint32_t n)
{
	uint32_t i = 0;

	while (i < n && draft[i] == chosen[i])
		i++;
	return i;
}
