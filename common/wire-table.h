/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/wire-table.h - types of the tables by which wire.c checks and prints packets.
 *
 * The tables list the fields of each struct with their offsets, the kind of tail that follows the struct, and for each
 * message type and direction the struct and the number of file descriptors.
 */
#ifndef SKV_WIRE_TABLE_H
#define SKV_WIRE_TABLE_H

#include "common/wire.h"

enum kind {
	U32,
	U64,
	F32,
	/* NUL-terminated within its field; only printable ASCII, because the string reaches logs and terminals */
	STRING,
	RESERVED, /* uint32_t, must be 0 */
	FLAG,     /* uint32_t, 0 or 1 */
	ERRNO,    /* int32_t, a positive errno */
	ERRNO_0,  /* int32_t, a positive errno or 0 */
	COUNT,    /* uint32_t: number of elements of the tail */
	BYTES,    /* bytes without a meaning for the protocol */
};

struct field {
	const char *name;
	uint16_t offset;
	uint16_t size;
	enum kind kind;
};

enum tail { TAIL_NONE, TAIL_RUNS, TAIL_BYTES };

struct body {
	uint16_t size;
	uint16_t n_fields;
	const struct field *fields;
	enum tail tail;
};

/*
 * Struct and number of file descriptors of a message type in one direction. body NULL: messages of the type are not
 * sent in this direction.
 */
struct way {
	const struct body *body;
	unsigned n_fds;
};

struct rule {
	uint16_t type;
	const char *name;
	struct way request; /* sent by a client; its serial is not 0 */
	struct way reply;   /* sent by the daemon, with type | SKV_REPLY and the request's serial */
	struct way notice;  /* sent by the daemon without a request, with serial 0 */
};

/* Returns the row of a message type, with or without SKV_REPLY in `type`, or NULL for an unknown type. */
const struct rule *skv_wire_rule_of(uint16_t type);
/*
 * Returns the way of a packet of this type: `reply` if `type` has SKV_REPLY, otherwise `request` or `notice`, since no
 * message type is both.
 */
const struct way *skv_wire_way_of(const struct rule *r, uint16_t type);

#endif
