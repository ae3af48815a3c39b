/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device-slab.h - device memory for the tables of a session's sequences. */
#ifndef SKV_CLIENT_DEVICE_SLAB_H
#define SKV_CLIENT_DEVICE_SLAB_H

#include <stddef.h>
#include <stdint.h>

struct device;

#define SLAB_CHUNKS 40u  /* each is twice as large as the one before */
#define SLAB_CLASSES 32u /* blocks of SLAB_LEAST << class bytes */
#define SLAB_LEAST 4096u

struct slab {
	void *chunk[SLAB_CHUNKS];
	uint32_t n_chunks;
	size_t bytes, used; /* of the last chunk */
	struct slab_class {
		void **block;   /* [n_free] of room for `made` and more: to give one back needs no memory */
		uint32_t n_free, made, cap;
	} class[SLAB_CLASSES];
};

/* A block of at least *bytes, which becomes what it has. The device is entered; the contents are anything. */
int slab_take(struct device *d, size_t *bytes, void **ret);
/* Nothing that is queued may use it but what is queued before the next user's. NULL is fine. */
void slab_give(struct device *d, void *block, size_t bytes);
void slab_free(struct device *d); /* all of it, at the end of the session; the device is entered */

#endif
