/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/device/slab.c - allocates device memory for the page tables of a session's sequences.
 *
 * Sequences come and go with requests, but allocating device memory takes as long as a step, and freeing it waits for
 * all running work. So a session reuses its memory until it ends: blocks of 2^n bytes, which are cut off chunks whose
 * sizes double. Free blocks are not merged: the sequences of a session need few sizes, and of each size the session
 * keeps at most as many blocks as were in use at once.
 */
#include "libclient/device/slab.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/device/device.h"
#include "libclient/error.h"

#define CHUNK ((size_t)1 << 20) /* bytes of the first chunk */

/* Make room in the class's free list for one more block, so that giving a block back cannot fail. */
static int grow_class(struct slab_class *x)
{
	uint32_t cap = 2 * x->cap + 16;
	void **block;

	if (x->made < x->cap)
		return 0;
	block = realloc(x->block, cap * sizeof(*block));
	if (!block)
		return error_set(-ENOMEM, "out of memory");
	x->block = block;
	x->cap = cap;
	return 0;
}

/* Add a chunk of at least `bytes` bytes. The rest of the previous chunk, smaller than that, stays unused. */
static int grow_chunks(struct device *d, size_t bytes)
{
	struct slab *x = &d->slab;
	size_t more = x->n_chunks ? 2 * x->bytes : CHUNK;
	void *chunk;
	int e;

	more = more > bytes ? more : bytes;
	if (x->n_chunks == SLAB_CHUNKS)
		return error_set(-ENOMEM, "out of memory for page tables");
	e = d->backend->alloc(more, &chunk);
	if (e < 0 && more > bytes) { /* try with room for this block alone */
		more = bytes;
		e = d->backend->alloc(more, &chunk);
	}
	if (e < 0)
		return device_failed(d, e, "page tables");
	x->chunk[x->n_chunks++] = chunk;
	x->bytes = more;
	x->used = 0;
	return 0;
}

int slab_take(struct device *d, size_t *bytes, void **ret)
{
	struct slab *x = &d->slab;
	struct slab_class *c;
	uint32_t i = 0;
	int e;

	while (i < SLAB_CLASSES && ((size_t)SLAB_LEAST << i) < *bytes)
		i++;
	if (i == SLAB_CLASSES)
		return error_set(-ENOMEM, "out of memory for page tables of %zu bytes", *bytes);
	c = &x->class[i];
	*bytes = (size_t)SLAB_LEAST << i;
	if (c->n_free > 0) {
		*ret = c->block[--c->n_free];
		return 0;
	}
	e = grow_class(c);
	if (e == 0 && x->bytes - x->used < *bytes)
		e = grow_chunks(d, *bytes);
	if (e < 0)
		return e;
	*ret = (char *)x->chunk[x->n_chunks - 1] + x->used;
	x->used += *bytes;
	c->made++;
	return 0;
}

void slab_give(struct device *d, void *block, size_t bytes)
{
	struct slab_class *c = d->slab.class;

	if (!block)
		return;
	while ((size_t)SLAB_LEAST << (c - d->slab.class) < bytes)
		c++;
	c->block[c->n_free++] = block;
}

void slab_free(struct device *d)
{
	struct slab *x = &d->slab;

	for (uint32_t i = 0; i < x->n_chunks; i++)
		d->backend->free(x->chunk[i]);
	for (uint32_t i = 0; i < SLAB_CLASSES; i++)
		free(x->class[i].block);
	*x = (struct slab){0};
}
