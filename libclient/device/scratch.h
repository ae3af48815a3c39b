/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/scratch.h - scratch memory of a session's steps. It grows when a step begins, and nowhere else. */
#ifndef SKV_CLIENT_DEVICE_SCRATCH_H
#define SKV_CLIENT_DEVICE_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

struct skv_session;

#define SCRATCH_ROUND 1024u /* tokens; rounded, so that scratch does not grow at each page */

/* Ensure at least `need` bytes of the session's memory. If it grows, the contents are lost. */
int scratch_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need);
void scratch_free(struct skv_session *s, void *mem); /* NULL is fine */

/* Divides memory into parts; with base NULL it only measures. */
struct carver {
	void *base;
	size_t at;
};
void *carve(struct carver *c, size_t bytes); /* the next part, aligned to 64 bytes; NULL if it only measures */

#endif
