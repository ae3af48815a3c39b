/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/cgroup.h - how much memory the process may still take before the kernel kills it, by the limits of its
 * memory cgroups (version 1 or 2).
 */
#ifndef SKV_CGROUP_H
#define SKV_CGROUP_H

#include <stdint.h>

#define SKV_MAX_CGROUPS 8u /* maximum of nested cgroups that are looked at */

struct skv_cgroup_version;
struct skv_cgroup {
	unsigned n;
	struct {
		const struct skv_cgroup_version *version;
		int used_fd, limit_fd, stat_fd;
		uint64_t cache, cache_ns; /* bytes of reclaimable page cache, and when they were read */
	} groups[SKV_MAX_CGROUPS];
};

/* Finds the memory cgroups of this process. If there are none, or if none can be read, no limit is known. */
void skv_cgroup_open(struct skv_cgroup *);
void skv_cgroup_close(struct skv_cgroup *);
/*
 * Returns the bytes that are left until the limit of a cgroup is reached, and in *ret_limit that limit. Returns
 * UINT64_MAX if no limit is known. Page cache of files counts as left, since the kernel reclaims it before it kills a
 * process.
 */
uint64_t skv_cgroup_left(struct skv_cgroup *, uint64_t *ret_limit);

#endif
