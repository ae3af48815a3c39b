/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/fake-backend.h - how the files of the fake device see each other: what is queued. */
#ifndef SKV_FAKE_BACKEND_H
#define SKV_FAKE_BACKEND_H

#include "kernels/device.h"
#include "kernels/compress.h"
#include "kernels/evict.h"
#include "kernels/prefill.h"
#include "kernels/select.h"

enum what {
	APPEND, COPY_PAGES, BOUNDS, SCORE, DENSE, WINDOW, PAGES, TOKENS, CHOSEN, PREFILL, SELECT, UNION, RECALL,
	ELSEWHERE, STAGE, PUBLISH, ZERO, EVENT, GRAPH
};

struct op;
typedef void fake_run_fn(const struct skv_kernels *host, const struct op *);

struct op {
	struct op *next;
	enum what what;
	struct skv_shape shape;
	struct skv_codec code; /* the shape's, of layers that pack */
	struct skv_batch batch;
	struct skv_scores ev;
	struct skv_index_list list;
	struct skv_select select;
	struct skv_window window;
	struct skv_attended seen;
	struct skv_workspace work;
	struct skv_stage stage;
	const void *in[2];
	void *out;
	size_t bytes;
	uint32_t n, pool, pages[2][2 * SKV_MAX_LAYERS];
	struct skv_slot_mapping slots;
	fake_run_fn *elsewhere; /* a function for each kernel of layers that keep units or pack: fake-evict.c, fake-compress.c */
	struct skv_rank rank;
	struct skv_evict_rule by;
	struct skv_head_budget_rule allot;
	struct skv_touch_rule stamp;
	struct fake_layer *layers; /* that pack; the op's own */
	struct skv_decompressed rebuilt;
	struct skv_sparse sparse; /* its lists are the op's own, too: units, more */
	struct skv_tile_lists units, more, tiles[2]; /* tiles: those to fill in */
	struct skv_budget top;
	uint32_t counts[SKV_HIP_STAGES];
	bool has_ev, has_slots, has_list, tokens;
};

/* Queue a kernel on the stream of the work. */
struct op *fake_kernel(enum what what, const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                       const struct skv_workspace *w);

/* Fill in the kernels of layers that keep units. */
void fake_keep(struct skv_kernels *k);
/* And of those that pack. */
void fake_codes(struct skv_kernels *k);
/* And of prompts that do not attend densely. */
void fake_sparse(struct skv_kernels *k);

#endif
