/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/wire-table.h - tables that define well-formed messages; wire.c interprets them.
 *
 * They list the fields of each struct with their offsets, the tail of each struct, and for each message type and
 * direction the struct and the number of fds.
 */
#ifndef SKV_WIRE_TABLE_H
#define SKV_WIRE_TABLE_H

#include "common/wire.h"

enum kind {
	U32,
	U64,
	F32,
	STRING,   /* NUL-terminated within its field, printable ASCII because it reaches logs and terminals */
	RESERVED, /* uint32_t, must be 0 */
	FLAG,     /* uint32_t, 0 or 1 */
	ERRNO,    /* int32_t, a positive errno */
	ERRNO_0,  /* the same, or 0 */
	COUNT,    /* uint32_t: number of elements of the tail */
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

/* How a type is sent in one direction; body NULL: it is not. */
struct way {
	const struct body *body;
	unsigned n_fds;
};

struct rule {
	uint16_t type;
	const char *name;
	struct way request; /* from a client, serial not 0 */
	struct way reply;   /* from the daemon: type | SKV_REPLY, the request's serial */
	struct way notice;  /* from the daemon, unsolicited */
};

/* Returns the row of a type, with or without SKV_REPLY, or NULL. */
const struct rule *skv_wire_rule_of(uint16_t type);
/* Returns how a packet of this type is sent: a type is either a request or a notice. */
const struct way *skv_wire_way_of(const struct rule *r, uint16_t type);

#endif
