/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/policies.c - the specs of each policy that tests run: a new policy gets its rows here. */
#include "tests/support/policies.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/daemon-fixture.h"
#include "tests/support/reference-codec.h"

#define ROW(text, in, ...) {.spec = text, .sets = in, __VA_ARGS__}

/* In the order of what they do: policies that evict tokens or pages by scores come last. */
static const struct policy_row rows[] = {
	ROW(POLICY_SKETCHES "?budget=40&recent=8",
	    SET_SHARED_LAYERS | SET_SWAPS | SET_PREFIXES | SET_RANKS | SET_REWINDS | SET_CHATS | SET_RANKS_KILL),
	ROW(POLICY_SKETCHES "?bits=4&budget=40&recent=8", SET_RANKS),
	ROW(POLICY_GRADED "?budget=40&recent=8",
	    SET_SWAPS | SET_PREFIXES | SET_RANKS | SET_REWINDS | SET_CHATS | SET_SOAK | SET_RANKS_KILL),
	ROW(POLICY_SKETCHES "?bits=2&budget=60", SET_ENGINE_RANKS),
	ROW(POLICY_SKETCHES "?budget=0.125", SET_DRAFTS),

	ROW("full",
	    SET_SEES_ALL | SET_SHARED_LAYERS | SET_TAILS | SET_SWAPS | SET_PREFIXES | SET_RANKS | SET_REWINDS |
	    SET_ROOM | SET_QUIET | SET_STEADY | SET_APPENDS | SET_CHATS | SET_SOAK | SET_RANKS_KILL |
	    SET_ENGINE_RANKS | SET_DRAFTS),
	ROW("full?prefill=streaming+recompute&prefill_sinks=8&prefill_window=24&prefill_gamma=16&prefill_tail=32",
	    SET_SHARED_LAYERS | SET_TAILS),
	ROW("full?prefill=kascade+delta&prefill_gamma=16&prefill_tail=16&prefill_top=24",
	    SET_SHARED_LAYERS | SET_TAILS),
	ROW("full?prefill=streaming&prefill_sinks=4&prefill_window=50", SET_ROOM),
	ROW("full?prefill=hip", SET_ROOM),

	ROW(POLICY_BOUNDS "?budget=600", SET_SEES_ALL),
	ROW(POLICY_BOUNDS "?budget=3&dense=0", SET_SHARED_LAYERS),
	ROW(POLICY_BOUNDS ":sglang?budget=5&dense=1", SET_SHARED_LAYERS | SET_NO_RANKS),
	ROW(POLICY_BOUNDS ":paper?budget=5&dense=1",
	    SET_SWAPS | SET_PREFIXES | SET_RANKS | SET_REWINDS | SET_STEADY | SET_APPENDS | SET_CHATS | SET_SOAK),
	ROW(POLICY_BOUNDS ":shared?budget=5&dense=2", SET_SWAPS | SET_RANKS, .all_heads = true),
	ROW(POLICY_BOUNDS "?budget=0.25&dense=1", SET_ROOM | SET_QUIET),
	ROW(POLICY_BOUNDS "?budget=0.25&dense=1&prefill=streaming+delta&prefill_sinks=4&prefill_window=50&"
	    "prefill_gamma=16&prefill_tail=16",
	    SET_ROOM),
	ROW(POLICY_BOUNDS "?budget=8&dense=1&prefill=streaming+delta", SET_STEADY),
	ROW(POLICY_BOUNDS "?budget=8", SET_ENGINE_RANKS),
	ROW(POLICY_BOUNDS "?budget=0.25", SET_DRAFTS),

	ROW(POLICY_PAGES "?budget=600&layers=1,3&dense=1", SET_SEES_ALL),
	ROW(POLICY_PAGES "?budget=3&dense=0", SET_SHARED_LAYERS),
	ROW(POLICY_PAGES "?budget=5&layers=1,3&dense=1", SET_SWAPS | SET_RANKS | SET_SOAK, .all_heads = true),
	ROW(POLICY_PAGES "?budget=5&layers=1,3&dense=1&scores=sketch", SET_SWAPS | SET_RANKS, .all_heads = true),
	ROW(POLICY_PAGES "?budget=6&layers=0,2&dense=1", SET_PREFIXES | SET_REWINDS),
	ROW(POLICY_PAGES "?budget=0.25&layers=2,4", SET_ROOM | SET_QUIET),
	ROW(POLICY_PAGES "?budget=5&layers=1,2&dense=1", SET_RANKS_KILL),
	ROW(POLICY_PAGES "?budget=0.25&layers=2,5", SET_ENGINE_RANKS),
	ROW(POLICY_PAGES "?budget=0.25", SET_DRAFTS),

	ROW(POLICY_TOKENS "?budget=600&layers=1,3&dense=1", SET_SEES_ALL),
	ROW(POLICY_TOKENS "?budget=24&recent=4&dense=0", SET_SHARED_LAYERS),
	ROW(POLICY_TOKENS "?budget=48&recent=8&layers=1,3&dense=1",
	    SET_SWAPS | SET_RANKS | SET_SOAK, .all_heads = true),
	ROW(POLICY_TOKENS "?budget=80&layers=1&dense=1", SET_PREFIXES | SET_REWINDS),
	ROW(POLICY_TOKENS "?budget=80&layers=1&dense=1&scores=sketch", SET_RANKS | SET_REWINDS, .all_heads = true),
	ROW(POLICY_TOKENS "?budget=60&layers=2,5", SET_ENGINE_RANKS),
	ROW(POLICY_TOKENS "?budget=0.25", SET_DRAFTS),

	ROW(POLICY_ANCHORS "?budget=20", SET_SHARED_LAYERS),
	ROW(POLICY_ANCHORS ":shared-dense-anchors?budget=20", SET_SHARED_LAYERS),
	ROW(POLICY_ANCHORS "?budget=20&scores=sketch", SET_SHARED_LAYERS | SET_RANKS),
	ROW(POLICY_ANCHORS "?budget=40&layers=0,2", SET_SWAPS | SET_PREFIXES | SET_RANKS | SET_REWINDS),
	ROW(POLICY_ANCHORS ":shared?budget=40&layers=0,2", SET_SWAPS | SET_NO_RANKS),
	ROW(POLICY_ANCHORS "?budget=60&layers=0,3,5", SET_ENGINE_RANKS),
	ROW(POLICY_ANCHORS "?budget=0.25", SET_DRAFTS),

	ROW(POLICY_Q_HEADS "?budget=24&dense=1", SET_SHARED_LAYERS | SET_PREFIXES | SET_REWINDS),
	ROW(POLICY_Q_HEADS "?budget=40&layers=3&dense=1", SET_SWAPS | SET_RANKS),

	ROW(POLICY_UNION "?budget=40&dense=0", SET_SHARED_LAYERS | SET_PREFIXES | SET_NO_RANKS | SET_REWINDS),
	ROW(POLICY_UNION "?budget=48&layers=1,3&dense=1", SET_SWAPS),

	ROW(POLICY_WINDOW "?budget=600&sinks=4", SET_SEES_ALL),
	ROW(POLICY_WINDOW "?budget=60&sinks=4", SET_SHARED_LAYERS | SET_RANKS | SET_STEADY | SET_CHATS),
	ROW(POLICY_WINDOW "?budget=70&sinks=20&dense=2", SET_SHARED_LAYERS),
	ROW(POLICY_WINDOW "?budget=100&sinks=4&dense=1", SET_SWAPS | SET_SOAK | SET_RANKS_KILL),
	ROW(POLICY_WINDOW "?budget=64&sinks=4&dense=1", SET_PREFIXES | SET_REWINDS | SET_APPENDS),
	ROW(POLICY_WINDOW "?budget=128&dense=1", SET_ROOM | SET_QUIET),
	ROW(POLICY_WINDOW "?budget=0.25", SET_DRAFTS),

	ROW(POLICY_QUANTIZES "?bits=2&residual=20&block=64", SET_SOAK),
	ROW(POLICY_QUANTIZES "?bits=2&residual=16&block=32", SET_SWAPS),
	ROW(POLICY_QUANTIZES "?bits=4&residual=32", SET_OWN_LAYERS | SET_RANKS | SET_CHATS),
	ROW(POLICY_QUANTIZES "?residual=16&block=32", SET_PREFIXES | SET_REWINDS | SET_RANKS_KILL),
	ROW(POLICY_QUANTIZES "?residual=256&block=64&bits=2&scale_block=32", SET_PREFIXES),
	ROW(POLICY_QUANTIZES "?dense=1", SET_ROOM),
	ROW(POLICY_QUANTIZES "?bits=4", SET_DRAFTS),

	ROW(POLICY_LATENT "?budget=40&recent=8&layers=1,3&dense=1&bits=4&scale_block=32&residual=16&"
	    "block=16&" REFMODEL_CODES,
	    SET_PREFIXES | SET_RANKS | SET_REWINDS | SET_SOAK, .codec = CODEC, .all_heads = true),
	ROW(POLICY_LATENT "?budget=48&recent=8&layers=1,3&dense=1&bits=0&full_bits=4&residual=16&block=16&"
	    "" REFMODEL_CODES,
	    SET_SWAPS),
	ROW(POLICY_LATENT "?budget=48&recent=8&layers=1&dense=1&bits=4&scale_block=32&residual=16&"
	    "block=32&" REFMODEL_CODES,
	    SET_SWAPS, .codec = CODEC),
	ROW(POLICY_LATENT "?budget=40&recent=8&layers=1&dense=1&bits=16&scale_block=32&ref_bits=4&"
	    "full_bits=4&residual=250&block=32&" REFMODEL_CODES,
	    SET_PREFIXES, .codec = CODEC),
	ROW(POLICY_LATENT "?budget=40&recent=8&layers=1&dense=1&bits=16&scale_block=32&ref_bits=4&"
	    "full_bits=4&residual=50&block=32&" REFMODEL_CODES,
	    SET_RANKS, .codec = CODEC, .all_heads = true),
	ROW(POLICY_LATENT "?budget=40&recent=8&layers=1,3&dense=1&bits=0&residual=1&block=16&stride=7&"
	    "n_refs=4&ref_bits=8",
	    SET_PREFIXES | SET_RANKS, .all_heads = true),
	ROW(POLICY_LATENT "?budget=40&layers=1,3&dense=1&bits=0&residual=16&block=16", SET_QUIET),
	ROW(POLICY_LATENT "?budget=60&recent=8&layers=1,2&dense=1&bits=0&stride=5&n_refs=3&residual=16&block=16",
	    SET_RANKS_KILL),
	ROW(POLICY_LATENT "?budget=60&layers=2,5&bits=0&stride=5&n_refs=3&residual=16&block=16", SET_ENGINE_RANKS),
	ROW(POLICY_LATENT "?layers=2,7,12&residual=16&block=16", SET_DRAFTS, .codec = CODEC),

	ROW(POLICY_LOW_RANK "?bits=8&scale_block=32&residual=16&block=16",
	    SET_PREFIXES | SET_RANKS, .codec = CODEC_ALONE, .all_heads = true),

	ROW(POLICY_SCORES "?budget=600", SET_SEES_ALL),
	ROW(POLICY_SCORES "?budget=100&dense=1", SET_SOAK),
	ROW(POLICY_SCORES "?budget=100", SET_SWAPS | SET_CHATS),
	ROW(POLICY_SCORES "?budget=60", SET_OWN_LAYERS | SET_RANKS),
	ROW(POLICY_SCORES "?budget=60&dense=1",
	    SET_PREFIXES | SET_REWINDS | SET_ROOM | SET_STEADY | SET_APPENDS | SET_RANKS_KILL),
	ROW(POLICY_SCORES "?budget=200&dense=2", SET_EVAL, .kept = {0.38, 0.46}),

	ROW(POLICY_OBSERVATION "?budget=600", SET_SEES_ALL),
	ROW(POLICY_OBSERVATION "?budget=100", SET_SWAPS | SET_CHATS | SET_SOAK),
	ROW(POLICY_OBSERVATION "?budget=50&window=8&interval=16", SET_OWN_LAYERS | SET_RANKS),
	ROW(POLICY_OBSERVATION "?budget=60", SET_PREFIXES | SET_REWINDS | SET_APPENDS),
	ROW(POLICY_OBSERVATION "?budget=70&window=16", SET_ROOM),
	ROW(POLICY_OBSERVATION "?budget=200&dense=2&interval=32", SET_EVAL, .kept = {0.38, 0.5}),

	/* its heads share a budget: one has up to 1.8 times as much */
	ROW(POLICY_HEAD_BUDGETS "?budget=600", SET_SEES_ALL),
	ROW(POLICY_HEAD_BUDGETS "?budget=100", SET_SWAPS | SET_NO_RANKS),
	ROW(POLICY_HEAD_BUDGETS "?budget=60&window=8&interval=16", SET_OWN_LAYERS),
	ROW(POLICY_HEAD_BUDGETS "?budget=60&window=8&interval=8", SET_ROOM | SET_QUIET | SET_SOAK),
	ROW(POLICY_HEAD_BUDGETS "?budget=200&dense=2&interval=32", SET_EVAL, .kept = {0.6, 0.85}),

	ROW(POLICY_PYRAMID "?budget=60&window=8&interval=16", SET_OWN_LAYERS),
	ROW(POLICY_PYRAMID "?budget=100", SET_SWAPS),
	ROW(POLICY_PYRAMID "?budget=200&dense=2&interval=32", SET_EVAL, .kept = {0.36, 0.5}),

	ROW(POLICY_DISSIMILAR "?budget=600", SET_SEES_ALL),
	ROW(POLICY_DISSIMILAR "?budget=60&window=8&interval=16", SET_OWN_LAYERS),
	ROW(POLICY_DISSIMILAR "?budget=100", SET_SWAPS),
	ROW(POLICY_DISSIMILAR "?budget=200&dense=2&interval=32", SET_EVAL, .kept = {0.38, 0.5}),

	/* keeps the prompt */
	ROW(POLICY_EVICTED_PAGES "?budget=600", SET_SEES_ALL),
	ROW(POLICY_EVICTED_PAGES "?budget=64", SET_OWN_LAYERS),
	ROW(POLICY_EVICTED_PAGES "?budget=8&dense=1",
	    SET_SWAPS | SET_RANKS | SET_ROOM | SET_QUIET | SET_APPENDS | SET_SOAK),
	ROW(POLICY_EVICTED_PAGES "?budget=13&alpha=0.02&dense=1", SET_PREFIXES | SET_REWINDS | SET_RANKS_KILL),
	ROW(POLICY_EVICTED_PAGES "?budget=34&dense=2", SET_EVAL, .kept = {0.9, 1}),
};

int policy_rows(enum policy_set set)
{
	int n = 0;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		n += (rows[i].sets & set) > 0;
	return n;
}

const struct policy_row *policy_row(enum policy_set set, int i)
{
	const struct policy_row *row = rows;

	for (; !(row->sets & set) || i-- > 0; row++)
		;
	return row;
}

static const char *const codec_names[] = {[CODEC] = "codec", [CODEC_ALONE] = "codec-alone"};

static const char *codec_path(const char *folder, int codec, char to[128])
{
	snprintf(to, 128, "%.100s/%s", folder, codec_names[codec]);
	return to;
}

void policy_codecs(const struct skv_model *m, uint64_t seed, const char *folder)
{
	char path[128];

	refmodel_codec(m, seed, codec_path(folder, CODEC, path));
	refmodel_codec_alone(m, seed, codec_path(folder, CODEC_ALONE, path));
}

const char *policy_row_spec(const struct policy_row *row, const char *folder, char to[POLICY_SPEC])
{
	char path[128];

	snprintf(to, POLICY_SPEC, "%s", row->spec);
	if (row->codec)
		snprintf(to, POLICY_SPEC, "%s&file=%s", row->spec, codec_path(folder, row->codec, path));
	return to;
}

/* The policy that a spec names, from its file: by a path that no other loader of policies uses. */
static const struct skv_policy *block_of(const char *spec)
{
	static const struct skv_policy *known[64];
	const struct skv_policy *(*block)(void) = NULL;
	size_t n = strcspn(spec, "?:"), i = 0;
	char name[64];
	void *file;

	while (known[i] && (strlen(known[i]->name) != n || strncmp(known[i]->name, spec, n)))
		i++;
	if (known[i])
		return known[i];
	snprintf(name, sizeof(name), "policies/.libs/%.*s.so", (int)n, spec);
	file = dlopen(fix_built(name), RTLD_NOW | RTLD_LOCAL);
	if (file)
		*(void **)&block = dlsym(file, SKV_POLICY_SYMBOL);
	if (!block) { /* main() asks, too, where Check cannot fail */
		fprintf(stderr, "%s\n", dlerror());
		abort();
	}
	return known[i] = block();
}

enum skv_action policy_action(const char *spec)
{
	return (enum skv_action)block_of(spec)->action;
}

bool policy_evicts_by_position(const char *spec)
{
	return block_of(spec)->action == SKV_ACT_EVICT && block_of(spec)->evidence == SKV_EVID_POSITION;
}
