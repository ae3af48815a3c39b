/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/env.h"

#include <cblas.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/process.h"

/*
 * Returns the name of the OpenBLAS kernels that fit this processor if OpenBLAS has chosen much worse ones. NULL:
 * OpenBLAS has chosen well.
 */
static const char *better_core(void)
{
#if defined(__x86_64__) && defined(OPENBLAS_VERSION)
	if (strcmp(openblas_get_corename(), "Prescott"))
		return NULL;
	if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
		return "SkylakeX";
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return "Haswell";
#endif
	return NULL;
}

void eng_env_init(char **argv)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	const char *core = getenv("OPENBLAS_CORETYPE") ? NULL : better_core();
	bool spins = !getenv("GOMP_SPINCOUNT") && !getenv("OMP_WAIT_POLICY");

	skv_process_open_standard();
	if ((!core && !spins) || n <= 0)
		return;
	self[n] = '\0';
	if ((core && setenv("OPENBLAS_CORETYPE", core, 1)) || (spins && setenv("GOMP_SPINCOUNT", "1000", 1)))
		return;
	execv(self, argv); /* if execv() fails, the program continues without the settings */
}

bool eng_env_directory(char *to, size_t room)
{
	ssize_t n = readlink("/proc/self/exe", to, room - 1);
	char *slash, *libs;

	if (n <= 0)
		return false;
	to[n] = '\0';
	slash = strrchr(to, '/');
	if (!slash)
		return false;
	*slash = '\0';
	libs = strrchr(to, '/');
	if (libs && !strcmp(libs, "/.libs"))
		*libs = '\0';
	return true;
}
