/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/prefix.c - sealed prefixes: made, found, and forked.
 *
 * Both ways are forks (fork.c) of K and V alone: from a sequence that its client holds to one that nobody does, and back. One that is
 * being made has no name, so that nobody finds it, and a daemon that dies leaves a row that the next one removes.
 */
#include "daemon/core/prefix.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/accounts.h"
#include "daemon/core/lookup.h"
#include "daemon/core/prefixes.h"
#include "daemon/core/refuse.h"
#include "daemon/core/sequences.h"
#include "daemon/core/task.h"
#include "daemon/core/validate.h"

/* It is used again: of all that nobody holds it is the last to make room. */
static void use(struct skv_core *c, uint32_t seq)
{
	skv_write_seq(&c->state, seq)->used = ++skv_write_header(&c->state)->uses;
	skv_write_seq(&c->state, seq)->idle_since_ns = 0;
}

int skv_core_prefix_seal(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id, const struct skv_block_key *keys,
                         uint32_t n)
{
	struct skv_fork what = {.session = SKV_NO_INDEX, .n_tokens = n * SKV_BLOCK_TOKENS, .max_tokens = n * SKV_BLOCK_TOKENS, .prefix = true};
	const struct skv_seq_row *q;
	uint32_t client, seq, there;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	if (r)
		return r;
	if (n == 0 || n > SKV_MAX_TOKENS / SKV_BLOCK_TOKENS)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "a prefix of %u blocks, expected 1 to %u", n, SKV_MAX_TOKENS / SKV_BLOCK_TOKENS);
	q = skv_seq_row(&c->state, seq);
	there = skv_prefixes_find(c, q->pool, &q->model, &keys[n - 1], n - 1);
	if (there != SKV_NO_INDEX) {
		use(c, there);
		return skv_core_refuse(c, SKV_CORE_E_EXIST, "these tokens are sealed");
	}
	r = skv_validate_header(c, seq);
	if (r)
		return skv_task_drop(c, seq, client, r);
	what.keys = malloc(n * sizeof(*keys));
	if (!what.keys)
		return -ENOMEM;
	memcpy(what.keys, keys, n * sizeof(*keys));
	what.n_keys = n;
	return skv_task_fork(c, client, seq, &what, NULL);
}

static uint32_t longest(const struct skv_core *c, const struct skv_session_row *s, const struct skv_block_key *keys, uint32_t n, uint32_t *ret_seq)
{
	for (; n > 0; n--) {
		*ret_seq = skv_prefixes_find(c, s->pool, &s->model, &keys[n - 1], n - 1);
		if (*ret_seq != SKV_NO_INDEX)
			break;
	}
	return n;
}

int skv_core_prefix_find(struct skv_core *c, uint32_t client_id, uint32_t session_id, const struct skv_block_key *keys, uint32_t n, uint32_t *ret)
{
	uint32_t client, session, seq;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r == 0)
		*ret = longest(c, skv_session_row(&c->state, session), keys, n, &seq);
	return r;
}

int skv_core_prefix_open(struct skv_core *c, uint32_t client_id, uint32_t session_id, const char *name, uint32_t max_tokens,
                         const struct skv_block_key *keys, uint32_t n, struct skv_core_seq_info *ret, uint32_t *ret_blocks)
{
	struct skv_fork what = {.prefix = true};
	const struct skv_session_row *s;
	uint32_t client, session, seq;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	*ret_blocks = 0;
	if (r)
		return r;
	s = skv_session_row(&c->state, session);
	max_tokens = max_tokens ? max_tokens : s->model.max_tokens;
	n = longest(c, s, keys, n < max_tokens / SKV_BLOCK_TOKENS ? n : max_tokens / SKV_BLOCK_TOKENS, &seq);
	if (n == 0)
		return skv_core_seq_new(c, client_id, session_id, name, max_tokens, ret);
	if (max_tokens > s->model.max_tokens)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "a sequence of %u tokens asked for, and the model takes %u", max_tokens,
		                       s->model.max_tokens);
	r = skv_seq_check_name(c, skv_seq_row(&c->state, seq)->account, &s->model, name ? name : "");
	if (r)
		return r;
	use(c, seq);
	what.session = session;
	what.n_tokens = n * SKV_BLOCK_TOKENS;
	what.max_tokens = max_tokens;
	snprintf(what.name, sizeof(what.name), "%s", name ? name : "");
	*ret_blocks = n;
	return skv_task_fork(c, client, seq, &what, ret);
}
