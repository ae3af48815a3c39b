/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale-trace-file.c - writes traces of requests as text, and reads them: by another run of sparsekv-bench, or by
 * a program that plays them against real daemons.
 */
#include "bench/scale-trace.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HEAD "sparsekv-bench-scale 1 hosts "

void scale_write_head(FILE *f, uint32_t hosts)
{
	fprintf(f, HEAD "%" PRIu32 "\n", hosts);
}

void scale_write_request(FILE *f, const struct scale_request *r)
{
	fprintf(f, "%" PRIu64 " %" PRIu32 " %" PRIu32 " %" PRIu64 " %" PRIu32 " %" PRIx64 ":%" PRIu32, r->time_us, r->host,
	        r->tenant, r->chat, r->turn, r->answer.content, r->answer.n_tokens);
	for (uint32_t i = 0; i < r->n_segments; i++)
		fprintf(f, " %" PRIx64 ":%" PRIu32, r->prompt[i].content, r->prompt[i].n_tokens);
	fputc('\n', f);
}

/* Reads the next line, without its newline. Returns 1, or 0 at the end of the file. */
static int read_line(struct scale_reader *s)
{
	ssize_t n = getline(&s->text, &s->text_size, s->file);

	if (n < 0)
		return 0;
	s->line++;
	if (n > 0 && s->text[n - 1] == '\n')
		s->text[n - 1] = '\0';
	return 1;
}

static int wrong(struct scale_reader *s, const char *why)
{
	s->error = why;
	return -EINVAL;
}

/*
 * Parses a number of at most `most` at *at, and advances *at behind it. The number must be followed by `after` or by
 * the end of the line.
 */
static bool take(char **at, int base, char after, uint64_t most, uint64_t *ret)
{
	char *end;

	if (!strchr("0123456789abcdef", **at) || !**at)
		return false;
	errno = 0;
	*ret = strtoull(*at, &end, base);
	if (errno || *ret > most || (*end && *end != after) || (!*end && after == ':'))
		return false;
	*at = *end ? end + 1 : end;
	return true;
}

static bool take_segment(char **at, uint32_t least, struct scale_segment *ret)
{
	uint64_t n;

	if (!take(at, 16, ':', UINT64_MAX, &ret->content) || !take(at, 10, ' ', 1000000000, &n) || n < least)
		return false;
	ret->n_tokens = (uint32_t)n;
	return true;
}

int scale_reader_init(struct scale_reader *s, FILE *file)
{
	uint64_t hosts;
	char *at;

	*s = (struct scale_reader){.file = file};
	if (!read_line(s) || strncmp(s->text, HEAD, strlen(HEAD)))
		return wrong(s, "expected a trace that sparsekv-bench scale wrote");
	at = s->text + strlen(HEAD);
	if (!take(&at, 10, ' ', SCALE_MAX_HOSTS, &hosts) || *at || hosts == 0)
		return wrong(s, "expected a number of hosts");
	s->hosts = (uint32_t)hosts;
	return 0;
}

void scale_reader_deinit(struct scale_reader *s)
{
	free(s->text);
	free(s->segments);
	s->text = NULL;
	s->segments = NULL;
}

static int read_prompt(struct scale_reader *s, char *at, struct scale_request *r)
{
	uint64_t n_prompt = 0;

	for (r->n_segments = 0; *at; r->n_segments++) {
		if (r->n_segments == s->room) {
			struct scale_segment *more = realloc(s->segments, (2 * s->room + 64) * sizeof *more);

			if (!more)
				return -ENOMEM;
			s->segments = more;
			s->room = 2 * s->room + 64;
		}
		if (!take_segment(&at, 1, &s->segments[r->n_segments]))
			return wrong(s, "expected segments of a prompt, such as 1f:300");
		n_prompt += s->segments[r->n_segments].n_tokens;
	}
	if (n_prompt == 0 || n_prompt + r->answer.n_tokens > INT32_MAX)
		return wrong(s, "expected a prompt of some tokens");
	r->prompt = s->segments;
	r->n_prompt = (uint32_t)n_prompt;
	return 1;
}

int scale_reader_next(struct scale_reader *s, struct scale_request *ret)
{
	struct scale_request r = {.n_segments = 0};
	uint64_t host, tenant, turn;
	char *at;

	if (!read_line(s))
		return ferror(s->file) ? wrong(s, "the file cannot be read") : 0;
	at = s->text;
	if (!take(&at, 10, ' ', UINT64_MAX, &r.time_us) || !take(&at, 10, ' ', s->hosts - 1, &host) ||
	    !take(&at, 10, ' ', UINT32_MAX, &tenant) || !take(&at, 10, ' ', UINT64_MAX, &r.chat) ||
	    !take(&at, 10, ' ', UINT32_MAX, &turn))
		return wrong(s, "expected a time, a host, a tenant, a chat and a turn");
	if (r.time_us < s->time_us)
		return wrong(s, "expected requests in the order of time");
	if (!take_segment(&at, 0, &r.answer))
		return wrong(s, "expected an answer, such as 2e:100");
	s->time_us = r.time_us;
	r.host = (uint32_t)host;
	r.tenant = (uint32_t)tenant;
	r.turn = (uint32_t)turn;
	*ret = r;
	return read_prompt(s, at, ret);
}
