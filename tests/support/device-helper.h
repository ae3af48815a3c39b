/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/device-helper.h - where the rows of a step are: in host memory, or with SKV_TEST_DEVICE=1 on the first
 * CUDA device. One test of the client library thus tests both.
 */
#ifndef SKV_TEST_DEVICE_HELPER_H
#define SKV_TEST_DEVICE_HELPER_H

#include <stdbool.h>
#include <stddef.h>

#include <sparsekv/client.h>

#include "kernels/device.h"

bool devmem_is_device(void);
/* Returns the device, entered. It is loaded on the first call, as CUDA does not survive a fork. */
const struct skv_backend *devmem_device(void);
void *devmem_stream(void); /* a stream of the device; NULL in host memory */

void *devmem_get(size_t bytes);
void devmem_put(void *);
void devmem_to(void *dst, const void *src, size_t bytes);   /* from host memory; complete on return */
void devmem_from(void *dst, const void *src, size_t bytes); /* to host memory */

/*
 * Rows of a layer in host memory, where the test reads and writes them, and in `placed`, where the library gets them.
 */
struct devmem_rows {
	size_t q_bytes, kv_bytes;
	float *q, *k, *v, *out;
	struct skv_attn placed;
};
struct devmem_rows devmem_rows_new(const struct skv_model *m, uint32_t n);
void devmem_rows_free(struct devmem_rows *);
/* skv_attend() with K and V alone. */
int devmem_append(struct skv_session *s, uint32_t layer, struct devmem_rows *r);
/* skv_attend() with all rows; r->out gets the output. `in_place`: the output replaces q. */
int devmem_attend(struct skv_session *s, uint32_t layer, struct devmem_rows *r, bool in_place);

/* Copies n ids for skv_step_end() to `placed`, which devmem_get() returned. */
const int32_t *devmem_ids(int32_t *placed, const int32_t *ids, uint32_t n);

#endif
