/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine-logits DIRECTORY - writes the engine's logits for a model, for tests/compare-transformers.py: on the host,
 * with full attention, pages of fp32 and a private daemon.
 *
 * Each line of the standard input is a sequence: how many of its last tokens are decoded one by one (1 or more; the
 * tokens before them are a prompt, in chunks), how many more tokens are chosen greedily, and its token ids. For each
 * line the standard output gets, in native byte order, the logits of the decoded tokens, float [decoded][vocab], and
 * the ids that were chosen, int32 [greedy].
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/forward.h"
#include "engine/private-daemon.h"

struct line {
	uint32_t decoded, greedy, n;
	int32_t *ids;
};

struct run {
	struct eng_private *daemon;
	struct skv_client *client;
	struct eng_model model;
	struct eng_forward forward;
	struct skv_session *session;
	struct eng_error err;
};

/* Returns 1; 0 at the end of input; -1 if the line is no sequence. */
static int read_line(struct line *l)
{
	char *text = NULL, *at;
	size_t room = 0, cap = 0;
	unsigned long number;

	*l = (struct line){.n = 0};
	if (getline(&text, &room, stdin) < 0) {
		free(text);
		return 0;
	}
	at = strtok(text, " \n");
	for (unsigned i = 0; at; i++, at = strtok(NULL, " \n")) {
		number = strtoul(at, NULL, 10);
		if (i == 0)
			l->decoded = (uint32_t)number;
		else if (i == 1)
			l->greedy = (uint32_t)number;
		if (i < 2)
			continue;
		if (l->n == cap) {
			cap = cap ? 2 * cap : 64;
			l->ids = realloc(l->ids, cap * sizeof(*l->ids));
			if (!l->ids)
				break;
		}
		l->ids[l->n++] = (int32_t)number;
	}
	free(text);
	return l->ids && l->decoded && l->decoded <= l->n ? 1 : -1;
}

/* One step of n tokens. */
static int step(struct run *r, struct skv_seq *seq, const int32_t *ids, uint32_t n, bool prompt)
{
	struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .flags = prompt ? SKV_STEP_PROMPT : 0, .tokens = ids);
	int e = eng_forward(&r->forward, r->session, &item, 1, &r->err);

	if (e)
		return e;
	e = skv_step_end(r->session, NULL, NULL);
	return e < 0 ? eng_fail(&r->err, e, "%s", skv_last_error()) : 0;
}

static int decode(struct run *r, struct skv_seq *seq, int32_t id, const float **ret_logits, int32_t *ret_chosen)
{
	int e = step(r, seq, &id, 1, false);

	e = e ? e : eng_forward_logits(&r->forward, ret_logits, &r->err);
	if (!e)
		*ret_chosen = r->forward.id[0];
	return e;
}

static int sequence(struct run *r, const struct line *l)
{
	const uint32_t prompt = l->n - l->decoded;
	struct skv_seq *seq;
	const float *logits;
	int32_t chosen = 0;
	int e = skv_seq_new(r->session, NULL, 0, &seq);

	if (e < 0)
		return eng_fail(&r->err, e, "%s", skv_last_error());
	e = 0;
	for (uint32_t at = 0; !e && at < prompt; at += ENG_CHUNK)
		e = step(r, seq, l->ids + at, prompt - at < ENG_CHUNK ? prompt - at : ENG_CHUNK, true);
	for (uint32_t at = prompt; !e && at < l->n; at++) {
		e = decode(r, seq, l->ids[at], &logits, &chosen);
		if (!e)
			fwrite(logits, sizeof(*logits), r->model.config.vocab, stdout);
	}
	for (uint32_t i = 0; !e && i < l->greedy; i++) {
		fwrite(&chosen, sizeof(chosen), 1, stdout);
		e = i + 1 < l->greedy ? decode(r, seq, chosen, &logits, &chosen) : 0;
	}
	skv_seq_drop(seq);
	return e;
}

static int run(struct run *r, const char *directory)
{
	struct skv_model shape;
	int e = eng_private_start(0, NULL, &r->daemon, &r->client, &r->err);

	e = e ? e : eng_model_load(&r->model, directory, eng_backend_host(), SKV_F32, &r->err);
	e = e ? e : eng_forward_init(&r->forward, &r->model, ENG_CHUNK, &r->err);
	if (e)
		return e;
	shape = eng_model_describe(&r->model, SKV_F32);
	e = skv_open(r->client, &shape, "full", &r->session);
	if (e < 0)
		return eng_fail(&r->err, e, "%s", skv_last_error());
	for (;;) {
		struct line l;
		int more = read_line(&l);

		e = more < 0 ? eng_fail(&r->err, -EINVAL, "a line without a sequence") : more ? sequence(r, &l) : 0;
		free(l.ids);
		if (e || !more)
			return e;
	}
}

int main(int argc, char **argv)
{
	struct run r = {.model = ENG_MODEL_NULL, .forward = ENG_FORWARD_NULL};
	int e = argc == 2 ? run(&r, argv[1]) : eng_fail(&r.err, -EINVAL, "a directory expected");

	if (e)
		fprintf(stderr, "engine-logits: %s\n", r.err.text);
	if (r.session)
		skv_close(r.session);
	eng_forward_deinit(&r.forward);
	eng_model_deinit(&r.model);
	skv_disconnect(r.client);
	eng_private_stop(r.daemon);
	return e || fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
