/*
 * fixture - what the tests of the tasks share: an opened source and a row.
 *
 * Symbols are given as the lines of a .config; TASK, MODEL_BLOCK and EVAL_ROWS
 * are written by the fixture.
 */
#ifndef DATA_TASKS_FIXTURE_H
#define DATA_TASKS_FIXTURE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/test.h"
#include "data/source.h"

struct fixture {
	struct config *config;
	struct source source;
	struct row row;
};

static inline enum status fixture_try(struct fixture *f, const char *task, int length,
				      const char *symbols, uint64_t seed, struct error *err)
{
	char text[4096];

	snprintf(text, sizeof(text),
		 "CONFIG_TASK=\"%s\"\nCONFIG_MODEL_BLOCK=%d\nCONFIG_EVAL_ROWS=64\n%s", task, length,
		 symbols);
	assert_int_equal(config_parse(&f->config, text, err), OK);
	if (source_open(&f->source, f->config, seed, err)) {
		config_free(f->config);
		return FAIL;
	}
	return OK;
}

static inline void fixture_open(struct fixture *f, const char *task, int length,
				const char *symbols, uint64_t seed)
{
	size_t n = (size_t)length;
	struct error err;

	if (fixture_try(f, task, length, symbols, seed, &err))
		fail_msg("%s", err.text);
	f->row = (struct row){ malloc(n * sizeof(int32_t)), malloc(n * sizeof(int32_t)), malloc(n),
			       malloc(n * sizeof(float)) };
	assert_true(f->row.tokens && f->row.targets && f->row.component && f->row.floor);
}

static inline void fixture_close(struct fixture *f)
{
	free(f->row.tokens);
	free(f->row.targets);
	free(f->row.component);
	free(f->row.floor);
	source_close(&f->source);
	config_free(f->config);
}

/* Opening must fail and say this. */
static inline void fixture_refuses(const char *task, int length, const char *symbols,
				   const char *expected)
{
	struct fixture f;
	struct error err;

	assert_int_equal(fixture_try(&f, task, length, symbols, 1, &err), FAIL);
	if (!strstr(err.text, expected))
		fail_msg("\"%s\" does not say \"%s\"", err.text, expected);
}

static inline void fixture_add(const struct fixture *f, struct sha256 *sha)
{
	size_t size = (size_t)f->source.length * sizeof(int32_t);

	sha256_add(sha, f->row.tokens, size);
	sha256_add(sha, f->row.targets, size);
}

/*
 * Training and validation rows are the same on every machine and in every
 * version: their first ones hash to this.
 */
static inline void fixture_expect_hash(const char *task, int length, const char *symbols,
				       const char *expected)
{
	char hex[SHA256_HEX_SIZE];
	struct fixture f;
	struct sha256 sha;

	fixture_open(&f, task, length, symbols, 7);
	sha256_init(&sha);
	for (uint64_t i = 0; i < 4; i++) {
		for (uint64_t row = 0; row < 4; row++) {
			source_train(&f.source, i, row, &f.row);
			fixture_add(&f, &sha);
		}
		source_valid(&f.source, i, &f.row);
		fixture_add(&f, &sha);
	}
	sha256_hex(&sha, hex);
	assert_string_equal(hex, expected);
	fixture_close(&f);
}

static inline void expect_near(double value, double expected, double tolerance)
{
	if (!(fabs(value - expected) <= tolerance))
		fail_msg("%.9g, where %.9g was expected", value, expected);
}

/*
 * A count that should be n p of n independent draws: within six standard
 * deviations.  The rows are fixed, so a test that passes passes always.
 */
static inline void fixture_expect_share(double count, double n, double p)
{
	double off = fabs(count - n * p) / sqrt(n * p * (1.0 - p));

	if (!(off < 6.0))
		fail_msg("%g of %g, where %g was expected: %.1f standard deviations", count, n,
			 n * p, off);
}

#endif
