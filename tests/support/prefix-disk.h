/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefix-disk.h - a daemon that parks sealed prefixes and has memory for only a few of them, and prompts
 * that begin with them.
 *
 * Failures fail the test.
 */
#ifndef SKV_TEST_PREFIX_DISK_H
#define SKV_TEST_PREFIX_DISK_H

#include "tests/support/policies.h"
#include "tests/support/prefix-reader.h"

#define PD_SPEC POLICY_PAGES "?budget=6&layers=0,2&dense=1"

struct prefix_disk {
	struct fix f;
	char *folder; /* of parked files */
	struct refmodel w; /* its session belongs to `client` */
	struct skv_client *client;
	const char *options[4]; /* further options of the next daemon */
};
extern struct prefix_disk pd;

/*
 * pd_begin() makes the folder if there is none. pd_reboot() kills the daemon and starts another one, whose memory is
 * empty.
 */
void pd_begin(void);
void pd_end(void);
void pd_reboot(void);
/*
 * A figure of the status' table `of`, or of its table of prefixes; number of prefixes in memory; number of files on
 * disk with this suffix, and the path of one of them (ret may be NULL).
 */
json_int_t pd_figure(const char *of, const char *key);
json_int_t pd_of_prefixes(const char *key);
unsigned pd_in_memory(void);
unsigned pd_files(const char *end, char *ret, size_t size);
unsigned pd_prefix_files(void);
void pd_wait_files(unsigned n); /* number of prefix files */
/* Sends a signal to all disk workers of the daemon; returns how many got it. */
unsigned pd_signal_workers(int signal);

/* Reads the first n tokens of this seed's prompt without a sealed prefix, and seals them. */
void pd_seal(uint64_t seed, uint32_t n);
/*
 * Begins a sequence with the prompt's prefix, and checks that all outputs after it are bit for bit those of reading the
 * whole prompt. Returns how many tokens the prefix had.
 */
uint32_t pd_attend(uint64_t seed);
/* Another client uses up the memory until no prefix is in memory, and leaves. */
void pd_squeeze(void);
/* pd_leave() makes a named sequence and detaches it; pd_park() parks it and returns 0 or the errno. */
void pd_leave(const char *name, uint32_t n_tokens);
int pd_park(const char *name);

#endif
