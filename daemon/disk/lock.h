/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/lock.h - locks by which a daemon that starts knows that no worker of its predecessor is at work any more.
 *
 * During a job a worker holds shared locks (flock) on what it works on. The next daemon takes each of these locks
 * exclusively, for a moment, and then all of it is the next daemon's alone. A worker that gets its lock only later
 * finds out that its daemon has ended, and does nothing.
 *
 *   the state      of the daemon (core/state/state.h) stands for all memory that it refers to: the next daemon has the
 *                  same file if it has the memory
 *   the folder     of parked files, for jobs on files
 *
 * Clients have neither file, so they can hold no lock.
 */
#ifndef SKV_DISK_LOCK_H
#define SKV_DISK_LOCK_H

/* For a worker: waits for a shared lock. Returns a descriptor, at whose end the lock ends, or a negative errno. */
int skv_disk_lock(int fd);
/* For a daemon: waits up to a second until no worker has a lock. -EWOULDBLOCK: one still has it. */
int skv_disk_lock_out(int fd);

#endif
