/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server/device.h - opens CUDA devices, and creates segments of device memory with the help of worker processes.
 */
#ifndef SKV_DAEMON_DEVICE_H
#define SKV_DAEMON_DEVICE_H

#include <stdint.h>

#include "common/wire.h"

struct skv_server;

/*
 * Replaces *number, the client's number of a device, by the daemon's number of the device with this UUID. If the UUID
 * is all zeros, *number stays. Returns 0, or a positive errno with a text in `why`.
 */
int skv_device_resolve(struct skv_server *, const uint8_t uuid[SKV_UUID_BYTES], uint32_t *number,
                       char why[SKV_TEXT_MAX]);
#define SKV_DEVICE_UUID_TEXT 41u
const char *skv_device_uuid_text(const uint8_t uuid[SKV_UUID_BYTES], char to[SKV_DEVICE_UUID_TEXT]);
/* Opens the device if it is not open yet. Returns 0, or a positive errno with a text in `why`. */
int skv_device_need(struct skv_server *, uint32_t device, char why[SKV_TEXT_MAX]);
void skv_device_make(struct skv_server *);        /* starts to create the segments that are pending in the core */
void skv_device_reconfigure(struct skv_server *); /* applies changed limits and timeouts to all open devices */
/* ends the workers of all devices; no segment is created after this */
void skv_device_close_all(struct skv_server *);
void skv_device_free_all(struct skv_server *);

#endif
