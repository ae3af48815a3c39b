/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/synthetic-codec.h"
#include <math.h>
#include <sparsekv/client.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench/bench.h"
#include "formats/safetensors.h"

#define CENTRES 256u
#define NOISE 0.25f /* factor of the noise in a clustered row; that of the centre is 1 */

_Noreturn static void die(const char *what, const char *why)
{
	fprintf(stderr, "sparsekv-bench: %s: %s\n", what, why);
	exit(1);
}

/* Returns a random number from -1 to 1. */
static float some(uint64_t *rng)
{
	return (float)(int64_t)bench_random(rng) * 0x1p-63f;
}

/* ---- a compressor ---------------------------------------------------------------------------- */

static char codec_path[256];

static void remove_codec(void)
{
	unlink(codec_path);
}

static void name_codec(void)
{
	const char *base = getenv("TMPDIR");
	int fd;

	snprintf(codec_path, sizeof codec_path, "%.200s/sparsekv-bench-XXXXXX", base && *base ? base : "/tmp");
	fd = mkstemp(codec_path);
	if (fd < 0)
		die(codec_path, "cannot be made");
	close(fd);
	atexit(remove_codec);
}

static uint32_t whole_64s(uint32_t n)
{
	return (n + 63) / 64 * 64;
}

void synthetic_codec(const struct skv_model *m, char *path, size_t room)
{
	const uint32_t d = 2 * m->n_kv_heads * m->head_dim, hidden = whole_64s(d * 3 / 2), width = whole_64s(d / 4);
	const struct skv_new_tensor parts[] = {{"gate", hidden, d, NULL}, {"up", hidden, d, NULL}, {"down", width,
		hidden, NULL}, {"out", d, width, NULL}};
	static const struct skv_about about[] = {{"sparsekv_codec", "1"}, {"stride", "10"}, {"near", "4"}};
	struct skv_new_tensor *tensors = calloc(4 * m->n_layers, sizeof *tensors);
	/* all matrices of all layers use the same numbers */
	float *numbers = malloc((size_t)hidden * d * sizeof *numbers);
	uint64_t rng = 1;
	char err[256];

	if (!tensors || !numbers)
		die("a compressor", "no memory");
	for (size_t i = 0; i < (size_t)hidden * d; i++)
		numbers[i] = some(&rng) / sqrtf((float)d);
	for (uint32_t i = 0; i < 4 * m->n_layers; i++) {
		tensors[i] = parts[i % 4];
		snprintf(tensors[i].name, sizeof tensors[i].name, "layers.%u.%s", i / 4, parts[i % 4].name);
		tensors[i].data = numbers;
	}
	name_codec();
	if (skv_safetensors_write(codec_path, tensors, 4 * m->n_layers, about, 3, err, sizeof err) < 0)
		die(codec_path, err);
	snprintf(path, room, "%s", codec_path);
	free(tensors);
	free(numbers);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void store(float x, uint32_t dtype, uint8_t *to)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof bits);
	if (dtype == SKV_F32)
		memcpy(to, &bits, 4);
	else /* truncation to 16 bits is precise enough */
		memcpy(to, (uint8_t[]){(uint8_t)(bits >> 16), (uint8_t)(bits >> 24)}, 2);
}

/* Makes a token's row of K or V, before the rotary embedding. */
static void make_row(enum synthetic_rows rows, bool v, uint32_t token, uint32_t n, float *row)
{
	uint64_t rng = (uint64_t)token << 8 | v, centre = (uint64_t)token << 8;

	centre = (bench_random(&centre) % CENTRES) << 33 | v;
	for (uint32_t i = 0; i < n; i++)
		row[i] = rows == SYNTHETIC_RANDOM ? some(&rng) : some(&centre) + NOISE * some(&rng);
}

static void turn(const struct skv_model *m, const double *frequency, uint32_t position, float *row)
{
	const uint32_t pairs = m->head_dim / 2;

	for (uint32_t i = 0; i < pairs; i++) {
		const float c = (float)cos(position * frequency[i]), s = (float)sin(position * frequency[i]);

		for (float *head = row; head < row + m->n_kv_heads * m->head_dim; head += m->head_dim) {
			const float x = head[i], y = head[i + pairs];

			head[i] = x * c - y * s;
			head[i + pairs] = x * s + y * c;
		}
	}
}

void *synthetic_rows(const struct skv_model *m, enum synthetic_rows rows, bool v, uint32_t tokens)
{
	const uint32_t n = m->n_kv_heads * m->head_dim;
	const size_t each = skv_dtype_bytes(m->io_dtype);
	double frequency[SKV_MAX_HEAD_DIM / 2];
	uint8_t *all = aligned_alloc(64, (tokens * n * each + 63) / 64 * 64);

	for (uint32_t i = 0; i < m->head_dim / 2; i++)
		frequency[i] = skv_rope_frequency(&m->rope, m->head_dim, i);
#pragma omp parallel for
	for (uint32_t t = 0; t < tokens; t++) {
		float row[n];

		if (!all)
			continue;
		make_row(rows, v, t, n, row);
		if (!v)
			turn(m, frequency, t, row);
		for (uint32_t i = 0; i < n; i++)
			store(row[i], m->io_dtype, all + (t * (size_t)n + i) * each);
	}
	return all;
}
