/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/plugin.h - files of policies, loaded once for all sessions of a connection. */
#ifndef SKV_CLIENT_PLUGIN_H
#define SKV_CLIENT_PLUGIN_H

#include <stdint.h>

struct skv_client;
struct skv_policy;

struct plugin {
	struct plugin *next;
	uint32_t id; /* of the daemon */
	unsigned users;
	void *handle;
	const struct skv_policy *block;
};

/* One more user of the plugin; its file, fd, is borrowed and read if it is not loaded. */
int plugin_load(struct skv_client *c, uint32_t id, int fd, struct plugin **ret);
void plugin_release(struct skv_client *c, struct plugin *p);
void plugins_free(struct skv_client *c);

#endif
