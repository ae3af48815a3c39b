/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/memory-group.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/support/daemon-fixture.h"

#define UNIFIED "/sys/fs/cgroup"
#define VERSION_1 "/sys/fs/cgroup/memory"

static char group[512]; /* path of its folder */
static bool is_v1;

static void path_of(const char *file, char to[600])
{
	snprintf(to, 600, "%s/%s", group, file);
}

static bool put(const char *file, const char *text)
{
	char path[600];
	FILE *f;
	bool ok;

	path_of(file, path);
	f = fopen(path, "w");
	if (!f)
		return false;
	ok = fputs(text, f) >= 0;
	return fclose(f) == 0 && ok;
}

/* Returns the number in the file, or the one after the word, if a word is given. */
static uint64_t get(const char *file, const char *word)
{
	unsigned long long x = 0;
	char path[600], line[256];
	FILE *f;

	path_of(file, path);
	f = fopen(path, "r");
	ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, word, strlen(word)) == 0 && sscanf(line + strlen(word), "%llu", &x) == 1)
			break;
	fclose(f);
	return x;
}

void memory_group_enter(void)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	if (!put("cgroup.procs", pid))
		_exit(126);
}

static bool make(uint64_t bytes)
{
	char text[32];

	is_v1 = access(VERSION_1 "/memory.limit_in_bytes", F_OK) == 0;
	snprintf(group, sizeof(group), "%s/sparsekv-test-%d", is_v1 ? VERSION_1 : UNIFIED, (int)getpid());
	if (mkdir(group, 0755) < 0)
		return false;
	snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
	if (!put(is_v1 ? "memory.limit_in_bytes" : "memory.max", text))
		return false;
	(void)put(is_v1 ? "memory.swappiness" : "memory.swap.max", "0"); /* the kernel may not account swap */
	return true;
}

bool memory_group_begin(uint64_t bytes)
{
	if (!make(bytes)) {
		printf("no memory cgroup can be made here: %s: %s\n", group, strerror(errno));
		(void)rmdir(group);
		return false;
	}
	fix_before_exec = memory_group_enter;
	return true;
}

uint64_t memory_group_used(void)
{
	return get(is_v1 ? "memory.usage_in_bytes" : "memory.current", "");
}

uint64_t memory_group_limit(void)
{
	return get(is_v1 ? "memory.limit_in_bytes" : "memory.max", "");
}

uint64_t memory_group_kills(void)
{
	return get(is_v1 ? "memory.oom_control" : "memory.events", "oom_kill ");
}

void memory_group_end(void)
{
	fix_before_exec = NULL;
	for (int i = 0; i < 1000 && rmdir(group) < 0; i++) /* a process leaves the group a little after it has ended */
		fix_sleep_ms(5);
	ck_assert_int_lt(access(group, F_OK), 0);
}
