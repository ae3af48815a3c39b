/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/park.c - the commands that move sequences to and from files: seq park, seq resume, seq export, seq import.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/ctl/ctl.h"
#include "daemon/ctl/text-table.h"

/* Prints the reply (consumed) to the request SEQ_PARK, SEQ_RESUME or SEQ_IMPORT. */
static int print_moved(const struct skv_ctl_options *o, const char *what, json_t *answer)
{
	const double seconds = skv_json_num(answer, "seconds");
	const uint64_t bytes = skv_json_u64(answer, "bytes");

	if (o->json) {
		skv_ctl_print_json(answer);
		return SKV_EXIT_OK;
	}
	printf("%s%s%s: %s in %.2f s\n", what, o->arg ? " " : "", o->arg ? o->arg : "", skv_human_bytes(bytes), seconds);
	json_decref(answer);
	return SKV_EXIT_OK;
}

static int move(struct skv_ctl *ctl, const struct skv_ctl_options *o, uint16_t type, const char *what)
{
	struct skv_msg_seq_of m;
	json_t *answer;
	int r = skv_ctl_which_seq(ctl, o, &m);

	if (r != SKV_EXIT_OK)
		return r;
	r = skv_ctl_ask(ctl, type, &m, sizeof(m), -1, &answer);
	return r < 0 ? skv_ctl_complain(ctl, r) : print_moved(o, what, answer);
}

int skv_ctl_seq_park(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	return move(ctl, o, SKV_MSG_SEQ_PARK, "parked");
}

int skv_ctl_seq_resume(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	return move(ctl, o, SKV_MSG_SEQ_RESUME, "resumed");
}

/* Copies the exported file from the pipe to standard output, and checks that it has the expected number of bytes. */
static int copy_out(int from, uint64_t expected)
{
	static char buf[1 << 20];
	uint64_t copied = 0;
	ssize_t n;

	while ((n = read(from, buf, sizeof(buf))) > 0 || (n < 0 && errno == EINTR)) {
		if (n > 0 && fwrite(buf, 1, (size_t)n, stdout) != (size_t)n)
			return SKV_EXIT_REFUSED; /* main() reports that standard output failed */
		copied += n > 0 ? (uint64_t)n : 0;
	}
	if (n == 0 && copied == expected)
		return SKV_EXIT_OK;
	fprintf(stderr, "sparsekvctl: got %llu bytes, expected %llu: the file is incomplete\n",
	        (unsigned long long)copied, (unsigned long long)expected);
	return SKV_EXIT_REFUSED;
}

int skv_ctl_seq_export(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	struct skv_msg_seq_of m;
	struct skv_msg_file file;
	json_t *answer;
	int fd = -1, r;

	if (isatty(STDOUT_FILENO)) {
		fprintf(stderr, "sparsekvctl: seq export writes a file: redirect standard output\n");
		return SKV_EXIT_USAGE;
	}
	r = skv_ctl_which_seq(ctl, o, &m);
	if (r != SKV_EXIT_OK)
		return r;
	r = skv_ctl_ask(ctl, SKV_MSG_SEQ_PARK, &m, sizeof(m), -1, &answer);
	if (r == 0)
		json_decref(answer);
	if (r == 0 || r == -EALREADY)
		r = skv_ctl_ask_fd(ctl, SKV_MSG_SEQ_EXPORT, &m, sizeof(m), &file, sizeof(file), &fd);
	if (r < 0)
		return skv_ctl_complain(ctl, r);
	r = copy_out(fd, file.bytes);
	skv_close_fd(fd);
	return r;
}

int skv_ctl_seq_import(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	struct skv_msg_user m = {.uid = o->uid >= 0 ? (uint32_t)o->uid : (uint32_t)getuid()};
	json_t *answer;
	int r;

	if (isatty(STDIN_FILENO)) {
		fprintf(stderr, "sparsekvctl: seq import reads a file from standard input, as `seq export` has written it\n");
		return SKV_EXIT_USAGE;
	}
	r = skv_ctl_ask(ctl, SKV_MSG_SEQ_IMPORT, &m, sizeof(m), STDIN_FILENO, &answer);
	return r < 0 ? skv_ctl_complain(ctl, r) : print_moved(o, "imported", answer);
}
