/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/replay.h"

static void forget(struct eng_recording *r, struct eng_backend *backend)
{
	if (r->recording)
		backend->ops->forget(backend, r->recording);
	*r = (struct eng_recording){.key = 0};
}

struct eng_recording *eng_recording_of(struct eng_recordings *all, struct eng_backend *backend, uint64_t key,
                                       bool *ret_seen)
{
	struct eng_recording *oldest = &all->list[0];

	all->now++;
	for (uint32_t i = 0; i < ENG_RECORDINGS; i++) {
		struct eng_recording *r = &all->list[i];

		if (r->key == key) {
			r->used = all->now;
			*ret_seen = true;
			return r;
		}
		if (r->used < oldest->used)
			oldest = r;
	}
	forget(oldest, backend);
	*oldest = (struct eng_recording){.key = key, .used = all->now};
	*ret_seen = false;
	return oldest;
}

void eng_recordings_forget(struct eng_recordings *all, struct eng_backend *backend)
{
	for (uint32_t i = 0; i < ENG_RECORDINGS; i++)
		forget(&all->list[i], backend);
}
