/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulation of prefixes in hosts' memory and a store: traces, hits compared with manual counts, and with a model
 * that has token ids and lists instead of keys and tables.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/scale-cache.h"
#include "tests/support/suite.h"

enum { B = SCALE_BLOCK, BLOCK_BYTES = 1000, STORED_BYTES = BLOCK_BYTES + SCALE_KEY_BYTES, SECOND = 1000000 };

/* ---- traces -------------------------------------------------------------------------------------- */

static struct scale_trace_params params_of(uint64_t seed, enum scale_workload_name workload)
{
	return (struct scale_trace_params){
		.seed = seed, .requests = 2000, .hosts = 4, .routing = SCALE_ROUTING_CHAT, .workload = scale_workload(workload)};
}

/* Returns the trace in the form of its file; the caller frees it. */
static char *trace_text(const struct scale_trace_params *p)
{
	struct scale_trace *t = scale_trace_new(p);
	struct scale_request r;
	size_t size;
	char *text;
	FILE *f = open_memstream(&text, &size);

	ck_assert_ptr_nonnull(t);
	scale_write_head(f, p->hosts);
	while (scale_trace_next(t, &r) > 0)
		scale_write_request(f, &r);
	scale_trace_free(t);
	fclose(f);
	return text;
}

START_TEST(seeds)
{
	struct scale_trace_params p = params_of(rnd64(), _i);
	char *one = trace_text(&p), *same = trace_text(&p), *other;

	ck_assert_str_eq(one, same);
	p.seed++;
	other = trace_text(&p);
	ck_assert_str_ne(one, other);
	free(one);
	free(same);
	free(other);
}
END_TEST

/*
 * Requests are in order and within bounds; a chat's next prompt continues the conversation, or an earlier turn of it.
 */
START_TEST(requests)
{
	struct scale_trace_params p = params_of(rnd64(), _i);
	struct scale_trace *t;
	struct scale_request r;
	uint64_t last = 0, n = 0, turns = 0;
	bool was_on[4] = {false};

	p.workload.max_tokens = 20000;
	t = scale_trace_new(&p);
	while (scale_trace_next(t, &r) > 0) {
		uint64_t tokens = 0;

		for (uint32_t i = 0; i < r.n_segments; i++) {
			ck_assert_uint_gt(r.prompt[i].n_tokens, 0);
			tokens += r.prompt[i].n_tokens;
		}
		ck_assert_uint_eq(tokens, r.n_prompt);
		ck_assert_uint_le(tokens + r.answer.n_tokens, p.workload.max_tokens);
		ck_assert_uint_ge(r.time_us, last);
		ck_assert_uint_lt(r.tenant, p.workload.tenants);
		/* a system prompt; then a message, or an answer and a message */
		ck_assert_uint_eq(r.n_segments % 2, 0);
		ck_assert_uint_le(r.n_segments, 2 * r.turn);
		was_on[r.host] = true;
		last = r.time_us;
		turns += r.turn > 1;
		n++;
	}
	ck_assert_uint_eq(n, p.requests);
	ck_assert_uint_gt(turns, 0);
	ck_assert(was_on[0] && was_on[1] && was_on[2] && was_on[3]);
	scale_trace_free(t);
}
END_TEST

/* The routing of requests changes nothing else; requests of a chat, or of a system prompt, go to one host. */
START_TEST(routing)
{
	struct scale_trace_params p = params_of(rnd64(), SCALE_CHAT);
	struct scale_request r[3];
	struct scale_trace *t[3];
	struct {
		uint64_t of;
		uint32_t host;
	} seen[2][4096] = {{{0}}};
	uint32_t elsewhere = 0;

	for (int i = 0; i < 3; i++) {
		p.routing = i;
		t[i] = scale_trace_new(&p);
	}
	while (scale_trace_next(t[0], &r[0]) > 0) {
		for (int i = 1; i < 3; i++) {
			const uint64_t of = i == SCALE_ROUTING_CHAT ? r[0].chat : r[0].prompt[0].content;
			uint32_t at = of % 4096;

			ck_assert_int_eq(scale_trace_next(t[i], &r[i]), 1);
			ck_assert_uint_eq(r[i].time_us, r[0].time_us);
			ck_assert_uint_eq(r[i].n_segments, r[0].n_segments);
			for (uint32_t k = 0; k < r[0].n_segments; k++)
				ck_assert_uint_eq(r[i].prompt[k].content, r[0].prompt[k].content);
			while (seen[i - 1][at].of && seen[i - 1][at].of != of)
				at = (at + 1) % 4096;
			if (seen[i - 1][at].of)
				ck_assert_uint_eq(seen[i - 1][at].host, r[i].host);
			seen[i - 1][at].of = of;
			seen[i - 1][at].host = r[i].host;
		}
		elsewhere += r[0].host != r[1].host;
	}
	ck_assert_uint_gt(elsewhere, p.requests / 2);
	for (int i = 0; i < 3; i++)
		scale_trace_free(t[i]);
}
END_TEST

/* Programs that replay a trace have their own copy of this function. */
START_TEST(token_ids)
{
	ck_assert_uint_eq(scale_token(1, 0, 1u << 31), scale_token(1, 0, 1u << 31));
	ck_assert_uint_ne(scale_token(1, 0, 1u << 31), scale_token(1, 1, 1u << 31));
	ck_assert_uint_ne(scale_token(1, 0, 1u << 31), scale_token(2, 0, 1u << 31));
	for (uint32_t i = 0; i < 1000; i++)
		ck_assert_uint_lt(scale_token(rnd64(), i, 17), 17);
}
END_TEST

/* ---- figures of a trace, and of its file ----------------------------------------------------------- */

static struct scale_cache *cache_new(uint32_t hosts, uint64_t memory, uint64_t disk, uint64_t store, uint64_t ttl_us)
{
	const struct scale_cache_params p = {.hosts = hosts, .block_bytes = BLOCK_BYTES, .memory_bytes = memory * BLOCK_BYTES,
	                                     .disk_bytes = disk * BLOCK_BYTES, .store_bytes = store * STORED_BYTES, .ttl_us = ttl_us};
	struct scale_cache *c = scale_cache_new(&p);

	ck_assert_ptr_nonnull(c);
	return c;
}

START_TEST(replayed)
{
	struct scale_trace_params p = params_of(rnd64(), _i);
	char *text = trace_text(&p);
	FILE *f = fmemopen(text, strlen(text), "r");
	struct scale_cache *made = cache_new(p.hosts, 500, 300, 4000, 300 * SECOND), *read;
	struct scale_trace *t = scale_trace_new(&p);
	struct scale_reader reader;
	struct scale_request r;
	int more;

	while (scale_trace_next(t, &r) > 0)
		ck_assert_int_eq(scale_cache_request(made, &r, NULL), 0);
	ck_assert_int_eq(scale_reader_init(&reader, f), 0);
	read = cache_new(reader.hosts, 500, 300, 4000, 300 * SECOND);
	while ((more = scale_reader_next(&reader, &r)) > 0)
		ck_assert_int_eq(scale_cache_request(read, &r, NULL), 0);
	ck_assert_msg(more == 0, "line %lu: %s", reader.line, reader.error);
	ck_assert_int_eq(memcmp(scale_cache_counts(made), scale_cache_counts(read), sizeof(struct scale_counts)), 0);
	ck_assert_uint_eq(scale_cache_counts(read)->requests, p.requests);
	for (int tier = 0; tier < SCALE_TIERS; tier++)
		ck_assert_uint_gt(scale_cache_counts(read)->hit_tokens[tier] + (_i != SCALE_CHAT), 0);
	scale_reader_deinit(&reader);
	fclose(f);
	free(text);
	scale_trace_free(t);
	scale_cache_free(made);
	scale_cache_free(read);
}
END_TEST

static const char *const damaged[] = {
	"",
	"sparsekv-bench-scale 2 hosts 4\n",
	"sparsekv-bench-scale 1 hosts 0\n",
	"sparsekv-bench-scale 1 hosts 4 5\n",
	"sparsekv-bench-scale 1 hosts 4\n1\n",
	"sparsekv-bench-scale 1 hosts 4\n1 4 0 0 1 a:1 b:1\n",
	"sparsekv-bench-scale 1 hosts 4\n1 0 0 0 1 a:1\n",
	"sparsekv-bench-scale 1 hosts 4\n1 0 0 0 1 a b:1\n",
	"sparsekv-bench-scale 1 hosts 4\n1 0 0 0 1 a:1 b:0\n",
	"sparsekv-bench-scale 1 hosts 4\n1 0 0 0 1 a:1 b:-1\n",
	"sparsekv-bench-scale 1 hosts 4\n1 0 0 0 1 a:1 b:1 c\n",
	"sparsekv-bench-scale 1 hosts 4\n1 0 0 0 1 a:1 b:1000000000 c:1000000000 d:1000000000\n",
	"sparsekv-bench-scale 1 hosts 4\n2 0 0 0 1 a:1 b:1\n1 0 0 0 1 a:1 b:1\n",
};

START_TEST(files_that_are_none)
{
	struct scale_reader reader;
	struct scale_request r;
	FILE *f = fmemopen((char *)damaged[_i], strlen(damaged[_i]) + !*damaged[_i], "r");
	int e = scale_reader_init(&reader, f);

	while (e == 0 && scale_reader_next(&reader, &r) > 0)
		;
	ck_assert_ptr_nonnull(reader.error);
	scale_reader_deinit(&reader);
	fclose(f);
}
END_TEST

/* ---- manual counts ------------------------------------------------------------------------------ */

static struct scale_request request_of(uint32_t host, uint64_t seconds, uint32_t n, const struct scale_segment *prompt,
                                       uint32_t n_answer)
{
	static uint64_t answers = 1u << 20;
	struct scale_request r = {.host = host, .time_us = seconds * SECOND, .n_segments = n, .prompt = prompt,
	                          .answer = {answers++, n_answer}};

	for (uint32_t i = 0; i < n; i++)
		r.n_prompt += prompt[i].n_tokens;
	return r;
}

/* Runs a request, and expects so many hit blocks in memory, on the disk and in the store. */
static void hits(struct scale_cache *c, const struct scale_request *r, uint32_t memory, uint32_t disk, uint32_t store)
{
	uint64_t hit[SCALE_TIERS];

	ck_assert_int_eq(scale_cache_request(c, r, hit), 0);
	ck_assert_uint_eq(hit[SCALE_MEMORY], memory * B);
	ck_assert_uint_eq(hit[SCALE_DISK], disk * B);
	ck_assert_uint_eq(hit[SCALE_STORE], store * B);
}

/* hits() for a prompt of one content, without an answer. */
static void prompt_hits(struct scale_cache *c, uint32_t host, uint64_t seconds, uint64_t content, uint32_t tokens, uint32_t memory,
                        uint32_t disk, uint32_t store)
{
	const struct scale_segment s = {content, tokens};
	const struct scale_request r = request_of(host, seconds, 1, &s, 0);

	hits(c, &r, memory, disk, store);
}

START_TEST(whole_blocks)
{
	struct scale_cache *c = cache_new(1, 100, 0, 0, 0);

	prompt_hits(c, 0, 0, 1, 2 * B - 1, 0, 0, 0);
	prompt_hits(c, 0, 1, 1, 2 * B - 1, 1, 0, 0); /* the partial block is not stored */
	prompt_hits(c, 0, 2, 2, 2 * B, 0, 0, 0);
	prompt_hits(c, 0, 3, 2, 2 * B, 1, 0, 0); /* the last token is computed, and with it its block */
	prompt_hits(c, 0, 4, 2, 2 * B + 1, 2, 0, 0);
	prompt_hits(c, 0, 5, 3, 1, 0, 0, 0);
	prompt_hits(c, 0, 6, 3, 1, 0, 0, 0);
	ck_assert_uint_eq(scale_cache_counts(c)->hit_tokens[SCALE_MEMORY], 4 * B);
	ck_assert_uint_eq(scale_cache_counts(c)->prompt_tokens, 10 * B + 1);
	scale_cache_free(c);
}
END_TEST

START_TEST(chats)
{
	struct scale_cache *c = cache_new(2, 100, 0, 100, 0);
	struct scale_segment s[4] = {{1, B}, {2, B}};
	struct scale_request r = request_of(0, 0, 2, s, B);

	hits(c, &r, 0, 0, 0);
	s[2] = r.answer;
	s[3] = (struct scale_segment){3, B / 2};
	r = request_of(0, 1, 4, s, B);
	hits(c, &r, 3, 0, 0); /* with its answer */
	r.host = 1;
	hits(c, &r, 0, 0, 3);
	r.tenant = 1;
	hits(c, &r, 0, 0, 0);
	/* another message after the same system prompt, and one that begins within a block */
	s[1].content = 4;
	r = request_of(0, 2, 2, s, 0);
	hits(c, &r, 1, 0, 0);
	s[0] = (struct scale_segment){1, B - 1};
	r = request_of(0, 3, 2, s, 0);
	hits(c, &r, 0, 0, 0);
	ck_assert_uint_eq(scale_cache_counts(c)->blocks_read, 3);
	/* 3 blocks, 1 after half a message, the same 4 again for another tenant, 1, 1 */
	ck_assert_uint_eq(scale_cache_counts(c)->blocks_written, 3 + 1 + 4 + 1 + 1);
	scale_cache_free(c);
}
END_TEST

START_TEST(memory_and_disk)
{
	struct scale_cache *c = cache_new(1, 4, 3, 0, 0);

	prompt_hits(c, 0, 0, 1, 2 * B + 1, 0, 0, 0);
	prompt_hits(c, 0, 1, 2, 2 * B + 1, 0, 0, 0);
	prompt_hits(c, 0, 2, 1, 2 * B + 1, 2, 0, 0);
	prompt_hits(c, 0, 3, 3, B + 1, 0, 0, 0);     /* the last block of 2 goes to the disk */
	prompt_hits(c, 0, 4, 2, 2 * B + 1, 1, 1, 0); /* and is read back; the last one of 1 goes to the disk */
	prompt_hits(c, 0, 5, 1, 2 * B + 1, 1, 1, 0); /* 3 goes to the disk */
	/* of 3, 2, 2, 1, 1 in that order the last three stay on the disk */
	prompt_hits(c, 0, 6, 4, 4 * B, 0, 0, 0);
	/* the last one of 4 goes to the disk, and the last one of 2 is gone */
	prompt_hits(c, 0, 7, 3, B + 1, 0, 0, 0);
	prompt_hits(c, 0, 8, 2, 2 * B + 1, 0, 0, 0);
	scale_cache_free(c);
}
END_TEST

START_TEST(least_recently_used)
{
	struct scale_cache *c = cache_new(3, 0, 0, 4, 0);

	prompt_hits(c, 0, 0, 1, 2 * B + 1, 0, 0, 0);
	prompt_hits(c, 0, 1, 2, 2 * B + 1, 0, 0, 0);
	ck_assert_uint_eq(scale_cache_counts(c)->max_blocks, 4);
	prompt_hits(c, 1, 2, 1, B + 1, 0, 0, 1);     /* its first block is used, the second one is not */
	prompt_hits(c, 1, 3, 3, B + 1, 0, 0, 0);     /* replaces the second one */
	prompt_hits(c, 2, 4, 1, 2 * B + 1, 0, 0, 1); /* and this replaces the last one of 2 */
	prompt_hits(c, 2, 5, 2, 2 * B + 1, 0, 0, 1);
	ck_assert_uint_eq(scale_cache_counts(c)->max_blocks, 4);
	ck_assert_uint_eq(scale_cache_counts(c)->blocks_evicted, 3);
	scale_cache_free(c);
}
END_TEST

/* A block of the store behind a missing one is of no use until that one is written again. */
START_TEST(broken_chains)
{
	struct scale_cache *c = cache_new(2, 0, 0, 100, 10 * SECOND);
	const struct scale_segment s[2] = {{1, B}, {2, 2 * B + 1}};
	struct scale_request r;

	prompt_hits(c, 0, 0, 1, B, 0, 0, 0);
	r = request_of(0, 5, 2, s, 0);
	hits(c, &r, 0, 0, 1);
	r.time_us = 10 * SECOND - 1;
	hits(c, &r, 0, 0, 3);
	r.time_us = 10 * SECOND; /* the first one has expired, the others are there */
	hits(c, &r, 0, 0, 0);
	ck_assert_uint_eq(scale_cache_counts(c)->blocks_expired, 1);
	ck_assert_uint_eq(scale_cache_counts(c)->blocks_written, 4);
	r.time_us = 15 * SECOND - 1;
	hits(c, &r, 0, 0, 3);
	r.time_us = 15 * SECOND; /* reading has not extended their lives */
	hits(c, &r, 0, 0, 1);
	ck_assert_uint_eq(scale_cache_counts(c)->blocks_expired, 3);
	scale_cache_free(c);
}
END_TEST

START_TEST(values)
{
	ck_assert_uint_eq(scale_block_values(1), 1);
	ck_assert_uint_eq(scale_block_values(SCALE_VALUE_BYTES), 1);
	ck_assert_uint_eq(scale_block_values(SCALE_VALUE_BYTES + 1), 2);
	ck_assert_uint_eq(scale_block_values(131072 * B), 4);
}
END_TEST

/* ---- against a model ----------------------------------------------------------------------------- */

enum { N_HOSTS = 3, N_BLOCKS = 5000, MAX_BLOCKS = 12 };

/* A block, identified by the token ids of itself and of all blocks before it. */
struct naive_block {
	uint32_t tenant, n_tokens;
	uint32_t *tokens;
	struct {
		bool there;
		uint64_t used, since;
	} in[2 * N_HOSTS + 1]; /* memory and disk of each host, the store */
};
#define STORE (2 * N_HOSTS)

static struct naive_block naive[N_BLOCKS];
static uint32_t n_naive;
static uint64_t ticks;

/* Returns the number of the block that ends with these tokens; adds it if it is new. */
static uint32_t naive_find(uint32_t tenant, const uint32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n_naive; i++)
		if (naive[i].tenant == tenant && naive[i].n_tokens == n && !memcmp(naive[i].tokens, tokens, n * sizeof *tokens))
			return i;
	ck_assert_uint_lt(n_naive, N_BLOCKS);
	naive[n_naive] = (struct naive_block){.tenant = tenant, .n_tokens = n, .tokens = malloc(n * sizeof *tokens)};
	memcpy(naive[n_naive].tokens, tokens, n * sizeof *tokens);
	return n_naive++;
}

static void naive_use(uint32_t block, uint32_t tier, uint64_t now)
{
	if (!naive[block].in[tier].there)
		naive[block].in[tier].since = now;
	naive[block].in[tier].there = true;
	naive[block].in[tier].used = ++ticks;
}

/* Removes the least recently used blocks from a tier, to tier `to` if it is not negative. */
static void naive_trim(uint32_t tier, uint32_t capacity, int to, uint64_t now)
{
	for (;;) {
		uint32_t n = 0, oldest = 0;

		for (uint32_t i = 0; i < n_naive; i++) {
			if (!naive[i].in[tier].there)
				continue;
			oldest = n++ && naive[oldest].in[tier].used < naive[i].in[tier].used ? oldest : i;
		}
		if (n <= capacity)
			return;
		naive[oldest].in[tier].there = false;
		if (to >= 0)
			naive_use(oldest, (uint32_t)to, now);
	}
}

static void naive_request(const struct scale_request *r, const struct scale_cache_params *p, uint64_t hit[SCALE_TIERS])
{
	const uint32_t n = (r->n_prompt + r->answer.n_tokens) / B, memory = 2 * r->host, disk = memory + 1;
	uint32_t *tokens = malloc((r->n_prompt + r->answer.n_tokens) * sizeof *tokens), block[MAX_BLOCKS], at = 0, n_hit = 0;

	for (uint32_t s = 0; s <= r->n_segments; s++) {
		const struct scale_segment *seg = s < r->n_segments ? &r->prompt[s] : &r->answer;

		for (uint32_t i = 0; i < seg->n_tokens; i++)
			tokens[at++] = scale_token(seg->content, i, 50000);
	}
	for (uint32_t i = 0; i < n; i++)
		block[i] = naive_find(r->tenant, tokens, (i + 1) * B);
	free(tokens);
	for (uint32_t i = 0; i < n_naive; i++)
		if (p->ttl_us && naive[i].in[STORE].since + p->ttl_us <= r->time_us)
			naive[i].in[STORE].there = false;
	memset(hit, 0, SCALE_TIERS * sizeof *hit);
	for (; n_hit < (r->n_prompt - 1) / B; n_hit++) {
		const struct naive_block *b = &naive[block[n_hit]];
		const int tier = b->in[memory].there ? SCALE_MEMORY : b->in[disk].there ? SCALE_DISK :
		                 b->in[STORE].there ? SCALE_STORE : SCALE_TIERS;

		if (tier == SCALE_TIERS)
			break;
		hit[tier] += B;
	}
	for (uint32_t i = n; i-- > 0;) {
		if (i >= n_hit || !(naive[block[i]].in[memory].there || naive[block[i]].in[disk].there))
			naive_use(block[i], STORE, r->time_us);
		naive[block[i]].in[disk].there = false;
		naive_use(block[i], memory, r->time_us);
	}
	naive_trim(STORE, (uint32_t)(p->store_bytes / STORED_BYTES), -1, r->time_us);
	naive_trim(memory, (uint32_t)(p->memory_bytes / BLOCK_BYTES), (int)disk, r->time_us);
	naive_trim(disk, (uint32_t)(p->disk_bytes / BLOCK_BYTES), -1, r->time_us);
}

/* Short chats of a few tenants, so that they have much in common. */
static struct scale_trace_params small_trace(void)
{
	struct scale_trace_params t = params_of(rnd64(), SCALE_CHAT);

	t.hosts = N_HOSTS;
	t.requests = 300;
	t.routing = rnd_below(3);
	t.workload.tenants = t.workload.prompts = 2;
	t.workload.system.mean = 300;
	t.workload.message.mean = 130;
	t.workload.answer.mean = 130;
	t.workload.branch = 0.3;
	t.workload.max_tokens = MAX_BLOCKS * B;
	return t;
}

START_TEST(random_traces)
{
	const uint64_t was = rnd_begin((uint64_t)_i);
	const struct scale_cache_params p = {
		.hosts = N_HOSTS, .block_bytes = BLOCK_BYTES, .memory_bytes = rnd_below(40) * BLOCK_BYTES,
		.disk_bytes = rnd_below(3) * rnd_below(20) * BLOCK_BYTES, .store_bytes = rnd_below(80) * STORED_BYTES,
		.ttl_us = rnd_below(2) * (1 + rnd_below(200)) * SECOND,
	};
	const struct scale_trace_params t = small_trace();
	struct scale_cache *c = scale_cache_new(&p);
	struct scale_trace *trace = scale_trace_new(&t);
	struct scale_request r;

	while (scale_trace_next(trace, &r) > 0) {
		uint64_t got[SCALE_TIERS], want[SCALE_TIERS];

		ck_assert_int_eq(scale_cache_request(c, &r, got), 0);
		naive_request(&r, &p, want);
		for (int tier = 0; tier < SCALE_TIERS; tier++)
			ck_assert_msg(got[tier] == want[tier], "request %lu, tier %d: %lu tokens hit, expected %lu",
			              (unsigned long)scale_cache_counts(c)->requests, tier, (unsigned long)got[tier],
			              (unsigned long)want[tier]);
	}
	ck_assert_uint_eq(scale_cache_counts(c)->requests, t.requests);
	for (uint32_t i = 0; i < n_naive; i++)
		free(naive[i].tokens);
	n_naive = 0;
	scale_trace_free(trace);
	scale_cache_free(c);
	rnd_resume(was);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-scale");
	TCase *t = add_case(s, "traces", 60, NULL, NULL, routing, token_ids, NULL);

	add_cases(t, seeds, 3);
	add_cases(t, requests, 3);
	add_cases(t, replayed, 3);
	tcase_add_loop_test(t, files_that_are_none, 0, sizeof damaged / sizeof *damaged);
	add_case(s, "by hand", 60, NULL, NULL, whole_blocks, chats, memory_and_disk, least_recently_used, broken_chains, values,
	         NULL);
	add_cases(add_case(s, "random", 120, NULL, NULL, NULL), random_traces, 30);
	return run_suite(s);
}
