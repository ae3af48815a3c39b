/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mem/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "common/fd.h"

struct skv_cu skv_cu;

/*
 * The functions' symbol names in the driver library, in the version of cuda.h. A driver that lacks a function is
 * reported as too old, not as missing.
 */
#define LOAD(f) LOAD_AS(f, f)
#define LOAD_AS(f, name) {(void **)&skv_cu.f, #name},
static const struct {
	void **to;
	const char *name;
} functions[] = {SKV_CU_FUNCTIONS(LOAD)};

static int load(char why[SKV_CUDA_TEXT_MAX])
{
	void *lib;

	errno = 0;
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		/* if memory or descriptors were short, the driver may exist */
		const int r = skv_is_shortage(-errno) ? -errno : -ENODEV;

		snprintf(why, SKV_CUDA_TEXT_MAX, "%s: %.200s", r == -ENODEV ? "there is no CUDA driver" : "the CUDA driver", dlerror());
		return r;
	}
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		*functions[i].to = dlsym(lib, functions[i].name);
		if (!*functions[i].to) {
			snprintf(why, SKV_CUDA_TEXT_MAX, "the CUDA driver is too old: it has no %s",
			         functions[i].name);
			dlclose(lib);
			return -ENODEV;
		}
	}
	return 0;
}

int skv_cuda_load(char why[SKV_CUDA_TEXT_MAX])
{
	static bool loaded, initialised;
	int r;

	if (!loaded) {
		r = load(why);
		if (r < 0)
			return r;
		loaded = true;
	}
	if (!initialised) {
		r = skv_cu_error(skv_cu.cuInit(0), "the CUDA driver does not start", why);
		if (r < 0)
			return r;
		initialised = true;
	}
	return 0;
}

static int errno_of(CUresult r)
{
	switch (r) {
	case CUDA_SUCCESS: return 0;
	case CUDA_ERROR_OUT_OF_MEMORY: return -ENOMEM;
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_DEVICE: return -ENODEV;
	case CUDA_ERROR_NOT_SUPPORTED: return -EOPNOTSUPP;
	case CUDA_ERROR_NOT_PERMITTED: return -EPERM;
	default: return -EIO;
	}
}

int skv_cu_error(CUresult r, const char *what, char why[SKV_CUDA_TEXT_MAX])
{
	const char *name = NULL, *text = NULL;

	if (r == CUDA_SUCCESS)
		return 0;
	skv_cu.cuGetErrorName(r, &name);
	skv_cu.cuGetErrorString(r, &text);
	snprintf(why, SKV_CUDA_TEXT_MAX, "%s: %s (%s)", what, text ? text : "unknown error",
	         name ? name : "?");
	return errno_of(r);
}

CUmemAllocationProp skv_cu_prop(CUdevice device)
{
	CUmemAllocationProp prop;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = device;
	return prop;
}
