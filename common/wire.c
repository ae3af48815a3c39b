/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/wire.c - checks and decodes messages, using the tables of wire-table.c.
 *
 * A packet comes from the peer, which may be hostile. Its fields are read with memcpy, so that the packet's alignment
 * does not matter, and no byte is read before the packet's length has been checked.
 */
#include "common/wire.h"

#include <math.h>
#include <string.h>

#include "common/wire-table.h"

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
	for (size_t i = n; i < size; i++)
		if (p[i]) /* bytes after the NUL are refused, since the sender may have meant a longer name */
			return "a string has a byte after its end that is not zero";
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
		/* 4095 is the kernel's limit for errno values */
		if (load32(p) <= 4095 && (f->kind == ERRNO_0 || load32(p) > 0))
			return NULL;
		return "an error is not an errno value";
	default:
		return NULL;
	}
}

/*
 * Returns the number of elements of the tail that follows a message's fixed struct. The caller has checked that the
 * whole struct is there.
 */
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

/*
 * Checks a packet, except whether this side may send the message type. Sets *ret_rule and *ret_way to the type's rule
 * and way as soon as they are known, even if a later check fails.
 */
static const char *check(const char *packet, size_t bytes, unsigned n_fds, const struct rule **ret_rule,
                         const struct way **ret_way)
{
	struct skv_msg_header h;

	if (bytes < sizeof(h))
		return "shorter than a header";
	memcpy(&h, packet, sizeof(h));
	*ret_rule = skv_wire_rule_of(h.type);
	if (*ret_rule)
		*ret_way = skv_wire_way_of(*ret_rule, h.type);
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

/* ---- decoding for debugging ------------------------------------------------------------------ */

/* Prints a string from the peer in quotes, with escapes for bytes that a terminal or a log might interpret. */
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

/* Maximum of runs and of text bytes of a tail that a dump prints: the beginning is enough for debugging. */
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

/* Prints the fields of a message that lie within the packet, which may be too short. */
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

	flockfile(to); /* so that no other thread prints into the line */
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
		return "model: kv_dtype must be 0 (fp32), 1 (fp16), 2 (bf16) or 3 (fp8)";
	if (m->max_tokens < 1 || m->max_tokens > SKV_MAX_TOKENS)
		return "model: max_tokens must be 1 to 16777216";
	if (!isfinite(m->scale) || m->scale < 0)
		return "model: scale must be positive, or 0 for 1/sqrt(head_dim)";
	if (m->n_ranks < 1 || m->rank >= m->n_ranks)
		return "model: rank must be below n_ranks, and n_ranks at least 1";
	if (m->device > SKV_MAX_DEVICES)
		return "model: device must be 0 (host memory) or 1 to 16 (CUDA devices 0 to 15)";
	if (!skv_dtype_bytes(m->io_dtype) || m->io_dtype == SKV_FP8)
		return "model: io_dtype must be 0 (fp32), 1 (fp16) or 2 (bf16)";
	if (strnlen(m->name, sizeof(m->name)) == sizeof(m->name) || !skv_model_name_valid(m->name))
		return "model: name must be 1 to 63 printable ASCII characters without space";
	return NULL;
}

bool skv_model_name_valid(const char *name)
{
	size_t n = 0;

	for (; name[n]; n++)
		if (n + 1 == SKV_NAME_MAX || !printable((unsigned char)name[n]) || name[n] == ' ')
			return false;
	return n > 0;
}

bool skv_name_valid(const char *name)
{
	return skv_model_name_valid(name) && !strchr(name, '/');
}

bool skv_prefix_name_valid(const char *name)
{
	return *name == '/' && strspn(name + 1, "0123456789abcdef") == 32 && !name[33];
}

bool skv_operators_socket(const char *socket, char *to, size_t size)
{
	int n = strcmp(socket, SKV_DEFAULT_SOCKET) ? snprintf(to, size, "%s.operators", socket)
	                                           : snprintf(to, size, "%s", SKV_DEFAULT_OPERATORS_SOCKET);

	return n >= 0 && (size_t)n < size;
}
