/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/replies.h - the replies of a server, RESP2, as hiredis parses them.
 *
 * Nothing of it is believed. What is not complete is buffered by hiredis, so the buffer is bounded: a string that is
 * announced as larger than `max_bytes` ends the connection before its bytes are read, as any other line of more than
 * SKV_STORE_LINE bytes. Nothing is allocated by an announced number of elements: parts go to a function as they come,
 * which refuses what it does not expect.
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

/* A reply, or an array's element. */
struct skv_store_part {
	enum skv_store_type type;
	uint32_t depth;                  /* of arrays around it, below SKV_STORE_DEPTH */
	uint32_t index[SKV_STORE_DEPTH]; /* [depth]: its number in the innermost one; [1]: in the outermost one */
	const char *text; /* of strings, statuses and errors: n bytes, valid until the function returns */
	size_t n;
	int64_t integer; /* of integers; of arrays: how many elements are announced */
};
/* 0; or negative errno: it is not what was expected, and the connection is of no use any more. */
typedef int (*skv_store_part_fn)(void *ctx, const struct skv_store_part *, char why[SKV_STORE_TEXT]);

struct skv_store_replies {
	struct redisReader *reader;
	size_t max_bytes; /* of a string */
	skv_store_part_fn fn;
	void *ctx;
	int error;      /* what fn returned */
	bool has_part;  /* the reply that is read has given fn one */
	char *why;      /* of the call that runs */
};

int skv_store_replies_init(struct skv_store_replies *); /* -ENOMEM */
void skv_store_replies_free(struct skv_store_replies *);
/* What replies from now on are, and who takes them. */
void skv_store_replies_expect(struct skv_store_replies *, size_t max_bytes, skv_store_part_fn fn, void *ctx);

/* So many bytes came. -ENOMEM, with a text. */
int skv_store_replies_feed(struct skv_store_replies *, const void *bytes, size_t n, char why[SKV_STORE_TEXT]);
/* Parts of the next reply go to the function: 1, it is complete; 0, bytes are missing; or -EPROTO and such, with a
 * text. */
int skv_store_replies_next(struct skv_store_replies *, char why[SKV_STORE_TEXT]);

#endif
