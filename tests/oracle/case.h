/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/case.h - sequences to verify policies on: shapes, keys, values and queries, all of them from one seed.
 *
 * K, V and q are made as numbers of the pool's type, so nothing is rounded on the way into a page.
 */
#ifndef SKV_ORACLE_BED_H
#define SKV_ORACLE_BED_H

#include <stdbool.h>
#include <stdint.h>
#include <sparsekv/client.h>

#define BED_MAX_SEQS 4u

struct oracle_kept;
struct oracle_compress;

/* What keys and queries are like. */
enum oracle_case_kind {
	BED_RANDOM,   /* nothing stands out */
	BED_SHARP,    /* the same with large scores: few tokens have all of the weight */
	BED_NEEDLES,  /* some tokens are what the query looks for */
	BED_SAME,     /* all keys equal: all scores equal */
	BED_ZERO,     /* the query is zero: all scores equal, of different keys */
	BED_ROWS,     /* few different keys: many equal scores */
	BED_PATTERNS, /* few different pages, without a key in common: many equal pages */
	BED_KINDS,
};

struct oracle_case_seq {
	struct skv_seq *seq; /* NULL: nobody has it */
	bool made;           /* the daemon has it, with its prompt */
	bool holes_unknown;  /* a policy that nobody knows has evicted some pages */
	bool rows_unknown;   /* or has had a compressor, and compressed which tokens it liked */
	char name[SKV_NAME_MAX];
	enum oracle_case_kind kind;
	uint64_t key;
	uint32_t n, cap;   /* tokens that are committed, and for which there is room */
	float **k, **v;    /* [layer]: [cap][n_kv_heads][head_dim] */
	float **q;         /* [layer]: [cap][n_heads][head_dim] */
	bool **hole;       /* [layer]: [pages] */
	uint32_t prompt;   /* tokens that it began with */
	struct oracle_compress *compress; /* [layer]: what is compressed as of the last commit */
	uint8_t **times_compressed;         /* [layer]: [cap] how many times a token was */
	struct oracle_kept *kept; /* its kv heads, once a policy has evicted from each of them alone; else NULL */
};

struct oracle_case {
	uint64_t random; /* state */
	struct skv_model model;
	uint32_t reserve; /* tokens that all stints together may decode of a sequence */
	uint32_t n_seqs;
	struct oracle_case_seq seq[BED_MAX_SEQS];
};

/* 0 … n - 1 */
uint32_t oracle_case_below(struct oracle_case *, uint32_t n);

/* A shape from a seed: for the host, or with `device` for what runs there. */
void oracle_case_init(struct oracle_case *, uint64_t seed, uint32_t device);
/*
 * Sequences of up to `longest` tokens after their prompts, for as many more as are in reserve, and as many in
 * prompts.
 */
void oracle_case_make_seqs(struct oracle_case *, uint32_t longest);
void oracle_case_deinit(struct oracle_case *);

/* Make token `at`, with its query. */
void oracle_case_token(struct oracle_case *, struct oracle_case_seq *, uint32_t at);

#endif
