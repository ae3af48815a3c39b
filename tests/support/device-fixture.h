/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/device-fixture.h - a daemon whose devices are those of the fake driver (fake-libcuda.c), and clients on
 * them.
 *
 * Two devices of 256 MiB; segments of 2 MiB; pools of up to four segments; one second for a worker's answer.
 */
#ifndef SKV_TEST_DEVICE_FIXTURE_H
#define SKV_TEST_DEVICE_FIXTURE_H

#include "tests/support/daemon-fixture.h"

#define MB ((uint64_t)1 << 20)
#define SEGMENT (2 * MB)
#define PAGES 512u /* pages of raw_model(), 4 KiB each, in a segment */

#define SAYS(text, what) ck_assert_msg(strstr(text, what), "expected \"%s\" in:\n%s", what, text)

extern struct fix fix;
extern char steering[64]; /* $FAKE_CUDA_DIR */

void device_begin(const char *const *more); /* options, terminated by NULL; or NULL */
void device_end(void);                      /* checks that the state balances */

/* Turns a behaviour of the fake driver on or off. */
void steer(const char *what, bool on);
bool made_a_context(pid_t pid);

/* Opens a session on a device; the fds of announced segments are kept. */
uint32_t open_on(struct raw *r, uint32_t device, const char *name, struct skv_msg_open_ok *ret);
struct raw *client_on(uint32_t device, uint32_t *ret_session);

int lease_refused(struct raw *r, uint32_t session, uint32_t n); /* returns the errno */
/*
 * lease_post() sends the request and does not wait; lease_result() waits for the reply and returns its number of pages.
 */
void lease_post(struct raw *r, uint32_t session, uint32_t least, uint32_t most);
uint32_t lease_result(struct raw *r);
void lease_put(struct raw *r, uint32_t session, uint32_t first, uint32_t n);

/* A field of the first row of the status' "devices" or "device_accounts"; -1: none. */
int64_t figure(const char *rows, const char *field);
void expect_figure(const char *rows, const char *field, int64_t expected); /* within 5 s */
pid_t worker_pid(void); /* worker of the first device; waits until it exists */

/* Maps the memory of the segment that was announced last. */
unsigned char *segment_map(struct raw *r);
void all_are(const unsigned char *p, unsigned char value); /* SEGMENT bytes */

#endif
