/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/device.h - CUDA devices: their segments, their workers. */
#ifndef SKV_DAEMON_DEVICE_H
#define SKV_DAEMON_DEVICE_H

#include <stdint.h>

#include "common/wire.h"

struct skv_server;

/*
 * *number, as the client counts devices, becomes the one of the device that has this UUID (all zeros: it
 * stays). 0, or a positive errno and why not.
 */
int skv_device_resolve(struct skv_server *, const uint8_t uuid[SKV_UUID_BYTES], uint32_t *number,
                       char why[SKV_TEXT_MAX]);
#define SKV_DEVICE_UUID_TEXT 41u
const char *skv_device_uuid_text(const uint8_t uuid[SKV_UUID_BYTES], char to[SKV_DEVICE_UUID_TEXT]);
/* Open the device if it is not open yet. 0, or a positive errno and why not. */
int skv_device_need(struct skv_server *, uint32_t device, char why[SKV_TEXT_MAX]);
void skv_device_make(struct skv_server *);        /* start on the segments that the core has pending */
void skv_device_reconfigure(struct skv_server *); /* apply changed limits and timeouts */
void skv_device_close_all(struct skv_server *);   /* end the workers; nothing is made any more */
void skv_device_free_all(struct skv_server *);

#endif
