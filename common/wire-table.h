/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/wire-table.h - the tables that say what a well-formed message is; wire.c walks them.
 *
 * Fields of each struct with their offsets, what each struct is followed by, and which struct each message
 * type carries in which direction with how many fds.
 */
#ifndef SKV_WIRE_TABLE_H
#define SKV_WIRE_TABLE_H

#include "common/wire.h"

enum kind {
	U32,
	U64,
	F32,
	STRING,   /* NUL-terminated within its field, printable ASCII: it ends up in logs and on terminals */
	RESERVED, /* uint32_t, 0 */
	FLAG,     /* uint32_t, 0 or 1 */
	ERRNO,    /* int32_t, a positive errno */
	ERRNO_0,  /* the same, or 0 */
	COUNT,    /* uint32_t: elements of the tail */
	BYTES,    /* opaque */
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

/* One way of sending a type; body NULL: it is not sent that way. */
struct way {
	const struct body *body;
	unsigned n_fds;
};

struct rule {
	uint16_t type;
	const char *name;
	struct way request; /* by a client, serial not 0 */
	struct way reply;   /* by the daemon, type | SKV_REPLY, the request's serial */
	struct way notice;  /* by the daemon, unasked */
};

/* The row of a type, with or without SKV_REPLY; NULL: there is none. */
const struct rule *skv_wire_rule_of(uint16_t type);
/* The way in which a packet of this type is sent: a type is either a request or a notice. */
const struct way *skv_wire_way_of(const struct rule *r, uint16_t type);

#endif
