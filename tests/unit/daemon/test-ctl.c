/* SPDX-License-Identifier: Apache-2.0 */
/* sparsekvctl's output, as a table and as JSON, and its exit status. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "common/seqmem.h"
#include "common/spec.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/policies.h"
#include "tests/support/suite.h"

#define SHOWN_SESSIONS 16u /* of a user, in metrics */

static struct fix fix;
static struct raw *client;
static uint32_t session;
static struct skv_session_page *page;
static char *said; /* output of the last command, stdout and stderr */

static void setup(void)
{
	void *map;

	fix_start_process(&fix, NULL);
	setenv("SPARSEKV_SOCKET", fix.socket, 1);
	client = raw_hello(fix.socket);
	session = raw_open(client, "tiny", POLICY_WINDOW "?budget=0.25", NULL);
	ck_assert_int_eq(skv_map_fd(client->fds[0], sizeof(*page), PROT_READ | PROT_WRITE, false, &map), 0);
	page = map;
	raw_seq_new(client, session, "chat");
	raw_lease(client, session, 10);
}

static void teardown(void)
{
	free(said);
	said = NULL;
	munmap(page, sizeof(*page));
	raw_close(client);
	fix_stop(&fix);
}

/* Runs `sparsekvctl ARGUMENTS` (words of the shell); returns its exit status. */
__attribute__((format(printf, 1, 2))) static int ctl(const char *fmt, ...)
{
	char arguments[600], command[1400];
	size_t len = 0;
	va_list ap;
	FILE *p, *out;
	int c;

	va_start(ap, fmt);
	vsnprintf(arguments, sizeof(arguments), fmt, ap);
	va_end(ap);
	snprintf(command, sizeof(command), "%s %s 2>&1", fix_built("daemon/ctl/sparsekvctl"), arguments);
	free(said);
	out = open_memstream(&said, &len);
	p = popen(command, "re");
	ck_assert_ptr_nonnull(p);
	while ((c = getc(p)) != EOF)
		putc(c, out);
	fclose(out);
	return WEXITSTATUS(pclose(p));
}

#define SAYS(what) ck_assert_msg(strstr(said, what), "expected \"%s\" in:\n%s", what, said)

START_TEST(tables_show_what_there_is)
{
	ck_assert_int_eq(ctl("status"), 0);
	SAYS("sparsekvd ");
	SAYS("2 clients, 1 sessions, 1 sequences");
	SAYS("40.0 KiB of pages in use, in 1.0 MiB of segments, of 64.0 MiB");
	SAYS("raw\n");
	ck_assert_int_eq(ctl("pool"), 0);
	SAYS("4.0 KiB");
	ck_assert_int_eq(ctl("seq list"), 0);
	SAYS("chat\n");
	ck_assert_int_eq(ctl("policy list"), 0);
	SAYS(POLICY_PAGES " 1, 0 sessions");
	SAYS("budget=64");
}
END_TEST

/* Lists sessions whose layers neither the spec nor a profile chooses, once per model and policy. */
START_TEST(status_names_guessed_layers)
{
	static const char note[] = "note      " POLICY_PAGES ", model tiny: layers=auto without a profile";

	raw_open(client, "tiny", POLICY_PAGES "?layers=1", NULL);
	raw_open(client, "tiny", POLICY_PAGES "?budget=9&profile=/a/b", NULL);
	raw_open(client, "tiny", "full", NULL);
	ck_assert_int_eq(ctl("status"), 0);
	ck_assert_ptr_null(strstr(said, "note"));
	raw_open(client, "tiny", POLICY_PAGES, NULL);
	raw_open(client, "tiny", POLICY_PAGES "?layers=auto&budget=9&profile=none", NULL);
	ck_assert_int_eq(ctl("status"), 0);
	SAYS(note);
	ck_assert_ptr_null(strstr(strstr(said, note) + 1, note));
}
END_TEST

START_TEST(every_command_has_its_json)
{
	static const struct {
		const char *command, *key;
	} cases[] = {
		{"status", "totals"},
		{"pool", "pools"},
		{"seq list", "sequences"},
		{"policy list", "policies"},
		{"top -n 1 -d 0.05", "now"},
		{"metrics", "sessions"},
		{"policy swap --all full", "generation"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *answer;

		ck_assert_int_eq(ctl("--json %s", cases[i].command), 0);
		answer = json_loads(said, 0, NULL);
		ck_assert_msg(answer, "%s: not JSON:\n%s", cases[i].command, said);
		ck_assert_msg(json_object_get(answer, cases[i].key), "%s", said);
		json_decref(answer);
	}
	ck_assert_int_eq(ctl("policy load --json %s", fix_built("policies/.libs/full.so")), 0);
	SAYS("\"name\": \"full\"");
}
END_TEST

static void *count_up(void *stop)
{
	while (!atomic_load((atomic_bool *)stop)) {
		atomic_fetch_add(&page->decode_tokens, 10);
		atomic_fetch_add(&page->causal_tokens, 1000);
		atomic_fetch_add(&page->attended_tokens, 250);
		atomic_fetch_add(&page->steps, 1);
		fix_sleep_ms(10);
	}
	return NULL;
}

START_TEST(top_shows_rates)
{
	atomic_bool stop = false;
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, count_up, &stop), 0);
	fix_sleep_ms(50);
	ck_assert_int_eq(ctl("top -d 0.5"), 0); /* no terminal: one table */
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	SAYS("25.0 %");
	SAYS(POLICY_WINDOW "?budget=0.25\n");
	ck_assert_msg(strstr(said, "\n") && !strstr(said, "\033"), "%s", said);
	ck_assert_ptr_null(strstr(said, "  0.0  ")); /* a rate */
	ck_assert_int_eq(ctl("policy swap --all full"), 0);
	SAYS("1 sessions will switch to full");
	ck_assert_int_eq(ctl("top -n 2 -d 0.05"), 0);
	SAYS(POLICY_WINDOW "?budget=0.25 (swap pending)");
	SAYS("0.0    25.0 %"); /* no steps meanwhile: the totals */
}
END_TEST

START_TEST(metrics_are_in_prometheus_form)
{
	unsigned samples = 0;
	char *rest, *line;

	atomic_store(&page->steps, 42);
	ck_assert_int_eq(ctl("metrics"), 0);
	SAYS("# TYPE sparsekv_session_steps_total counter\n");
	SAYS("sparsekv_pool_pages{pool=\"0\",uid=\"");
	SAYS("state=\"lease\"} 10\n");
	SAYS("model=\"tiny\",policy=\"" POLICY_WINDOW "?budget=0.25\"} 42\n");
	for (line = strtok_r(said, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *end, *value = strrchr(line, ' ');

		if (*line == '#') {
			ck_assert(!strncmp(line, "# HELP sparsekv_", 16) ||
			          !strncmp(line, "# TYPE sparsekv_", 16));
			continue;
		}
		ck_assert_msg(!strncmp(line, "sparsekv_", 9) && value, "%s", line);
		strtod(value + 1, &end);
		ck_assert_msg(!*end, "%s", line);
		samples++;
	}
	ck_assert_uint_gt(samples, 30);
}
END_TEST

/* Counts the samples of a metric in the output, and adds them up. */
static unsigned samples_of(const char *metric, double *ret_sum)
{
	const size_t len = strlen(metric);
	unsigned n = 0;

	*ret_sum = 0;
	for (const char *at = said; (at = strstr(at, metric)); at += len)
		if (at[len] == '{' && at[-1] == '\n') {
			*ret_sum += strtod(strchr(at, '}') + 1, NULL);
			n++;
		}
	return n;
}

#define OPENERS 3
#define OPENED 15u /* by each: with the first one, 46 sessions */

/*
 * The metrics of a user with many sessions have a line for each of the first sessions, and one line with the sum of the
 * others.
 */
START_TEST(metrics_of_many_sessions_are_few)
{
	struct raw *opener[OPENERS];
	double sum, expected = 42;

	atomic_store(&page->steps, 42);
	for (unsigned i = 0; i < OPENERS; i++) {
		opener[i] = raw_hello(fix.socket);
		for (unsigned k = 0; k < OPENED; k++) {
			struct skv_session_page *p;
			void *map;

			raw_open(opener[i], "tiny", "full", NULL);
			ck_assert_int_eq(skv_map_fd(opener[i]->fds[0], sizeof(*p), PROT_READ | PROT_WRITE, false, &map), 0);
			p = map;
			atomic_store(&p->steps, 100 * i + k);
			for (uint32_t layer = 0; layer < raw_model("tiny").n_layers; layer++)
				atomic_store(&p->recall[layer], 500001);
			munmap(map, sizeof(*p));
			expected += 100 * i + k;
		}
	}
	ck_assert_int_eq(ctl("metrics"), 0);
	ck_assert_uint_eq(samples_of("sparsekv_session_steps_total", &sum), SHOWN_SESSIONS + 1);
	ck_assert_double_eq(sum, expected);
	SAYS("sparsekv_session_steps_total{session=\"others\",client=\"others\",uid=\"");
	ck_assert_uint_le(samples_of("sparsekv_session_recall", &sum), SHOWN_SESSIONS * raw_model("tiny").n_layers);
	ck_assert_uint_gt(samples_of("sparsekv_session_recall", &sum), 0);
	for (unsigned i = 0; i < OPENERS; i++)
		raw_close(opener[i]);
}
END_TEST

/* Makes a sequence of 40 tokens whose last layer's tables have the given numbers of pages of each kind. */
static void make_pages(void)
{
	struct skv_wire_model w = raw_model("tiny");
	struct skv_model m = {.n_layers = w.n_layers, .n_heads = w.n_heads, .n_kv_heads = w.n_kv_heads,
	                      .head_dim = w.head_dim};
	static const uint32_t pages[SKV_PAGE_KINDS] = {3, 1, 2, 2, 1, 4};
	struct skv_seqmem_layout l;
	struct skv_seqmem *mem;
	void *map;

	raw_seq_new(client, session, "");
	skv_seqmem_layout(&m, w.max_tokens, &l);
	ck_assert_int_eq(skv_map_fd(client->fds[0], l.state, PROT_READ | PROT_WRITE, false, &map), 0);
	mem = map;
	for (uint32_t group = 0; group < SKV_PAGE_KINDS; group++)
		for (uint32_t i = 0; i < pages[group]; i++)
			skv_seqmem_table(mem, &l, skv_table(l.n_layers, group, l.n_layers - 1))[i] =
			        skv_pte_make(SKV_PTE_PRIVATE, i);
	atomic_store(&mem->commit, (uint64_t)1 << 32 | 40);
	munmap(map, l.state);
}

START_TEST(pages_are_counted_by_kind)
{
	make_pages();
	ck_assert_int_eq(ctl("metrics"), 0);
	SAYS("kind=\"kv\"} 12288\n");
	SAYS("kind=\"bounds\"} 4096\n");
	SAYS("kind=\"slot_meta\"} 8192\n");
	SAYS("kind=\"codes\"} 8192\n");
	SAYS("kind=\"refs\"} 4096\n");
	SAYS("kind=\"prefill\"} 16384\n");
	SAYS("state=\"resident\"} 6\n");
	ck_assert_int_eq(ctl("seq list"), 0);
	SAYS("12.0 KiB  4.0 KiB  8.0 KiB  8.0 KiB  4.0 KiB  16.0 KiB");
}
END_TEST

/* Seals the first two blocks of a sequence of 600 tokens, and begins another sequence with them. */
START_TEST(prefixes_are_counted)
{
	struct skv_wire_model w = raw_model("tiny");
	struct skv_model m = {.n_layers = w.n_layers, .n_heads = w.n_heads, .n_kv_heads = w.n_kv_heads, .head_dim = w.head_dim};
	struct skv_msg_seal seal = {.session = session, .seq = raw_seq_new(client, session, ""), .n_tokens = 512};
	struct skv_msg_seq_name new = {.session = session, .seq = seal.seq, .n_tokens = 600};
	struct skv_seqmem_layout l;
	struct skv_seqmem *mem;
	void *map;

	ck_assert_int_eq(ctl("status"), 0);
	ck_assert_ptr_null(strstr(said, "prefixes")); /* there are none */
	ck_assert_int_eq(ctl("metrics"), 0);
	SAYS("# TYPE sparsekv_prefix_asked_total counter\nsparsekv_prefix_asked_total 0\n");
	skv_seqmem_layout(&m, w.max_tokens, &l);
	ck_assert_int_eq(skv_map_fd(client->fds[0], l.state, PROT_READ | PROT_WRITE, false, &map), 0);
	for (uint32_t layer = 0; layer < m.n_layers; layer++)
		for (uint32_t i = 0; i < skv_pages_of(600); i++)
			skv_seqmem_table(map, &l, skv_table(l.n_layers, 0, layer))[i] = skv_pte_make(SKV_PTE_HOLE, 0);
	mem = map;
	atomic_store(&mem->commit, (uint64_t)1 << 32 | 600);
	/* the sequence does not name its policy */
	ck_assert_int_eq(raw_refused(client, SKV_MSG_PREFIX_SEAL, &seal, sizeof(seal), -1), ESTALE);
	mem->policy = skv_spec_fingerprint(POLICY_WINDOW "?budget=0.25");
	munmap(map, l.state);
	raw_ask(client, SKV_MSG_PREFIX_NEW, &new, sizeof(new), -1);
	raw_ask(client, SKV_MSG_PREFIX_SEAL, &seal, sizeof(seal), -1);
	raw_ask(client, SKV_MSG_PREFIX_SEAL, &seal, sizeof(seal), -1); /* it is already sealed */
	raw_ask(client, SKV_MSG_PREFIX_NEW, &new, sizeof(new), -1);
	ck_assert_int_eq(ctl("status"), 0);
	SAYS("prefixes  1 sealed; 1 of 2 prompts began with one, 512 of their 1200 tokens\n");
	ck_assert_ptr_null(strstr(said, "store  ")); /* there is none */
	ck_assert_int_eq(ctl("metrics"), 0);
	SAYS("\nsparsekv_prefix_sealed_total 1\n");
	SAYS("\nsparsekv_prefix_asked_total 2\n");
	SAYS("\nsparsekv_prefix_hits_total 1\n");
	SAYS("\nsparsekv_prefix_asked_tokens_total 1200\n");
	SAYS("\nsparsekv_prefix_hit_tokens_total 512\n");
	SAYS("\nsparsekv_prefix_store 0\n");
	SAYS("# TYPE sparsekv_prefix_fetch_seconds_max gauge\nsparsekv_prefix_fetch_seconds_max 0\n");
}
END_TEST

/* With a store that no server runs. */
START_TEST(a_store_is_shown)
{
	char folder[] = "/tmp/skv-ctl-XXXXXX", path[64], parked[64], store[96], secret[96];
	const char *const options[] = {parked, store, secret, NULL};
	struct fix with;
	FILE *f;

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/secret", folder);
	snprintf(parked, sizeof(parked), "--parked-path=%s", folder);
	snprintf(store, sizeof(store), "--prefix-store=unix://%s/nobody", folder);
	snprintf(secret, sizeof(secret), "--prefix-secret-file=%s", path);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fchmod(fileno(f), 0600), 0);
	fprintf(f, "%032d", 7);
	fclose(f);
	fix_start_process(&with, options);
	ck_assert_int_eq(ctl("--socket %s status", with.socket), 0);
	SAYS("prefixes  0 sealed; 0 of 0 prompts began with one, 0 of their 0 tokens\n");
	SAYS("store     0 prefixes fetched, 0 tokens (0 ms at most); 0 sent, 0 B; 0 under way; 0 failed\n");
	ck_assert_int_eq(ctl("--socket %s metrics", with.socket), 0);
	SAYS("\nsparsekv_prefix_store 1\n");
	fix_stop(&with);
	unlink(path);
	rmdir(folder);
}
END_TEST

START_TEST(sequences_are_dropped_by_name)
{
	struct skv_msg_seq_name other = {.session = raw_open(client, "org/other", "full", NULL), .name = "chat"};
	struct skv_msg_session s = {.session = session};

	ck_assert_int_eq(ctl("seq drop nosuch"), 1);
	SAYS("has no sequence nosuch");
	ck_assert_int_eq(ctl("seq drop chat"), 1);
	SAYS("held by");
	raw_ask(client, SKV_MSG_CLOSE, &s, sizeof(s), -1);
	raw_ask(client, SKV_MSG_SEQ_NEW, &other, sizeof(other), -1);
	s.session = other.session;
	raw_ask(client, SKV_MSG_CLOSE, &s, sizeof(s), -1);
	ck_assert_int_eq(ctl("seq drop chat"), 1);
	SAYS("of 2 models: say which with --model");
	ck_assert_int_eq(ctl("seq drop chat --model org/other"), 0);
	SAYS("dropped chat of model org/other");
	ck_assert_int_eq(ctl("seq drop chat"), 0);
	SAYS("dropped chat of model tiny");
	ck_assert_int_eq(ctl("seq drop 'a b'"), 2);
}
END_TEST

START_TEST(policies_are_loaded_and_swapped)
{
	ck_assert_int_eq(ctl("policy load %s", fix_built("policies/.libs/" POLICY_WINDOW ".so")), 0);
	SAYS("loaded " POLICY_WINDOW " 1: new sessions get it");
	SAYS("1 sessions go on with what it replaces");
	ck_assert_int_eq(ctl("policy load %s", fix_built("tests/support/plugins/.libs/bad-crash.so")), 1);
	SAYS("bad-crash.so is refused\n");
	SAYS("killed by signal 6");
	ck_assert_int_eq(ctl("policy load /nonexistent"), 1);
	SAYS("/nonexistent: No such file");
	ck_assert_int_eq(ctl("policy swap --all nosuch"), 1);
	SAYS("no policy \"nosuch\" is loaded; loaded are:");
	ck_assert_int_eq(ctl("policy swap --all '" POLICY_PAGES "?budget=x'"), 1);
	SAYS("budget=x: expected");
	ck_assert_int_eq(ctl("policy swap --session %u full", session), 0);
	SAYS("1 sessions will switch");
	ck_assert_int_eq(ctl("policy swap --uid 77777 full"), 0);
	SAYS("0 sessions will switch");
	ck_assert_int_eq(ctl("policy swap --all full"), 0);
	ck_assert_int_eq(ctl("policy swap --session 99 full"), 1);
	SAYS("there is no session 99");
	ck_assert_int_eq(ctl("policy swap --client 99 full"), 1);
	SAYS("client 99 has no session to swap");
}
END_TEST

/* A swap names the sessions of a user, client or model: it changes no others, and without a name it is refused. */
START_TEST(a_swap_has_a_scope)
{
	struct skv_msg_session s = {.session = raw_open(client, "HuggingFaceTB/SmolLM2-135M", "full", NULL)};
	const struct skv_msg_policy *p;

	ck_assert_int_eq(ctl("policy swap " POLICY_PAGES), 2);
	SAYS("policy swap: expected which sessions: --session N, --client N, --uid UID, --model NAME, or --all");
	ck_assert_int_eq(ctl("policy swap --model HuggingFaceTB/SmolLM2-135M " POLICY_PAGES), 0);
	SAYS("1 sessions will switch to " POLICY_PAGES);
	p = raw_ask(client, SKV_MSG_POLICY_GET, &s, sizeof(s), -1);
	ck_assert_str_eq(p->spec, POLICY_PAGES);
	ck_assert_int_eq(ctl("policy swap --model HuggingFaceTB --uid %u " POLICY_PAGES, (unsigned)getuid()), 0);
	SAYS("0 sessions will switch");
	ck_assert_int_eq(ctl("policy swap --uid %u full", (unsigned)getuid()), 0);
	SAYS("2 sessions will switch");
	ck_assert_int_eq(ctl("policy swap --model 'a b' full"), 2);
	SAYS("expected a model's name: 1 to 63 printable characters but space");
	ck_assert_int_eq(ctl("top -n 1 -d 0.05"), 0);
	SAYS("HuggingFaceTB/SmolLM2-135M");
	ck_assert_int_eq(ctl("metrics"), 0);
	SAYS("model=\"HuggingFaceTB/SmolLM2-135M\"");
	raw_ask(client, SKV_MSG_CLOSE, &s, sizeof(s), -1);
}
END_TEST

/* Verifies a policy that the oracle knows, one that it does not, and two that are wrong. */
START_TEST(policies_are_verified)
{
	unsigned long long seed;
	const char *repeat;

	ck_assert_int_eq(ctl("policy verify -n 40 --seed 60 '" POLICY_WINDOW "?budget=50'"), 0);
	SAYS(POLICY_WINDOW "?budget=50: 4");
	SAYS("seed 60;");
	SAYS("those that the oracle finds");
	SAYS("passed\n");
	ck_assert_int_eq(ctl("policy verify -n 10 --json template"), 0);
	SAYS("\"passed\": true");
	SAYS("\"oracle\": false");
	ck_assert_int_eq(ctl("policy verify -n 10 --shape 9,6,3,32 '" POLICY_PAGES "?budget=4&layers=8&dense=0'"), 0);
	ck_assert_int_eq(ctl("policy verify -n 10 --shape 8,6,3,32 '" POLICY_PAGES "?budget=4&layers=8&dense=0'"), 1);
	SAYS("layer 8");
	ck_assert_int_eq(ctl("policy load %s", fix_built("tests/support/plugins/.libs/greedy.so")), 0);
	ck_assert_int_eq(ctl("policy verify 'greedy?budget=20'"), 1);
	SAYS("its budget is 20");
	SAYS("failed\n");
	ck_assert_int_eq(ctl("policy load %s", fix_built("tests/support/plugins/.libs/wrong-delta.so")), 0);
	ck_assert_int_eq(ctl("policy verify '" POLICY_PAGES "?budget=5&layers=0&dense=1'"), 1);
	SAYS(": entry ");
	repeat = strstr(said, "repeat the case that failed with --seed ");
	ck_assert_ptr_nonnull(repeat);
	seed = strtoull(repeat + strlen("repeat the case that failed with --seed "), NULL, 10);
	ck_assert_int_eq(ctl("policy verify --seed %llu '" POLICY_PAGES "?budget=5&layers=0&dense=1'", seed), 1);
	SAYS("on 1 models");
	ck_assert_int_eq(ctl("policy verify nosuch"), 1);
	SAYS("nosuch");
	ck_assert_int_eq(ctl("policy verify '" POLICY_PAGES "?layers=200'"), 1);
	SAYS("layer 200");
}
END_TEST

/* The client comes to its next step, finds another policy than `from`, and reports `error`. */
struct step {
	const char *from;
	int error;
};

static void *take_step(void *arg)
{
	const struct step *step = arg;
	struct skv_msg_session s = {.session = session};
	struct skv_msg_policy_ack ack = {.session = session, .error = step->error, .text = "no room for it"};
	const struct skv_msg_policy *p;

	do {
		fix_sleep_ms(5);
		p = raw_ask(client, SKV_MSG_POLICY_GET, &s, sizeof(s), -1);
	} while (!strcmp(p->spec, step->from));
	ack.generation = p->generation;
	if (!step->error)
		memset(ack.text, 0, sizeof(ack.text));
	raw_ask(client, SKV_MSG_POLICY_ACK, &ack, sizeof(ack), -1);
	return NULL;
}

START_TEST(a_swap_can_be_waited_for)
{
	struct step takes = {POLICY_WINDOW "?budget=0.25", 0}, refuses = {"full", ENOMEM};
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, take_step, &takes), 0);
	ck_assert_int_eq(ctl("policy swap --all --wait 10 full"), 0);
	pthread_join(thread, NULL);
	ck_assert_int_eq(pthread_create(&thread, NULL, take_step, &refuses), 0);
	ck_assert_int_eq(ctl("policy swap --all --wait 10 " POLICY_PAGES), 1);
	pthread_join(thread, NULL);
	SAYS("1 sessions refused the policy and keep their old one; session");
	SAYS("no room for it");
	ck_assert_int_eq(ctl("policy swap --all --wait 0.1 " POLICY_PAGES), 1);
	SAYS("1 sessions made no step in 0.1 s");
}
END_TEST

START_TEST(wrong_usage_is_status_2)
{
	static const struct {
		const char *arguments, *says;
	} cases[] = {
		{"", "expected a command"},
		{"bogus", "unknown command \"bogus\""},
		{"seq", "unknown command \"seq\""},
		{"seq frob", "unknown command"},
		{"seq drop", "expected one NAME"},
		{"status extra", "takes no argument"},
		{"status --all", "does not take"},
		{"policy swap", "expected one SPEC"},
		{"policy swap --session x full", "--session: got \"x\""},
		{"policy swap --session 0 full", "--session: got \"0\""},
		{"policy swap --uid -1 full", "--uid: got \"-1\""},
		{"policy swap full", "expected which sessions"},
		{"policy swap --client 0 full", "--client: got \"0\""},
		{"policy swap --all --uid 3 full", "--all cannot be combined with"},
		{"seq drop --client 3 chat", "does not take"},
		{"policy verify", "expected one SPEC"},
		{"policy verify --shape 3,2,1 full", "--shape: got \"3,2,1\""},
		{"policy verify --seed x full", "--seed: got \"x\""},
		{"policy swap -n 3 full", "does not take"},
		{"policy verify -d 3 full", "does not take"},
		{"top -n 0", "-n: got \"0\""},
		{"top -d 0", "-d: got \"0\""},
		{"--timeout never status", "--timeout: got \"never\""},
		{"--frob status", "see sparsekvctl --help"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ck_assert_msg(ctl("%s", cases[i].arguments) == 2, "%s", cases[i].arguments);
		SAYS(cases[i].says);
	}
	ck_assert_int_eq(ctl("--help"), 0);
	SAYS("policy swap SPEC");
	ck_assert_int_eq(ctl("--version"), 0);
}
END_TEST

START_TEST(no_daemon_is_status_3)
{
	ck_assert_int_eq(ctl("--socket /nonexistent status"), 3);
	SAYS("/nonexistent: cannot connect: No such file or directory (is sparsekvd running?)");
	ck_assert_int_eq(kill(fix.pid, SIGSTOP), 0);
	ck_assert_int_eq(ctl("--timeout 0.2 status"), 3);
	SAYS("no answer within 0.2 s");
	ck_assert_int_eq(kill(fix.pid, SIGCONT), 0);
	ck_assert_int_eq(ctl("status"), 0);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-ctl");

	add_case(s, "ctl", 60, setup, teardown, tables_show_what_there_is, status_names_guessed_layers, every_command_has_its_json,
	         top_shows_rates, metrics_are_in_prometheus_form, metrics_of_many_sessions_are_few, pages_are_counted_by_kind, prefixes_are_counted, a_store_is_shown,
	         sequences_are_dropped_by_name, policies_are_loaded_and_swapped, a_swap_has_a_scope, policies_are_verified,
	         a_swap_can_be_waited_for, wrong_usage_is_status_2, no_daemon_is_status_3, NULL);
	return run_suite(s);
}
