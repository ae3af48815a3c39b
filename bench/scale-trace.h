/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale-trace.h - traces of requests: made of a few parameters, or read from a file.
 *
 * Tenants have a few system prompts each, which their users share. A chat begins with one of these and has turns: a
 * message, then an answer, and the next turn's prompt is all that was said before and a new message. Some turns go back to an
 * earlier one: its message is edited, or its answer made once more. Each request is routed to a host.
 *
 * A prompt is a list of segments. A segment is a content and a length; scale_token() says which tokens that are, so a run
 * with real daemons has the same prompts, and the same blocks, as the simulation. One content has one length in a
 * trace, and two contents have no tokens in common but by chance.
 *
 * What chats say, and when, follows from the seed and from what describes the workload. Hosts and routing change nothing but
 * request.host.
 *
 * The file has a line
 *
 *	sparsekv-bench-scale 1 hosts HOSTS
 *
 * and a line for each request, in the order of time:
 *
 *	MICROSECONDS HOST TENANT CHAT TURN ANSWER SEGMENT...
 *
 * ANSWER and each SEGMENT of the prompt are CONTENT:TOKENS, the content in hexadecimal digits; all else is decimal.
 */
#ifndef SKV_BENCH_SCALE_TRACE_H
#define SKV_BENCH_SCALE_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SCALE_MAX_HOSTS 65536u

enum scale_routing {
	SCALE_ROUTING_RANDOM, /* each request anywhere */
	SCALE_ROUTING_CHAT,   /* a chat's requests to one host */
	SCALE_ROUTING_PREFIX, /* those with one system prompt to one host */
};

/* Lengths in tokens: log-normal with this mean, and this standard deviation of the logarithm. */
struct scale_lengths {
	double mean, sigma;
};

struct scale_workload {
	uint32_t tenants, prompts;   /* and system prompts of each */
	double zipf;                 /* exponent of the popularity of tenants, and of the prompts of one */
	struct scale_lengths system, message, answer;
	double turns;                /* of a chat: geometric, with this mean, 1 or more */
	double think;                /* seconds from a request of a chat to its next: exponential, with this mean */
	double branch;               /* share of turns after the first that go back to an earlier one */
	double rate;                 /* requests a second, of all hosts together; chats arrive as a Poisson process */
	uint32_t max_tokens;         /* of prompt and answer together: a message is cut, and a chat ends, to stay within */
};

/*
 * conversation and toolagent are within a tenth of the traces of those names that Mooncake published (Qin et al., FAST'25,
 * https://github.com/kvcache-ai/Mooncake, FAST25-release/traces) in mean lengths - prompts of 12,035 and of 8,596 tokens, answers
 * of 343 and of 182 -, in rate, 12,031 and 23,608 requests in an hour, and in the share of prompts that could be reused,
 * 40 and 59 %. All else in them is assumed, and so is all of chat.
 */
enum scale_workload_name { SCALE_CONVERSATION, SCALE_TOOLAGENT, SCALE_CHAT };
extern const char *const scale_workload_names[]; /* NULL-terminated, as the enum */
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
	uint32_t turn;                      /* of its chat's requests, from 1 on */
	uint32_t n_segments;
	const struct scale_segment *prompt; /* [n_segments]; until the next request is asked for */
	uint32_t n_prompt;                  /* tokens of these, 1 or more */
	struct scale_segment answer;
};

/* The token of a content at a position, from 0 to n_vocab - 1. */
uint32_t scale_token(uint64_t content, uint32_t position, uint32_t n_vocab);

/* The requests of a trace, in the order of time. NULL: no memory. */
struct scale_trace *scale_trace_new(const struct scale_trace_params *);
struct scale_trace *scale_trace_free(struct scale_trace *); /* NULL is fine; returns NULL */
/* 1: there it is; 0: that was all; -ENOMEM. */
int scale_trace_next(struct scale_trace *, struct scale_request *ret);

/* ---- files ----------------------------------------------------------------------------------- */

void scale_write_head(FILE *, uint32_t hosts);
void scale_write_request(FILE *, const struct scale_request *);

struct scale_reader {
	FILE *file; /* borrowed */
	uint32_t hosts;
	unsigned long line; /* that was read last; from 1 on */
	uint64_t time_us;
	char *text;
	size_t text_size;
	struct scale_segment *segments;
	uint32_t room;
	const char *error; /* what is wrong with the line */
};

/* 0, or -EINVAL and `error`. In any case scale_reader_deinit() follows. */
int scale_reader_init(struct scale_reader *, FILE *);
void scale_reader_deinit(struct scale_reader *);
/* As scale_trace_next(); -EINVAL and `error`. */
int scale_reader_next(struct scale_reader *, struct scale_request *ret);

#endif
