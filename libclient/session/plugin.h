/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/plugin.h - policy plugins, loaded once for all sessions of a connection. */
#ifndef SKV_CLIENT_SESSION_PLUGIN_H
#define SKV_CLIENT_SESSION_PLUGIN_H

#include <stdint.h>

struct skv_client;
struct skv_policy;

struct plugin {
	struct plugin *next;
	uint32_t id; /* the daemon's */
	unsigned users;
	void *handle;
	const struct skv_policy *block;
};

/* Add a user to the plugin, which is loaded from fd if it is not loaded yet. fd is borrowed. */
int plugin_load(struct skv_client *c, uint32_t id, int fd, struct plugin **ret);
void plugin_release(struct skv_client *c, struct plugin *p);
void plugins_free(struct skv_client *c);

#endif
