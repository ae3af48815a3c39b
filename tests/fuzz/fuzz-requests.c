/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A running daemon with malicious peers: they send packets, well-formed or not, with descriptors of all kinds to the
 * sockets of clients and operators, and disconnect at any time. The input determines their actions. Afterwards another
 * client must be served normally; when the daemon stops, its state must balance and no descriptor may remain open.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/fd.h"
#include "common/wire-table.h"
#include "daemon/server/server.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/policies.h"

const char fuzz_name[] = "requests";
const int fuzz_copies = 5;

#define PEERS 3u
#define MOST_FDS 5u          /* one more than a message may have */
#define INPUTS_OF_DAEMON 500 /* then it is stopped and checked */
#define ANSWER_MS 20000

static struct {
	char dir[64], socket[96], operators[112];
	struct skv_server *server;
	pthread_t thread;
	int result;
	unsigned inputs;
	bool fds[1024]; /* open before the start */
} d;

struct peer {
	int fd;
	uint32_t session, seq; /* from the last replies */
};

static struct peer peers[PEERS];
static uint32_t clients[64], n_clients; /* ids assigned during this input */

/* Counts descriptors opened since the start; `said`: prints each. */
static unsigned left_fds(bool said)
{
	char path[32], target[128] = "";
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++) {
		if (d.fds[fd] || fcntl(fd, F_GETFD) < 0)
			continue;
		n++;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (said)
			fprintf(stderr, "descriptor %d is left: %.*s\n", fd, (int)readlink(path, target, sizeof(target)),
			        target);
	}
	return n;
}

/* ---- the daemon ------------------------------------------------------------------------------ */

static void *serve(void *unused)
{
	d.result = skv_server_run(d.server);
	return unused;
}

static int dial(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	MUST(fd >= 0);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
		return fd;
	close(fd);
	return -1;
}

static void stop(void)
{
	struct timespec ms = {.tv_nsec = 1000000};

	if (!d.server)
		return;
	skv_server_stop(d.server);
	MUST(pthread_join(d.thread, NULL) == 0);
	MUST(d.result == 0);
	d.server = skv_server_free(d.server);
	for (int i = 0; i < 2000 && left_fds(false); i++)
		nanosleep(&ms, NULL); /* worker threads of the ring close descriptors, too */
	MUST(left_fds(true) == 0);
	MUST(rmdir(d.dir) == 0);
}

/* Small limits, so that inputs reach them. */
static void start(void)
{
	static char program[512], policies[512], socket[128];
	static char *options[] = {socket, policies, "--pool-bytes=4M", "--segment-bytes=256K", "--account-sequences=6",
	                          "--max-sequences=10", "--cuda=off", "--log-level=critical", NULL};
	const struct skv_server_options o = {.config = {.file = "/dev/null", .options = options}, .program = program};
	int sock;

	if (d.inputs == 1)
		MUST(atexit(stop) == 0);
	for (int fd = 0; fd < 1024; fd++)
		d.fds[fd] = fcntl(fd, F_GETFD) >= 0;
	strcpy(d.dir, "/tmp/sparsekv-fuzz-XXXXXX");
	MUST(mkdtemp(d.dir));
	snprintf(d.socket, sizeof(d.socket), "%s/socket", d.dir);
	snprintf(d.operators, sizeof(d.operators), "%s.operators", d.socket);
	snprintf(socket, sizeof(socket), "--socket=%s", d.socket);
	snprintf(policies, sizeof(policies), "--policy-path=%s/policies/.libs", SKV_BUILDDIR);
	snprintf(program, sizeof(program), "%s/daemon/sparsekvd", SKV_BUILDDIR);
	MUST(skv_server_new(&o, &d.server) == 0);
	MUST(pthread_create(&d.thread, NULL, serve, NULL) == 0);
	while ((sock = dial(d.socket)) < 0)
		sched_yield();
	close(sock);
}

/* ---- packets --------------------------------------------------------------------------------- */

struct packet {
	size_t bytes;
	unsigned n_fds;
	int fds[MOST_FDS];
	_Alignas(8) uint8_t data[8192];
};

static int any_fd(struct fuzz_input *in)
{
	char content[64];
	int s[2];

	switch (fuzz_u8(in) % 7) {
	case 0: return open("/dev/null", O_RDWR | O_CLOEXEC);
	case 1: return open("/", O_PATH | O_CLOEXEC);
	case 2: return eventfd(0, EFD_CLOEXEC);
	case 3: return open(d.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	case 4: return dial(d.socket);
	case 5:
		MUST(pipe2(s, O_CLOEXEC) == 0);
		close(s[1]);
		return s[0];
	default:
		s[0] = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		fuzz_take(in, content, sizeof(content));
		MUST(write(s[0], content, sizeof(content)) == (ssize_t)sizeof(content));
		if (content[0] & 1)
			(void)fcntl(s[0], F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
		return s[0];
	}
}

static void set(struct packet *p, size_t at, uint32_t value)
{
	memcpy(p->data + sizeof(struct skv_msg_header) + at, &value, sizeof(value));
}

/* Fills a field with a value of its kind, mostly a valid one. */
static void fill_field(struct fuzz_input *in, struct packet *p, const struct peer *from, const struct field *f)
{
	static const char *const names[] = {"", "a", "b", "m", "full", POLICY_PAGES "?budget=3",
	                                    POLICY_WINDOW "?sinks=x", "a name"};
	char *text = (char *)p->data + sizeof(struct skv_msg_header) + f->offset;
	uint8_t how = fuzz_u8(in);

	if (f->kind == STRING) {
		skv_wire_string(text, f->size, names[how % 8]);
	} else if (f->kind == RESERVED || f->kind == COUNT || f->kind == BYTES) {
		; /* stays 0 */
	} else if (how >= 240) {
		set(p, f->offset, fuzz_u32(in));
	} else if (!strcmp(f->name, "session")) {
		set(p, f->offset, from->session);
	} else if (!strcmp(f->name, "seq")) {
		set(p, f->offset, from->seq);
	} else if (!strcmp(f->name, "client")) {
		set(p, f->offset, n_clients ? clients[how % n_clients] : 0);
	} else if (!strcmp(f->name, "n_tokens")) {
		set(p, f->offset, how % 4 * 300); /* some blocks of a prefix, or none */
	} else {
		set(p, f->offset, how % 16);
	}
}

/* The shape of a small model: random numbers would almost always be rejected. */
static void fill_model(struct fuzz_input *in, struct packet *p)
{
	struct skv_wire_model m = {.n_layers = 1 + fuzz_u8(in) % 4, .n_heads = 2, .n_kv_heads = 1, .head_dim = 16,
	                           .kv_dtype = SKV_F16, .max_tokens = 4096, .n_ranks = 1};

	skv_wire_string(m.name, sizeof(m.name), "m");
	memcpy(p->data + sizeof(struct skv_msg_header), &m, sizeof(m));
}

static void fill_runs(struct fuzz_input *in, struct packet *p)
{
	struct skv_msg_runs *m = (void *)(p->data + sizeof(struct skv_msg_header));
	struct skv_wire_run *runs = (void *)(m + 1);

	m->n_runs = fuzz_u8(in) % 4;
	for (uint32_t i = 0; i < m->n_runs; i++)
		runs[i] = (struct skv_wire_run){fuzz_u16(in) % 8192, 1 + fuzz_u8(in)};
	p->bytes += m->n_runs * sizeof(*runs);
}

/* Creates a request of this type, possibly with modified bytes. */
static void make_packet(struct fuzz_input *in, const struct peer *from, uint16_t type, struct packet *p)
{
	struct skv_msg_header *h = (void *)p->data;
	const struct rule *r = skv_wire_rule_of(type);
	const struct body *b = r ? r->request.body : NULL;

	memset(p->data, 0, 1024);
	p->bytes = sizeof(*h);
	p->n_fds = b ? r->request.n_fds : 0;
	for (uint32_t i = 0; b && i < b->n_fields; i++)
		fill_field(in, p, from, &b->fields[i]);
	p->bytes += b ? b->size : 0;
	if (type == SKV_MSG_OPEN)
		fill_model(in, p);
	if (b && b->tail == TAIL_RUNS)
		fill_runs(in, p);
	*h = (struct skv_msg_header){(uint32_t)p->bytes, type, (uint16_t)p->n_fds, 1, 0};
	for (uint8_t n = fuzz_u8(in); n >= 224; n--) /* modify up to 32 bytes */
		p->data[fuzz_u16(in) % p->bytes] = fuzz_u8(in);
	if (fuzz_u8(in) >= 240)
		p->n_fds = fuzz_u8(in) % (MOST_FDS + 1);
}

/*
 * Returns false if the packet was not sent: the kernel may refuse descriptors, and the daemon may have closed the
 * connection.
 */
static bool send_packet(struct fuzz_input *in, const struct peer *to, struct packet *p)
{
	char control[CMSG_SPACE(MOST_FDS * sizeof(int))] __attribute__((aligned(8))) = {0};
	struct iovec iov = {p->data, p->bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c = (void *)control;
	ssize_t sent;

	for (unsigned i = 0; i < p->n_fds; i++) {
		p->fds[i] = any_fd(in);
		MUST(p->fds[i] >= 0);
	}
	if (p->n_fds) {
		*c = (struct cmsghdr){CMSG_LEN(p->n_fds * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
		memcpy(CMSG_DATA(c), p->fds, p->n_fds * sizeof(int));
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(p->n_fds * sizeof(int));
	}
	sent = sendmsg(to->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	for (unsigned i = 0; i < p->n_fds; i++)
		close(p->fds[i]);
	return sent >= 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* Remembers ids from replies for later requests. */
static void learn(struct peer *p, const struct skv_msg_header *h, const void *body)
{
	if (h->type == (SKV_MSG_HELLO | SKV_REPLY))
		clients[n_clients++] = ((const struct skv_msg_hello_ok *)body)->client;
	else if (h->type == (SKV_MSG_OPEN | SKV_REPLY))
		p->session = ((const struct skv_msg_open_ok *)body)->session;
	else if (h->type == (SKV_MSG_SEQ_NEW | SKV_REPLY) || h->type == (SKV_MSG_SEQ_FORK | SKV_REPLY) ||
	         h->type == (SKV_MSG_SEQ_ATTACH | SKV_REPLY) || h->type == (SKV_MSG_PREFIX_NEW | SKV_REPLY))
		p->seq = ((const struct skv_msg_seq_ok *)body)->seq;
}

/*
 * Receives one packet of the daemon, which must be well-formed. Returns false if none arrives within `ms`, or the
 * connection ended.
 */
static bool hear(struct peer *p, int ms)
{
	static _Alignas(8) uint8_t packet[SKV_WIRE_MAX];
	char control[CMSG_SPACE(SKV_WIRE_MAX_FDS * sizeof(int))] __attribute__((aligned(8)));
	struct iovec iov = {packet, sizeof(packet)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct pollfd poll_for = {.fd = p->fd, .events = POLLIN};
	struct cmsghdr *c;
	unsigned n_fds = 0;
	ssize_t n;
	int fd;

	if (poll(&poll_for, 1, ms) != 1)
		return false;
	n = recvmsg(p->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	/* the daemon has not read the last packet; earlier replies may still be queued */
	if (n < 0 && errno == ECONNRESET)
		return true;
	if (n <= 0)
		return false;
	c = CMSG_FIRSTHDR(&msg);
	for (size_t at = CMSG_LEN(0); c && at < c->cmsg_len; at += sizeof(fd), n_fds++) {
		memcpy(&fd, (char *)c + at, sizeof(fd));
		close(fd);
	}
	MUST(!skv_wire_check(packet, (size_t)n, n_fds, false));
	learn(p, (void *)packet, packet + sizeof(struct skv_msg_header));
	return true;
}

/* ---- actions of peers ------------------------------------------------------------------------ */

static void hang_up(struct peer *p)
{
	if (p->fd > 0)
		close(p->fd);
	p->fd = 0;
}

static void join(struct peer *p, bool operator)
{
	p->fd = dial(operator ? d.operators : d.socket);
	MUST(p->fd > 0);
}

static void act(struct fuzz_input *in)
{
	struct peer *p = &peers[fuzz_u8(in) % PEERS];
	uint8_t what = fuzz_u8(in);
	struct packet packet;

	if (p->fd <= 0 && n_clients == 64) {
		; /* at the limit of a user's clients */
	} else if (p->fd <= 0) {
		join(p, what % 4 == 0);
		make_packet(in, p, SKV_MSG_HELLO, &packet);
		((struct skv_msg_hello *)(packet.data + sizeof(struct skv_msg_header)))->version_max = 1;
		if (send_packet(in, p, &packet))
			(void)hear(p, ANSWER_MS);
	} else if (what < 200) {
		make_packet(in, p, what % 64, &packet);
		(void)send_packet(in, p, &packet);
	} else if (what < 240) {
		while (hear(p, 0))
			;
	} else if (what < 248) {
		(void)hear(p, 20);
	} else {
		hang_up(p);
	}
}

/*
 * The daemon keeps disconnected clients while their process might write to their memory; this tells it that the process
 * will not.
 */
static void let_go(struct peer *p, uint32_t client)
{
	struct {
		struct skv_msg_header h;
		struct skv_msg_client m;
	} packet = {{sizeof(packet), SKV_MSG_CLIENT_END, 0, 1, 0}, {client, 0}};

	MUST(send(p->fd, &packet, sizeof(packet), MSG_NOSIGNAL) == (ssize_t)sizeof(packet));
	MUST(hear(p, ANSWER_MS));
}

void fuzz_one(const uint8_t *data, size_t size)
{
	struct fuzz_input in = {data, size};
	struct peer other = {0};

	if (d.inputs++ % INPUTS_OF_DAEMON == 0) {
		stop();
		start();
	}
	while (in.left)
		act(&in);
	join(&other, false); /* the daemon must still serve clients */
	for (uint32_t i = 0; i < PEERS; i++) {
		while (peers[i].fd > 0 && hear(&peers[i], 0))
			;
		hang_up(&peers[i]);
		peers[i] = (struct peer){0};
	}
	let_go(&other, 0); /* an invalid id, which is refused */
	while (n_clients > 0)
		let_go(&other, clients[--n_clients]);
	hang_up(&other);
}
