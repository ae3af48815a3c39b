/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/core-victim.h - a process that works on a core until it is killed, and what the next one needs to know of it.
 *
 * Three clients of two users hold twelve sequences with names from the start on, s0 and so on. The process leases, forks, detaches, attaches and
 * writes, and others come and go, and it commits after each. The state is copied before each commit. The process may
 * die between copy and commit; so there are two copies, in turns, and it is one of them.
 */
#ifndef SKV_TESTS_CORE_VICTIM_H
#define SKV_TESTS_CORE_VICTIM_H

#include "daemon/core/core-priv.h"
#include "tests/support/core-peer.h"

#define VICTIM_PEERS 3
#define VICTIM_SEQS 12
#define VICTIM_TOKENS 400

/* Of the state and of the sequences' tables; in memory that both processes have. */
struct victim_copy {
	uint8_t *state;
	skv_pte *tables[VICTIM_SEQS];
};
struct victim_witness {
	uint32_t last;    /* the copy that was made last */
	uint32_t commits; /* how many were */
	bool forking;     /* tables are changed by the core, and by nobody else */
};
extern struct victim_copy victim_copies[2];
extern struct victim_witness *victim_witness;
extern struct peer victim_peers[VICTIM_PEERS];
extern struct held victim_held[VICTIM_SEQS]; /* whose memory stays mapped, in all processes */

size_t victim_state_bytes(void); /* of what is no undo log */
size_t victim_table_bytes(const struct held *);
const skv_pte *victim_tables(const struct held *);

/* Opens the core, and makes clients and sequences, and a store, which both processes have. */
void victim_setup(void);
/* Sets the store alone, of any core. */
void victim_store(void);
/* Another process works for so long, at most, and is killed. */
void victim_kill(uint32_t most_us);
/* What the store has then: the caller's, descriptors too. */
struct skv_core_found *victim_stored(size_t *ret_n);

#endif
