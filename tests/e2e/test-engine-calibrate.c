/* SPDX-License-Identifier: Apache-2.0 */
/* Runs sparsekv-calibrate as users do, with the reference model: see tests/support/engine-programs.h. */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/engine-programs.h"
#include "tests/support/policies.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

/* Policies accept the profile that a calibration writes, and it writes its figures. */
START_TEST(calibrates)
{
	char *out, *svg, *profile, spec[300], path[200], prefix[200];
	const char *argv[] = {CALIBRATE, "--model", model, SOCKET, "--tasks", tasks, "--texts", "1",
	                      "--context", "700", "--rows", "10", "--sinks", "16", "--window", "128",
	                      "-o", path, "--svg", prefix, NULL};

	snprintf(path, sizeof(path), "%s/profile.json", folder);
	snprintf(prefix, sizeof(prefix), "%s/drawn", folder);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "\ndelta layers:      2,7,"));
	ck_assert_ptr_nonnull(strstr(out, "\nkascade anchors:   0,"));
	ck_assert_ptr_nonnull(strstr(out, "\nthe correction does harm: ")); /* bytes are not alike */
	profile = fx_read(path, NULL);
	ck_assert_ptr_nonnull(strstr(profile, "\"helps\": false"));
	ck_assert_ptr_nonnull(strstr(profile, "\"sparsekv_profile\": 1"));
	svg = fx_read(fx_path(folder, "drawn-similarity.svg"), NULL);
	ck_assert_int_eq(strncmp(svg, "<svg ", 5), 0);
	ck_assert_ptr_nonnull(strstr(svg, "</svg>\n"));
	free(svg);
	svg = fx_read(fx_path(folder, "drawn-shift.svg"), NULL);
	ck_assert_ptr_nonnull(strstr(svg, "</svg>\n"));
	free(svg);
	svg = fx_read(fx_path(folder, "drawn-alike.svg"), NULL);
	ck_assert_ptr_nonnull(strstr(svg, "</svg>\n"));
	free(svg);
	free(profile);
	free(out);

	snprintf(spec, sizeof(spec), POLICY_PAGES "?profile=%s", path);
	out = generate("--policy", spec, "--prompt", prompt);
	ck_assert_str_eq(out, answer);
	free(out);
	snprintf(spec, sizeof(spec), POLICY_ANCHORS "?profile=%s", path);
	out = generate("--policy", spec, "--prompt", prompt, "--max-tokens", "5");
	ck_assert_uint_eq(strlen(out), 5);
	free(out);
}
END_TEST

/* Codecs are computed from texts, and sequences are compressed with them. */
START_TEST(calibrates_compressors)
{
	static const struct {
		const char *option, *policy;
	} cases[] = {{"--deltakv-pca", POLICY_LATENT "?layers=2,7,12&residual=32&file="},
	             {"--palu", POLICY_LOW_RANK "?residual=32&file="}};
	char *out, *csv, *line, spec[300], path[200];
	double exact, lines, kept;
	const char *argv[] = {CALIBRATE, "--model", model, SOCKET, "--tasks", tasks, "--texts", "1",
	                      "--context", "700", cases[_i].option, path, NULL};

	snprintf(path, sizeof(path), "%s/made.safetensors", folder);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, " for 256 of K and V"));
	free(out);

	snprintf(spec, sizeof(spec), "%s%s", cases[_i].policy, path);
	eval("--policy", spec, "--task", "kv,niah", "--limit", "1", "--csv", fx_path(folder, "csv"));
	csv = fx_read(fx_path(folder, "csv"), NULL);
	line = strstr(csv, ",all,");
	ck_assert_ptr_nonnull(line);
	ck_assert_int_eq(sscanf(line, ",all,%*[^,],%*[^,],%lf,%lf,%*[^,],%*[^,],%*[^,],%lf", &exact, &lines, &kept), 3);
	ck_assert_msg(lines > 0.7 && kept < 0.8, "%f of the lines right, %f kept:\n%s", lines, kept, csv);
	free(csv);
}
END_TEST

/* A search starts with the choice by the papers' criteria, and the profile has both. */
START_TEST(calibrates_by_loss)
{
	char *profile, spec[300], path[200];
	const char *argv[] = {CALIBRATE, MODEL, SOCKET, "--text", tasks, "--by",
	                      "loss", "--budget", "0.1", "--texts", "1", "--context", "300", "--rows", "8",
	                      "--delta-layers", "2", "--anchors", "1", "--filters", "1", "-o", path, NULL};
	char *out;

	snprintf(path, sizeof(path), "%s/profile.json", folder);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "\ndelta layers:      2,"));
	/* longer than the sinks and the windows of the policies */
	ck_assert_ptr_nonnull(strstr(out, "\nno text is longer than these"));
	ck_assert_ptr_nonnull(strstr(out, "\nby loss, 8 tokens, a budget of 0.1:\ndelta layers:      2,"));
	ck_assert_ptr_nonnull(strstr(out, "\nkascade anchors:   0  loss "));
	ck_assert_ptr_nonnull(strstr(out, ", 1 sets tried\n"));
	free(out);
	profile = fx_read(path, NULL);
	ck_assert_ptr_nonnull(strstr(profile, "\"papers\": {"));
	ck_assert_ptr_nonnull(strstr(profile, "\"papers_loss\": "));
	free(profile);
	snprintf(spec, sizeof(spec), POLICY_PAGES "?profile=%s", path);
	out = generate("--policy", spec, "--prompt", prompt);
	ck_assert_str_eq(out, answer);
	free(out);
}
END_TEST

/* Without a text it takes the installed one, and an uninterrupted run is not partial. */
START_TEST(calibrates_prose)
{
	char *profile, path[200];
	const char *argv[] = {CALIBRATE, "--model", model, SOCKET, "--context", "300", "--texts", "2", "--rows", "8",
	                      "-o", path, NULL};

	snprintf(path, sizeof(path), "%s/profile.json", folder);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	profile = fx_read(path, NULL);
	ck_assert_ptr_nonnull(strstr(profile, "\"from\": \"prose.txt\""));
	ck_assert_ptr_nonnull(strstr(profile, "\"texts\": 2,"));
	ck_assert_ptr_nonnull(strstr(profile, "\"tokens\": 600,"));
	ck_assert_ptr_null(strstr(profile, "\"partial\""));
	free(profile);
}
END_TEST

/* Interrupted while it reads or searches: it writes what it has as a profile that is marked as partial. */
START_TEST(interrupted_calibration)
{
	char path[200];
	const char *reads[] = {CALIBRATE, "--model", model, SOCKET, "--context", "700", "--texts", "500", "-o", path, NULL};
	const char *searches[] = {CALIBRATE, "--model", model, SOCKET, "--context", "300", "--texts", "4", "--rows", "64",
	                          "--by", "loss", "-o", path, NULL};
	char *profile, *out, *err, spec[300];
	int status = -SIGTERM;

	snprintf(path, sizeof(path), "%s/profile.json", folder);
	/* a signal before anything is measured ends the program without a file: try again with a later signal */
	for (int ms = 2000; status == -SIGTERM && ms <= 32000; ms *= 2) {
		pid_t pid = run_start(folder, _i ? searches : reads);

		ck_assert_int_lt(access(path, F_OK), 0);
		poll(NULL, 0, ms);
		kill(pid, SIGTERM);
		status = run_wait(pid, LIMIT);
	}
	err = run_err(folder);
	ck_assert_msg(status == 3, "status %d: %s", status, err);
	ck_assert_ptr_nonnull(strstr(err, "interrupted: this profile rests on "));
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "\nkascade anchors:   0,"));
	profile = fx_read(path, NULL);
	ck_assert_ptr_nonnull(strstr(profile, "\"partial\": {"));
	ck_assert_ptr_nonnull(strstr(profile, _i ? "\"of_texts\": 4," : "\"of_texts\": 500,"));
	ck_assert_int_lt(access(fx_path(folder, "profile.json.part"), F_OK), 0);
	snprintf(spec, sizeof(spec), POLICY_PAGES "?profile=%s", path);
	free(out);
	out = generate("--policy", spec, "--prompt", prompt, "--max-tokens", "5");
	ck_assert_uint_eq(strlen(out), 5);
	free(out);
	free(err);
	free(profile);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-engine-calibrate");
	TCase *t = add_case(s, "sparsekv-calibrate", 120, programs_setup, daemon_teardown, calibrates, calibrates_by_loss, calibrates_prose, NULL);

	add_share(t, interrupted_calibration, 2, 2);
	add_share(t, calibrates_compressors, 2, 2);
	return run_suite(s);
}
