/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/slab.h - allocates device memory for the page tables of a session's sequences. */
#ifndef SKV_CLIENT_DEVICE_SLAB_H
#define SKV_CLIENT_DEVICE_SLAB_H

#include <stddef.h>
#include <stdint.h>

struct device;

#define SLAB_CHUNKS 40u  /* maximum number of chunks, whose sizes double as a rule */
#define SLAB_CLASSES 32u /* number of classes of blocks; a block of a class has SLAB_LEAST << class bytes */
#define SLAB_LEAST 4096u

struct slab {
	void *chunk[SLAB_CHUNKS];
	uint32_t n_chunks;
	size_t bytes, used; /* bytes of the last chunk: in all; used */
	struct slab_class {
		void **block;   /* [n_free], cap >= `made`: giving a block back allocates nothing */
		uint32_t n_free, made, cap;
	} class[SLAB_CLASSES];
};

/*
 * Take a block of at least *bytes bytes; *bytes becomes its size. The device must be current; contents are undefined.
 */
int slab_take(struct device *d, size_t *bytes, void **ret);
/* Give a block back. Work queued before that of the block's next user may still use it. NULL is ignored. */
void slab_give(struct device *d, void *block, size_t bytes);
void slab_free(struct device *d); /* frees all memory at the end of the session; the session's device must be current */

#endif
