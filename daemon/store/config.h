/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/config.h - where the prefix store is, and how it is talked to: one text.
 *
 *   redis://[[user]:password@]host[:port][,host[:port]…][/db][?option=value[&…]]
 *   rediss://…                      the same over TLS
 *   unix://[[user]:password@]/path[?…]
 *
 * user, password, path and values may have %XX. A host may be an IPv6 address in brackets. Several hosts are where a
 * cluster is asked first. Options:
 *
 *   cluster=on|off        Redis Cluster; off
 *   db=N                  of unix://; 0
 *   password-file=FILE    its first line is the password, so that it is in no command line
 *   connect-timeout=MS    for name, connection, TLS and password together; 500
 *   timeout=MS            for a call, if it has no limit of its own; 2000
 *   ca=FILE               authorities that are trusted, PEM; those of the system
 *   cert=FILE, key=FILE   of this client, PEM; none
 *   tls-name=NAME         what the server's certificate is for; the host as it is written, of a cluster's
 *                         node as the cluster says
 */
#ifndef SKV_STORE_CONFIG_H
#define SKV_STORE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include "daemon/store/text.h"

#define SKV_STORE_MAX_ADDRESSES 16u
#define SKV_STORE_HOST 256u /* bytes, NUL included */
#define SKV_STORE_PATH 1024u
#define SKV_STORE_SECRET 513u

struct skv_store_address {
	char host[SKV_STORE_HOST]; /* of TCP; or, if it begins with '/', the path of a UNIX socket */
	uint16_t port;             /* 0: of a UNIX socket */
};

struct skv_store_config {
	struct skv_store_address addresses[SKV_STORE_MAX_ADDRESSES];
	uint32_t n_addresses; /* at least 1; more of a cluster only */
	uint32_t db, connect_ms, call_ms;
	bool tls, cluster;
	char user[SKV_STORE_SECRET], password[SKV_STORE_SECRET]; /* "": none */
	char password_file[SKV_STORE_PATH], ca[SKV_STORE_PATH], cert[SKV_STORE_PATH], key[SKV_STORE_PATH];
	char tls_name[SKV_STORE_HOST];
};

/*
 * The password's file is read, if one is named. 0; or -EINVAL, or why that file cannot be read, with a text that names
 * what was given and what was expected, without the password. *ret is written on success only; skv_store_config_wipe()
 * it after use.
 */
int skv_store_config_parse(struct skv_store_config *ret, const char *text, char why[SKV_STORE_TEXT]);
void skv_store_config_wipe(struct skv_store_config *);

#endif
