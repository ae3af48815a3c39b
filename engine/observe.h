/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/observe.h - runs texts through a model densely and measures the attention of its layers.
 *
 * A text is read as a prompt in steps of a few rows. Keys and values of all layers are stored for the whole text,
 * queries for one step. The weights of each measured row are added to a struct eng_measure. Other rows, spread over
 * the whole text, are compared with the first row of their window (delta-error.h).
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

/* `session`: of the policy full, on the host. All arguments must outlive the observer. Returns a negative errno. */
int eng_observer_new(struct eng_observer **ret, const struct eng_model *model, struct skv_session *session,
                     struct eng_measure *measure, struct eng_delta_error *differ, struct eng_error *err);
/* NULL is ignored. */
void eng_observer_free(struct eng_observer *o);

/*
 * Reads a text of at most the measure's max_tokens. Its rows that count are spread evenly, and as many rows are
 * compared. `stop` set: -EINTR, and the rows so far are measured. The progress must have begun; its unit is a row.
 */
int eng_observe(struct eng_observer *o, const struct eng_text *text, const volatile sig_atomic_t *stop,
                struct eng_progress *progress, struct eng_error *err);

#endif
