/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/fake-backend.h - queued operations, shared by the files of the fake device. */
#ifndef SKV_FAKE_BACKEND_H
#define SKV_FAKE_BACKEND_H

#include "kernels/device.h"
#include "kernels/compress.h"
#include "kernels/evict.h"
#include "kernels/prefill.h"
#include "kernels/select.h"

enum what { KERNEL, STAGE, PUBLISH, ZERO, EVENT, GRAPH, WAIT };

struct op;
typedef void fake_run_fn(const struct skv_kernels *host, const struct op *);

struct op {
	struct op *next;
	enum what what;
	struct skv_shape shape;
	struct skv_codec codec; /* the shape's codec, for layers that compress */
	struct skv_batch batch;
	struct skv_scores scores;
	struct skv_index_list list;
	struct skv_select select;
	struct skv_window window;
	struct skv_attended attended;
	struct skv_workspace work;
	struct skv_stage stage;
	const void *in[2];
	void *out;
	size_t bytes;
	uint32_t n, pages[2][2 * SKV_MAX_LAYERS];
	struct skv_slot_mapping slots;
	fake_run_fn *run; /* of a kernel: calls the host's kernel */
	struct skv_rank rank;
	struct skv_evict_rule by;
	struct skv_head_budget_rule head_budgets;
	struct skv_touch_rule touch;
	void *own; /* further arguments, from malloc(): layers that compress */
	struct skv_decompressed decompressed;
	struct skv_sparse sparse; /* its lists are copies in this op: lists, extra */
	struct skv_tile_lists lists, extra, tiles[2]; /* tiles: lists to fill in */
	struct skv_budget top;
	uint32_t counts[SKV_HIP_STAGES];
	bool has_scores, has_slots, has_list, tokens;
	struct op *of;    /* WAIT in a recording: the recorded event ... */
	bool done;        /* ... which has run in this launch */
	uint64_t serial;  /* EVENT, WAIT: counts the event's records; 0 in a recording */
};

/* Streams, recordings and events: fake-streams.c. */
void fake_streams(struct skv_backend *);
struct op *fake_queue(void *stream, enum what);
int fake_wait(void *stream);
void fake_wait_for_all(void); /* for all queued work */
void fake_run_queued(const struct op *); /* an EVENT, GRAPH or WAIT */
/* Runs an operation, of any kind. */
void fake_run(const struct op *);
int fake_failed(int r, const char *what); /* sets the error text; returns r */

/*
 * Queues a kernel on the stream of the workspace. Structs are copied at the call; what they point to is read when the
 * work runs.
 */
struct op *fake_kernel(fake_run_fn *, const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                       const struct skv_workspace *);

/*
 * Returns the device's kernels, and in *ret_host the host's kernels that run the queued work: fake-kernels.c. NULL:
 * there are none.
 */
const struct skv_kernels *fake_kernels(const struct skv_kernels **ret_host);

/* Each fills in the kernels of one group: they queue work that the host's kernels run. */
void fake_decode(struct skv_kernels *);
void fake_select(struct skv_kernels *);
void fake_evict(struct skv_kernels *);
void fake_compress(struct skv_kernels *);
void fake_prefill(struct skv_kernels *);

#endif
