/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/device-helper.h - where the rows of a step lie: in host memory, or with SKV_TEST_DEVICE=1 on the
 * first CUDA device. So a test of the client library is a test of both.
 */
#ifndef SKV_TEST_DEVICE_HELPER_H
#define SKV_TEST_DEVICE_HELPER_H

#include <stdbool.h>
#include <stddef.h>

#include <sparsekv/client.h>

#include "kernels/device.h"

bool devmem_is_device(void);
/* The device, entered, loaded when first asked for: CUDA does not survive a fork. */
const struct skv_backend *devmem_device(void);
void *devmem_stream(void); /* to work on; NULL in host memory */

void *devmem_get(size_t bytes);
void devmem_put(void *);
void devmem_to(void *dst, const void *src, size_t bytes);   /* from host memory; done on return */
void devmem_from(void *dst, const void *src, size_t bytes); /* to host memory */

/* Rows of a layer as the test makes and reads them, and where the library gets them. */
struct devmem_rows {
	size_t q_bytes, kv_bytes;
	float *q, *k, *v, *out;
	struct skv_attn placed;
};
struct devmem_rows devmem_rows_new(const struct skv_model *m, uint32_t n);
void devmem_rows_free(struct devmem_rows *);
/* skv_attend of K and V alone. */
int devmem_append(struct skv_session *s, uint32_t layer, struct devmem_rows *r);
/* And of all rows; then r->out is what came out. `in_place`: out is q. */
int devmem_attend(struct skv_session *s, uint32_t layer, struct devmem_rows *r, bool in_place);

/* n ids for skv_step_end, in `placed`, which devmem_get() gave. */
const int32_t *devmem_ids(int32_t *placed, const int32_t *ids, uint32_t n);

#endif
