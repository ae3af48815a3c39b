/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/cgroup.h - how much more memory the process may take before the kernel kills it: the minimum over its
 * memory cgroups, of version 1 or 2.
 */
#ifndef SKV_CGROUP_H
#define SKV_CGROUP_H

#include <stdint.h>

#define SKV_MAX_CGROUPS 8u /* nested groups */

struct skv_cgroup_version;
struct skv_cgroup {
	unsigned n;
	struct {
		const struct skv_cgroup_version *version;
		int used_fd, limit_fd, stat_fd;
		uint64_t cache, cache_ns; /* reclaimable page cache, and when it was read */
	} groups[SKV_MAX_CGROUPS];
};

/* Finds the groups of this process. If there are none, or none that can be read, no limit is known. */
void skv_cgroup_open(struct skv_cgroup *);
void skv_cgroup_close(struct skv_cgroup *);
/*
 * Returns the bytes left until the first limit is reached, and that limit; UINT64_MAX: no limit is known. Page cache
 * of files counts as left, since the kernel reclaims it before it kills.
 */
uint64_t skv_cgroup_left(struct skv_cgroup *, uint64_t *ret_limit);

#endif
