/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/jobs/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/core/memory/pins.h"
#include "daemon/core/operations/turns.h"

#define MARKED_IN_A_TURN 65536u /* number of list entries whose segments a turn marks */

void skv_job_memory_free(struct skv_job *j, struct skv_job_memory *mem)
{
	skv_core_list_end(&mem->listing);
	if (mem->list >= 0 && !j->jobs->closed)
		skv_loop_close_fd(j->jobs->config.loop, mem->list); /* in a thread of the ring, since it takes long */
	else
		skv_close_fd(mem->list);
	free(mem->segments);
}

/* ---- to be read ------------------------------------------------------------------------------- */

int skv_job_memory_list(struct skv_job *j, struct skv_job_memory *mem, uint32_t seq, const struct skv_core_location *at)
{
	struct skv_core *core = j->jobs->config.core;
	const uid_t uid = at->uid;
	int r;

	mem->seq = seq;
	mem->list = memfd_create("skv-list", MFD_CLOEXEC);
	if (mem->list < 0)
		return -errno;
	mem->n_segments = at->pages_fd < 0 ? (uint32_t)(at->max_pages / at->pages_per_segment) : 0;
	mem->segments = at->pages_fd < 0 ? calloc(mem->n_segments, 1) : NULL;
	if (at->pages_fd < 0 && !mem->segments)
		return -ENOMEM;
	r = skv_core_list_begin(core, seq, mem->list, &mem->listing);
	return r ? r : skv_core_pin_list(core, uid, mem->listing.most_bytes, &j->pinned);
}

int skv_job_memory_list_some(struct skv_job *j, struct skv_job_memory *mem)
{
	uint32_t units = SKV_TURN_UNITS;
	int r = mem->listed ? 0 : skv_core_list_some(j->jobs->config.core, &mem->listing, &units);

	if (r < 0)
		j->jobs->config.fail(j->jobs->config.server, "listing the pages of a sequence", r);
	if (r == SKV_CORE_E_TURNS)
		skv_job_enter(j, SKV_JOB_TURNS);
	if (r)
		return r < 0 ? SKV_CORE_E_TURNS : r; /* E_TURNS: config.fail() stops the daemon and thus all turns */
	if (!mem->listed) {
		j->m.n_entries = mem->listing.n_entries;
		j->m.n_pages = mem->listing.n_pages;
	}
	mem->listed = true;
	return 0;
}

int skv_job_memory_mark(struct skv_job *j, struct skv_job_memory *mem, uint32_t pages_per_segment)
{
	const uint64_t left = mem->segments ? j->m.n_entries - mem->marked : 0;
	const uint64_t end = mem->marked + (left < MARKED_IN_A_TURN ? left : MARKED_IN_A_TURN);
	skv_pte window[4096];

	while (mem->marked < end) {
		const uint64_t n = end - mem->marked < 4096 ? end - mem->marked : 4096;
		const size_t bytes = n * sizeof(*window);

		if (pread(mem->list, window, bytes, (off_t)(mem->marked * sizeof(*window))) != (ssize_t)bytes)
			return -EIO;
		for (uint64_t i = 0; i < n; i++) {
			const uint32_t segment = skv_pte_id(window[i]) / pages_per_segment;

			if (skv_pte_kind(window[i]) != SKV_PTE_PRIVATE && skv_pte_kind(window[i]) != SKV_PTE_SHARED)
				continue;
			if (segment >= mem->n_segments)
				return -ESTALE; /* a client that held the sequence while it was listed has changed it */
			mem->segments[segment] = 1;
		}
		mem->marked += n;
	}
	return mem->segments && mem->marked < j->m.n_entries;
}

/* ---- to be written ---------------------------------------------------------------------------- */

int skv_job_memory_prepare(struct skv_job *j, struct skv_job_memory *mem)
{
	const bool on_device = j->m.model.device != SKV_DEVICE_HOST;
	int r = skv_core_pin_list(j->jobs->config.core, (uid_t)j->m.uid, j->m.n_pages * sizeof(uint32_t), &j->pinned);

	if (r)
		return r;
	mem->segments = on_device ? calloc(1, 1) : NULL;
	if (on_device && !mem->segments)
		return -ENOMEM;
	mem->list = memfd_create("skv-list", MFD_CLOEXEC);
	return mem->list < 0 ? -errno : 0;
}

/* Marks a segment as needed; enlarges the array `segments` if it does not reach that far. */
static int mark_segment(struct skv_job_memory *mem, uint32_t segment)
{
	if (segment >= mem->n_segments) {
		uint8_t *more = realloc(mem->segments, segment + 1);

		if (!more)
			return -ENOMEM;
		memset(more + mem->n_segments, 0, segment + 1 - mem->n_segments);
		mem->segments = more;
		mem->n_segments = segment + 1;
	}
	mem->segments[segment] = 1;
	return 0;
}

/* Appends the page ids of n runs to the list, and marks the segments of these pages as needed. */
static int add_pages(struct skv_job_memory *mem, const struct skv_wire_run *runs, uint32_t n,
                     uint32_t pages_per_segment)
{
	uint32_t ids[4096], used = 0;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < runs[i].count; k++) {
			const uint32_t id = runs[i].first + k;
			const off_t at = (off_t)(mem->taken * sizeof(*ids));

			if (mem->segments && mark_segment(mem, id / pages_per_segment) < 0)
				return -ENOMEM;
			ids[used++] = id;
			if (used < 4096 && (i + 1 < n || k + 1 < runs[i].count))
				continue;
			if (pwrite(mem->list, ids, used * sizeof(*ids), at) != (ssize_t)(used * sizeof(*ids)))
				return -ENOSPC;
			mem->taken += used;
			used = 0;
		}
	return 0;
}

/* Returns whether an earlier job of the user waits for memory of the same device, which must get it first. */
static bool is_behind_another(const struct skv_job *j)
{
	SKV_QUEUE_EACH(e, &j->jobs->in[SKV_JOB_MEMORY]) {
		const struct skv_job *other = SKV_QUEUED_OWNER(e, struct skv_job, queued);

		if (other->m.uid == j->m.uid && other->m.model.device == j->m.model.device)
			return true;
	}
	return false;
}

int skv_job_memory_take(struct skv_job *j, struct skv_job_memory *mem, int user, char why[SKV_TEXT_MAX])
{
	struct skv_core *core = j->jobs->config.core;
	struct skv_wire_run runs[512];
	struct skv_core_location p;
	uint32_t n = 0;
	int r = 0;

	if (mem->taken < j->m.n_pages && is_behind_another(j)) {
		skv_job_enter(j, SKV_JOB_MEMORY);
		return 0;
	}
	if (mem->taken < j->m.n_pages)
		r = skv_core_restore_take(core, mem->seq, (uint32_t)(j->m.n_pages - mem->taken), runs, 512, &n);
	if (r < 0) {
		j->jobs->config.fail(j->jobs->config.server, "taking pages for a sequence that is read", r);
		return 0;
	}
	skv_job_enter(j, r == SKV_CORE_E_WAIT ? SKV_JOB_MEMORY : SKV_JOB_TURNS);
	if (r == SKV_CORE_E_WAIT)
		return 0;
	if (r)
		snprintf(why, SKV_TEXT_MAX, "%s", skv_core_why(core));
	r = -skv_core_errno((enum skv_core_error)r);
	if (r == 0)
		r = skv_core_seq_location(core, mem->seq, &p) ? -ESTALE : add_pages(mem, runs, n, p.pages_per_segment);
	if (r == 0 && mem->taken == j->m.n_pages)
		r = skv_job_memory_move(j, mem, user, j->m.n_pages * sizeof(uint32_t));
	if (r < 0 && !*why)
		snprintf(why, SKV_TEXT_MAX, "%s", strerror(-r));
	return r;
}

/* ---- to the worker ---------------------------------------------------------------------------- */

/*
 * Writes the numbers of the segments that are needed to the list, from byte `listed` on, and appends their descriptors
 * to `fds`. False: a segment is gone.
 */
static bool add_segments(const struct skv_job *j, const struct skv_job_memory *mem, uint64_t listed, int *fds,
                         uint32_t *n_fds)
{
	for (uint32_t s = 0; s < mem->n_segments; s++) {
		const struct skv_mem_handle *h = mem->segments[s]
		                                         ? skv_core_seq_segment(j->jobs->config.core, mem->seq, s)
		                                         : NULL;

		if (!mem->segments[s])
			continue;
		if (!h || h->fd < 0 || pwrite(mem->list, &s, sizeof(s), (off_t)listed) != sizeof(s))
			return false;
		listed += sizeof(s);
		fds[(*n_fds)++] = h->fd;
	}
	return true;
}

int skv_job_memory_move(struct skv_job *j, struct skv_job_memory *mem, int user, uint64_t listed)
{
	int *fds = malloc((SKV_DISK_FD_PAGES + 1 + mem->n_segments) * sizeof(*fds));
	uint32_t n_fds = SKV_DISK_FD_PAGES;
	struct skv_core_location p;

	if (!fds)
		return -ENOMEM;
	if (skv_core_seq_location(j->jobs->config.core, mem->seq, &p) ||
	    (p.pages_fd < 0 && !add_segments(j, mem, listed, fds, &n_fds))) {
		free(fds);
		return -ESTALE;
	}
	if (p.pages_fd >= 0)
		fds[n_fds++] = p.pages_fd;
	fds[SKV_DISK_FD_USER] = user;
	fds[SKV_DISK_FD_SEQ] = p.fd;
	fds[SKV_DISK_FD_LIST] = mem->list;
	j->m.max_pages = p.max_pages;
	j->m.segment_bytes = p.segment_bytes;
	j->m.pages_per_segment = p.pages_per_segment;
	skv_job_move_fds(j, fds, n_fds);
	return 0;
}
