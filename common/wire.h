/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/wire.h - the protocol between sparsekvd and its clients; sparsekv-protocol(7) is its prose.
 *
 * SOCK_SEQPACKET UNIX socket. One packet is one message: a header, a fixed struct by type, and for
 * some types a tail of elements that the struct counts. Everything is little-endian and fixed width,
 * no padding is implied. Lengths are exact, and a wrong one ends the connection. The header, HELLO and
 * ERROR never change; any other struct may grow at its end in a later version that both agreed on in HELLO.
 *
 * A request carries a serial chosen by the client, never 0; its reply carries the same one and the
 * request's type with SKV_REPLY set, or SKV_MSG_ERROR. The daemon's own notices have serial 0, and so
 * has an ERROR about a packet too broken to be answered: the daemon closes the connection after it.
 * Memory is announced once (SKV_MSG_SEGMENT with its fd) and named by id from then on.
 *
 * Strings end within their field and are printable ASCII: they reach logs, terminals and JSON.
 * Fill them with skv_wire_string().
 */
#ifndef SKV_WIRE_H
#define SKV_WIRE_H

#include <stdbool.h>
#include <stdio.h>
#include <sparsekv/types.h>

#define SKV_PROTO_VERSION 1u
#define SKV_WIRE_MAX 65536u   /* bytes of a message, header included */
#define SKV_WIRE_MAX_SENT 8192u /* and of one that the daemon sends: it has memory for all that are not read */
#define SKV_WIRE_MAX_FDS 4u   /* of a message */
#define SKV_SPEC_MAX 512u     /* bytes of a policy spec, NUL included */
#define SKV_TEXT_MAX 512u     /* bytes of an error text, NUL included */
#define SKV_WIRE_MAX_RUNS 4096u
#define SKV_CALL_PAGES 65536u /* that one request leases, gives back or releases, at most */
#define SKV_PLUGIN_BYTES_MAX (16u << 20) /* of a policy's file */
#define SKV_DEFAULT_SOCKET "/run/sparsekv/sparsekvd.sock"
/* Elsewhere: the folder above may be shown to containers, this one is for the machine's operators. */
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
	SKV_MSG_SEQ_RELEASE = 10, /* skv_msg_runs (of shared pages that seq no longer refers to) → empty */
	SKV_MSG_LEASE_GET = 11,   /* skv_msg_lease_get → skv_msg_runs; segments are announced before */
	SKV_MSG_LEASE_PUT = 12,   /* skv_msg_runs → empty */
	SKV_MSG_POLICY_GET = 13,  /* skv_msg_session → skv_msg_policy, fd: policy's file */
	SKV_MSG_POLICY_ACK = 14,  /* skv_msg_policy_ack → empty */
	SKV_MSG_POLICY_FIND = 15, /* skv_msg_spec → skv_msg_policy, fd: policy's file */
	SKV_MSG_CLIENT_END = 16,  /* skv_msg_client → empty; before HELLO, too */
	SKV_MSG_LEASE_ROOM = 17,  /* skv_msg_session → skv_msg_room */
	SKV_MSG_PREFIX_SEAL = 23, /* skv_msg_seal → empty */
	SKV_MSG_PREFIX_NEW = 24,  /* skv_msg_seq_name (seq: has token ids) → skv_msg_seq_ok, fd: sequence memory */

	/* a client of the daemon before goes on: what it has, then the end of the list */
	SKV_MSG_RECONNECT = 18,         /* in place of HELLO: skv_msg_reconnect → skv_msg_hello_ok, fd: control page */
	SKV_MSG_RECONNECT_SESSION = 19, /* skv_msg_session → empty */
	SKV_MSG_RECONNECT_SEQ = 20,     /* skv_msg_seq → empty */
	SKV_MSG_RECONNECT_PAGES = 21,   /* skv_msg_runs (on lease) → empty */
	SKV_MSG_RECONNECT_DONE = 22,    /* skv_msg_client → empty: what was not listed is let go */

	SKV_MSG_SEGMENT = 32,      /* notice: skv_msg_segment, fd: the segment */
	SKV_MSG_SEGMENT_GONE = 33, /* notice: skv_msg_segment without fd: unmap it, then acknowledge */
	SKV_MSG_SEGMENT_ACK = 34,  /* skv_msg_segment → empty */
	SKV_MSG_SEGMENT_IPC = 35,  /* notice: skv_msg_segment_ipc: SEGMENT of a kind without an fd */
	SKV_MSG_WAIT = 36,         /* notice: skv_msg_wait: a request is being worked on, once a second */

	/* for sparsekvctl; replies are skv_msg_text: JSON in one or more messages */
	SKV_MSG_QUERY = 48,       /* skv_msg_query → skv_msg_text … */
	SKV_MSG_POLICY_LOAD = 49, /* skv_msg_name, fd: the plugin → skv_msg_text (operator only) */
	SKV_MSG_POLICY_SWAP = 50, /* skv_msg_policy_swap → skv_msg_text (operator only) */
	SKV_MSG_SEQ_DROP_NAME = 51, /* skv_msg_seq_of → skv_msg_text: a detached sequence */

	SKV_MSG_SEQ_PARK = 53,    /* skv_msg_seq_of → skv_msg_text: a detached sequence, to disk */
	SKV_MSG_SEQ_RESUME = 54,  /* skv_msg_seq_of → skv_msg_text: a parked sequence, to memory */
	SKV_MSG_SEQ_EXPORT = 55,  /* skv_msg_seq_of → skv_msg_file, fd: a pipe with the file of a parked sequence */
	SKV_MSG_SEQ_IMPORT = 56,  /* skv_msg_user, fd: such a file, or a pipe with one → skv_msg_text (operator only) */

	/* of another daemon, in place of HELLO */
	SKV_MSG_HANDOVER = 52, /* skv_msg_handover, fd: a socket, where everything comes then; no reply but ERROR (operator only) */
};

struct skv_msg_header {
	uint32_t length; /* of the whole message, this header included */
	uint16_t type;   /* enum skv_msg_type, | SKV_REPLY */
	uint16_t n_fds;  /* file descriptors that came with it */
	uint32_t serial;
	uint32_t reserved; /* 0 */
};

struct skv_msg_error {
	int32_t error; /* errno value, positive */
	char text[SKV_TEXT_MAX];
};

struct skv_msg_hello {
	uint32_t version_min, version_max; /* that the client supports */
	uint64_t features;                 /* bits; none defined in version 1 */
	char program[SKV_NAME_MAX];        /* shown by sparsekvctl */
};
struct skv_msg_hello_ok {
	uint32_t version;
	uint32_t client;
	uint64_t features;
	uint64_t control_bytes;
	char daemon[SKV_NAME_MAX]; /* its version */
};

/*
 * A client of this process whose connection ended: nothing of the process has its memory mapped any more, nor will write
 * to it, so it need not be kept until the process ends.
 */
struct skv_msg_client {
	uint32_t client;
	uint32_t reserved;
};

/*
 * A client whose daemon died, or was stopped and has left everything to this one. It says what it has: sessions, sequences, pages on
 * lease. All else that the daemon has of it (answers that never came) is let go with RECONNECT_DONE. Before that, requests that may
 * have been carried out already can be sent again: SEQ_DETACH and SEQ_DROP of a sequence that is not held are no error, nor is
 * SEQ_RELEASE of pages that are not shared.
 */
struct skv_msg_reconnect {
	struct skv_msg_hello hello;
	uint32_t client; /* as the daemon before called it */
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
 * Bytes of a device's pool, at most: CUDA kernels number its rows, of 128 bytes at least, with 32 bits, and clients map
 * it twice.
 */
#define SKV_DEVICE_POOL_MAX ((uint64_t)1 << 38)
struct skv_msg_open {
	struct skv_wire_model model;
	uint8_t device_uuid[SKV_UUID_BYTES]; /* not all 0: of the device, whatever its number */
	char spec[SKV_SPEC_MAX];
};
/* A policy as a session, or a sequence of it, is to run it. */
struct skv_msg_policy {
	uint64_t generation; /* POLICY_FIND: 0 */
	uint32_t plugin; /* id of the file that the fd is of */
	uint32_t reserved;
	char spec[SKV_SPEC_MAX];
};
struct skv_msg_open_ok {
	uint32_t session;
	uint32_t pool;
	uint64_t page_bytes;
	uint64_t segment_bytes;
	uint32_t pages_per_segment; /* all that fit; of a device one less, if they leave a rest */
	uint32_t max_segments; /* ids are below it; so many * segment_bytes addresses are to be reserved */
	uint64_t session_page_bytes;
	struct skv_msg_policy policy;
};
struct skv_msg_session {
	uint32_t session;
	uint32_t reserved;
};

struct skv_msg_seq_name {
	uint32_t session;
	uint32_t seq;        /* FORK: the parent; PREFIX_NEW: one whose memory has the prompt's token ids, whatever its length; else 0 */
	uint32_t max_tokens; /* NEW, PREFIX_NEW: 0 = the model's; else 0 */
	uint32_t n_tokens;   /* FORK: that the child has of the parent's, SKV_ALL = all; PREFIX_NEW: of the prompt; else 0 */
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
	uint32_t n_tokens; /* as many whole blocks as they have */
	uint32_t reserved;
};

struct skv_msg_lease_get {
	uint32_t session;
	uint32_t least; /* fewer than this many is -ENOSPC or -EDQUOT */
	uint32_t most;
	uint32_t reserved;
};
/* Pages as runs; tail: n_runs × skv_wire_run, at most SKV_WIRE_MAX_RUNS. */
struct skv_msg_runs {
	uint32_t session;
	uint32_t seq; /* SEQ_RELEASE; else 0 */
	uint32_t n_runs;
	uint32_t reserved;
};
struct skv_wire_run {
	uint32_t first, count; /* pages first … first + count - 1 */
};

struct skv_msg_spec {
	char spec[SKV_SPEC_MAX];
};
struct skv_msg_policy_ack {
	uint32_t session;
	int32_t error; /* 0: the session runs it; else errno, positive: the session stays with the old one */
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
	uint32_t segment; /* page ids segment * pages_per_segment … are in it */
	uint32_t handle;  /* enum skv_handle_kind */
	uint32_t reserved;
	uint64_t bytes;
};
#define SKV_IPC_HANDLE_BYTES 64u /* as CUDA has it for ever: CU_IPC_HANDLE_SIZE */
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
/* Which sessions: every one (1), or with 0 those that fit all of the four below, at least one of which is given. */
struct skv_msg_policy_swap {
	uint32_t all;
	uint32_t session; /* 0: not given */
	uint32_t client;  /* 0: not given */
	uint32_t uid;     /* -1: not given */
	char model[SKV_NAME_MAX]; /* "": not given */
	char spec[SKV_SPEC_MAX];
};
/* A named sequence; of a model with ranks, that of each rank. */
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
	uint32_t uid; /* whose sequence it will be */
	uint32_t reserved;
};
/* The request with this serial takes long, and goes on: who waits for its answer waits from now on. */
struct skv_msg_wait {
	uint32_t serial;
	uint32_t reserved;
};
#define SKV_HANDOVER_VERSION 1u
struct skv_msg_handover {
	uint32_t version; /* of what comes on that socket (daemon/handover.c) */
	uint32_t reserved;
};
/* Tail: length bytes of text. */
struct skv_msg_text {
	uint32_t length;
	uint32_t more; /* 1: another message with this serial follows */
};

/*
 * The control page: written by the daemon, read by every client. A client whose session's generation
 * differs from `policy_generation` asks POLICY_GET at its next step_begin.
 */
struct skv_control_page {
	_Atomic uint64_t policy_generation;
	_Atomic uint32_t recall_every; /* steps of a session for each in which it measures recall; 0: none */
	uint32_t n_fences;
	/*
	 * Of each client, at skv_client_row_of(its id): the id while its connection stands, else 0 or another's. A client
	 * that does not find its id there begins and commits no step any more. It stays when the daemon dies.
	 */
	_Atomic uint32_t fence[];
};
static inline uint32_t skv_client_row_of(uint32_t client)
{
	return client & 0xffff;
}

/* The session page: written by the client, shown by the daemon (never believed). */
struct skv_session_page {
	_Atomic uint64_t steps, prompt_tokens, decode_tokens;
	_Atomic uint64_t attended_tokens, causal_tokens;
	_Atomic uint64_t evicted_pages, stock_pages;
	_Atomic uint64_t policy_generation; /* that the session runs */
	_Atomic uint64_t recall_steps;      /* in which recall was measured */
	/* of each layer in the last of them: 1 + parts per million; 0: it attends to everything */
	_Atomic uint32_t recall[SKV_MAX_LAYERS];
};

/* ---- building and checking ------------------------------------------------------------------- */

/*
 * Is this packet well-formed, as sent by a client (to_daemon) or by the daemon? Checks the header
 * against the packet's size and fd count, type and direction, serial, the exact length for the type
 * with its counted tail, the number of fds, reserved fields, strings, errno values and runs. What an
 * id, a name or a size means is left to the caller. NULL when all is well, else what is wrong.
 */
const char *skv_wire_check(const void *packet, size_t bytes, unsigned n_fds, bool to_daemon);

/* Name of a message type ("LEASE_GET"), "?" for an unknown one. */
const char *skv_wire_name(uint16_t type);

/* One line that decodes a packet, broken or not, for SPARSEKV_DEBUG=wire. `prefix`: the peer and the direction. */
void skv_wire_dump(FILE *to, const char *prefix, const void *packet, size_t bytes, unsigned n_fds);

/*
 * Fill a fixed string of a message: cut to size - 1 bytes, what is not printable ASCII becomes '?', the
 * rest of the field zeros. `from` NULL is "".
 */
void skv_wire_string(char *to, size_t size, const char *from);

void skv_wire_from_model(struct skv_wire_model *to, const struct skv_model *from);
void skv_wire_to_model(struct skv_model *to, const struct skv_wire_model *from);

/* Is this model within the limits of types.h? NULL, else a text that names the field and the limits. */
const char *skv_model_check(const struct skv_model *m);

/*
 * The operators' socket of the daemon that has this socket: the default's, else the path with ".operators" behind it.
 * False: longer than `size`.
 */
bool skv_operators_socket(const char *socket, char *to, size_t size);

/* Sequence and policy names: 1 … SKV_NAME_MAX-1 printable ASCII bytes without space or '/'. */
bool skv_name_valid(const char *name);

/* The name that the daemon gives a sealed prefix: '/' and 32 hexadecimal digits. */
bool skv_prefix_name_valid(const char *name);

/* Names of models: the same, and '/' is as good as any other byte ("HuggingFaceTB/SmolLM2-135M"). */
bool skv_model_name_valid(const char *name);

#endif
