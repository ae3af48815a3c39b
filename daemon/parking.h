/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/parking.h - sequences go to disk and come back. See parking.c. */
#ifndef SKV_PARKING_H
#define SKV_PARKING_H

#include <jansson.h>
#include "daemon/core/core.h"
#include "daemon/disk/files.h"

struct skv_server;
struct skv_conn;

/* A sequence that was attached, or a sealed prefix, has been read; or (error: negative errno) it could not be, and why. */
typedef void (*skv_parking_restored)(struct skv_server *, uid_t uid, const struct skv_model *, const char *name, int error, const char *why);
/* With parked-path; nothing without. Negative errno: the folder cannot be used, which was logged. */
int skv_parking_start(struct skv_server *, skv_parking_restored);
/* Settings that may change at run time. */
void skv_parking_reconfigure(struct skv_server *);
/* What could not be read is tried again, within a second or, if one is under way, after an import. */
void skv_parking_reload(struct skv_server *);
/* What is under way is given up: before the loop is drained. */
void skv_parking_close(struct skv_server *);
void skv_parking_free(struct skv_server *);

/* A turn; and is there more to do? */
void skv_parking_work(struct skv_server *);
bool skv_parking_has_work(const struct skv_server *);
/* Memory may have come back: sequences that wait for it. */
void skv_parking_retry(struct skv_server *);
/* Once a second: parked sequences grow old. */
void skv_parking_tick(struct skv_server *);
/* The same: after a reload a look is taken at files that could not be read, once there is no import. */
void skv_parking_look_again(struct skv_server *);

/* Negative errno: the user may have a parked sequence of that name, and the disk could not give it; why. */
int skv_parking_unread(struct skv_server *, uid_t uid, const char *name, char why[SKV_TEXT_MAX]);
/* Has the user such a parked sequence? */
bool skv_parking_has(struct skv_server *, uid_t uid, const struct skv_model *, const char *name);
/*
 * A session of this model attaches it. 0: there is none; 1: it is being read, and `restored` will be called; negative errno: why.
 */
int skv_parking_attach(struct skv_server *, uid_t uid, const struct skv_model *, const char *name, char why[SKV_TEXT_MAX]);
/* A client has attached a sequence, which was in memory, or had to be read: counted. */
void skv_parking_attached(struct skv_server *, uid_t, bool read);
/*
 * A sequence is to be dropped (SEQ_DROP), or all of a name (SEQ_DROP_NAME). True: a file of it is, or may be, there that the next daemon would
 * take for one that is parked. Then what writes that ends, no request of the connection is received, and `again` is called when it is gone.
 */
typedef void (*skv_parking_again)(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);
bool skv_parking_puts_off(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, skv_parking_again);
/* Is one of that name, whatever its rank, being read? And all of them go; how many. After that: those that cannot be removed are parked as before; were there any? */
bool skv_parking_is_busy(struct skv_server *, uid_t uid, const char *model, const char *name);
unsigned skv_parking_drop(struct skv_server *, uid_t uid, const char *model, const char *name);
bool skv_parking_undo_drop(struct skv_server *, uid_t uid, const char *model, const char *name);

/* SEQ_PARK, SEQ_RESUME, SEQ_EXPORT, SEQ_IMPORT. */
void skv_parking_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);

/* For status, of all or of a user, whose counts these are (sys/counts.h); [] where sequences are not parked. */
json_t *skv_parking_status(const struct skv_server *, bool all, uid_t uid, const uint64_t *counts);
/*
 * Make rows of the list, beginning with number *at (first 0), until *units are used up. The callback owns each row; a row is NULL if there was
 * no memory for it. True: the list is complete.
 */
bool skv_parking_rows_some(struct skv_server *, bool all, uid_t uid, size_t *at, uint32_t *units, void (*cb)(void *, json_t *), void *ctx);

#endif
