/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/replies.h - parses the replies of a server, RESP2, with hiredis.
 *
 * Replies are untrusted. hiredis buffers incomplete data, so the buffer is bounded: the announcement of a string larger
 * than `max_bytes` ends the connection before its bytes are read, and so does any other line of more than
 * SKV_STORE_LINE bytes. No memory is allocated for an announced number of elements: parts go to a function as they
 * arrive, and it refuses unexpected ones.
 */
#ifndef SKV_STORE_REPLIES_H
#define SKV_STORE_REPLIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/store/text.h"

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
	uint32_t index[SKV_STORE_DEPTH]; /* [depth]: index in the innermost array; [1]: in the outermost one */
	const char *text; /* of strings, statuses and errors: n bytes, valid until the callback returns */
	size_t n;
	int64_t integer; /* of integers; of arrays: the announced number of elements */
};
/* Returns 0, or a negative errno if the part is unexpected; the connection is then unusable. */
typedef int (*skv_store_part_fn)(void *ctx, const struct skv_store_part *, char why[SKV_STORE_TEXT]);

struct skv_store_replies {
	struct redisReader *reader;
	size_t max_bytes; /* limit of a string */
	skv_store_part_fn fn;
	void *ctx;
	int error;      /* what fn returned */
	bool has_part;  /* fn has received a part of the current reply */
	char *why;      /* buffer of the current call */
};

int skv_store_replies_init(struct skv_store_replies *); /* -ENOMEM */
void skv_store_replies_free(struct skv_store_replies *);
/* Sets limit and callback for the following replies. */
void skv_store_replies_expect(struct skv_store_replies *, size_t max_bytes, skv_store_part_fn fn, void *ctx);

/* Appends received bytes. -ENOMEM with a text. */
int skv_store_replies_feed(struct skv_store_replies *, const void *bytes, size_t n, char why[SKV_STORE_TEXT]);
/*
 * Passes parts of the next reply to the callback. Returns 1 if the reply is complete, 0 if bytes are missing, or a
 * negative errno such as -EPROTO with a text.
 */
int skv_store_replies_next(struct skv_store_replies *, char why[SKV_STORE_TEXT]);

#endif
