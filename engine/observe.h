/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/observe.h - run texts through a model densely and measure what its layers attend to.
 *
 * A text is read in steps of a few rows, as a prompt. Keys and values of all layers are kept for the text's length, the
 * queries for the step; the rows that are measured give their weights to a measure one after the other. Others, spread
 * over the whole text, are compared with the first of their window.
 */
#ifndef ENG_OBSERVE_H
#define ENG_OBSERVE_H

#include <signal.h>
#include "engine/delta-error.h"
#include "engine/forward.h"
#include "engine/measure.h"
#include "engine/progress.h"
#include "engine/text.h"

struct eng_observer;

/* `session`: of the policy full, on the host; all outlive the observer. Negative errno. */
int eng_observer_new(struct eng_observer **ret, const struct eng_model *model, struct skv_session *session,
                     struct eng_measure *measure, struct eng_delta_error *differ, struct eng_error *err);
/* NULL is ignored. */
void eng_observer_free(struct eng_observer *o);

/*
 * A text of at most the measure's max_tokens; its rows that count are evenly spread, and as many are compared. `stop`
 * raised: -EINTR, and the rows so far are measured. A row is a unit of the progress, which has begun.
 */
int eng_observe(struct eng_observer *o, const struct eng_text *text, const volatile sig_atomic_t *stop,
                struct eng_progress *progress, struct eng_error *err);

#endif
