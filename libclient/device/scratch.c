/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/scratch.c - allocates scratch memory for a session's steps, on the host or on its device. */
#include "libclient/device/scratch.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/device/device.h"
#include "libclient/error.h"
#include "libclient/session.h"

int scratch_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need)
{
	/* CUDA graphs hold the address of what padded steps use, so this memory moves as seldom as possible */
	size_t more = (need + (s->step.padding.on ? need : need / 4) + 63) / 64 * 64;

	if (need <= *bytes)
		return 0;
	if (s->device)
		return device_grow(s, mem, bytes, more);
	free(*mem);
	*mem = aligned_alloc(64, more);
	*bytes = *mem ? more : 0;
	return *mem ? 0 : error_set(-ENOMEM, "out of memory for %zu bytes of scratch", more);
}

void scratch_free(struct skv_session *s, void *mem)
{
	void *was;

	if (!s->device) {
		free(mem);
	} else if (mem && device_enter(s, &was) == 0) {
		s->device->backend->free(mem);
		device_leave(s, was);
	}
}

void *carve(struct carver *c, size_t bytes)
{
	const size_t at = c->at;

	c->at = (at + bytes + 63) / 64 * 64;
	return c->base ? (char *)c->base + at : NULL;
}
