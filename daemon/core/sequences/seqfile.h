/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/seqfile.h - the memfd of a sequence, as the daemon uses it: made, read, written, copied.
 *
 * Only its header is mapped. Tables and journal are read and written through windows, with system calls: reading holes
 * through a mapping would allocate memory for them and charge it to the daemon.
 */
#ifndef SKV_CORE_SEQFILE_H
#define SKV_CORE_SEQFILE_H

#include "daemon/core/state/core-priv.h"
#include "daemon/core/state/units.h"

/* Makes a memfd with its header, which is mapped. Negative errno: nothing is left behind. */
int skv_seqfile_new(struct skv_seq_local *, uint32_t index, const struct skv_model *, uint32_t max_tokens);
void skv_seqfile_free(struct skv_core *, struct skv_seq_local *);
/*
 * Opens a memfd that was made before for such a sequence; `fd` is consumed in any case. -EBADMSG: it is no such memfd.
 */
int skv_seqfile_open(struct skv_seq_local *, int fd, const struct skv_model *, uint32_t max_tokens);
void skv_seqfile_close(struct skv_seq_local *);
/*
 * Writes bytes from an undo log to `fd`, which may be any file: only if it is a sequence's memory, and neither to its
 * header nor beyond its end. Negative errno: it cannot be written.
 */
int skv_seqfile_put_back(int fd, uint64_t offset, const void *was, size_t bytes);
/*
 * Copies everything that was ever written to `from`, from *at on (0 at first), to the same offsets of `to`; holes stay
 * holes. 0: complete; 1: there is more; negative errno.
 */
int skv_seqfile_copy_some(const struct skv_seq_local *to, const struct skv_seq_local *from, uint64_t *at,
                          uint32_t *units);

/*
 * Copies the entries and ids that a sealed prefix has of the first n tokens, of which nothing has been evicted, to a
 * fresh sequence of another length; from byte *at of table *table on (0 at first). 0: complete; 1: there is more;
 * negative errno.
 */
int skv_seqfile_copy_prefix(const struct skv_seq_local *to, const struct skv_seq_local *from, const struct skv_model *m,
                            const struct skv_made *made, uint32_t n, uint32_t *table, uint64_t *at, uint32_t *units);

/* Reads n token ids from `first` on, within the file. Negative errno. */
int skv_seqfile_read_ids(const struct skv_seq_local *, uint32_t first, uint32_t n, int32_t *to);
/* Reads and writes the first bytes of the policy's state. Negative errno. */
int skv_seqfile_read_state(const struct skv_seq_local *, void *to, size_t bytes);
int skv_seqfile_write_state(const struct skv_seq_local *, const void *from, size_t bytes);

/* Offset of an entry in the file. */
uint64_t skv_seqfile_entry_at(const struct skv_seq_local *, uint32_t table, uint32_t index);
/* Reads or writes n entries of a table from `first` on. Negative errno. */
int skv_seqfile_read(const struct skv_seq_local *, uint32_t table, uint32_t first, uint32_t n, skv_pte *to);
int skv_seqfile_write(const struct skv_seq_local *, uint32_t table, uint32_t first, uint32_t n, const skv_pte *from);

/* The committed length, limited to max_tokens. */
uint32_t skv_seqfile_len(const struct skv_seq_local *);

/*
 * Carries out the eviction journal of the last commit, or discards that of another commit: entries from *at on, as far
 * as *units go. 0: complete; 1: there is more; negative errno.
 */
int skv_seqfile_replay(const struct skv_seq_local *, uint32_t *at, uint32_t *units);
/* Memory that a hardly used sequence may have, because memory comes in whole pages. */
uint64_t skv_seqfile_least(const struct skv_seq_local *);
/*
 * Gives back the memory of entries and token ids beyond the committed length and of the journal, from offset *at on (0
 * at first); such entries are then SKV_PTE_NONE. At the end writes the next token's id to its place. 0: complete; 1:
 * there is more; negative errno.
 */
int skv_seqfile_trim(const struct skv_seq_local *, uint64_t *at, uint32_t *units);

#endif
