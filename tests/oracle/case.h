/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/case.h - sequences on which policies are verified: shapes, keys, values and queries, all from one seed.
 *
 * K, V and q are numbers of the pool's type, so nothing is rounded when they are written to a page.
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
	BED_RANDOM,   /* no key stands out */
	BED_SHARP,    /* the same with large scores: a few tokens have all of the weight */
	BED_NEEDLES,  /* some keys are similar to the query */
	BED_SAME,     /* all keys are equal, and so are all scores */
	BED_ZERO,     /* the query is zero: all scores are equal, of different keys */
	BED_ROWS,     /* few different keys: many equal scores */
	BED_PATTERNS, /* few different pages, without a key in common: many equal pages */
	BED_KINDS,
};

struct oracle_case_seq {
	struct skv_seq *seq; /* NULL: no session has it */
	bool made;           /* the daemon has it, with its prompt */
	bool holes_unknown;  /* a policy unknown to the oracle has evicted some pages */
	bool rows_unknown;   /* such a policy had a compressor, and it is unknown which tokens it compressed */
	char name[SKV_NAME_MAX];
	enum oracle_case_kind kind;
	uint64_t key;
	uint32_t n, cap;   /* committed tokens, and the number for which there is room */
	float **k, **v;    /* [layer]: [cap][n_kv_heads][head_dim] */
	float **q;         /* [layer]: [cap][n_heads][head_dim] */
	bool **hole;       /* [layer]: [pages] */
	uint32_t prompt;   /* tokens of its first prompt */
	struct oracle_compress *compress; /* [layer]: what is compressed as of the last commit */
	uint8_t **times_compressed;         /* [layer]: [cap] how many times a token was compressed */
	struct oracle_kept *kept; /* its kv heads, once a policy has evicted from each kv head on its own; else NULL */
};

struct oracle_case {
	uint64_t random; /* state */
	struct skv_model model;
	uint32_t reserve; /* tokens of a sequence that all stints together may decode */
	uint32_t n_seqs;
	struct oracle_case_seq seq[BED_MAX_SEQS];
};

/* 0 … n - 1 */
uint32_t oracle_case_below(struct oracle_case *, uint32_t n);

/* Makes a random shape from a seed: for the host, or a shape that the device supports. */
void oracle_case_init(struct oracle_case *, uint64_t seed, uint32_t device);
/*
 * Makes sequences with prompts of up to `longest` tokens, and room for twice `reserve` tokens more: for decode steps,
 * and for later prompts.
 */
void oracle_case_make_seqs(struct oracle_case *, uint32_t longest);
void oracle_case_deinit(struct oracle_case *);

/* Makes token `at`, with its query. */
void oracle_case_token(struct oracle_case *, struct oracle_case_seq *, uint32_t at);

#endif
