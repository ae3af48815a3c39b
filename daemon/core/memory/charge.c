/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pins.h"
#include "daemon/core/state/refuse.h"

#include <sys/stat.h>

uint64_t skv_charged(const struct skv_core *c, uint32_t account)
{
	const struct skv_account_row *a = skv_account_row(&c->state, account);

	return a->page_bytes[SKV_DEVICE_HOST] + a->other_bytes + skv_pinned(c, a->uid);
}

int skv_charge_allows(struct skv_core *c, uint32_t account, uint64_t more)
{
	uint64_t has = skv_charged(c, account), quota = c->memory[SKV_DEVICE_HOST].limits.account_bytes;

	if (has < quota && more <= quota - has)
		return 0;
	skv_set_why(c,
	            "the account has %llu bytes of host memory, %llu of them beside its pages, and needs %llu more; "
	            "its quota is %llu",
	            (unsigned long long)has,
	            (unsigned long long)(has - skv_account_row(&c->state, account)->page_bytes[SKV_DEVICE_HOST]),
	            (unsigned long long)more, (unsigned long long)quota);
	return SKV_CORE_E_QUOTA;
}

void skv_charge(struct skv_core *c, uint32_t account, uint64_t *charged, uint64_t now)
{
	skv_write_account(&c->state, account)->other_bytes += now - *charged;
	*charged = now;
}

static uint64_t room_left(const struct skv_core *c)
{
	const struct skv_mem_ops *mem = c->memory[SKV_DEVICE_HOST].mem;

	return mem->left(mem);
}

int skv_room_allows(struct skv_core *c, uint32_t account, uint64_t more)
{
	const struct skv_account_row *a = skv_account_row(&c->state, account);
	uint64_t left = room_left(c), has = a->copied_bytes + a->sequences * SKV_SEQ_ROOM +
	                                    a->clients * SKV_CLIENT_ROOM + skv_pinned(c, a->uid);

	if (more <= left && (has == 0 || has + more <= left - more))
		return 0;
	return skv_core_refuse(c, SKV_CORE_E_NOSPC,
	                       "UID %u has %llu bytes of the daemon's memory cgroup and needs %llu more; the rest is "
	                       "reserved for others",
	                       a->uid, (unsigned long long)has, (unsigned long long)more);
}

bool skv_core_room_is_used_up(const struct skv_core *c)
{
	return room_left(c) == 0;
}

uint64_t skv_file_bytes(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

void skv_charge_seq(struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	const struct skv_pool_row *p = skv_pool_row(&c->state, q->pool);
	uint64_t pages = (uint64_t)p->high * p->pages_per_segment;
	/* bytes of the sequence's row of reference bits, a bit for each page of the pool */
	uint64_t references = q->referred ? (pages + 8 * 4096 - 1) / (8 * 4096) * 4096 : 0, bytes;

	bytes = skv_file_bytes(c->seqs[seq].fd) + references + skv_block_index_bytes(c->seqs[seq].n_blocks);
	if (bytes != q->bytes)
		skv_charge(c, q->account, &skv_write_seq(&c->state, seq)->bytes, bytes);
}

void skv_charge_newest(struct skv_core *c, uint32_t session)
{
	const uint32_t id = c->sessions[session].newest;
	const uint32_t seq = id ? skv_state_find(&c->state, SKV_TABLE_SEQUENCES, id) : SKV_NO_INDEX;

	if (seq != SKV_NO_INDEX)
		skv_charge_seq(c, seq);
}
