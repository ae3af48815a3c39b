/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/seqfile.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include "common/fd.h"

#define COPY_AT_A_TIME (8 << 20)

int skv_seqfile_new(struct skv_seq_local *ret, uint32_t index, const struct skv_model *m, uint32_t max_tokens)
{
	struct skv_seq_local l;
	char name[32];
	void *map;
	int r;

	skv_seqmem_layout(m, max_tokens, &l.layout);
	snprintf(name, sizeof(name), "seq-%u", index);
	l.fd = skv_memfd_new(name, l.layout.total);
	if (l.fd < 0)
		return l.fd;
	r = skv_map_fd(l.fd, l.layout.state, PROT_READ | PROT_WRITE, 0, &map);
	if (r < 0) {
		skv_close_fd(l.fd);
		return r;
	}
	l.mem = map;
	skv_seqmem_init(l.mem, &l.layout);
	*ret = l;
	return 0;
}

void skv_seqfile_free(struct skv_seq_local *l)
{
	munmap(l->mem, l->layout.state);
	skv_close_fd(l->fd);
	*l = (struct skv_seq_local){.fd = -1};
}

static int copy_piece(int to, int from, off_t at, size_t n)
{
	char *map = mmap(NULL, n, PROT_READ, MAP_SHARED, from, at);
	size_t done = 0;
	int r = 0;

	if (map == MAP_FAILED)
		return -errno;
	while (r == 0 && done < n) {
		ssize_t w = pwrite(to, map + done, n - done, at + (off_t)done);

		if (w > 0)
			done += (size_t)w;
		else
			r = w < 0 ? -errno : -ENOSPC;
	}
	munmap(map, n);
	return r;
}

static int copy_range(int to, int from, off_t at, off_t end)
{
	int r = 0;

	while (r == 0 && at < end) {
		off_t n = end - at < COPY_AT_A_TIME ? end - at : COPY_AT_A_TIME;

		r = copy_piece(to, from, at, (size_t)n);
		at += n;
	}
	return r;
}

int skv_seqfile_copy(const struct skv_seq_local *to, const struct skv_seq_local *from)
{
	off_t at = 0, total = (off_t)from->layout.total;

	while (at < total) {
		off_t data = lseek(from->fd, at, SEEK_DATA), hole;
		int r;

		if (data < 0)
			return errno == ENXIO ? 0 : -errno;
		hole = lseek(from->fd, data, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		r = copy_range(to->fd, from->fd, data, hole);
		if (r < 0)
			return r;
		at = hole;
	}
	return 0;
}
