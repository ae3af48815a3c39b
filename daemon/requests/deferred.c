/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/requests/deferred.h"

#include <errno.h>

void skv_deferred_begin(struct skv_deferred *d, struct skv_conn *conn, const struct skv_msg_header *h, bool pauses)
{
	struct skv_deferred **first = skv_conn_deferred(conn);

	*d = (struct skv_deferred){.conn = conn, .header = *h, .pauses = pauses, .before = first, .next = *first};
	if (d->next)
		d->next->before = &d->next;
	*first = d;
	if (pauses)
		skv_conn_pause(conn, true);
}

static void unlink_it(struct skv_deferred *d)
{
	*d->before = d->next;
	if (d->next)
		d->next->before = d->before;
	d->conn = NULL;
}

void skv_deferred_end(struct skv_deferred *d)
{
	struct skv_conn *conn = d->conn;

	if (!conn)
		return;
	unlink_it(d);
	if (d->pauses)
		skv_conn_pause(conn, false);
}

void skv_deferred_error(struct skv_deferred *d, int error, const char *fmt, ...)
{
	struct skv_conn *conn = d->conn;
	va_list ap;

	skv_deferred_end(d);
	if (!conn)
		return;
	va_start(ap, fmt);
	skv_conn_verror(conn, d->header.serial, error, fmt, ap);
	va_end(ap);
}

bool skv_deferred_pauses(struct skv_conn *conn)
{
	const struct skv_deferred *d = *skv_conn_deferred(conn);

	while (d && !d->pauses)
		d = d->next;
	return d != NULL;
}

bool skv_deferred_refuses(struct skv_conn *conn, const struct skv_msg_header *h)
{
	unsigned n = 0;

	for (const struct skv_deferred *d = *skv_conn_deferred(conn); d; d = d->next)
		n += !d->pauses;
	if (n >= SKV_MAX_DEFERRED)
		skv_conn_error(conn, h->serial, EAGAIN, "%u requests of this client wait already, the most that may", n);
	return n >= SKV_MAX_DEFERRED;
}

void skv_deferred_forget(struct skv_conn *conn)
{
	while (*skv_conn_deferred(conn))
		unlink_it(*skv_conn_deferred(conn));
}

void skv_deferred_tick(struct skv_ipc *ipc)
{
	struct skv_conn *conn = skv_ipc_first(ipc), *next;

	for (; conn; conn = next) {
		const struct skv_deferred *d = *skv_conn_deferred(conn);

		next = skv_conn_next(conn); /* the next connection is read first, because sending may end this one */
		for (; d && skv_conn_open(conn) && !skv_conn_is_full(conn); d = d->next) {
			const struct skv_msg_wait body = {.serial = d->header.serial};

			skv_conn_send(conn, SKV_MSG_WAIT, 0, &body, sizeof(body), NULL, 0, NULL, 0);
		}
	}
}
