/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks-nccl.c - calls NCCL, which is loaded by dlopen(3). The functions are declared here as in all versions of
 * NCCL since 2.0. The engine is not linked with NCCL, so that all but ranks on devices works on machines without NCCL.
 */
#include "engine/ranks-nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
	char internal[ENG_NCCL_ID_BYTES];
} nccl_id;
enum { NCCL_INT8 = 0, NCCL_INT32 = 2, NCCL_FLOAT32 = 7, NCCL_MAX = 2 };

static struct {
	void *library;
	const char *(*error)(int);
	int (*get_id)(nccl_id *);
	int (*init)(void **comm, int n, nccl_id id, int rank);
	int (*abort)(void *comm);
	int (*all_reduce)(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream);
	int (*all_gather)(const void *from, void *to, size_t count, int type, void *comm, void *stream);
	int (*broadcast)(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream);
} nccl;

struct eng_nccl {
	void *comm;
	uint32_t rank;
};

static int refuse(int e, char why[ENG_NCCL_TEXT], const char *format, const char *what)
{
	snprintf(why, ENG_NCCL_TEXT, format, what);
	return e;
}

static int load(char why[ENG_NCCL_TEXT])
{
	const struct {
		const char *name;
		void *at;
	} functions[] = {
		{"ncclGetErrorString", &nccl.error}, {"ncclGetUniqueId", &nccl.get_id},   {"ncclCommInitRank", &nccl.init},
		{"ncclCommAbort", &nccl.abort},      {"ncclAllReduce", &nccl.all_reduce}, {"ncclAllGather", &nccl.all_gather},
		{"ncclBroadcast", &nccl.broadcast},
	};
	const char *path = getuid() == geteuid() ? getenv("SPARSEKV_NCCL") : NULL;
	void *library;

	if (nccl.library)
		return 0;
	library = dlopen(path ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return refuse(-ENODEV, why, "%.200s (SPARSEKV_NCCL names the file)", dlerror());
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		void *f = dlsym(library, functions[i].name);

		if (!f) {
			dlclose(library);
			return refuse(-ENODEV, why, "NCCL has no %s", functions[i].name);
		}
		memcpy(functions[i].at, &f, sizeof(f));
	}
	nccl.library = library;
	return 0;
}

int eng_nccl_id(uint8_t id[ENG_NCCL_ID_BYTES], char why[ENG_NCCL_TEXT])
{
	nccl_id made;
	int e = load(why);

	if (e < 0)
		return e;
	e = nccl.get_id(&made);
	if (e)
		return refuse(-EIO, why, "NCCL: %s", nccl.error(e));
	memcpy(id, made.internal, ENG_NCCL_ID_BYTES);
	return 0;
}

int eng_nccl_open(struct eng_nccl **ret, const uint8_t id[ENG_NCCL_ID_BYTES], uint32_t rank, uint32_t n, char why[ENG_NCCL_TEXT])
{
	struct eng_nccl *c;
	nccl_id group;
	int e = load(why);

	if (e < 0)
		return e;
	c = calloc(1, sizeof(*c));
	if (!c)
		return refuse(-ENOMEM, why, "%s", "no memory");
	memcpy(group.internal, id, ENG_NCCL_ID_BYTES);
	c->rank = rank;
	e = nccl.init(&c->comm, (int)n, group, (int)rank);
	if (e) {
		free(c);
		return refuse(-EIO, why, "NCCL: %s", nccl.error(e));
	}
	*ret = c;
	return 0;
}

void eng_nccl_close(struct eng_nccl *c)
{
	if (c)
		nccl.abort(c->comm);
	free(c);
}

int eng_nccl_gather(struct eng_nccl *c, void *all, size_t bytes, void *stream)
{
	return nccl.all_gather((uint8_t *)all + c->rank * bytes, all, bytes, NCCL_INT8, c->comm, stream) ? -EIO : 0;
}

int eng_nccl_max(struct eng_nccl *c, float *data, size_t count, void *stream)
{
	return nccl.all_reduce(data, data, count, NCCL_FLOAT32, NCCL_MAX, c->comm, stream) ? -EIO : 0;
}

int eng_nccl_from_first(struct eng_nccl *c, int32_t *data, size_t count, void *stream)
{
	return nccl.broadcast(data, data, count, NCCL_INT32, 0, c->comm, stream) ? -EIO : 0;
}
