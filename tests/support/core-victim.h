/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/core-victim.h - a process that works on a core until it is killed, and the data that the next core is
 * checked against.
 *
 * Three clients of two users hold twelve named sequences from the start (s0 and so on). The process leases, forks,
 * detaches, attaches and writes, other clients come and go, and it commits after each action. It copies the state
 * before each commit. As it may die between copy and commit, there are two copies, written alternately; the state must
 * equal one of them.
 */
#ifndef SKV_TESTS_CORE_VICTIM_H
#define SKV_TESTS_CORE_VICTIM_H

#include "daemon/core/state/core-priv.h"
#include "tests/support/core-peer.h"

#define VICTIM_PEERS 3
#define VICTIM_SEQS 12
#define VICTIM_TOKENS 400

/* Copy of the state and of the sequences' tables, in memory that both processes share. */
struct victim_copy {
	uint8_t *state;
	skv_pte *tables[VICTIM_SEQS];
};
struct victim_witness {
	uint32_t last;    /* the copy that was made last */
	uint32_t commits; /* number of commits */
	bool forking;     /* tables are changed by the core alone */
};
extern struct victim_copy victim_copies[2];
extern struct victim_witness *victim_witness;
extern struct peer victim_peers[VICTIM_PEERS];
extern struct held victim_held[VICTIM_SEQS]; /* their memory stays mapped in all processes */

size_t victim_state_bytes(void); /* bytes of the state before the undo log */
size_t victim_table_bytes(const struct held *);
const skv_pte *victim_tables(const struct held *);

/* Opens the core, and makes clients, sequences and an fd store; both processes have them. */
void victim_setup(void);
/* Sets only the fd store, of the current core. */
void victim_store(void);
/* A child process works for a random time, at most most_us, and is killed. */
void victim_kill(uint32_t most_us);
/* Returns what the fd store then contains. The caller owns the array and the descriptors. */
struct skv_core_found *victim_stored(size_t *ret_n);

#endif
