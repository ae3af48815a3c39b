/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/resolve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"

/* A query for a host name, which a thread of the C library reads and writes until the query is complete. */
struct skv_store_question {
	struct gaicb request;
	struct addrinfo hints;
	char host[SKV_STORE_HOST], port[8];
};

struct timespec skv_store_time_left(uint64_t deadline_ns)
{
	const uint64_t now = skv_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;

	return (struct timespec){.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
}

static int refuse(char *why, const char *host, int code)
{
	return skv_store_refuse(why, code == EAI_MEMORY ? -ENOMEM : -EHOSTUNREACH,
	                        "the host name %.128s cannot be resolved: %s", host, gai_strerror(code));
}

/* Converts a numeric address without a query to a name server. Returns 0 or an error code of netdb.h. */
static int numeric(const struct skv_store_address *a, const char *port, struct addrinfo **ret)
{
	const struct addrinfo hints = {
		.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};

	return getaddrinfo(a->host, port, &hints, ret);
}

static int ask(struct skv_store_resolver *r, const struct skv_store_address *a, const char *port)
{
	struct skv_store_question *q = calloc(1, sizeof(*q));
	int code;

	if (!q)
		return EAI_MEMORY;
	q->hints = (struct addrinfo){
		.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG};
	memcpy(q->host, a->host, sizeof(q->host));
	snprintf(q->port, sizeof(q->port), "%s", port);
	q->request = (struct gaicb){.ar_name = q->host, .ar_service = q->port, .ar_request = &q->hints};
	code = getaddrinfo_a(GAI_NOWAIT, (struct gaicb *[]){&q->request}, 1, NULL);
	if (code)
		free(q);
	else
		r->pending = q;
	return code;
}

/* Waits until the query is complete; false: it was not by the deadline. */
static bool wait_for(const struct gaicb *request, uint64_t deadline_ns)
{
	while (gai_error((struct gaicb *)request) == EAI_INPROGRESS) {
		const struct timespec left = skv_store_time_left(deadline_ns);

		if (left.tv_sec == 0 && left.tv_nsec == 0)
			return false;
		(void)gai_suspend(&request, 1, &left);
	}
	return true;
}

int skv_store_resolve(struct skv_store_resolver *r, const struct skv_store_address *a, uint64_t deadline_ns,
                      struct addrinfo **ret, char why[SKV_STORE_TEXT])
{
	struct addrinfo *found;
	char port[8];
	int code;

	snprintf(port, sizeof(port), "%u", a->port);
	if (!r->pending) {
		code = numeric(a, port, ret);
		if (code == 0)
			return 0;
		code = code == EAI_NONAME ? ask(r, a, port) : code;
		if (code)
			return refuse(why, a->host, code);
	}
	if (!wait_for(&r->pending->request, deadline_ns))
		return skv_store_refuse(why, -ETIMEDOUT,
		                        "the host name %.128s cannot be resolved: no name server answered in time",
		                        a->host);
	code = gai_error(&r->pending->request);
	found = r->pending->request.ar_result;
	free(r->pending);
	r->pending = NULL;
	if (code)
		return refuse(why, a->host, code);
	*ret = found;
	return 0;
}

void skv_store_resolver_free(struct skv_store_resolver *r)
{
	struct skv_store_question *q = r->pending;

	r->pending = NULL;
	if (!q || gai_cancel(&q->request) == EAI_NOTCANCELED)
		return; /* the C library's thread still uses the query, so its memory is leaked */
	if (q->request.ar_result)
		freeaddrinfo(q->request.ar_result);
	free(q);
}
