/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/device/closed.c - memory of closed sequences that is still registered with the device.
 *
 * Unregistering memory waits until the device has done all of its work (cudaHostUnregister), so that the next step would
 * be queued late. The memory of a closed sequence therefore stays registered and mapped until no step is queued, or
 * until there is much of it.
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
