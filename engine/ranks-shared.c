/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks-shared.c - see ranks-shared.h. Ranks exchange data in pieces through two alternating buffers in shared
 * memory. For each piece all ranks wait for each other (they meet). A rank that comes to a meeting has finished reading
 * the previous piece, so after the meeting the buffer of the previous piece may be overwritten.
 */
#include "engine/ranks-shared.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PIECE_BYTES (256u << 10) /* bytes of one rank's piece */
#define SPINS 2000u /* number of times that a waiting rank checks before it sleeps: about ten microseconds */
#define LOOK_NS 10000000         /* nanoseconds after which a sleeping rank checks given_up again */

struct eng_shared {
	uint32_t n;
	size_t bytes;
	_Atomic uint32_t given_up, arrived;
	_Atomic uint32_t met; /* number of meetings so far; also the futex on which ranks sleep */
	uint8_t mem[]; /* [2][n][PIECE_BYTES]: the two buffers */
};

struct eng_shared *eng_shared_new(uint32_t n)
{
	const size_t bytes = sizeof(struct eng_shared) + (size_t)2 * n * PIECE_BYTES;
	struct eng_shared *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (s == MAP_FAILED)
		return NULL;
	s->n = n;
	s->bytes = bytes;
	return s;
}

void eng_shared_free(struct eng_shared *s)
{
	if (s)
		munmap(s, s->bytes);
}

static void wake(struct eng_shared *s)
{
	syscall(SYS_futex, &s->met, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void eng_shared_give_up(struct eng_shared *s)
{
	atomic_store(&s->given_up, 1);
	wake(s);
}

/*
 * Waits until all ranks have arrived; after that a rank sees what the others wrote before. *ret is the number of this
 * meeting.
 */
static int meet(struct eng_shared *s, uint32_t *ret)
{
	const uint32_t met = atomic_load(&s->met);

	*ret = met;
	if (atomic_load_explicit(&s->given_up, memory_order_relaxed))
		return -ECONNABORTED; /* a rank that gave up in an earlier call is still counted in `arrived` */
	if (atomic_fetch_add(&s->arrived, 1) + 1 == s->n) {
		atomic_store(&s->arrived, 0);
		atomic_store(&s->met, met + 1);
		wake(s);
		return 0;
	}
	for (uint32_t i = 0; atomic_load(&s->met) == met; i++) {
		if (atomic_load_explicit(&s->given_up, memory_order_relaxed))
			return -ECONNABORTED;
		if (i >= SPINS)
			syscall(SYS_futex, &s->met, FUTEX_WAIT, met, &(struct timespec){.tv_nsec = LOOK_NS}, NULL, 0);
	}
	return 0;
}

/* Returns a rank's piece in the buffer that meeting `met` uses. */
static uint8_t *piece(struct eng_shared *s, uint32_t met, uint32_t rank)
{
	return s->mem + ((size_t)(met & 1) * s->n + rank) * PIECE_BYTES;
}

static int max_of_piece(struct eng_shared *s, uint32_t rank, float *data, size_t count)
{
	uint32_t met;
	int r;

	memcpy(piece(s, atomic_load(&s->met), rank), data, count * sizeof(*data));
	r = meet(s, &met);
	for (uint32_t other = 0; other < s->n && r == 0; other++) {
		const float *x = (const float *)piece(s, met, other);

		for (size_t i = 0; i < count; i++)
			data[i] = x[i] > data[i] ? x[i] : data[i];
	}
	return r;
}

int eng_shared_max(struct eng_shared *s, uint32_t rank, float *data, size_t count)
{
	const size_t most = PIECE_BYTES / sizeof(*data);
	int r = 0;

	for (size_t at = 0; at < count && r == 0; at += most)
		r = max_of_piece(s, rank, data + at, count - at < most ? count - at : most);
	return r;
}

/*
 * Exchanges the ranks' parts of n rows. `bytes` is the size of what is exchanged of each part, `apart` the distance
 * between parts.
 */
static int gather_piece(struct eng_shared *s, uint32_t rank, uint8_t *rows, size_t n, size_t bytes, size_t apart)
{
	uint8_t *own = piece(s, atomic_load(&s->met), rank);
	uint32_t met;
	int r;

	for (size_t i = 0; i < n; i++)
		memcpy(own + i * bytes, rows + (i * s->n + rank) * apart, bytes);
	r = meet(s, &met);
	for (uint32_t other = 0; other < s->n && r == 0; other++)
		for (size_t i = 0; i < n && other != rank; i++)
			memcpy(rows + (i * s->n + other) * apart, piece(s, met, other) + i * bytes, bytes);
	return r;
}

int eng_shared_gather(struct eng_shared *s, uint32_t rank, void *rows, size_t n, size_t bytes)
{
	const size_t width = bytes < PIECE_BYTES ? bytes : PIECE_BYTES, most = PIECE_BYTES / width;
	uint8_t *at = rows;
	int r = 0;

	for (size_t row = 0; row < n && r == 0; row += most)
		for (size_t from = 0; from < bytes && r == 0; from += width)
			r = gather_piece(s, rank, at + row * s->n * bytes + from, n - row < most ? n - row : most,
			                 bytes - from < width ? bytes - from : width, bytes);
	return r;
}
