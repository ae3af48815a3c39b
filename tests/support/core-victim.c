/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/core-victim.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "daemon/core/state/fdstore.h"
#include "tests/support/child.h"
#include "tests/support/random.h"

#define OF_PEER (VICTIM_SEQS / VICTIM_PEERS)

struct victim_copy victim_copies[2];
struct victim_witness *victim_witness;
struct peer victim_peers[VICTIM_PEERS];
struct held victim_held[VICTIM_SEQS];
static bool is_held[VICTIM_SEQS];

static void *shared_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

size_t victim_state_bytes(void)
{
	return core->state.header->offset[SKV_TABLE_UNDO];
}

size_t victim_table_bytes(const struct held *h)
{
	return (size_t)h->layout.n_tables * h->layout.max_pages * sizeof(skv_pte);
}

const skv_pte *victim_tables(const struct held *h)
{
	return (const skv_pte *)((const char *)h->mem + h->layout.table);
}

static void take_copy(void)
{
	struct victim_copy *n = &victim_copies[1 - victim_witness->last];

	memcpy(n->state, core->state.header, victim_state_bytes());
	for (int i = 0; i < VICTIM_SEQS; i++)
		memcpy(n->tables[i], victim_tables(&victim_held[i]), victim_table_bytes(&victim_held[i]));
	victim_witness->last = 1 - victim_witness->last;
	victim_witness->commits++;
}

static void commit(void)
{
	take_copy();
	skv_core_commit(core);
}

/* ---- the fd store ---------------------------------------------------------------------------- */

#define KEPT_MOST 1024

static struct {
	char name[SKV_FDSTORE_NAME];
	int fd;
} kept[KEPT_MOST];
static size_t n_kept;
static int to_store[2]; /* from the working process to the test */
static bool works;

/* fd -1: removes the entry. */
static void keep_here(const char *name, int fd)
{
	size_t i = 0;

	while (i < n_kept && strcmp(kept[i].name, name) != 0)
		i++;
	if (fd >= 0) {
		ck_assert_msg(i == n_kept && n_kept < KEPT_MOST, "%s: kept already", name);
		snprintf(kept[n_kept].name, sizeof(kept[0].name), "%s", name);
		kept[n_kept++].fd = fd;
	} else {
		ck_assert_msg(i < n_kept, "%s: not kept", name);
		close(kept[i].fd);
		kept[i] = kept[--n_kept];
	}
}

static void tell_store(const char *name, int fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)name, .iov_len = strlen(name) + 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		m.msg_control = control.buf;
		m.msg_controllen = sizeof(control.buf);
		*CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof(fd));
	}
	ck_assert_int_eq(sendmsg(to_store[0], &m, 0), (ssize_t)iov.iov_len);
}

static bool keep(void *ctx, const char *name, int fd)
{
	(void)ctx;
	if (works)
		tell_store(name, fd);
	else
		keep_here(name, dup(fd));
	return true;
}

static bool keep_no_more(void *ctx, const char *name)
{
	(void)ctx;
	if (works)
		tell_store(name, -1);
	else
		keep_here(name, -1);
	return true;
}

static void hear(void)
{
	for (;;) {
		union {
			struct cmsghdr align;
			char buf[CMSG_SPACE(sizeof(int))];
		} control;
		char name[SKV_FDSTORE_NAME];
		struct iovec iov = {.iov_base = name, .iov_len = sizeof(name)};
		struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)};
		int fd = -1;

		if (recvmsg(to_store[1], &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
			return;
		if (CMSG_FIRSTHDR(&m))
			memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
		keep_here(name, fd);
	}
}

struct skv_core_found *victim_stored(size_t *ret_n)
{
	struct skv_core_found *found = calloc(n_kept, sizeof(*found));

	for (size_t i = 0; i < n_kept; i++)
		found[i] = (struct skv_core_found){.name = kept[i].name, .fd = kept[i].fd};
	*ret_n = n_kept;
	return found;
}

void victim_store(void)
{
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, to_store), 0);
	skv_core_set_fdstore(core, &(struct skv_core_fdstore){.add = keep, .remove = keep_no_more});
}

/* ---- setting up ------------------------------------------------------------------------------ */

void victim_setup(void)
{
	struct skv_core_config config = books_config();
	struct skv_model m = test_model("m", 3, 16);
	char name[8];

	config.max_sequences = 64;
	books_open(&config);
	victim_store();
	victim_witness = shared_memory(sizeof(*victim_witness));
	for (int i = 0; i < VICTIM_PEERS; i++)
		peer_join(&victim_peers[i], 1000 + (uid_t)i % 2, &m);
	for (int i = 0; i < VICTIM_SEQS; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		held_new(&victim_held[i], &victim_peers[i / OF_PEER], name, VICTIM_TOKENS);
		held_append(&victim_held[i], &victim_peers[i / OF_PEER], 40 + rnd_below(100));
		is_held[i] = true;
	}
	for (int i = 0; i < 2; i++) {
		victim_copies[i].state = shared_memory(victim_state_bytes());
		for (int k = 0; k < VICTIM_SEQS; k++)
			victim_copies[i].tables[k] = shared_memory(victim_table_bytes(&victim_held[k]));
	}
	commit();
}

/* ---- the working process --------------------------------------------------------------------- */

#define STEP_PAGES 16u /* upper limit of pages per step */

/* Pages must be the client's by a commit before they are used: the next core would not know of the lease otherwise. */
static void append(struct held *h, struct peer *p, uint32_t n_tokens)
{
	if (p->n_stock < STEP_PAGES && peer_lease(p, STEP_PAGES, 2 * STEP_PAGES) != 0)
		return;
	commit();
	held_append(h, p, n_tokens);
}

static void fork_one(struct held *parent, struct peer *p)
{
	struct held child;

	victim_witness->forking = true;
	if (held_fork(&child, parent, p, "") == 0) {
		commit();
		victim_witness->forking = false;
		if (rnd_below(2))
			append(&child, p, 1 + rnd_below(30));
		held_drop(&child, p);
		held_close(&child);
	}
	victim_witness->forking = false;
}

static void detach_or_attach(int i, struct peer *p)
{
	const struct skv_core_seq_view v = {.seq = victim_held[i].seq};
	struct skv_core_seq_info info;
	char name[8];

	snprintf(name, sizeof(name), "s%d", i);
	if (is_held[i])
		ck_assert_int_eq(in_turns(skv_core_seq_detach(core, p->client, p->session.session, v.seq), NULL), 0);
	else
		ck_assert_int_eq(in_turns(skv_core_seq_attach(core, p->client, p->session.session, name, &info), &info), 0);
	is_held[i] = !is_held[i];
}

static void give_pages(struct peer *p)
{
	struct skv_wire_run runs[8];
	uint32_t n = 0;

	while (n < 8 && p->n_stock)
		runs[n++] = (struct skv_wire_run){p->stock[--p->n_stock], 1};
	if (n)
		ck_assert_int_eq(skv_core_lease_put(core, p->client, p->session.session, runs, n), 0);
}

/* A client joins and leaves, if there is room for it. */
static void come_and_go(void)
{
	struct skv_model m = test_model("other", 2, 32);
	struct skv_core_session_info session;
	struct skv_core_seq_info seq;
	struct skv_wire_run runs[64];
	uint32_t client, n;

	if (skv_core_client_add(core, 1000 + rnd_below(3), getpid(), "test", &client) != 0)
		return;
	if (skv_core_session_open(core, client, &m, "full", 1, &session) == 0) {
		(void)skv_core_lease_get(core, client, session.session, 1, 1 + rnd_below(60), runs, 64, &n);
		(void)skv_core_seq_new(core, client, session.session, rnd_below(2) ? "x" : "", 100, &seq);
	}
	commit();
	client_gone(client);
}

static void do_something(void)
{
	const int i = (int)rnd_below(VICTIM_SEQS);
	struct peer *p = &victim_peers[i / OF_PEER];

	switch (rnd_below(6)) {
	case 0: (void)peer_lease(p, 1, 1 + rnd_below(200)); break;
	case 1: give_pages(p); break;
	case 2: detach_or_attach(i, p); break;
	case 3: come_and_go(); break;
	case 4:
		if (is_held[i] && held_len(&victim_held[i]) + 8 < VICTIM_TOKENS)
			append(&victim_held[i], p, 1 + rnd_below(8));
		break;
	case 5:
		if (is_held[i])
			fork_one(&victim_held[i], p);
		break;
	}
	commit();
}

void victim_kill(uint32_t most_us)
{
	const uint32_t us = rnd_below(most_us);
	const pid_t child = child_fork();
	int status;

	works = child == 0;
	while (child == 0)
		do_something();
	for (uint32_t waited = 0; waited < us; waited += 200) {
		usleep(us - waited < 200 ? us - waited : 200);
		hear();
	}
	ck_assert_int_eq(kill(child, SIGKILL), 0);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFSIGNALED(status), "it ended by itself: %s", child_problem());
	hear();
}
