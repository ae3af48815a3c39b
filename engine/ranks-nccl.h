/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks-nccl.h - the NCCL functions that ranks on devices need. libnccl is loaded at run time. The functions
 * queue work on a `stream` (cudaStream_t).
 */
#ifndef ENG_RANKS_NCCL_H
#define ENG_RANKS_NCCL_H

#include <stddef.h>
#include <stdint.h>

#define ENG_NCCL_ID_BYTES 128u
#define ENG_NCCL_TEXT 300u

struct eng_nccl;

/*
 * Makes the id of a communicator; only the first rank calls this function. Returns 0 or -ENODEV if NCCL is not
 * available. After an error `why` contains a text, as for the functions below.
 */
int eng_nccl_id(uint8_t id[ENG_NCCL_ID_BYTES], char why[ENG_NCCL_TEXT]);
/* Joins the communicator. All ranks call this function at the same time, each with its own device current. */
int eng_nccl_open(struct eng_nccl **ret, const uint8_t id[ENG_NCCL_ID_BYTES], uint32_t rank, uint32_t n, char why[ENG_NCCL_TEXT]);
/* Aborts work that is still queued. Does nothing if the communicator is NULL. */
void eng_nccl_close(struct eng_nccl *);

/*
 * The functions below return 0 or -EIO. eng_nccl_gather() gathers all [n][bytes], where `n` is the number of ranks:
 * each rank's own part must already be in its place in `all`.
 */
int eng_nccl_gather(struct eng_nccl *, void *all, size_t bytes, void *stream);
int eng_nccl_max(struct eng_nccl *, float *data, size_t count, void *stream);
/* Copies the first rank's data to all other ranks. */
int eng_nccl_from_first(struct eng_nccl *, int32_t *data, size_t count, void *stream);

#endif
