/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire protocol: every message in valid form, then as a hostile peer might send it.
 *
 * Packets end right before a page without access, so a read beyond a packet always faults.
 */
#include <check.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "common/wire.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/policies.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define ROOM (1u << 17) /* more than SKV_WIRE_MAX */

static char *fence; /* the first byte that must not be touched */

/* ---- one well-formed packet of each kind ----------------------------------------------------- */

struct packet {
	size_t bytes;
	unsigned n_fds;
	bool to_daemon;
	const char *name;
	char data[2048];
};

/* Makes a packet of a type with `body` behind its header, and `tail` behind that. */
static void make(struct packet *p, uint16_t type, bool to_daemon, unsigned n_fds, uint32_t serial, const void *body,
                 size_t body_bytes, const void *tail, size_t tail_bytes)
{
	struct skv_msg_header h = {
		.length = (uint32_t)(sizeof(h) + body_bytes + tail_bytes), .type = type, .n_fds = (uint16_t)n_fds, .serial = serial};

	*p = (struct packet){.bytes = h.length, .n_fds = n_fds, .to_daemon = to_daemon};
	ck_assert_uint_le(p->bytes, sizeof(p->data));
	memcpy(p->data, &h, sizeof(h));
	if (body_bytes)
		memcpy(p->data + sizeof(h), body, body_bytes);
	if (tail_bytes)
		memcpy(p->data + sizeof(h) + body_bytes, tail, tail_bytes);
}

#define MAX_PACKETS 80
static struct packet packets[MAX_PACKETS];
static unsigned n_packets;

/* A packet of a type: its name, fds, body, and the data behind the body. */
struct sample {
	uint16_t type;
	const char *name;
	unsigned n_fds;
	const void *body;
	size_t body_bytes;
	const void *tail;
	size_t tail_bytes;
};
#define TYPE(type) SKV_MSG_##type, #type
#define BODY(body) &(body), sizeof(body), NULL, 0
#define NO_BODY NULL, 0, NULL, 0

static void add(const struct sample *samples, size_t n, uint16_t flag, bool to_daemon, uint32_t serial)
{
	for (const struct sample *x = samples; x < samples + n; x++) {
		ck_assert_uint_lt(n_packets, MAX_PACKETS);
		make(&packets[n_packets], x->type | flag, to_daemon, x->n_fds, serial, x->body, x->body_bytes, x->tail, x->tail_bytes);
		packets[n_packets++].name = x->name;
	}
}

static void make_requests(void)
{
	struct skv_msg_hello hello = {.version_min = 1, .version_max = 1, .features = 3, .program = "test"};
	struct skv_msg_open open = {.model = raw_model("reference"), .spec = POLICY_PAGES "?budget=0.25&layers=2,7,12"};
	struct skv_msg_session session = {.session = 5};
	struct skv_msg_seq_name seq_new = {.session = 5, .max_tokens = 4096, .name = "chat-17"};
	struct skv_msg_seq_name seq_attach = {.session = 5, .name = "chat-17"}, seq_fork = {.session = 5, .seq = 9};
	struct skv_msg_seq_name prefix_new = {.session = 5, .seq = 9, .max_tokens = 4096, .n_tokens = 700, .name = "chat-17"};
	struct skv_msg_seal seal = {.session = 5, .seq = 9, .n_tokens = 512};
	struct skv_msg_seq seq = {.session = 5, .seq = 9};
	struct skv_msg_runs lease = {.session = 5, .n_runs = 2};
	struct skv_msg_runs release = {.session = 5, .seq = 9, .n_runs = 2};
	struct skv_wire_run runs[2] = {{.first = 16, .count = 4}, {.first = SKV_PTE_ID_MASK, .count = 1}};
	struct skv_msg_lease_get get = {.session = 5, .least = 1, .most = 64};
	struct skv_msg_policy_ack ack = {.session = 5, .error = EINVAL, .generation = 3, .text = "why"};
	struct skv_msg_spec spec = {.spec = POLICY_BOUNDS "?budget=0.25"};
	struct skv_msg_segment segment = {.pool = 1, .segment = 2, .bytes = 1 << 26};
	struct skv_msg_client client = {.client = 65};
	struct skv_msg_reconnect reconnect = {.hello = {.version_min = 1, .version_max = 2, .program = "engine"}, .client = 65};
	struct skv_msg_query query = {.what = SKV_QUERY_STATUS};
	struct skv_msg_name name = {.name = POLICY_PAGES};
	struct skv_msg_policy_swap swap = {.uid = UINT32_MAX, .model = "org/tiny", .spec = "full"};
	struct skv_msg_seq_of seq_of = {.uid = 1000, .model = "reference", .name = "chat-17"};
	struct skv_msg_user user = {.uid = 1000};

	const struct sample requests[] = {
		{TYPE(HELLO), 0, BODY(hello)}, {TYPE(OPEN), 0, BODY(open)}, {TYPE(CLOSE), 0, BODY(session)},
		{TYPE(SEQ_NEW), 0, BODY(seq_new)}, {TYPE(SEQ_ATTACH), 0, BODY(seq_attach)},
		{TYPE(SEQ_FORK), 0, BODY(seq_fork)}, {TYPE(SEQ_DETACH), 0, BODY(seq)},
		{TYPE(SEQ_DROP), 0, BODY(seq)}, {TYPE(SEQ_DROP_NAME), 0, BODY(seq_of)},
		{TYPE(SEQ_RELEASE), 0, &release, sizeof(release), runs, sizeof(runs)},
		{TYPE(LEASE_GET), 0, BODY(get)}, {TYPE(PREFIX_SEAL), 0, BODY(seal)}, {TYPE(PREFIX_NEW), 0, BODY(prefix_new)},
		{TYPE(LEASE_PUT), 0, &lease, sizeof(lease), runs, sizeof(runs)},
		{TYPE(POLICY_GET), 0, BODY(session)}, {TYPE(POLICY_ACK), 0, BODY(ack)},
		{TYPE(POLICY_FIND), 0, BODY(spec)}, {TYPE(POLICY_LOAD), 1, BODY(name)},
		{TYPE(POLICY_SWAP), 0, BODY(swap)}, {TYPE(CLIENT_END), 0, BODY(client)},
		{TYPE(LEASE_ROOM), 0, BODY(session)}, {TYPE(RECONNECT), 0, BODY(reconnect)},
		{TYPE(RECONNECT_SESSION), 0, BODY(session)}, {TYPE(RECONNECT_SEQ), 0, BODY(seq)},
		{TYPE(RECONNECT_PAGES), 0, &lease, sizeof(lease), runs, sizeof(runs)}, {TYPE(RECONNECT_DONE), 0, BODY(client)},
		{TYPE(SEGMENT_ACK), 0, BODY(segment)}, {TYPE(QUERY), 0, BODY(query)}, {TYPE(SEQ_PARK), 0, BODY(seq_of)},
		{TYPE(SEQ_RESUME), 0, BODY(seq_of)}, {TYPE(SEQ_EXPORT), 0, BODY(seq_of)}, {TYPE(SEQ_IMPORT), 1, BODY(user)},
	};

	add(requests, sizeof(requests) / sizeof(*requests), 0, true, 7);
}

static void make_answers(void)
{
	struct skv_msg_error error = {.error = ENOSPC, .text = "pool 1 is full"};
	struct skv_msg_hello_ok hello = {.version = 1, .client = 4, .control_bytes = 4096, .daemon = "0.1.0"};
	struct skv_msg_open_ok open = {
		.session = 5, .pool = 1, .page_bytes = 8192, .segment_bytes = 1 << 26, .pages_per_segment = 8192, .max_segments = 64,
		.session_page_bytes = 4096, .policy = {.generation = 1, .plugin = 2, .spec = "full"},
	};
	struct skv_msg_seq_ok seq = {.seq = 9, .max_tokens = 4096, .bytes = 1 << 20};
	struct skv_msg_runs lease = {.session = 5, .n_runs = 1}, none = {.session = 5};
	struct skv_wire_run run = {.first = 0, .count = SKV_PTE_ID_MASK + 1};
	struct skv_msg_policy policy = {.generation = 1, .plugin = 2, .spec = "full"};
	struct skv_msg_segment segment = {.pool = 1, .segment = 2, .bytes = 1 << 26};
	struct skv_msg_segment_ipc ipc = {segment, {0x7f, 0, 0xff}};
	static const char json[] = "{\"uptime\":1\n";
	struct skv_msg_text text = {.length = sizeof(json) - 1, .more = 1};
	struct skv_msg_room room = {.pages = 4096};
	struct skv_msg_file file = {.bytes = 1 << 20};
	struct skv_msg_wait wait = {.serial = 7};
	const struct sample replies[] = {
		{TYPE(LEASE_ROOM), 0, BODY(room)}, {TYPE(RECONNECT), 1, BODY(hello)}, {TYPE(RECONNECT_SESSION), 0, NO_BODY},
		{TYPE(RECONNECT_SEQ), 0, NO_BODY}, {TYPE(RECONNECT_PAGES), 0, NO_BODY}, {TYPE(RECONNECT_DONE), 0, NO_BODY},
		{TYPE(HELLO), 1, BODY(hello)}, {TYPE(OPEN), 2, BODY(open)}, {TYPE(CLOSE), 0, NO_BODY},
		{TYPE(SEQ_NEW), 1, BODY(seq)}, {TYPE(SEQ_ATTACH), 1, BODY(seq)},
		{TYPE(SEQ_FORK), 1, BODY(seq)}, {TYPE(SEQ_DETACH), 0, NO_BODY}, {TYPE(SEQ_DROP), 0, NO_BODY},
		{TYPE(SEQ_RELEASE), 0, NO_BODY}, {TYPE(PREFIX_SEAL), 0, NO_BODY}, {TYPE(PREFIX_NEW), 1, BODY(seq)},
		{TYPE(SEQ_DROP_NAME), 0, &text, sizeof(text), json, sizeof(json) - 1},
		{TYPE(LEASE_GET), 0, &lease, sizeof(lease), &run, sizeof(run)},
		{TYPE(LEASE_GET), 0, BODY(none)}, {TYPE(LEASE_PUT), 0, NO_BODY},
		{TYPE(POLICY_GET), 1, BODY(policy)}, {TYPE(POLICY_FIND), 1, BODY(policy)},
		{TYPE(POLICY_ACK), 0, NO_BODY}, {TYPE(SEGMENT_ACK), 0, NO_BODY}, {TYPE(CLIENT_END), 0, NO_BODY},
		{TYPE(POLICY_LOAD), 0, &text, sizeof(text), json, sizeof(json) - 1},
		{TYPE(POLICY_SWAP), 0, &text, sizeof(text), json, sizeof(json) - 1},
		{TYPE(QUERY), 0, &text, sizeof(text), json, sizeof(json) - 1},
		{TYPE(SEQ_PARK), 0, &text, sizeof(text), json, sizeof(json) - 1},
		{TYPE(SEQ_RESUME), 0, &text, sizeof(text), json, sizeof(json) - 1},
		{TYPE(SEQ_EXPORT), 1, BODY(file)},
		{TYPE(SEQ_IMPORT), 0, &text, sizeof(text), json, sizeof(json) - 1},
	};
	const struct sample notices[] = {
		{TYPE(ERROR), 0, BODY(error)}, {TYPE(SEGMENT), 1, BODY(segment)},
		{TYPE(SEGMENT_GONE), 0, BODY(segment)}, {TYPE(SEGMENT_IPC), 0, BODY(ipc)},
		{TYPE(WAIT), 0, BODY(wait)},
	};

	add(replies, sizeof(replies) / sizeof(*replies), SKV_REPLY, false, 7);
	add(notices, sizeof(notices) / sizeof(*notices), 0, false, 0);
	add(notices, 1, 0, false, 7); /* an error may answer a request, too */
}

static void set_up_packets(void)
{
	char *p = mmap(NULL, ROOM + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_eq(mprotect(p + ROOM, 4096, PROT_NONE), 0);
	fence = p + ROOM;
	n_packets = 0;
	make_requests();
	make_answers();
}

/* Copies the first `bytes` of a packet right before the fence, at the alignment that results. */
static char *fenced(const struct packet *p, size_t bytes)
{
	return memcpy(fence - bytes, p->data, bytes);
}

static const char *check(const struct packet *p)
{
	return skv_wire_check(fenced(p, p->bytes), p->bytes, p->n_fds, p->to_daemon);
}

/* Dumps a packet; the dump must be a single line, whatever the packet is. */
static const char *dump(const void *packet, size_t bytes, unsigned n_fds)
{
	static char line[8192];
	FILE *to = fmemopen(line, sizeof(line), "w");
	size_t n;

	skv_wire_dump(to, "c1 <", packet, bytes, n_fds);
	fclose(to);
	n = strlen(line);
	ck_assert_uint_lt(n, sizeof(line) - 1);
	ck_assert_int_eq(line[n - 1], '\n');
	for (size_t i = 0; i + 1 < n; i++)
		ck_assert_msg(line[i] >= 0x20 && line[i] < 0x7f, "byte %d in \"%s\"", line[i], line);
	line[n - 1] = '\0';
	return line;
}

START_TEST(well_formed)
{
	for (unsigned i = 0; i < n_packets; i++) {
		const struct packet *p = &packets[i];
		const char *wrong = check(p), *line;

		ck_assert_msg(!wrong, "%s: %s", p->name, wrong);
		line = dump(fenced(p, p->bytes), p->bytes, p->n_fds);
		ck_assert_ptr_nonnull(strstr(line, p->name));
		ck_assert_ptr_null(strstr(line, "MALFORMED"));
		/* a message of one side is refused from the other */
		ck_assert_ptr_nonnull(skv_wire_check(fenced(p, p->bytes), p->bytes, p->n_fds, !p->to_daemon));
	}
}
END_TEST

START_TEST(names)
{
	ck_assert_str_eq(skv_wire_name(SKV_MSG_LEASE_GET), "LEASE_GET");
	ck_assert_str_eq(skv_wire_name(SKV_MSG_LEASE_GET | SKV_REPLY), "LEASE_GET");
	ck_assert_str_eq(skv_wire_name(SKV_MSG_ERROR), "ERROR");
	ck_assert_str_eq(skv_wire_name(SKV_MSG_ERROR | SKV_REPLY), "?");
	ck_assert_str_eq(skv_wire_name(0), "?");
	ck_assert_str_eq(skv_wire_name(0x7fff), "?");
}
END_TEST

START_TEST(dumps)
{
	struct packet p;
	struct skv_msg_runs runs = {.session = 5, .n_runs = 10};
	struct skv_wire_run many[10];

	make(&p, SKV_MSG_LEASE_GET, true, 0, 12,
	     &(struct skv_msg_lease_get){.session = 5, .least = 1, .most = 64}, sizeof(struct skv_msg_lease_get), NULL, 0);
	ck_assert_str_eq(dump(p.data, p.bytes, 0), "c1 < LEASE_GET #12 32 bytes session=5 least=1 most=64");
	ck_assert_str_eq(dump(p.data, p.bytes - 8, 0),
	                 "c1 < LEASE_GET #12 24 bytes session=5 least=1 MALFORMED: the length field "
	                 "does not match the packet");
	ck_assert_str_eq(dump(p.data, 3, 1), "c1 < 3 bytes 1 fd MALFORMED: shorter than a header");
	for (uint32_t i = 0; i < 10; i++)
		many[i] = (struct skv_wire_run){i * 10, i + 1};
	make(&p, SKV_MSG_LEASE_PUT, true, 0, 13, &runs, sizeof(runs), many, sizeof(many));
	ck_assert_str_eq(dump(p.data, p.bytes, 0), "c1 < LEASE_PUT #13 112 bytes session=5 n_runs=10 "
	                                           "runs=0+1,10+2,20+3,30+4,40+5,50+6,60+7,70+8,...");
	make(&p, SKV_MSG_SEGMENT_IPC, false, 0, 0,
	     &(struct skv_msg_segment_ipc){{.pool = 1, .handle = SKV_HANDLE_CUDA_IPC}, {0x1b, 0xff}},
	     sizeof(struct skv_msg_segment_ipc), NULL, 0);
	ck_assert_ptr_nonnull(strstr(dump(p.data, p.bytes, 0), "segment.handle=2 segment.bytes=0 ipc_handle=1bff00"));
	make(&p, SKV_MSG_ERROR, false, 0, 13, &(struct skv_msg_error){.error = 28, .text = "a \"\x1b[2J\n\\"},
	     sizeof(struct skv_msg_error), NULL, 0);
	ck_assert_str_eq(dump(p.data, p.bytes, 0),
	                 "c1 < ERROR #13 532 bytes error=28 text=\"a \\\"\\x1b[2J\\x0a\\\\\" "
	                 "MALFORMED: a string has a byte that is not printable ASCII");
	p.data[4] = 99;
	ck_assert_str_eq(dump(p.data, p.bytes, 2),
	                 "c1 < ? #13 532 bytes 2 fds MALFORMED: unknown message type");
}
END_TEST

/* ---- hostile peers --------------------------------------------------------------------------- */

#define ck_assert_wrong(p, says)                                                                            \
	do {                                                                                                \
		const char *wrong_ = check(p);                                                              \
		ck_assert_msg(wrong_ && strstr(wrong_, says), "%s: \"%s\", expected \"%s\"", (p)->name,     \
		              wrong_ ? wrong_ : "nothing wrong", says);                                     \
	} while (0)

/* Truncated packets, with the old length field or a matching one: no read beyond the end, and never accepted. */
START_TEST(truncated)
{
	for (unsigned i = 0; i < n_packets; i++) {
		for (size_t bytes = 0; bytes < packets[i].bytes; bytes++) {
			struct packet p = packets[i];
			uint32_t length = (uint32_t)bytes;

			ck_assert_ptr_nonnull(skv_wire_check(fenced(&p, bytes), bytes, p.n_fds, p.to_daemon));
			dump(fenced(&p, bytes), bytes, p.n_fds);
			memcpy(p.data, &length, sizeof(length));
			ck_assert_ptr_nonnull(skv_wire_check(fenced(&p, bytes), bytes, p.n_fds, p.to_daemon));
			dump(fenced(&p, bytes), bytes, p.n_fds);
		}
	}
}
END_TEST

START_TEST(too_long)
{
	for (unsigned i = 0; i < n_packets; i++) {
		struct packet p = packets[i];
		uint32_t length = (uint32_t)p.bytes + 8;

		memcpy(p.data, &length, sizeof(length));
		p.bytes = length;
		ck_assert_ptr_nonnull(check(&p));
	}
}
END_TEST

START_TEST(wrong_fds)
{
	for (unsigned i = 0; i < n_packets; i++) {
		for (unsigned n = 0; n <= SKV_WIRE_MAX_FDS + 1; n++) {
			struct packet p = packets[i];
			uint16_t said = (uint16_t)n;

			if (n == p.n_fds)
				continue;
			p.n_fds = n;
			ck_assert_wrong(&p, "not the one announced");
			memcpy(p.data + offsetof(struct skv_msg_header, n_fds), &said, sizeof(said));
			ck_assert_wrong(&p, "not that of the message type");
		}
	}
}
END_TEST

START_TEST(wrong_serials)
{
	for (unsigned i = 0; i < n_packets; i++) {
		struct packet p = packets[i];
		struct skv_msg_header h;

		memcpy(&h, p.data, sizeof(h));
		if (h.type == SKV_MSG_ERROR)
			continue;
		h.serial = !h.serial;
		memcpy(p.data, &h, sizeof(h));
		ck_assert_wrong(&p, "have a serial");
	}
}
END_TEST

/* Only these types exist, with or without the reply bit; all other values are refused. */
START_TEST(unknown_types)
{
	char known[0x10000] = {0};

	for (unsigned i = 0; i < n_packets; i++) {
		struct skv_msg_header h;

		memcpy(&h, packets[i].data, sizeof(h));
		known[h.type] = 1;
	}
	for (unsigned type = 0; type < 0x10000; type++) {
		struct packet p;

		make(&p, (uint16_t)type, true, 0, 7, NULL, 0, NULL, 0);
		p.name = "empty";
		if (known[type])
			ck_assert_str_ne(skv_wire_name((uint16_t)type), "?");
		else
			ck_assert_wrong(&p, "unknown message type");
	}
}
END_TEST

static struct packet *find(uint16_t type)
{
	for (unsigned i = 0; i < n_packets; i++)
		if (((struct skv_msg_header *)(void *)packets[i].data)->type == type)
			return &packets[i];
	ck_abort_msg("no packet of type %u", type);
}

/* Sets one field of a message's struct to a value that must be refused. */
#define SPOIL(type, s, member, says, ...)                                                                   \
	do {                                                                                                \
		struct packet p_ = *find(type);                                                             \
		struct s body_;                                                                             \
		memcpy(&body_, p_.data + sizeof(struct skv_msg_header), sizeof(body_));                     \
		__typeof__(body_.member) value_ = __VA_ARGS__;                                              \
		memcpy(&body_.member, &value_, sizeof(value_));                                             \
		memcpy(p_.data + sizeof(struct skv_msg_header), &body_, sizeof(body_));                     \
		ck_assert_wrong(&p_, says);                                                                 \
	} while (0)

START_TEST(spoiled_fields)
{
	struct packet p = *find(SKV_MSG_CLOSE);

	p.data[12] = 1;
	ck_assert_wrong(&p, "the reserved field of the header");

	SPOIL(SKV_MSG_CLOSE, skv_msg_session, reserved, "reserved", 1);
	SPOIL(SKV_MSG_OPEN | SKV_REPLY, skv_msg_open_ok, policy.reserved, "reserved", 1);
	SPOIL(SKV_MSG_SEQ_NEW, skv_msg_seq_name, seq, "reserved", 1);
	SPOIL(SKV_MSG_SEQ_ATTACH, skv_msg_seq_name, seq, "reserved", 1);
	SPOIL(SKV_MSG_SEQ_ATTACH, skv_msg_seq_name, max_tokens, "reserved", 1);
	SPOIL(SKV_MSG_SEQ_NEW, skv_msg_seq_name, n_tokens, "reserved", 1);
	SPOIL(SKV_MSG_SEQ_ATTACH, skv_msg_seq_name, n_tokens, "reserved", 1);
	SPOIL(SKV_MSG_SEQ_FORK, skv_msg_seq_name, max_tokens, "reserved", 1);
	SPOIL(SKV_MSG_LEASE_PUT, skv_msg_runs, seq, "reserved", 1);
	SPOIL(SKV_MSG_LEASE_GET | SKV_REPLY, skv_msg_runs, seq, "reserved", 1);
	SPOIL(SKV_MSG_QUERY | SKV_REPLY, skv_msg_text, more, "flag", 2);
	SPOIL(SKV_MSG_ERROR, skv_msg_error, error, "errno", 0);
	SPOIL(SKV_MSG_ERROR, skv_msg_error, error, "errno", -EINVAL);
	SPOIL(SKV_MSG_POLICY_ACK, skv_msg_policy_ack, error, "errno", 4096);

	SPOIL(SKV_MSG_LEASE_PUT, skv_msg_runs, n_runs, "number of runs does not match", 1);
	SPOIL(SKV_MSG_LEASE_PUT, skv_msg_runs, n_runs, "number of runs does not match", 3);
	SPOIL(SKV_MSG_LEASE_PUT, skv_msg_runs, n_runs, "more runs", SKV_WIRE_MAX_RUNS + 1);
	/* times 8 this overflows 32 bits and becomes 16 */
	SPOIL(SKV_MSG_LEASE_PUT, skv_msg_runs, n_runs, "more runs", (1u << 29) + 2);
	SPOIL(SKV_MSG_QUERY | SKV_REPLY, skv_msg_text, length, "length of the text", 11);
	SPOIL(SKV_MSG_QUERY | SKV_REPLY, skv_msg_text, length, "length of the text", UINT32_MAX);
}
END_TEST

START_TEST(spoiled_runs)
{
	static const struct skv_wire_run bad[] = {
	        {0, 0},
	        {SKV_PTE_ID_MASK, 2},
	        {SKV_PTE_ID_MASK + 1, 1},
	        {0, SKV_PTE_ID_MASK + 2},
	        {UINT32_MAX, UINT32_MAX}, /* their sum overflows 32 bits */
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct packet p = *find(SKV_MSG_SEQ_RELEASE);

		memcpy(p.data + p.bytes - sizeof(bad[i]), &bad[i], sizeof(bad[i]));
		ck_assert_wrong(&p, "a run is empty or beyond");
	}
}
END_TEST

#define SEQ_OF(what)                                                                                        \
	{SKV_MSG_SEQ_##what, offsetof(struct skv_msg_seq_of, model), SKV_NAME_MAX},                         \
	{SKV_MSG_SEQ_##what, offsetof(struct skv_msg_seq_of, name), SKV_NAME_MAX}

/* Every string of every message: filled completely, and with each byte that is not printable. */
START_TEST(spoiled_strings)
{
	static const struct {
		uint16_t type;
		size_t offset, size;
	} strings[] = {
	        {SKV_MSG_ERROR, offsetof(struct skv_msg_error, text), SKV_TEXT_MAX},
	        {SKV_MSG_HELLO, offsetof(struct skv_msg_hello, program), SKV_NAME_MAX},
	        {SKV_MSG_HELLO | SKV_REPLY, offsetof(struct skv_msg_hello_ok, daemon), SKV_NAME_MAX},
	        {SKV_MSG_OPEN, offsetof(struct skv_msg_open, model.name), SKV_NAME_MAX},
	        {SKV_MSG_OPEN, offsetof(struct skv_msg_open, spec), SKV_SPEC_MAX},
	        {SKV_MSG_OPEN | SKV_REPLY, offsetof(struct skv_msg_open_ok, policy.spec), SKV_SPEC_MAX},
	        {SKV_MSG_SEQ_NEW, offsetof(struct skv_msg_seq_name, name), SKV_NAME_MAX},
	        {SKV_MSG_SEQ_ATTACH, offsetof(struct skv_msg_seq_name, name), SKV_NAME_MAX},
	        {SKV_MSG_SEQ_FORK, offsetof(struct skv_msg_seq_name, name), SKV_NAME_MAX},
	        {SKV_MSG_POLICY_GET | SKV_REPLY, offsetof(struct skv_msg_policy, spec), SKV_SPEC_MAX},
	        {SKV_MSG_POLICY_ACK, offsetof(struct skv_msg_policy_ack, text), SKV_TEXT_MAX},
	        {SKV_MSG_POLICY_LOAD, offsetof(struct skv_msg_name, name), SKV_NAME_MAX},
	        {SKV_MSG_POLICY_SWAP, offsetof(struct skv_msg_policy_swap, model), SKV_NAME_MAX},
	        {SKV_MSG_POLICY_SWAP, offsetof(struct skv_msg_policy_swap, spec), SKV_SPEC_MAX},
	        SEQ_OF(DROP_NAME), SEQ_OF(PARK), SEQ_OF(RESUME), SEQ_OF(EXPORT),
	};

	for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
		struct packet p = *find(strings[i].type);
		char *s = p.data + sizeof(struct skv_msg_header) + strings[i].offset;

		memset(s, 'x', strings[i].size);
		ck_assert_wrong(&p, "a string does not end");
		s[strings[i].size - 1] = '\0';
		ck_assert_ptr_null(check(&p));
		for (int c = 1; c < 256; c++) {
			s[strings[i].size - 2] = (char)c;
			if (c >= 0x20 && c < 0x7f)
				ck_assert_ptr_null(check(&p));
			else
				ck_assert_wrong(&p, "not printable");
		}
		memset(s, 0, strings[i].size);
		s[strings[i].size - 1] = 'x';
		ck_assert_wrong(&p, "a byte after its end");
	}
}
END_TEST

/*
 * Every byte of every packet, changed to every other value: no fault, and a packet that is still accepted differs only
 * in the value of a field. Its type, length, serial rule and fds are still valid.
 */
START_TEST(every_byte_changed)
{
	for (unsigned i = 0; i < n_packets; i++) {
		for (size_t at = 0; at < packets[i].bytes; at++) {
			struct packet p = packets[i];

			for (int c = 0; c < 256; c++) {
				if ((unsigned char)packets[i].data[at] == c)
					continue;
				p.data[at] = (char)c;
				/* length, n_fds and reserved; the type may change among types of one form */
				if (!check(&p) && (at < 4 || at == 6 || at == 7 || (at >= 12 && at < 16)))
					ck_abort_msg("%s: byte %zu changed to %d is accepted", p.name, at, c);
			}
			if (at % 16 == 0)
				dump(fenced(&p, p.bytes), p.bytes, p.n_fds);
		}
	}
}
END_TEST

START_TEST(random_packets)
{
	unsigned accepted = 0;

	for (unsigned i = 0; i < 50000; i++) {
		struct packet p = packets[rnd_below(n_packets)];
		unsigned changes = rnd_below(8);

		/* random bytes only, or a packet with some bytes changed and perhaps another length */
		if (i % 4 == 0) {
			p.bytes = rnd_below(sizeof(p.data));
			rnd_bytes(p.data, p.bytes);
		} else {
			for (; changes > 0; changes--)
				p.data[rnd_below((uint32_t)p.bytes)] = (char)rnd64();
			if (rnd_below(2))
				p.bytes = rnd_below((uint32_t)p.bytes + 1);
			if (rnd_below(2))
				memcpy(p.data, &(uint32_t){(uint32_t)p.bytes}, 4);
		}
		if (rnd_below(4) == 0)
			p.n_fds = rnd_below(SKV_WIRE_MAX_FDS + 1);
		if (!check(&p)) {
			struct skv_msg_header h;

			accepted++;
			memcpy(&h, p.data, sizeof(h));
			ck_assert_uint_eq(h.length, p.bytes);
			ck_assert_uint_eq(h.n_fds, p.n_fds);
			ck_assert_uint_eq(h.reserved, 0);
			ck_assert_str_ne(skv_wire_name(h.type), "?");
		}
		if (i % 16 == 0)
			dump(fenced(&p, p.bytes), p.bytes, p.n_fds);
	}
	ck_assert_uint_gt(accepted, 0); /* otherwise there are too many changes to find anything */
}
END_TEST

/* The longest messages, and one that is a byte too long. */
START_TEST(largest_messages)
{
	size_t bytes = sizeof(struct skv_msg_header) + sizeof(struct skv_msg_runs) +
	               SKV_WIRE_MAX_RUNS * sizeof(struct skv_wire_run);
	char *p = fence - bytes;
	struct skv_msg_header h = {.length = (uint32_t)bytes, .type = SKV_MSG_LEASE_PUT, .serial = 1};
	struct skv_msg_runs runs = {.session = 1, .n_runs = SKV_WIRE_MAX_RUNS};
	struct skv_wire_run run = {.first = 3, .count = 5};

	memcpy(p, &h, sizeof(h));
	memcpy(p + sizeof(h), &runs, sizeof(runs));
	for (size_t at = sizeof(h) + sizeof(runs); at < bytes; at += sizeof(run))
		memcpy(p + at, &run, sizeof(run));
	ck_assert_ptr_null(skv_wire_check(p, bytes, 0, true));

	for (uint32_t length = SKV_WIRE_MAX; length <= SKV_WIRE_MAX + 1; length++) {
		struct skv_msg_text text = {.length = length - (uint32_t)sizeof(h) - (uint32_t)sizeof(text)};
		const char *wrong;

		h = (struct skv_msg_header){.length = length, .type = SKV_MSG_QUERY | SKV_REPLY, .serial = 1};
		p = memset(fence - length, '\x1b', length);
		memcpy(p, &h, sizeof(h));
		memcpy(p + sizeof(h), &text, sizeof(text));
		wrong = skv_wire_check(p, length, 0, false);
		dump(p, length, 0);
		if (length == SKV_WIRE_MAX)
			ck_assert_ptr_null(wrong);
		else
			ck_assert_str_eq(wrong, "longer than a message may be");
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-wire");

	add_case(s, "messages", 60, set_up_packets, NULL, well_formed, names, dumps, NULL);
	add_case(s, "hostile", 60, set_up_packets, NULL, truncated, too_long, wrong_fds, wrong_serials,
	         unknown_types, spoiled_fields, spoiled_runs, spoiled_strings, every_byte_changed,
	         random_packets, largest_messages, NULL);
	return run_suite(s);
}
