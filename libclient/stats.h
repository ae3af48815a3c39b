/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/stats.h - counters of a session and its sequences. */
#ifndef SKV_CLIENT_STATS_H
#define SKV_CLIENT_STATS_H

#include <stdint.h>

#include <sparsekv/policy.h>

struct skv_seq;
struct skv_session;

int stats_open(struct skv_session *s); /* what is known of the model once and for all */
/*
 * Decoding rows, from position `first` on, attended together to so many tokens, each counted once for each q head: all
 * rows of a step that is committed, accepted or not.
 */
void stats_attended(struct skv_seq *q, uint32_t first, uint32_t rows, uint64_t tokens);
/* The recall of a step, of its first n sequences. */
void stats_recall(struct skv_session *s, struct skv_seq *const *seqs, const float *share, uint32_t n,
                  const struct skv_layer_set *layers);
/* Counters of the step that is being committed, to the session and its page. */
void stats_step(struct skv_session *s);

#endif
