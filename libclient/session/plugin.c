/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/plugin.c - policy plugins: loaded once, kept for a swap back. */
#include "libclient/session/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "common/fd.h"
#include "common/spec.h"
#include "libclient/conn/conn.h"
#include "libclient/error.h"

#define PLUGINS_KEPT 16 /* loaded plugins without users, kept for a swap back */

static struct plugin *plugin_find(struct skv_client *c, uint32_t id)
{
	struct plugin *p;

	pthread_mutex_lock(&c->lock);
	for (p = c->plugins; p && p->id != id; p = p->next)
		;
	if (p)
		p->users++;
	pthread_mutex_unlock(&c->lock);
	return p;
}

static void plugin_free(struct plugin *p)
{
	dlclose(p->handle);
	free(p);
}

int plugin_load(struct skv_client *c, uint32_t id, int fd, struct plugin **ret)
{
	char text[SKV_TEXT_MAX];
	struct plugin *p = plugin_find(c, id);
	int e;

	if (p) {
		*ret = p;
		return 0;
	}
	/* the loaded file is the one that was probed, and cannot change */
	if (!skv_fd_is_sealed(fd))
		return error_set(-EPROTO, "the daemon sent a policy's file that is not sealed");
	p = calloc(1, sizeof(*p));
	if (!p)
		return error_set(-ENOMEM, "out of memory");
	e = skv_policy_dlopen(fd, &p->block, &p->handle, text, sizeof(text));
	if (e < 0) {
		free(p);
		return error_set(e, "%s", text);
	}
	p->id = id;
	p->users = 1;
	pthread_mutex_lock(&c->lock);
	p->next = c->plugins;
	c->plugins = p;
	pthread_mutex_unlock(&c->lock);
	*ret = p;
	return 0;
}

/* The list is newest first: beyond PLUGINS_KEPT the oldest plugin without users is unloaded. */
void plugin_release(struct skv_client *c, struct plugin *p)
{
	struct plugin **oldest = NULL, *gone = NULL;
	unsigned unused = 0;

	pthread_mutex_lock(&c->lock);
	p->users--;
	for (struct plugin **at = &c->plugins; *at; at = &(*at)->next)
		if ((*at)->users == 0) {
			unused++;
			oldest = at;
		}
	if (unused > PLUGINS_KEPT) {
		gone = *oldest;
		*oldest = gone->next;
	}
	pthread_mutex_unlock(&c->lock);
	if (gone)
		plugin_free(gone);
}

void plugins_free(struct skv_client *c)
{
	while (c->plugins) {
		struct plugin *p = c->plugins;

		c->plugins = p->next;
		plugin_free(p);
	}
}
