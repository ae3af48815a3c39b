/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/lock.h - locks by which a daemon that starts knows that no worker of its predecessor is at work any more.
 *
 * During a job a worker holds shared locks (flock) on up to two files. A daemon that starts takes each of the locks
 * exclusively for a moment; when it has got them, no worker of its predecessor uses the memory or the folder any more.
 * A worker that gets its lock only after its daemon has ended notices that, and does nothing.
 *
 *   the state      file of the daemon (core/state/state.h) stands for all memory that the state refers to: a daemon
 *                  that takes that memory over has the same file
 *   the folder     of parked files, locked by jobs that read, write or remove such files
 *
 * Clients have no descriptor of the state's file or of the folder, so a client cannot hold such a lock.
 */
#ifndef SKV_DISK_LOCK_H
#define SKV_DISK_LOCK_H

/* For a worker: waits for a shared lock. Returns a descriptor, whose closing ends the lock, or a negative errno. */
int skv_disk_lock(int fd);
/*
 * For a daemon: waits up to a second until no worker holds a lock. Returns 0; -EWOULDBLOCK: a worker still holds one.
 */
int skv_disk_lock_out(int fd);

#endif
