/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/tables.h - a device's copies of page tables. */
#ifndef SKV_CLIENT_DEVICE_TABLES_H
#define SKV_CLIENT_DEVICE_TABLES_H

struct skv_seq;

/* All of these do nothing on host memory. */
int device_seq_open(struct skv_seq *q);
int device_seq_refresh(struct skv_seq *q); /* its tables changed outside of a step */
void device_seq_close(struct skv_seq *q);

#endif
