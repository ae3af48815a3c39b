/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/prefix-disk.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/folder.h"

struct prefix_disk pd;

/* ---- daemon and client ----------------------------------------------------------------------- */

static void pd_start(void)
{
	const bool device = devmem_is_device();
	char parked[96];
	const char *options[12] = {parked, "--segment-bytes=1M", "--account-bytes=64M", "--account-sequences=40",
	                           device ? "--cuda-pool-bytes=16M" : "--pool-bytes=16M", "--cuda-segment-bytes=2M"};
	int n = 6;

	snprintf(parked, sizeof(parked), "--parked-path=%s", pd.folder);
	for (int i = 0; pd.options[i]; i++)
		options[n++] = pd.options[i];
	fix_start_process(&pd.f, options);
	OK(skv_connect(&pd.client, pd.f.socket));
	skv_set_timeout(pd.client, 5000);
	prefix_model(&pd.w, "parked");
	OK(skv_open(pd.client, &pd.w.model, PD_SPEC, &pd.w.session));
}

void pd_begin(void)
{
	if (!pd.folder)
		pd.folder = fx_folder();
	pd_start();
}

void pd_end(void)
{
	char command[200];

	skv_disconnect(pd.client);
	fix_stop(&pd.f);
	snprintf(command, sizeof(command), "rm -rf '%s'", pd.folder);
	ck_assert_int_eq(system(command), 0);
}

void pd_reboot(void)
{
	skv_disconnect(pd.client);
	fix_kill(&pd.f);
	pd_start();
}

json_int_t pd_figure(const char *of, const char *key)
{
	struct raw *r = raw_operator(pd.f.socket);
	json_t *status = raw_query(r, SKV_QUERY_STATUS), *value = json_object_get(json_array_get(json_object_get(status, of), 0), key);
	json_int_t n = json_integer_value(value);

	ck_assert_msg(json_is_integer(value), "%s has no %s", of, key);
	json_decref(status);
	raw_close(r);
	return n;
}

json_int_t pd_of_prefixes(const char *key)
{
	return pd_figure("prefixes", key);
}

unsigned pd_in_memory(void)
{
	struct raw *r = raw_hello(pd.f.socket);
	json_t *seqs = raw_query(r, SKV_QUERY_SEQS), *row;
	unsigned n = 0;
	size_t i;

	json_array_foreach(json_object_get(seqs, "sequences"), i, row)
		n += *json_string_value(json_object_get(row, "name")) == '/' && !json_object_get(row, "parked_bytes");
	json_decref(seqs);
	raw_close(r);
	return n;
}

unsigned pd_files(const char *end, char *ret, size_t size)
{
	char pattern[200];
	unsigned n;
	glob_t g;

	snprintf(pattern, sizeof(pattern), "%s/%u/*%s", pd.folder, (unsigned)getuid(), end);
	n = glob(pattern, 0, NULL, &g) == 0 ? (unsigned)g.gl_pathc : 0;
	if (n && ret)
		snprintf(ret, size, "%s", g.gl_pathv[0]);
	globfree(&g);
	return n;
}

unsigned pd_prefix_files(void)
{
	return pd_files(".prefix", NULL, 0);
}

void pd_wait_files(unsigned n)
{
	for (int i = 0; i < 500 && pd_prefix_files() != n; i++)
		fix_sleep_ms(10);
	ck_assert_uint_eq(pd_prefix_files(), n);
}

/* ---- prompts --------------------------------------------------------------------------------- */

void pd_seal(uint64_t seed, uint32_t n)
{
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;

	prefix_prompt(ids, seed);
	OK(skv_seq_new(pd.w.session, NULL, 0, &seq));
	prefix_read(&pd.w, seq, ids, 0, n, true, NULL);
	OK(skv_seq_seal(seq, n, NULL));
	OK(skv_seq_drop(seq));
}

uint32_t pd_attend(uint64_t seed)
{
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;
	float *want, *got;
	uint32_t len;

	prefix_prompt(ids, seed);
	len = prefix_begin(&pd.w, ids, PREFIX_PROMPT, &seq);
	got = prefix_go_on(&pd.w, seq, ids);
	OK(skv_seq_drop(seq));
	OK(skv_seq_new(pd.w.session, NULL, 0, &seq));
	want = prefix_go_on(&pd.w, seq, ids);
	OK(skv_seq_drop(seq));
	ck_assert_msg(prefix_same(&pd.w, want, got), "%u tokens of a prefix, and another output than after reading the prompt", len);
	free(want);
	free(got);
	return len;
}

void pd_squeeze(void)
{
	struct skv_session *mine = pd.w.session;
	int32_t ids[PREFIX_TOKENS] = {0};
	struct skv_client *other;
	struct skv_seq *held = NULL;

	OK(skv_connect(&other, pd.f.socket));
	skv_set_timeout(other, 5000);
	OK(skv_open(other, &pd.w.model, PD_SPEC, &pd.w.session));
	for (uint32_t len = PREFIX_TOKENS; pd_in_memory() > 0; len += 64) {
		if (len == PREFIX_TOKENS) {
			OK(skv_seq_new(pd.w.session, NULL, 0, &held));
			len = 0;
		}
		prefix_read(&pd.w, held, ids, len, len + 64, true, NULL);
	}
	skv_disconnect(other);
	pd.w.session = mine;
}

int pd_park(const char *name)
{
	struct raw *r = raw_hello(pd.f.socket);
	const int error = raw_seq_named(r, SKV_MSG_SEQ_PARK, pd.w.model.name, name);

	raw_close(r);
	return error;
}

void pd_leave(const char *name, uint32_t n_tokens)
{
	int32_t ids[PREFIX_TOKENS] = {0};
	struct skv_seq *seq;

	OK(skv_seq_new(pd.w.session, name, 0, &seq));
	prefix_read(&pd.w, seq, ids, 0, n_tokens, true, NULL);
	OK(skv_seq_detach(seq));
}

unsigned pd_signal_workers(int signal)
{
	return fix_signal_children(pd.f.pid, "sparsekvd-disk", signal);
}

