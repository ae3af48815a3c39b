/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/wire.c - what a well-formed message is, said once.
 *
 * Three tables say everything: the fields of each struct with their offsets, what each struct is
 * followed by, and which struct each message type carries in which direction with how many fds.
 * skv_wire_check() and skv_wire_dump() only walk them; a new message is a new row.
 *
 * Messages are copied between socket and structs as they lie in memory. That is right on
 * little-endian machines without padding, so both are asserted here rather than assumed: another
 * kind of machine fails to compile instead of speaking another protocol.
 *
 * Packets come from the peer. They are read with memcpy, so their alignment does not matter, and
 * no byte is looked at before the length is known to cover it.
 */
#include "common/wire.h"

#include <math.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the wire is little-endian and so must the host be");
_Static_assert(sizeof(float) == 4, "float is an IEEE 754 single");

#define N_ELEMENTS(a) (sizeof(a) / sizeof((a)[0]))

/* ---- fields ---------------------------------------------------------------------------------- */

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

/* A field at a fixed offset: the build fails when the compiler puts it elsewhere. */
#define AT(at, s, member, kind_)                                                                            \
	{                                                                                                   \
		#member, (at) + 0 * sizeof(STAYS_AT(at, s, member)),                                        \
		sizeof(((struct s *)NULL)->member), kind_                                                   \
	}
#define STAYS_AT(at, s, member)                                                                             \
	struct {                                                                                            \
		_Static_assert(offsetof(struct s, member) == (at), #member);                                \
		char c;                                                                                     \
	}

enum tail { TAIL_NONE, TAIL_RUNS, TAIL_BYTES };

struct body {
	uint16_t size;
	uint16_t n_fields;
	const struct field *fields;
	enum tail tail;
};

#define BODY_AS(name_, s, bytes, tail_, ...)                                                                \
	_Static_assert(sizeof(struct s) == (bytes), #s);                                                    \
	static const struct field fields_##name_[] = {__VA_ARGS__};                                         \
	static const struct body body_##name_ = {bytes, N_ELEMENTS(fields_##name_), fields_##name_, tail_}
#define BODY(s, bytes, tail_, ...) BODY_AS(s, s, bytes, tail_, __VA_ARGS__)

static const struct body body_empty = {0, 0, NULL, TAIL_NONE};

#define HEADER_BYTES 16u
_Static_assert(sizeof(struct skv_msg_header) == HEADER_BYTES, "header");
_Static_assert(offsetof(struct skv_msg_header, length) == 0, "length");
_Static_assert(offsetof(struct skv_msg_header, type) == 4, "type");
_Static_assert(offsetof(struct skv_msg_header, n_fds) == 6, "n_fds");
_Static_assert(offsetof(struct skv_msg_header, serial) == 8, "serial");
_Static_assert(offsetof(struct skv_msg_header, reserved) == 12, "reserved");
_Static_assert(sizeof(struct skv_wire_run) == 8 && offsetof(struct skv_wire_run, count) == 4, "run");
_Static_assert(HEADER_BYTES + sizeof(struct skv_msg_runs) + SKV_WIRE_MAX_RUNS * sizeof(struct skv_wire_run) <=
                       SKV_WIRE_MAX,
               "the longest list of runs fits into a message");

BODY(skv_msg_error, 516, TAIL_NONE,
     AT(0, skv_msg_error, error, ERRNO),
     AT(4, skv_msg_error, text, STRING));

BODY(skv_msg_hello, 80, TAIL_NONE,
     AT(0, skv_msg_hello, version_min, U32),
     AT(4, skv_msg_hello, version_max, U32),
     AT(8, skv_msg_hello, features, U64),
     AT(16, skv_msg_hello, program, STRING));

BODY(skv_msg_hello_ok, 88, TAIL_NONE,
     AT(0, skv_msg_hello_ok, version, U32),
     AT(4, skv_msg_hello_ok, client, U32),
     AT(8, skv_msg_hello_ok, features, U64),
     AT(16, skv_msg_hello_ok, control_bytes, U64),
     AT(24, skv_msg_hello_ok, daemon, STRING));

_Static_assert(sizeof(struct skv_wire_model) == 104, "model");
BODY(skv_msg_open, 632, TAIL_NONE,
     AT(0, skv_msg_open, model.n_layers, U32),
     AT(4, skv_msg_open, model.n_heads, U32),
     AT(8, skv_msg_open, model.n_kv_heads, U32),
     AT(12, skv_msg_open, model.head_dim, U32),
     AT(16, skv_msg_open, model.kv_dtype, U32),
     AT(20, skv_msg_open, model.max_tokens, U32),
     AT(24, skv_msg_open, model.scale, F32),
     AT(28, skv_msg_open, model.rank, U32),
     AT(32, skv_msg_open, model.n_ranks, U32),
     AT(36, skv_msg_open, model.device, U32),
     AT(40, skv_msg_open, model.name, STRING),
     AT(104, skv_msg_open, device_uuid, BYTES),
     AT(120, skv_msg_open, spec, STRING));

BODY(skv_msg_policy, 528, TAIL_NONE,
     AT(0, skv_msg_policy, generation, U64),
     AT(8, skv_msg_policy, plugin, U32),
     AT(12, skv_msg_policy, reserved, RESERVED),
     AT(16, skv_msg_policy, spec, STRING));

BODY(skv_msg_spec, 512, TAIL_NONE,
     AT(0, skv_msg_spec, spec, STRING));

BODY(skv_msg_open_ok, 568, TAIL_NONE,
     AT(0, skv_msg_open_ok, session, U32),
     AT(4, skv_msg_open_ok, pool, U32),
     AT(8, skv_msg_open_ok, page_bytes, U64),
     AT(16, skv_msg_open_ok, segment_bytes, U64),
     AT(24, skv_msg_open_ok, pages_per_segment, U32),
     AT(28, skv_msg_open_ok, max_segments, U32),
     AT(32, skv_msg_open_ok, session_page_bytes, U64),
     AT(40, skv_msg_open_ok, policy.generation, U64),
     AT(48, skv_msg_open_ok, policy.plugin, U32),
     AT(52, skv_msg_open_ok, policy.reserved, RESERVED),
     AT(56, skv_msg_open_ok, policy.spec, STRING));

BODY(skv_msg_session, 8, TAIL_NONE,
     AT(0, skv_msg_session, session, U32),
     AT(4, skv_msg_session, reserved, RESERVED));

/* One struct for three requests; what a request has no use for is reserved in it. */
#define SEQ_NAME(name_, seq_, max_tokens_)                                                                  \
	BODY_AS(name_, skv_msg_seq_name, 80, TAIL_NONE,                                                     \
		AT(0, skv_msg_seq_name, session, U32),                                                      \
		AT(4, skv_msg_seq_name, seq, seq_),                                                         \
		AT(8, skv_msg_seq_name, max_tokens, max_tokens_),                                           \
		AT(12, skv_msg_seq_name, reserved, RESERVED),                                               \
		AT(16, skv_msg_seq_name, name, STRING))
SEQ_NAME(seq_new, RESERVED, U32);
SEQ_NAME(seq_attach, RESERVED, RESERVED);
SEQ_NAME(seq_fork, U32, RESERVED);

BODY(skv_msg_seq_ok, 16, TAIL_NONE,
     AT(0, skv_msg_seq_ok, seq, U32),
     AT(4, skv_msg_seq_ok, max_tokens, U32),
     AT(8, skv_msg_seq_ok, bytes, U64));

BODY(skv_msg_seq, 8, TAIL_NONE,
     AT(0, skv_msg_seq, session, U32),
     AT(4, skv_msg_seq, seq, U32));

BODY(skv_msg_lease_get, 16, TAIL_NONE,
     AT(0, skv_msg_lease_get, session, U32),
     AT(4, skv_msg_lease_get, least, U32),
     AT(8, skv_msg_lease_get, most, U32),
     AT(12, skv_msg_lease_get, reserved, RESERVED));

#define RUNS(name_, seq_)                                                                                   \
	BODY_AS(name_, skv_msg_runs, 16, TAIL_RUNS,                                                         \
		AT(0, skv_msg_runs, session, U32),                                                          \
		AT(4, skv_msg_runs, seq, seq_),                                                             \
		AT(8, skv_msg_runs, n_runs, COUNT),                                                         \
		AT(12, skv_msg_runs, reserved, RESERVED))
RUNS(lease_runs, RESERVED);
RUNS(seq_runs, U32);

BODY(skv_msg_policy_ack, 528, TAIL_NONE,
     AT(0, skv_msg_policy_ack, session, U32),
     AT(4, skv_msg_policy_ack, error, ERRNO_0),
     AT(8, skv_msg_policy_ack, generation, U64),
     AT(16, skv_msg_policy_ack, text, STRING));

BODY(skv_msg_segment, 24, TAIL_NONE,
     AT(0, skv_msg_segment, pool, U32),
     AT(4, skv_msg_segment, segment, U32),
     AT(8, skv_msg_segment, handle, U32),
     AT(12, skv_msg_segment, reserved, RESERVED),
     AT(16, skv_msg_segment, bytes, U64));

BODY(skv_msg_segment_ipc, 88, TAIL_NONE,
     AT(0, skv_msg_segment_ipc, segment.pool, U32),
     AT(4, skv_msg_segment_ipc, segment.segment, U32),
     AT(8, skv_msg_segment_ipc, segment.handle, U32),
     AT(12, skv_msg_segment_ipc, segment.reserved, RESERVED),
     AT(16, skv_msg_segment_ipc, segment.bytes, U64),
     AT(24, skv_msg_segment_ipc, ipc_handle, BYTES));

BODY(skv_msg_query, 8, TAIL_NONE,
     AT(0, skv_msg_query, what, U32),
     AT(4, skv_msg_query, reserved, RESERVED));

BODY(skv_msg_name, 64, TAIL_NONE,
     AT(0, skv_msg_name, name, STRING));

BODY(skv_msg_policy_swap, 520, TAIL_NONE,
     AT(0, skv_msg_policy_swap, session, U32),
     AT(4, skv_msg_policy_swap, uid, U32),
     AT(8, skv_msg_policy_swap, spec, STRING));

BODY(skv_msg_seq_drop_name, 136, TAIL_NONE,
     AT(0, skv_msg_seq_drop_name, uid, U32),
     AT(4, skv_msg_seq_drop_name, reserved, RESERVED),
     AT(8, skv_msg_seq_drop_name, model, STRING),
     AT(72, skv_msg_seq_drop_name, name, STRING));

BODY(skv_msg_text, 8, TAIL_BYTES,
     AT(0, skv_msg_text, length, COUNT),
     AT(4, skv_msg_text, more, FLAG));

/* ---- message types --------------------------------------------------------------------------- */

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

#define REQUEST(type, in, in_fds, out, out_fds)                                                             \
	{                                                                                                   \
		SKV_MSG_##type, #type, {&body_##in, in_fds}, {&body_##out, out_fds}, {NULL, 0}              \
	}
#define NOTICE(type, out, out_fds)                                                                          \
	{                                                                                                   \
		SKV_MSG_##type, #type, {NULL, 0}, {NULL, 0}, {&body_##out, out_fds}                         \
	}

static const struct rule rules[] = {
        NOTICE(ERROR, skv_msg_error, 0),
        REQUEST(HELLO, skv_msg_hello, 0, skv_msg_hello_ok, 1),
        REQUEST(OPEN, skv_msg_open, 0, skv_msg_open_ok, 2),
        REQUEST(CLOSE, skv_msg_session, 0, empty, 0),
        REQUEST(SEQ_NEW, seq_new, 0, skv_msg_seq_ok, 1),
        REQUEST(SEQ_ATTACH, seq_attach, 0, skv_msg_seq_ok, 1),
        REQUEST(SEQ_FORK, seq_fork, 0, skv_msg_seq_ok, 1),
        REQUEST(SEQ_DETACH, skv_msg_seq, 0, empty, 0),
        REQUEST(SEQ_DROP, skv_msg_seq, 0, empty, 0),
        REQUEST(SEQ_RELEASE, seq_runs, 0, empty, 0),
        REQUEST(LEASE_GET, skv_msg_lease_get, 0, lease_runs, 0),
        REQUEST(LEASE_PUT, lease_runs, 0, empty, 0),
        REQUEST(POLICY_GET, skv_msg_session, 0, skv_msg_policy, 1),
        REQUEST(POLICY_ACK, skv_msg_policy_ack, 0, empty, 0),
        REQUEST(POLICY_FIND, skv_msg_spec, 0, skv_msg_policy, 1),
        NOTICE(SEGMENT, skv_msg_segment, 1),
        NOTICE(SEGMENT_GONE, skv_msg_segment, 0),
        REQUEST(SEGMENT_ACK, skv_msg_segment, 0, empty, 0),
        NOTICE(SEGMENT_IPC, skv_msg_segment_ipc, 0),
        REQUEST(QUERY, skv_msg_query, 0, skv_msg_text, 0),
        REQUEST(POLICY_LOAD, skv_msg_name, 1, skv_msg_text, 0),
        REQUEST(POLICY_SWAP, skv_msg_policy_swap, 0, skv_msg_text, 0),
        REQUEST(SEQ_DROP_NAME, skv_msg_seq_drop_name, 0, skv_msg_text, 0),
};

static const struct rule *rule_of(uint16_t type)
{
	for (size_t i = 0; i < N_ELEMENTS(rules); i++)
		if (rules[i].type == (type & ~SKV_REPLY))
			return &rules[i];
	return NULL;
}

/* The way in which a packet of this type is sent: a type is either a request or a notice. */
static const struct way *way_of(const struct rule *r, uint16_t type)
{
	return type & SKV_REPLY ? &r->reply : r->request.body ? &r->request : &r->notice;
}

const char *skv_wire_name(uint16_t type)
{
	const struct rule *r = rule_of(type);

	return r && way_of(r, type)->body ? r->name : "?";
}

/* ---- checking -------------------------------------------------------------------------------- */

static uint32_t load32(const void *p)
{
	uint32_t x;

	memcpy(&x, p, sizeof(x));
	return x;
}

static uint64_t load64(const void *p)
{
	uint64_t x;

	memcpy(&x, p, sizeof(x));
	return x;
}

static bool printable(unsigned char c)
{
	return c >= 0x20 && c < 0x7f;
}

static const char *check_string(const char *p, size_t size)
{
	size_t n = strnlen(p, size);

	if (n == size)
		return "a string does not end within its field";
	for (size_t i = 0; i < n; i++)
		if (!printable((unsigned char)p[i]))
			return "a string has a byte that is not printable ASCII";
	return NULL;
}

static const char *check_field(const struct field *f, const char *p)
{
	switch (f->kind) {
	case STRING:
		return check_string(p, f->size);
	case RESERVED:
		return load32(p) ? "a reserved field is not zero" : NULL;
	case FLAG:
		return load32(p) > 1 ? "a flag is neither 0 nor 1" : NULL;
	case ERRNO:
	case ERRNO_0:
		/* 4095 is the kernel's own bound of errno values */
		if (load32(p) <= 4095 && (f->kind == ERRNO_0 || load32(p) > 0))
			return NULL;
		return "an error is not an errno value";
	default:
		return NULL;
	}
}

/* The element count of a body with a tail. The body has been checked to be there. */
static uint32_t tail_count(const struct body *b, const char *body)
{
	for (unsigned i = 0; i < b->n_fields; i++)
		if (b->fields[i].kind == COUNT)
			return load32(body + b->fields[i].offset);
	return 0;
}

static const char *check_tail(const struct body *b, const char *body, size_t bytes)
{
	uint32_t n = tail_count(b, body);

	if (b->tail == TAIL_BYTES)
		return n == bytes - b->size ? NULL : "the length of the text does not match the message";
	if (n > SKV_WIRE_MAX_RUNS)
		return "more runs than a message may have";
	if ((uint64_t)n * sizeof(struct skv_wire_run) != bytes - b->size)
		return "the number of runs does not match the message";
	for (uint32_t i = 0; i < n; i++) {
		const char *p = body + b->size + i * sizeof(struct skv_wire_run);
		uint64_t first = load32(p), count = load32(p + 4);

		if (count == 0 || first + count > (uint64_t)SKV_PTE_ID_MASK + 1)
			return "a run is empty or beyond the largest page id";
	}
	return NULL;
}

static const char *check_body(const struct body *b, const char *body, size_t bytes)
{
	const char *wrong = NULL;

	if (b->tail == TAIL_NONE ? bytes != b->size : bytes < b->size)
		return "the length is not that of the message type";
	for (unsigned i = 0; i < b->n_fields && !wrong; i++)
		wrong = check_field(&b->fields[i], body + b->fields[i].offset);
	if (!wrong && b->tail != TAIL_NONE)
		wrong = check_tail(b, body, bytes);
	return wrong;
}

/* Everything but the direction. The type's rule and way go to *ret_rule and *ret_way once they are known. */
static const char *check(const char *packet, size_t bytes, unsigned n_fds, const struct rule **ret_rule,
                         const struct way **ret_way)
{
	struct skv_msg_header h;

	if (bytes < sizeof(h))
		return "shorter than a header";
	memcpy(&h, packet, sizeof(h));
	*ret_rule = rule_of(h.type);
	if (*ret_rule)
		*ret_way = way_of(*ret_rule, h.type);
	if (bytes > SKV_WIRE_MAX)
		return "longer than a message may be";
	if (h.length != bytes)
		return "the length field does not match the packet";
	if (h.reserved != 0)
		return "the reserved field of the header is not zero";
	if (!*ret_rule || !(*ret_way)->body)
		return "unknown message type";
	if (h.n_fds != n_fds)
		return "the number of file descriptors is not the one announced";
	if (n_fds != (*ret_way)->n_fds)
		return "the number of file descriptors is not that of the message type";
	if (*ret_way == &(*ret_rule)->notice ? h.serial != 0 && h.type != SKV_MSG_ERROR : h.serial == 0)
		return "requests and replies have a serial, notices have none";
	return check_body((*ret_way)->body, packet + sizeof(h), bytes - sizeof(h));
}

const char *skv_wire_check(const void *packet, size_t bytes, unsigned n_fds, bool to_daemon)
{
	const struct rule *rule = NULL;
	const struct way *way = NULL;
	const char *wrong = check(packet, bytes, n_fds, &rule, &way);

	if (wrong)
		return wrong;
	return to_daemon == (way == &rule->request) ? NULL : "a message that this side does not send";
}

/* ---- decoding for people --------------------------------------------------------------------- */

/* What a peer wrote, quoted: nothing that a terminal or a log could take as its own. */
static void put_quoted(FILE *to, const char *p, size_t most)
{
	fputc('"', to);
	for (size_t i = 0; i < most && p[i]; i++) {
		unsigned char c = (unsigned char)p[i];

		if (c == '"' || c == '\\')
			fprintf(to, "\\%c", c);
		else if (printable(c))
			fputc(c, to);
		else
			fprintf(to, "\\x%02x", c);
	}
	fputc('"', to);
}

static void put_field(FILE *to, const struct field *f, const char *p)
{
	uint32_t bits;
	float x;

	if (f->kind == RESERVED && load32(p) == 0)
		return;
	fprintf(to, " %s=", f->name);
	switch (f->kind) {
	case STRING:
		put_quoted(to, p, f->size);
		break;
	case U64:
		fprintf(to, "%llu", (unsigned long long)load64(p));
		break;
	case F32:
		bits = load32(p);
		memcpy(&x, &bits, sizeof(x));
		fprintf(to, "%.9g", (double)x);
		break;
	case ERRNO:
	case ERRNO_0:
		fprintf(to, "%d", (int32_t)load32(p));
		break;
	case BYTES:
		for (size_t i = 0; i < f->size; i++)
			fprintf(to, "%02x", (unsigned char)p[i]);
		break;
	default:
		fprintf(to, "%u", load32(p));
	}
}

/* The beginning of a tail is enough to follow a conversation. */
#define DUMP_RUNS 8u
#define DUMP_BYTES 64u

static void put_tail(FILE *to, const struct body *b, const char *tail, size_t bytes)
{
	size_t n = bytes / sizeof(struct skv_wire_run);

	if (b->tail == TAIL_BYTES) {
		fputs(" text=", to);
		put_quoted(to, tail, bytes < DUMP_BYTES ? bytes : DUMP_BYTES);
		if (bytes > DUMP_BYTES)
			fputs("...", to);
		return;
	}
	fputs(" runs=", to);
	for (size_t i = 0; i < n && i < DUMP_RUNS; i++)
		fprintf(to, "%s%u+%u", i ? "," : "", load32(tail + 8 * i), load32(tail + 8 * i + 4));
	if (n > DUMP_RUNS)
		fputs(",...", to);
}

/* As much of the body as the packet has. */
static void put_body(FILE *to, const struct body *b, const char *body, size_t bytes)
{
	for (unsigned i = 0; i < b->n_fields; i++)
		if ((size_t)b->fields[i].offset + b->fields[i].size <= bytes)
			put_field(to, &b->fields[i], body + b->fields[i].offset);
	if (b->tail != TAIL_NONE && bytes > b->size)
		put_tail(to, b, body + b->size, bytes - b->size);
}

void skv_wire_dump(FILE *to, const char *prefix, const void *packet, size_t bytes, unsigned n_fds)
{
	const struct rule *rule = NULL;
	const struct way *way = NULL;
	const char *wrong = check(packet, bytes, n_fds, &rule, &way);
	struct skv_msg_header h;

	flockfile(to); /* one line, whatever other threads write */
	fprintf(to, "%s", prefix);
	if (bytes >= sizeof(h)) {
		memcpy(&h, packet, sizeof(h));
		fprintf(to, " %s%s #%u", skv_wire_name(h.type), h.type & SKV_REPLY ? " reply" : "", h.serial);
	}
	fprintf(to, " %zu bytes", bytes);
	if (n_fds)
		fprintf(to, " %u fd%s", n_fds, n_fds == 1 ? "" : "s");
	if (way && way->body)
		put_body(to, way->body, (const char *)packet + sizeof(h), bytes - sizeof(h));
	if (wrong)
		fprintf(to, " MALFORMED: %s", wrong);
	fputc('\n', to);
	funlockfile(to);
}

/* ---- strings and models ---------------------------------------------------------------------- */

void skv_wire_string(char *to, size_t size, const char *from)
{
	size_t n = 0;

	for (; from && from[n] && n + 1 < size; n++)
		to[n] = printable((unsigned char)from[n]) ? from[n] : '?';
	memset(to + n, 0, size - n);
}

void skv_wire_from_model(struct skv_wire_model *to, const struct skv_model *from)
{
	*to = (struct skv_wire_model){
	        .n_layers = from->n_layers,
	        .n_heads = from->n_heads,
	        .n_kv_heads = from->n_kv_heads,
	        .head_dim = from->head_dim,
	        .kv_dtype = from->kv_dtype,
	        .max_tokens = from->max_tokens,
	        .scale = from->scale,
	        .rank = from->rank,
	        .n_ranks = from->n_ranks,
	        .device = from->device,
	};
	skv_wire_string(to->name, sizeof(to->name), from->name);
}

void skv_wire_to_model(struct skv_model *to, const struct skv_wire_model *from)
{
	*to = (struct skv_model){
	        .size = sizeof(*to),
	        .n_layers = from->n_layers,
	        .n_heads = from->n_heads,
	        .n_kv_heads = from->n_kv_heads,
	        .head_dim = from->head_dim,
	        .kv_dtype = from->kv_dtype,
	        .max_tokens = from->max_tokens,
	        .scale = from->scale,
	        .rank = from->rank,
	        .n_ranks = from->n_ranks,
	        .device = from->device,
	};
	skv_wire_string(to->name, sizeof(to->name), from->name);
}


const char *skv_model_check(const struct skv_model *m)
{
	_Static_assert(SKV_MAX_LAYERS == 256 && SKV_MAX_HEADS == 256 && SKV_MAX_HEAD_DIM == 256 &&
	                       SKV_MAX_TOKENS == 16777216 && SKV_NAME_MAX == 64 && SKV_MAX_DEVICES == 16,
	               "the texts below give these limits");

	if (m->n_layers < 1 || m->n_layers > SKV_MAX_LAYERS)
		return "model: n_layers must be 1 to 256";
	if (m->n_heads < 1 || m->n_heads > SKV_MAX_HEADS)
		return "model: n_heads must be 1 to 256";
	if (m->n_kv_heads < 1 || m->n_heads % m->n_kv_heads)
		return "model: n_kv_heads must divide n_heads";
	if (m->head_dim < 16 || m->head_dim > SKV_MAX_HEAD_DIM || m->head_dim % 16)
		return "model: head_dim must be a multiple of 16, 16 to 256";
	if (!skv_dtype_bytes(m->kv_dtype))
		return "model: kv_dtype must be 0 (fp32), 1 (fp16) or 2 (bf16)";
	if (m->max_tokens < 1 || m->max_tokens > SKV_MAX_TOKENS)
		return "model: max_tokens must be 1 to 16777216";
	if (!isfinite(m->scale) || m->scale < 0)
		return "model: scale must be positive, or 0 for 1/sqrt(head_dim)";
	if (m->n_ranks < 1 || m->rank >= m->n_ranks)
		return "model: rank must be below n_ranks, and n_ranks at least 1";
	if (m->device > SKV_MAX_DEVICES)
		return "model: device must be 0 (host memory) or 1 to 16 (CUDA devices 0 to 15)";
	if (!skv_dtype_bytes(m->io_dtype))
		return "model: io_dtype must be 0 (fp32), 1 (fp16) or 2 (bf16)";
	if (m->device == SKV_DEVICE_HOST && m->io_dtype != SKV_F32)
		return "model: io_dtype must be 0 (fp32) in host memory";
	if (strnlen(m->name, sizeof(m->name)) == sizeof(m->name) || !skv_name_valid(m->name))
		return "model: name must be 1 to 63 printable ASCII characters without space and '/'";
	return NULL;
}

bool skv_name_valid(const char *name)
{
	size_t n = 0;

	for (; name[n]; n++)
		if (n + 1 == SKV_NAME_MAX || !printable((unsigned char)name[n]) || name[n] == ' ' ||
		    name[n] == '/')
			return false;
	return n > 0;
}
