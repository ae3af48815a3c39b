/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks-nccl.h - the NCCL functions that ranks on devices need, loaded at run time. Functions queue work on a
 * stream (cudaStream_t).
 */
#ifndef ENG_RANKS_NCCL_H
#define ENG_RANKS_NCCL_H

#include <stddef.h>
#include <stdint.h>

#define ENG_NCCL_ID_BYTES 128u
#define ENG_NCCL_TEXT 300u

struct eng_nccl;

/*
 * Makes a communicator id; called by the first rank. -ENODEV: NCCL is not available. `why`: text of the error, here
 * and below.
 */
int eng_nccl_id(uint8_t id[ENG_NCCL_ID_BYTES], char why[ENG_NCCL_TEXT]);
/* All ranks call it at the same time, each with its current device. */
int eng_nccl_open(struct eng_nccl **ret, const uint8_t id[ENG_NCCL_ID_BYTES], uint32_t rank, uint32_t n, char why[ENG_NCCL_TEXT]);
/* Aborts queued work; NULL is ignored. */
void eng_nccl_close(struct eng_nccl *);

/* These return 0 or -EIO. all [n][bytes]: the rank's own part must be in its place. */
int eng_nccl_gather(struct eng_nccl *, void *all, size_t bytes, void *stream);
int eng_nccl_max(struct eng_nccl *, float *data, size_t count, void *stream);
/* Copies the first rank's data to all ranks. */
int eng_nccl_from_first(struct eng_nccl *, int32_t *data, size_t count, void *stream);

#endif
