/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale-trace.h - traces of requests: generated from a few parameters, or read from a file.
 *
 * Each tenant has a few system prompts, which its users share. A chat begins with one of these and has turns: a
 * message, then an answer. The next turn's prompt is everything so far and a new message. Some turns go back to an
 * earlier one: its message is edited, or its answer is generated again. Each request is routed to a host.
 *
 * A prompt is a list of segments. A segment is a content and a length. scale_token() maps it to tokens, so a run with
 * real daemons has the same prompts and blocks as the simulation. In a trace a content always has the same length,
 * and two contents share tokens only by chance.
 *
 * The content and time of chats depend only on the seed and the workload. Hosts and routing affect only request.host.
 *
 * The file has a line
 *
 *     sparsekv-bench-scale 1 hosts HOSTS
 *
 * and a line for each request, in order of time:
 *
 *     MICROSECONDS HOST TENANT CHAT TURN ANSWER SEGMENT...
 *
 * ANSWER and each SEGMENT of the prompt are CONTENT:TOKENS, with the content in hexadecimal digits; all other numbers
 * are decimal.
 */
#ifndef SKV_BENCH_SCALE_TRACE_H
#define SKV_BENCH_SCALE_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SCALE_MAX_HOSTS 65536u

enum scale_routing {
	SCALE_ROUTING_RANDOM, /* each request to a random host */
	SCALE_ROUTING_CHAT,   /* all requests of a chat to one host */
	SCALE_ROUTING_PREFIX, /* all requests with one system prompt to one host */
};

/* Lengths in tokens: log-normal with this mean, and this standard deviation of the logarithm. */
struct scale_lengths {
	double mean, sigma;
};

struct scale_workload {
	uint32_t tenants, prompts;   /* number of tenants; number of each tenant's system prompts */
	double zipf;                 /* exponent of the popularity of tenants, and of each tenant's system prompts */
	struct scale_lengths system, message, answer;
	double turns;                /* of a chat: geometric with this mean, at least 1 */
	double think;                /* seconds between requests of a chat: exponential with this mean */
	double branch;               /* share of turns after the first that go back to an earlier one */
	double rate;                 /* requests a second, over all hosts; chats arrive as a Poisson process */
	/* limit of prompt and answer together: a message is cut, or a chat ends, to stay within it */
	uint32_t max_tokens;
};

/*
 * conversation and toolagent are within a tenth of the traces of those names that Mooncake published (Qin et al.,
 * FAST'25, https://github.com/kvcache-ai/Mooncake, FAST25-release/traces) in mean lengths (prompts of 12,035 and
 * 8,596 tokens, answers of 343 and 182), in rate (12,031 and 23,608 requests in an hour), and in the share of prompts
 * that can be reused (40 and 59 %). Their other parameters, and all of chat's, are assumed.
 */
enum scale_workload_name { SCALE_CONVERSATION, SCALE_TOOLAGENT, SCALE_CHAT };
extern const char *const scale_workload_names[]; /* NULL-terminated, indexed by the enum */
struct scale_workload scale_workload(enum scale_workload_name);

struct scale_trace_params {
	uint64_t seed;
	uint64_t requests; /* of the trace */
	uint32_t hosts;
	enum scale_routing routing;
	struct scale_workload workload;
};

struct scale_segment {
	uint64_t content;
	uint32_t n_tokens;
};

struct scale_request {
	uint64_t time_us;
	uint64_t chat;
	uint32_t host, tenant;
	uint32_t turn;                      /* number within its chat, from 1 on */
	uint32_t n_segments;
	const struct scale_segment *prompt; /* [n_segments]; valid until the next request is read */
	uint32_t n_prompt;                  /* total tokens, at least 1 */
	struct scale_segment answer;
};

/* The token at a position of a content, from 0 to n_vocab - 1. */
uint32_t scale_token(uint64_t content, uint32_t position, uint32_t n_vocab);

/* Generates a trace's requests in order of time. NULL: no memory. */
struct scale_trace *scale_trace_new(const struct scale_trace_params *);
struct scale_trace *scale_trace_free(struct scale_trace *); /* NULL is ignored; returns NULL */
/* Returns 1: *ret is set; 0: no more requests; -ENOMEM. */
int scale_trace_next(struct scale_trace *, struct scale_request *ret);

/* ---- files ----------------------------------------------------------------------------------- */

void scale_write_head(FILE *, uint32_t hosts);
void scale_write_request(FILE *, const struct scale_request *);

struct scale_reader {
	FILE *file; /* borrowed */
	uint32_t hosts;
	unsigned long line; /* number of the last line read, from 1 on */
	uint64_t time_us;
	char *text;
	size_t text_size;
	struct scale_segment *segments;
	uint32_t room;
	const char *error; /* what is wrong with the line */
};

/* Returns 0, or -EINVAL with `error`. scale_reader_deinit() must be called in both cases. */
int scale_reader_init(struct scale_reader *, FILE *);
void scale_reader_deinit(struct scale_reader *);
/* As scale_trace_next(), or -EINVAL with `error`. */
int scale_reader_next(struct scale_reader *, struct scale_request *ret);

#endif
