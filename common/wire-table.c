/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/wire-table.c - the tables of all message types, by which packets are checked and printed. A new message type
 * is a new row.
 *
 * The bytes of a packet are the memory of a struct. That requires a little-endian machine and structs without padding.
 * Static assertions check both, so that on another machine the build fails, instead of making programs with another
 * protocol.
 */
#include "common/wire-table.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the wire is little-endian and so must the host be");
_Static_assert(sizeof(float) == 4, "float is an IEEE 754 single");

#define N_ELEMENTS(a) (sizeof(a) / sizeof((a)[0]))

/* ---- fields ---------------------------------------------------------------------------------- */

/* Describes a field of a struct at a fixed offset. The build fails if the compiler places the field elsewhere. */
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

BODY(skv_msg_reconnect, 88, TAIL_NONE,
     AT(0, skv_msg_reconnect, hello.version_min, U32),
     AT(4, skv_msg_reconnect, hello.version_max, U32),
     AT(8, skv_msg_reconnect, hello.features, U64),
     AT(16, skv_msg_reconnect, hello.program, STRING),
     AT(80, skv_msg_reconnect, client, U32),
     AT(84, skv_msg_reconnect, reserved, RESERVED));

BODY(skv_msg_client, 8, TAIL_NONE,
     AT(0, skv_msg_client, client, U32),
     AT(4, skv_msg_client, reserved, RESERVED));

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

/*
 * Four requests have the same struct, skv_msg_seq_name. A field that a request does not use is reserved, and must be 0.
 */
#define SEQ_NAME(name_, seq_, max_tokens_, n_tokens_)                                                           \
	BODY_AS(name_, skv_msg_seq_name, 80, TAIL_NONE,                                                     \
		AT(0, skv_msg_seq_name, session, U32),                                                      \
		AT(4, skv_msg_seq_name, seq, seq_),                                                         \
		AT(8, skv_msg_seq_name, max_tokens, max_tokens_),                                           \
		AT(12, skv_msg_seq_name, n_tokens, n_tokens_),                                              \
		AT(16, skv_msg_seq_name, name, STRING))
SEQ_NAME(seq_new, RESERVED, U32, RESERVED);
SEQ_NAME(seq_attach, RESERVED, RESERVED, RESERVED);
SEQ_NAME(seq_fork, U32, RESERVED, U32);
SEQ_NAME(prefix_new, U32, U32, U32);

BODY(skv_msg_seal, 16, TAIL_NONE,
     AT(0, skv_msg_seal, session, U32),
     AT(4, skv_msg_seal, seq, U32),
     AT(8, skv_msg_seal, n_tokens, U32),
     AT(12, skv_msg_seal, reserved, RESERVED));

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

BODY(skv_msg_room, 8, TAIL_NONE,
     AT(0, skv_msg_room, pages, U64));

BODY(skv_msg_name, 64, TAIL_NONE,
     AT(0, skv_msg_name, name, STRING));

BODY(skv_msg_policy_swap, 592, TAIL_NONE,
     AT(0, skv_msg_policy_swap, all, FLAG),
     AT(4, skv_msg_policy_swap, session, U32),
     AT(8, skv_msg_policy_swap, client, U32),
     AT(12, skv_msg_policy_swap, uid, U32),
     AT(16, skv_msg_policy_swap, model, STRING),
     AT(80, skv_msg_policy_swap, spec, STRING));

BODY(skv_msg_seq_of, 136, TAIL_NONE,
     AT(0, skv_msg_seq_of, uid, U32),
     AT(4, skv_msg_seq_of, reserved, RESERVED),
     AT(8, skv_msg_seq_of, model, STRING),
     AT(72, skv_msg_seq_of, name, STRING));

BODY(skv_msg_file, 8, TAIL_NONE,
     AT(0, skv_msg_file, bytes, U64));

BODY(skv_msg_user, 8, TAIL_NONE,
     AT(0, skv_msg_user, uid, U32),
     AT(4, skv_msg_user, reserved, RESERVED));

BODY(skv_msg_wait, 8, TAIL_NONE,
     AT(0, skv_msg_wait, serial, U32),
     AT(4, skv_msg_wait, reserved, RESERVED));

BODY(skv_msg_text, 8, TAIL_BYTES,
     AT(0, skv_msg_text, length, COUNT),
     AT(4, skv_msg_text, more, FLAG));

/* ---- message types --------------------------------------------------------------------------- */

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
        REQUEST(CLIENT_END, skv_msg_client, 0, empty, 0),
        REQUEST(LEASE_ROOM, skv_msg_session, 0, skv_msg_room, 0),
        REQUEST(PREFIX_SEAL, skv_msg_seal, 0, empty, 0),
        REQUEST(PREFIX_NEW, prefix_new, 0, skv_msg_seq_ok, 1),
        REQUEST(RECONNECT, skv_msg_reconnect, 0, skv_msg_hello_ok, 1),
        REQUEST(RECONNECT_SESSION, skv_msg_session, 0, empty, 0),
        REQUEST(RECONNECT_SEQ, skv_msg_seq, 0, empty, 0),
        REQUEST(RECONNECT_PAGES, lease_runs, 0, empty, 0),
        REQUEST(RECONNECT_DONE, skv_msg_client, 0, empty, 0),
        NOTICE(SEGMENT, skv_msg_segment, 1),
        NOTICE(SEGMENT_GONE, skv_msg_segment, 0),
        REQUEST(SEGMENT_ACK, skv_msg_segment, 0, empty, 0),
        NOTICE(SEGMENT_IPC, skv_msg_segment_ipc, 0),
        NOTICE(WAIT, skv_msg_wait, 0),
        REQUEST(QUERY, skv_msg_query, 0, skv_msg_text, 0),
        REQUEST(POLICY_LOAD, skv_msg_name, 1, skv_msg_text, 0),
        REQUEST(POLICY_SWAP, skv_msg_policy_swap, 0, skv_msg_text, 0),
        REQUEST(SEQ_DROP_NAME, skv_msg_seq_of, 0, skv_msg_text, 0),
        REQUEST(SEQ_PARK, skv_msg_seq_of, 0, skv_msg_text, 0),
        REQUEST(SEQ_RESUME, skv_msg_seq_of, 0, skv_msg_text, 0),
        REQUEST(SEQ_EXPORT, skv_msg_seq_of, 0, skv_msg_file, 1),
        REQUEST(SEQ_IMPORT, skv_msg_user, 1, skv_msg_text, 0),
};

const struct rule *skv_wire_rule_of(uint16_t type)
{
	for (size_t i = 0; i < N_ELEMENTS(rules); i++)
		if (rules[i].type == (type & ~SKV_REPLY))
			return &rules[i];
	return NULL;
}

const struct way *skv_wire_way_of(const struct rule *r, uint16_t type)
{
	return type & SKV_REPLY ? &r->reply : r->request.body ? &r->request : &r->notice;
}

const char *skv_wire_name(uint16_t type)
{
	const struct rule *r = skv_wire_rule_of(type);

	return r && skv_wire_way_of(r, type)->body ? r->name : "?";
}
