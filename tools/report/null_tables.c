/*
 * null_tables - draws tables of comparisons without any effect and counts those with a verdict,
 * which is false.
 *
 * tools/report/simulate.py asks it for millions of tables.  It applies the rule of stats.py, whose
 * critical values come with the question; a test checks that both give the same verdicts.
 */
#include <ctype.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/rng.h"
#include "core/util/status.h"

enum { EXIT_WRONG = 1, EXIT_USAGE = 2 };
enum { MOST_LOOKS = 16, MOST_SEEDS = 1024, MOST_STEPS = 64, LONGEST_NAME = 32 };

static const char usage[] =
	"usage: null_tables [--judge] <QUESTIONS\n"
	"\n"
	"A question is a line.  RULE is the number of looks and, for each, its seeds and the\n"
	"critical t:\n"
	"\n"
	"    TABLES SEED SEEDS COMPARISONS RULE SHAPE NOISE STEPS SHAPE NOISE ...\n"
	"    RULE PAIRS VALUE BASELINE ...       with --judge\n"
	"\n"
	"Prints how many tables have a verdict; with --judge, the verdict on these values.\n"
	"SHAPE and NOISE are first the baseline's, then those of STEPS steps, which are repeated.\n"
	"\n"
	"Example: echo 20000 1 5 3 1 5 3.961 normal 1 1 normal 1 | null_tables\n";

/* --------------------------------------------------------------- the rule */

struct look {
	int seeds;
	double critical; /* t */
};

struct rule {
	int looks;
	struct look look[MOST_LOOKS];
};

static double mean_of(const double *values, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++)
		sum += values[i];
	return sum / n;
}

static double variance(const double *values, int n)
{
	double mean = mean_of(values, n), squares = 0;

	for (int i = 0; i < n; i++)
		squares += (values[i] - mean) * (values[i] - mean);
	return squares / (n - 1);
}

/* The intersection of the intervals of all looks: -1 below zero, 1 above zero, 0 neither. */
static int verdict(const struct rule *rule, const double *arm, const double *baseline)
{
	double low = -INFINITY, high = INFINITY, values[MOST_SEEDS];

	for (int i = 0; i < rule->looks; i++) {
		const struct look *look = &rule->look[i];
		int n = look->seeds;
		double half;

		for (int s = 0; s < n; s++)
			values[s] = arm[s] - baseline[s];
		half = sqrt(variance(values, n)) / sqrt(n) * look->critical;
		low = fmax(low, mean_of(values, n) - half);
		high = fmin(high, mean_of(values, n) + half);
	}
	if (low > high)
		return 0;
	return low > 0 ? 1 : high < 0 ? -1 : 0;
}

/* --------------------------------------------------------------- noise, each of mean 0 */

typedef double (*shape)(struct rng_reader *r);

static double exponential(struct rng_reader *r)
{
	return -log1p(-rng_next_uniform(r));
}

static double normal(struct rng_reader *r)
{
	double length = sqrt(2 * exponential(r));

	return length * cos(2 * M_PI * rng_next_uniform(r));
}

static double laplace(struct rng_reader *r)
{
	return exponential(r) - exponential(r);
}

/* Student's t with 3 degrees of freedom: the sum of three squares is that of two and one. */
static double student(struct rng_reader *r)
{
	double numerator = normal(r), one = normal(r);

	return numerator / sqrt((2 * exponential(r) + one * one) / 3);
}

static double outliers(struct rng_reader *r)
{
	double size = rng_next_uniform(r) < 0.1 ? 10 : 1;

	return size * normal(r);
}

static double uniform(struct rng_reader *r)
{
	return sqrt(12) * (rng_next_uniform(r) - 0.5);
}

static double two_groups(struct rng_reader *r)
{
	double group = rng_next_uniform(r) < 0.5 ? -1 : 1;

	return group + 0.1 * normal(r);
}

/* A gamma distribution of this shape, sd 1: its skewness is 2 / sqrt(terms). */
static double gamma_sum(struct rng_reader *r, int terms)
{
	double sum = 0;

	for (int i = 0; i < terms; i++)
		sum += exponential(r);
	return (sum - terms) / sqrt(terms);
}

static double skewness_half(struct rng_reader *r)
{
	return gamma_sum(r, 16);
}

static double skewness_one(struct rng_reader *r)
{
	return gamma_sum(r, 4);
}

static double skewness_two(struct rng_reader *r)
{
	return gamma_sum(r, 1);
}

static const struct {
	const char *name;
	shape draw;
} shapes[] = {
	{ "normal", normal },
	{ "laplace", laplace },
	{ "student", student },
	{ "outliers", outliers },
	{ "uniform", uniform },
	{ "two_groups", two_groups },
	{ "skewness_0.5", skewness_half },
	{ "skewness_1", skewness_one },
	{ "skewness_2", skewness_two },
};

/* --------------------------------------------------------------- tables */

struct arm {
	shape draw;
	double noise;
};

struct cell {
	long tables, seed;
	int seeds, comparisons, steps;
	struct rule rule;
	struct arm baseline, step[MOST_STEPS];
};

/* The baseline is drawn once: all steps of a table share it. */
static bool has_verdict(const struct cell *c, struct rng_reader *r)
{
	double baseline[MOST_SEEDS], arm[MOST_SEEDS];

	for (int s = 0; s < c->seeds; s++)
		baseline[s] = c->baseline.noise * c->baseline.draw(r);
	for (int k = 0; k < c->comparisons; k++) {
		const struct arm *step = &c->step[k % c->steps];

		for (int s = 0; s < c->seeds; s++)
			arm[s] = step->noise * step->draw(r);
		if (verdict(&c->rule, arm, baseline))
			return true;
	}
	return false;
}

static long count_verdicts(const struct cell *c)
{
	struct rng_key key = rng_key((uint64_t)c->seed, "tables");
	long found = 0;

	for (long t = 0; t < c->tables; t++) {
		struct rng_reader reader = { .key = rng_subkey(key, (uint64_t)t) };

		found += has_verdict(c, &reader);
	}
	return found;
}

/* --------------------------------------------------------------- questions */

static enum status read_rule(struct rule *rule, int seeds, struct error *err)
{
	if (scanf("%d", &rule->looks) != 1 || rule->looks < 1 || rule->looks > MOST_LOOKS)
		return fail(err, "expected the number of looks");
	for (int i = 0; i < rule->looks; i++) {
		struct look *look = &rule->look[i];

		if (scanf("%d %lf", &look->seeds, &look->critical) != 2 || look->seeds < 2 ||
		    look->seeds > seeds)
			return fail(err, "expected the seeds of a look, and its critical value");
	}
	return OK;
}

static enum status read_arm(struct arm *arm, struct error *err)
{
	char name[LONGEST_NAME];

	if (scanf("%31s %lf", name, &arm->noise) != 2)
		return fail(err, "expected a shape and a noise");
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		if (!strcmp(shapes[i].name, name)) {
			arm->draw = shapes[i].draw;
			return OK;
		}
	}
	return fail(err, "there is no shape %s", name);
}

/* What follows the number of tables. */
static enum status read_cell(struct cell *c, struct error *err)
{
	enum status status;

	if (scanf("%ld %d %d", &c->seed, &c->seeds, &c->comparisons) != 3 || c->seeds < 2 ||
	    c->seeds > MOST_SEEDS)
		return fail(err, "expected a seed, 2 to %d seeds, comparisons", MOST_SEEDS);
	status = read_rule(&c->rule, c->seeds, err);
	if (status == OK)
		status = read_arm(&c->baseline, err);
	if (status == OK && (scanf("%d", &c->steps) != 1 || c->steps < 1 || c->steps > MOST_STEPS))
		return fail(err, "expected 1 to %d steps", MOST_STEPS);
	for (int i = 0; i < c->steps && status == OK; i++)
		status = read_arm(&c->step[i], err);
	return status;
}

static enum status answer_cells(struct error *err)
{
	struct cell cell = { 0 };
	enum status status = OK;

	while (status == OK && scanf("%ld", &cell.tables) == 1) {
		status = read_cell(&cell, err);
		if (status == OK)
			printf("%ld\n", count_verdicts(&cell));
	}
	return status;
}

/* Is there more than white space? */
static bool more_to_read(void)
{
	int c = getchar();

	while (isspace(c))
		c = getchar();
	return ungetc(c, stdin) != EOF;
}

static enum status answer_values(struct error *err)
{
	static const char *const words[] = { "better", "open", "worse" };
	double arm[MOST_SEEDS], baseline[MOST_SEEDS];
	struct rule rule;
	int n;

	while (more_to_read()) {
		if (read_rule(&rule, MOST_SEEDS, err) != OK)
			return FAIL;
		if (scanf("%d", &n) != 1 || n > MOST_SEEDS)
			return fail(err, "expected at most %d pairs", MOST_SEEDS);
		for (int i = 0; i < n; i++) {
			if (scanf("%lf %lf", &arm[i], &baseline[i]) != 2)
				return fail(err, "expected %d pairs", n);
		}
		puts(words[verdict(&rule, arm, baseline) + 1]);
	}
	return OK;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "judge", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct error err;
	bool judge = false;
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h') {
			fputs(usage, stdout);
			return 0;
		}
		if (option == '?')
			return fputs(usage, stderr), EXIT_USAGE;
		judge = true;
	}
	if ((judge ? answer_values(&err) : answer_cells(&err)) == OK)
		return 0;
	fprintf(stderr, "null_tables: %s\n", err.text);
	return EXIT_WRONG;
}
