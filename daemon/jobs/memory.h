/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/jobs/memory.h - the memory of the sequence that a job moves: a worker reads it, into a file or the prefix
 * store, or writes it.
 *
 * The worker gets a list: of the page table entries that the sequence names, or of the pages that were taken for it.
 * Both are made in turns. For a device the numbers of the segments that have these pages follow in the list, and their
 * descriptors are passed.
 */
#ifndef SKV_JOBS_MEMORY_H
#define SKV_JOBS_MEMORY_H

#include "daemon/core/operations/parking.h"
#include "daemon/jobs/jobs.h"

/* Embedded in the kind's struct. */
struct skv_job_memory {
	uint32_t seq;
	int list;            /* memfd; -1: none */
	uint8_t *segments;   /* of a device: one byte for each segment, set if the segment is needed; else NULL */
	uint32_t n_segments;
	struct skv_core_listing listing; /* to be read: the entries ... */
	bool listed;                     /* ... are in the list */
	uint64_t marked;                 /* entries of the list scanned for `segments` */
	uint64_t taken;                  /* to be written: pages taken so far */
};
#define SKV_JOB_MEMORY_NULL {.list = -1}

/* Frees what is in it. */
void skv_job_memory_free(struct skv_job *, struct skv_job_memory *);

/*
 * To be read: begins to list the entries of the sequence `seq`, which is at this location. 0, negative errno, or an
 * error of the core.
 */
int skv_job_memory_list(struct skv_job *, struct skv_job_memory *, uint32_t seq, const struct skv_core_location *);
/*
 * A turn: lists some of the entries. 0: all are listed, the job knows how many there are. E_TURNS: the job is due for
 * another turn. Another error of the core: the job cannot go on.
 */
int skv_job_memory_list_some(struct skv_job *, struct skv_job_memory *);
/*
 * When all are listed: marks the segments of some of the pages. 0: all are marked; 1: more are left; -EIO: the list
 * cannot be read.
 */
int skv_job_memory_mark(struct skv_job *, struct skv_job_memory *, uint32_t pages_per_segment);

/* To be written: prepares the list for m.n_pages pages of the model's memory. Then the kind creates the sequence. */
int skv_job_memory_prepare(struct skv_job *, struct skv_job_memory *);
/*
 * A turn: takes some of the missing pages and adds them to the list. With the last of them the job goes to its worker,
 * with this descriptor at SKV_DISK_FD_USER. Negative errno, with a text: the job cannot go on.
 */
int skv_job_memory_take(struct skv_job *, struct skv_job_memory *, int user, char why[SKV_TEXT_MAX]);

/*
 * As skv_job_move(), with the sequence's memory; `listed` bytes of the list are entries or ids of pages. -ESTALE: the
 * sequence is gone.
 */
int skv_job_memory_move(struct skv_job *, struct skv_job_memory *, int user, uint64_t listed);

#endif
