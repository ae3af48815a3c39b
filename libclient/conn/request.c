/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/request.c - allocates and frees requests to the daemon: see request.h. */
#include "libclient/conn/request.h"

#include <stdlib.h>
#include <string.h>

#include "common/fd.h"

struct request *request_free(struct request *r)
{
	if (!r)
		return NULL;
	for (unsigned i = 0; i < SKV_WIRE_MAX_FDS; i++)
		skv_close_fd(r->fds[i]);
	free(r->body);
	free(r->packet);
	free(r);
	return NULL;
}

struct request *request_new(uint32_t *serial, uint16_t type, const void *body, size_t bytes)
{
	struct request *r = calloc(1, sizeof(*r));

	if (r)
		r->packet = malloc(sizeof(*r->packet) + bytes);
	if (!r || !r->packet) {
		free(r);
		return NULL;
	}
	if (++*serial == 0)
		*serial = 1; /* serial 0 is for messages of the daemon that are no replies */
	*r->packet = (struct skv_msg_header){.length = (uint32_t)(sizeof(*r->packet) + bytes), .type = type, .serial = *serial};
	if (bytes > 0)
		memcpy(r->packet + 1, body, bytes);
	r->serial = *serial;
	r->type = type;
	/* the body of every other request begins with the id of its session */
	if (type != SKV_MSG_HELLO && type != SKV_MSG_OPEN && type != SKV_MSG_SEGMENT_ACK &&
	    bytes >= sizeof(uint32_t))
		memcpy(&r->session, body, sizeof(uint32_t));
	if (type == SKV_MSG_OPEN)
		r->device = ((const struct skv_msg_open *)body)->model.device;
	memset(r->fds, 0xff, sizeof(r->fds));
	return r;
}
