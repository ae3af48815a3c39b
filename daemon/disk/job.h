/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/job.h - protocol between the daemon and a disk worker (`sparsekv-worker VERSION disk`).
 *
 * A disk worker is a process that moves sequences between memory and files, so that the daemon neither waits for a disk
 * nor has a context of a device. It runs one job at a time. A job is a packet with struct skv_disk_job and the first
 * descriptors, then packets of one byte with the remaining descriptors, up to n_fds. The worker replies with packets of
 * struct skv_disk_answer; packets with `more` set report progress. The worker exits when the daemon closes its end of
 * the socket.
 *
 * During a job the worker holds locks on the first descriptor, which stands for the daemon's memory, and on the folder
 * of parked files if the job is one on files: see lock.h.
 */
#ifndef SKV_DISK_JOB_H
#define SKV_DISK_JOB_H

#include "daemon/disk/parked.h"

#define SKV_DISK_WORKER_FD 3 /* SOCK_SEQPACKET: jobs in, answers out */
#define SKV_DISK_PACKET_FDS 250u /* per packet */
#define SKV_DISK_TEXT_MAX 256u
#define SKV_DISK_FLIGHT 8u /* chunks that are written or read concurrently */

/*
 * The first descriptor of each job is the one of the lock. Jobs on files pass the folder next. The worker replaces it
 * by the folder of the job's user, which it opens, or creates for jobs that write files. So the daemon never waits for
 * a disk.
 */
enum skv_disk_job_kind {
	/*
	 * Write a sequence from memory to a file. fds: lock, folder, sequence memory, list, memory of pages. The
	 * list holds n_entries page table entries, those below the committed length, table by table. The daemon has
	 * checked them: page ids of PRIVATE and SHARED entries are below max_pages. At keys_at the list holds the
	 * struct skv_parked_keys of a sealed prefix. Everything that is not in the list comes from the sequence memory,
	 * which the client may still write to.
	 */
	SKV_DISK_PARK = 1,
	/*
	 * Read a sequence from a file into memory. fds: as for PARK. The list holds n_pages page ids: the k-th page of
	 * the file goes to the k-th id. The sequence memory is fresh. -EBADMSG: the file was damaged or does not match,
	 * and `why` gives the reason; discard everything that was written to memory.
	 */
	SKV_DISK_RESUME = 2,
	/*
	 * Import a file or a pipe of any origin as a parked file. fds: lock, folder, source. All of it is checked.
	 * Name and model stay the same, `uid` is replaced. -EBADMSG: the source is not a valid file of a
	 * parked sequence. -EDQUOT: it is larger than max_bytes. -EEXIST: a file of this name exists. -ETIMEDOUT: no
	 * data for patience_ms, or an average rate below SKV_DISK_IMPORT_RATE. Only kind, n_fds, uid, max_bytes and
	 * patience_ms of the job are used.
	 */
	SKV_DISK_IMPORT = 3,
	/*
	 * Write one turn's share of a file of max_bytes, starting at `offset`, to a pipe. fds: lock, folder, pipe.
	 * `bytes` of the answer is the number of bytes written. The job ends early if the pipe is full and its
	 * reader does not read. The answer identifies the file by inode and change time; the job of the next turn
	 * repeats both. -ESTALE: the name has another file by now.
	 */
	SKV_DISK_SEND = 4,
	/*
	 * Remove a parked file durably: it does not reappear after a power cut. Succeeds if the file is already gone.
	 * fds: lock, folder. Only kind, n_fds, uid and file of the job are used.
	 */
	SKV_DISK_REMOVE = 8,
	/*
	 * Look up a file, or all files of the user's folder if the file name is "". fds: lock, folder, and a memfd for
	 * the results: a struct skv_files_found for each file, followed by the keys of a sealed prefix. Only
	 * kind, n_fds, uid and file of the job are used.
	 */
	SKV_DISK_LOOK = 9,

	/*
	 * Jobs on a sealed prefix (daemon/core/operations/prefix.h) and the prefix store. In place of the folder there is a
	 * memfd with the contents that store/values.h describes: the store, the tenant's key, names of blocks, and
	 * token ids for GET.
	 *
	 * PUT: from memory to the store. fds and list as for PARK. Blocks that the store has are not sent again.
	 * `bytes` of the answer is the number of bytes sent.
	 */
	SKV_DISK_STORE_PUT = 5,
	/* Counts how many leading blocks the store has. fds: lock, memfd. The result is `n_blocks` of the answer. */
	SKV_DISK_STORE_FIND = 6,
	/*
	 * From the store to memory. fds as for RESUME. The list holds n_pages ids: block by block, for each layer that
	 * has pages, its pages. The first `n_blocks` (0 or more) of the answer are valid: the sequence memory, which
	 * was fresh, has their entries, their token ids and a commit of that length. It does not refer to pages of the
	 * other blocks. On an error it refers to none.
	 */
	SKV_DISK_STORE_GET = 7,
};
enum {
	SKV_DISK_FD_LOCK,
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
	uint64_t commit; /* PARK: the commit that the daemon has seen; the sequence memory must have the same */
	uint64_t n_entries, n_pages, page_bytes;
	/*
	 * Memory of pages. Host (model.device is 0): one memfd; page p is at p * page_bytes. A device: n_fds -
	 * SKV_DISK_FD_PAGES segments, each an allocation of segment_bytes; their numbers (uint32_t) follow the entries
	 * or page ids in the list. Page p is in segment p / pages_per_segment. There it is number p % pages_per_segment
	 * of the page frames that lie wholly in the segment; frames begin at multiples of page_bytes, counted over all
	 * segments side by side.
	 */
	uint64_t max_pages, segment_bytes;
	uint32_t pages_per_segment;
	uint32_t n_keys;    /* PARK: number of keys of a sealed prefix; otherwise 0 */
	uint64_t keys_at;   /* byte offset in the list */
	uint64_t max_bytes; /* limit for the file */
	uint64_t patience_ms; /* IMPORT */
	uint64_t offset;    /* SEND */
	uint64_t inode, changed_ns; /* SEND: identity of the file, from the answer of the last turn; 0: first turn */
	/*
	 * Name in the user's folder. A file appears completely or not at all: it is written without a name,
	 * synchronized, linked as ".new-" and the process id, renamed, and the folder is synchronized.
	 */
	char file[SKV_PARKED_FILE];
};
struct skv_disk_answer {
	int32_t error; /* 0, or negative errno */
	uint32_t more; /* not the final answer: the worker is alive and has done `bytes` so far */
	uint64_t bytes; /* of the file, written or read */
	char why[SKV_DISK_TEXT_MAX];
	/* IMPORT: name of the file, derived from its model and name. Set with an error if the file still exists */
	char file[SKV_PARKED_FILE];
	struct skv_parked_header header; /* PARK, IMPORT: header of the written file */
	uint64_t inode, changed_ns; /* SEND */
	uint32_t n_blocks; /* STORE_FIND, STORE_GET */
	uint32_t n_nixl; /* STORE_GET: number and bytes of values that NIXL has read */
	uint64_t nixl_bytes;
};
#define SKV_DISK_IMPORT_RATE (1u << 20) /* bytes a second, required after patience_ms: other imports wait */
#define SKV_DISK_SAYS_NS 1000000000u /* interval of answers with `more` */

int skv_disk_worker_main(void);

#endif
