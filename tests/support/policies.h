/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/policies.h - the policies that tests run: the name of each, by what it does, for tests that need some
 * policy of a kind; and a table, which says which specs of it run in which tests.
 */
#ifndef SKV_TEST_POLICIES_H
#define SKV_TEST_POLICIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sparsekv/policy.h>

/* ---- names, to which a test adds parameters ------------------------------------------------------ */

#define POLICY_WINDOW "streaming"     /* evicts all but attention sinks and a recent window */
#define POLICY_PAGES "delta"          /* a few layers select pages for those after them, for all heads at once */
#define POLICY_TOKENS "omnikv"        /* the same with tokens */
#define POLICY_ANCHORS "kascade"      /* the same with tokens of each kv head, which these layers attend to, too */
#define POLICY_Q_HEADS "tidal"        /* the same with tokens of each q head */
#define POLICY_UNION "lessismore"     /* the same with tokens of all heads together */
#define POLICY_BOUNDS "quest"         /* each layer selects pages by their bounds */
#define POLICY_GRADED "graded"        /* each layer selects tokens by sketches, and attends to all others coarsely */
#define POLICY_SKETCHES "sketch"      /* each layer selects tokens by sketches of their keys */
#define POLICY_SCORES "h2o"           /* evicts tokens by accumulated attention scores */
#define POLICY_OBSERVATION "snapkv"   /* evicts tokens by the scores of an observation window */
#define POLICY_HEAD_BUDGETS "adakv"   /* the same, and heads share their budget */
#define POLICY_PYRAMID "pyramidkv"    /* the same, with smaller budgets in later layers */
#define POLICY_DISSIMILAR "rkv"       /* the same, and keys that are like others count less */
#define POLICY_EVICTED_PAGES "raas"   /* evicts pages of single heads */
#define POLICY_QUANTIZES "kivi"       /* quantizes K and V */
#define POLICY_LATENT "deltakv"       /* selects as POLICY_TOKENS, and stores codes of differences to references */
#define POLICY_LOW_RANK "palu"        /* stores codes of tokens */

/* ---- the table ---------------------------------------------------------------------------------- */

#define POLICY_SPEC 300u /* bytes of a spec */

/* The tests that run a row. */
enum policy_set {
	SET_SEES_ALL = 1u << 0,      /* test-client-compress: attends to all of 600 tokens */
	SET_SHARED_LAYERS = 1u << 1, /* test-client-layers: layers may share K and V */
	SET_OWN_LAYERS = 1u << 2,    /* test-client-layers: refused where layers share K and V */
	SET_TAILS = 1u << 3,         /* test-client-layers: prompts that are announced */
	SET_SWAPS = 1u << 4,         /* test-client-mixed: from each to each */
	SET_PREFIXES = 1u << 5,      /* test-client-prefix */
	SET_RANKS = 1u << 6,         /* test-client-ranks */
	SET_NO_RANKS = 1u << 7,      /* test-client-ranks: refused there */
	SET_REWINDS = 1u << 8,       /* test-client-rewind */
	SET_ROOM = 1u << 9,          /* test-client-room */
	SET_QUIET = 1u << 10,        /* test-client-maintenance: without allocations and system calls */
	SET_STEADY = 1u << 11,       /* test-client-steady */
	SET_APPENDS = 1u << 12,      /* test-client: prompts without attention */
	SET_CHATS = 1u << 13,        /* parked-chats.c */
	SET_SOAK = 1u << 14,         /* test-soak */
	SET_RANKS_KILL = 1u << 15,   /* test-ranks-kill */
	SET_ENGINE_RANKS = 1u << 16, /* test-engine-ranks */
	SET_DRAFTS = 1u << 17,       /* test-engine-generate: speculative decoding */
	SET_EVAL = 1u << 18,         /* test-engine-eval: what is `kept` */
};

struct policy_row {
	const char *spec;
	uint32_t sets;
	enum { NO_CODEC, CODEC, CODEC_ALONE } codec; /* it needs a compressor, with references or without */
	bool all_heads; /* selects for all heads at once, or compresses them together */
	struct {
		double least, most;
	} kept; /* share of about 600 tokens, 2 of 16 layers being dense */
};

/* How many rows are in a set, and number i of them. */
int policy_rows(enum policy_set set);
const struct policy_row *policy_row(enum policy_set set, int i);

/* Writes random compressors for the model (reference-codec.h), which rows of the table may need, into a folder. */
void policy_codecs(const struct skv_model *, uint64_t seed, const char *folder);
/* The row's spec, with the compressor of the folder if it needs one. */
const char *policy_row_spec(const struct policy_row *row, const char *folder, char to[POLICY_SPEC]);

/* What the policy of a spec does, as its block says. */
enum skv_action policy_action(const char *spec);
bool policy_evicts_by_position(const char *spec);

#endif
