/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/wire.h - the protocol between sparsekvd and its clients; sparsekv-protocol(7) describes it in full.
 *
 * The socket is a UNIX socket of type SOCK_SEQPACKET. A packet is one message: a header, a struct that depends on the
 * message type, and for some types a tail of elements whose number is in the struct. All numbers are little-endian and
 * of fixed width; structs have no implicit padding. The length of a message must be exactly that of its type; any other
 * length ends the connection. The header, HELLO and ERROR never change. Any other struct may grow at its end in a later
 * version of the protocol, on which both sides agree in HELLO.
 *
 * A request has a serial number, which the client chooses and which is never 0. The reply has the same serial; its type
 * is that of the request with SKV_REPLY set, or SKV_MSG_ERROR. Notices, which the daemon sends without a request, have
 * serial 0. So has an ERROR about a packet that is too malformed to be answered, after which the daemon closes the
 * connection. The daemon announces memory once (SKV_MSG_SEGMENT with its fd); later messages refer to the memory by the
 * id of the segment.
 *
 * A string ends with a NUL within its field and has only printable ASCII, because strings reach logs, terminals and
 * JSON. Fill such a field with skv_wire_string().
 */
#ifndef SKV_WIRE_H
#define SKV_WIRE_H

#include <stdbool.h>
#include <stdio.h>
#include <sparsekv/types.h>

#define SKV_PROTO_VERSION 1u
#define SKV_WIRE_MAX 65536u   /* maximum of bytes of a message, header included */
/* maximum of bytes of a message that the daemon sends, small since the daemon buffers unread messages */
#define SKV_WIRE_MAX_SENT 8192u
#define SKV_WIRE_MAX_FDS 4u   /* maximum of file descriptors of a message */
#define SKV_SPEC_MAX 512u     /* maximum of bytes of a policy spec, NUL included */
#define SKV_TEXT_MAX 512u     /* maximum of bytes of an error text, NUL included */
#define SKV_WIRE_MAX_RUNS 4096u
#define SKV_CALL_PAGES 65536u /* maximum of pages that one request may lease, give back or release */
#define SKV_PLUGIN_BYTES_MAX (16u << 20) /* maximum of bytes of a policy's plugin file */
#define SKV_DEFAULT_SOCKET "/run/sparsekv/sparsekvd.sock"
/*
 * The operators' socket is in a folder of its own: the folder of the clients' socket may be mounted in containers, and
 * operators are users of the machine itself.
 */
#define SKV_DEFAULT_OPERATORS_SOCKET "/run/sparsekv-operators/sparsekvd.sock"

#define SKV_REPLY 0x8000u

/* Each comment names the struct of the request → the struct of the reply, and descriptors that are sent with it. */
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
	SKV_MSG_SEQ_RELEASE = 10, /* skv_msg_runs (shared pages to which seq no longer refers) → empty */
	/* skv_msg_lease_get → skv_msg_runs; the pages' segments are announced before the reply */
	SKV_MSG_LEASE_GET = 11,
	SKV_MSG_LEASE_PUT = 12,   /* skv_msg_runs → empty */
	SKV_MSG_POLICY_GET = 13,  /* skv_msg_session → skv_msg_policy, fd: policy's file */
	SKV_MSG_POLICY_ACK = 14,  /* skv_msg_policy_ack → empty */
	SKV_MSG_POLICY_FIND = 15, /* skv_msg_spec → skv_msg_policy, fd: policy's file */
	SKV_MSG_CLIENT_END = 16,  /* skv_msg_client → empty; the only request that is also allowed before HELLO */
	SKV_MSG_LEASE_ROOM = 17,  /* skv_msg_session → skv_msg_room */
	SKV_MSG_PREFIX_SEAL = 23, /* skv_msg_seal → empty */
	/* skv_msg_seq_name (seq: has the prompt's token ids) → skv_msg_seq_ok, fd: sequence memory */
	SKV_MSG_PREFIX_NEW = 24,

	/*
	 * a client of the previous daemon reconnects: it lists its sessions, sequences and leased pages, then ends the
	 * list
	 */
	SKV_MSG_RECONNECT = 18,         /* in place of HELLO: skv_msg_reconnect → skv_msg_hello_ok, fd: control page */
	SKV_MSG_RECONNECT_SESSION = 19, /* skv_msg_session → empty */
	SKV_MSG_RECONNECT_SEQ = 20,     /* skv_msg_seq → empty */
	SKV_MSG_RECONNECT_PAGES = 21,   /* skv_msg_runs (pages that the client has on lease) → empty */
	SKV_MSG_RECONNECT_DONE = 22,    /* skv_msg_client → empty: the daemon releases everything not listed */

	SKV_MSG_SEGMENT = 32,      /* notice: skv_msg_segment, fd: the segment */
	/* notice: skv_msg_segment without fd: the client unmaps the segment, then sends SEGMENT_ACK */
	SKV_MSG_SEGMENT_GONE = 33,
	SKV_MSG_SEGMENT_ACK = 34,  /* skv_msg_segment → empty */
	/* notice: skv_msg_segment_ipc: announces a segment that has a CUDA IPC handle instead of an fd */
	SKV_MSG_SEGMENT_IPC = 35,
	SKV_MSG_WAIT = 36,         /* notice, once a second: skv_msg_wait: a request is still in progress */

	/* requests of sparsekvctl; most replies are skv_msg_text: JSON in one or more messages */
	SKV_MSG_QUERY = 48,       /* skv_msg_query → skv_msg_text … */
	SKV_MSG_POLICY_LOAD = 49, /* skv_msg_name, fd: the plugin → skv_msg_text (operator only) */
	SKV_MSG_POLICY_SWAP = 50, /* skv_msg_policy_swap → skv_msg_text (operator only) */
	SKV_MSG_SEQ_DROP_NAME = 51, /* skv_msg_seq_of → skv_msg_text: drops a detached sequence */

	SKV_MSG_SEQ_PARK = 53,    /* skv_msg_seq_of → skv_msg_text: writes a detached sequence to disk */
	SKV_MSG_SEQ_RESUME = 54,  /* skv_msg_seq_of → skv_msg_text: reads a parked sequence into memory */
	SKV_MSG_SEQ_EXPORT = 55,  /* skv_msg_seq_of → skv_msg_file, fd: a pipe with the file of a parked sequence */
	/* skv_msg_user, fd: file of a parked sequence, or a pipe with it → skv_msg_text (operator only) */
	SKV_MSG_SEQ_IMPORT = 56,
};

struct skv_msg_header {
	uint32_t length; /* bytes of the whole message, this header included */
	uint16_t type;   /* enum skv_msg_type, with SKV_REPLY set in a reply */
	uint16_t n_fds;  /* number of file descriptors that are sent with the message */
	uint32_t serial;
	uint32_t reserved; /* must be 0 */
};

struct skv_msg_error {
	int32_t error; /* positive errno */
	char text[SKV_TEXT_MAX];
};

struct skv_msg_hello {
	uint32_t version_min, version_max; /* range of protocol versions that the client supports */
	uint64_t features;                 /* bits of optional features; version 1 of the protocol defines none */
	char program[SKV_NAME_MAX];        /* name of the client's program, shown by sparsekvctl */
};
struct skv_msg_hello_ok {
	uint32_t version;
	uint32_t client;
	uint64_t features;
	uint64_t control_bytes;
	char daemon[SKV_NAME_MAX]; /* version of the daemon's program */
};

/*
 * In CLIENT_END, names a client of the sender's process whose connection has ended. The process has unmapped the memory
 * of this client and will not write to it any more, so the daemon need not keep the memory until the process exits.
 */
struct skv_msg_client {
	uint32_t client;
	uint32_t reserved;
};

/*
 * The first message of a client whose daemon died, or stopped and left all state to the next daemon. The client then
 * lists its sessions, sequences and leased pages. With RECONNECT_DONE the daemon releases everything else that it has
 * for this client, such as pages of a reply that never arrived. Until RECONNECT_DONE the client may repeat requests
 * that the previous daemon may already have executed: SEQ_DETACH and SEQ_DROP of a sequence that is not held are no
 * error, nor is SEQ_RELEASE of pages that are not shared.
 */
struct skv_msg_reconnect {
	struct skv_msg_hello hello;
	uint32_t client; /* id that the previous daemon gave the client */
	uint32_t reserved;
};

struct skv_wire_model {
	uint32_t n_layers, n_heads, n_kv_heads, head_dim;
	uint32_t kv_dtype, max_tokens;
	float scale; /* softmax scale, an IEEE 754 single; 0: 1/sqrt(head_dim) */
	uint32_t rank, n_ranks;
	uint32_t device; /* 0: host memory; 1 + i: CUDA device i */
	char name[SKV_NAME_MAX];
};
#define SKV_UUID_BYTES 16u

/*
 * Maximum of bytes of a pool on a device. CUDA kernels number the rows of a pool with 32 bits, a row has at least 128
 * bytes, and clients map the pool twice.
 */
#define SKV_DEVICE_POOL_MAX ((uint64_t)1 << 38)
struct skv_msg_open {
	struct skv_wire_model model;
	/* if not all 0: UUID of the model's device, which counts instead of model.device */
	uint8_t device_uuid[SKV_UUID_BYTES];
	char spec[SKV_SPEC_MAX];
};
/* Policy that a session, or a sequence of a session, has to run. */
struct skv_msg_policy {
	uint64_t generation; /* generation of policies (struct skv_control_page); 0 in the reply to POLICY_FIND */
	uint32_t plugin; /* id of the plugin whose file is sent as the fd */
	uint32_t reserved;
	char spec[SKV_SPEC_MAX];
};
struct skv_msg_open_ok {
	uint32_t session;
	uint32_t pool;
	uint64_t page_bytes;
	uint64_t segment_bytes;
	/* whole pages in a segment; on a device one fewer, if pages do not fill a segment exactly */
	uint32_t pages_per_segment;
	/* segment ids are below this number; the client reserves max_segments * segment_bytes of address space */
	uint32_t max_segments;
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
	 * SEQ_FORK: the parent. PREFIX_NEW: a sequence whose memory has the prompt's token ids, also beyond its
	 * committed length. Otherwise 0
	 */
	uint32_t seq;
	uint32_t max_tokens; /* SEQ_NEW, PREFIX_NEW: maximum of tokens, 0 = max_tokens of the model. Otherwise 0 */
	/*
	 * SEQ_FORK: number of tokens that the child gets from the parent, SKV_ALL = all. PREFIX_NEW: number of tokens
	 * of the prompt. Otherwise 0
	 */
	uint32_t n_tokens;
	char name[SKV_NAME_MAX]; /* "" = anonymous, allowed in SEQ_NEW, PREFIX_NEW and SEQ_FORK */
};
struct skv_msg_seq_ok {
	uint32_t seq;
	uint32_t max_tokens;
	uint64_t bytes; /* bytes of the sequence memory */
};
struct skv_msg_seq {
	uint32_t session;
	uint32_t seq;
};

struct skv_msg_seal {
	uint32_t session;
	uint32_t seq;
	uint32_t n_tokens; /* the whole blocks within the first n_tokens tokens are sealed */
	uint32_t reserved;
};

struct skv_msg_lease_get {
	uint32_t session;
	uint32_t least; /* if fewer pages are available, the request fails with ENOSPC or EDQUOT */
	uint32_t most;
	uint32_t reserved;
};
/* A list of pages as runs of consecutive page ids. Tail: n_runs × struct skv_wire_run, at most SKV_WIRE_MAX_RUNS. */
struct skv_msg_runs {
	uint32_t session;
	uint32_t seq; /* SEQ_RELEASE: the sequence; otherwise 0 */
	uint32_t n_runs;
	uint32_t reserved;
};
struct skv_wire_run {
	uint32_t first, count; /* page ids first to first + count - 1 */
};

struct skv_msg_spec {
	char spec[SKV_SPEC_MAX];
};
struct skv_msg_policy_ack {
	uint32_t session;
	/* 0: the session runs the new policy. Otherwise a positive errno, and the session keeps the old policy */
	int32_t error;
	uint64_t generation;
	char text[SKV_TEXT_MAX];
};

enum skv_handle_kind {
	SKV_HANDLE_MEMFD = 0,    /* a sealed memfd */
	SKV_HANDLE_CUDA_FD = 1,  /* POSIX fd of a CUDA VMM allocation, for cuMemImportFromShareableHandle() */
	SKV_HANDLE_CUDA_IPC = 2, /* no fd, but the bytes of a CUipcMemHandle, for cuIpcOpenMemHandle() */
};
struct skv_msg_segment {
	uint32_t pool;
	/* number of the segment in its pool; the first page of the segment has id segment * pages_per_segment */
	uint32_t segment;
	uint32_t handle;  /* enum skv_handle_kind */
	uint32_t reserved;
	uint64_t bytes;
};
#define SKV_IPC_HANDLE_BYTES 64u /* equals CU_IPC_HANDLE_SIZE, a part of CUDA's ABI that does not change */
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
/* Number of pages that LEASE_GET could lease now. */
struct skv_msg_room {
	uint64_t pages;
};
struct skv_msg_name {
	char name[SKV_NAME_MAX];
};
/*
 * Selects the sessions whose policy is swapped. `all` is 1: every session. `all` is 0: sessions that match all given
 * criteria among `session`, `client`, `uid` and `model`, of which at least one is given.
 */
struct skv_msg_policy_swap {
	uint32_t all;
	uint32_t session; /* 0: not given */
	uint32_t client;  /* 0: not given */
	uint32_t uid;     /* -1: not given */
	char model[SKV_NAME_MAX]; /* "": not given */
	char spec[SKV_SPEC_MAX];
};
/* Names a sequence; for a model with tensor-parallel ranks, the sequences of this name of all ranks. */
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
	uint32_t uid; /* user that will own the imported sequence */
	uint32_t reserved;
};
/* Tells that the request with this serial is still in progress. The client restarts its timeout for the reply. */
struct skv_msg_wait {
	uint32_t serial;
	uint32_t reserved;
};
/* A part of a text. Tail: `length` bytes of the text. */
struct skv_msg_text {
	uint32_t length;
	uint32_t more; /* 1: another message of the same reply, with the same serial, follows */
};

/*
 * The control page, which the daemon writes and every client reads. If the generation of a session differs from
 * `policy_generation`, its client sends POLICY_GET at the beginning of the session's next step.
 */
struct skv_control_page {
	_Atomic uint64_t policy_generation;
	_Atomic uint32_t recall_every; /* a session measures recall in one step of every `recall_every`; 0: never */
	uint32_t n_fences;
	/*
	 * fence[skv_client_row_of(id)] is a client's id while the client is connected, otherwise 0 or the id of another
	 * client. A client that does not find its id there neither begins nor commits steps. The id stays there when
	 * the daemon dies.
	 */
	_Atomic uint32_t fence[];
};
static inline uint32_t skv_client_row_of(uint32_t client)
{
	return client & 0xffff;
}

/* The session page, which the client writes. The daemon shows the numbers, and never relies on them. */
struct skv_session_page {
	_Atomic uint64_t steps, prompt_tokens, decode_tokens;
	_Atomic uint64_t attended_tokens, causal_tokens;
	_Atomic uint64_t evicted_pages, stock_pages;
	_Atomic uint64_t policy_generation; /* generation of the policy that the session runs */
	_Atomic uint64_t recall_steps;      /* number of steps in which recall was measured */
	/* recall of each layer when last measured: 1 + parts per million; 0: the layer attends to all tokens */
	_Atomic uint32_t recall[SKV_MAX_LAYERS];
};

/* ---- building and checking ------------------------------------------------------------------- */

/*
 * Checks that a packet from a client (to_daemon) or from the daemon is well-formed: header against the packet's size
 * and number of fds, type and direction, serial, exact length for the type and the tail, number of fds of the type,
 * reserved fields, strings, errno values and runs. The caller checks whether ids, names and sizes are meaningful.
 * Returns NULL if the packet is well-formed, otherwise an error text.
 */
const char *skv_wire_check(const void *packet, size_t bytes, unsigned n_fds, bool to_daemon);

/* Returns the name of a message type ("LEASE_GET"), or "?" for an unknown one. */
const char *skv_wire_name(uint16_t type);

/*
 * Prints a packet, valid or not, as one line, for SPARSEKV_DEBUG=wire. `prefix` is printed at the beginning of the
 * line, and names the peer and the direction.
 */
void skv_wire_dump(FILE *to, const char *prefix, const void *packet, size_t bytes, unsigned n_fds);

/*
 * Copies a string into a message's field of fixed size: truncates the string to size - 1 bytes, replaces bytes other
 * than printable ASCII by '?', and fills the rest of the field with zeros. `from` NULL means "".
 */
void skv_wire_string(char *to, size_t size, const char *from);

void skv_wire_from_model(struct skv_wire_model *to, const struct skv_model *from);
void skv_wire_to_model(struct skv_model *to, const struct skv_wire_model *from);

/*
 * Checks a model description against the limits of sparsekv/types.h. Returns NULL, or a text that names the invalid
 * field and its limits.
 */
const char *skv_model_check(const struct skv_model *m);

/*
 * Writes the path of the operators' socket of the daemon whose clients' socket is `socket`: the default operators'
 * socket for the default socket, otherwise `socket` with ".operators" appended. Returns false if the path does not fit
 * into `size` bytes.
 */
bool skv_operators_socket(const char *socket, char *to, size_t size);

/*
 * Returns whether the name of a sequence or policy is valid: 1 to SKV_NAME_MAX - 1 bytes of printable ASCII without
 * space or '/'.
 */
bool skv_name_valid(const char *name);

/* Returns whether this is the name of a sealed prefix, which the daemon makes: '/' and 32 hexadecimal digits. */
bool skv_prefix_name_valid(const char *name);

/*
 * Returns whether the name of a model is valid: as skv_name_valid(), but '/' is allowed ("HuggingFaceTB/SmolLM2-135M").
 */
bool skv_model_name_valid(const char *name);

#endif
