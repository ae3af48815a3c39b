/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/config.h - the daemon's settings.
 *
 * A table with one row for each setting (name, type, default, limits, help) defines the configuration file (`key =
 * value`), the options (`--key=value`), the text of --help, and the commented file that --help-config prints. Error
 * texts are "FILE:LINE: key: got X, expected Y", or "--key: got X, ..." for an option.
 *
 * Settings come from the defaults, then from the file, then from the options; a later source overrides an earlier one.
 * A configuration with an error is not loaded at all, and the caller keeps its old one.
 */
#ifndef SKV_CONFIG_H
#define SKV_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define SKV_CONFIG_FILE SKV_SYSCONFDIR "/sparsekvd.conf"
#define SKV_CONFIG_TEXT 1024u /* maximum of bytes of a text value, NUL included */
#define SKV_CONFIG_ERR 1536u  /* bytes of a buffer for any error text */
/* maximum of rows of a table of the core; clients, sessions and sequences are rows */
#define SKV_CONFIG_MOST_ROWS 65535u

enum skv_config_cuda { SKV_CUDA_AUTO, SKV_CUDA_OFF, SKV_CUDA_REQUIRED };
enum skv_config_ipc { SKV_IPC_VMM, SKV_IPC_LEGACY };

struct skv_config {
	char socket[SKV_CONFIG_TEXT];
	uint32_t socket_mode;
	char socket_group[SKV_CONFIG_TEXT];
	char operator_group[SKV_CONFIG_TEXT];
	char policy_path[SKV_CONFIG_TEXT];
	uint64_t probe_timeout; /* ns */
	uint32_t max_policies;
	uint32_t recall_every;

	uint64_t pool_bytes, segment_bytes, account_bytes;
	int cuda, ipc; /* enum skv_config_cuda, enum skv_config_ipc */
	uint64_t cuda_pool_bytes, account_cuda_bytes; /* bytes; up to 100: percentage of the device's memory */
	uint64_t cuda_segment_bytes;
	uint64_t cuda_worker_timeout, cuda_worker_idle; /* ns */
	uint32_t account_clients, account_sequences, account_pools, client_sessions;
	uint64_t sequence_ttl; /* ns after which an unused sequence is dropped; 0: never */
	char parked_path[SKV_CONFIG_TEXT]; /* "": parking is off */
	uint64_t account_parked_bytes;
	uint64_t park_after; /* ns after which an unused sequence is parked; 0: never */
	uint64_t disk_timeout; /* ns */
	char prefix_store[SKV_CONFIG_TEXT], prefix_secret_file[SKV_CONFIG_TEXT]; /* "": none */
	char prefix_store_nixl[SKV_CONFIG_TEXT]; /* "": none */
	uint64_t prefix_store_nixl_window;
	uint64_t prefix_store_ttl, prefix_store_wait; /* ns */
	uint32_t max_clients, max_sequences, max_sessions, max_pools;

	uint64_t hello_timeout; /* ns */
	int log_level;
};

/* Sources of settings besides the defaults. The daemon reads the sources again for a reload. */
struct skv_config_sources {
	const char *file;     /* path of the file; NULL: SKV_CONFIG_FILE, which need not exist */
	char *const *options; /* array of "--key=value", with NULL at its end; or NULL */
};

/*
 * Loads a configuration. Returns 0; or -EINVAL or a negative errno of open(2), with a text that says what is wrong and
 * where, and then *ret is unchanged.
 */
int skv_config_load(const struct skv_config_sources *from, struct skv_config *ret, char err[SKV_CONFIG_ERR]);

/* Returns whether there is a setting of this name (without "--"). */
bool skv_config_known(const char *name, size_t len);

/*
 * Applies a new configuration at run time: copies all settings of `next` to `now`, except those that take effect only
 * at the start of the daemon. `kept` gets the names of the excepted settings whose values differ, separated by ", "
 * ("": none).
 */
void skv_config_apply(struct skv_config *now, const struct skv_config *next, char *kept, size_t len);

void skv_config_help(FILE *to);      /* prints every option with its help, for --help */
void skv_config_help_file(FILE *to); /* prints a configuration file with comments, for --help-config */

/*
 * Looks up a user group by its name or number. Returns 0; 1 if there is no group of this name; -EINVAL if the number is
 * not valid.
 */
int skv_config_group(const char *name, gid_t *ret);

#endif
