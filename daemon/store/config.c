/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/config.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/fd.h"

#define DEFAULT_PORT 6379u

/* A range of bytes in the text that is being parsed. */
struct span {
	const char *at;
	size_t n;
};

/* Arguments for "%.*s" in messages. */
#define SHOW(s) (int)((s).n < 64 ? (s).n : 64), (s).at

/*
 * Splits `rest` at its first, or last, character `c`: *ret gets what is before it, and `rest` what is after it. Returns
 * false and changes nothing if there is no `c`.
 */
static bool cut(struct span *rest, char c, bool last, struct span *ret)
{
	const char *p = last ? memrchr(rest->at, c, rest->n) : memchr(rest->at, c, rest->n);

	if (!p)
		return false;
	*ret = (struct span){rest->at, (size_t)(p - rest->at)};
	*rest = (struct span){p + 1, rest->n - ret->n - 1};
	return true;
}

static struct span cut_or_all(struct span *rest, char c)
{
	struct span part = *rest;

	if (!cut(rest, c, false, &part))
		rest->n = 0;
	return part;
}

/* Copies text and decodes %XX in it. False: the result is empty or too long, or %XX is invalid. */
static bool decode(struct span s, char *to, size_t cap)
{
	size_t n = 0;

	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.at[i];

		if (c == '%') {
			char hex[3] = {0};

			if (s.n - i < 3 || !isxdigit((unsigned char)s.at[i + 1]) ||
			    !isxdigit((unsigned char)s.at[i + 2]))
				return false;
			memcpy(hex, s.at + i + 1, 2);
			c = (unsigned char)strtoul(hex, NULL, 16);
			i += 2;
		}
		if (!c || n + 1 >= cap)
			return false;
		to[n++] = (char)c;
	}
	to[n] = '\0';
	return n > 0;
}

static bool number(struct span s, uint32_t min, uint32_t max, uint32_t *ret)
{
	uint64_t x = 0;

	if (s.n == 0 || s.n > 9)
		return false;
	for (size_t i = 0; i < s.n; i++) {
		if (!isdigit((unsigned char)s.at[i]))
			return false;
		x = 10 * x + (uint64_t)(s.at[i] - '0');
	}
	if (x < min || x > max)
		return false;
	*ret = (uint32_t)x;
	return true;
}

/* ---- options ----------------------------------------------------------------------------------- */

enum type { TEXT, SWITCH, NUMBER };

static const struct option {
	const char *name;
	enum type type;
	bool of_tls, of_unix;
	size_t offset;
	uint32_t min, max; /* limits of a number; of a text, max is its bytes, including NUL */
	const char *expected;
} options[] = {
#define AT(field) offsetof(struct skv_store_config, field)
	{"cluster", SWITCH, false, false, AT(cluster), 0, 0, "on or off"},
	{"db", NUMBER, false, true, AT(db), 0, 999999, "a number from 0 to 999999"},
	{"password-file", TEXT, false, false, AT(password_file), 0, SKV_STORE_PATH, "the path of a file"},
	{"connect-timeout", NUMBER, false, false, AT(connect_ms), 1, 600000, "milliseconds from 1 to 600000"},
	{"timeout", NUMBER, false, false, AT(call_ms), 1, 600000, "milliseconds from 1 to 600000"},
	{"ca", TEXT, true, false, AT(ca), 0, SKV_STORE_PATH, "the path of a file"},
	{"cert", TEXT, true, false, AT(cert), 0, SKV_STORE_PATH, "the path of a file"},
	{"key", TEXT, true, false, AT(key), 0, SKV_STORE_PATH, "the path of a file"},
	{"tls-name", TEXT, true, false, AT(tls_name), 0, SKV_STORE_HOST, "a host's name or address"},
};
#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

static bool is(struct span s, const char *text)
{
	return strlen(text) == s.n && memcmp(s.at, text, s.n) == 0;
}

static bool set(struct skv_store_config *c, const struct option *o, struct span value)
{
	void *at = (char *)c + o->offset;

	switch (o->type) {
	case TEXT:
		return decode(value, at, o->max);
	case NUMBER:
		return number(value, o->min, o->max, at);
	case SWITCH:
		*(bool *)at = is(value, "on");
		return *(bool *)at || is(value, "off");
	}
	return false;
}

static int parse_options(struct skv_store_config *c, struct span rest, bool is_unix, char *why)
{
	while (rest.n > 0) {
		struct span value = cut_or_all(&rest, '&'), name = value;
		const struct option *o = options;

		if (!cut(&value, '=', false, &name))
			return skv_store_refuse(why, -EINVAL, "store: got the option \"%.*s\", expected name=value",
			                        SHOW(name));
		while (o < options + N_OPTIONS && !is(name, o->name))
			o++;
		if (o == options + N_OPTIONS)
			return skv_store_refuse(why, -EINVAL,
			                        "store: got the option \"%.*s\", expected cluster, db, password-file, "
			                        "connect-timeout, timeout, ca, cert, key or tls-name",
			                        SHOW(name));
		if (o->of_tls && !c->tls)
			return skv_store_refuse(why, -EINVAL, "store: %s: expected with rediss:// only", o->name);
		if (o->of_unix && !is_unix)
			return skv_store_refuse(why, -EINVAL,
			                        "store: %s: expected with unix:// only; redis:// has it as HOST/%s",
			                        o->name, o->name);
		if (!set(c, o, value))
			return skv_store_refuse(why, -EINVAL, "store: %s: got \"%.*s\", expected %s", o->name,
			                        SHOW(value), o->expected);
	}
	return 0;
}

/* ---- address ------------------------------------------------------------------------------------- */

/* Parses "user:password" or ":password". Error texts contain neither user nor password. */
static int parse_user(struct skv_store_config *c, struct span s, char *why)
{
	struct span user;

	if (!cut(&s, ':', false, &user) || (user.n && !decode(user, c->user, sizeof(c->user))) ||
	    !decode(s, c->password, sizeof(c->password)))
		return skv_store_refuse(why, -EINVAL,
		                        "store: what stands before '@' is not [user]:password, each of at most %u "
		                        "bytes, with %%XX for characters such as @ : / ?",
		                        SKV_STORE_SECRET - 1);
	return 0;
}

static int parse_address(struct skv_store_address *a, struct span s, char *why)
{
	struct span host = s, port = {s.at, 0};
	const struct span all = s;
	uint32_t x = DEFAULT_PORT;
	bool fine;

	if (s.n && s.at[0] == '[') {
		s = (struct span){s.at + 1, s.n - 1};
		fine = cut(&s, ']', false, &host) && (s.n == 0 || s.at[0] == ':');
		port = fine && s.n ? (struct span){s.at + 1, s.n - 1} : (struct span){s.at, 0};
		fine = fine && (s.n == 0 || number(port, 1, UINT16_MAX, &x));
	} else {
		fine = !cut(&s, ':', false, &host) || number(s, 1, UINT16_MAX, &x);
	}
	fine = fine && host.n > 0 && host.n < sizeof(a->host);
	for (size_t i = 0; fine && i < host.n; i++)
		fine = isgraph((unsigned char)host.at[i]) && !strchr("/%[]@", host.at[i]);
	if (!fine)
		return skv_store_refuse(why, -EINVAL,
		                        "store: got \"%.*s\", expected host[:port], with a port from 1 to 65535",
		                        SHOW(all));
	memcpy(a->host, host.at, host.n);
	a->host[host.n] = '\0';
	a->port = (uint16_t)x;
	return 0;
}

static int parse_hosts(struct skv_store_config *c, struct span s, char *why)
{
	struct span hosts = s, db = s;
	int r = 0;

	if (!cut(&db, '/', false, &hosts))
		db.n = 0;
	else if (db.n && !number(db, 0, 999999, &c->db))
		return skv_store_refuse(
			why, -EINVAL, "store: got the database \"%.*s\", expected a number from 0 to 999999", SHOW(db));
	do {
		struct span host = cut_or_all(&hosts, ',');

		if (c->n_addresses == SKV_STORE_MAX_ADDRESSES)
			return skv_store_refuse(why, -EINVAL, "store: more than %u hosts", SKV_STORE_MAX_ADDRESSES);
		r = parse_address(&c->addresses[c->n_addresses++], host, why);
	} while (r == 0 && hosts.n > 0);
	return r;
}

static int parse_path(struct skv_store_config *c, struct span s, char *why)
{
	struct skv_store_address *a = &c->addresses[c->n_addresses++];

	if (!decode(s, a->host, sizeof(((struct sockaddr_un *)0)->sun_path)) || a->host[0] != '/')
		return skv_store_refuse(why, -EINVAL,
		                        "store: got \"%.*s\", expected the path of a socket that begins with '/' and "
		                        "has at most %zu bytes",
		                        SHOW(s), sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
	return 0;
}

/* ---- complete configuration ---------------------------------------------------------------------- */

static int read_password(struct skv_store_config *c, char *why)
{
	const char *wrong;
	SKV_FD_CLEANUP int fd = skv_open_secret(c->password_file, &wrong);
	size_t len = 0;
	ssize_t n;

	if (fd < 0)
		return skv_store_refuse(why, fd, "store: password-file: \"%.128s\": %s", c->password_file, wrong);
	n = read(fd, c->password, sizeof(c->password));
	if (n < 0)
		return skv_store_refuse(why, -errno, "store: password-file: \"%.128s\": %s", c->password_file, strerror(errno));
	while (len < (size_t)n && c->password[len] != '\n' && c->password[len] != '\r')
		len++;
	if (len == 0 || len == sizeof(c->password) || memchr(c->password, '\0', len))
		return skv_store_refuse(why, -EINVAL, "store: password-file: \"%.128s\": expected a first line of 1 to %u bytes, none of them NUL",
		                        c->password_file, SKV_STORE_SECRET - 1);
	c->password[len] = '\0';
	return 0;
}

/* Checks that the options and the address fit together. */
static int check(const struct skv_store_config *c, bool is_unix, char *why)
{
	if (c->n_addresses > 1 && !c->cluster)
		return skv_store_refuse(why, -EINVAL, "store: got %u hosts, expected one, or cluster=on",
		                        c->n_addresses);
	if (c->cluster && is_unix)
		return skv_store_refuse(why, -EINVAL, "store: cluster=on: expected with redis:// or rediss:// only");
	if (c->cluster && c->db)
		return skv_store_refuse(why, -EINVAL,
		                        "store: got database %u, expected none: a cluster has database 0 alone", c->db);
	if (c->password[0] && c->password_file[0])
		return skv_store_refuse(why, -EINVAL, "store: got a password and password-file, expected one of them");
	if (!c->cert[0] != !c->key[0])
		return skv_store_refuse(why, -EINVAL, "store: got %s, expected cert and key, or none of them",
		                        c->cert[0] ? "cert" : "key");
	if (c->connect_ms > c->call_ms)
		return skv_store_refuse(why, -EINVAL,
		                        "store: got connect-timeout=%u and timeout=%u, expected no more for a "
		                        "connection than for a call",
		                        c->connect_ms, c->call_ms);
	return 0;
}

int skv_store_config_parse(struct skv_store_config *ret, const char *text, char why[SKV_STORE_TEXT])
{
	struct skv_store_config c = {.connect_ms = 500, .call_ms = 2000};
	const char *colon = strstr(text, "://");
	struct span scheme = {text, colon ? (size_t)(colon - text) : 0}, rest = {text + strlen(text), 0}, where, user;
	const bool is_unix = is(scheme, "unix");
	int r = 0;

	if (!is_unix && !is(scheme, "redis") && !is(scheme, "rediss"))
		return skv_store_refuse(why, -EINVAL,
		                        "store: got \"%.*s\", expected redis://HOST, rediss://HOST or unix:///PATH",
		                        SHOW(((struct span){text, colon ? scheme.n : strcspn(text, "@:")})));
	c.tls = is(scheme, "rediss");
	rest = (struct span){colon + 3, strlen(colon + 3)};
	where = cut_or_all(&rest, '?');
	if (!memchr(where.at, '@', where.n) && memchr(rest.at, '@', rest.n)) /* a password probably contains '?' */
		return skv_store_refuse(why, -EINVAL,
		                        "store: got '@' behind '?', expected %%3F for '?' in a password, and %%40 for "
		                        "'@' in an option");
	if (cut(&where, '@', true, &user))
		r = parse_user(&c, user, why);
	if (r == 0)
		r = is_unix ? parse_path(&c, where, why) : parse_hosts(&c, where, why);
	if (r == 0)
		r = parse_options(&c, rest, is_unix, why);
	if (r == 0)
		r = check(&c, is_unix, why);
	if (r == 0 && c.password_file[0])
		r = read_password(&c, why);
	if (r == 0)
		*ret = c;
	skv_store_config_wipe(&c);
	return r;
}

void skv_store_config_wipe(struct skv_store_config *c)
{
	explicit_bzero(c->password, sizeof(c->password));
}
