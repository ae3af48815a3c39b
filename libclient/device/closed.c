/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/device/closed.c - keeps the memory of closed sequences until it can be freed without a wait.
 *
 * cudaHostUnregister() waits until the device has done all of its work. The next step would then be queued late. So the
 * memory of a closed sequence stays registered and mapped until no step is queued, or until DEVICE_CLOSED sequences
 * have such memory.
 */
#include <sys/mman.h>

#include "libclient/device/device.h"

void device_free_closed(struct device *d)
{
	while (d->n_closed > 0) {
		const struct device_closed *x = &d->closed[--d->n_closed];

		if (x->tokens)
			d->backend->unregister_host(x->tokens);
		d->backend->unregister_host(x->mem);
		munmap(x->mem, x->bytes);
	}
}

void device_keep_closed(struct device *d, struct device_closed x)
{
	if (d->n_closed == DEVICE_CLOSED)
		device_free_closed(d);
	d->closed[d->n_closed++] = x;
}
