/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/read-text.h"

#include <errno.h>

static int step(struct eng_forward *f, struct skv_session *session, struct skv_step_item *item, struct eng_error *err)
{
	int r = eng_forward(f, session, item, 1, err);

	if (r)
		return r;
	r = skv_step_end(session, NULL, NULL);
	return r < 0 ? eng_fail(err, r, "%s", skv_last_error()) : 0;
}

int eng_read(struct eng_forward *f, struct skv_session *session, const struct eng_reading *r, struct eng_error *err)
{
	struct skv_step_item item = SKV_STEP_ITEM(.flags = SKV_STEP_PROMPT);
	int e = skv_seq_new(session, NULL, r->n, &item.seq);

	if (e < 0)
		return eng_fail(err, e, "%s", skv_last_error());
	for (uint32_t at = 0; !e && at < r->n; at += item.n_tokens) {
		item.tokens = r->ids + at;
		item.n_tokens = r->n - at < ENG_READ_ROWS ? r->n - at : ENG_READ_ROWS;
		item.n_prompt_remaining = r->n - at - item.n_tokens;
		if (r->stop && *r->stop) {
			e = eng_fail(err, -EINTR, "interrupted");
			break;
		}
		r->begins(r->arg, at, item.n_tokens);
		e = step(f, session, &item, err);
		if (!e && r->ended)
			r->ended(r->arg);
	}
	skv_seq_drop(item.seq);
	return e;
}
