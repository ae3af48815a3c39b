/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/resp-replies.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <string.h>

#define SPARE_BYTES (2u << 20) /* hiredis keeps an empty buffer of up to this size for the next reply */
#define LENGTH_LINE 24u        /* approximate maximum bytes of the line with a string's length */

/* The type in which this version of hiredis passes the number of an array's elements. */
#if HIREDIS_MAJOR >= 1
typedef size_t count;
#else
typedef int count;
#endif

/* ---- callbacks of hiredis ----------------------------------------------------------------------- */

/* Passes a part of a reply to fn. Returns a non-NULL pointer for success: hiredis takes NULL for a lack of memory. */
static void *give(const redisReadTask *task, struct skv_store_part *part)
{
	struct skv_store_replies *r = task->privdata;
	const redisReadTask *t;

	r->has_part = true;
	for (t = task->parent; t; t = t->parent)
		part->depth++;
	if (part->depth >= SKV_STORE_DEPTH) {
		r->error = skv_store_refuse(r->why, -EPROTO, "the server sent a reply with arrays that are nested too "
		                                             "deep");
		return NULL;
	}
	t = task;
	for (uint32_t i = part->depth; i > 0; i--, t = t->parent)
		part->index[i] = (uint32_t)t->idx;
	r->error = r->fn(r->ctx, part, r->why);
	return r->error ? NULL : r;
}

static void *give_string(const redisReadTask *task, char *text, size_t n)
{
	struct skv_store_replies *r = task->privdata;
	struct skv_store_part part = {.text = text, .n = n};

	switch (task->type) {
	case REDIS_REPLY_STRING:
		part.type = SKV_STORE_STRING;
		break;
	case REDIS_REPLY_STATUS:
		part.type = SKV_STORE_STATUS;
		break;
	case REDIS_REPLY_ERROR:
		part.type = SKV_STORE_ERROR;
		break;
	default: /* a type of the protocol RESP3, which was not requested */
		r->error = skv_store_refuse(r->why, -EPROTO, "the server sent a reply of type %d", task->type);
		return NULL;
	}
	/* check_incomplete() does not see a string that arrives in one piece */
	if (n > (part.type == SKV_STORE_STRING ? r->max_bytes : SKV_STORE_LINE)) {
		r->error = skv_store_refuse(r->why, -EPROTO, "the server sent a string of %zu bytes", n);
		return NULL;
	}
	return give(task, &part);
}

static void *give_array(const redisReadTask *task, count n)
{
	struct skv_store_replies *r = task->privdata;

	if (task->type == REDIS_REPLY_ARRAY)
		return give(task, &(struct skv_store_part){.type = SKV_STORE_ARRAY, .integer = (int64_t)n});
	r->error = skv_store_refuse(r->why, -EPROTO, "the server sent a reply of type %d", task->type);
	return NULL;
}

static void *give_integer(const redisReadTask *task, long long x)
{
	return give(task, &(struct skv_store_part){.type = SKV_STORE_INTEGER, .integer = x});
}

static void *give_nil(const redisReadTask *task)
{
	return give(task, &(struct skv_store_part){.type = SKV_STORE_NIL});
}

static void free_nothing(void *object)
{
	(void)object;
}

static redisReplyObjectFunctions functions = {
	.createString = give_string,
	.createArray = give_array,
	.createInteger = give_integer,
	.createNil = give_nil,
	.freeObject = free_nothing,
};

/* ---- replies --------------------------------------------------------------------------------------- */

int skv_store_replies_init(struct skv_store_replies *r)
{
	*r = (struct skv_store_replies){.reader = redisReaderCreateWithFunctions(&functions)};
	if (!r->reader)
		return -ENOMEM;
	r->reader->privdata = r;
	r->reader->maxbuf = SPARE_BYTES;
	return 0;
}

void skv_store_replies_free(struct skv_store_replies *r)
{
	if (r->reader)
		redisReaderFree(r->reader);
	r->reader = NULL;
}

void skv_store_replies_expect(struct skv_store_replies *r, size_t max_bytes, skv_store_part_fn fn, void *ctx)
{
	r->max_bytes = max_bytes;
	r->fn = fn;
	r->ctx = ctx;
}

int skv_store_replies_feed(struct skv_store_replies *r, const void *bytes, size_t n, char why[SKV_STORE_TEXT])
{
	if (redisReaderFeed(r->reader, bytes, n) == REDIS_OK)
		return 0;
	return skv_store_refuse(why, -ENOMEM, "no memory for a reply");
}

/*
 * Checks that an element that has not completely arrived will not be too large. hiredis consumes the type character at
 * once and a line as soon as it is complete, except for the length of a string, which it consumes with the string. So a
 * complete line that hiredis has not consumed is the length of a string.
 */
static int check_incomplete(const struct skv_store_replies *r, char *why)
{
	const redisReader *reader = r->reader;
	const size_t n = reader->len - reader->pos, first = n < LENGTH_LINE ? n : LENGTH_LINE;
	const char *line = n ? reader->buf + reader->pos : "", *end = memmem(line, first, "\r\n", 2);
	uint64_t announced = 0;

	if (!end && n <= SKV_STORE_LINE)
		return 0;
	if (!end)
		return skv_store_refuse(why, -EPROTO, "the server sent a line of more than %u bytes", SKV_STORE_LINE);
	for (const char *p = line; p < end && *p >= '0' && *p <= '9' && announced <= r->max_bytes; p++)
		announced = 10 * announced + (uint64_t)(*p - '0');
	if (announced > r->max_bytes)
		return skv_store_refuse(why, -EPROTO,
		                        "the server announced a string of %.*s bytes, expected at most %zu",
		                        (int)(end - line), line, r->max_bytes);
	if (n > r->max_bytes + SKV_STORE_LINE)
		return skv_store_refuse(why, -EPROTO, "the server sent %zu bytes of a reply, expected at most %zu", n,
		                        r->max_bytes);
	return 0;
}

int skv_store_replies_next(struct skv_store_replies *r, char why[SKV_STORE_TEXT])
{
	void *reply = NULL;

	r->why = why;
	r->error = 0;
	if (redisReaderGetReply(r->reader, &reply) != REDIS_OK) {
		if (r->error)
			return r->error;
		return skv_store_refuse(why, r->reader->err == REDIS_ERR_OOM ? -ENOMEM : -EPROTO,
		                        "the server's reply: %s", r->reader->errstr);
	}
	if (!reply)
		return check_incomplete(r, why);
	if (!r->has_part) /* a type of the protocol RESP3 for which hiredis has called no callback */
		return skv_store_refuse(why, -EPROTO, "the server sent a reply of a type that was not asked for");
	r->has_part = false;
	return 1;
}
