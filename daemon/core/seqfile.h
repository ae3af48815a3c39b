/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/seqfile.h - the memfd of a sequence, as the daemon holds it: made, read, written, copied.
 *
 * Only its header is mapped. Tables and journal are read and written through windows, with system calls: a mapping of
 * them would make memory of holes that are only read, and charge it to the daemon.
 */
#ifndef SKV_CORE_SEQFILE_H
#define SKV_CORE_SEQFILE_H

#include "daemon/core/core-priv.h"
#include "daemon/core/units.h"

/* A fresh memfd with its header, which is mapped. Negative errno, with nothing left behind. */
int skv_seqfile_new(struct skv_seq_local *, uint32_t index, const struct skv_model *, uint32_t max_tokens);
void skv_seqfile_free(struct skv_core *, struct skv_seq_local *);
/* One that was made before, for such a sequence; `fd` is consumed in any case. -EBADMSG: it is no such memfd. */
int skv_seqfile_open(struct skv_seq_local *, int fd, const struct skv_model *, uint32_t max_tokens);
void skv_seqfile_close(struct skv_seq_local *);
/* What an undo log says that was there, into a descriptor of anything: only if it is a sequence's memory, and not on its header or beyond its end. Negative errno: it is, and cannot be written. */
int skv_seqfile_put_back(int fd, uint64_t offset, const void *was, size_t bytes);
/*
 * Everything that was ever written in `from`, from *at on, first 0, to the same offsets of `to`; holes stay holes. 0: all
 * of it; 1: there is more; negative errno.
 */
int skv_seqfile_copy_some(const struct skv_seq_local *to, const struct skv_seq_local *from, uint64_t *at, uint32_t *units);

/*
 * Of a sequence's first n tokens, which nothing has been evicted of, the entries that a sealed prefix has and the ids, from byte *at of
 * table *table on, first 0, to one of another length, which is fresh. 0: all; 1: there is more; negative errno.
 */
int skv_seqfile_copy_prefix(const struct skv_seq_local *to, const struct skv_seq_local *from, const struct skv_model *m, const struct skv_made *made,
                            uint32_t n, uint32_t *table, uint64_t *at, uint32_t *units);

/* n token ids from `first` on, within the file. Negative errno. */
int skv_seqfile_read_ids(const struct skv_seq_local *, uint32_t first, uint32_t n, int32_t *to);
/* The first bytes of the policy's state. Negative errno. */
int skv_seqfile_read_state(const struct skv_seq_local *, void *to, size_t bytes);
int skv_seqfile_write_state(const struct skv_seq_local *, const void *from, size_t bytes);

/* Where an entry is in the file. */
uint64_t skv_seqfile_entry_at(const struct skv_seq_local *, uint32_t table, uint32_t index);
/* n entries of a table from `first` on, into `to`. Negative errno. */
int skv_seqfile_read(const struct skv_seq_local *, uint32_t table, uint32_t first, uint32_t n, skv_pte *to);
int skv_seqfile_write(const struct skv_seq_local *, uint32_t table, uint32_t first, uint32_t n, const skv_pte *from);

/* The committed length, as far as it can be. */
uint32_t skv_seqfile_len(const struct skv_seq_local *);

/*
 * Carry out the eviction journal of the last commit, or discard another's: entries from *at on, as many as *units
 * allows. 0: all of it; 1: there is more; negative errno.
 */
int skv_seqfile_replay(const struct skv_seq_local *, uint32_t *at, uint32_t *units);
/* Memory that one may have that was hardly used: it comes in pages. */
uint64_t skv_seqfile_least(const struct skv_seq_local *);
/*
 * Entries and token ids beyond the committed length, and the journal, give their memory back, from offset *at on, first 0;
 * such entries are SKV_PTE_NONE then. At the end the next token's id is put in its place. 0: all of it; 1: there is more; negative
 * errno.
 */
int skv_seqfile_trim(const struct skv_seq_local *, uint64_t *at, uint32_t *units);

#endif
