/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/config.h - address and options of the prefix store, as one text.
 *
 *   redis://[[user]:password@]host[:port][,host[:port]…][/db][?option=value[&…]]
 *   rediss://…                      the same over TLS
 *   unix://[[user]:password@]/path[?…]
 *
 * User, password, path and values of options may contain %XX. A host may be an IPv6 address in brackets. Several hosts
 * are the initial nodes of a cluster. Options and their defaults:
 *
 *   cluster=on|off        whether the servers are a Redis Cluster; off
 *   db=N                  number of the database, for unix://; 0
 *   password-file=FILE    file whose first line is the password, so that no command line contains it; none
 *   connect-timeout=MS    time for name resolution, connecting, TLS and password together; 500
 *   timeout=MS            time for a call without a timeout of its own; 2000
 *   ca=FILE               certificates of trusted authorities, PEM; those of the system
 *   cert=FILE, key=FILE   certificate of this client and its private key, PEM; none
 *   tls-name=NAME         expected name in the server's certificate; the host as written above, or for other
 *                         nodes of a cluster, as the cluster reports it
 */
#ifndef SKV_STORE_CONFIG_H
#define SKV_STORE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include "daemon/store/error-text.h"

#define SKV_STORE_MAX_ADDRESSES 16u
#define SKV_STORE_HOST 256u /* bytes, including NUL */
#define SKV_STORE_PATH 1024u
#define SKV_STORE_SECRET 513u

struct skv_store_address {
	char host[SKV_STORE_HOST]; /* name or address of a TCP host, or path of a UNIX socket, beginning with '/' */
	uint16_t port;             /* TCP port; 0: UNIX socket */
};

struct skv_store_config {
	struct skv_store_address addresses[SKV_STORE_MAX_ADDRESSES];
	uint32_t n_addresses; /* at least 1; more only for a cluster */
	uint32_t db, connect_ms, call_ms;
	bool tls, cluster;
	char user[SKV_STORE_SECRET], password[SKV_STORE_SECRET]; /* "": none */
	char password_file[SKV_STORE_PATH], ca[SKV_STORE_PATH], cert[SKV_STORE_PATH], key[SKV_STORE_PATH];
	char tls_name[SKV_STORE_HOST];
};

/*
 * Parses a configuration and reads the password file if there is one. Returns 0, -EINVAL, or the error of reading that
 * file. An error has a text, which says what was given and what was expected, but never contains the password. *ret is
 * written on success only; call skv_store_config_wipe() after use.
 */
int skv_store_config_parse(struct skv_store_config *ret, const char *text, char why[SKV_STORE_TEXT]);
/* Overwrites the password. */
void skv_store_config_wipe(struct skv_store_config *);

#endif
