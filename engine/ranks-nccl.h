/* SPDX-License-Identifier: Apache-2.0 */
/* engine/ranks-nccl.h - what ranks on devices need of NCCL, loaded at run time. Functions queue on a stream (cudaStream_t). */
#ifndef ENG_RANKS_NCCL_H
#define ENG_RANKS_NCCL_H

#include <stddef.h>
#include <stdint.h>

#define ENG_NCCL_ID_BYTES 128u
#define ENG_NCCL_TEXT 300u

struct eng_nccl;

/* An id for a group, which its first rank makes. -ENODEV: there is no NCCL here; `why` says what is wrong, here and below. */
int eng_nccl_id(uint8_t id[ENG_NCCL_ID_BYTES], char why[ENG_NCCL_TEXT]);
/* All ranks, each on its current device, at the same time. */
int eng_nccl_open(struct eng_nccl **ret, const uint8_t id[ENG_NCCL_ID_BYTES], uint32_t rank, uint32_t n, char why[ENG_NCCL_TEXT]);
/* Gives up what is queued; NULL is ignored. */
void eng_nccl_close(struct eng_nccl *);

/* 0, or -EIO. all[n][bytes]: the rank's own part is in its place. */
int eng_nccl_gather(struct eng_nccl *, void *all, size_t bytes, void *stream);
int eng_nccl_max(struct eng_nccl *, float *data, size_t count, void *stream);
/* Those of the first rank. */
int eng_nccl_from_first(struct eng_nccl *, int32_t *data, size_t count, void *stream);

#endif
