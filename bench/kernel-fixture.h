/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/kernel-fixture.h - a fixture for measuring attention kernels: a pool, sequences in it, and lists of their
 * tokens and pages.
 *
 * The pool has as many layers of one batch as are needed to exceed the caches by far. Pages are in random order;
 * state pages come after all others. Everything is in the memory that the kernels use: the host's (a shared memfd, as
 * in the daemon) or a device's.
 */
#ifndef SKV_BENCH_KERNEL_FIXTURE_H
#define SKV_BENCH_KERNEL_FIXTURE_H

#include "kernels/device.h"
#include "kernels/select.h"

struct fixture_options {
	long batch, memory; /* number of sequences; least size of the data of a pass, in MiB */
	long layers;        /* 0: as many as `memory` needs */
	long rest;          /* tokens of all sequences but the first, at most as many as that one has; 0: as many */
	long sketch_bits;   /* bits of an element of a sketch; 0: no sketches */
	double budget;      /* share of the tokens or pages that lists have */
	long rows;          /* rows of each sequence in the batch `rows`; 0: no such batch */
	const struct skv_kernels *kern;
	const struct skv_backend *device; /* NULL: the host; otherwise its context is current */
};

struct kernel_fixture {
	const struct fixture_options *o;
	struct skv_shape sh;
	uint32_t tokens, layers, pages; /* of the first sequence; its pages in one layer */
	uint32_t layer_pages;           /* pages of all sequences in one layer */
	int threads;
	size_t pool_bytes, layer_bytes; /* of the pool; of K and V in one layer, without state pages */
	bool sketches;         /* sketches exist, in state pages of page tables from number `layers` on */
	struct skv_kseq *seq;  /* [batch], in host memory; their page tables are in the kernels' memory */
	struct skv_batch step; /* all sequences, one row each */
	struct skv_batch rows; /* all sequences, several rows each, if the options say so */
	/* [layer, then state pages of each layer][batch][pages]; shorter sequences use the first entries */
	skv_pte *table;
	float *q, *out;        /* [batch][rows][n_heads][head_dim] */
	struct skv_index_list page_list[2], token_list[2]; /* [0]: one list a sequence; [1]: one a kv head */
	struct skv_index_list made_pages, made_tokens;     /* outputs of select(): one list a sequence; one a kv head */
	float *page_weight, *token_weight;
	struct skv_workspace work;
	void *from, *to; /* events of a device */
	double begun;    /* by the host's clock */
};

/*
 * Chooses the kernels of a device (as in struct skv_model), whose context becomes current, or of the host. Returns 0,
 * or -1 after printing why that is not possible.
 */
int fixture_enter(struct fixture_options *, uint32_t device);

/* Returns a shape without a pool. */
struct skv_shape fixture_shape(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t dtype);

/* Makes only a pool, and a stream and events on a device. Returns as fixture_init(). */
int fixture_open(struct kernel_fixture *, const struct fixture_options *, struct skv_shape, size_t pool_bytes,
                 int threads);
void fixture_close(struct kernel_fixture *);

/*
 * get() returns zeroed host memory. there() moves such memory to a device and frees the original; on the host it
 * returns p. room() allocates memory for the kernels.
 */
void *fixture_get(size_t bytes);
void *fixture_there(struct kernel_fixture *, void *p, size_t bytes);
void *fixture_room(struct kernel_fixture *, size_t bytes);

/* Chooses `keep` of n numbers at random, in ascending order. Returns their number. */
uint32_t fixture_choose(uint64_t *rng, uint32_t n, uint32_t keep, uint32_t *ret_ids);

/* Returns 0, or -1 after printing on stderr why there is no pool. Other failed allocations end the program. */
int fixture_init(struct kernel_fixture *, const struct fixture_options *, struct skv_shape, uint32_t tokens,
                 int threads);
void fixture_deinit(struct kernel_fixture *);

/* Random floats from -1 to 1 in the kernels' memory; freed with fixture_free(). */
float *fixture_floats(struct kernel_fixture *, uint64_t *rng, size_t n);
void fixture_free(const struct kernel_fixture *, void *);

/* A batch of sequence i as a prompt, in the kernels' memory. */
struct skv_batch fixture_prompt(struct kernel_fixture *, uint32_t i);

/* Records the work that a pass queues on a device; NULL on the host. */
void *fixture_record(struct kernel_fixture *, void (*pass)(struct kernel_fixture *, size_t kind), size_t kind);
void fixture_play(struct kernel_fixture *, void *graph);
void fixture_forget(struct kernel_fixture *, void *graph); /* NULL is ignored */

/* fixture_stop() returns the milliseconds that the work queued since fixture_start() took. */
void fixture_start(struct kernel_fixture *);
double fixture_stop(struct kernel_fixture *);

/* If r < 0, prints the error and ends the program: after a device error nothing can be measured. */
void fixture_need(const struct kernel_fixture *, int r);

#endif
