/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/client.h - the library that an inference engine links.
 *
 *     struct skv_client *c;  struct skv_session *s;  struct skv_seq *q;
 *     skv_connect(&c, NULL);                                  // $SPARSEKV_SOCKET, else the system socket
 *     skv_open(c, &model, "delta?budget=0.25&layers=2,7,12", &s);
 *     skv_seq_new(s, "chat-17", 4096, &q);
 *     ... each step:
 *     struct skv_step_item it = SKV_STEP_ITEM(.seq = q, .n_tokens = 1, .tokens = &id);
 *     skv_step_begin(s, &it, 1, NULL);                        // all pages of the step, or nothing
 *     for (l = 0; l < model.n_layers; l++)
 *             skv_attend(s, l, &SKV_ATTN(.q = q, .k = k, .v = v, .out = o));
 *     next = sample(logits);
 *     skv_step_end(s, &next, NULL);                           // evict, commit
 *
 * Errors. Functions return 0 (or a count) or a negative errno; skv_last_error() then returns one line that says what
 * was wrong and what was expected. The library never logs, never exits, and never installs signal handlers. Output
 * parameters (`ret_…`) are written on success only, unless a function's comment says otherwise.
 *
 * Threads. Several threads may use a client and the sessions and sequences opened on it: calls on one session exclude
 * each other, calls on different sessions run in parallel. No two threads may make calls of the same step (from
 * skv_step_begin to skv_step_end) at the same time. skv_last_error() is per thread.
 *
 * Devices. A model may be opened on a CUDA device. Then q, k, v and out are in device memory, and a step is queued on
 * the caller's stream: calls return at once, work that the caller queues afterwards may read `out`, and the step
 * commits when the device reaches the end of the step's work. The host may run a few steps ahead of the device;
 * skv_seq_len() counts queued steps. All steps of a session must be queued on one stream, or on streams that the caller
 * orders. A step's attention can be captured into a CUDA graph and replayed in later steps (skv_step_key). A process
 * that uses a device cannot use it in a child that it forks.
 *
 * fork(2). A child process does not have the parent's pages. In the child, calls with a client, session or sequence of
 * the parent fail with -EPERM, functions that return no error do nothing and return 0 or NULL, and texts such as
 * skv_policy_spec() stay readable. The child cannot affect the parent's handles or its connection, even if a thread of
 * the parent was inside a call at the fork. In the child, skv_disconnect() closes the child's copy of the socket. The
 * child then calls skv_connect() for a connection of its own.
 *
 * Structs. Structs that callers fill begin with `size`, so that an engine built with an older header works with a newer
 * library. Macros set `size`: SKV_MODEL_INIT, SKV_MODEL_LAYER(…), SKV_STEP_ITEM(…), SKV_ATTN(…). Callers without
 * macros (bindings of other languages) call skv_…_init(&x, sizeof x), which zeroes x and sets its size and defaults.
 *
 * The daemon's death. If a service manager keeps the daemon's memory (sparsekvd(8)), the next daemon takes over all
 * clients, and no call fails: steps continue with the pages on lease, and calls that need the daemon wait for the next
 * daemon, at most as long as skv_set_timeout() says. If no daemon has served at the socket for a second, calls that
 * need the daemon fail with -ECONNRESET until a daemon serves again. If the next daemon does not know this client, or a
 * daemon ended the connection, all calls fail with -ECONNRESET from then on: the engine must reconnect.
 *
 * Cost. Between skv_step_begin and skv_step_end the library makes no system call (except to block and wake the kernels'
 * threads), no allocation and no round trip to the daemon. Only skv_step_begin asks the daemon for pages, before they
 * are needed; while the daemon does not answer, the engine continues with the pages on lease.
 */
#ifndef SPARSEKV_CLIENT_H
#define SPARSEKV_CLIENT_H

#include <sparsekv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SKV_API __attribute__((visibility("default")))
#else
#define SKV_API
#endif

struct skv_client;  /* a connection to a daemon */
struct skv_session; /* one model and one policy on a connection */
struct skv_seq;     /* a sequence attached to a session */

/* The library's version, "major.minor.patch". The string is never NULL, and the library owns it. */
SKV_API const char *skv_version(void);

/* One line about this thread's last failed call, or "". The text is valid until this thread's next failing call. */
SKV_API const char *skv_last_error(void);

/*
 * Connect to a daemon. `path`: the daemon's socket; NULL: $SPARSEKV_SOCKET, else /run/sparsekv/sparsekvd.sock. The
 * caller owns *ret_client and frees it with skv_disconnect().
 * Error: -ENOENT, -ECONNREFUSED, -EACCES as connect(2); -EPERM the daemon's user is not trusted ($SPARSEKV_DAEMON_UID);
 * -EPROTO no common protocol version; -ETIMEDOUT no answer in 5 s; -EDQUOT the account's quota of clients; -ENOMEM.
 */
SKV_API int skv_connect(struct skv_client **ret_client, const char *path);

/*
 * Close all sessions and sequences that were opened on the connection, then the connection. Named sequences stay in the
 * daemon, detached, at their last committed step; anonymous sequences are freed. The call waits until the device has
 * finished its queue, and then for the daemon's confirmation, at most as long as skv_set_timeout() says. No other
 * thread may use the client. NULL is ignored.
 */
SKV_API void skv_disconnect(struct skv_client *client);

/*
 * Set how long a call may wait for the daemon, in milliseconds (default 5000; 0: the call does not wait). While a
 * daemon works on a long request, it sends a message once a second, and each message restarts the time.
 */
SKV_API void skv_set_timeout(struct skv_client *client, uint32_t ms);

/*
 * Set the number of threads, including the calling thread, that run the library's kernels in host memory: 1 to 1024.
 * The number applies from the connection's next steps on. 0, the default: $OMP_NUM_THREADS as it was at this call or at
 * skv_connect, else the number of processors that the calling thread may use. Results do not depend on the number of
 * threads. The process has one pool of kernel threads, separate from OpenMP's: skv_step_begin starts missing threads;
 * kernel threads block while there is no work, mask all signals, and stay until the process ends. Error: -EINVAL.
 */
SKV_API int skv_set_threads(struct skv_client *client, uint32_t n);

/* ---- the identity of a model ----------------------------------------------------------------- */

/*
 * A model's identity: 128 bits that stand for everything that K and V are computed from. The identity is the sum of its
 * items, in any order. An engine adds the architecture and the numbers of its configuration that the forward pass uses,
 * the model's shape, all weights, and the adapter if there is one; skv_identity_name() makes the name of the model
 * (struct skv_model) from the identity. Then sequences and prefixes of a model can be used by the same model under
 * another path, in another engine or on another machine, and by no model that computes other K and V. Keys differ.
 *
 * The skv_identity functions keep no pointers. Only one thread at a time may use an identity. The sum of two
 * identities, as 128-bit numbers, is the identity with the items of both.
 */
struct skv_identity {
	uint64_t low, high;
};
#define SKV_IDENTITY_INIT {0, 0}

/* Add an item under its key: n bytes; a NUL-terminated text; or a number (-0 counts as 0). */
SKV_API void skv_identity_add(struct skv_identity *to, const char *key, const void *bytes, size_t n);
SKV_API void skv_identity_add_text(struct skv_identity *to, const char *key, const char *text);
SKV_API void skv_identity_add_number(struct skv_identity *to, const char *key, double number);

/*
 * Add the number of layers, the heads of all ranks, head_dim, scale and RoPE, and each layer's window, shares_kv, scale
 * and softcap. Name, device, dtypes, max_tokens and ranks are not added, nor are sinks, which count as weights.
 */
SKV_API void skv_identity_add_shape(struct skv_identity *to, const struct skv_model *model);

/*
 * Add a tensor of n elements in host memory, under its name in the checkpoint. dtype: SKV_F32, SKV_F16 or SKV_BF16;
 * equal numbers give the same item in each of these dtypes. For any other dtype the function returns -EINVAL; add the
 * tensor's bytes with skv_identity_add() instead. The tensor lm_head.weight is skipped because K and V do not depend on
 * it, and NAME.inv_freq is skipped because it follows from RoPE.
 */
SKV_API int skv_identity_add_tensor(struct skv_identity *to, const char *name, uint32_t dtype, uint64_t n, const void *data);

/*
 * Add the tensors of a checkpoint's folder: model.safetensors, or the files that its index names. The weights are read
 * once, at about 2 GB/s. The sum over a file is cached in $XDG_CACHE_HOME/sparsekv/weights (~/.cache), for as long as
 * the file's inode, size and times are the same. Error: -EBADMSG malformed files; -ESTALE a file was replaced or changed
 * meanwhile; or the errno of open(2) or mmap(2).
 */
SKV_API int skv_identity_add_files(struct skv_identity *to, const char *folder);

/* Write "FAMILY-" and 32 hexadecimal digits. family: printable ASCII without spaces; only 30 bytes are used. */
SKV_API void skv_identity_name(const struct skv_identity *id, const char *family, char ret_name[SKV_NAME_MAX]);

/* ---- models, structs ------------------------------------------------------------------------- */

/*
 * Zero a struct that callers fill, and set its size and defaults. `size`: sizeof the struct, of which no more is written.
 */
struct skv_step_item;
struct skv_attn;
struct skv_stats;
struct skv_selection_info;
SKV_API void skv_model_init(struct skv_model *model, size_t size);         /* SKV_MODEL_INIT */
SKV_API void skv_model_layer_init(struct skv_model_layer *layer, size_t size); /* a plain layer */
SKV_API void skv_step_item_init(struct skv_step_item *item, size_t size);  /* one token, no flags */
SKV_API void skv_attn_init(struct skv_attn *attn, size_t size);
SKV_API void skv_stats_init(struct skv_stats *stats, size_t size);
SKV_API void skv_selection_info_init(struct skv_selection_info *info, size_t size);

/*
 * Open a model with a policy, given as `name` or `name?key=value&…`. The library copies the model and everything that
 * the model points to. The caller owns *ret_session and frees it with skv_close(). A layer with a sliding window
 * attends to its window under any policy, and retains all of its K and V; policies apply to the other layers. Tokens of
 * layers that share K and V can neither be evicted nor compressed: a policy that would do so is refused.
 * Error: -EINVAL bad model or spec (the text names the field or key and what was expected); -ENODEV no such device, no
 * driver for it or no CUDA in this library (the text says which); -ENOENT the daemon has loaded no such policy;
 * -EBADMSG the plugin was refused; -ENOTSUP the policy cannot run on these ranks, or cannot compress this model;
 * -EDQUOT a quota of sessions or page sizes; -ENOMEM; -ETIMEDOUT; -ECONNRESET.
 */
SKV_API int skv_open(struct skv_client *client, const struct skv_model *model, const char *policy_spec,
                     struct skv_session **ret_session);

/*
 * Close a session: an open step is aborted, and sequences are treated as in skv_disconnect(). The call waits for the
 * device, and for the daemon at most as long as skv_set_timeout() says. NULL is ignored.
 */
SKV_API void skv_close(struct skv_session *session);

/*
 * RoPE as struct skv_rope defines it. skv_rope_frequency() returns the angle, in radians per position, of pair i of a
 * head (i is less than half of the number of rotated elements); skv_rope_scale() returns the factor of cos and sin. For
 * SKV_ROPE_NONE and SKV_ROPE_UNKNOWN the results are 0 and 1.
 */
SKV_API double skv_rope_frequency(const struct skv_rope *rope, uint32_t head_dim, uint32_t i);
SKV_API double skv_rope_scale(const struct skv_rope *rope);

/* ---- sequences ------------------------------------------------------------------------------- */

/*
 * Create an empty sequence of at most `max_tokens` tokens (0: the model's maximum). A sequence with a `name` (1 …
 * SKV_NAME_MAX-1 bytes of printable ASCII without space and '/', unique for the user and model) outlives this process;
 * NULL makes it anonymous. The caller owns *ret_seq and frees it with skv_seq_detach() or skv_seq_drop().
 * Error: -EEXIST, -EINVAL, -EDQUOT (the account's quota of sequences), -ENOMEM, -ETIMEDOUT, -ECONNRESET.
 */
SKV_API int skv_seq_new(struct skv_session *session, const char *name, uint32_t max_tokens,
                        struct skv_seq **ret_seq);

/*
 * Attach a named sequence that no client holds, at its last committed step. A parked one (sparsekvd(8)) is read first.
 * Error: -ENOENT; -EBUSY another client holds the sequence; -EINVAL the sequence belongs to a model of another shape;
 * -EBADMSG the memory or file of the sequence is damaged (the file stays until the sequence is dropped); -EIO the disk
 * failed; -ENOTSUP the session's policy cannot adopt what the previous policy left; -ENOMEM; -ETIMEDOUT; -ECONNRESET.
 */
SKV_API int skv_seq_attach(struct skv_session *session, const char *name, struct skv_seq **ret_seq);

/*
 * Sealed prefixes. skv_seq_seal() makes the first tokens of a sequence available to later sequences: as many whole
 * blocks of SKV_BLOCK_TOKENS as fit in the first `n_tokens` (SKV_ALL: all tokens). skv_seq_new_from() creates a
 * sequence that begins with the longest sealed prefix of the prompt `tokens` [n_tokens]. The tokens of the prefix need
 * not be computed: skv_seq_len() returns their number, and the next step continues with the rest of the prompt, at
 * least one token. Prefixes are shared by sequences of the same user, the same model (name, shape, dtype of pages) and
 * the same policy with the same parameters; a prefix store (sparsekvd.conf(5)) also shares prefixes between machines.
 *
 * Sealing shares pages as a fork does. A sealed prefix stays while there is memory for it; the prefix belongs to the
 * sequence's user and counts towards the user's quotas. Seal a prompt once all its rows are computed, and a dialogue
 * after each turn. Sealing tokens that are sealed already is no error.
 *
 * Under a policy that compresses, sealing also compresses the sealed tokens of the sequence itself, except its first
 * tokens, on the stream of the last step: prefixes are then small, and the residual window begins after the sealed
 * tokens. To get the same results whether a prompt's prefix is computed or found sealed, compute the prompt's whole
 * blocks, seal, then compute the rest. A sequence that was so compressed cannot be truncated below its sealed tokens.
 *
 * *ret_sealed (may be NULL): the number of tokens sealed, 0 after an error. Errors of skv_seq_seal(): -ESTALE tokens
 * were evicted or moved, or were not all computed under the session's present policy; -EBUSY the sequence is in an open
 * step, or a step is open and the policy compresses; else as skv_seq_fork(), and as skv_step_begin() if tokens are
 * compressed. If the policy compresses to latents, all ranks must call skv_seq_seal(), in the same order.
 *
 * skv_seq_new_from() waits for a prefix store at most as long as the daemon's prefix-store-wait. The sequence begins
 * empty, which is no error, if the policy cannot continue from tokens that it has not seen itself, if no prefix is
 * found, or if a store failed. Tensor-parallel ranks all call skv_seq_new_from(), in the same order, and their
 * sequences begin with the same tokens: those that all ranks have found. Errors of skv_seq_new_from(): -ENOTSUP a rank
 * without all_reduce_max; -ECANCELED another rank failed; else as skv_seq_new().
 */
SKV_API int skv_seq_new_from(struct skv_session *session, const char *name, uint32_t max_tokens, const int32_t *tokens, uint32_t n_tokens,
                             struct skv_seq **ret_seq);
SKV_API int skv_seq_seal(struct skv_seq *seq, uint32_t n_tokens, uint32_t *ret_sealed);

/*
 * Fork: create a sequence with the first `n_tokens` of `seq` (SKV_ALL: all) as of the last commit of `seq`. Both
 * sequences share their pages read-only (copy-on-write): a partly filled last page is copied when one of the two first
 * appends to it. If the fork has all tokens of `seq`, it also inherits the next token id of `seq`; else its next id is
 * -1. `name` and *ret_seq are as in skv_seq_new(). The call waits for the device.
 * Error: -EBUSY `seq` is in an open step; -EINVAL `seq` has fewer tokens; -ESTALE the state of `seq` at that length
 * cannot be restored, see skv_seq_truncate(); else as skv_seq_new(). After -ETIMEDOUT, steps with `seq` are possible
 * again once the daemon has answered; the fork is then dropped.
 */
SKV_API int skv_seq_fork(struct skv_seq *seq, const char *name, uint32_t n_tokens, struct skv_seq **ret_seq);

/*
 * Truncate the sequence to its first `n` tokens: the later tokens are removed, with their pages, in a commit of its
 * own. `next`: the token id to continue from, or -1; if n is the sequence's length, only this id changes, under every
 * policy. Later steps do what they would do if the sequence had never been longer. The call waits for the device.
 *
 * Every sequence can be truncated to 0 tokens. To truncate to n tokens, the policy must have left the first n tokens as
 * they were when the sequence had n tokens (sparsekv-policy(7) says so for each policy): no token that the next decode
 * step attends to was evicted, no token was compressed that would not be at that length, no scores were accumulated.
 * Error, with nothing changed: -ESTALE the policy has changed these tokens (the text says why); -EINVAL the sequence
 * has fewer tokens; -EBUSY the sequence is in an open step; -ENOTSUP the policy's own state cannot be made anew;
 * -ENOMEM; -ECONNRESET; -EIO the device failed.
 */
SKV_API int skv_seq_truncate(struct skv_seq *seq, uint32_t n, int32_t next);

/*
 * Detach the sequence, and free the handle. A named sequence stays in the daemon, where any client of this user may
 * attach it; an anonymous sequence is dropped. NULL is ignored. The call waits for the sequence's steps on the device.
 * Error, with nothing changed: -EBUSY the sequence is in an open step, -ENOMEM. After any other error (-ETIMEDOUT,
 * -ECONNRESET: the daemon has not confirmed) the handle is freed all the same.
 */
SKV_API int skv_seq_detach(struct skv_seq *seq);

/* Drop the sequence and its pages, and free the handle. NULL is ignored. Errors are those of skv_seq_detach(). */
SKV_API int skv_seq_drop(struct skv_seq *seq);

/* Committed length of the sequence in tokens; on a device, the length once all queued steps have run. */
SKV_API uint32_t skv_seq_len(const struct skv_seq *seq);

/*
 * The committed token ids as given to skv_step_begin, [0, len), and at [len] the `next` id that the last skv_step_end
 * published, or -1. With these ids a new process can continue a sequence whose process died. The library owns the
 * array, which is read-only and valid until the sequence's next skv_step_end. `ret_len` may be NULL. Waits for the device.
 */
SKV_API const int32_t *skv_seq_tokens(const struct skv_seq *seq, uint32_t *ret_len);

/*
 * Count pages over all layers. *ret_resident: pages in memory that hold the sequence's tokens, as rows or compressed.
 * *ret_total: pages that a sequence of this length takes without eviction or compression. Pages of policy state do not
 * count. Waits for the device.
 */
SKV_API void skv_seq_pages(const struct skv_seq *seq, uint64_t *ret_resident, uint64_t *ret_total);

/*
 * Give the sequence a policy of its own from its next step on; swaps of the session's policy then do not affect the
 * sequence. Sequences of one batch may run different policies, or one policy with different parameters; each sequence
 * gets the same results as alone. The daemon must have loaded the policy; the sequence keeps that plugin when another
 * plugin is loaded under the same name. `policy_spec` NULL: the sequence runs the session's policy again. A fork
 * inherits its parent's policy. An attached one runs the session's until it is given another. Waits for daemon and device.
 * Error, with nothing changed: -EINVAL bad spec, -ENOENT no such policy loaded, -EBADMSG the plugin was refused,
 * -ENOTSUP the policy cannot adopt what the previous one left, -EBUSY the sequence is in an open step, -ENOMEM,
 * -ETIMEDOUT, -ECONNRESET.
 */
SKV_API int skv_seq_policy(struct skv_seq *seq, const char *policy_spec);

/*
 * The spec of the policy that the sequence runs, with every parameter's value. The library owns the string, which is
 * valid until the session's next skv_step_begin. The function takes no lock: meanwhile no other thread may begin a step
 * of the session or change the sequence's policy.
 */
SKV_API const char *skv_seq_policy_spec(const struct skv_seq *seq);

/*
 * Does the policy that the sequence runs leave the K and V of all tokens as a dense prefill makes them? A policy does
 * so if by its taxonomy and plans it neither evicts nor compresses, and does not prefill sparsely. If all tokens of
 * this sequence were computed under such policies, a sequence that begins with the same tokens may begin as a fork of
 * this one. Returns 1 or 0. Thread safety is as for skv_seq_policy_spec().
 */
SKV_API int skv_seq_keeps_all(const struct skv_seq *seq);

/* ---- a step ---------------------------------------------------------------------------------- */

enum skv_step_flags {
	/*
	 * prefill: rows attend as the policy's plan.prefill says; the policy's hooks run only when the sequence decodes
	 */
	SKV_STEP_PROMPT = 1u << 0,
};

/*
 * Maximum number of decode rows of a sequence in one step: candidates that a speculative decoder verifies together,
 * with causal attention among them. Each row scores, selects and attends as in a step of its own, with bit-identical
 * results on one backend, except in two cases. First, tokens that single-row steps would compress between two of the
 * rows are compressed after all rows. Second, if pages are selected by their bounds, and the page that the rows are
 * appended to is one of the candidates, that page's bounds include the keys of all rows. skv_step_end() is told how
 * many rows to keep. Policies that evict by accumulated scores, or keep their own state, decode one row a step.
 */
#define SKV_STEP_ROWS 16u

/* What a step does with one sequence. Initialise the struct with SKV_STEP_ITEM(.seq = …) or skv_step_item_init(). */
struct skv_step_item {
	/*
	 * sizeof(struct skv_step_item) as the caller compiled it: the distance in bytes between two items of an array
	 */
	uint32_t size;
	/* number of query rows: >= 1 with SKV_STEP_PROMPT (chunked prefill), else 1 … SKV_STEP_ROWS */
	uint32_t n_tokens;
	struct skv_seq *seq;   /* a sequence may be in at most one item of a step */
	uint32_t flags;        /* bits of enum skv_step_flags */
	/*
	 * Number of tokens of the same prompt that later steps will append; 0: the prompt ends in this step. Prefill
	 * methods whose last rows of a prompt are dense, and the admission of whole prompts, need to know where the
	 * prompt ends. If this number is right, splitting a prompt into chunks changes no result.
	 */
	uint32_t n_prompt_remaining;
	/*
	 * [n_tokens] token ids in host memory, recorded with the commit. NULL: the first id is the `next` id of the
	 * sequence's last commit, whatever its value; the other ids are -1.
	 */
	const int32_t *tokens;
};
#define SKV_STEP_ITEM(...) ((struct skv_step_item){.size = sizeof(struct skv_step_item), __VA_ARGS__})

/*
 * Begin a step over `n` sequences. The call reserves every page that the step can need, and switches to a new policy if
 * the operator swapped it (skv_policy_error() reports a swap that failed). `items` and their token ids are read before
 * the call returns. `stream` is a stream of the device (cudaStream_t; NULL: the default stream) and must not be
 * capturing; NULL on the host. The call waits for the device only if the host is more than three steps ahead, if pages
 * are short, or if a shared page is copied; it waits for the daemon only if the pages on lease do not suffice.
 * Error, with nothing changed: -ENOSPC the pool or the account's quota cannot hold the step, or the rest of a prompt;
 * -ETIMEDOUT the daemon leased no pages in time; -ECONNRESET the daemon is gone and no other has taken its place, or
 * the connection ended; -ECONNABORTED ranks run different policies, or did not confirm a commit; -EBUSY a step is open
 * or the stream is capturing; -EINVAL a bad item (the text says which); -ENOTSUP several decode rows under a policy
 * that decodes one row a step; -E2BIG a sequence would exceed max_tokens; -ENOMEM; -EIO the device failed.
 */
SKV_API int skv_step_begin(struct skv_session *session, const struct skv_step_item *items, uint32_t n,
                           void *stream);

/*
 * Arguments of skv_attend(): one layer's q, k and v rows are the input, the attention output is `out`. There is one row
 * for each token of the step's items, in the items' order. Rows are of the model's io_dtype, in the model's memory; on
 * a device the addresses q, k, v, out and the strides in bytes are multiples of 16 bytes.
 *   q, out  [rows][n_heads][head_dim]        k, v  [rows][n_kv_heads][head_dim]
 * Each row is contiguous. Consecutive rows are `stride` elements apart, so that q, k and v may be parts of one fused
 * projection. K is given after RoPE. `out` may be the same buffer as q, with the same stride. The library keeps none of
 * the pointers. For a layer that shares another layer's K and V (skv_model_layer.shares_kv), k and v are NULL.
 *
 * In a step whose items are all prompts, q and out may both be NULL: K and V are then appended without attention, which
 * imports a KV cache that was computed elsewhere.
 */
struct skv_attn {
	/* sizeof(struct skv_attn) as the caller compiled it; set by SKV_ATTN(.q = …) or skv_attn_init() */
	uint32_t size;
	const void *q;
	const void *k;
	const void *v;
	void *out;
	/* q_stride and the other strides: elements from one row to the next; 0: rows are contiguous */
	uint32_t q_stride;
	uint32_t k_stride;
	uint32_t v_stride;
	uint32_t out_stride;
	/*
	 * [rows][n_heads] fp32 in the model's memory, or NULL. For each row and head the library writes the natural
	 * logarithm of the sum of exp(score) over the tokens that the row attends to, without the sink's term;
	 * -infinity if the row attends to no token.
	 */
	float *lse;
};
#define SKV_ATTN(...) ((struct skv_attn){.size = sizeof(struct skv_attn), __VA_ARGS__})

/*
 * Append layer `layer`'s K and V rows, then attend as the policy plans. A step's layers must come in order, each once.
 * Error: -EINVAL no open step, a layer out of order, bad rows, or no q although a sequence decodes or a policy
 * accumulates the attention scores of prompts; -EDOM kv_dtype is SKV_FP8, and in the first rows of one of the session's
 * first prompts fp8 moves more than a quarter of some head's attention to other tokens: use SKV_BF16; -ENOMEM; -EIO the
 * device failed; or the error of all_reduce_max().
 */
SKV_API int skv_attend(struct skv_session *session, uint32_t layer, const struct skv_attn *attn);

/*
 * CUDA graphs. The layers of a step may be captured into a CUDA graph instead of run: begin the capture after
 * skv_step_begin, end the capture and launch the graph before skv_step_end. A later step with the same key may launch
 * the graph in place of its skv_attend calls, with the same values of struct skv_attn. The key stands for the number of
 * sequences, the rows of each, their capacity (more than their lengths, so that it changes rarely), and roughly how many
 * run each policy. Returns 0 if no step is open, or if a replay is impossible: prompts, measured recall, host memory.
 */
SKV_API uint64_t skv_step_key(struct skv_session *session);

/*
 * Pad the session's decode steps, until the next call. If up to n_seqs sequences decode one row each, the step is laid
 * out for n_seqs sequences of max_tokens tokens (0: the model's). Until the policy is swapped, the step's key depends
 * neither on the number of sequences nor on their lengths. An engine can capture one graph for each n_seqs when it
 * starts, the largest first: it begins a step of one sequence of its own, captures, and aborts the step. Rows beyond
 * the step's own are neither read nor written; skv_selection() has no lists to read (-ENOTSUP). Not padded are steps
 * with prompts, several rows of a sequence, more or longer sequences, several policies, or a policy that evicts or
 * compresses. n_seqs 0: no padding. Error: -EINVAL max_tokens; -EBUSY a step is open.
 */
SKV_API int skv_pad_steps(struct skv_session *session, uint32_t n_seqs, uint32_t max_tokens);

/*
 * Tell the library that a graph captured in a step with this key was launched for the open step, whose layers all count
 * as attended. Error: -ESTALE the step has another key; -EINVAL no step is open, skv_attend() was called in it, or the
 * pages are in host memory.
 */
SKV_API int skv_step_replayed(struct skv_session *session, uint64_t key);

/*
 * Replace the ids of an item's tokens in the open step, except the first: an engine whose drafts are made on a device
 * learns their ids later. `tokens`: [n_tokens]. Error: -EINVAL no step is open, or it has no such item.
 */
SKV_API int skv_step_tokens(struct skv_session *session, uint32_t item, const int32_t *tokens);

/*
 * Commit the step: evictions, lengths and token ids become durable together, or not at all. `next`: for each item the
 * token id that the engine sampled, which skv_seq_tokens() then returns; NULL: -1 for all items. On a device `next`
 * must be readable by the device, which reads it after all other work of the step; the stream must not be capturing
 * (-EBUSY). `n_accepted`, in host memory: for each item the number of its first rows that are kept; NULL: all rows. If
 * an item's number is 0, its sequence stays as if it had not been in the step; a prompt's rows can only be kept all or
 * not at all. On a device, if not all rows are kept, the call waits until the step's rows have run.
 * Error, and the step stays open: -EINVAL not every layer was attended, or a bad n_accepted; -EBUSY. Error, and the
 * step is aborted: -ENOTRECOVERABLE the policy misused a primitive; -EIO the device failed; -ECONNRESET the connection
 * ended. -ECONNABORTED: other ranks did not confirm the commit; close the session on all ranks, reopen it, reattach the
 * sequences.
 */
SKV_API int skv_step_end(struct skv_session *session, const int32_t *next, const uint32_t *n_accepted);

/* Abort the open step, if any: every sequence is as it was after its last commit. Waits for the device. */
SKV_API void skv_step_abort(struct skv_session *session);

/* ---- admission --------------------------------------------------------------------------------- */

struct skv_room {
	uint32_t size;        /* sizeof(struct skv_room), set by the caller */
	uint32_t reserved;
	uint64_t pages;       /* number of pages that successive steps of the session can take now */
	uint64_t stock_pages; /* number of free pages on lease to the session */
	uint64_t page_bytes;
};

/*
 * Get the number of pages that steps of the session can take now: the pages in stock, except those set aside for
 * prompts of which only a part is computed, and the pages that the daemon could lease within the user's quota and from
 * free memory. Other sessions of the user reduce this number. The daemon may lease more pages, if it parks or drops
 * sequences that no client holds. The call sends a request to the daemon.
 * Error: -EINVAL ret->size is 0 or larger than known; -ETIMEDOUT, -ECONNRESET.
 */
SKV_API int skv_session_room(struct skv_session *session, struct skv_room *ret);

/*
 * Get the number of pages that a new sequence under the session's policy takes for a prompt of n_tokens, for K and V
 * and for the policy's state. `chunk`: number of tokens of each step, if several steps compute the prompt; 0: one step
 * computes it. If skv_session_room() returns at least this number, the whole prompt can be computed; if it returns
 * less, skv_step_begin() returns -ENOSPC. A policy that evicts or compresses frees pages when the sequence decodes, but
 * a policy that compresses takes pages for codes before it frees the pages of the compressed rows. A sequence that will
 * grow by m tokens takes at most as many pages as a prompt of n_tokens + m, unless its policy compresses.
 * Error: -EINVAL n_tokens is 0 or more than the model's max_tokens.
 */
SKV_API int skv_seq_need(struct skv_session *session, uint32_t n_tokens, uint32_t chunk, uint64_t *ret_pages);

/* ---- what happened --------------------------------------------------------------------------- */

struct skv_stats {
	uint32_t size;            /* sizeof(struct skv_stats), set by the caller */
	uint32_t n_seqs;          /* number of sequences attached now */
	uint64_t steps;           /* number of committed steps */
	uint64_t prompt_tokens;   /* number of accepted rows of prompts (SKV_STEP_PROMPT) */
	uint64_t decode_tokens;   /* number of accepted decode rows */
	/* number of tokens that decode rows, also rejected ones, attended to, summed over layers */
	uint64_t attended_tokens;
	uint64_t causal_tokens;   /* the same sum if there were no policy: all tokens, or a layer's sliding window */
	uint64_t evicted_pages;
	uint64_t stock_pages;     /* number of free pages on lease now */
	uint64_t policy_swaps;    /* number of policy swaps since skv_open */
	uint64_t recall_layers;   /* number of recall measurements, each of one layer of one sequence */
	double recall_sum;        /* sum of the measured recalls, each 0 to 1: see skv_set_recall */
};

/*
 * Get the counters since skv_open; what a device has not run yet counts later. Error: -EINVAL ret->size is 0 or unknown.
 */
SKV_API int skv_session_stats(struct skv_session *session, struct skv_stats *ret);

/*
 * Measure attention recall in one of every `every` decode steps (0: never; -1, the default: as the daemon's
 * recall-every says), for the first 8 sequences that decode in the measured step. Recall is the share of dense
 * attention's weight that falls on the tokens that a layer attends to, measured for each layer that is not dense
 * (DELTA, Eq. 9). Dense attention here is over resident tokens: evicted tokens have no weight. Learned sinks keep their
 * weight, so even all tokens together have a recall below 1. Layers with a sliding window are not measured. A measured
 * step takes as long as a dense step, and on a device a measured step is not replayed. `sparsekvctl top` and metrics
 * show recall.
 */
SKV_API void skv_set_recall(struct skv_session *session, int64_t every);

/*
 * Get attended_tokens and causal_tokens (struct skv_stats) of one sequence since it was attached. Waits for the device.
 */
SKV_API void skv_seq_attended(const struct skv_seq *seq, uint64_t *ret_attended, uint64_t *ret_causal);

/* Get recall_layers and recall_sum (struct skv_stats) of one sequence since it was attached. Waits for the device. */
SKV_API void skv_seq_recall(const struct skv_seq *seq, uint64_t *ret_layers, double *ret_sum);

struct skv_selection_info {
	uint32_t size;   /* sizeof(struct skv_selection_info), set by the caller */
	/* enum skv_attend_mode. ids are page numbers with DENSE (all resident pages) and PAGES, else token positions */
	uint32_t attend;
	uint32_t rows;   /* number of lists of the sequence: 1, one for each kv head, or one for each q head */
	uint32_t len;    /* number of tokens of the sequence, including those of the open step */
	/* number of tokens or pages attended to; in a page, tokens at position `len` and after do not count */
	uint32_t n;
	uint32_t value_bits; /* not 0: the layer attended to all other tokens, too, by values of so many bits an element */
};

/*
 * Get the tokens or pages that layer `layer` attended to in the open step, for the sequence of item `item`, in list
 * number `row` of the sequence's lists. The ids are written in ascending order to ids[room], as many as fit; ret->n is
 * the number of all. For an item with several tokens the list is that of its last token. Layers that evict tokens, or
 * pages of single heads, have one list for each kv head. If one of these layers has evicted and now attends under
 * another policy, ids are slots, not positions. For tests and displays: the function allocates, and waits for the
 * device.
 * Error: -EINVAL no open step, no such item or row, a layer that has not attended, or a bad ret->size; -EBUSY the
 * stream is capturing; -ENOTRECOVERABLE the policy misused a primitive; -EIO the device failed; -ENOMEM.
 */
SKV_API int skv_selection(struct skv_session *session, uint32_t layer, uint32_t item, uint32_t row,
                          struct skv_selection_info *ret, uint32_t *ids, uint32_t room);

/*
 * The spec of the session's policy, with every parameter's value; sequences with a policy of their own (skv_seq_policy)
 * run another policy. The session owns the string, which is valid until the session's next skv_step_begin. No other
 * thread may call skv_step_begin while the string is read.
 */
SKV_API const char *skv_policy_spec(struct skv_session *session);

/*
 * Do the results of the session's policy depend on how the prompt was prefilled, because the policy evicts by the
 * scores of the prompt's queries, or prefills sparsely? Then prompts must be prefilled under this policy: a sequence or
 * fork that was prefilled under another policy lacks them. Returns 1 or 0. Thread safety is as for skv_policy_spec().
 */
SKV_API int skv_policy_depends_on_prefill(struct skv_session *session);

/*
 * The reason why the last swap was refused and the old policy stayed; "": none. Lifetime, threads: as skv_policy_spec().
 */
SKV_API const char *skv_policy_error(struct skv_session *session);

/* Name of the kernels in use: "cuda", or on the host "avx512", "avx2" or "generic" ($SPARSEKV_ISA overrides it). */
SKV_API const char *skv_backend(const struct skv_session *session);

#ifdef __cplusplus
}
#endif
#endif
