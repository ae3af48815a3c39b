/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/kernel-fixture.h - what attention kernels are measured on: a pool, sequences in it, lists of their units.
 *
 * The pool holds as many layers of the same batch as it takes to be far larger than the caches. Pages lie in
 * random order, state pages behind all others. All of it is in the memory that the kernels work on, the host's (a shared memfd, like the
 * daemon's) or a device's.
 */
#ifndef SKV_BENCH_KERNEL_FIXTURE_H
#define SKV_BENCH_KERNEL_FIXTURE_H

#include "kernels/device.h"
#include "kernels/select.h"

struct fixture_options {
	long batch, memory; /* sequences; MiB to go through, at least */
	long layers;        /* 0: as many as that takes */
	long rest;          /* tokens of all sequences but the first, at most as many as that has; 0: as many */
	long sketch_bits;   /* of the sketches of keys; 0: there are none */
	double budget;      /* share of the units in the lists */
	long rows;          /* of each sequence, that decode at once; 0: there is no such batch */
	const struct skv_kernels *kern;
	const struct skv_backend *device; /* NULL: the host; else entered */
};

struct kernel_fixture {
	const struct fixture_options *o;
	struct skv_shape sh;
	uint32_t tokens, layers, pages; /* of the first sequence; pages in one layer */
	uint32_t layer_pages;           /* and of all sequences */
	int threads;
	size_t pool_bytes, layer_bytes; /* all of it; K and V of one layer, from which state pages are apart */
	bool sketches;         /* they are there, in the state pages of tables `layers` and on */
	struct skv_kseq *seq;  /* [batch], the host's; what they point to is not */
	struct skv_batch step; /* all of them, one row each ... */
	struct skv_batch rows; /* ... and several, if the options say so */
	skv_pte *table;        /* [layer, then the state pages of each][batch][pages], a shorter sequence's first ones in use */
	float *q, *out;        /* [batch][rows][n_heads][head_dim] */
	struct skv_index_list page_list[2], token_list[2]; /* a sequence; a kv head */
	struct skv_index_list made_pages, made_tokens;     /* what select() makes: a sequence; a kv head */
	float *page_weight, *token_weight;
	struct skv_workspace work;
	void *from, *to; /* a device's events */
	double begun;    /* the host's clock */
};

/* The kernels of a device (as in struct skv_model), entered, or of the host. 0, or -1 after saying why not. */
int fixture_enter(struct fixture_options *, uint32_t device);

/* Shape without a pool. */
struct skv_shape fixture_shape(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t dtype);

/* A pool alone, and a device's stream and events. As fixture_init(). */
int fixture_open(struct kernel_fixture *, const struct fixture_options *, struct skv_shape, size_t pool_bytes,
                 int threads);
void fixture_close(struct kernel_fixture *);

/* Zeros in the host's memory; their way to where the kernels work, after which they are freed; and room there. */
void *fixture_get(size_t bytes);
void *fixture_there(struct kernel_fixture *, void *p, size_t bytes);
void *fixture_room(struct kernel_fixture *, size_t bytes);

/* `keep` of n units, at random, ascending. Returns how many. */
uint32_t fixture_choose(uint64_t *rng, uint32_t n, uint32_t keep, uint32_t *ret_ids);

/* 0, or -1 after saying on stderr why there is no pool. Other memory that is missing ends the program. */
int fixture_init(struct kernel_fixture *, const struct fixture_options *, struct skv_shape, uint32_t tokens,
                 int threads);
void fixture_deinit(struct kernel_fixture *);

/* Floats from -1 to 1 in the memory of the kernels; then they are freed. */
float *fixture_floats(struct kernel_fixture *, uint64_t *rng, size_t n);
void fixture_free(const struct kernel_fixture *, void *);

/* Sequence i as one that is all prompt, in the memory of the kernels. */
struct skv_batch fixture_prompt(struct kernel_fixture *, uint32_t i);

/* What a pass queues on a device, as a recording; NULL on the host. */
void *fixture_record(struct kernel_fixture *, void (*pass)(struct kernel_fixture *, size_t kind), size_t kind);
void fixture_play(struct kernel_fixture *, void *graph);
void fixture_forget(struct kernel_fixture *, void *graph); /* NULL: nothing */

/* Milliseconds between the two, of what was queued between them. */
void fixture_start(struct kernel_fixture *);
double fixture_stop(struct kernel_fixture *);

/* End the program, saying why, if r < 0: a device that fails leaves nothing to measure. */
void fixture_need(const struct kernel_fixture *, int r);

#endif
