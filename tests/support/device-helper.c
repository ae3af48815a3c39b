/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/device-helper.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/daemon-fixture.h"

static const struct skv_backend *device;
static void *stream;

bool devmem_is_device(void)
{
	const char *on = getenv("SKV_TEST_DEVICE");

	return on && !strcmp(on, "1");
}

static void ok(int r)
{
	ck_assert_msg(r == 0, "%s", device->error());
}

static void begin(void)
{
	char why[512];
	void *was;

	setenv("SPARSEKV_CUDA_MODULE", fix_built("kernels/cuda/libsparsekv-cuda.so"), 0);
	device = skv_backend_cuda(why, sizeof(why));
	ck_assert_msg(device != NULL, "%s", why);
	ok(device->enter(0, &was));
	ok(device->stream_new(&stream));
}

const struct skv_backend *devmem_device(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* ranks are threads */

	pthread_mutex_lock(&lock);
	if (!device)
		begin();
	pthread_mutex_unlock(&lock);
	return device;
}

void *devmem_stream(void)
{
	if (devmem_is_device())
		devmem_device();
	return stream;
}

void *devmem_get(size_t bytes)
{
	void *p;

	if (!devmem_is_device())
		return calloc(1, bytes);
	ok(devmem_device()->alloc(bytes, &p));
	return p;
}

void devmem_put(void *p)
{
	if (!devmem_is_device())
		free(p);
	else
		ok(devmem_device()->free(p));
}

void devmem_to(void *dst, const void *src, size_t bytes)
{
	if (!devmem_is_device()) {
		memcpy(dst, src, bytes);
		return;
	}
	ok(devmem_device()->copy(dst, src, bytes, stream));
	ok(device->wait(stream));
}

void devmem_from(void *dst, const void *src, size_t bytes)
{
	devmem_to(dst, src, bytes);
}

struct devmem_rows devmem_rows_new(const struct skv_model *m, uint32_t n)
{
	struct devmem_rows r = {.q_bytes = (size_t)n * m->n_heads * m->head_dim * sizeof(float),
	                       .kv_bytes = (size_t)n * m->n_kv_heads * m->head_dim * sizeof(float)};

	r.q = calloc(1, r.q_bytes);
	r.k = calloc(1, r.kv_bytes);
	r.v = calloc(1, r.kv_bytes);
	r.out = calloc(1, r.q_bytes);
	r.placed = SKV_ATTN(.q = devmem_get(r.q_bytes),
	                             .k = devmem_get(r.kv_bytes),
	                             .v = devmem_get(r.kv_bytes),
	                             .out = devmem_get(r.q_bytes));
	return r;
}

void devmem_rows_free(struct devmem_rows *r)
{
	free(r->q);
	free(r->k);
	free(r->v);
	free(r->out);
	devmem_put((void *)r->placed.q);
	devmem_put((void *)r->placed.k);
	devmem_put((void *)r->placed.v);
	devmem_put(r->placed.out);
}

int devmem_attend(struct skv_session *s, uint32_t layer, struct devmem_rows *r, bool in_place)
{
	struct skv_attn a = r->placed;
	int e;

	if (in_place)
		a.out = (void *)a.q;
	devmem_to((void *)a.q, r->q, r->q_bytes);
	devmem_to((void *)a.k, r->k, r->kv_bytes);
	devmem_to((void *)a.v, r->v, r->kv_bytes);
	e = skv_attend(s, layer, &a);
	if (e == 0)
		devmem_from(r->out, a.out, r->q_bytes);
	return e;
}

int devmem_append(struct skv_session *s, uint32_t layer, struct devmem_rows *r)
{
	const struct skv_attn a = SKV_ATTN(.k = r->placed.k, .v = r->placed.v);

	devmem_to((void *)a.k, r->k, r->kv_bytes);
	devmem_to((void *)a.v, r->v, r->kv_bytes);
	return skv_attend(s, layer, &a);
}

const int32_t *devmem_ids(int32_t *placed, const int32_t *ids, uint32_t n)
{
	devmem_to(placed, ids, n * sizeof(*ids));
	return placed;
}
