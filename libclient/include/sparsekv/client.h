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
 * Errors. Functions return 0 (or a count) or a negative errno; skv_last_error() then holds one line that says what was
 * wrong and what was expected. The library never logs, never exits, and never installs signal handlers. Outputs
 * (`ret_…`) are written on success only, unless the function says otherwise.
 *
 * Threads. A client and everything opened on it may be used from several threads: calls on one session exclude each
 * other, calls on different sessions run side by side. The calls of one step (begin … end) must come from one thread at
 * a time. skv_last_error() is per thread.
 *
 * Devices. A model may be opened on a CUDA device. Then q, k, v and out are in its memory, and a step is queued on the
 * caller's stream: calls return at once, work that the caller queues afterwards may read `out`, and the step commits
 * when the device reaches its end. The host may run a few steps ahead of the device; skv_seq_len() counts queued steps.
 * All steps of a session go to one stream, or to streams that the caller orders. A step's attention can be captured
 * into a CUDA graph and replayed in later steps (skv_step_key). Functions that wait for the device say so. A process
 * that uses a device cannot use it in a child that it forks.
 *
 * fork(2). A child process has none of the pages. Calls with what its parent opened fail with -EPERM, and functions
 * that return no error do nothing and give 0 or NULL; texts such as skv_policy_spec() stay readable. Handles stay as
 * they are, and nothing reaches the parent, even if one of its threads was in the middle of a call. skv_disconnect()
 * closes the child's copy of the socket. The child connects anew.
 *
 * Structs. Structs that callers fill begin with `size`, so that an engine built with an older header works with a newer
 * library. Macros set it: SKV_MODEL_INIT, SKV_MODEL_LAYER(…), SKV_STEP_ITEM(…), SKV_ATTN(…). Callers without macros
 * (bindings of other languages) call skv_…_init(&x, sizeof x), which zeroes x and sets size and defaults.
 *
 * The daemon's death. If a service manager keeps the daemon's memory (sparsekvd(8)), the next daemon goes on with all
 * clients, and no call fails: steps go on with the pages on lease, and calls that need the daemon wait for the next
 * one, at most as long as skv_set_timeout() says. If no daemon has served at the socket for a second, such calls fail
 * with -ECONNRESET until one does. If the next daemon does not know this client, or a daemon ended the connection, all
 * calls fail with -ECONNRESET from then on: disconnect, and connect anew.
 *
 * Cost. Between skv_step_begin and skv_step_end there is no system call (except those that block and wake the kernels'
 * threads), no allocation and no round trip. Only skv_step_begin asks the daemon for pages, ahead of need; while the
 * daemon does not answer, the engine goes on with the pages on lease.
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

/* The library's version, "major.minor.patch". Never NULL, owned by the library. */
SKV_API const char *skv_version(void);

/* One line about this thread's last failed call, "" when none failed. Valid until its next failing call. */
SKV_API const char *skv_last_error(void);

/*
 * Connect to a daemon. `path`: its socket; NULL: $SPARSEKV_SOCKET, else /run/sparsekv/sparsekvd.sock. The caller owns
 * *ret_client, and ends it with skv_disconnect().
 * Error: -ENOENT, -ECONNREFUSED, -EACCES as connect(2); -EPERM the daemon's user is not trusted ($SPARSEKV_DAEMON_UID);
 * -EPROTO no common protocol version; -ETIMEDOUT no answer in 5 s; -EDQUOT the account's quota of clients; -ENOMEM.
 */
SKV_API int skv_connect(struct skv_client **ret_client, const char *path);

/*
 * Close everything that was opened on the connection, then the connection. Named sequences stay in the daemon,
 * detached, at their last committed step; anonymous ones are freed. Waits until the device has finished its queue, and
 * then for the daemon's confirmation, at most as long as skv_set_timeout() says. No other thread may use the client.
 * NULL is ignored.
 */
SKV_API void skv_disconnect(struct skv_client *client);

/*
 * Set how long a call may wait for the daemon, in milliseconds (default 5000; 0: it does not wait). A daemon that works
 * on a long request says so once a second, and the time then begins anew.
 */
SKV_API void skv_set_timeout(struct skv_client *client, uint32_t ms);

/*
 * Set how many threads the library's kernels run on in host memory, the calling one included, from the connection's
 * next steps on: 1 to 1024. 0, the default: $OMP_NUM_THREADS as it was at the call or at skv_connect, else as many as
 * there are processors for the calling thread. Results do not depend on the number. The threads are one pool of the
 * process, apart from OpenMP's: skv_step_begin starts missing ones; they block while there is nothing to do, mask all
 * signals, and stay until the process ends. Error: -EINVAL.
 */
SKV_API int skv_set_threads(struct skv_client *client, uint32_t n);

/* ---- the identity of a model ----------------------------------------------------------------- */

/*
 * What K and V are computed from, as 128 bits: the sum of items, in any order. An engine adds the architecture and the
 * numbers of its configuration that the forward pass uses, the model's shape, all weights, and the adapter if there is
 * one; skv_identity_name() makes the name of the model (struct skv_model) from it. Then sequences and prefixes of a
 * model serve the same model under another path, in another engine or on another machine, and never a model that
 * computes other K and V. No two items may have the same key.
 *
 * The functions keep no pointers. One thread at a time may use an identity. The sum of two has the items of both.
 */
struct skv_identity {
	uint64_t low, high;
};
#define SKV_IDENTITY_INIT {0, 0}

/* Adds an item under its key: n bytes; a NUL-terminated text; a number, where -0 counts as 0. */
SKV_API void skv_identity_add(struct skv_identity *to, const char *key, const void *bytes, size_t n);
SKV_API void skv_identity_add_text(struct skv_identity *to, const char *key, const char *text);
SKV_API void skv_identity_add_number(struct skv_identity *to, const char *key, double number);

/*
 * Adds layers, heads of all ranks, head_dim, scale and RoPE, and each layer's window, shares_kv, scale and softcap. Not
 * added are name, device, dtypes, max_tokens and ranks, and sinks, which count as weights.
 */
SKV_API void skv_identity_add_shape(struct skv_identity *to, const struct skv_model *model);

/*
 * Adds a tensor of n elements in host memory, under its name in the checkpoint. dtype: SKV_F32, SKV_F16 or SKV_BF16;
 * equal numbers give the same item in each. For any other dtype it returns -EINVAL; skv_identity_add() then takes the
 * bytes. lm_head.weight is skipped because K and V do not depend on it, and NAME.inv_freq because it follows from RoPE.
 */
SKV_API int skv_identity_add_tensor(struct skv_identity *to, const char *name, uint32_t dtype, uint64_t n, const void *data);

/*
 * Adds the tensors of a checkpoint's folder: model.safetensors, or the files of its index. They are read once, at 2
 * GB/s or so. The sum over a file is cached in $XDG_CACHE_HOME/sparsekv/weights (~/.cache), for as long as the file's
 * inode, size and times are the same. Error: -EBADMSG malformed files, or the errno of open(2) or mmap(2).
 */
SKV_API int skv_identity_add_files(struct skv_identity *to, const char *folder);

/* Writes "FAMILY-" and 32 hexadecimal digits. family: printable ASCII without space; 30 bytes of it count. */
SKV_API void skv_identity_name(const struct skv_identity *id, const char *family, char ret_name[SKV_NAME_MAX]);

/* ---- models, structs ------------------------------------------------------------------------- */

/*
 * Zero a struct that callers fill, and set its size and defaults. `size`: of the struct as the caller declares it;
 * never more is written.
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
 * Open a model with a policy, `name` or `name?key=value&…`. The model and what it points to are copied. The caller owns
 * *ret_session, and ends it with skv_close(). A layer with a sliding window attends to its window whatever the policy
 * is, and retains all of its K and V; a policy chooses among the other layers. Layers that share K and V can neither be
 * evicted from nor compressed: a policy that would do so is refused.
 * Error: -EINVAL bad model or spec (the text names the field or key and what was expected); -ENODEV no such device, no
 * driver for it or no CUDA in this library (the text says which); -ENOENT the daemon has loaded no such policy;
 * -EBADMSG the plugin was refused; -ENOTSUP the policy cannot run on these ranks, or cannot compress this model;
 * -EDQUOT a quota of sessions or page sizes; -ENOMEM; -ETIMEDOUT; -ECONNRESET.
 */
SKV_API int skv_open(struct skv_client *client, const struct skv_model *model, const char *policy_spec,
                     struct skv_session **ret_session);

/*
 * Close a session: an open step is aborted, sequences are treated as in skv_disconnect. Waits for the device, and for
 * the daemon at most as long as skv_set_timeout() says. NULL is ignored.
 */
SKV_API void skv_close(struct skv_session *session);

/*
 * RoPE as struct skv_rope defines it: the angle, in radians per position, of pair i of a head (i below half of the
 * number of rotated elements); and the factor of cos and sin. 0 and 1 for SKV_ROPE_NONE and SKV_ROPE_UNKNOWN.
 */
SKV_API double skv_rope_frequency(const struct skv_rope *rope, uint32_t head_dim, uint32_t i);
SKV_API double skv_rope_scale(const struct skv_rope *rope);

/* ---- sequences ------------------------------------------------------------------------------- */

/*
 * Create an empty sequence of at most `max_tokens` tokens (0: the model's). With a `name` (1 … SKV_NAME_MAX-1 bytes of
 * printable ASCII without space and '/', unique for the user and model) it outlives this process; NULL: it is
 * anonymous. The caller owns *ret_seq, and ends it with skv_seq_detach() or skv_seq_drop().
 * Error: -EEXIST, -EINVAL, -EDQUOT (the account's quota of sequences), -ENOMEM, -ETIMEDOUT, -ECONNRESET.
 */
SKV_API int skv_seq_new(struct skv_session *session, const char *name, uint32_t max_tokens,
                        struct skv_seq **ret_seq);

/*
 * Attach a named sequence that no client holds, at its last committed step. If it is parked (sparsekvd(8)), it is read
 * from its file first.
 * Error: -ENOENT, -EBUSY another client holds it, -EINVAL it belongs to a model of another shape, -EBADMSG its memory
 * is damaged, or its file, which stays until the sequence is dropped, -EIO the disk with its file failed, -ENOTSUP the
 * session's policy cannot adopt what the previous policy left, -ENOMEM, -ETIMEDOUT, -ECONNRESET.
 */
SKV_API int skv_seq_attach(struct skv_session *session, const char *name, struct skv_seq **ret_seq);

/*
 * Sealed prefixes. skv_seq_seal() makes the first tokens of a sequence available to later sequences: as many whole
 * blocks of SKV_BLOCK_TOKENS as the first `n_tokens` have (SKV_ALL: all tokens). skv_seq_new_from() creates a sequence
 * that begins with the longest sealed prefix of the prompt `tokens` [n_tokens]. The tokens of the prefix need not be
 * computed: skv_seq_len() says how many they are, and the next step goes on with the rest of the prompt, at least one
 * token. Sequences of the same user, model (name, shape, dtype of pages) and policy with its parameters share prefixes;
 * a prefix store (sparsekvd.conf(5)) shares them between machines.
 *
 * Sealing shares pages as a fork does. A prefix stays while there is memory for it; it belongs to the sequence's user,
 * and counts towards the user's quotas. Seal a prompt when it has been read, and a dialogue after each turn. To seal
 * tokens that are sealed already is no error.
 *
 * Under a policy that compresses, sealing compresses those tokens, except the first ones, in the sequence as well, on
 * the stream of the last step: prefixes are small, and the residual window begins behind them. To get the same results
 * whether a prompt is sealed or found sealed, read its whole blocks, seal, then read the rest. Such a sequence cannot
 * be truncated to fewer tokens than were sealed.
 *
 * *ret_sealed (may be NULL): the number of tokens sealed, 0 after an error. Error: -ESTALE tokens were evicted or
 * moved, or were not all computed under the session's present policy; -EBUSY the sequence is in an open step, or a step
 * is open and the policy compresses; else as skv_seq_fork, and as skv_step_begin where tokens are compressed. Ranks
 * whose policy compresses to latents all call it, in the same order.
 *
 * skv_seq_new_from() waits for a prefix store at most as long as the daemon's prefix-store-wait. If the policy cannot
 * go on from tokens that it has not seen itself, nothing is found, or a store failed, the sequence begins empty, which
 * is no error. Tensor-parallel ranks all call it, in the same order, and begin with the same tokens: those that all
 * have found. Error: -ENOTSUP a rank without all_reduce_max; -ECANCELED another rank failed; else as skv_seq_new.
 */
SKV_API int skv_seq_new_from(struct skv_session *session, const char *name, uint32_t max_tokens, const int32_t *tokens, uint32_t n_tokens,
                             struct skv_seq **ret_seq);
SKV_API int skv_seq_seal(struct skv_seq *seq, uint32_t n_tokens, uint32_t *ret_sealed);

/*
 * Fork: create a sequence with the first `n_tokens` of `seq` (SKV_ALL: all) as of its last commit. Both share their
 * pages read-only (copy-on-write): the last, partly filled page is copied when one of the two first appends to it. The
 * id to go on from is the parent's if the fork has all of its tokens, else -1. `name` and *ret_seq are as of
 * skv_seq_new. Waits for the device.
 * Error: -EBUSY `seq` is in an open step; -EINVAL it has fewer tokens; -ESTALE it is no longer what it was at that
 * length, see skv_seq_truncate; else as skv_seq_new. After -ETIMEDOUT `seq` can step again when the daemon has
 * answered; the fork is then dropped.
 */
SKV_API int skv_seq_fork(struct skv_seq *seq, const char *name, uint32_t n_tokens, struct skv_seq **ret_seq);

/*
 * Truncate the sequence to its first `n` tokens: the later ones are removed, with their pages, in a commit of its own.
 * `next`: the id to go on from, or -1; if n is the sequence's length, only this id changes, under every policy. Later
 * steps do what they would if the sequence had never been longer. Waits for the device.
 *
 * Every sequence can be truncated to 0 tokens. Otherwise a policy must have left the first n tokens as they were at
 * that length (sparsekv-policy(7) says so for each): nothing that the next decode step attends to was evicted, no token
 * is compressed that would not be, no scores were accumulated.
 * Error, with nothing changed: -ESTALE a policy has not (the text says why); -EINVAL the sequence has fewer tokens;
 * -EBUSY it is in an open step; -ENOTSUP the policy's own state cannot be made anew; -ENOMEM; -ECONNRESET; -EIO the
 * device failed.
 */
SKV_API int skv_seq_truncate(struct skv_seq *seq, uint32_t n, int32_t next);

/*
 * Detach the sequence, and free the handle. A named sequence stays in the daemon, where any client of this user may
 * attach it; an anonymous one is dropped. NULL is ignored. Waits for the device.
 * Error: -EBUSY it is in an open step, -ENOMEM: nothing has happened. After any other error (-ETIMEDOUT, -ECONNRESET:
 * the daemon has not confirmed) the handle is freed all the same.
 */
SKV_API int skv_seq_detach(struct skv_seq *seq);

/* Drop the sequence and its pages, and free the handle. NULL is ignored. Errors as skv_seq_detach. */
SKV_API int skv_seq_drop(struct skv_seq *seq);

/* Committed length in tokens; on a device, the length once all queued steps have run. */
SKV_API uint32_t skv_seq_len(const struct skv_seq *seq);

/*
 * The committed token ids as given to skv_step_begin, [0, len), and at [len] the `next` id that the last skv_step_end
 * published, or -1. A new process continues from these where another one died. The library owns them; they are
 * read-only, and valid until the sequence's next skv_step_end. `ret_len` may be NULL. Waits for the device.
 */
SKV_API const int32_t *skv_seq_tokens(const struct skv_seq *seq, uint32_t *ret_len);

/*
 * Pages of the sequence in memory that hold its tokens, as rows or compressed, and pages that its length would take
 * without eviction or compression, over all layers. Pages of policy state do not count. Waits for the device.
 */
SKV_API void skv_seq_pages(const struct skv_seq *seq, uint64_t *ret_resident, uint64_t *ret_total);

/*
 * Give the sequence a policy of its own from its next step on; swaps of the session's policy then do not affect it.
 * Sequences of one batch may run different policies, or one policy with different parameters, with the same results as
 * each alone. The daemon must have loaded the policy; the sequence stays with that plugin when another is loaded under
 * the same name. NULL: the session's policy again. A fork inherits its parent's policy. An attached sequence runs the
 * attaching session's policy until it is given another. Asks the daemon, and waits for the device.
 * Error, with nothing changed: -EINVAL bad spec, -ENOENT no such policy loaded, -EBADMSG the plugin was refused,
 * -ENOTSUP the policy cannot adopt what the previous one left, -EBUSY the sequence is in an open step, -ENOMEM,
 * -ETIMEDOUT, -ECONNRESET.
 */
SKV_API int skv_seq_policy(struct skv_seq *seq, const char *policy_spec);

/*
 * The spec of the policy that the sequence runs, with every parameter's value. The library owns it; valid until the
 * session's next skv_step_begin. Takes no lock: no other thread may begin a step of the session or change the policy.
 */
SKV_API const char *skv_seq_policy_spec(const struct skv_seq *seq);

/*
 * Does the policy that the sequence runs leave the K and V of all tokens as a dense prefill makes them? It does if by
 * its taxonomy and plans it neither evicts nor compresses, and does not prefill sparsely. Then a sequence that begins
 * with the same tokens may begin as a fork of this one, if all of this one was computed under such policies. Returns 1
 * or 0. Threads: as skv_seq_policy_spec().
 */
SKV_API int skv_seq_keeps_all(const struct skv_seq *seq);

/* ---- a step ---------------------------------------------------------------------------------- */

enum skv_step_flags {
	/* prefill: rows attend as the policy's plan.prefill says; its hooks first see the sequence when it decodes */
	SKV_STEP_PROMPT = 1u << 0,
};

/*
 * Limit of the decode rows of a sequence in one step: candidates that a speculative decoder verifies together, causal
 * among themselves. Each row scores, selects and attends as in a step of its own, with the same bits on one backend.
 * There are two exceptions: tokens that single steps would have compressed between the rows are compressed after them;
 * and where the page that is written to competes by its bounds, these include the keys of all rows.
 * skv_step_end() is told how many of the rows count. Policies that evict by accumulated scores, or keep a state of
 * their own, decode one row a step.
 */
#define SKV_STEP_ROWS 16u

/* What a step does with one sequence. Made with SKV_STEP_ITEM(.seq = …) or skv_step_item_init(). */
struct skv_step_item {
	/* sizeof(struct skv_step_item) as the caller compiled it: the distance between two items */
	uint32_t size;
	uint32_t n_tokens;     /* query rows: >= 1 with SKV_STEP_PROMPT (chunked prefill), else 1 … SKV_STEP_ROWS */
	struct skv_seq *seq;   /* each sequence at most once a step */
	uint32_t flags;        /* set of skv_step_flags */
	/*
	 * Tokens of the same prompt that later steps will append; 0: the prompt ends in this step. Methods that attend
	 * densely at a prompt's end, and the admission of whole prompts, need to know the end. With it, chunking
	 * changes no result.
	 */
	uint32_t n_prompt_remaining;
	/*
	 * [n_tokens] ids in host memory, recorded with the commit. NULL: the first one is the `next` of the last
	 * commit, whatever it was; further ones are -1.
	 */
	const int32_t *tokens;
};
#define SKV_STEP_ITEM(...) ((struct skv_step_item){.size = sizeof(struct skv_step_item), __VA_ARGS__})

/*
 * Begin a step over `n` sequences. Reserves every page that the step can need; switches to a new policy if the operator
 * swapped it (skv_policy_error() reports a swap that failed). `items` and their token ids are read before it returns.
 * `stream` is a stream of the device (cudaStream_t; NULL its default one) and must not be capturing; NULL on host
 * memory. Waits for the device only if the host is more than three steps ahead, if pages are short, or if a shared page
 * is copied; waits for the daemon only if the pages on lease do not suffice.
 * Error, with nothing changed: -ENOSPC the pool or the account's quota cannot hold the step, or the rest of a prompt;
 * -ETIMEDOUT the daemon leased no pages in time; -ECONNRESET the daemon is gone and none has taken its place, or the
 * connection ended; -ECONNABORTED ranks run different policies, or did not confirm a commit; -EBUSY a step is open or
 * the stream is capturing; -EINVAL a bad item (the text says which); -ENOTSUP several rows under a policy that decodes
 * one; -E2BIG beyond max_tokens; -ENOMEM; -EIO the device failed.
 */
SKV_API int skv_step_begin(struct skv_session *session, const struct skv_step_item *items, uint32_t n,
                           void *stream);

/*
 * One layer's K and V in, attention out. Rows are the items' tokens, in the items' order, of the model's io_dtype, in
 * the model's memory; on a device q, k, v, out and their strides are multiples of 16 bytes.
 *   q, out  [rows][n_heads][head_dim]        k, v  [rows][n_kv_heads][head_dim]
 * A row is contiguous. Two rows are `stride` elements apart, so that q, k and v may be parts of one fused projection. K
 * is given after RoPE. `out` may be q itself, with the same stride. The library keeps none of the pointers. A layer
 * that shares another layer's K and V (skv_model_layer.shares_kv) has neither k nor v: both are NULL.
 *
 * In a step whose items are all prompts, q and out may both be NULL: K and V are appended without attention, to import
 * a KV cache that was computed elsewhere.
 */
struct skv_attn {
	uint32_t size; /* sizeof(struct skv_attn) as the caller compiled it: SKV_ATTN(.q = …) or skv_attn_init() set it */
	const void *q;
	const void *k;
	const void *v;
	void *out;
	uint32_t q_stride; /* elements from one row to the next; 0: contiguous */
	uint32_t k_stride;
	uint32_t v_stride;
	uint32_t out_stride;
	/*
	 * [rows][n_heads] fp32 in the model's memory, or NULL. Receives, for each row and head, the natural logarithm
	 * of the sum of exp(score) over the tokens that the row attends to, without the sink's term; -infinity if there
	 * is none.
	 */
	float *lse;
};
#define SKV_ATTN(...) ((struct skv_attn){.size = sizeof(struct skv_attn), __VA_ARGS__})

/*
 * Append the rows of layer `layer` and attend as the policy plans. Layers come in order, each once a step.
 * Error: -EINVAL no open step, a layer out of order, bad rows, or no q where one is needed (a sequence decodes, or a
 * policy accumulates the attention scores of prompts); -EDOM kv_dtype is SKV_FP8, and fp8 moves more than a quarter of
 * the attention of some head in the first rows of one of the session's first prompts: use SKV_BF16; -ENOMEM; -EIO the
 * device failed; or the error of all_reduce_max().
 */
SKV_API int skv_attend(struct skv_session *session, uint32_t layer, const struct skv_attn *attn);

/*
 * CUDA graphs. The layers of a step may be captured into a CUDA graph instead of run: begin the capture after
 * skv_step_begin, end it and launch the graph before skv_step_end. Later steps may launch the same graph in place of
 * their skv_attend calls, with the same values of struct skv_attn, if their key is that of the captured step. The key
 * stands for the number of sequences, all decoding, the rows of each, their capacity (larger than their lengths, so
 * that it changes rarely), and about how many of them are under each policy. Returns the key of the open step, or 0 if
 * the step cannot be replayed: it has rows of a prompt, measures recall or is in host memory, or no step is open.
 */
SKV_API uint64_t skv_step_key(struct skv_session *session);

/*
 * Tell the library that a graph captured in a step with this key was launched for the open step: all its layers count
 * as attended. Error: -ESTALE the open step has another key; -EINVAL no step is open, it has begun to attend, or the
 * pages are in host memory.
 */
SKV_API int skv_step_replayed(struct skv_session *session, uint64_t key);

/*
 * Commit the step: evictions, lengths and token ids become durable together, or not at all. `next` (NULL: -1 for all):
 * for each item the id that the engine sampled, for skv_seq_tokens(). On a device it is memory that the device can
 * read, and is read after all of the step has run; the stream must not be capturing (-EBUSY). `n_accepted`, in host
 * memory: how many rows of each item count, from the first one on; NULL: all. 0: the item's sequence is as if it had
 * not been in the step; of a prompt 0 or all rows count. On a device, if not all rows count, waits until the step's
 * rows have run.
 * Error, and the step stays open: -EINVAL not every layer was attended, or a bad n_accepted; -EBUSY. Error, and the
 * step is aborted: -ENOTRECOVERABLE the policy misused a primitive; -EIO the device failed; -ECONNRESET the connection
 * ended. -ECONNABORTED: other ranks did not confirm the commit; close the session on all ranks, open it, attach
 * sequences anew.
 */
SKV_API int skv_step_end(struct skv_session *session, const int32_t *next, const uint32_t *n_accepted);

/*
 * Abort the step: every sequence is as it was after its last commit. Waits for the device. Without an open step it does
 * nothing.
 */
SKV_API void skv_step_abort(struct skv_session *session);

/* ---- admission --------------------------------------------------------------------------------- */

struct skv_room {
	uint32_t size;        /* sizeof(struct skv_room), set by the caller */
	uint32_t reserved;
	uint64_t pages;       /* that steps of the session can take now, one after the other ... */
	uint64_t stock_pages; /* free pages on lease to the session */
	uint64_t page_bytes;
};

/*
 * The pages that steps of the session can take now: those in stock, except those set aside for prompts that are being
 * read, and those that the daemon could lease under the user's quota and from free memory. Other sessions of the user
 * reduce it. The daemon may give more, if sequences that no client holds make room. Asks the daemon.
 * Error: -EINVAL ret->size is 0 or larger than known; -ETIMEDOUT, -ECONNRESET.
 */
SKV_API int skv_session_room(struct skv_session *session, struct skv_room *ret);

/*
 * The pages that a new sequence under the session's policy takes for a prompt of n_tokens: of K and V, and of what the
 * policy keeps besides. `chunk`: tokens a step, if several steps read the prompt; 0: one does. If skv_session_room()
 * says as many, the prompt can be read to its end; if fewer, skv_step_begin() returns -ENOSPC. A policy that evicts or
 * compresses frees pages when the sequence decodes, but one that compresses takes pages for codes before it frees those
 * of the compressed rows. A sequence that is to grow by m tokens takes at most what one of n_tokens + m does, unless it
 * compresses.
 * Error: -EINVAL n_tokens is 0 or more than the model's max_tokens.
 */
SKV_API int skv_seq_need(struct skv_session *session, uint32_t n_tokens, uint32_t chunk, uint64_t *ret_pages);

/* ---- what happened --------------------------------------------------------------------------- */

struct skv_stats {
	uint32_t size;            /* sizeof(struct skv_stats), set by the caller */
	uint32_t n_seqs;          /* attached now */
	uint64_t steps;           /* committed */
	uint64_t prompt_tokens;   /* accepted rows with SKV_STEP_PROMPT */
	uint64_t decode_tokens;   /* accepted rows without */
	uint64_t attended_tokens; /* tokens that decode rows, rejected ones too, attended to, summed over layers ... */
	uint64_t causal_tokens;   /* ... and the same without a policy: dense attention, or a layer's sliding window */
	uint64_t evicted_pages;
	uint64_t stock_pages;     /* free pages on lease now */
	uint64_t policy_swaps;    /* since skv_open */
	uint64_t recall_layers;   /* measurements of recall, each of one layer of one sequence ... */
	double recall_sum;        /* ... and their sum, each 0 to 1: skv_set_recall */
};

/* Counters of a session since skv_open. Waits for the device. Error: -EINVAL ret->size is 0 or larger than known. */
SKV_API int skv_session_stats(struct skv_session *session, struct skv_stats *ret);

/*
 * Measure attention recall in one decode step of `every` (0: in none; -1, the default: the daemon's recall-every), for
 * the first 8 sequences that decode in it: the share of dense attention's weight on the tokens that a layer attends to,
 * for each layer that is not dense (DELTA, Eq. 9). Dense attention here is over resident tokens: evicted ones have no
 * weight. Learned sinks keep theirs, so the share of all tokens is below 1. Layers with a sliding window are left out.
 * Such a step takes as long as a dense one, and on a device it is not replayed. `sparsekvctl top` and metrics show the
 * figures.
 */
SKV_API void skv_set_recall(struct skv_session *session, int64_t every);

/* The attended_tokens and causal_tokens of one sequence since it was attached. Waits for the device. */
SKV_API void skv_seq_attended(const struct skv_seq *seq, uint64_t *ret_attended, uint64_t *ret_causal);

/* The recall_layers and recall_sum of one sequence since it was attached. Waits for the device. */
SKV_API void skv_seq_recall(const struct skv_seq *seq, uint64_t *ret_layers, double *ret_sum);

struct skv_selection_info {
	uint32_t size;   /* sizeof(struct skv_selection_info), set by the caller */
	uint32_t attend; /* enum skv_attend_mode: ids are pages with DENSE (all resident ones) and PAGES, else tokens */
	uint32_t rows;   /* lists of a sequence: 1, one per kv head, or one per q head */
	uint32_t len;    /* tokens of the sequence, with those of the step */
	uint32_t n;      /* tokens or pages attended to; of a page the tokens from `len` on do not count */
};

/*
 * Get the tokens or pages that layer `layer` attended to in the open step, of the sequence of item `item`, in list
 * `row` of its rows: ascending ids in ids[room], as many as fit; ret->n is the number of all. For an item with several
 * tokens this is the last one's list. Layers that evict tokens, or pages of single heads, have one row per kv head. If
 * such a layer has evicted some and another policy attends now, ids are slots. For tests and displays: allocates, and
 * waits for the device.
 * Error: -EINVAL no open step, no such item or row, a layer that has not attended, or a bad ret->size; -EBUSY the
 * stream is capturing; -ENOTRECOVERABLE the policy misused a primitive; -EIO the device failed; -ENOMEM.
 */
SKV_API int skv_selection(struct skv_session *session, uint32_t layer, uint32_t item, uint32_t row,
                          struct skv_selection_info *ret, uint32_t *ids, uint32_t room);

/*
 * The spec of the session's policy, with every parameter's value; sequences with a policy of their own (skv_seq_policy)
 * run another. The session owns it; valid until its next skv_step_begin, which no other thread may call meanwhile.
 */
SKV_API const char *skv_policy_spec(struct skv_session *session);

/*
 * Do the results of the session's policy depend on how the prompt was prefilled: does it evict by the scores of the
 * prompt's queries, or prefill sparsely? Then prefill under this policy: a sequence or fork that was prefilled under
 * another one lacks those scores. Returns 1 or 0. Threads: as skv_policy_spec().
 */
SKV_API int skv_policy_depends_on_prefill(struct skv_session *session);

/*
 * Why the last swap was refused and the old policy stayed; "" if it was not. Lifetime and threads: as
 * skv_policy_spec().
 */
SKV_API const char *skv_policy_error(struct skv_session *session);

/* Name of the kernels in use: "cuda", or "avx512", "avx2", "generic" ($SPARSEKV_ISA overrides). */
SKV_API const char *skv_backend(const struct skv_session *session);

#ifdef __cplusplus
}
#endif
#endif
