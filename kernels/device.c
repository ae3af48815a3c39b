/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/device.c - finds and loads the module of a device backend (CUDA). See device.h. */
#include "kernels/device.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct skv_backend *loaded;

/*
 * Loads a module and checks its version. Of a module of another version only the size and the ABI number, the first
 * words of struct skv_backend, may be read.
 */
static const struct skv_backend *load(const char *path, char *err, size_t size)
{
	const struct skv_backend *b;
	skv_backend_fn *get;
	void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!module) {
		snprintf(err, size, "no CUDA backend: %s", dlerror());
		return NULL;
	}
	*(void **)&get = dlsym(module, SKV_CUDA_SYMBOL);
	b = get ? get() : NULL;
	if (b && b->abi == SKV_BACKEND_ABI && b->size >= sizeof *b)
		return b;
	if (!b)
		snprintf(err, size, "no CUDA backend: %s has no " SKV_CUDA_SYMBOL, path);
	else
		snprintf(err, size, "no CUDA backend: %s has version %u of %u bytes, expected %u of %zu", path,
		         b->abi, b->size, SKV_BACKEND_ABI, sizeof *b);
	dlclose(module);
	return NULL;
}

const struct skv_backend *skv_backend_cuda(char *err, size_t size)
{
	const char *path = secure_getenv("SPARSEKV_CUDA_MODULE");
	const struct skv_backend *b;
	unsigned n;

	pthread_mutex_lock(&lock);
	if (!loaded)
		loaded = load(path && *path ? path : SKV_CUDA_MODULE, err, size);
	b = loaded;
	pthread_mutex_unlock(&lock);
	if (b && b->count(&n) < 0) {
		snprintf(err, size, "%s", b->error());
		return NULL;
	}
	return b;
}
