/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/postpone.c - puts requests off until a job of a disk worker has ended or a parked file was removed.
 *
 * A request that was put off is later carried out as if it had just arrived. Each turn of the loop carries out one such
 * request, and users take turns. While a request is put off, no other request of its connection is received.
 */
#include "daemon/parked/parking-priv.h"

#include <stdlib.h>
#include <string.h>
#include "daemon/requests/deferred.h"
#include "daemon/sys/log.h"

struct put_off {
	struct skv_deferred request;
	struct skv_queued queued;
	skv_parking_again again;
	union {
		struct skv_msg_seq seq;
		struct skv_msg_seq_of name;
	} body;
};

void skv_parking_put_off(struct skv_parking *k, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                         size_t bytes, skv_parking_again again)
{
	struct put_off *x = calloc(1, sizeof(*x));

	if (!x) {
		skv_conn_close(conn, LOG_ERR, "no memory for a request that has to wait");
		return;
	}
	x->again = again;
	memcpy(&x->body, body, bytes);
	skv_queue_put(&k->put_off, &x->queued, skv_conn_peer(conn)->uid);
	skv_deferred_begin(&x->request, conn, h, true);
}

static struct put_off *take_put_off(struct skv_parking *k)
{
	struct skv_queued *e = skv_queue_take(&k->trying);

	return e ? SKV_QUEUED_OWNER(e, struct put_off, queued) : NULL;
}

static void forget(struct put_off *x)
{
	if (x)
		skv_deferred_end(&x->request);
	free(x);
}

void skv_parking_try_again(struct skv_parking *k)
{
	struct put_off *x = take_put_off(k);

	if (x && x->request.conn)
		x->again(k->server, x->request.conn, &x->request.header, &x->body,
		         NULL); /* this may put the request off once more */
	forget(x);
}

void skv_parking_forget_put_off(struct skv_parking *k)
{
	struct put_off *x;

	skv_queue_move(&k->trying, &k->put_off);
	while ((x = take_put_off(k)))
		forget(x);
}
