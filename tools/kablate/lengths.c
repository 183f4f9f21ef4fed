#include "tools/kablate/lengths.h"

#include <stdlib.h>

#include "models/decode.h"
#include "tools/kablate/run_memory.h"

/* Bin 0 holds positions 0 to 63; every other bin holds as many as all bins before it. */
#define FIRST_BIN 64
#define POSITION_BINS 20
_Static_assert(MAX_LENGTH == FIRST_BIN << (POSITION_BINS - 2), "the longest row fills the bins");

/* Sums over the scored targets of a stretch of positions. */
struct stretch {
	int64_t count;
	double loss, hits;
};

struct lengths {
	struct run_setup *setup;
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
	struct run_setup *setup = x->setup;
	uint64_t rows;

	if (rows_of_length(&setup->source, length, &rows, err) != OK ||
	    source_open_at(&x->source, setup->config, setup->seed, length, rows, err) != OK ||
	    decoder_create(&x->d, setup->model, setup->params, &setup->backend, MODEL_EVAL, 1,
			   length, err) != OK)
		return FAIL;
	x->tokens = malloc((size_t)length * sizeof(*x->tokens));
	x->targets = malloc((size_t)length * sizeof(*x->targets));
	x->nll = malloc(DECODER_CHUNK_TOKENS * sizeof(*x->nll));
	x->hit = malloc(DECODER_CHUNK_TOKENS * sizeof(*x->hit));
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
	for (int64_t first = 0; first < length; first += DECODER_CHUNK_TOKENS) {
		const int64_t left = length - first;
		const int64_t n = left < DECODER_CHUNK_TOKENS ? left : DECODER_CHUNK_TOKENS;

		if (decoder_feed(x->d, n, x->tokens + first, x->targets + first, err) != OK)
			return FAIL;
		score_piece(x, first, n);
	}
	return x->setup->backend.check(&x->setup->backend, err);
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

struct printer {
	FILE *out;
	const char *before; /* the next length, as JSON */
};

static void print_length(const struct lengths *x, void *context)
{
	FILE *out = ((struct printer *)context)->out;
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

static void json_length(const struct lengths *x, void *context)
{
	struct printer *printer = context;
	FILE *out = printer->out;
	const struct stretch all = total(x);
	const char *comma = "";

	fprintf(out, "%s{\"length\": %lld, \"rows\": %llu, \"state_bytes\": %zu, ", printer->before,
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
	printer->before = ",\n";
}

struct recorder {
	struct metrics *metrics;
	int64_t iteration;
	int64_t length;
};

static void record(const struct recorder *r, const char *what, double value)
{
	char name[64];

	snprintf(name, sizeof(name), METRIC_LENGTH "/%lld/%s", (long long)r->length, what);
	metrics_value(r->metrics, r->iteration, name, value);
}

static void record_score(const struct recorder *r, const char *suffix, const struct stretch *s)
{
	char what[40];

	snprintf(what, sizeof(what), "loss%s", suffix);
	record(r, what, s->loss / (double)s->count);
	snprintf(what, sizeof(what), "accuracy%s", suffix);
	record(r, what, s->hits / (double)s->count);
}

static void record_length(const struct lengths *x, void *context)
{
	struct recorder *r = context;
	const struct stretch all = total(x);
	char suffix[24];

	r->length = x->source.length;
	record(r, "rows", (double)x->source.valid_rows);
	record(r, "state_bytes", (double)decoder_state_bytes(x->d));
	record_score(r, "", &all);
	for (int i = 0; i < POSITION_BINS; i++) {
		snprintf(suffix, sizeof(suffix), "/%lld", (long long)bin_start(i));
		if (x->bin[i].count)
			record_score(r, suffix, &x->bin[i]);
	}
}

/* ---------------------------------------------------------------------- lists */

typedef void (*length_visitor)(const struct lengths *x, void *context);

static enum status evaluate_length(struct run_setup *setup, int64_t length, length_visitor visit,
				   void *context, struct error *err)
{
	struct lengths x = { .setup = setup };
	enum status status = open_length(&x, length, err);

	for (uint64_t row = 0; status == OK && row < x.source.valid_rows; row++)
		status = score_row(&x, row, err);
	if (status == OK && total(&x).count == 0)
		status = fail(err, "no target is scored at length %lld", (long long)length);
	if (status == OK)
		visit(&x, context);
	close_length(&x);
	return status;
}

static enum status evaluate_each(struct run_setup *setup, const char *lengths, length_visitor visit,
				 void *context, struct error *err)
{
	int64_t length;

	while (lengths[0])
		if (next_length(&lengths, &length, err) != OK ||
		    evaluate_length(setup, length, visit, context, err) != OK)
			return FAIL;
	return OK;
}

static enum status reserve_each(const struct run_setup *setup, const char *lengths,
				struct error *err)
{
	struct decoder_use use;

	while (lengths[0])
		if (next_length_use(&lengths, &use, err) != OK ||
		    run_memory_reserve_decoder(setup, &use, err) != OK)
			return FAIL;
	return OK;
}

static void print_origin(const struct weights_origin *origin, bool json, FILE *out)
{
	if (json && origin->foreign)
		fprintf(out, "{\"foreign\": true, \"identity\": null, ");
	else if (json)
		fprintf(out, "{\"foreign\": false, \"identity\": \"%s\", ", origin->identity);
	else if (origin->foreign)
		fprintf(out, "foreign weights: assumed to be of this model\n");
	else
		fprintf(out, "weights of run %.12s\n", origin->identity);
}

enum status evaluate_lengths(struct run_setup *setup, const char *lengths, const char *weights,
			     bool json, FILE *out, struct error *err)
{
	struct weights_origin origin;
	struct printer printer = { .out = out, .before = "\"lengths\": [" };
	char trained[24];
	struct error notice;

	if (!model_keeps_state(setup->model, &notice))
		fprintf(stderr, "kablate: %s\n", notice.text);
	if (!lengths || !lengths[0]) {
		snprintf(trained, sizeof(trained), "%lld", (long long)setup->source.length);
		lengths = trained;
	}
	if (check_lengths(lengths, setup->model, &setup->source, err) != OK ||
	    reserve_each(setup, lengths, err) != OK ||
	    run_setup_load(setup, weights, &origin, err) != OK)
		return FAIL;
	print_origin(&origin, json, out);
	if (evaluate_each(setup, lengths, json ? json_length : print_length, &printer, err) != OK)
		return FAIL;
	if (json)
		fprintf(out, "]}\n");
	return OK;
}

enum status record_lengths(struct run_setup *setup, const char *lengths, struct metrics *m,
			   int64_t iteration, struct error *err)
{
	struct recorder recorder = { .metrics = m, .iteration = iteration };

	return evaluate_each(setup, lengths, record_length, &recorder, err);
}
