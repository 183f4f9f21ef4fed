#include "tools/lengths.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/decode.h"

/* Bin 0 holds positions 0 to 63, every further one as many as lie before it. */
#define FIRST_BIN 64
#define POSITION_BINS 20
#define MAX_LENGTH (1 << 24) /* fills the bins */

/* Sums over the scored targets of a stretch of positions. */
struct stretch {
	int64_t count;
	double loss, hits;
};

struct lengths {
	struct lab *lab;
	struct source source;
	struct decoder *d;
	int32_t *tokens, *targets; /* a row */
	double *nll, *hit;	   /* of a piece */
	struct stretch bin[POSITION_BINS];
};

static int64_t bin_start(int bin)
{
	return bin == 0 ? 0 : (int64_t)FIRST_BIN << (bin - 1);
}

static int position_bin(int64_t position)
{
	int bin = 0;

	while (bin + 1 < POSITION_BINS && position >= bin_start(bin + 1))
		bin++;
	return bin;
}

static enum status open_length(struct lengths *x, int64_t length, struct error *err)
{
	struct lab *lab = x->lab;
	const uint64_t tokens = lab->source.valid_rows * (uint64_t)lab->source.length;
	const uint64_t rows = tokens / (uint64_t)length;

	if (rows == 0)
		return fail(err, "a row of %lld tokens is longer than all validation rows together",
			    (long long)length);
	if (source_open_at(&x->source, lab->config, lab->seed, length, rows, err) != OK ||
	    decoder_create(&x->d, lab->model, lab->params, &lab->backend, MODEL_EVAL, 1, length,
			   err) != OK)
		return FAIL;
	x->tokens = malloc((size_t)length * sizeof(*x->tokens));
	x->targets = malloc((size_t)length * sizeof(*x->targets));
	x->nll = malloc(DECODER_PIECE * sizeof(*x->nll));
	x->hit = malloc(DECODER_PIECE * sizeof(*x->hit));
	if (!x->tokens || !x->targets || !x->nll || !x->hit)
		return fail_memory(err, "evaluation", (size_t)length * sizeof(*x->tokens));
	return OK;
}

static void close_length(struct lengths *x)
{
	decoder_destroy(x->d);
	source_close(&x->source);
	free(x->tokens);
	free(x->targets);
	free(x->nll);
	free(x->hit);
}

static void score_piece(struct lengths *x, int64_t first, int64_t n)
{
	decoder_output(x->d, "nll", x->nll);
	decoder_output(x->d, "hit", x->hit);
	for (int64_t i = 0; i < n; i++) {
		struct stretch *s = &x->bin[position_bin(first + i)];

		if (x->targets[first + i] < 0)
			continue;
		s->count++;
		s->loss += x->nll[i];
		s->hits += x->hit[i];
	}
}

static enum status score_row(struct lengths *x, uint64_t row, struct error *err)
{
	const int64_t length = x->source.length;
	struct row out = { .tokens = x->tokens, .targets = x->targets };

	source_valid(&x->source, row, &out);
	decoder_reset(x->d);
	for (int64_t first = 0; first < length; first += DECODER_PIECE) {
		const int64_t left = length - first;
		const int64_t n = left < DECODER_PIECE ? left : DECODER_PIECE;

		if (decoder_feed(x->d, n, x->tokens + first, x->targets + first, err) != OK)
			return FAIL;
		score_piece(x, first, n);
	}
	return OK;
}

/* ------------------------------------------------------------------- output */

static struct stretch total(const struct lengths *x)
{
	struct stretch all = { 0 };

	for (int i = 0; i < POSITION_BINS; i++) {
		all.count += x->bin[i].count;
		all.loss += x->bin[i].loss;
		all.hits += x->bin[i].hits;
	}
	return all;
}

static int64_t bin_last(const struct lengths *x, int bin)
{
	const int64_t next = bin_start(bin + 1);

	return (next < x->source.length ? next : x->source.length) - 1;
}

static void print_score(const struct stretch *s, FILE *out)
{
	const double n = (double)s->count;

	fprintf(out, "%10lld %10.4f %10.4f\n", (long long)s->count, s->loss / n, s->hits / n);
}

static void print_length(const struct lengths *x, FILE *out)
{
	const struct stretch all = total(x);

	fprintf(out, "length %lld, %llu rows, %zu bytes of state\n%-17s %10s %10s %10s\n",
		(long long)x->source.length, (unsigned long long)x->source.valid_rows,
		decoder_state_bytes(x->d), "positions", "targets", "loss", "accuracy");
	for (int i = 0; i < POSITION_BINS; i++)
		if (x->bin[i].count) {
			fprintf(out, "%8lld-%-8lld ", (long long)bin_start(i),
				(long long)bin_last(x, i));
			print_score(&x->bin[i], out);
		}
	fprintf(out, "%-18s", "all");
	print_score(&all, out);
}

static void json_score(const struct stretch *s, FILE *out)
{
	const double n = (double)s->count;

	fprintf(out, "\"targets\": %lld, \"loss\": %.9g, \"accuracy\": %.9g", (long long)s->count,
		s->loss / n, s->hits / n);
}

static void json_length(const struct lengths *x, FILE *out)
{
	const struct stretch all = total(x);
	const char *comma = "";

	fprintf(out, "{\"length\": %lld, \"rows\": %llu, \"state_bytes\": %zu, ",
		(long long)x->source.length, (unsigned long long)x->source.valid_rows,
		decoder_state_bytes(x->d));
	json_score(&all, out);
	fprintf(out, ", \"positions\": [");
	for (int i = 0; i < POSITION_BINS; i++)
		if (x->bin[i].count) {
			fprintf(out, "%s{\"first\": %lld, \"last\": %lld, ", comma,
				(long long)bin_start(i), (long long)bin_last(x, i));
			json_score(&x->bin[i], out);
			fprintf(out, "}");
			comma = ", ";
		}
	fprintf(out, "]}");
}

static enum status evaluate_length(struct lab *lab, int64_t length, bool json, FILE *out,
				   struct error *err)
{
	struct lengths x = { .lab = lab };
	enum status status = open_length(&x, length, err);

	for (uint64_t row = 0; status == OK && row < x.source.valid_rows; row++)
		status = score_row(&x, row, err);
	if (status == OK && total(&x).count == 0)
		status = fail(err, "no target is scored at length %lld", (long long)length);
	if (status == OK)
		(json ? json_length : print_length)(&x, out);
	close_length(&x);
	return status;
}

enum status next_length(const char **list, int64_t *length, struct error *err)
{
	char *end;

	errno = 0;
	*length = strtoll(*list, &end, 10);
	if (errno || end == *list || (*end && (*end != ',' || !end[1])) || *length < 2 ||
	    *length > MAX_LENGTH)
		return fail(err, "'%s' does not begin with a length from 2 to %d", *list,
			    MAX_LENGTH);
	*list = *end ? end + 1 : end;
	return OK;
}

enum status evaluate_lengths(struct lab *lab, const char *lengths, bool json, FILE *out,
			     struct error *err)
{
	enum status status = OK;
	int64_t length = lab->source.length;

	if (!lengths)
		lengths = "";
	if (json)
		fprintf(out, "{\"lengths\": [");
	do {
		if (lengths[0] && next_length(&lengths, &length, err) != OK)
			return FAIL;
		status = evaluate_length(lab, length, json, out, err);
		if (json && status == OK)
			fprintf(out, "%s", lengths[0] ? ",\n" : "");
	} while (status == OK && lengths[0]);
	if (json)
		fprintf(out, "]}\n");
	return status;
}
