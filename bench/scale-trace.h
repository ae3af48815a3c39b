/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale-trace.h - traces of requests: generated from a few parameters, or read from a file.
 *
 * Each tenant has a few system prompts, which its users share. A chat begins with one of these system prompts and has
 * turns. A turn is a message of the user, then an answer; it is one request, whose prompt is the chat up to and with
 * the message. Some turns go back to an earlier turn: the message of that turn is edited, or its answer is generated
 * again. Each request is routed to a host.
 *
 * A prompt is a list of segments. A segment has a content (a 64-bit number) and a length in tokens. scale_token()
 * computes the tokens of a segment, so that a run with real daemons has the same prompts and blocks as the simulation.
 * All segments of a trace with the same content have the same length. Segments with different contents have equal
 * tokens only by chance.
 *
 * The contents and times of the requests depend only on the seed and the workload. The number of hosts and the routing
 * affect only the host of a request.
 *
 * The file of a trace begins with the line
 *
 *     sparsekv-bench-scale 1 hosts HOSTS
 *
 * and has then a line for each request, in order of time:
 *
 *     MICROSECONDS HOST TENANT CHAT TURN ANSWER SEGMENT...
 *
 * ANSWER and each SEGMENT of the prompt have the form CONTENT:TOKENS, where CONTENT is hexadecimal; all other numbers
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

/*
 * A distribution of lengths in tokens: log-normal, with the mean `mean`, and with `sigma` as the standard deviation of
 * the logarithm.
 */
struct scale_lengths {
	double mean, sigma;
};

struct scale_workload {
	uint32_t tenants, prompts;   /* number of tenants; number of each tenant's system prompts */
	/* exponent of the Zipf distribution of requests over tenants, and over a tenant's system prompts */
	double zipf;
	struct scale_lengths system, message, answer;
	double turns;                /* number of turns of a chat: geometric distribution with this mean, at least 1 */
	double think; /* seconds between two requests of a chat: exponential distribution with this mean */
	double branch;               /* share of the turns after the first that go back to an earlier turn */
	double rate;                 /* requests a second over all hosts; chats begin as a Poisson process */
	/* most tokens of prompt and answer together; a message is cut, or a chat ends, to stay within this limit */
	uint32_t max_tokens;
};

/*
 * The workloads conversation and toolagent differ by at most a tenth from the traces with the same names that Mooncake
 * published (Qin et al., FAST'25, https://github.com/kvcache-ai/Mooncake, FAST25-release/traces) in mean lengths
 * (prompts of 12,035 and 8,596 tokens, answers of 343 and 182), in rate (12,031 and 23,608 requests in an hour), and in
 * the share of prompts that can be reused (40 and 59 %). Their other parameters, and all parameters of the workload
 * chat, are assumptions.
 */
enum scale_workload_name { SCALE_CONVERSATION, SCALE_TOOLAGENT, SCALE_CHAT };
extern const char *const scale_workload_names[]; /* NULL-terminated, indexed by the enum */
struct scale_workload scale_workload(enum scale_workload_name);

struct scale_trace_params {
	uint64_t seed;
	uint64_t requests; /* number of requests of the trace */
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
	uint32_t turn;                      /* number of the turn within its chat, from 1 on */
	uint32_t n_segments;
	const struct scale_segment *prompt; /* [n_segments]; valid until the next request is read */
	uint32_t n_prompt;                  /* tokens of all segments, at least 1 */
	struct scale_segment answer;
};

/* Returns the token at a position of a segment with this content, from 0 to n_vocab - 1. */
uint32_t scale_token(uint64_t content, uint32_t position, uint32_t n_vocab);

/* Starts to generate a trace, whose requests come in order of time. NULL: no memory. */
struct scale_trace *scale_trace_new(const struct scale_trace_params *);
struct scale_trace *scale_trace_free(struct scale_trace *); /* NULL is ignored; returns NULL */
/* Generates the next request. Returns 1 if *ret is set, 0 if there are no more requests, or -ENOMEM. */
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
	const char *error; /* text that tells what is wrong with the current line */
};

/*
 * Reads the first line. Returns 0, or -EINVAL with a text in `error`. The caller must call scale_reader_deinit() in
 * both cases.
 */
int scale_reader_init(struct scale_reader *, FILE *);
void scale_reader_deinit(struct scale_reader *);
/* Reads the next request. Returns as scale_trace_next(), or -EINVAL with a text in `error`. */
int scale_reader_next(struct scale_reader *, struct scale_request *ret);

#endif
