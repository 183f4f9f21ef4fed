/* Progress: the texts, and what reaches a terminal, a pipe and a quiet stream. */
#define _GNU_SOURCE /* posix_openpt */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "core/train/progress.h"
#include "core/util/test.h"

static const struct progress_point middle = {
	.iteration = 1200,
	.iterations = 10400,
	.loss = 3.21454,
	.validation = 3.4,
	.tokens_per_second = 12345,
	.eta = 7620,
};

/* --------------------------------------------------------------- pure */

static void test_durations(void **state)
{
	static const struct {
		double seconds;
		const char *text;
	} cases[] = {
		{ 0, "0 s" },
		{ 59.4, "59 s" },
		{ 59.6, "1 min 00 s" },
		{ 185, "3 min 05 s" },
		{ 3599.7, "1 h 00 min" },
		{ 7620, "2 h 07 min" },
		{ 86400, "1 d 00 h" },
		{ 273600, "3 d 04 h" },
		{ NAN, "?" },
		{ INFINITY, "?" },
		{ -1, "?" },
		{ 1e30, "?" },
	};
	char text[PROGRESS_NUMBER_SIZE];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_string_equal(progress_duration(cases[i].seconds, text), cases[i].text);
}

static void test_rates(void **state)
{
	static const struct {
		double rate;
		const char *text;
	} cases[] = {
		{ 0, "0.00" },	    { 9.994, "9.99" },	{ 9.996, "10.0" },  { 99.96, "100" },
		{ 950, "950" },	    { 999.6, "1.00k" }, { 12345, "12.3k" }, { 4.56e6, "4.56M" },
		{ 7.8e9, "7.80G" }, { 123e12, "123T" }, { NAN, "?" },	    { INFINITY, "?" },
		{ -5, "?" },
	};
	char text[PROGRESS_NUMBER_SIZE];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_string_equal(progress_rate(cases[i].rate, text), cases[i].text);
}

static void check_format(const struct progress_point *p, bool bar, int width, const char *expected)
{
	char text[512];

	progress_format(p, "ra 2 s1", bar, width, text, sizeof(text));
	assert_string_equal(text, expected);
}

static void test_lines_fit_their_width(void **state)
{
	(void)state;
	check_format(&middle, false, 200,
		     "ra 2 s1 1200/10400  loss 3.2145  val 3.4000  12.3k tok/s  ETA 2 h 07 min");
	check_format(&middle, true, 200,
		     "ra 2 s1 [###...........................] "
		     "1200/10400  loss 3.2145  val 3.4000  12.3k tok/s  ETA 2 h 07 min");
	check_format(&middle, true, 85,
		     "ra 2 s1 [#.........] "
		     "1200/10400  loss 3.2145  val 3.4000  12.3k tok/s  ETA 2 h 07 min");
	check_format(&middle, true, 84,
		     "ra 2 s1 1200/10400  loss 3.2145  val 3.4000  12.3k tok/s  ETA 2 h 07 min");
	check_format(&middle, true, 70,
		     "1200/10400  loss 3.2145  val 3.4000  12.3k tok/s  ETA 2 h 07 min");
	check_format(&middle, true, 20, "1200/10400  loss 3.2");
	check_format(&middle, true, 0, "");
}

static void test_what_is_unknown_is_left_out(void **state)
{
	const struct progress_point start = { .iteration = 0,
					      .iterations = 10,
					      .loss = NAN,
					      .validation = NAN,
					      .tokens_per_second = NAN,
					      .eta = NAN };
	const struct progress_point end = { .iteration = 10,
					    .iterations = 10,
					    .loss = INFINITY,
					    .validation = NAN,
					    .tokens_per_second = NAN };
	const struct progress_point beyond = { .iteration = 12,
					       .iterations = 10,
					       .loss = 1,
					       .validation = NAN,
					       .tokens_per_second = NAN };

	(void)state;
	check_format(&start, false, 80, "ra 2 s1 0/10  ETA ?");
	check_format(&end, true, 80, "ra 2 s1 [##############################] 10/10  loss inf");
	check_format(&beyond, true, 80,
		     "ra 2 s1 [##############################] 12/10  loss 1.0000");
}

/* Columns are characters, and a cut never leaves a part of one. */
static void test_labels_in_utf8(void **state)
{
	const struct progress_point p = { .iteration = 1,
					  .iterations = 2,
					  .loss = NAN,
					  .validation = NAN,
					  .tokens_per_second = NAN,
					  .eta = 1 };
	char text[64];

	(void)state;
	progress_format(&p, "\xc3\xbc\xc3\xbc", false, 15, text, sizeof(text));
	assert_string_equal(text, "\xc3\xbc\xc3\xbc 1/2  ETA 1 s");
	progress_format(&p, "\xc3\xbc\xc3\xbc\xc3\xbc", false, 15, text, sizeof(text));
	assert_string_equal(text, "1/2  ETA 1 s");
}

static void test_a_small_buffer_is_not_overrun(void **state)
{
	char text[32];

	(void)state;
	for (size_t size = 1; size < sizeof(text); size++) {
		memset(text, '~', sizeof(text));
		progress_format(&middle, "label", true, 200, text, size);
		assert_int_equal(strlen(text), size - 1);
		assert_int_equal(text[size], '~');
	}
}

/* --------------------------------------------------------------- streams */

/* A stream whose other end can be read. */
struct wire {
	FILE *stream;
	int reader;
};

static struct wire open_pipe(void)
{
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	return (struct wire){ fdopen(ends[1], "w"), ends[0] };
}

/* A terminal of this width, which passes bytes on unchanged. */
static struct wire open_terminal(unsigned short width)
{
	const struct winsize size = { .ws_col = width, .ws_row = 24 };
	const int master = posix_openpt(O_RDWR | O_NOCTTY);
	struct termios mode;
	int slave;

	assert_true(master >= 0);
	assert_int_equal(grantpt(master) || unlockpt(master), 0);
	slave = open(ptsname(master), O_RDWR | O_NOCTTY);
	assert_true(slave >= 0);
	assert_int_equal(tcgetattr(slave, &mode), 0);
	cfmakeraw(&mode);
	assert_int_equal(tcsetattr(slave, TCSANOW, &mode), 0);
	assert_int_equal(ioctl(slave, TIOCSWINSZ, &size), 0);
	setenv("TERM", "xterm", 1);
	return (struct wire){ fdopen(slave, "w"), master };
}

/* Everything up to a mark that is set here: a terminal gives no more than a part at a time. */
static const char *received(struct wire *w, char *text, size_t size)
{
	size_t got = 0;

	fputs("<end>", w->stream);
	fflush(w->stream);
	for (text[0] = '\0'; !strstr(text, "<end>"); text[got] = '\0') {
		const ssize_t more = read(w->reader, text + got, size - 1 - got);

		assert_true(more > 0);
		got += (size_t)more;
	}
	*strstr(text, "<end>") = '\0';
	fclose(w->stream);
	close(w->reader);
	return text;
}

static void update_often(struct progress *p, int times)
{
	struct progress_point point = middle;

	for (int i = 0; i < times; i++, point.iteration++)
		progress_update(p, &point, point.iteration % 10 == 0);
}

static int count(const char *text, const char *part)
{
	int n = 0;

	for (; (text = strstr(text, part)); text += strlen(part))
		n++;
	return n;
}

static void test_a_pipe_gets_a_line_per_interval(void **state)
{
	struct wire w = open_pipe();
	struct progress p;
	char text[4096];

	(void)state;
	progress_begin(&p, w.stream, "label", PROGRESS_AUTO, 1199);
	update_often(&p, 25);
	progress_end(&p, "done");
	received(&w, text, sizeof(text));
	assert_int_equal(count(text, "\n"), 3);
	assert_int_equal(
		count(text, "label 1200/10400  loss 3.2145  val 3.4000  12.3k tok/s  ETA "), 1);
	assert_int_equal(count(text, "label 1220/10400"), 1);
	assert_int_equal(count(text, "\033") + count(text, "\r"), 0);
}

/* 1000 updates within far less than a second: one or two drawings, all cleared. */
static void test_a_terminal_gets_one_line_now_and_then(void **state)
{
	struct wire w = open_terminal(60);
	struct progress p;
	char text[4096];

	(void)state;
	progress_begin(&p, w.stream, "label", PROGRESS_AUTO, 0);
	update_often(&p, 1000);
	progress_end(&p, "done");
	received(&w, text, sizeof(text));
	assert_int_equal(count(text, "\n"), 0);
	assert_in_range(count(text, "\r\033[K"), 2, 5);
	assert_memory_equal(text, "\r\033[K1200/10400  loss", 20);
	assert_string_equal(text + strlen(text) - 4, "\r\033[K");
	assert_in_range(strcspn(text + 4, "\r"), 1, 59);
}

static void test_messages_stand_above_the_live_line(void **state)
{
	struct wire w = open_terminal(200);
	struct progress p;
	char text[4096];

	(void)state;
	progress_begin(&p, w.stream, NULL, PROGRESS_AUTO, 0);
	update_often(&p, 1);
	progress_message(&p, "checkpoint %d%s", 7, "\033[2J");
	progress_warn(&p, "beware");
	update_often(&p, 1);
	progress_end(&p, "done");
	received(&w, text, sizeof(text));
	assert_int_equal(count(text, "\r\033[Kcheckpoint 7?[2J\nwarning: beware\n\r\033[K["), 1);
}

static void test_quiet_means_only_messages(void **state)
{
	struct wire w = open_terminal(80);
	struct progress p;
	char text[4096];

	(void)state;
	progress_begin(&p, w.stream, "label", PROGRESS_QUIET, 0);
	update_often(&p, 100);
	progress_message(&p, "still told");
	progress_end(&p, "done");
	assert_string_equal(received(&w, text, sizeof(text)), "still told\n");
}

static void test_records_for_the_process_that_draws(void **state)
{
	const struct progress_point last = { .iteration = 10400,
					     .iterations = 10400,
					     .loss = 3,
					     .validation = NAN,
					     .tokens_per_second = NAN };
	struct wire w = open_pipe();
	struct progress p;
	char text[4096];

	(void)state;
	progress_begin(&p, w.stream, "ra 2 s1", PROGRESS_RECORDS, 1200);
	update_often(&p, 30); /* within far less than the time between two drawings */
	progress_update(&p, &last, true);
	progress_note(&p, "a record says it");
	progress_message(&p, "beware");
	progress_end(&p, "done");
	assert_int_equal(p.last, 10400);
	assert_string_equal(received(&w, text, sizeof(text)),
			    "\036ra 2 s1\t0\t0\t\n\036ra 2 s1\t1200\t10400\t"
			    "1200/10400  loss 3.2145  val 3.4000  12.3k tok/s  ETA ?\n"
			    "\036ra 2 s1\t10400\t10400\t10400/10400  loss 3.0000\n"
			    "beware\n\036ra 2 s1\tdone\n");
}

static void test_lines_on_a_terminal_that_cannot_redraw(void **state)
{
	struct wire w = open_terminal(80);
	struct progress p;
	char text[4096];

	(void)state;
	setenv("TERM", "dumb", 1);
	progress_begin(&p, w.stream, "label", PROGRESS_AUTO, 0);
	update_often(&p, 11);
	progress_end(&p, "done");
	received(&w, text, sizeof(text));
	assert_int_equal(count(text, "\n"), 2);
	assert_int_equal(count(text, "\033"), 0);
}

/* Unknown before the first iteration of this process is over. */
static void test_the_estimate_counts_from_the_resume(void **state)
{
	struct wire w = open_pipe();
	struct progress p;
	char text[4096];

	(void)state;
	progress_begin(&p, w.stream, "label", PROGRESS_AUTO, 1200);
	update_often(&p, 1);
	p.started -= 10; /* as if the ten iterations to come had taken ten seconds */
	update_often(&p, 11);
	progress_end(&p, "done");
	received(&w, text, sizeof(text));
	assert_int_equal(count(text, "1200/10400  loss 3.2145  val 3.4000  12.3k tok/s  ETA ?\n"),
			 2);
	assert_int_equal(count(text, "ETA 2 h 33 min\n"), 1); /* 9190 s */
}

/* Runs side by side write to one place: a line must not be torn.  Such a pipe keeps writes
 * separate.
 */
static void test_a_message_is_written_in_one_piece(void **state)
{
	struct progress p;
	char text[4096];
	FILE *stream;
	int fds[2];

	(void)state;
	assert_int_equal(pipe2(fds, O_DIRECT), 0);
	stream = fdopen(fds[1], "w");
	setvbuf(stream, NULL, _IONBF, 0); /* as stderr */
	progress_begin(&p, stream, "label", PROGRESS_LINES, 0);
	progress_message(&p, "%s: %d parameters", "label", 7);
	assert_int_equal(read(fds[0], text, sizeof(text)), strlen("label: 7 parameters\n"));
	fclose(stream);
	close(fds[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_durations),
		cmocka_unit_test(test_rates),
		cmocka_unit_test(test_lines_fit_their_width),
		cmocka_unit_test(test_what_is_unknown_is_left_out),
		cmocka_unit_test(test_labels_in_utf8),
		cmocka_unit_test(test_a_small_buffer_is_not_overrun),
		cmocka_unit_test(test_a_pipe_gets_a_line_per_interval),
		cmocka_unit_test(test_a_terminal_gets_one_line_now_and_then),
		cmocka_unit_test(test_messages_stand_above_the_live_line),
		cmocka_unit_test(test_quiet_means_only_messages),
		cmocka_unit_test(test_records_for_the_process_that_draws),
		cmocka_unit_test(test_lines_on_a_terminal_that_cannot_redraw),
		cmocka_unit_test(test_the_estimate_counts_from_the_resume),
		cmocka_unit_test(test_a_message_is_written_in_one_piece),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
