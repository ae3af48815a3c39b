/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/sys/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"

/*
 * For each version of cgroups: the mark before a group's path in /proc/self/cgroup, the folder with all groups, and the
 * names of the files in a group's folder.
 */
static const struct skv_cgroup_version {
	const char *mark, *root, *used, *limit;
	const char *cache[2]; /* fields of memory.stat with the bytes of page cache */
} versions[] = {
	{":memory:", "/sys/fs/cgroup/memory", "memory.usage_in_bytes", "memory.limit_in_bytes",
	 {"\ntotal_inactive_file ", "\ntotal_active_file "}},
	{"0::", "/sys/fs/cgroup", "memory.current", "memory.max", {"\ninactive_file ", "\nactive_file "}},
};

/* how long the size of the page cache is remembered, since reading memory.stat takes the kernel long */
#define CACHE_NS 100000000u

static int open_in(const char *group, const char *file)
{
	char path[1024];
	int n = snprintf(path, sizeof(path), "%s/%s", group, file);

	return n > 0 && (size_t)n < sizeof(path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
}

/*
 * Adds a cgroup and all its parents. Groups that cannot be opened are skipped, since a container sees only its own
 * group, as the root.
 */
static void add_all(struct skv_cgroup *m, const struct skv_cgroup_version *v, const char *path)
{
	char group[1024];
	int n = snprintf(group, sizeof(group), "%s%s", v->root, path);

	if (n < 0 || (size_t)n >= sizeof(group))
		return;
	for (char *end = group + n; m->n < SKV_MAX_CGROUPS; end = strrchr(group, '/')) {
		int used, limit, stat;

		*end = 0;
		used = open_in(group, v->used);
		limit = open_in(group, v->limit);
		stat = open_in(group, "memory.stat");
		if (used >= 0 && limit >= 0 && stat >= 0) {
			m->groups[m->n].used_fd = used;
			m->groups[m->n].limit_fd = limit;
			m->groups[m->n].stat_fd = stat;
			m->groups[m->n].cache_ns = 0;
			m->groups[m->n++].version = v;
		} else {
			skv_close_fd(used);
			skv_close_fd(limit);
			skv_close_fd(stat);
		}
		if (!strcmp(group, v->root))
			break;
	}
}

void skv_cgroup_open(struct skv_cgroup *m)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[1024];

	m->n = 0;
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
			const char *at = strstr(line, versions[i].mark);

			if (at && at[strlen(versions[i].mark)] == '/')
				add_all(m, &versions[i], at + strlen(versions[i].mark));
		}
	}
	if (f)
		fclose(f);
}

void skv_cgroup_close(struct skv_cgroup *m)
{
	while (m->n > 0) {
		skv_close_fd(m->groups[--m->n].used_fd);
		skv_close_fd(m->groups[m->n].stat_fd);
		skv_close_fd(m->groups[m->n].limit_fd);
	}
}

/* Reads the number in a cgroup's file. Returns UINT64_MAX if the file says "max", or cannot be read. */
static uint64_t number(int fd)
{
	char text[32];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return UINT64_MAX;
	text[n] = 0;
	return *text >= '0' && *text <= '9' ? strtoull(text, NULL, 10) : UINT64_MAX;
}

/* Returns the bytes of page cache of files that the cgroup is charged for. */
static uint64_t cache(struct skv_cgroup *m, unsigned i)
{
	uint64_t now = skv_now_ns();
	char text[8192];
	ssize_t n;

	if (m->groups[i].cache_ns && now < m->groups[i].cache_ns + CACHE_NS)
		return m->groups[i].cache;
	n = pread(m->groups[i].stat_fd, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = 0;
	m->groups[i].cache = 0;
	m->groups[i].cache_ns = now;
	for (size_t k = 0; k < 2; k++) {
		const char *at = strstr(text, m->groups[i].version->cache[k]);

		m->groups[i].cache += at ? strtoull(at + strlen(m->groups[i].version->cache[k]), NULL, 10) : 0;
	}
	return m->groups[i].cache;
}

uint64_t skv_cgroup_left(struct skv_cgroup *m, uint64_t *ret_limit)
{
	uint64_t least = UINT64_MAX;

	*ret_limit = UINT64_MAX;
	for (unsigned i = 0; i < m->n; i++) {
		uint64_t limit = number(m->groups[i].limit_fd), used = number(m->groups[i].used_fd);
		uint64_t left = used < limit ? limit - used : 0;

		/* a group of version 1 without a limit has a number above any memory size */
		if (limit >> 60 || used == UINT64_MAX)
			continue;
		if (left < limit / 2)
			left += cache(m, i);
		if (left >= least)
			continue;
		least = left;
		*ret_limit = limit;
	}
	return least;
}
