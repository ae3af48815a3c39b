/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/client.h"

#include <errno.h>
#include <stdlib.h>
#include "daemon/store/multi-key.h"

struct skv_store {
	struct skv_store_config config;
	struct skv_store_tls *tls;
	struct skv_store_cluster cluster;
	struct skv_store_line line;
};

int skv_store_new(const struct skv_store_config *config, struct skv_store **ret, char why[SKV_STORE_TEXT])
{
	struct skv_store *s = calloc(1, sizeof(*s));
	int r = 0;

	if (!s)
		return skv_store_refuse(why, -ENOMEM, "store: out of memory");
	s->config = *config;
	s->line = (struct skv_store_line){.cluster = &s->cluster, .value_bytes = SKV_STORE_FIRST_VALUE};
	s->line.piece = malloc(SKV_STORE_PIECE);
	if (config->tls)
		r = skv_store_tls_new(config, &s->tls, why);
	if (r == 0 && (!s->line.piece || skv_store_cluster_init(&s->cluster, &s->config, s->tls) < 0))
		r = skv_store_refuse(why, -ENOMEM, "store: out of memory");
	if (r < 0)
		skv_store_free(s);
	else
		*ret = s;
	return r;
}

struct skv_store *skv_store_free(struct skv_store *s)
{
	if (s) {
		skv_store_cluster_free(&s->cluster);
		skv_store_tls_free(s->tls);
		skv_store_config_wipe(&s->config);
		free(s->line.piece);
		free(s);
	}
	return NULL;
}

const char *skv_store_error(const struct skv_store *s)
{
	return s->line.why;
}

static int run(struct skv_store *s, const struct skv_store_call *call, uint32_t timeout_ms)
{
	return skv_store_call_run(&s->line, call, timeout_ms ? timeout_ms : s->config.call_ms);
}

int skv_store_get(struct skv_store *s, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms,
                  skv_store_value_fn fn, void *ctx, int *status)
{
	struct skv_store_call call = {SKV_STORE_GET, .keys = keys, .n = n, .fn = fn, .ctx = ctx, .status = status};

	return run(s, &call, timeout_ms);
}

int skv_store_set(struct skv_store *s, const struct skv_store_bytes *keys, const struct skv_store_bytes *values,
                  uint32_t n, uint64_t ttl_ms, bool only_new, uint32_t timeout_ms, int *status)
{
	struct skv_store_call call = {SKV_STORE_SET, .keys = keys, .values = values, .n = n, .ttl_ms = ttl_ms,
	                              .only_new = only_new, .status = status};

	return run(s, &call, timeout_ms);
}

static int run_keys(struct skv_store *s, enum skv_store_op op, const struct skv_store_bytes *keys, uint32_t n,
                    uint32_t timeout_ms, int *status)
{
	struct skv_store_call call = {op, .keys = keys, .n = n, .status = status};

	return run(s, &call, timeout_ms);
}

int skv_store_exists(struct skv_store *s, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms,
                     int *status)
{
	return run_keys(s, SKV_STORE_EXISTS, keys, n, timeout_ms, status);
}

int skv_store_del(struct skv_store *s, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms, int *status)
{
	return run_keys(s, SKV_STORE_DEL, keys, n, timeout_ms, status);
}

int skv_store_touch(struct skv_store *s, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms,
                    int *status)
{
	return run_keys(s, SKV_STORE_TOUCH, keys, n, timeout_ms, status);
}
