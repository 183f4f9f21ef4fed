#define _GNU_SOURCE /* asprintf() */
#include "data/prepare.h"

#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/chars.h"
#include "data/output_dir.h"
#include "data/tokenizer/split.h"
#include "data/tokens.h"

/* A batch that passes through the stages. */
struct job {
	struct batch batch;
	struct ids ids[BATCH_SPANS];
	enum status status[BATCH_SPANS];
	struct error err[BATCH_SPANS];
};

enum { STAGES = 3 };

struct pipeline {
	struct input *in;
	const struct tokenizer *tokenizer;
	const struct prepare_options *options;
	struct encoder **encoder; /* one for each thread */
	struct token_writer *writer[SPLITS];
	struct dataset *result;
	struct job *job; /* STAGES of them, used in turn */
	struct timespec start, shown;
};

/* ---------------------------------------------------------------- progress */

static double seconds_since(const struct timespec *then)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - then->tv_sec) + 1e-9 * (double)(now.tv_nsec - then->tv_nsec);
}

static void show_progress(struct pipeline *p)
{
	const struct split_info *split = p->result->split;
	double done = (double)(split[SPLIT_TRAIN].bytes + split[SPLIT_VALID].bytes);
	double all = (double)input_bytes(p->in), rate = done / seconds_since(&p->start);

	if (!p->options->progress || seconds_since(&p->shown) < 0.5)
		return;
	clock_gettime(CLOCK_MONOTONIC, &p->shown);
	fprintf(p->options->progress, "\r%.0f MB of text, %.1f MB/s", done / 1e6, rate / 1e6);
	if (all > 0)
		fprintf(p->options->progress, ", %.0f s left",
			all > done ? (all - done) / rate : 0.0);
	fprintf(p->options->progress, "   ");
	fflush(p->options->progress);
}

/* ---------------------------------------------------------------- the stages */

static void encode_span(struct pipeline *p, struct job *job, size_t i)
{
	const struct span *span = &job->batch.span[i];

	job->ids[i].count = 0;
	job->status[i] = encode(p->encoder[omp_get_thread_num()], span->text, span->size,
				&job->ids[i], &job->err[i]);
	if (job->status[i])
		span_fail(span, &job->err[i]);
}

static enum status separate(struct pipeline *p, enum data_split s, struct error *err)
{
	int32_t end_of_text = tokenizer_end_of_text(p->tokenizer);
	uint16_t id = (uint16_t)end_of_text;

	if (end_of_text < 0)
		return fail(err, "several documents, but the vocabulary has no end of text");
	return token_writer_add(p->writer[s], &id, 1, &p->result->split[s], err);
}

static enum status write_span(struct pipeline *p, const struct span *span, const struct ids *ids,
			      struct error *err)
{
	struct split_info *split = &p->result->split[span->split];
	bool ends_another = span->opens && split->documents++ > 0;

	if (ends_another && separate(p, span->split, err))
		return span_fail(span, err);
	split->bytes += span->size;
	if (p->options->components)
		p->result->component[span->given].tokens[span->split] += ids->count + ends_another;
	return token_writer_add(p->writer[span->split], ids->id, ids->count, split, err);
}

static enum status write_job(struct pipeline *p, struct job *job, struct error *err)
{
	enum status status = OK;

	for (size_t i = 0; i < job->batch.count && !status; i++) {
		if (job->status[i]) {
			*err = job->err[i];
			status = FAIL;
		} else {
			status = write_span(p, &job->batch.span[i], &job->ids[i], err);
		}
	}
	batch_release(&job->batch);
	show_progress(p);
	return status;
}

/*
 * Step k reads batch k + 1, encodes batch k and writes batch k - 1; returns whether to go on.
 *
 * A loop, not tasks (docs/reliability.md): libomp gives the memory of a finished task to a new one,
 * the thread sanitizer does not see that, and reports the new task's arguments as a race.
 */
static bool step(struct pipeline *p, size_t k, enum status status[2], struct error err[2])
{
	struct job *next = &p->job[(k + 1) % STAGES];
	struct job *now = &p->job[k % STAGES];
	struct job *last = &p->job[(k + STAGES - 1) % STAGES];
	enum { READ, WRITE, SPANS };

#pragma omp parallel for num_threads(p->options->threads) schedule(dynamic)
	for (size_t i = 0; i < SPANS + now->batch.count; i++) {
		if (i == READ)
			status[0] = input_next(p->in, &next->batch, &err[0]);
		else if (i == WRITE)
			status[1] = write_job(p, last, &err[1]);
		else
			encode_span(p, now, i - SPANS);
	}
	return !status[0] && !status[1] && (next->batch.count > 0 || now->batch.count > 0);
}

static enum status run(struct pipeline *p, struct error *err)
{
	enum status status[2] = { OK, OK };
	struct error why[2];

	for (size_t k = 0; step(p, k, status, why); k++)
		;
	for (int i = 0; i < STAGES; i++)
		batch_release(&p->job[i].batch);
	/* The error of the batch that was read first counts. */
	if (status[1])
		*err = why[1];
	else if (status[0])
		*err = why[0];
	return status[0] || status[1] ? FAIL : OK;
}

/* ---------------------------------------------------------------- the whole */

static enum status pipeline_start(struct pipeline *p, const char *directory, struct error *err)
{
	int threads = p->options->threads;

	p->job = calloc(STAGES, sizeof(*p->job));
	p->encoder = calloc((size_t)threads, sizeof(struct encoder *));
	if (!p->job || !p->encoder)
		return fail_memory(err, "batches", STAGES * sizeof(*p->job));
	for (int i = 0; i < threads; i++)
		if (encoder_new(p->tokenizer, &p->encoder[i], err))
			return FAIL;
	for (enum data_split s = 0; s < SPLITS; s++)
		if (token_writer_new(directory, split_name(s), p->options->shard_tokens,
				     &p->writer[s], err))
			return FAIL;
	clock_gettime(CLOCK_MONOTONIC, &p->start);
	p->shown = p->start;
	return OK;
}

static void pipeline_end(struct pipeline *p)
{
	for (int s = 0; s < SPLITS; s++)
		token_writer_free(p->writer[s]);
	for (int i = 0; p->encoder && i < p->options->threads; i++)
		encoder_free(p->encoder[i]);
	free(p->encoder);
	for (int i = 0; p->job && i < STAGES; i++)
		for (int j = 0; j < BATCH_SPANS; j++)
			ids_free(&p->job[i].ids[j]);
	free(p->job);
	if (p->options->progress)
		fprintf(p->options->progress, "\n");
}

static enum status finish_shards(struct pipeline *p, struct error *err)
{
	for (enum data_split s = 0; s < SPLITS; s++) {
		struct split_info *split = &p->result->split[s];

		if (token_writer_finish(p->writer[s], split, err))
			return FAIL;
		if (split->tokens == 0 && (s == SPLIT_TRAIN || input_valid_share(p->in) > 0))
			return fail(
				err,
				"nothing for the split \"%s\": %" PRIu64
				" documents in all; give more "
				"text, another share for validation, or one file that holds it all",
				split_name(s),
				p->result->split[0].documents + p->result->split[1].documents);
	}
	return OK;
}

static enum status save_tokenizer(const struct tokenizer *t, const char *directory,
				  struct dataset *result, struct error *err)
{
	const char *name = tokenizer_file_name(t);
	enum status status;
	char *path;

	snprintf(result->tokenizer, sizeof(result->tokenizer), "%s", tokenizer_kind(t));
	if (!name)
		return OK;
	snprintf(result->tokenizer_file, sizeof(result->tokenizer_file), "%s", name);
	if (asprintf(&path, "%s/%s", directory, name) < 0)
		return fail_memory(err, directory, strlen(name));
	status = tokenizer_save(t, path, err);
	free(path);
	return status;
}

static enum status write_side_file(struct pipeline *p, const char *directory, struct error *err)
{
	struct dataset *d = p->result;

	split_unicode_version(d->unicode);
	d->vocabulary = tokenizer_vocabulary(p->tokenizer);
	d->end_of_text = tokenizer_end_of_text(p->tokenizer);
	d->divided = input_is_divided(p->in);
	d->valid_share = input_valid_share(p->in);
	d->components = p->options->components;
	for (size_t i = 0; i < d->components; i++)
		memcpy(d->component[i].name, p->options->component[i], COMPONENT_NAME_SIZE);
	if (p->options->distinct) {
		d->duplicates = p->options->distinct->duplicates;
		d->leaks = p->options->distinct->leaks;
	}
	d->source_files = input_files(p->in);
	d->source_bytes = input_bytes_read(p->in);
	input_hash(p->in, d->source_sha256);
	if (save_tokenizer(p->tokenizer, directory, d, err))
		return FAIL;
	return dataset_write(d, directory, err);
}

enum status prepare(struct input *in, const struct tokenizer *t,
		    const struct prepare_options *options, struct dataset *result,
		    struct error *err)
{
	struct pipeline p = { .in = in, .tokenizer = t, .options = options, .result = result };
	enum status status = FAIL;
	struct output_dir out;

	*result = (struct dataset){ 0 };
	if (options->distinct)
		input_leave_out(in, options->distinct->is_left_out);
	if (!output_dir_start(&out, options->out, err)) {
		if (!pipeline_start(&p, out.new_path, err) && !run(&p, err) &&
		    !finish_shards(&p, err) && !write_side_file(&p, out.new_path, err))
			status = output_dir_commit(&out, err);
		pipeline_end(&p);
	}
	output_dir_end(&out);
	if (status)
		dataset_free(result);
	return status;
}

/* ---------------------------------------------------------------- vocabularies */

enum status prepare_characters(struct input *in, struct tokenizer **t, struct error *err)
{
	struct char_set *set = calloc(1, sizeof(*set));
	struct batch *batch = calloc(1, sizeof(*batch));
	uint64_t documents[SPLITS] = { 0 };
	enum status status = FAIL;

	if (!set || !batch) {
		fail_memory(err, "characters", sizeof(*set) + sizeof(*batch));
		goto free_set;
	}
	do {
		batch_release(batch);
		if (input_next(in, batch, err))
			goto release_batch;
		for (size_t i = 0; i < batch->count; i++) {
			char_set_add(set, batch->span[i].text, batch->span[i].size);
			documents[batch->span[i].split] += batch->span[i].opens;
		}
	} while (batch->count > 0);
	status = chars_new(set, documents[SPLIT_TRAIN] > 1 || documents[SPLIT_VALID] > 1, t, err);
release_batch:
	batch_release(batch);
free_set:
	free(batch);
	free(set);
	return status;
}

static enum status count_batch(const struct batch *batch, const struct split *split,
			       struct word_counts *counts, int threads, struct error *err)
{
	enum status status = OK;

#pragma omp parallel for num_threads(threads) schedule(dynamic)
	for (size_t i = 0; i < batch->count; i++) {
		const struct span *span = &batch->span[i];
		struct error why;

		if (span->split != SPLIT_TRAIN ||
		    !word_counts_add(&counts[omp_get_thread_num()], split, span->text, span->size,
				     &why))
			continue;
#pragma omp critical
		{
			status = FAIL;
			*err = why;
		}
	}
	return status;
}

/* The counts of all threads end up in the first. */
static enum status count_words(struct input *in, const struct split *split,
			       struct word_counts *counts, int threads, struct error *err)
{
	struct batch *batch = calloc(1, sizeof(*batch));
	enum status status;

	if (!batch)
		return fail_memory(err, "words", sizeof(*batch));
	do {
		batch_release(batch);
		status = input_next(in, batch, err);
		if (!status)
			status = count_batch(batch, split, counts, threads, err);
	} while (!status && batch->count > 0);
	batch_release(batch);
	free(batch);
	for (int i = 1; i < threads && !status; i++) {
		status = word_counts_merge(&counts[0], &counts[i], err);
		word_counts_free(&counts[i]);
	}
	return status;
}

enum status prepare_vocabulary(struct input *in, uint32_t vocabulary, int threads,
			       struct tokenizer **t, struct error *err)
{
	struct word_counts *counts = calloc((size_t)threads, sizeof(*counts));
	enum status status = FAIL;
	struct split *split;

	if (!counts)
		return fail_memory(err, "words", (size_t)threads * sizeof(*counts));
	if (!split_new(&split, err)) {
		if (!count_words(in, split, counts, threads, err))
			status = bpe_train(&counts[0], vocabulary, t, err);
		split_free(split);
	}
	for (int i = 0; i < threads; i++)
		word_counts_free(&counts[i]);
	free(counts);
	return status;
}
