/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv-generate: continue a text. See sparsekv-generate(1).
 *
 * Every token is committed together with the one that follows it, and printed after that. So a named
 * sequence always says how its text goes on, and a run that was killed is taken up by the same
 * command: what the sequence holds already is compared with the prompt and printed without being
 * computed again, and the whole output is that of a run without interruption.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/cli.h"
#include "engine/forward.h"
#include "engine/progress.h"
#include "engine/env.h"
#include "engine/tokens.h"

#define PROGRAM "sparsekv-generate"

static const char usage[] =
	"Usage: sparsekv-generate --model DIR --policy SPEC --prompt TEXT [OPTION…]\n"
	"Continue a text, greedily, with its KV cache in sparsekvd.\n";

struct arguments {
	struct eng_cli cli;
	const char *policy, *prompt, *prompt_file, *seq;
	uint32_t max_tokens, chunk;
};

struct generation {
	const struct arguments *args;
	const struct eng_config *config;
	struct skv_session *session;
	struct eng_forward forward;
	struct skv_seq *seq;
	int32_t *prompt; /* bos and the bytes; NULL when none was given */
	uint32_t n_prompt;
	int32_t last;      /* the newest token of the text, not yet in the sequence */
	bool unread;       /* one token more was chosen and committed, which the host has not seen */
	uint32_t produced; /* tokens behind the prompt, printed ones */
	uint32_t computed; /* of these by this process */
	double prompt_seconds, decode_seconds;
	uint32_t prompt_rows;
	struct eng_progress progress;
};

static int library(int r, struct eng_error *err)
{
	return r < 0 ? eng_fail(err, r, "%s", skv_last_error()) : 0;
}

/* ---- the command line ------------------------------------------------------------------------ */

static int parse(struct arguments *a, int argc, char **argv, struct eng_error *err)
{
	const struct eng_option table[] = {
		ENG_TEXT("policy", "SPEC", &a->policy, "name?key=value&…"),
		ENG_TEXT("prompt", "TEXT", &a->prompt, "the text to continue"),
		ENG_TEXT("prompt-file", "F", &a->prompt_file, "or the file that has it, - for stdin"),
		ENG_COUNT("max-tokens", &a->max_tokens, 1, SKV_MAX_TOKENS,
		          "stop after N tokens (default 256), or at the model's end of text"),
		ENG_COUNT("chunk", &a->chunk, 1, SKV_MAX_TOKENS, "tokens of a prompt in a step, at most (default 512)"),
		ENG_TEXT("seq", "NAME", &a->seq,
		         "keep the sequence in the daemon under this name, go on with one that is there"),
		ENG_CLI_OPTIONS(&a->cli),
	};
	const struct eng_command command = {PROGRAM, usage, table, sizeof(table) / sizeof(*table)};
	int r;

	*a = (struct arguments){.cli = ENG_CLI_INIT, .max_tokens = 256, .chunk = ENG_CHUNK};
	r = eng_options(&command, argc, argv, err);
	if (r)
		return r;
	if (!a->cli.model)
		return eng_fail(err, -EINVAL, "--model is missing: the directory of a model expected");
	if (!a->policy)
		return eng_fail(err, -EINVAL,
		                "--policy is missing: a policy such as full or delta?budget=0.25 expected");
	if (a->prompt && a->prompt_file)
		return eng_fail(err, -EINVAL, "--prompt and --prompt-file exclude each other");
	if (!a->prompt && !a->prompt_file && !a->seq)
		return eng_fail(err, -EINVAL,
		                "--prompt is missing: a text expected (or --prompt-file, or --seq)");
	return 0;
}

/* The whole file, - being stdin. */
static int read_file(const char *path, char **ret_text, size_t *ret_len, struct eng_error *err)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "re") : stdin;
	char *text = NULL;
	size_t n = 0, room = 0, got = 1;

	while (f && got) {
		if (n == room) {
			char *more = realloc(text, room = room ? 2 * room : 65536);

			if (!more)
				break;
			text = more;
		}
		got = fread(text + n, 1, room - n, f);
		n += got;
	}
	if (!f || got || ferror(f)) {
		int r = eng_fail(err, errno ? -errno : -EIO, "%.300s: %s", path,
		                 strerror(errno ? errno : EIO));

		free(text);
		if (f && f != stdin)
			fclose(f);
		return r;
	}
	if (f != stdin)
		fclose(f);
	*ret_text = text;
	*ret_len = n;
	return 0;
}

static int load_prompt(struct generation *g, struct eng_error *err)
{
	char *file = NULL;
	const char *text = g->args->prompt;
	size_t n = text ? strlen(text) : 0;
	int r = 0;

	if (g->args->prompt_file)
		r = read_file(g->args->prompt_file, &file, &n, err);
	if (r || (!text && !file))
		return r;
	if (n + 2 > g->config->max_positions)
		r = eng_fail(err, -EINVAL, "the prompt has %zu bytes, the model takes %u tokens in all", n,
		             g->config->max_positions);
	else if (!(g->prompt = malloc((n + 1) * sizeof(*g->prompt))))
		r = eng_fail(err, -ENOMEM, "no memory for a prompt of %zu bytes", n);
	else
		g->n_prompt = (uint32_t)eng_tokens_prompt(g->config, text ? text : file, n, g->prompt);
	free(file);
	return r;
}

/* ---- the sequence ---------------------------------------------------------------------------- */

static void print_token(int32_t id)
{
	if (id >= 0 && id < 256)
		putchar(id);
	fflush(stdout);
}

/* Take up a sequence where its last commit left it. */
static int resume(struct generation *g, struct eng_error *err)
{
	uint32_t len;
	const int32_t *tokens = skv_seq_tokens(g->seq, &len);
	uint32_t held = len + (tokens[len] >= 0);

	if (!g->prompt) {
		if (held == len)
			return eng_fail(err, -EINVAL,
			                "sequence %s stopped within its prompt, at %u: --prompt expected",
			                g->args->seq, len);
		g->last = tokens[len];
		return 0;
	}
	for (uint32_t i = 0; i < held && i < g->n_prompt; i++)
		if (tokens[i] != g->prompt[i])
			return eng_fail(err, -EINVAL,
			                "sequence %s holds another text, not the prompt, from byte %u on: the "
			                "same prompt, or another --seq expected",
			                g->args->seq, i ? i - 1 : 0);
	for (uint32_t i = g->n_prompt; i < held && g->produced < g->args->max_tokens; i++, g->produced++) {
		g->last = tokens[i];
		print_token(g->last);
	}
	if (held <= g->n_prompt)
		g->last = g->prompt[g->n_prompt - 1];
	return 0;
}

static int open_sequence(struct generation *g, struct eng_error *err)
{
	const char *name = g->args->seq;
	uint64_t need = (uint64_t)g->n_prompt + g->args->max_tokens;
	uint32_t most = need < g->config->max_positions ? (uint32_t)need : g->config->max_positions;
	int r = name ? skv_seq_attach(g->session, name, &g->seq) : -ENOENT;

	if (!r)
		return resume(g, err);
	if (r != -ENOENT || (name && !g->prompt))
		return eng_fail(err, r, "%s", skv_last_error());
	g->last = g->prompt[g->n_prompt - 1];
	/* A named sequence may be continued later: it gets all the room there is. */
	return library(skv_seq_new(g->session, name, name ? 0 : most, &g->seq), err);
}

/* The prompt but its last token; with its end the last token is published as what comes next. */
static int prefill(struct generation *g, struct eng_error *err)
{
	double begun = eng_now();
	uint32_t n = g->n_prompt ? g->n_prompt - 1 : 0, chunk = g->args->chunk;
	int r = 0;

	for (uint32_t at = skv_seq_len(g->seq); !r && at < n; at = skv_seq_len(g->seq)) {
		struct skv_step_item item = {
			.seq = g->seq,
			.n_tokens = n - at < chunk ? n - at : chunk,
			.flags = SKV_STEP_PROMPT,
			.tokens = g->prompt + at,
		};
		bool whole = at + item.n_tokens == n;

		item.n_prompt_remaining = n - at - item.n_tokens;
		r = eng_forward(&g->forward, g->session, &item, 1, err);
		if (!r && whole)
			r = eng_forward_choose(&g->forward, g->prompt + n, 1, err);
		r = r ? r : library(skv_step_end(g->session, whole ? g->forward.id : NULL), err);
		g->prompt_rows += item.n_tokens;
		eng_progress_show(&g->progress, g->prompt_rows, "reading the prompt");
	}
	g->prompt_seconds = eng_now() - begun;
	return r;
}

/* See the token that the last step chose, once its commit is done. */
static int read_token(struct generation *g, struct eng_error *err)
{
	const int32_t *id;
	int r;

	if (!g->unread)
		return 0;
	r = eng_forward_fetched(&g->forward, &id, err);
	if (r)
		return r;
	g->unread = false;
	g->last = *id;
	g->produced++;
	g->computed++;
	print_token(g->last);
	eng_progress_show(&g->progress, g->prompt_rows + g->computed, "writing");
	return 0;
}

/* Commit the open step, and have the token that it chose brought here. */
static int commit(struct generation *g, struct eng_error *err)
{
	int r = library(skv_step_end(g->session, g->forward.id), err);

	r = r ? r : eng_forward_fetch(&g->forward, err);
	g->unread = !r;
	return r;
}

/*
 * A device is given the next step before the host reads the token of the last one, so that it never waits. That
 * step goes on with a token that the host has not seen: should it be the end of the text, the step is given up,
 * so that nothing behind the end is ever committed.
 */
static int decode(struct generation *g, struct eng_error *err)
{
	bool ahead = g->forward.model->backend->device != SKV_DEVICE_HOST;
	double begun = eng_now();
	int r = 0;

	while (!r && g->produced + g->unread < g->args->max_tokens && !eng_config_ends(g->config, g->last) &&
	       skv_seq_len(g->seq) < g->config->max_positions) {
		struct skv_step_item item = {.seq = g->seq, .n_tokens = 1, .tokens = g->unread ? NULL : &g->last};

		r = eng_forward(&g->forward, g->session, &item, 1, err);
		if (r)
			break;
		r = read_token(g, err);
		if (r || eng_config_ends(g->config, g->last)) {
			skv_step_abort(g->session);
			break;
		}
		r = commit(g, err);
		if (!r && !ahead)
			r = read_token(g, err);
	}
	if (!r)
		r = read_token(g, err);
	g->decode_seconds = eng_now() - begun;
	return r;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static double percent(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 100;
}

static void print_statistics(const struct generation *g)
{
	uint64_t attended, causal, resident, pages;
	const char *why = skv_policy_error(g->session);

	skv_seq_tokens(g->seq, NULL); /* waits: a device's last steps count too */
	skv_seq_attended(g->seq, &attended, &causal);
	skv_seq_pages(g->seq, &resident, &pages);
	fprintf(stderr, "prompt    %u tokens, %u computed in %.2f s\n", g->n_prompt, g->prompt_rows,
	        g->prompt_seconds);
	fprintf(stderr, "output    %u tokens, %u computed at %.1f tokens/s%s\n", g->produced, g->computed,
	        g->decode_seconds > 0 ? g->computed / g->decode_seconds : 0,
	        eng_config_ends(g->config, g->last)                ? ", to the end of text"
	        : skv_seq_len(g->seq) >= g->config->max_positions ? ", to the end of the model's context"
	                                                          : "");
	fprintf(stderr, "attended  %.1f %% of the tokens, kept %.1f %% of the KV\n",
	        percent(attended, causal), percent(resident, pages));
	fprintf(stderr, "policy    %s, %s kernels\n", skv_policy_spec(g->session), skv_backend(g->session));
	if (*why)
		fprintf(stderr, "policy swap refused: %s\n", why);
}

static int run(struct generation *g, const struct eng_host *host, struct eng_error *err)
{
	struct skv_model shape = eng_model_describe(&host->model, g->args->cli.kv_dtype);
	bool quiet = g->args->cli.quiet;
	int r = load_prompt(g, err);

	r = r ? r : library(skv_open(host->client, &shape, g->args->policy, &g->session), err);
	r = r ? r : eng_forward_init(&g->forward, &host->model, g->args->chunk, err);
	g->forward.one_by_one = g->args->cli.no_graph;
	r = r ? r : open_sequence(g, err);
	if (r)
		return r;
	/* The text and a progress line on the same terminal would overwrite each other. */
	eng_progress_begin(&g->progress, stderr, (double)g->n_prompt + g->args->max_tokens, quiet);
	r = prefill(g, err);
	if (isatty(STDOUT_FILENO))
		eng_progress_end(&g->progress);
	r = r ? r : decode(g, err);
	eng_progress_end(&g->progress);
	if (isatty(STDOUT_FILENO))
		putchar('\n');
	if (!r && !quiet)
		print_statistics(g);
	return r;
}

int main(int argc, char **argv)
{
	struct eng_host host = ENG_HOST_NULL;
	struct generation g = {.forward = ENG_FORWARD_NULL};
	struct arguments a;
	struct eng_error err;
	int r;

	eng_env_init(argv);
	r = parse(&a, argc, argv, &err);
	r = r ? r : eng_host_open(&host, &a.cli, &err);
	if (!r) {
		g.args = &a;
		g.config = &host.model.config;
		r = run(&g, &host, &err);
		skv_seq_detach(g.seq);
		skv_close(g.session);
		eng_forward_deinit(&g.forward);
		free(g.prompt);
		eng_host_close(&host);
	}
	if (!r && (fflush(stdout) || ferror(stdout)))
		r = eng_fail(&err, -EIO, "stdout: could not be written");
	return r ? eng_cli_failed(PROGRAM, &err) : EXIT_SUCCESS;
}
