/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bed.h - what attention kernels are measured on: a pool, sequences in it, lists of their units.
 *
 * The pool holds as many layers of the same batch as it takes to be far larger than the caches. Pages lie in
 * random order. All of it is in the memory that the kernels work on, the host's (a shared memfd, like the
 * daemon's) or a device's.
 */
#ifndef SKV_BENCH_BED_H
#define SKV_BENCH_BED_H

#include "kernels/device.h"
#include "kernels/select.h"

struct bed_options {
	long batch, memory; /* sequences; MiB to go through, at least */
	long layers;        /* 0: as many as that takes */
	double budget;      /* share of the units in the lists */
	const struct skv_kernels *kern;
	const struct skv_backend *device; /* NULL: the host; else entered */
};

struct bed {
	const struct bed_options *o;
	struct skv_shape sh;
	uint32_t tokens, layers, pages; /* pages of one sequence in one layer */
	int threads;
	size_t pool_bytes;
	struct skv_kseq *seq;  /* [batch], the host's; what they point to is not */
	struct skv_batch step; /* all of them, one row each */
	skv_pte *table;        /* [layer][batch][pages] */
	float *q, *out;        /* [batch][n_heads][head_dim] */
	struct skv_list page_list[2], token_list[2]; /* a sequence; a kv head */
	struct skv_list made_pages, made_tokens;     /* what select() makes: a sequence; a kv head */
	float *page_weight, *token_weight;
	struct skv_work work;
	void *from, *to; /* a device's events */
	double begun;    /* the host's clock */
};

/* The kernels of a device (as in struct skv_model), entered, or of the host. 0, or -1 after saying why not. */
int bed_enter(struct bed_options *, uint32_t device);

/* Shape without a pool. */
struct skv_shape bed_shape(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t dtype);

/* A pool alone, and a device's stream and events. As bed_init(). */
int bed_open(struct bed *, const struct bed_options *, struct skv_shape, size_t pool_bytes, int threads);
void bed_close(struct bed *);

/* Zeros in the host's memory; their way to where the kernels work, after which they are freed; and room there. */
void *bed_get(size_t bytes);
void *bed_there(struct bed *, void *p, size_t bytes);
void *bed_room(struct bed *, size_t bytes);

/* `keep` of n units, at random, ascending. Returns how many. */
uint32_t bed_choose(uint64_t *rng, uint32_t n, uint32_t keep, uint32_t *ret_ids);

/* 0, or -1 after saying on stderr why there is no pool. Other memory that is missing ends the program. */
int bed_init(struct bed *, const struct bed_options *, struct skv_shape, uint32_t tokens, int threads);
void bed_deinit(struct bed *);

/* Floats from -1 to 1 in the memory of the kernels; then they are freed. */
float *bed_floats(struct bed *, uint64_t *rng, size_t n);
void bed_free(const struct bed *, void *);

/* Sequence i as one that is all prompt, in the memory of the kernels. */
struct skv_batch bed_prompt(struct bed *, uint32_t i);

/* Milliseconds between the two, of what was queued between them. */
void bed_start(struct bed *);
double bed_stop(struct bed *);

/* End the program, saying why, if r < 0: a device that fails leaves nothing to measure. */
void bed_need(const struct bed *, int r);

#endif
