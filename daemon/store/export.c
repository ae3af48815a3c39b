/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/export.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/store/transfer-ring.h"

struct skv_store_export {
	struct skv_nixl *nixl;
	struct skv_store_window window;
};

/*
 * Stores the agent's metadata in the prefix store. Each job does so, so that the metadata does not expire before the
 * job's records, and so that it is there again if another host has deleted it because this host seemed dead.
 */
static int publish(struct skv_store_values *v, struct skv_nixl *nixl)
{
	const struct skv_store_cipher cipher = {v->cipher.ctx, v->what.agents_key};
	const uint32_t left_ms = skv_store_values_left_ms(v);
	char text[SKV_STORE_AGENT_KEY];
	void *metadata = NULL;
	uint8_t *value;
	size_t bytes = 0;
	int r = skv_nixl_metadata(nixl, &metadata, &bytes), status;

	if (r < 0)
		return skv_disk_refuse(v->work, r, "NIXL returns no metadata of its agent");
	skv_store_agent_key(nixl->agent, text);
	value = malloc(bytes + SKV_STORE_SEAL_OVERHEAD);
	if (!value || !skv_store_agent_seal(&cipher, nixl->agent, metadata, bytes, value)) {
		r = skv_disk_refuse(v->work, -ENOMEM, "no memory for the metadata of NIXL's agent");
	} else if (!left_ms) {
		r = skv_store_values_late(v);
	} else {
		const struct skv_store_bytes key = {text, strlen(text)}, sealed = {value, bytes + SKV_STORE_SEAL_OVERHEAD};

		r = skv_store_set(v->store, &key, &sealed, 1, v->what.ttl_ms, false, left_ms, &status);
		if (r < 0)
			r = skv_store_values_failed(v, r);
	}
	free(value);
	free(metadata);
	return r;
}

int skv_store_export_begin(struct skv_store_values *v, struct skv_store_export **ret)
{
	static struct skv_store_export export;
	int r;

	*ret = NULL;
	if (!*v->what.nixl)
		return 0;
	if (!export.nixl) {
		r = skv_store_values_nixl(v, v->what.nixl_window, &export.nixl);
		if (r < 0)
			return r;
		export.window = (struct skv_store_window){.at = export.nixl->memory, .bytes = export.nixl->bytes};
	}
	r = publish(v, export.nixl);
	if (r == 0)
		*ret = &export;
	return r;
}

uint8_t *skv_store_export_room(struct skv_store_export *e, size_t bytes, const char *key)
{
	return skv_store_window_take(&e->window, bytes, key);
}

bool skv_store_export_record(const struct skv_store_export *e, struct skv_store_values *v, uint32_t block, uint32_t part, const uint8_t *value,
                             size_t bytes, uint8_t record[SKV_STORE_RECORD_BYTES])
{
	struct skv_store_record r = {.version = SKV_STORE_RECORD_VERSION, .at = (uintptr_t)value, .bytes = bytes};

	memcpy(r.agent, e->nixl->agent, sizeof(r.agent));
	return skv_store_record_seal(&v->cipher, &v->cut, v->names[block], part, &r, record);
}

/*
 * If another host has stored its own record of the same part meanwhile, that record is deleted, since the key is the
 * same. The next host that computes the part then stores it again.
 */
int skv_store_export_clean(struct skv_store_export *e, struct skv_store_values *v)
{
	uint32_t left_ms, n;
	int r = 0;

	do {
		for (n = 0; n < SKV_STORE_BATCH_KEYS && skv_store_window_gone(&e->window, v->text[n], sizeof(v->text[n])); n++)
			v->keys[n] = (struct skv_store_bytes){v->text[n], strlen(v->text[n])};
		left_ms = skv_store_values_left_ms(v);
		if (n > 0)
			r = left_ms ? skv_store_del(v->store, v->keys, n, left_ms, v->status) : skv_store_values_late(v);
	} while (r == 0 && n > 0);
	return r < 0 && !v->gave_up ? skv_store_values_failed(v, r) : r;
}
