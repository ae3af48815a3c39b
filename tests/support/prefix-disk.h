/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefix-disk.h - a daemon that parks sealed prefixes, with memory for a few alone, and prompts that begin with them.
 *
 * Assertions are Check's.
 */
#ifndef SKV_TEST_PREFIX_DISK_H
#define SKV_TEST_PREFIX_DISK_H

#include "tests/support/prefix-reader.h"

#define PD_SPEC "delta?budget=6&layers=0,2&dense=1"

struct prefix_disk {
	struct fix f;
	char *folder; /* of parked files */
	struct refmodel w; /* with a session of the client's */
	struct skv_client *client;
	const char *options[4]; /* of the next daemon, besides */
};
extern struct prefix_disk pd;

/* begin() makes the folder, if there is none yet. A reboot: a machine that loses its memory, and starts again. */
void pd_begin(void);
void pd_end(void);
void pd_reboot(void);
/* Of status, of its table `of` or of prefixes; prefixes in memory; files on disk that end so, and one of them (may be NULL). */
json_int_t pd_figure(const char *of, const char *key);
json_int_t pd_of_prefixes(const char *key);
unsigned pd_in_memory(void);
unsigned pd_files(const char *end, char *ret, size_t size);
unsigned pd_prefix_files(void);
void pd_wait_files(unsigned n); /* of prefixes */
/* A signal to all disk workers of the daemon: how many. */
int pd_signal_workers(int signal);

/* The prompt of this seed is read, and its first n tokens are sealed, whatever is sealed already. */
void pd_seal(uint64_t seed, uint32_t n);
/* A sequence begins with it: how many of its tokens are there; and what follows is right, bit by bit. */
uint32_t pd_attend(uint64_t seed);
/* Another client takes the memory, until no prefix is there; then it goes. */
void pd_squeeze(void);
/* A sequence of that name, which nobody holds; and it is parked: 0 or the errno. */
void pd_leave(const char *name, uint32_t n_tokens);
int pd_park(const char *name);

#endif
