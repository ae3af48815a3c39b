/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/slab.h - device memory for the tables of a session's sequences. */
#ifndef SKV_CLIENT_DEVICE_SLAB_H
#define SKV_CLIENT_DEVICE_SLAB_H

#include <stddef.h>
#include <stdint.h>

struct device;

#define SLAB_CHUNKS 40u  /* sizes double, as a rule */
#define SLAB_CLASSES 32u /* blocks of SLAB_LEAST << class bytes */
#define SLAB_LEAST 4096u

struct slab {
	void *chunk[SLAB_CHUNKS];
	uint32_t n_chunks;
	size_t bytes, used; /* of the last chunk */
	struct slab_class {
		void **block;   /* [n_free], room for `made` and more: giving a block back needs no memory */
		uint32_t n_free, made, cap;
	} class[SLAB_CLASSES];
};

/*
 * Take a block of at least *bytes bytes; *bytes becomes its size. The device must be entered; contents are undefined.
 */
int slab_take(struct device *d, size_t *bytes, void **ret);
/* Give a block back. Queued work may still use it if it is queued before the next user's. NULL is fine. */
void slab_give(struct device *d, void *block, size_t bytes);
void slab_free(struct device *d); /* frees all at the end of the session; the device must be entered */

#endif
