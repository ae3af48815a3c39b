/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv-generate: lets a model continue a text, or hold a dialogue. See sparsekv-generate(1).
 *
 * The commit of a token's K and V also contains the next token, which is printed only after the commit. So a named
 * sequence always contains the next token of its text. If a run is killed, the same command resumes it. Tokens of the
 * sequence are compared with the prompt; those after it are printed, not computed again, so that the output is that of
 * an uninterrupted run. A dialogue is a text to which the user's input is appended.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/chat.h"
#include "engine/cli.h"
#include "engine/draft.h"
#include "engine/file.h"
#include "engine/forward.h"
#include "engine/progress.h"
#include "engine/env.h"
#include "engine/tokens.h"

#define PROGRAM "sparsekv-generate"

static const char usage[] =
	"Usage: sparsekv-generate --model DIR --policy SPEC --prompt TEXT | --ids IDS | --chat [OPTION…]\n"
	"Continue a text, or hold a dialogue, greedily, with its KV cache in sparsekvd.\n";

struct arguments {
	struct eng_cli cli;
	const char *policy, *prompt, *prompt_file, *ids, *seq, *system;
	bool chat, prefixes;
	uint32_t max_tokens, chunk, draft;
};

struct generation {
	const struct arguments *args;
	const struct eng_config *config;
	struct eng_tokens tokens;
	struct eng_chat chat;
	struct eng_printer printer;
	struct skv_session *session;
	struct eng_forward forward;
	struct skv_seq *seq;
	/* prompt with the tokens that every text begins with; in a dialogue, all tokens so far; empty: no prompt */
	struct skv_ids prompt;
	int32_t last;      /* the newest token of the text; its K and V are not computed yet */
	bool unread;       /* the last step chose and committed a token that the host has not read yet */
	uint32_t produced; /* number of printed tokens after the prompt */
	uint32_t written;  /* number of tokens in all answers */
	uint32_t computed; /* number of tokens that this process has computed */
	uint32_t steps;    /* number of decode steps that computed them */
	double begun, first_seconds, prompt_seconds, decode_seconds;
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
		ENG_TEXT("ids", "IDS", &a->ids, "or its token ids, with commas between them; ids are written, too"),
		ENG_FLAG("chat", &a->chat, "hold a dialogue: a turn a line on stdin"),
		ENG_TEXT("system", "TEXT", &a->system, "what the model is told before a dialogue (default: the template's)"),
		ENG_COUNT("max-tokens", &a->max_tokens, 1, SKV_MAX_TOKENS,
		          "stop after N tokens (default 256), or at the model's end of text"),
		ENG_COUNT("chunk", &a->chunk, 1, SKV_MAX_TOKENS, "tokens of a prompt in a step, at most (default 512)"),
		ENG_COUNT("draft", &a->draft, 0, ENG_DRAFT_MAX,
		          "speculative decoding: up to N tokens that the text has had before, verified in one step\n"
		          "(default 0)"),
		ENG_TEXT("seq", "NAME", &a->seq,
		         "keep the sequence in the daemon under this name, go on with one that is there"),
		ENG_FLAG("prefixes", &a->prefixes,
		         "begin with what sealed prefixes have of the prompt, and seal it for others"),
		ENG_CLI_RANKS(&a->cli),
		ENG_CLI_OPTIONS(&a->cli),
	};
	const struct eng_command command = {PROGRAM, usage, table, sizeof(table) / sizeof(*table), false};
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
	if (!!a->prompt + !!a->prompt_file + !!a->ids + a->chat > 1)
		return eng_fail(err, -EINVAL, "--prompt, --prompt-file, --ids and --chat exclude each other");
	if (a->cli.ranks > 1 && (a->chat || (a->prompt_file && !strcmp(a->prompt_file, "-"))))
		return eng_fail(err, -EINVAL, "--ranks: stdin is the first rank's alone, a prompt from elsewhere expected");
	if (a->prefixes && a->chat)
		return eng_fail(err, -EINVAL, "--prefixes: not with --chat");
	if (a->system && !a->chat)
		return eng_fail(err, -EINVAL, "--system: only with --chat");
	if (!a->prompt && !a->prompt_file && !a->ids && !a->chat && !a->seq)
		return eng_fail(err, -EINVAL,
		                "--prompt is missing: a text expected (or --prompt-file, --ids, --chat, or --seq)");
	return 0;
}

static int parse_ids(struct generation *g, const char *text, struct eng_error *err)
{
	for (const char *at = text;; at++) {
		char *end;
		unsigned long id = strtoul(at, &end, 10);
		int32_t token = (int32_t)id;

		if (*at < '0' || *at > '9' || (*end && *end != ',') || id >= g->tokens.vocab)
			return eng_fail(err, -EINVAL, "--ids %.60s: ids below %u, with commas between them, expected", at,
			                g->tokens.vocab);
		if (skv_ids_add(&g->prompt, &token, 1))
			return eng_fail(err, -ENOMEM, "no memory for a prompt");
		if (!*end)
			return 0;
		at = end;
	}
}

static int check_length(const struct generation *g, struct eng_error *err)
{
	if (g->prompt.n + 1 > g->config->max_positions)
		return eng_fail(err, -EINVAL, "the %s has %zu tokens, the model takes %u in all",
		                g->args->chat ? "dialogue" : "prompt", g->prompt.n, g->config->max_positions);
	return 0;
}

static int load_prompt(struct generation *g, struct eng_error *err)
{
	char *file = NULL;
	const char *text = g->args->prompt;
	size_t n = text ? strlen(text) : 0;
	int r = 0;

	if (g->args->prompt_file)
		r = eng_file_read(g->args->prompt_file, &file, &n, err);
	if (!r && g->args->ids)
		r = parse_ids(g, g->args->ids, err);
	else if (!r && (text || file))
		r = eng_tokens_prompt(&g->tokens, text ? text : file, n, &g->prompt, err);
	free(file);
	if (!r && !g->prompt.n && (text || g->args->prompt_file))
		return eng_fail(err, -EINVAL, "the prompt is empty, and this model's texts begin with nothing: some text expected");
	return r ? r : check_length(g, err);
}

/* ---- the sequence ---------------------------------------------------------------------------- */

/* Prints a token as text, or as an id if the prompt is given as ids. `first`: it is the first printed token. */
static void print_token(struct generation *g, int32_t id, bool first)
{
	if (!g->args->ids) {
		eng_print(&g->printer, id);
		return;
	}
	printf("%s%d", first ? "" : ",", id);
	fflush(stdout);
}

/* Continues a sequence after its last commit: compares it with the prompt, and prints its tokens after the prompt. */
static int resume(struct generation *g, struct eng_error *err)
{
	uint32_t len;
	const int32_t *tokens = skv_seq_tokens(g->seq, &len);
	uint32_t held = len + (tokens[len] >= 0);

	if (!g->prompt.n) {
		if (held == len)
			return eng_fail(err, -EINVAL,
			                "sequence %s stopped within its prompt, at %u: --prompt expected",
			                g->args->seq, len);
		g->last = tokens[len];
		return 0;
	}
	for (uint32_t i = 0; i < held && i < g->prompt.n; i++)
		if (tokens[i] != g->prompt.id[i])
			return eng_fail(err, -EINVAL,
			                "sequence %s holds another text, not the prompt, from token %u on: the "
			                "same prompt, or another --seq expected",
			                g->args->seq, i);
	for (uint32_t i = (uint32_t)g->prompt.n; i < held && g->produced < g->args->max_tokens; i++, g->produced++) {
		g->last = tokens[i];
		print_token(g, g->last, !g->produced);
	}
	if (held <= g->prompt.n)
		g->last = g->prompt.id[g->prompt.n - 1];
	return 0;
}

static int open_sequence(struct generation *g, struct eng_error *err)
{
	const char *name = g->args->seq;
	uint64_t need = (uint64_t)g->prompt.n + g->args->max_tokens;
	uint32_t most = need < g->config->max_positions ? (uint32_t)need : g->config->max_positions;
	int r = name ? skv_seq_attach(g->session, name, &g->seq) : -ENOENT;

	if (!r)
		return resume(g, err);
	if (r != -ENOENT || (name && !g->prompt.n))
		return eng_fail(err, r, "%s", skv_last_error());
	g->last = g->prompt.id[g->prompt.n - 1];
	/* A named sequence may be continued by a later run, so it gets the largest capacity. */
	most = name ? 0 : most;
	if (g->args->prefixes)
		return library(skv_seq_new_from(g->session, name, most, g->prompt.id, (uint32_t)g->prompt.n, &g->seq), err);
	return library(skv_seq_new(g->session, name, most, &g->seq), err);
}

/*
 * Seals the whole blocks of the prompt as a prefix for other sequences. If a policy has evicted tokens of the blocks,
 * or if memory or a quota is exhausted, the prompt is not sealed, which is no error. The function is called when the
 * whole blocks are read, before the rest of the prompt: a compressing policy compresses the blocks when they are
 * sealed, so this text continues exactly like texts that begin with the sealed prefix.
 */
static int seal(struct generation *g, struct eng_error *err)
{
	int r = skv_seq_seal(g->seq, SKV_ALL, NULL);

	return r == -ESTALE || r == -EDQUOT || r == -ENOSPC ? 0 : library(r, err);
}

/* Reads the prompt except for its last token, which the commit of the last step contains as the next token. */
static int prefill(struct generation *g, struct eng_error *err)
{
	double begun = eng_now();
	uint32_t n = g->prompt.n ? (uint32_t)g->prompt.n - 1 : 0, chunk = g->args->chunk;
	const uint32_t sealed = g->args->prefixes ? n / SKV_BLOCK_TOKENS * SKV_BLOCK_TOKENS : 0;
	int r = 0;

	for (uint32_t at = skv_seq_len(g->seq); !r && at < n; at = skv_seq_len(g->seq)) {
		const uint32_t end = at < sealed ? sealed : n;
		struct skv_step_item item = SKV_STEP_ITEM(
			.seq = g->seq,
			.n_tokens = end - at < chunk ? end - at : chunk,
			.flags = SKV_STEP_PROMPT,
			.tokens = g->prompt.id + at);
		bool whole = at + item.n_tokens == n;

		item.n_prompt_remaining = n - at - item.n_tokens;
		r = eng_forward(&g->forward, g->session, &item, 1, err);
		if (!r && whole)
			r = eng_forward_choose(&g->forward, g->prompt.id + n, 1, err);
		r = r ? r : library(skv_step_end(g->session, whole ? g->forward.id : NULL, NULL), err);
		if (!r && at + item.n_tokens == sealed)
			r = seal(g, err);
		g->prompt_rows += item.n_tokens;
		eng_progress_show(&g->progress, g->prompt_rows, "reading the prompt");
	}
	g->prompt_seconds += eng_now() - begun;
	return r;
}

/* Reads the token that the last step chose, once it is committed, and prints it. */
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
	if (g->computed == 0)
		g->first_seconds = eng_now() - g->begun;
	g->computed++;
	print_token(g, g->last, !g->produced++);
	eng_progress_show(&g->progress, g->prompt_rows + g->computed, "writing");
	return 0;
}

/* Commits the open step, and queues a copy of the chosen token to the host. */
static int commit(struct generation *g, struct eng_error *err)
{
	int r = library(skv_step_end(g->session, g->forward.id, NULL), err);

	r = r ? r : eng_forward_fetch(&g->forward, err);
	g->unread = !r;
	return r;
}

/* Returns whether a token ends the text or, in a dialogue, the answer. */
static bool ends(const struct generation *g, int32_t id)
{
	return eng_tokens_is_end(&g->tokens, id) || (g->args->chat && id == g->chat.close);
}

/* Returns whether the text has ended. A prompt is continued even if its last token is one that ends texts. */
static bool ended(const struct generation *g)
{
	const bool is_prompt = !g->args->chat && g->prompt.n && !g->produced;

	return !is_prompt && ends(g, g->last);
}

/*
 * Decodes one token a step. On a device the next step is queued before the host has read the token that the last step
 * chose, so that the device is never idle. The token that the host has not read is the input of the queued step. If
 * this token ends the text, the queued step is aborted, so that no token after the end is committed.
 */
static int decode_singly(struct generation *g, struct eng_error *err)
{
	bool ahead = g->forward.model->backend->device != SKV_DEVICE_HOST;
	int r = 0;

	while (!r && g->produced + g->unread < g->args->max_tokens && !ended(g) &&
	       skv_seq_len(g->seq) < g->config->max_positions) {
		struct skv_step_item item = SKV_STEP_ITEM(.seq = g->seq, .n_tokens = 1, .tokens = g->unread ? NULL : &g->last);

		r = eng_forward(&g->forward, g->session, &item, 1, err);
		if (r)
			break;
		r = read_token(g, err);
		if (r || ended(g)) {
			skv_step_abort(g->session);
			break;
		}
		r = commit(g, err);
		g->steps++;
		if (!r && !ahead)
			r = read_token(g, err);
	}
	return r ? r : read_token(g, err);
}

/*
 * Runs one step of speculative decoding, whose rows are the newest token and a draft of the tokens after it. Drafted
 * tokens that the model chooses, too, are accepted.
 */
static int verify(struct generation *g, struct eng_error *err)
{
	uint32_t left = g->args->max_tokens - g->produced - 1, len, n = 1;
	const int32_t *text = skv_seq_tokens(g->seq, &len), *chosen = NULL;
	int32_t in[1 + ENG_DRAFT_MAX] = {g->last};
	struct skv_step_item item = SKV_STEP_ITEM(.seq = g->seq, .tokens = in);
	int r;

	left = left < g->args->draft ? left : g->args->draft;
	left = left < g->config->max_positions - len - 1 ? left : g->config->max_positions - len - 1;
	item.n_tokens = 1 + eng_draft(text, len + 1, left, in + 1);
	r = eng_forward(&g->forward, g->session, &item, 1, err);
	if (r)
		return r;
	r = eng_forward_fetch(&g->forward, err);
	r = r ? r : eng_forward_fetched(&g->forward, &chosen, err);
	if (!r) {
		n += eng_draft_accepted(in + 1, chosen, item.n_tokens - 1);
		for (uint32_t i = 0; i < n; i++) /* drop the tokens after one that ends the text */
			n = ends(g, chosen[i]) ? i + 1 : n;
		r = eng_forward_choose(&g->forward, &chosen[n - 1], 1, err);
	}
	if (r) {
		skv_step_abort(g->session);
		return r;
	}
	r = library(skv_step_end(g->session, g->forward.id, &n), err);
	for (uint32_t i = 0; !r && i < n; i++, g->computed++)
		print_token(g, g->last = chosen[i], !g->produced++);
	g->steps++;
	eng_progress_show(&g->progress, g->prompt_rows + g->computed, "writing");
	return r;
}

/* Decodes until the text ends or max_tokens tokens are printed. */
static int decode(struct generation *g, struct eng_error *err)
{
	double begun = eng_now();
	int r = 0;

	if (!g->args->draft)
		r = decode_singly(g, err);
	else
		while (!r && g->produced < g->args->max_tokens && !ended(g) && skv_seq_len(g->seq) < g->config->max_positions)
			r = verify(g, err);
	g->decode_seconds += eng_now() - begun;
	return r;
}

/* ---- a dialogue -------------------------------------------------------------------------------- */

/* Copies the sequence's tokens to g->prompt. *ret_answering: the sequence has a next token, as within an answer. */
static int remember(struct generation *g, bool *ret_answering, struct eng_error *err)
{
	uint32_t len;
	const int32_t *tokens = skv_seq_tokens(g->seq, &len);
	bool pending = tokens[len] >= 0;

	g->prompt.n = 0;
	if (skv_ids_add(&g->prompt, tokens, len + pending))
		return eng_fail(err, -ENOMEM, "no memory for a dialogue of %u tokens", len);
	if (g->prompt.n)
		g->last = g->prompt.id[g->prompt.n - 1];
	*ret_answering = pending;
	return 0;
}

/* Decodes and prints an answer, from the newest token to the end of the turn. */
static int answer(struct generation *g, struct eng_error *err)
{
	bool answering;
	int r;

	g->produced = 0;
	g->printer.stream = SKV_UTF8_STREAM_NULL;
	r = decode(g, err);
	g->written += g->produced;
	eng_print_end(&g->printer);
	putchar('\n');
	fflush(stdout);
	return r ? r : remember(g, &answering, err);
}

static int open_dialogue(struct generation *g, struct eng_error *err)
{
	const char *name = g->args->seq;
	int r = name ? skv_seq_attach(g->session, name, &g->seq) : -ENOENT;
	bool answering;

	if (r == -ENOENT)
		return library(skv_seq_new(g->session, name, 0, &g->seq), err);
	r = library(r, err);
	r = r ? r : remember(g, &answering, err);
	if (!r && g->prompt.n && g->args->system)
		return eng_fail(err, -EINVAL, "--system: sequence %s has begun already, only at a beginning expected", name);
	/* an interrupted run may have stopped within an answer, which is completed first */
	return r || !answering || ended(g) ? r : answer(g, err);
}

static int one_turn(struct generation *g, const char *said, size_t n, struct eng_error *err)
{
	int r = eng_chat_turn(&g->chat, g->args->system, said, n, &g->prompt, err);

	if (!g->computed)
		g->begun = eng_now();
	r = r ? r : check_length(g, err);
	r = r ? r : prefill(g, err);
	if (r)
		return r;
	g->last = g->prompt.id[g->prompt.n - 1];
	return answer(g, err);
}

static int dialogue(struct generation *g, struct eng_error *err)
{
	bool asks = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
	char *line = NULL;
	size_t room = 0;
	ssize_t n;
	int r;

	g->begun = eng_now();
	r = open_dialogue(g, err);
	while (!r) {
		if (asks)
			fputs("> ", stdout), fflush(stdout);
		n = getline(&line, &room, stdin);
		if (n < 0)
			break;
		while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
			n--;
		if (n <= 0)
			continue;
		if (!asks && !g->args->cli.quiet)
			fprintf(stderr, "> %.*s\n", (int)n, line);
		r = one_turn(g, line, (size_t)n, err);
	}
	free(line);
	return r;
}

/* ---- the whole program ----------------------------------------------------------------------- */

static double percent(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 100;
}

static void print_statistics(const struct generation *g)
{
	uint64_t attended, causal, resident, pages;
	const char *why = skv_policy_error(g->session);

	skv_seq_tokens(g->seq, NULL); /* waits for the device, so that the statistics include the last steps */
	skv_seq_attended(g->seq, &attended, &causal);
	skv_seq_pages(g->seq, &resident, &pages);
	fprintf(stderr, "prompt    %u tokens, %u computed in %.2f s\n", (uint32_t)g->prompt.n, g->prompt_rows,
	        g->prompt_seconds);
	fprintf(stderr, "first     token after %.3f s\n", g->first_seconds);
	fprintf(stderr, "output    %u tokens, %u computed in %u steps at %.1f tokens/s%s\n", g->written, g->computed,
	        g->steps, g->decode_seconds > 0 ? g->computed / g->decode_seconds : 0,
	        ended(g)                                          ? ", to the end of text"
	        : skv_seq_len(g->seq) >= g->config->max_positions ? ", to the end of the model's context"
	                                                          : "");
	fprintf(stderr, "attended  %.1f %% of the tokens, kept %.1f %% of the KV\n",
	        percent(attended, causal), percent(resident, pages));
	fprintf(stderr, "policy    %s, %s kernels\n", skv_policy_spec(g->session), skv_backend(g->session));
	if (*why)
		fprintf(stderr, "policy swap refused: %s\n", why);
}

static int continuation(struct generation *g, struct eng_error *err)
{
	int r;

	g->begun = eng_now();
	r = open_sequence(g, err);
	if (r)
		return r;
	/* On a terminal the progress ends before the text begins, because they would overwrite each other. */
	eng_progress_begin(&g->progress, stderr, (double)g->prompt.n + g->args->max_tokens, g->args->cli.quiet);
	r = prefill(g, err);
	if (isatty(STDOUT_FILENO))
		eng_progress_end(&g->progress);
	r = r ? r : decode(g, err);
	g->written = g->produced;
	eng_progress_end(&g->progress);
	eng_print_end(&g->printer);
	if (isatty(STDOUT_FILENO) || g->args->ids)
		putchar('\n');
	return r;
}

/* Loads what needs no weights first, so that an error in it is found before the weights are loaded. */
static int prepare(struct generation *g, struct eng_config *config, struct eng_error *err)
{
	const char *model = g->args->cli.model;
	int r = g->args->ids ? eng_tokens_load_ids(&g->tokens, model, config, err) : eng_tokens_load(&g->tokens, model, config, err);

	g->config = config;
	g->printer = (struct eng_printer){.tokens = &g->tokens, .to = stdout};
	if (!r && g->args->chat)
		r = eng_chat_load(&g->chat, model, &g->tokens, err);
	return r ? r : load_prompt(g, err);
}

static int run(struct generation *g, const struct eng_host *host, struct eng_error *err)
{
	struct skv_model shape = eng_model_describe(&host->model, g->args->cli.kv_dtype);
	int r = eng_ranks_split(host->ranks, &shape, err);

	r = r ? r : library(skv_open(host->client, &shape, g->args->policy, &g->session), err);
	r = r ? r : eng_forward_init(&g->forward, &host->model, g->args->chunk, err);
	g->forward.one_by_one = g->args->cli.no_graph;
	g->forward.ranks = host->ranks;
	if (!r)
		r = g->args->chat ? dialogue(g, err) : continuation(g, err);
	if (!r && !g->args->cli.quiet)
		print_statistics(g);
	return r;
}

int main(int argc, char **argv)
{
	struct eng_host host = ENG_HOST_NULL;
	struct generation g = {.forward = ENG_FORWARD_NULL};
	struct eng_config config;
	struct arguments a;
	struct eng_error err;
	int r;

	eng_env_init(argv);
	r = parse(&a, argc, argv, &err);
	g.args = &a;
	r = r ? r : prepare(&g, &config, &err);
	r = r ? r : eng_host_open(&host, &a.cli, &err);
	if (!r) {
		struct eng_ranks *ranks = host.ranks;

		a.cli.quiet |= eng_ranks_number(ranks) > 0;
		r = run(&g, &host, &err);
		skv_seq_detach(g.seq);
		skv_close(g.session);
		eng_forward_deinit(&g.forward);
		eng_host_close(&host);
		r = eng_ranks_end(ranks, r, &err);
	}
	eng_chat_deinit(&g.chat);
	eng_tokens_deinit(&g.tokens);
	skv_ids_deinit(&g.prompt);
	if (!r && (fflush(stdout) || ferror(stdout)))
		r = eng_fail(&err, -EIO, "stdout: could not be written");
	return r ? eng_cli_failed(PROGRAM, &err) : EXIT_SUCCESS;
}
