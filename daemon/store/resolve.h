/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/resolve.h - the addresses of a host, within a deadline.
 *
 * getaddrinfo() waits for name servers as long as it likes, so names are asked for by a thread of the C library. A
 * question that was not answered in time is not asked again: the next call waits on for its answer.
 */
#ifndef SKV_STORE_RESOLVE_H
#define SKV_STORE_RESOLVE_H

#include <netdb.h>
#include <time.h>
#include "daemon/store/config.h"

/* From now to the deadline; zeros: it is over. */
struct timespec skv_store_time_left(uint64_t deadline_ns);

struct skv_store_question;

/* Of one host; zeros at first. */
struct skv_store_resolver {
	struct skv_store_question *pending;
};

/* 0, and addresses for freeaddrinfo(); -ETIMEDOUT, or -EHOSTUNREACH and such, with a text. */
int skv_store_resolve(struct skv_store_resolver *, const struct skv_store_address *, uint64_t deadline_ns,
                      struct addrinfo **ret, char why[SKV_STORE_TEXT]);
void skv_store_resolver_free(struct skv_store_resolver *);

#endif
