/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/cluster.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"

#define MS UINT64_C(1000000)   /* ns */
#define REFRESH_EVERY 200u     /* minimum interval, in ms, at which the map of hash slots is read */
#define NO_NODE UINT16_MAX /* a hash slot without a node; more than SKV_STORE_MAX_NODES */
#define MAX_PARTS (1u << 19) /* in a reply to CLUSTER SLOTS: enough for a range of each hash slot, with replicas */

/* ---- hash slots ------------------------------------------------------------------------------------ */

/* Returns the CRC16-CCITT (XMODEM) of a key, computed bit by bit, since keys are short. */
static uint16_t crc16(const unsigned char *p, size_t n)
{
	uint16_t crc = 0;

	for (; n > 0; n--) {
		crc = (uint16_t)(crc ^ *p++ << 8);
		for (int i = 0; i < 8; i++)
			crc = (uint16_t)(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
	}
	return crc;
}

uint32_t skv_store_hash_slot(const void *key, size_t n)
{
	const char *k = key, *brace = n ? memchr(k, '{', n) : NULL, *end;

	if (brace) {
		end = memchr(brace, '}', (size_t)(k + n - brace));
		if (end && end > brace + 1) {
			k = brace + 1;
			n = (size_t)(end - k);
		}
	}
	return crc16((const unsigned char *)k, n) % SKV_STORE_HASH_SLOTS;
}

/* ---- nodes ----------------------------------------------------------------------------------------- */

int skv_store_cluster_init(struct skv_store_cluster *c, const struct skv_store_config *config,
                           struct skv_store_tls *tls)
{
	*c = (struct skv_store_cluster){.config = config, .tls = tls};
	if (config->cluster) {
		c->map = malloc(SKV_STORE_HASH_SLOTS * sizeof(*c->map));
		if (!c->map)
			return -ENOMEM;
		memset(c->map, 0xff, SKV_STORE_HASH_SLOTS * sizeof(*c->map));
	}
	for (uint32_t i = 0; i < config->n_addresses; i++) {
		struct skv_store_node *node = skv_store_cluster_node(c, &config->addresses[i]);

		if (!node)
			return -ENOMEM;
		node->configured = true;
	}
	return 0;
}

static void free_node(struct skv_store_node *node)
{
	skv_store_conn_free(node->conn);
	free(node);
}

void skv_store_cluster_free(struct skv_store_cluster *c)
{
	for (uint32_t i = 0; i < c->n_nodes; i++)
		free_node(c->nodes[i]);
	free(c->nodes);
	free(c->map);
}

static uint32_t index_of(const struct skv_store_cluster *c, const struct skv_store_address *a)
{
	uint32_t i = 0;

	while (i < c->n_nodes &&
	       (c->nodes[i]->conn->address.port != a->port || strcmp(c->nodes[i]->conn->address.host, a->host) != 0))
		i++;
	return i;
}

struct skv_store_node *skv_store_cluster_node(struct skv_store_cluster *c, const struct skv_store_address *a)
{
	uint32_t i = index_of(c, a);
	struct skv_store_node *node, **nodes;

	if (i < c->n_nodes)
		return c->nodes[i];
	if (c->n_nodes == SKV_STORE_MAX_NODES)
		return NULL;
	nodes = realloc(c->nodes, (c->n_nodes + 1) * sizeof(*nodes));
	if (!nodes)
		return NULL;
	c->nodes = nodes;
	node = calloc(1, sizeof(*node));
	if (!node)
		return NULL;
	node->unsent = node->in_flight = (struct skv_store_list){SKV_STORE_NONE, SKV_STORE_NONE};
	node->conn = skv_store_conn_new(c->config, c->tls, a);
	if (!node->conn) {
		free(node);
		return NULL;
	}
	c->nodes[c->n_nodes++] = node;
	return node;
}

struct skv_store_node *skv_store_cluster_find(const struct skv_store_cluster *c, uint32_t hash_slot)
{
	if (!c->map)
		return c->nodes[0];
	return c->map[hash_slot] < c->n_nodes ? c->nodes[c->map[hash_slot]] : NULL;
}

void skv_store_cluster_move(struct skv_store_cluster *c, uint32_t hash_slot, const struct skv_store_node *node)
{
	c->map[hash_slot] = (uint16_t)index_of(c, &node->conn->address);
	c->stale = true;
}

/* Removes nodes that are neither configured nor in the map of hash slots, and closes their connections. */
static void forget_nodes(struct skv_store_cluster *c)
{
	uint16_t to[SKV_STORE_MAX_NODES];
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_nodes; i++)
		c->nodes[i]->in_map = false;
	for (uint32_t s = 0; s < SKV_STORE_HASH_SLOTS; s++)
		if (c->map[s] < c->n_nodes)
			c->nodes[c->map[s]]->in_map = true;
	for (uint32_t i = 0; i < c->n_nodes; i++)
		if (c->nodes[i]->in_map || c->nodes[i]->configured) {
			to[i] = (uint16_t)n;
			c->nodes[n++] = c->nodes[i];
		} else {
			free_node(c->nodes[i]);
		}
	for (uint32_t s = 0; s < SKV_STORE_HASH_SLOTS; s++)
		if (c->map[s] < c->n_nodes)
			c->map[s] = to[c->map[s]];
	c->n_nodes = n;
}

/* ---- CLUSTER SLOTS --------------------------------------------------------------------------------- */

/*
 * The reply to CLUSTER SLOTS is an array of ranges. A range is an array of its first and last hash slot, and of nodes,
 * the first of which is the master. A node is an array of host, port and elements that are ignored here.
 */
struct skv_store_map_reader {
	struct skv_store_cluster *cluster;
	struct skv_store_address from, master;
	uint32_t n_parts;
	int64_t first, last;
	uint16_t map[SKV_STORE_HASH_SLOTS];
};

struct skv_store_map_reader *skv_store_map_begin(struct skv_store_cluster *c, const struct skv_store_address *from)
{
	struct skv_store_map_reader *m = calloc(1, sizeof(*m));

	if (m) {
		m->cluster = c;
		m->from = *from;
		memset(m->map, 0xff, sizeof(m->map));
	}
	return m;
}

/* Copies a host name into the address. An empty name means the host of the server that sent it, `from`. */
static bool take_host(struct skv_store_address *a, const char *text, size_t n, const struct skv_store_address *from)
{
	if (n == 0) {
		memcpy(a->host, from->host, sizeof(a->host));
		return true;
	}
	if (n >= sizeof(a->host))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isgraph((unsigned char)text[i]))
			return false;
	memcpy(a->host, text, n);
	a->host[n] = '\0';
	return true;
}

/* Enters a range of hash slots into the map when the port of its master, the last part that is needed, has arrived. */
static int take_range(struct skv_store_map_reader *m, int64_t port, char *why)
{
	struct skv_store_cluster *c = m->cluster;
	uint16_t node;

	if (port < 1 || port > UINT16_MAX)
		return skv_store_refuse(why, -EPROTO, "CLUSTER SLOTS: a node has port %lld", (long long)port);
	m->master.port = (uint16_t)port;
	if (!skv_store_cluster_node(c, &m->master))
		return skv_store_refuse(why, -ENOMEM, "CLUSTER SLOTS: no memory for a node, or more than %u of them",
		                        SKV_STORE_MAX_NODES);
	node = (uint16_t)index_of(c, &m->master);
	for (int64_t s = m->first; s <= m->last; s++) {
		if (m->map[s] != NO_NODE)
			return skv_store_refuse(why, -EPROTO, "CLUSTER SLOTS: hash slot %lld has two nodes",
			                        (long long)s);
		m->map[s] = node;
	}
	return 0;
}

static bool take_bound(int64_t *to, int64_t x, int64_t min)
{
	*to = x;
	return x >= min && x < SKV_STORE_HASH_SLOTS;
}

int skv_store_map_part(void *reader, const struct skv_store_part *p, char why[SKV_STORE_TEXT])
{
	struct skv_store_map_reader *m = reader;
	const uint32_t i = p->depth ? p->index[p->depth] : 0;
	bool fine = ++m->n_parts <= MAX_PARTS;

	if (p->type == SKV_STORE_ERROR && p->depth == 0)
		return skv_store_refuse(why, -EHOSTDOWN, "CLUSTER SLOTS: the server says \"%.*s\"",
		                        p->n < 128 ? (int)p->n : 128, p->text);
	if (p->depth < 2)
		fine = fine && p->type == SKV_STORE_ARRAY;
	else if (p->depth == 2 && i < 2)
		fine = fine && p->type == SKV_STORE_INTEGER &&
		       (i == 0 ? take_bound(&m->first, p->integer, 0) : take_bound(&m->last, p->integer, m->first));
	else if (p->depth == 2)
		fine = fine && p->type == SKV_STORE_ARRAY;
	else if (p->depth == 3 && p->index[2] == 2 && i == 0)
		fine = fine && (p->type == SKV_STORE_STRING || p->type == SKV_STORE_NIL) &&
		       take_host(&m->master, p->text, p->n, &m->from);
	else if (p->depth == 3 && p->index[2] == 2 && i == 1)
		return fine && p->type == SKV_STORE_INTEGER
		               ? take_range(m, p->integer, why)
		               : skv_store_refuse(why, -EPROTO, "CLUSTER SLOTS: a node has no port");
	return fine ? 0 : skv_store_refuse(why, -EPROTO, "CLUSTER SLOTS: got a reply of an unexpected form");
}

void skv_store_map_end(struct skv_store_map_reader *m, bool complete)
{
	struct skv_store_cluster *c = m->cluster;

	if (complete) {
		memcpy(c->map, m->map, sizeof(m->map));
		c->known = true;
		c->stale = false;
		forget_nodes(c);
	}
	free(m);
}

/* Reads the map of hash slots from this node. */
static int read_map(struct skv_store_cluster *c, struct skv_store_conn *conn, uint64_t deadline_ns)
{
	const uint64_t own = skv_now_ns() + c->config->connect_ms * MS;
	struct skv_store_map_reader *m;
	int r = skv_store_conn_open(conn, deadline_ns);

	if (r < 0)
		return r;
	m = skv_store_map_begin(c, &conn->address);
	if (!m)
		return skv_store_refuse(conn->why, -ENOMEM, "no memory for the map of a cluster");
	r = skv_store_conn_ask(conn, 2, (const char *[]){"CLUSTER", "SLOTS"}, skv_store_map_part, m,
	                       own < deadline_ns ? own : deadline_ns);
	if (r < 0)
		skv_store_conn_down(conn);
	skv_store_map_end(m, r == 0); /* this may free the node and `conn` */
	return r;
}

int skv_store_cluster_refresh(struct skv_store_cluster *c, uint64_t deadline_ns, char why[SKV_STORE_TEXT])
{
	const uint32_t n = c->n_nodes;
	int r = -EHOSTDOWN;

	if (!c->map || (c->known && (!c->stale || skv_now_ns() < c->refresh_ns)))
		return 0;
	c->refresh_ns = skv_now_ns() + REFRESH_EVERY * MS;
	for (uint32_t i = 0; r < 0 && i < n && (i == 0 || skv_now_ns() < deadline_ns); i++) {
		r = read_map(c, c->nodes[i]->conn, deadline_ns);
		if (r < 0)
			memcpy(why, c->nodes[i]->conn->why, SKV_STORE_TEXT);
	}
	return c->known ? 0 : r;
}

/* ---- redirections ---------------------------------------------------------------------------------- */

int skv_store_redirection_parse(const char *text, size_t n, const struct skv_store_address *from,
                                struct skv_store_redirection *ret)
{
	struct skv_store_redirection to = {0};
	const char *p = text, *end = text + n, *colon;
	uint32_t port = 0;

	if (n > 6 && memcmp(p, "MOVED ", 6) == 0)
		p += 6;
	else if (n > 4 && memcmp(p, "ASK ", 4) == 0)
		p += 4, to.ask = true;
	else
		return 0;
	for (; p < end && isdigit((unsigned char)*p) && to.hash_slot < SKV_STORE_HASH_SLOTS; p++)
		to.hash_slot = 10 * to.hash_slot + (uint32_t)(*p - '0');
	if (p == end || *p++ != ' ' || to.hash_slot >= SKV_STORE_HASH_SLOTS)
		return -EPROTO;
	colon = memrchr(p, ':', (size_t)(end - p));
	if (!colon || colon + 1 == end || !take_host(&to.to, p, (size_t)(colon - p), from))
		return -EPROTO;
	for (p = colon + 1; p < end && isdigit((unsigned char)*p) && port <= UINT16_MAX; p++)
		port = 10 * port + (uint32_t)(*p - '0');
	if (p < end || port < 1 || port > UINT16_MAX)
		return -EPROTO;
	to.to.port = (uint16_t)port;
	*ret = to;
	return 1;
}
