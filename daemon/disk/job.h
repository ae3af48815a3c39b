/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/job.h - protocol between the daemon and a disk worker (`sparsekv-worker VERSION disk`).
 *
 * A disk worker is a process that moves sequences between memory and files, so that the daemon neither waits for a disk
 * nor has a context of a CUDA device. A disk worker runs one job at a time. A job is sent as a packet with struct
 * skv_disk_job and the first descriptors, then packets of one byte with the remaining descriptors, up to n_fds. The
 * worker replies with packets of struct skv_disk_answer; packets with `more` set report progress. The worker exits when
 * the daemon closes its end of the socket.
 *
 * During a job the worker holds a lock on the job's first descriptor, which stands for the daemon's memory, and one on
 * the folder of parked files if the job reads, writes or removes such files: see lock.h.
 */
#ifndef SKV_DISK_JOB_H
#define SKV_DISK_JOB_H

#include "daemon/disk/parked.h"

#define SKV_DISK_WORKER_FD 3 /* SOCK_SEQPACKET: jobs in, answers out */
#define SKV_DISK_PACKET_FDS 250u /* maximum number of descriptors in a packet */
#define SKV_DISK_TEXT_MAX 256u
#define SKV_DISK_FLIGHT 8u /* maximum number of chunks that are written or read concurrently */

/*
 * The first descriptor of each job is the file that the worker locks. In a job on files, the second descriptor is the
 * folder of parked sequences. The worker opens the folder of the job's user in it, or creates the user's folder for
 * jobs that write files, and uses that in place of the second descriptor. So the daemon never waits for a disk.
 */
enum skv_disk_job_kind {
	/*
	 * Write a sequence from memory to a file. fds: lock, folder, sequence memory, list, memory of pages. The
	 * list holds the n_entries page table entries below the committed length, table by table. The daemon has
	 * checked these entries: page ids of PRIVATE and SHARED entries are below max_pages. For a sealed prefix the
	 * list holds a struct skv_parked_keys at byte offset keys_at. Everything that is not in the list comes from the
	 * sequence memory, which the client may still write to.
	 */
	SKV_DISK_PARK = 1,
	/*
	 * Read a sequence from a file into memory. fds: as for PARK. The list holds n_pages page ids: the k-th page of
	 * the file is copied to the page with the k-th id. The sequence memory is newly allocated and zero. -EBADMSG:
	 * the file is damaged or belongs to another sequence, and `why` gives the reason; the daemon must then discard
	 * everything that was written to memory.
	 */
	SKV_DISK_RESUME = 2,
	/*
	 * Import a parked file from a file or pipe of any origin. fds: lock, folder, source. All data of the source is
	 * checked. The sequence keeps its name and model; its owner becomes `uid`. -EBADMSG: the source is not a valid
	 * file of a parked sequence. -EDQUOT: the source is larger than max_bytes. -EEXIST: a file of this name exists.
	 * -ETIMEDOUT: the source sent no data for patience_ms, or at an average rate below SKV_DISK_IMPORT_RATE. Only
	 * kind, n_fds, uid, max_bytes and patience_ms of the job are used.
	 */
	SKV_DISK_IMPORT = 3,
	/*
	 * Write part of a file of max_bytes, from `offset` on, to a pipe, for a limited time. fds: lock, folder, pipe.
	 * `bytes` of the answer is the number of bytes written. The job ends early if the pipe is full and its
	 * reader does not read. The answer identifies the file by inode and change time; the next job for the file
	 * repeats both. -ESTALE: the file of this name has been replaced or removed since the first job.
	 */
	SKV_DISK_SEND = 4,
	/*
	 * Remove a parked file durably: the file does not reappear after a power cut. Succeeds if the file is already
	 * gone. fds: lock, folder. Only kind, n_fds, uid and file of the job are used.
	 */
	SKV_DISK_REMOVE = 8,
	/*
	 * Read the header of a file, or of all files of the user's folder if the file name is "". fds: lock, folder,
	 * and a memfd for the results: a struct skv_files_found for each file, followed by the block keys if the file
	 * is a sealed prefix. Only kind, n_fds, uid and file of the job are used.
	 */
	SKV_DISK_LOOK = 9,

	/*
	 * Jobs on a sealed prefix (daemon/core/operations/prefix.h) and the prefix store. In place of the folder, a job
	 * for the prefix store has a memfd with the contents that store/values.h describes: the store's address, the
	 * tenant's key, names of blocks, and token ids for GET.
	 *
	 * PUT: send blocks from memory to the store. fds and list as for PARK. Blocks that the store has are not sent
	 * again. `bytes` of the answer is the number of bytes sent.
	 */
	SKV_DISK_STORE_PUT = 5,
	/* FIND: count how many of the first blocks the store has: `n_blocks` of the answer. fds: lock, memfd. */
	SKV_DISK_STORE_FIND = 6,
	/*
	 * GET: read blocks from the store into memory. fds as for RESUME. The list holds n_pages page ids, block by
	 * block: for each layer that has pages, the block's pages. `n_blocks` of the answer, 0 or more, is the number
	 * of blocks that were read intact, from the first on. The sequence memory, which was newly allocated, then has
	 * page table entries and token ids of these blocks and a commit of their length; it does not refer to pages of
	 * other blocks. After an error the sequence memory refers to no page.
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
	uint64_t commit; /* PARK: commit word that the daemon has read; the sequence memory must still have the same */
	uint64_t n_entries, n_pages, page_bytes;
	/*
	 * Memory of pages. Host (model.device is 0): one memfd, with page p at byte p * page_bytes. A device: n_fds -
	 * SKV_DISK_FD_PAGES segments, each an allocation of segment_bytes; the segments' numbers (uint32_t) follow the
	 * entries or page ids in the list. Page p is in segment p / pages_per_segment, as number p % pages_per_segment
	 * of the page frames that lie wholly in that segment. Frames begin at multiples of page_bytes of the address
	 * range in which all segments lie side by side.
	 */
	uint64_t max_pages, segment_bytes;
	uint32_t pages_per_segment;
	uint32_t n_keys;    /* PARK: number of block keys of a sealed prefix; otherwise 0 */
	uint64_t keys_at;   /* PARK: byte offset of the block keys in the list */
	uint64_t max_bytes; /* maximum size of the file; SEND: its size */
	uint64_t patience_ms; /* IMPORT: maximum time without data from the source */
	uint64_t offset;    /* SEND: byte of the file to begin at */
	uint64_t inode, changed_ns; /* SEND: identity of the file, from the answer to the job before; 0: first job */
	/*
	 * File name in the user's folder. A file appears completely or not at all: the worker writes it without a name,
	 * synchronizes it, links it as ".new-" and the process id, renames it, and synchronizes the folder.
	 */
	char file[SKV_PARKED_FILE];
};
struct skv_disk_answer {
	int32_t error; /* 0, or negative errno */
	uint32_t more; /* 1: a progress report, not the final answer; `bytes` is how much is done so far */
	uint64_t bytes; /* number of bytes of the file that were written or read */
	char why[SKV_DISK_TEXT_MAX];
	/*
	 * IMPORT: name of the file, derived from model and name of the sequence; after an error "" unless a file is
	 * left
	 */
	char file[SKV_PARKED_FILE];
	struct skv_parked_header header; /* PARK, IMPORT: header of the written file */
	uint64_t inode, changed_ns; /* SEND: identity of the file: inode number and change time */
	uint32_t n_blocks; /* STORE_FIND, STORE_GET: number of the first blocks that the store has, or that were read */
	uint32_t n_nixl; /* STORE_GET: number of values that NIXL has read; nixl_bytes is their size */
	uint64_t nixl_bytes;
};
/* IMPORT: bytes a second that a source must send on average once patience_ms have passed, since other imports wait */
#define SKV_DISK_IMPORT_RATE (1u << 20)
#define SKV_DISK_SAYS_NS 1000000000u /* interval of a job's progress reports (answers with `more`) */

int skv_disk_worker_main(void);

#endif
