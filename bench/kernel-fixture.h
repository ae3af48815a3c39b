/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/kernel-fixture.h - sets up memory for measuring attention kernels: a pool of pages, sequences in it, and lists
 * of their tokens and pages.
 *
 * The pool has K and V of the same batch in as many layers as are needed to be far larger than the processor's caches.
 * Pages are in random order; state pages come after all pages of K and V. The data is in the memory that the kernels
 * use: host memory (a shared memfd, as in the daemon) or the memory of a device.
 */
#ifndef SKV_BENCH_KERNEL_FIXTURE_H
#define SKV_BENCH_KERNEL_FIXTURE_H

#include "kernels/device.h"
#include "kernels/select.h"

struct fixture_options {
	long batch, memory; /* number of sequences; least size in MiB of the data that a pass over all layers reads */
	long layers;        /* number of layers; 0: as many as `memory` requires */
	/*
	 * number of tokens in each sequence but the first, at most as many as in the first; 0: as many as in the first
	 */
	long rest;
	long sketch_bits;   /* bits for each element of a sketch; 0: no sketches */
	double budget;      /* share of a sequence's tokens or pages that the lists contain */
	long rows;          /* rows of each sequence in the batch kernel_fixture.rows; 0: there is no such batch */
	const struct skv_kernels *kern;
	const struct skv_backend *device; /* NULL: the host; otherwise the device's context must be current */
};

struct kernel_fixture {
	const struct fixture_options *o;
	struct skv_shape sh;
	/* tokens of the first sequence; layers; pages of the first sequence in one layer */
	uint32_t tokens, layers, pages;
	uint32_t layer_pages;           /* number of pages of all sequences in one layer */
	int threads;
	size_t pool_bytes, layer_bytes; /* bytes of the pool; bytes of K and V in one layer, without state pages */
	/* sketches exist, in state pages; the page tables with number `layers` and above list these pages */
	bool sketches;
	struct skv_kseq *seq;  /* [batch], in host memory; the page tables they point to are in the kernels' memory */
	struct skv_batch step; /* a decode batch: all sequences, one row each */
	struct skv_batch rows; /* a batch of all sequences with several rows each, if the options ask for it */
	/*
	 * page tables [layers, then the state pages of each layer][batch][pages]; a shorter sequence uses only the
	 * first entries of its row
	 */
	skv_pte *table;
	float *q, *out;        /* [batch][rows][n_heads][head_dim] */
	/* lists to attend to; [0]: one list for each sequence; [1]: one list for each kv head */
	struct skv_index_list page_list[2], token_list[2];
	/* outputs of select(): one list for each sequence; one list for each kv head */
	struct skv_index_list made_pages, made_tokens;
	float *page_weight, *token_weight;
	struct skv_workspace work;
	void *from, *to; /* events on the device, for the beginning and the end of a measurement */
	double begun;    /* time at which a measurement began, by the host's clock */
};

/*
 * Sets o->kern and o->device to the kernels of `device` (as in struct skv_model). If `device` is a CUDA device, its
 * context becomes current. Returns 0, or -1 after printing why that is not possible.
 */
int fixture_enter(struct fixture_options *, uint32_t device);

/* Returns a shape of attention; its pool is not set. */
struct skv_shape fixture_shape(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t dtype);

/* Makes only a pool and, on a device, a stream and events. Returns as fixture_init(). */
int fixture_open(struct kernel_fixture *, const struct fixture_options *, struct skv_shape, size_t pool_bytes,
                 int threads);
void fixture_close(struct kernel_fixture *);

/*
 * fixture_get() returns zeroed host memory. fixture_there() moves memory from fixture_get() to the kernels' memory: on
 * a device it copies it and frees the original, on the host it returns p. fixture_room() allocates memory that kernels
 * can use.
 */
void *fixture_get(size_t bytes);
void *fixture_there(struct kernel_fixture *, void *p, size_t bytes);
void *fixture_room(struct kernel_fixture *, size_t bytes);

/* Writes up to `keep` random numbers below n, without repetition, in ascending order. Returns how many. */
uint32_t fixture_choose(uint64_t *rng, uint32_t n, uint32_t keep, uint32_t *ret_ids);

/*
 * Makes the whole fixture. Returns 0, or -1 after printing on stderr why a pool could not be made. Any other failed
 * allocation ends the program.
 */
int fixture_init(struct kernel_fixture *, const struct fixture_options *, struct skv_shape, uint32_t tokens,
                 int threads);
void fixture_deinit(struct kernel_fixture *);

/* Returns n random floats from -1 to 1 in the kernels' memory; the caller frees them with fixture_free(). */
float *fixture_floats(struct kernel_fixture *, uint64_t *rng, size_t n);
void fixture_free(const struct kernel_fixture *, void *);

/* Returns a batch that contains only sequence i, as a prompt, in the kernels' memory. */
struct skv_batch fixture_prompt(struct kernel_fixture *, uint32_t i);

/* Records as a CUDA graph the work that pass() queues on a device. Returns NULL on the host. */
void *fixture_record(struct kernel_fixture *, void (*pass)(struct kernel_fixture *, size_t kind), size_t kind);
void fixture_play(struct kernel_fixture *, void *graph);
void fixture_forget(struct kernel_fixture *, void *graph); /* does nothing if the graph is NULL */

/* fixture_stop() returns how many milliseconds the work took that was queued since fixture_start(). */
void fixture_start(struct kernel_fixture *);
double fixture_stop(struct kernel_fixture *);

/* If r is negative, prints the error and ends the program, because after a device error nothing can be measured. */
void fixture_need(const struct kernel_fixture *, int r);

#endif
