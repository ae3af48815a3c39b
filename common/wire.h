/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/wire.h - the protocol between sparsekvd and its clients; sparsekv-protocol(7) describes it in full.
 *
 * The socket is a UNIX socket of type SOCK_SEQPACKET. A packet is a message: a header, a fixed struct that depends on
 * the type, and for some types a tail of elements whose number is in the struct. All numbers are little-endian and of
 * fixed width, without implicit padding. Lengths are exact; a wrong one ends the connection. The header, HELLO and
 * ERROR never change; any other struct may grow at its end in a later version that both sides agree on in HELLO.
 *
 * A request has a serial chosen by the client, never 0. Its reply has the same serial and the request's type with
 * SKV_REPLY set, or is SKV_MSG_ERROR. Notices of the daemon have serial 0, and so has an ERROR about a packet too
 * broken to be answered, after which the daemon closes the connection. Memory is announced once (SKV_MSG_SEGMENT with
 * its fd) and then referred to by id.
 *
 * Strings end within their field and are printable ASCII, because they reach logs, terminals and JSON. Fill them with
 * skv_wire_string().
 */
#ifndef SKV_WIRE_H
#define SKV_WIRE_H

#include <stdbool.h>
#include <stdio.h>
#include <sparsekv/types.h>

#define SKV_PROTO_VERSION 1u
#define SKV_WIRE_MAX 65536u   /* bytes of a message, header included */
#define SKV_WIRE_MAX_SENT 8192u /* the same for messages of the daemon, which has to buffer unread ones */
#define SKV_WIRE_MAX_FDS 4u   /* per message */
#define SKV_SPEC_MAX 512u     /* bytes of a policy spec, NUL included */
#define SKV_TEXT_MAX 512u     /* bytes of an error text, NUL included */
#define SKV_WIRE_MAX_RUNS 4096u
#define SKV_CALL_PAGES 65536u /* maximum of pages that one request leases, gives back or releases */
#define SKV_PLUGIN_BYTES_MAX (16u << 20) /* bytes of a policy's file */
#define SKV_DEFAULT_SOCKET "/run/sparsekv/sparsekvd.sock"
/*
 * In another folder, because the folder above may be shared with containers, while this one is for the machine's
 * operators.
 */
#define SKV_DEFAULT_OPERATORS_SOCKET "/run/sparsekv-operators/sparsekvd.sock"

#define SKV_REPLY 0x8000u

enum skv_msg_type {
	SKV_MSG_ERROR = 1, /* reply to any request that failed: skv_msg_error */

	SKV_MSG_HELLO = 2,        /* skv_msg_hello → skv_msg_hello_ok, fd: control page (read-only) */
	SKV_MSG_OPEN = 3,         /* skv_msg_open → skv_msg_open_ok, fds: session page, policy's file */
	SKV_MSG_CLOSE = 4,        /* skv_msg_session → empty */
	SKV_MSG_SEQ_NEW = 5,      /* skv_msg_seq_name → skv_msg_seq_ok, fd: sequence memory */
	SKV_MSG_SEQ_ATTACH = 6,   /* skv_msg_seq_name → skv_msg_seq_ok, fd: sequence memory */
	SKV_MSG_SEQ_FORK = 7,     /* skv_msg_seq_name (seq: parent) → skv_msg_seq_ok, fd: sequence memory */
	SKV_MSG_SEQ_DETACH = 8,   /* skv_msg_seq → empty */
	SKV_MSG_SEQ_DROP = 9,     /* skv_msg_seq → empty */
	SKV_MSG_SEQ_RELEASE = 10, /* skv_msg_runs (shared pages that seq no longer refers to) → empty */
	SKV_MSG_LEASE_GET = 11,   /* skv_msg_lease_get → skv_msg_runs; segments are announced before */
	SKV_MSG_LEASE_PUT = 12,   /* skv_msg_runs → empty */
	SKV_MSG_POLICY_GET = 13,  /* skv_msg_session → skv_msg_policy, fd: policy's file */
	SKV_MSG_POLICY_ACK = 14,  /* skv_msg_policy_ack → empty */
	SKV_MSG_POLICY_FIND = 15, /* skv_msg_spec → skv_msg_policy, fd: policy's file */
	SKV_MSG_CLIENT_END = 16,  /* skv_msg_client → empty; before HELLO, too */
	SKV_MSG_LEASE_ROOM = 17,  /* skv_msg_session → skv_msg_room */
	SKV_MSG_PREFIX_SEAL = 23, /* skv_msg_seal → empty */
	SKV_MSG_PREFIX_NEW = 24,  /* skv_msg_seq_name (seq: has token ids) → skv_msg_seq_ok, fd: sequence memory */

	/* a client of the previous daemon reconnects: it lists what it has, then ends the list */
	SKV_MSG_RECONNECT = 18,         /* in place of HELLO: skv_msg_reconnect → skv_msg_hello_ok, fd: control page */
	SKV_MSG_RECONNECT_SESSION = 19, /* skv_msg_session → empty */
	SKV_MSG_RECONNECT_SEQ = 20,     /* skv_msg_seq → empty */
	SKV_MSG_RECONNECT_PAGES = 21,   /* skv_msg_runs (on lease) → empty */
	SKV_MSG_RECONNECT_DONE = 22,    /* skv_msg_client → empty: the daemon releases everything not listed */

	SKV_MSG_SEGMENT = 32,      /* notice: skv_msg_segment, fd: the segment */
	SKV_MSG_SEGMENT_GONE = 33, /* notice: skv_msg_segment without fd: unmap it, then acknowledge */
	SKV_MSG_SEGMENT_ACK = 34,  /* skv_msg_segment → empty */
	SKV_MSG_SEGMENT_IPC = 35,  /* notice: skv_msg_segment_ipc: SEGMENT of a kind without an fd */
	SKV_MSG_WAIT = 36,         /* notice, once a second: skv_msg_wait: a request is in progress */

	/* for sparsekvctl; replies are skv_msg_text: JSON in one or more messages */
	SKV_MSG_QUERY = 48,       /* skv_msg_query → skv_msg_text … */
	SKV_MSG_POLICY_LOAD = 49, /* skv_msg_name, fd: the plugin → skv_msg_text (operator only) */
	SKV_MSG_POLICY_SWAP = 50, /* skv_msg_policy_swap → skv_msg_text (operator only) */
	SKV_MSG_SEQ_DROP_NAME = 51, /* skv_msg_seq_of → skv_msg_text: a detached sequence */

	SKV_MSG_SEQ_PARK = 53,    /* skv_msg_seq_of → skv_msg_text: a detached sequence, to disk */
	SKV_MSG_SEQ_RESUME = 54,  /* skv_msg_seq_of → skv_msg_text: a parked sequence, to memory */
	SKV_MSG_SEQ_EXPORT = 55,  /* skv_msg_seq_of → skv_msg_file, fd: a pipe with the file of a parked sequence */
	SKV_MSG_SEQ_IMPORT = 56,  /* skv_msg_user, fd: such a file, or a pipe with one → skv_msg_text (operator only) */
};

struct skv_msg_header {
	uint32_t length; /* of the whole message, this header included */
	uint16_t type;   /* enum skv_msg_type, | SKV_REPLY */
	uint16_t n_fds;  /* file descriptors that came with it */
	uint32_t serial;
	uint32_t reserved; /* must be 0 */
};

struct skv_msg_error {
	int32_t error; /* positive errno */
	char text[SKV_TEXT_MAX];
};

struct skv_msg_hello {
	uint32_t version_min, version_max; /* supported by the client */
	uint64_t features;                 /* bits; none defined in version 1 */
	char program[SKV_NAME_MAX];        /* shown by sparsekvctl */
};
struct skv_msg_hello_ok {
	uint32_t version;
	uint32_t client;
	uint64_t features;
	uint64_t control_bytes;
	char daemon[SKV_NAME_MAX]; /* version of the daemon */
};

/*
 * A client of the same process whose connection has ended. The process has unmapped that client's memory and will not
 * write to it any more, so the daemon need not keep it until the process exits.
 */
struct skv_msg_client {
	uint32_t client;
	uint32_t reserved;
};

/*
 * A client whose daemon died, or stopped and left all state to this one. The client lists what it has: sessions,
 * sequences, leased pages. RECONNECT_DONE releases everything else that the daemon has for it (replies that never
 * arrived). Before that, requests that may already have been executed can be repeated: SEQ_DETACH and SEQ_DROP of a
 * sequence that is not held are no error, nor is SEQ_RELEASE of pages that are not shared.
 */
struct skv_msg_reconnect {
	struct skv_msg_hello hello;
	uint32_t client; /* id from the previous daemon */
	uint32_t reserved;
};

struct skv_wire_model {
	uint32_t n_layers, n_heads, n_kv_heads, head_dim;
	uint32_t kv_dtype, max_tokens;
	float scale; /* IEEE 754 single */
	uint32_t rank, n_ranks;
	uint32_t device; /* 0: host memory; 1 + i: CUDA device i */
	char name[SKV_NAME_MAX];
};
#define SKV_UUID_BYTES 16u

/*
 * Maximum of bytes of a device's pool: CUDA kernels number its rows, of at least 128 bytes, with 32 bits, and clients
 * map it twice.
 */
#define SKV_DEVICE_POOL_MAX ((uint64_t)1 << 38)
struct skv_msg_open {
	struct skv_wire_model model;
	uint8_t device_uuid[SKV_UUID_BYTES]; /* if not all 0, identifies the device instead of its number */
	char spec[SKV_SPEC_MAX];
};
/* The policy that a session, or one of its sequences, is to run. */
struct skv_msg_policy {
	uint64_t generation; /* POLICY_FIND: 0 */
	uint32_t plugin; /* id of the plugin file of the fd */
	uint32_t reserved;
	char spec[SKV_SPEC_MAX];
};
struct skv_msg_open_ok {
	uint32_t session;
	uint32_t pool;
	uint64_t page_bytes;
	uint64_t segment_bytes;
	uint32_t pages_per_segment; /* as many as fit; on a device one less, if they do not fill the segment */
	uint32_t max_segments; /* segment ids are below this; reserve max_segments * segment_bytes of address space */
	uint64_t session_page_bytes;
	struct skv_msg_policy policy;
};
struct skv_msg_session {
	uint32_t session;
	uint32_t reserved;
};

struct skv_msg_seq_name {
	uint32_t session;
	/*
	 * FORK: the parent; PREFIX_NEW: a sequence whose memory has the prompt's token ids, whatever its length;
	 * otherwise 0
	 */
	uint32_t seq;
	uint32_t max_tokens; /* NEW, PREFIX_NEW: 0 = the model's; otherwise 0 */
	/*
	 * FORK: tokens that the child gets from the parent, SKV_ALL = all; PREFIX_NEW: tokens of the prompt; otherwise
	 * 0
	 */
	uint32_t n_tokens;
	char name[SKV_NAME_MAX]; /* "" = anonymous (NEW, PREFIX_NEW, FORK) */
};
struct skv_msg_seq_ok {
	uint32_t seq;
	uint32_t max_tokens;
	uint64_t bytes; /* of the sequence memory */
};
struct skv_msg_seq {
	uint32_t session;
	uint32_t seq;
};

struct skv_msg_seal {
	uint32_t session;
	uint32_t seq;
	uint32_t n_tokens; /* the whole blocks of these tokens are sealed */
	uint32_t reserved;
};

struct skv_msg_lease_get {
	uint32_t session;
	uint32_t least; /* -ENOSPC or -EDQUOT if fewer are available */
	uint32_t most;
	uint32_t reserved;
};
/* Pages as runs; tail: n_runs × skv_wire_run, at most SKV_WIRE_MAX_RUNS. */
struct skv_msg_runs {
	uint32_t session;
	uint32_t seq; /* SEQ_RELEASE; otherwise 0 */
	uint32_t n_runs;
	uint32_t reserved;
};
struct skv_wire_run {
	uint32_t first, count; /* pages first to first + count - 1 */
};

struct skv_msg_spec {
	char spec[SKV_SPEC_MAX];
};
struct skv_msg_policy_ack {
	uint32_t session;
	/* 0: the session runs the policy; otherwise a positive errno, and the session keeps the old policy */
	int32_t error;
	uint64_t generation;
	char text[SKV_TEXT_MAX];
};

enum skv_handle_kind {
	SKV_HANDLE_MEMFD = 0,    /* a sealed memfd */
	SKV_HANDLE_CUDA_FD = 1,  /* POSIX fd of a VMM allocation: cuMemImportFromShareableHandle */
	SKV_HANDLE_CUDA_IPC = 2, /* no fd, the bytes of a CUipcMemHandle: cuIpcOpenMemHandle */
};
struct skv_msg_segment {
	uint32_t pool;
	uint32_t segment; /* contains page ids from segment * pages_per_segment */
	uint32_t handle;  /* enum skv_handle_kind */
	uint32_t reserved;
	uint64_t bytes;
};
#define SKV_IPC_HANDLE_BYTES 64u /* CU_IPC_HANDLE_SIZE, which CUDA will not change */
struct skv_msg_segment_ipc {
	struct skv_msg_segment segment;
	uint8_t ipc_handle[SKV_IPC_HANDLE_BYTES];
};

enum skv_query {
	SKV_QUERY_STATUS = 1,
	SKV_QUERY_SEQS = 2,
	SKV_QUERY_POLICIES = 3,
	SKV_QUERY_POOLS = 4,
	SKV_QUERY_SESSIONS = 5,
};
struct skv_msg_query {
	uint32_t what;
	uint32_t reserved;
};
/* Pages that LEASE_GET could get now. */
struct skv_msg_room {
	uint64_t pages;
};
struct skv_msg_name {
	char name[SKV_NAME_MAX];
};
/*
 * Selects sessions: `all` 1: every session; 0: those that match all of the four criteria below, at least one of which
 * is given.
 */
struct skv_msg_policy_swap {
	uint32_t all;
	uint32_t session; /* 0: not given */
	uint32_t client;  /* 0: not given */
	uint32_t uid;     /* -1: not given */
	char model[SKV_NAME_MAX]; /* "": not given */
	char spec[SKV_SPEC_MAX];
};
/* A named sequence; for a model with ranks, that of every rank. */
struct skv_msg_seq_of {
	uint32_t uid;
	uint32_t reserved;
	char model[SKV_NAME_MAX];
	char name[SKV_NAME_MAX];
};
struct skv_msg_file {
	uint64_t bytes;
};
struct skv_msg_user {
	uint32_t uid; /* owner of the new sequence */
	uint32_t reserved;
};
/* The request with this serial is still in progress: its client restarts the timeout for the reply. */
struct skv_msg_wait {
	uint32_t serial;
	uint32_t reserved;
};
/* Tail: length bytes of text. */
struct skv_msg_text {
	uint32_t length;
	uint32_t more; /* 1: another message with this serial follows */
};

/*
 * The control page: written by the daemon, read by every client. A client whose session's generation differs from
 * `policy_generation` sends POLICY_GET at its next step_begin.
 */
struct skv_control_page {
	_Atomic uint64_t policy_generation;
	_Atomic uint32_t recall_every; /* a session measures recall in one of so many steps; 0: never */
	uint32_t n_fences;
	/*
	 * For each client, at skv_client_row_of(id): its id while it is connected, otherwise 0 or another client's id.
	 * A client that does not find its id there neither begins nor commits steps. The entry remains when the daemon
	 * dies.
	 */
	_Atomic uint32_t fence[];
};
static inline uint32_t skv_client_row_of(uint32_t client)
{
	return client & 0xffff;
}

/* The session page: written by the client, displayed by the daemon (never trusted). */
struct skv_session_page {
	_Atomic uint64_t steps, prompt_tokens, decode_tokens;
	_Atomic uint64_t attended_tokens, causal_tokens;
	_Atomic uint64_t evicted_pages, stock_pages;
	_Atomic uint64_t policy_generation; /* generation that the session runs */
	_Atomic uint64_t recall_steps;      /* steps in which recall was measured */
	/* recall of each layer in the last such step: 1 + parts per million; 0: the layer attends to everything */
	_Atomic uint32_t recall[SKV_MAX_LAYERS];
};

/* ---- building and checking ------------------------------------------------------------------- */

/*
 * Checks that a packet is well-formed, as sent by a client (to_daemon) or by the daemon: its header against the
 * packet's size and fd count, type and direction, serial, the exact length for the type with its counted tail, the
 * number of fds, reserved fields, strings, errno values and runs. The meaning of ids, names and sizes is left to the
 * caller. Returns NULL if it is, otherwise an error text.
 */
const char *skv_wire_check(const void *packet, size_t bytes, unsigned n_fds, bool to_daemon);

/* Returns the name of a message type ("LEASE_GET"), or "?" for an unknown one. */
const char *skv_wire_name(uint16_t type);

/* Prints a packet, valid or not, as one line, for SPARSEKV_DEBUG=wire. `prefix`: the peer and the direction. */
void skv_wire_dump(FILE *to, const char *prefix, const void *packet, size_t bytes, unsigned n_fds);

/*
 * Fills a fixed string of a message: truncates it to size - 1 bytes, replaces bytes other than printable ASCII by '?',
 * and fills the rest of the field with zeros. `from` NULL means "".
 */
void skv_wire_string(char *to, size_t size, const char *from);

void skv_wire_from_model(struct skv_wire_model *to, const struct skv_model *from);
void skv_wire_to_model(struct skv_model *to, const struct skv_wire_model *from);

/* Checks a model against the limits of types.h. Returns NULL, or a text that names the field and its limits. */
const char *skv_model_check(const struct skv_model *m);

/*
 * Returns the operators' socket that belongs to a daemon's socket: the default one for the default, otherwise the path
 * with ".operators" appended. False: longer than `size`.
 */
bool skv_operators_socket(const char *socket, char *to, size_t size);

/* Sequence and policy names: 1 to SKV_NAME_MAX - 1 printable ASCII bytes without space or '/'. */
bool skv_name_valid(const char *name);

/* The name that the daemon gives a sealed prefix: '/' and 32 hexadecimal digits. */
bool skv_prefix_name_valid(const char *name);

/* Model names: as above, but '/' is allowed ("HuggingFaceTB/SmolLM2-135M"). */
bool skv_model_name_valid(const char *name);

#endif
