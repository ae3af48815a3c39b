/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/resolve.h - resolves the name of a host within a deadline.
 *
 * getaddrinfo() may block for an unbounded time, so a thread of the C library resolves names (getaddrinfo_a()). A query
 * that is not answered by the deadline stays pending, and the next call for the host continues to wait for it.
 */
#ifndef SKV_STORE_RESOLVE_H
#define SKV_STORE_RESOLVE_H

#include <netdb.h>
#include <time.h>
#include "daemon/store/config.h"

/* Returns the time that is left until the deadline; zero if it has passed. */
struct timespec skv_store_time_left(uint64_t deadline_ns);

struct skv_store_question;

/* State of resolving the name of one host; initialize with zeros. */
struct skv_store_resolver {
	struct skv_store_question *pending;
};

/*
 * Resolves the name of a host. Returns 0 and addresses, which the caller frees with freeaddrinfo(), or -ETIMEDOUT,
 * -EHOSTUNREACH or another negative errno with a text.
 */
int skv_store_resolve(struct skv_store_resolver *, const struct skv_store_address *, uint64_t deadline_ns,
                      struct addrinfo **ret, char why[SKV_STORE_TEXT]);
void skv_store_resolver_free(struct skv_store_resolver *);

#endif
