/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/resp-replies.h - parses the replies of a Redis or Valkey server, in the protocol RESP2, with hiredis.
 *
 * Replies are untrusted. hiredis buffers incomplete data, so the size of its buffer is bounded: if a server announces a
 * string larger than `max_bytes`, the connection ends before the string's bytes are read. A line of more than
 * SKV_STORE_LINE bytes also ends it. No memory is allocated for the announced number of an array's elements: the parts
 * of a reply are passed to a callback as they arrive, which refuses parts that it does not expect.
 */
#ifndef SKV_STORE_RESP_REPLIES_H
#define SKV_STORE_RESP_REPLIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/store/error-text.h"

#define SKV_STORE_LINE 4096u
#define SKV_STORE_DEPTH 5u

enum skv_store_type {
	SKV_STORE_NIL,
	SKV_STORE_INTEGER,
	SKV_STORE_STRING,
	SKV_STORE_STATUS,
	SKV_STORE_ERROR,
	SKV_STORE_ARRAY
};

/* A reply, or an element of an array. */
struct skv_store_part {
	enum skv_store_type type;
	uint32_t depth;                  /* number of enclosing arrays, below SKV_STORE_DEPTH */
	uint32_t index[SKV_STORE_DEPTH]; /* index[depth]: index in the innermost array; index[1]: in the outermost */
	const char *text; /* strings, statuses and errors: n bytes, valid until the callback returns */
	size_t n;
	int64_t integer; /* integers: the value; arrays: the announced number of elements */
};
/* Receives a part. Returns 0, or a negative errno if the part is unexpected; the connection is then unusable. */
typedef int (*skv_store_part_fn)(void *ctx, const struct skv_store_part *, char why[SKV_STORE_TEXT]);

struct skv_store_replies {
	struct redisReader *reader;
	size_t max_bytes; /* maximum size of a string in bytes */
	skv_store_part_fn fn;
	void *ctx;
	int error;      /* error that fn returned, or 0 */
	bool has_part;  /* fn has received a part of the current reply */
	char *why;      /* buffer for the error text of the running skv_store_replies_next() */
};

int skv_store_replies_init(struct skv_store_replies *); /* -ENOMEM */
void skv_store_replies_free(struct skv_store_replies *);
/* Sets maximum string size and callback for the replies that follow. */
void skv_store_replies_expect(struct skv_store_replies *, size_t max_bytes, skv_store_part_fn fn, void *ctx);

/* Appends bytes that were received to the parser's buffer. Returns 0, or -ENOMEM with a text. */
int skv_store_replies_feed(struct skv_store_replies *, const void *bytes, size_t n, char why[SKV_STORE_TEXT]);
/*
 * Parses the next reply in the buffer and passes its parts to the callback. Returns 1 if the reply is complete, 0 if
 * more bytes have to be received, or a negative errno such as -EPROTO with a text.
 */
int skv_store_replies_next(struct skv_store_replies *, char why[SKV_STORE_TEXT]);

#endif
