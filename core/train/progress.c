#include "core/train/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1
#define LINE_SIZE 512
#define DEFAULT_WIDTH 80
#define MIN_BAR 10
#define MAX_BAR 30
#define RECORD "\036"	      /* ASCII: record separator */
#define CLEAR_LINE "\r\033[K" /* ECMA-48: erase from the cursor to the end of the line */

/* --------------------------------------------------------------- pure */

const char *progress_duration(double seconds, char text[PROGRESS_NUMBER_SIZE])
{
	/* Longer durations, of more than 11 years, are not written out. */
	const long long s = seconds >= 0 && seconds < 1e8 ? llround(seconds) : 0;
	const size_t size = PROGRESS_NUMBER_SIZE;

	if (!(seconds >= 0 && seconds < 1e8))
		snprintf(text, size, "?");
	else if (s < 60)
		snprintf(text, size, "%lld s", s);
	else if (s < 3600)
		snprintf(text, size, "%lld min %02lld s", s / 60, s % 60);
	else if (s < 86400)
		snprintf(text, size, "%lld h %02lld min", s / 3600, s % 3600 / 60);
	else
		snprintf(text, size, "%lld d %02lld h", s / 86400, s % 86400 / 3600);
	return text;
}

/* Three digits, and the unit that keeps the number below 1000 after rounding. */
const char *progress_rate(double per_second, char text[PROGRESS_NUMBER_SIZE])
{
	static const char *const units[] = { "", "k", "M", "G", "T" };
	size_t unit = 0;
	double x = per_second;

	if (!(x >= 0 && x < 999e12)) {
		snprintf(text, PROGRESS_NUMBER_SIZE, "?");
		return text;
	}
	for (; x >= 999.5; x /= 1000)
		unit++;
	snprintf(text, PROGRESS_NUMBER_SIZE, "%.*f%s",
		 x < 9.995   ? 2
		 : x < 99.95 ? 1
			     : 0,
		 x, units[unit]);
	return text;
}

static int columns(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += (*text & 0xc0) != 0x80; /* UTF-8: bytes that continue a character */
	return n;
}

static void cut_to(char *text, int width)
{
	for (; *text; text++)
		if ((*text & 0xc0) != 0x80 && width-- == 0) {
			*text = '\0';
			return;
		}
}

PRINTF_LIKE(3, 4)
static void add(char *text, size_t size, const char *format, ...)
{
	const size_t used = strlen(text);
	va_list args;

	va_start(args, format);
	vsnprintf(text + used, size - used, format, args);
	va_end(args);
}

static void add_numbers(const struct progress_point *p, char *text, size_t size)
{
	char number[PROGRESS_NUMBER_SIZE];

	add(text, size, "%lld/%lld", (long long)p->iteration, (long long)p->iterations);
	if (!isnan(p->loss))
		add(text, size, "  loss %.4f", p->loss);
	if (!isnan(p->validation))
		add(text, size, "  val %.4f", p->validation);
	if (!isnan(p->tokens_per_second))
		add(text, size, "  %s tok/s", progress_rate(p->tokens_per_second, number));
	if (p->iteration < p->iterations)
		add(text, size, "  ETA %s", progress_duration(p->eta, number));
}

static void add_bar(const struct progress_point *p, int width, char *text, size_t size)
{
	const double done = p->iterations > 0 ? (double)p->iteration / (double)p->iterations : 0;
	const int full = (int)(fmin(fmax(done, 0), 1) * width);
	char bar[MAX_BAR + 1];

	memset(bar, '.', (size_t)width);
	memset(bar, '#', (size_t)full);
	bar[width] = '\0';
	add(text, size, "[%s] ", bar);
}

/* In a narrow terminal first the bar goes, then the label, then the end of the numbers. */
void progress_format(const struct progress_point *point, const char *label, bool bar, int width,
		     char *text, size_t size)
{
	char numbers[LINE_SIZE] = "";
	int rest;

	text[0] = '\0';
	add_numbers(point, numbers, sizeof(numbers));
	rest = width - columns(numbers);
	if (label && *label && columns(label) + 1 <= rest) {
		add(text, size, "%s ", label);
		rest -= columns(label) + 1;
	}
	rest -= 3; /* brackets and the blank behind them */
	if (bar && rest >= MIN_BAR)
		add_bar(point, rest < MAX_BAR ? rest : MAX_BAR, text, size);
	add(text, size, "%s", numbers);
	cut_to(text, width);
}

/* --------------------------------------------------------------- the terminal */

static double clock_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool can_redraw(FILE *stream)
{
	const char *term = getenv("TERM");

	return isatty(fileno(stream)) && term && strcmp(term, "dumb");
}

/* One column less than there is: a full line makes some terminals wrap. */
static int terminal_width(FILE *stream)
{
	struct winsize size = { 0 };

	if (ioctl(fileno(stream), TIOCGWINSZ, &size) || size.ws_col < 2)
		return DEFAULT_WIDTH - 1;
	return size.ws_col - 1;
}

void progress_begin(struct progress *p, FILE *stream, const char *label, enum progress_mode mode,
		    int64_t first)
{
	*p = (struct progress){
		.stream = stream,
		.label = label,
		.live = mode == PROGRESS_AUTO && can_redraw(stream),
		.quiet = mode == PROGRESS_QUIET,
		.records = mode == PROGRESS_RECORDS,
		.first = first,
		.last = first,
		.started = clock_seconds(),
		.drawn_at = -INFINITY,
	};
	if (p->records)
		fprintf(stream, RECORD "%s\t0\t0\t\n", label);
}

static double estimate_rest(const struct progress *p, const struct progress_point *point)
{
	const double each = (clock_seconds() - p->started) / (double)(point->iteration - p->first);

	return point->iteration > p->first ? each * (double)(point->iterations - point->iteration)
					   : NAN;
}

static void draw(struct progress *p, const struct progress_point *point)
{
	char text[LINE_SIZE];

	progress_format(point, p->label, true, terminal_width(p->stream), text, sizeof(text));
	fprintf(p->stream, CLEAR_LINE "%s", text);
	fflush(p->stream);
	p->drawn = true;
	p->drawn_at = clock_seconds();
}

static void print_line(struct progress *p, const struct progress_point *point)
{
	char text[LINE_SIZE];

	progress_format(point, p->label, false, LINE_SIZE, text, sizeof(text));
	fprintf(p->stream, "%s\n", text);
	fflush(p->stream);
}

static void write_record(struct progress *p, const struct progress_point *point)
{
	char numbers[LINE_SIZE], text[2 * LINE_SIZE];

	progress_format(point, NULL, false, LINE_SIZE, numbers, sizeof(numbers));
	snprintf(text, sizeof(text), RECORD "%s\t%lld\t%lld\t%s\n", p->label,
		 (long long)point->iteration, (long long)point->iterations, numbers);
	fputs(text, p->stream);
	fflush(p->stream);
	p->drawn_at = clock_seconds();
}

void progress_update(struct progress *p, const struct progress_point *point, bool interval)
{
	struct progress_point now = *point;

	p->last = point->iteration;
	if (p->quiet)
		return;
	now.eta = estimate_rest(p, point);
	if (!p->live && !p->records) {
		if (interval)
			print_line(p, &now);
	} else if (clock_seconds() - p->drawn_at >= REDRAW_SECONDS ||
		   (p->records && point->iteration == point->iterations)) {
		(p->live ? draw : write_record)(p, &now);
	}
}

static void clear(struct progress *p)
{
	if (p->drawn)
		fputs(CLEAR_LINE, p->stream);
	p->drawn = false;
	p->drawn_at = -INFINITY;
}

/* In one piece: others write to the same place. */
PRINTF_LIKE(2, 0)
static void print_message(struct progress *p, const char *format, va_list args)
{
	char text[4 * ERROR_TEXT_SIZE];

	clear(p);
	vsnprintf(text, sizeof(text), format, args);
	fprintf(p->stream, "%s\n", printable(text));
	fflush(p->stream);
}

void progress_message(struct progress *p, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	print_message(p, format, args);
	va_end(args);
}

void progress_note(struct progress *p, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (!p->records)
		print_message(p, format, args);
	va_end(args);
}

void progress_warn(void *p, const char *text)
{
	progress_message(p, "warning: %s", text);
}

void progress_end(struct progress *p, const char *how)
{
	clear(p);
	if (p->records)
		fprintf(p->stream, RECORD "%s\t%s\n", p->label, how);
	fflush(p->stream);
}
