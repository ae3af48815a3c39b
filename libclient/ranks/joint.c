/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/ranks/joint.c - joint commits of tensor-parallel ranks: a commit counts when all ranks have made it
 * (common/seqmem.h, 10).
 *
 * After a commit each rank calls one more all-reduce; when it completes, all ranks have committed. Before that, no rank
 * carries out the commit's evictions, or begins anything that overwrites data that the previous commit needs. So if
 * ranks die at any instruction, some ranks may have one commit more than others, and the daemon can take this commit
 * back. Each rank contributes its number and the negative of its number: so the result of an all-reduce that was
 * aborted or never ran differs from the result of one that has completed.
 *
 * The message of a rank also says which policy the rank runs, and which policy it is ready to swap to. To decide on a
 * swap, a rank uses the answers of as many steps ago as a host may be ahead of its device: every rank has those
 * answers, so all ranks swap in the same step.
 */
#include "libclient/ranks/joint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/conn/request.h"
#include "libclient/device/device.h"
#include "libclient/device/scratch.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/policy.h"
#include "libclient/seq.h"

struct joint {
	bool met; /* all ranks have begun, under the same policy */
	const char *lost; /* why the session cannot continue; NULL: it can */
	float *mem; /* [JOINT_WORDS] in the model's memory */
	size_t bytes;
	/* [2][JOINT_WORDS], pinned: message and answer of an exchange that the host waits for; NULL in host memory */
	float *told;
	void *stream; /* stream on which such an exchange is queued */
	uint64_t asked, answered; /* number of confirmations that were asked for; that were answered */
	/* [confirmation % DEVICE_STEPS]: generation that all ranks were ready for; 0: none */
	uint32_t ready[DEVICE_STEPS];
};

/*
 * Index of each of a rank's numbers in a message: the rank's number, its policy, and the policy that it is ready to
 * swap to. Each number is followed by its negative.
 */
enum { NUMBER, POLICY = 2, READY = 4 };

uint32_t joint_generation(uint64_t generation)
{
	return (uint32_t)(generation & 0x7fffff) + 1; /* at most 2^23, and so exact in fp32 */
}

static int joint_open(struct skv_session *s)
{
	struct joint *r;
	void *mem = NULL, *told = NULL, *was;
	int e;

	if (s->model.n_ranks < 2 || !s->model.all_reduce_max)
		return 0;
	r = s->joint = calloc(1, sizeof(*r));
	if (!r)
		return error_set(-ENOMEM, "out of memory");
	e = device_enter(s, &was);
	if (e < 0)
		return e;
	e = scratch_grow(s, &mem, &r->bytes, JOINT_WORDS * sizeof(float));
	r->mem = mem;
	if (e == 0 && s->device) {
		e = s->device->backend->alloc_host(2 * JOINT_WORDS * sizeof(float), &told);
		r->told = told;
		e = e < 0 ? e : s->device->backend->stream_new(&r->stream);
		e = e < 0 ? device_failed(s->device, e, "memory for what ranks tell each other") : 0;
	}
	device_leave(s, was);
	return e;
}

static void joint_close(struct skv_session *s)
{
	struct joint *r = s->joint;
	void *was;

	if (!r)
		return;
	scratch_free(s, r->mem);
	if (s->device && device_enter(s, &was) == 0) {
		s->device->backend->free_host(r->told);
		if (r->stream)
			s->device->backend->stream_free(r->stream);
		device_leave(s, was);
	}
	free(r);
	s->joint = NULL;
}

/* The generation that this rank is ready for: the one that it waits to swap to, else its present policy's. */
static float ready(const struct skv_session *s)
{
	const struct skv_msg_policy *swap = s->swap.reply ? s->swap.reply->body : NULL;

	return (float)joint_generation(swap ? swap->generation : s->policy->generation);
}

static void tell(const struct skv_session *s, float last, float *to)
{
	const float own[] = {
		[NUMBER] = (float)s->model.rank,
		[POLICY] = (float)joint_generation(s->policy->generation),
		[READY] = last,
	};

	for (uint32_t i = 0; i < JOINT_WORDS; i += 2) {
		to[i] = own[i];
		to[i + 1] = -own[i];
	}
}

/* Do all ranks have the same number at index `what`? */
static bool same(const float *answer, uint32_t what)
{
	return answer[what] == -answer[what + 1];
}

/* Did all ranks take part in the exchange? */
static bool complete(const struct skv_session *s, const float *answer)
{
	return answer[NUMBER] == (float)(s->model.n_ranks - 1) && answer[NUMBER + 1] == 0;
}

int joint_state(const struct skv_session *s)
{
	if (!s->joint || !s->joint->lost)
		return 0;
	return error_set(-ECONNABORTED, "%s: close the session, open it and attach sequences anew, on all ranks", s->joint->lost);
}

static int lose(struct skv_session *s, const char *why)
{
	if (!s->joint->lost)
		s->joint->lost = why;
	return joint_state(s);
}

static const char silent[] = "other ranks did not confirm a commit", apart[] = "ranks run different policies";

/*
 * Exchange the numbers of all ranks, with `last` as this rank's number READY, and wait. answer[] gets the maxima over
 * the ranks. Nothing may be queued on the device.
 */
static int ask_all(struct skv_session *s, float last, float answer[JOINT_WORDS])
{
	const size_t bytes = JOINT_WORDS * sizeof(*answer);
	const struct skv_backend *b = s->device ? s->device->backend : NULL;
	const struct skv_model *m = &s->model;
	struct joint *r = s->joint;
	int e = 0;

	tell(s, last, b ? r->told : r->mem);
	if (b)
		e = b->copy(r->mem, r->told, bytes, r->stream);
	if (e == 0)
		e = m->all_reduce_max(m->all_reduce_ctx, r->mem, JOINT_WORDS, r->stream);
	if (e == 0 && b)
		e = b->copy(r->told + JOINT_WORDS, r->mem, bytes, r->stream);
	if (e == 0 && b)
		e = b->wait(r->stream);
	if (e)
		return lose(s, silent);
	memcpy(answer, b ? r->told + JOINT_WORDS : r->mem, bytes);
	return complete(s, answer) ? 0 : lose(s, silent);
}

int joint_begin(struct skv_session *s)
{
	float answer[JOINT_WORDS];
	int e = joint_state(s);

	if (e < 0 || !s->joint || s->joint->met)
		return e;
	e = ask_all(s, ready(s), answer);
	if (e == 0 && !same(answer, POLICY))
		e = lose(s, apart);
	s->joint->met = true;
	return e;
}

int joint_compare(struct skv_session *s, int32_t own, int32_t *ret_least, int32_t *ret_most)
{
	float answer[JOINT_WORDS];
	int e = joint_begin(s);

	if (e == 0)
		e = ask_all(s, (float)own, answer);
	if (e == 0) {
		*ret_most = (int32_t)answer[READY];
		*ret_least = (int32_t)-answer[READY + 1];
	}
	return e;
}

/* Record the answer to the next confirmation. */
static void take(struct skv_session *s, const float *answer)
{
	struct joint *r = s->joint;

	if (!complete(s, answer))
		lose(s, silent);
	else if (!same(answer, POLICY))
		lose(s, apart);
	r->ready[r->answered++ % DEVICE_STEPS] = same(answer, READY) ? (uint32_t)answer[READY] : 0;
}

bool joint_confirm(struct skv_session *s)
{
	float answer[JOINT_WORDS];

	if (!s->joint)
		return true;
	s->joint->asked++;
	if (!s->joint->lost && ask_all(s, ready(s), answer) == 0)
		take(s, answer);
	return !s->joint->lost;
}

void joint_queue(struct skv_session *s, struct device_step *x)
{
	const size_t bytes = JOINT_WORDS * sizeof(*x->told);
	const struct skv_backend *b = s->device->backend;
	const struct skv_model *m = &s->model;
	void *stream = s->step.work.stream;
	struct joint *r = s->joint;
	int e;

	if (!r)
		return;
	r->asked++;
	memset(x->told, 0, 2 * bytes);
	tell(s, ready(s), x->told);
	e = b->copy(r->mem, x->told, bytes, stream);
	if (e == 0)
		e = m->all_reduce_max(m->all_reduce_ctx, r->mem, JOINT_WORDS, stream);
	if (e == 0)
		e = b->copy(x->told + JOINT_WORDS, r->mem, bytes, stream);
	if (e)
		lose(s, silent);
}

bool joint_confirmed(struct skv_session *s, const struct device_step *x)
{
	if (s->joint)
		take(s, x->told + JOINT_WORDS);
	return !s->joint || !s->joint->lost;
}

void joint_know(struct skv_seq *q, uint32_t epoch)
{
	atomic_store_explicit(&q->mem->joint, q->session->joint ? epoch + 1 : 0, memory_order_release);
}

uint32_t joint_agreed_swap(const struct skv_session *s)
{
	const struct joint *r = s->joint;

	/* confirmations that are DEVICE_STEPS old have been answered, and every rank has recorded the answers */
	return r->asked < DEVICE_STEPS ? 0 : r->ready[r->asked % DEVICE_STEPS];
}

const struct feature joint_feature = {.open = joint_open, .close = joint_close, .turn = joint_begin};
