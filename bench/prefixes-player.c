/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/prefixes-player.h"
#include "bench/bench.h"
#include <errno.h>
#include <grp.h>
#include <sparsekv/client.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK 1024u      /* most rows of a prompt in a step */
#define TIMEOUT_MS 60000 /* for calls of the client library: the daemon may have to free memory first */

struct order {
	uint32_t n_prompt, n_answer; /* number of ids in the prompt and in the answer */
};

struct play {
	const struct player_setup *setup;
	struct skv_client *client;
	struct skv_session *session;
	float *q, *k, *v, *out;  /* rows of one layer; q and out have only one row */
	float *got, *want; /* [layer]: outputs of the prompt's last token; `want` is from reading the whole prompt */
	struct order order;
	int32_t *ids;
	uint64_t *content;       /* [token]: seed of the token's random rows */
	size_t room;
};

/* ---- inside the process -------------------------------------------------------------------------- */

static void need(bool done, const char *why)
{
	if (done)
		return;
	fprintf(stderr, "sparsekv-bench: prefixes: %s\n", why);
	_exit(1);
}

static void need_ok(int r)
{
	need(r >= 0, skv_last_error());
}

static void *get(size_t bytes)
{
	void *p = malloc(bytes);

	need(p, "out of memory");
	return p;
}

/* Sends or receives n bytes. Returns false if the other end is closed. */
static bool transfer(int fd, void *data, size_t n, bool sends)
{
	for (char *p = data; n > 0;) {
		ssize_t some = sends ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);

		if (some < 0 && errno == EINTR)
			continue;
		if (some <= 0)
			return false;
		p += some;
		n -= (size_t)some;
	}
	return true;
}

static size_t width(const struct player_setup *s, uint32_t heads)
{
	return (size_t)heads * s->model.head_dim;
}

/* Makes a random row of `n` elements for each token. `what` is 0 for q, 1 for k, 2 for v. */
static void fill(float *to, size_t n, const uint64_t *content, uint32_t n_tokens, uint32_t layer, uint32_t what)
{
	for (uint32_t t = 0; t < n_tokens; t++) {
		uint64_t state = content[t] ^ (3ull * layer + what + 1) * 0xd1342543de82ef95u;

		for (size_t i = 0; i < n; i++)
			*to++ = (float)(bench_random(&state) >> 40) / (1 << 23) - 1;
	}
}

/*
 * Runs a step with n tokens of the request, from token `at` on. `out` gets the outputs of one row in all layers; NULL:
 * only stores K and V.
 */
static void step(struct play *p, struct skv_seq *seq, uint32_t at, uint32_t n, float *out)
{
	const struct skv_model *m = &p->setup->model;
	const bool prompt = at < p->order.n_prompt;
	struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .tokens = p->ids + at);

	item.flags = prompt ? SKV_STEP_PROMPT : 0;
	item.n_prompt_remaining = prompt ? p->order.n_prompt - at - n : 0;
	need_ok(skv_step_begin(p->session, &item, 1, NULL));
	for (uint32_t l = 0; l < m->n_layers; l++) {
		float *to = out ? out + l * width(p->setup, m->n_heads) : NULL;

		if (out)
			fill(p->q, width(p->setup, m->n_heads), p->content + at, n, l, 0);
		fill(p->k, width(p->setup, m->n_kv_heads), p->content + at, n, l, 1);
		fill(p->v, width(p->setup, m->n_kv_heads), p->content + at, n, l, 2);
		need_ok(skv_attend(p->session, l, &SKV_ATTN(.q = out ? p->q : NULL, .k = p->k, .v = p->v, .out = to)));
	}
	need_ok(skv_step_end(p->session, NULL, NULL));
}

/*
 * Reads the tokens of the prompt that the sequence does not have yet. Only the last token attends: outputs of other
 * tokens are not compared, and K and V do not depend on outputs here.
 */
static void read_prompt(struct play *p, struct skv_seq *seq, float *out)
{
	const uint32_t last = p->order.n_prompt - 1;

	for (uint32_t at = skv_seq_len(seq), n; at < last; at += n) {
		n = last - at < CHUNK ? last - at : CHUNK;
		step(p, seq, at, n, NULL);
	}
	step(p, seq, last, 1, out);
}

/*
 * Reads the whole prompt without a prefix. Returns whether the ids of the hit differ from the prompt's, or the output
 * of the last token differs from that of the first reading.
 */
static bool differs(struct play *p, const int32_t *hit, uint32_t n_hit)
{
	const struct skv_model *m = &p->setup->model;
	struct skv_seq *seq;

	need_ok(skv_seq_new(p->session, NULL, p->order.n_prompt, &seq));
	read_prompt(p, seq, p->want);
	need_ok(skv_seq_drop(seq));
	return memcmp(hit, p->ids, n_hit * sizeof *hit) ||
	       memcmp(p->got, p->want, m->n_layers * width(p->setup, m->n_heads) * sizeof *p->got);
}

static struct player_told play(struct play *p)
{
	const uint32_t n = p->order.n_prompt + p->order.n_answer;
	struct player_told told = {.hit_tokens = 0};
	struct skv_seq *seq;
	double begun;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t state = (i ? p->content[i - 1] : 0) ^ (uint32_t)p->ids[i];

		p->content[i] = bench_random(&state);
	}
	begun = bench_now();
	need_ok(skv_seq_new_from(p->session, NULL, n, p->ids, p->order.n_prompt, &seq));
	told.ms = (bench_now() - begun) * 1e3;
	told.hit_tokens = skv_seq_len(seq);
	read_prompt(p, seq, p->got);
	for (uint32_t i = p->order.n_prompt; i < n; i++)
		step(p, seq, i, 1, p->out);
	need_ok(skv_seq_seal(seq, SKV_ALL, NULL));
	if (p->setup->check)
		told.differs = differs(p, skv_seq_tokens(seq, NULL), told.hit_tokens);
	need_ok(skv_seq_drop(seq));
	return told;
}

static bool take_order(struct play *p, int fd)
{
	size_t n;

	if (!transfer(fd, &p->order, sizeof p->order, false))
		return false;
	n = (size_t)p->order.n_prompt + p->order.n_answer;
	if (n > p->room) {
		free(p->ids);
		free(p->content);
		p->ids = get(n * sizeof *p->ids);
		p->content = get(n * sizeof *p->content);
		p->room = n;
	}
	return transfer(fd, p->ids, n * sizeof *p->ids, false);
}

static void become(uid_t uid)
{
	if (uid)
		need(setgroups(0, NULL) == 0 && setgid(uid) == 0 && setuid(uid) == 0, "--uid: only root can become another user");
}

static void run(const struct player_setup *setup, int fd)
{
	const struct skv_model *m = &setup->model;
	const size_t q = width(setup, m->n_heads) * sizeof(float), kv = width(setup, m->n_kv_heads) * sizeof(float);
	struct play p = {.setup = setup};
	struct player_told told;

	become(setup->uid);
	p.q = get(q);
	p.k = get(CHUNK * kv);
	p.v = get(CHUNK * kv);
	p.out = get(m->n_layers * q);
	p.got = get(m->n_layers * q);
	p.want = get(m->n_layers * q);
	need_ok(skv_connect(&p.client, setup->socket));
	skv_set_timeout(p.client, TIMEOUT_MS);
	need_ok(skv_open(p.client, m, setup->policy, &p.session));
	while (take_order(&p, fd)) {
		told = play(&p);
		if (!transfer(fd, &told, sizeof told, true))
			break;
	}
	skv_disconnect(p.client);
	_exit(0);
}

/* ---- outside the process ------------------------------------------------------------------------- */

int player_start(struct player *p, const struct player_setup *setup)
{
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
		return -errno;
	p->pid = fork();
	if (p->pid < 0) {
		const int e = -errno;

		close(fd[0]);
		close(fd[1]);
		return e;
	}
	/*
	 * The player's process closes the sockets of other players: while it had them, those would never see their peer
	 * close.
	 */
	if (p->pid == 0) {
		dup2(fd[1], STDIN_FILENO);
		close_range(STDERR_FILENO + 1, ~0u, 0);
		run(setup, STDIN_FILENO);
	}
	close(fd[1]);
	p->fd = fd[0];
	return 0;
}

int player_play(struct player *p, const int32_t *ids, uint32_t n_prompt, uint32_t n_answer, struct player_told *ret)
{
	struct order order = {n_prompt, n_answer};
	const size_t bytes = ((size_t)n_prompt + n_answer) * sizeof *ids;

	if (!transfer(p->fd, &order, sizeof order, true) || !transfer(p->fd, (void *)ids, bytes, true) ||
	    !transfer(p->fd, ret, sizeof *ret, false))
		return -1;
	return 0;
}

void player_stop(struct player *p)
{
	close(p->fd);
	while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
		;
}
