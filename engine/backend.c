/* SPDX-License-Identifier: Apache-2.0 */
/* engine/backend.c - opens backends, and loads the module of a CUDA device's backend. See backend.h. */
#include "engine/backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/error.h"

int eng_backend_parse(const char *text, uint32_t *ret_device, struct eng_error *err)
{
	unsigned long i;
	char *end;

	if (!strcmp(text, "host")) {
		*ret_device = SKV_DEVICE_HOST;
		return 0;
	}
	if (!strncmp(text, "cuda:", 5) && text[5] >= '0' && text[5] <= '9') {
		i = strtoul(text + 5, &end, 10);
		if (!*end && i < SKV_MAX_DEVICES) {
			*ret_device = SKV_DEVICE_CUDA(i);
			return 0;
		}
	}
	return eng_fail(err, -EINVAL, "--device %.60s: host, or cuda:0 to cuda:%u expected", text,
	                SKV_MAX_DEVICES - 1);
}

/*
 * Loads the CUDA module. If the module's ABI version differs from the engine's, only the fields `size` and `abi` of its
 * table may be read.
 */
static const struct eng_backend_ops *load(struct eng_error *err)
{
	const char *path = secure_getenv("SPARSEKV_ENGINE_CUDA_MODULE");
	const struct eng_backend_ops *ops;
	eng_backend_ops_fn *get;
	void *module;

	if (!path || !*path)
		path = ENG_CUDA_MODULE;
	module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!module) {
		eng_fail(err, -ENODEV, "this engine cannot use CUDA here: %s", dlerror());
		return NULL;
	}
	*(void **)&get = dlsym(module, ENG_CUDA_SYMBOL);
	ops = get ? get() : NULL;
	if (ops && ops->abi == ENG_BACKEND_ABI && ops->size >= sizeof(*ops))
		return ops;
	if (!ops)
		eng_fail(err, -ENODEV, "this engine cannot use CUDA here: %s has no " ENG_CUDA_SYMBOL, path);
	else
		eng_fail(err, -ENODEV,
		         "this engine cannot use CUDA here: %s has version %u of %u bytes, expected %u of "
		         "%zu",
		         path, ops->abi, ops->size, ENG_BACKEND_ABI, sizeof(*ops));
	dlclose(module);
	return NULL;
}

int eng_backend_open(struct eng_backend **ret, uint32_t device, struct eng_error *err)
{
	const struct eng_backend_ops *ops;
	int r;

	if (device == SKV_DEVICE_HOST) {
		*ret = eng_backend_host();
		return 0;
	}
	ops = load(err);
	if (!ops)
		return -ENODEV;
	r = ops->open(device - SKV_DEVICE_CUDA(0), ret);
	return r < 0 ? eng_fail(err, r, "cuda:%u: %s", device - SKV_DEVICE_CUDA(0), ops->error()) : 0;
}

void eng_backend_close(struct eng_backend *backend)
{
	if (backend && backend->ops->close)
		backend->ops->close(backend);
}
