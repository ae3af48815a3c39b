/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/observe.h - runs texts through a model densely and measures the attention of its layers.
 *
 * A text is read as a prompt in steps of up to ENG_READ_ROWS rows. The observer stores the keys and values of all
 * layers for the whole text, and the queries of one step. The observer adds the attention weights of each measured row
 * to a struct eng_measure. The observer also compares other rows, spread over the whole text, with the first row of
 * their window (sparse-error.h).
 */
#ifndef ENG_OBSERVE_H
#define ENG_OBSERVE_H

#include <signal.h>
#include "engine/forward.h"
#include "engine/measure.h"
#include "engine/progress.h"
#include "engine/sparse-error.h"
#include "engine/text.h"

struct eng_observer;

/*
 * `session`: a session of the policy full, on the host. All arguments must outlive the observer. Returns 0 or a
 * negative errno.
 */
int eng_observer_new(struct eng_observer **ret, const struct eng_model *model, struct skv_session *session,
                     struct eng_measure *measure, struct eng_delta_error *differ, struct eng_error *err);
/* Does nothing if the observer is NULL. */
void eng_observer_free(struct eng_observer *o);

/*
 * Reads a text of at most measure->shape.max_tokens tokens. Measures eng_text_rows() rows, spread evenly from
 * text->from to the end, and compares the same number of rows of the whole text. Returns -EINTR if `stop` is set; the
 * rows up to then are measured. The caller must have begun `progress`, whose unit is a row.
 */
int eng_observe(struct eng_observer *o, const struct eng_text *text, const volatile sig_atomic_t *stop,
                struct eng_progress *progress, struct eng_error *err);

#endif
