/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/jobs/memory.h - the memory of the sequence that a job moves: a disk worker reads the memory and writes it to a
 * file or the prefix store, or reads a file or the store and writes the memory.
 *
 * The worker gets a memfd with a list. If the memory is read, the list has the sequence's page table entries; if the
 * memory is written, it has the ids of the pages that were taken for the sequence. The list is made in turns. For a
 * device, the list then has the numbers of the segments that contain these pages, and the worker gets the segments'
 * descriptors.
 */
#ifndef SKV_JOBS_MEMORY_H
#define SKV_JOBS_MEMORY_H

#include "daemon/core/operations/parking.h"
#include "daemon/jobs/jobs.h"

/* Embedded in the struct of a kind of job. */
struct skv_job_memory {
	uint32_t seq;
	int list;            /* memfd with the list; -1: none */
	uint8_t *segments;   /* [n_segments]: 1 if the worker needs this segment of the device; host memory: NULL */
	uint32_t n_segments;
	struct skv_core_listing listing; /* reading: progress of listing the sequence's page table entries */
	bool listed;                     /* reading: all entries are in the list */
	uint64_t marked;                 /* reading: number of entries whose segments are marked in `segments` */
	uint64_t taken;                  /* writing: number of pages that were taken and listed so far */
};
#define SKV_JOB_MEMORY_NULL {.list = -1}

/* Frees everything that the struct owns. */
void skv_job_memory_free(struct skv_job *, struct skv_job_memory *);

/*
 * For memory to be read: begins to list the page table entries of the sequence `seq`, which is at this location.
 * Returns 0, a negative errno, or an error of the core.
 */
int skv_job_memory_list(struct skv_job *, struct skv_job_memory *, uint32_t seq, const struct skv_core_location *);
/*
 * For memory to be read, in a turn: lists some more of the entries. Returns 0: all are listed, and m.n_entries and
 * m.n_pages of the job are set; E_TURNS: the job has been made due for another turn; or another error of the core,
 * after which the job must end.
 */
int skv_job_memory_list_some(struct skv_job *, struct skv_job_memory *);
/*
 * After all entries are listed, in a turn: marks the segments of the pages of some more entries as needed. Returns 0:
 * all are marked; 1: more are left; -EIO: the list cannot be read.
 */
int skv_job_memory_mark(struct skv_job *, struct skv_job_memory *, uint32_t pages_per_segment);

/* For memory to be written: creates an empty list for m.n_pages pages. The caller then creates the sequence, `seq`. */
int skv_job_memory_prepare(struct skv_job *, struct skv_job_memory *);
/*
 * For memory to be written, in a turn: takes some more of the m.n_pages pages and adds them to the list. If some are
 * still missing, the job will have another turn, at once or when memory is free. When all are taken, the job goes to
 * its worker, with the descriptor `user` at SKV_DISK_FD_USER. Returns 0, or a negative errno with a text: the job must
 * end.
 */
int skv_job_memory_take(struct skv_job *, struct skv_job_memory *, int user, char why[SKV_TEXT_MAX]);

/*
 * Hands the job to its worker like skv_job_move(), with the sequence's memory. The first `listed` bytes of the list are
 * entries or page ids; numbers of segments are written after them. -ENOMEM; -ESTALE: the sequence is gone.
 */
int skv_job_memory_move(struct skv_job *, struct skv_job_memory *, int user, uint64_t listed);

#endif
