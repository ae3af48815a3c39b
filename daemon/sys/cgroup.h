/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/cgroup.h - how much memory the process may still take before the kernel kills it: of its memory cgroups, of
 * either version, the one that has least left.
 */
#ifndef SKV_CGROUP_H
#define SKV_CGROUP_H

#include <stdint.h>

#define SKV_MAX_CGROUPS 8u /* one in another */

struct skv_cgroup_version;
struct skv_cgroup {
	unsigned n;
	struct {
		const struct skv_cgroup_version *version;
		int used_fd, limit_fd, stat_fd;
		uint64_t cache, cache_ns; /* what the kernel would take back first, and when it was asked */
	} groups[SKV_MAX_CGROUPS];
};

/* Find the groups of this process. There may be none, or none that can be read: then no limit is known. */
void skv_cgroup_open(struct skv_cgroup *);
void skv_cgroup_close(struct skv_cgroup *);
/*
 * Bytes that are left until the first limit, and that limit; UINT64_MAX: no limit is known. The page cache of files counts as
 * left: the kernel takes that back before it kills.
 */
uint64_t skv_cgroup_left(struct skv_cgroup *, uint64_t *ret_limit);

#endif
