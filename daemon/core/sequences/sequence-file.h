/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/sequence-file.h - the daemon's access to the memfd of a sequence: made, read, written, copied.
 *
 * The daemon maps only the header of a sequence's memory. The daemon reads and writes tables and journal with system
 * calls, a window at a time: reading holes of the memfd through a mapping would allocate memory for them and charge
 * that memory to the daemon.
 */
#ifndef SKV_CORE_SEQUENCE_FILE_H
#define SKV_CORE_SEQUENCE_FILE_H

#include "daemon/core/state/core-priv.h"
#include "daemon/core/state/units.h"

/* Makes a sequence's memfd, writes its header and maps the header. Negative errno: nothing is left behind. */
int skv_seqfile_new(struct skv_seq_local *, uint32_t index, const struct skv_model *, uint32_t max_tokens);
void skv_seqfile_free(struct skv_core *, struct skv_seq_local *);
/*
 * Opens a memfd that was made before for a sequence of this model and max_tokens; `fd` is consumed in any case.
 * -EBADMSG: `fd` cannot be that memfd.
 */
int skv_seqfile_open(struct skv_seq_local *, int fd, const struct skv_model *, uint32_t max_tokens);
void skv_seqfile_close(struct skv_seq_local *);
/*
 * Writes bytes from an undo log to the sequence memory `fd` (borrowed). `fd` may be any file, so bytes are written only
 * if the file is a sequence's memory, and only between its header and its end. Negative errno: the file cannot be read
 * or written.
 */
int skv_seqfile_put_back(int fd, uint64_t offset, const void *was, size_t bytes);
/*
 * Copies all of the memfd `from` that is not zero to the same offsets of `to`, which is empty, from offset *at on (0 at
 * first) as far as *units go. 0: complete; 1: there is more; negative errno.
 */
int skv_seqfile_copy_some(const struct skv_seq_local *to, const struct skv_seq_local *from, uint64_t *at,
                          uint32_t *units);

/*
 * Copies the token ids and those table entries that a sealed prefix of the first n tokens has, to a fresh sequence of
 * another max_tokens. No page of these tokens may have been evicted. The copy continues at byte *at of table *table
 * (both 0 at first) as far as *units go. 0: complete; 1: there is more; negative errno.
 */
int skv_seqfile_copy_prefix(const struct skv_seq_local *to, const struct skv_seq_local *from, const struct skv_model *m,
                            const struct skv_made *made, uint32_t n, uint32_t *table, uint64_t *at, uint32_t *units);

/* Reads n token ids, from number `first` on; these must be within max_tokens. Negative errno. */
int skv_seqfile_read_ids(const struct skv_seq_local *, uint32_t first, uint32_t n, int32_t *to);
/* Read and write the first `bytes` bytes of the policy's state. Negative errno. */
int skv_seqfile_read_state(const struct skv_seq_local *, void *to, size_t bytes);
int skv_seqfile_write_state(const struct skv_seq_local *, const void *from, size_t bytes);

/* Offset of a table entry in the memfd. */
uint64_t skv_seqfile_entry_at(const struct skv_seq_local *, uint32_t table, uint32_t index);
/* Read and write n entries of a table, from entry `first` on. Negative errno. */
int skv_seqfile_read(const struct skv_seq_local *, uint32_t table, uint32_t first, uint32_t n, skv_pte *to);
int skv_seqfile_write(const struct skv_seq_local *, uint32_t table, uint32_t first, uint32_t n, const skv_pte *from);

/* The committed length, limited to max_tokens. */
uint32_t skv_seqfile_len(const struct skv_seq_local *);

/*
 * Carries out the eviction journal if it belongs to the last commit, from its entry *at on as far as *units go;
 * discards a journal of another commit. 0: complete; 1: there is more; negative errno.
 */
int skv_seqfile_replay(const struct skv_seq_local *, uint32_t *at, uint32_t *units);
/* Bytes of memory that a sequence with hardly any tokens may take, because memory comes in whole 4 KiB pages. */
uint64_t skv_seqfile_least(const struct skv_seq_local *);
/*
 * Frees the memory of the journal, and of table entries and token ids beyond the committed length, from offset *at on
 * (0 at first) as far as *units go; these entries are then SKV_PTE_NONE. At the end writes the id of the next input
 * token behind the committed ids. 0: complete; 1: there is more; negative errno.
 */
int skv_seqfile_trim(const struct skv_seq_local *, uint64_t *at, uint32_t *units);

#endif
