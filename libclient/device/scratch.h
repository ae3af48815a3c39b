/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/scratch.h - scratch memory of a session's steps, which grows only when a step begins. */
#ifndef SKV_CLIENT_DEVICE_SCRATCH_H
#define SKV_CLIENT_DEVICE_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

struct skv_session;

#define SCRATCH_ROUND 1024u /* tokens; sizes are rounded up to it, so that scratch does not grow at every new page */

/* Make *mem at least `need` bytes of the session's memory. If the memory grows, its contents are lost. */
int scratch_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need);
void scratch_free(struct skv_session *s, void *mem); /* NULL is ignored */

/* Divides memory into parts. If base is NULL, the carver only adds up sizes. */
struct carver {
	void *base;
	size_t at;
};
void *carve(struct carver *c, size_t bytes); /* returns the next part, aligned to 64 bytes; NULL if base is NULL */

#endif
