/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/job.h - what the daemon asks of a disk worker: `sparsekvd --disk-worker`.
 *
 * A process that moves sequences between memory and files, so that neither a slow disk nor a context of a device is the daemon's.
 * It has one job at a time: a packet with struct skv_disk_job and the first descriptors, then packets of one byte with more,
 * up to n_fds; it answers with packets of struct skv_disk_answer, of which those with `more` say that it goes on. It ends when
 * the daemon closes its end of the socket.
 *
 * While it works it has a shared lock (flock) on the folder for parked files: a daemon that starts takes it alone for a moment,
 * and knows then that no worker of the one before writes to pages any more.
 */
#ifndef SKV_DISK_JOB_H
#define SKV_DISK_JOB_H

#include "daemon/disk/parked.h"

#define SKV_DISK_WORKER_FD 3 /* SOCK_SEQPACKET: jobs in, answers out */
#define SKV_DISK_PACKET_FDS 250u /* of a packet, at most */
#define SKV_DISK_TEXT_MAX 256u
#define SKV_DISK_FLIGHT 8u /* chunks that are being written or read at a time */

/*
 * Jobs about files have the folder twice: in place of the second the process puts the folder of the job's user, which it opens, and, for what
 * writes files, makes. So the daemon waits for no disk.
 */
enum skv_disk_job_kind {
	/*
	 * From memory into a file. fds: folder, folder again, sequence memory, list, memory of pages. The list has the n_entries that
	 * count, of each table in order, as the daemon has checked them: ids of PRIVATE and SHARED ones are below max_pages; and, at
	 * keys_at, the struct skv_parked_keys of a sealed prefix.
	 * All that is not in the list comes from the sequence memory, which its user may still write to.
	 */
	SKV_DISK_PARK = 1,
	/*
	 * From a file into memory. fds: the same. The list has n_pages ids: those that the k-th page, in the file's order, goes
	 * to. The sequence memory is fresh. -EBADMSG: the file is not what it was, `why` says what is wrong; whatever was written to memory then
	 * is to be thrown away.
	 */
	SKV_DISK_RESUME = 2,
	/*
	 * From a file of anybody's, or a pipe, into a file. fds: folder, folder again, what to read. All of it is checked, name and model stay, `uid` is
	 * put in. -EBADMSG: it is not such a file. -EDQUOT: it is larger than max_bytes. -EEXIST: there is a file of its name. -ETIMEDOUT: nothing
	 * came for patience_ms, or less than SKV_DISK_IMPORT_RATE in all. Of the job only kind, n_fds, uid, max_bytes and patience_ms count.
	 */
	SKV_DISK_IMPORT = 3,
	/*
	 * A turn's worth of a file of max_bytes, from `offset` on, into a pipe. fds: folder, folder again, pipe. `bytes` of the answer were written. It ends
	 * early where the pipe is full and nobody reads from it. The answer says which file it was, by inode and time of change, and the next turn's job
	 * says it again: -ESTALE where there is another file of this name since.
	 */
	SKV_DISK_SEND = 4,
	/*
	 * A parked file goes, and does not come back after a power cut; 0 if it is gone already. fds: folder, folder again. Of the job only kind,
	 * n_fds, uid and file count.
	 */
	SKV_DISK_REMOVE = 8,
	/*
	 * Look at a file, or, where its name is "", at all of the user's folder. fds: folder, folder again, a memfd, which gets what is found: each a
	 * struct skv_files_found, and, of a sealed prefix, its keys. Of the job only kind, n_fds, uid and file count.
	 */
	SKV_DISK_LOOK = 9,

	/*
	 * A sealed prefix (daemon/core/prefix.h) and the prefix store. In the place of the user's folder is a memfd with what store/values.h
	 * says: the store, the tenant's key, names of blocks, and for GET token ids.
	 *
	 * PUT, from memory to the store: fds and list as of PARK. What the store has is not sent again. `bytes` of the answer were sent.
	 */
	SKV_DISK_STORE_PUT = 5,
	/* How many blocks has the store, from the first on? fds: folder, memfd. `n_blocks` of the answer. */
	SKV_DISK_STORE_FIND = 6,
	/*
	 * From the store to memory: fds as of RESUME. The list has n_pages ids: of each block in order, of each of its layers that has pages,
	 * its pages. The first `n_blocks` of the answer, 0 or more, are right: the sequence memory, which was fresh, has their entries and
	 * token ids, and a commit of as many. Pages of the rest are not in it. An error: nothing is.
	 */
	SKV_DISK_STORE_GET = 7,
};
enum {
	SKV_DISK_FD_FOLDER,
	SKV_DISK_FD_USER,
	SKV_DISK_FD_SEQ,
	SKV_DISK_FD_LIST,
	SKV_DISK_FD_PAGES,
	SKV_DISK_FD_STORE = SKV_DISK_FD_USER,
	SKV_DISK_FD_OTHER = SKV_DISK_FD_SEQ
};

struct skv_disk_job {
	uint32_t kind;
	uint32_t n_fds;
	struct skv_wire_model model;
	char name[SKV_NAME_MAX];
	uint32_t uid, max_tokens;
	uint64_t commit; /* PARK: that the daemon has seen; the sequence memory's must be the same */
	uint64_t n_entries, n_pages, page_bytes;
	/*
	 * Memory of pages. Host (model.device is 0): one memfd, page p is at p * page_bytes. A device: segments, whose numbers are uint32_t
	 * in the list after the rest, n_fds - SKV_DISK_FD_PAGES of them, each an allocation of segment_bytes; page p is number
	 * p % pages_per_segment of the multiples of page_bytes that lie whole in segment p / pages_per_segment, counted on from one
	 * segment to the next.
	 */
	uint64_t max_pages, segment_bytes;
	uint32_t pages_per_segment;
	uint32_t n_keys;    /* PARK: of a sealed prefix; else 0 */
	uint64_t keys_at;   /* in the list */
	uint64_t max_bytes; /* of the file */
	uint64_t patience_ms; /* IMPORT */
	uint64_t offset;    /* SEND */
	uint64_t inode, changed_ns; /* SEND: of the file, as the last turn's answer has them; 0: this is the first one */
	/*
	 * The file's name in the user's folder. It is there as a whole or not at all: written without a name, synchronized, linked
	 * under another one (".new-" and the process's number), renamed, and the folder synchronized.
	 */
	char file[SKV_PARKED_FILE];
};
struct skv_disk_answer {
	int32_t error; /* 0, or negative errno */
	uint32_t more; /* not the end: it is alive, and has done `bytes` so far */
	uint64_t bytes; /* of the file, written or read */
	char why[SKV_DISK_TEXT_MAX];
	char file[SKV_PARKED_FILE]; /* IMPORT: the name that it got, which follows from its model and name. With an error: it has it still */
	struct skv_parked_header header; /* PARK, IMPORT: of the file that was written */
	uint64_t inode, changed_ns; /* SEND */
	uint32_t n_blocks; /* STORE_FIND, STORE_GET */
	uint32_t n_nixl; /* STORE_GET: values that NIXL has read, and their bytes */
	uint64_t nixl_bytes;
};
#define SKV_DISK_IMPORT_RATE (1u << 20) /* bytes a second, once patience_ms are over: others wait for the worker */
#define SKV_DISK_SAYS_NS 1000000000u /* it says `more` about so often */

int skv_disk_worker_main(void);

#endif
