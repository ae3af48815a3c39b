/* SPDX-License-Identifier: Apache-2.0 */
/* The input is a byte with the direction and the number of fds, then a packet. */
#include "common/wire.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "wire";
const int fuzz_copies = 300;

void fuzz_one(const uint8_t *data, size_t size)
{
	bool to_daemon = size && (data[0] & 8);
	unsigned n_fds = size ? data[0] & 7 : 0;
	const uint8_t *packet = size ? data + 1 : data;
	size_t bytes = size ? size - 1 : 0, len = 0;
	const char *wrong = skv_wire_check(packet, bytes, n_fds, to_daemon);
	char *line = NULL;
	FILE *to = open_memstream(&line, &len);
	struct skv_msg_header h;

	MUST(to);
	skv_wire_dump(to, "fuzz", packet, bytes, n_fds);
	fclose(to);
	MUST(len > 0 && strchr(line, '\n') == line + len - 1);
	if (!wrong) {
		memcpy(&h, packet, sizeof(h));
		MUST(h.length == bytes && bytes <= SKV_WIRE_MAX);
		MUST(h.n_fds == n_fds && n_fds <= SKV_WIRE_MAX_FDS);
		MUST(!to_daemon || !(h.type & SKV_REPLY));
		MUST(strcmp(skv_wire_name(h.type), "?") != 0);
		/* a message is valid in one direction only */
		MUST(skv_wire_check(packet, bytes, n_fds, !to_daemon));
	}
	free(line);
}
