#include "core/record/journal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/util/name.h"
#include "core/util/replace.h"

#define MAX_EXACT (1LL << 53) /* cJSON's numbers are doubles: integers up to this are exact */
#define FORMAT 1
#define READING (O_RDONLY | O_CLOEXEC | O_NONBLOCK) /* a FIFO would wait for a writer */
#define LINE_KEY "line" /* a line's number, for people who read the file */

/* --------------------------------------------------------------- files */

static enum status path_below(const char *run_dir, const char *name, char **path, struct error *err)
{
	const size_t size = strlen(run_dir) + strlen(name) + 2;

	*path = malloc(size);
	if (!*path)
		return fail_memory(err, name, size);
	snprintf(*path, size, "%s/%s", run_dir, name);
	return OK;
}

/* A whole file, ended by a zero. */
static enum status read_all(int fd, const char *path, char **text, size_t *size, struct error *err)
{
	struct stat about;
	ssize_t got = 1;

	if (fstat(fd, &about))
		return fail_errno(err, "%s", path);
	if (!S_ISREG(about.st_mode))
		return fail(err, "%s is not a regular file", path);
	*text = malloc((size_t)about.st_size + 1);
	if (!*text)
		return fail_memory(err, path, (size_t)about.st_size + 1);
	for (*size = 0; got > 0 && *size < (size_t)about.st_size; *size += (size_t)got) {
		got = pread(fd, *text + *size, (size_t)about.st_size - *size, (off_t)*size);
		if (got < 0) {
			fail_errno(err, "%s", path);
			free(*text);
			return FAIL;
		}
	}
	(*text)[*size] = '\0';
	return OK;
}

static enum status read_path(const char *path, char **text, size_t *size, struct error *err)
{
	enum status status;
	int fd = open(path, READING);

	if (fd < 0)
		return fail_errno(err, "%s", path);
	status = read_all(fd, path, text, size, err);
	close(fd);
	return status;
}

/* --------------------------------------------------------------- the record */

/* clang-format off */
#define FIELD(member, type, required) \
	{ #member, type, offsetof(struct run_record, member), required }
/* clang-format on */
#define NAME(member) FIELD(member, RECORD_TEXT, true)
#define TEXT(member) FIELD(member, RECORD_TEXT, false)
#define INT(member) FIELD(member, RECORD_INT, true)
#define BOOL(member) FIELD(member, RECORD_BOOL, true)

const struct record_field record_fields[] = {
	NAME(experiment), NAME(step),	      NAME(identity),  TEXT(baseline),
	INT(seed),	  INT(repeat),	      INT(iterations), TEXT(precision),
	TEXT(scale),	  TEXT(git_revision), BOOL(git_dirty), TEXT(compiler),
	TEXT(flags),	  TEXT(blas),	      INT(threads),    TEXT(machine),
};
const int n_record_fields = sizeof(record_fields) / sizeof(record_fields[0]);

const char *record_text(const struct run_record *r, const struct record_field *f)
{
	assert(f->type == RECORD_TEXT);
	return *(const char *const *)((const char *)r + f->offset);
}

int64_t record_number(const struct run_record *r, const struct record_field *f)
{
	const char *at = (const char *)r + f->offset;

	return f->type == RECORD_BOOL ? *(const bool *)at : *(const int64_t *)at;
}

/*
 * The functions that add to an object return false when there is no memory: an incomplete object
 * must not be printed.  Without a key or a text there is nothing to add.
 */
static bool add_text(cJSON *object, const char *key, const char *text)
{
	return !key || !text || cJSON_AddStringToObject(object, key, text);
}

/* The shortest text that reads back as the same number; cJSON itself writes at most 15 digits. */
static bool add_number(cJSON *object, const char *key, double value)
{
	char text[32];
	int digits = 15;

	if (!key)
		return true;
	if (isnan(value))
		return add_text(object, key, "nan");
	if (isinf(value))
		return add_text(object, key, value > 0 ? "inf" : "-inf");
	do {
		snprintf(text, sizeof(text), "%.*g", digits++, value);
	} while (strtod(text, NULL) != value);
	return cJSON_AddRawToObject(object, key, text);
}

static bool is_integer(const cJSON *item)
{
	return cJSON_IsNumber(item) && fabs(item->valuedouble) <= (double)MAX_EXACT &&
	       item->valuedouble == floor(item->valuedouble);
}

/* False when the item is of another type than the field, or missing although required. */
static bool read_field(struct run_record *r, const struct record_field *f, const cJSON *item)
{
	char *at = (char *)r + f->offset;

	if (!item)
		return !f->required;
	switch (f->type) {
	case RECORD_TEXT:
		*(const char **)at = cJSON_GetStringValue(item);
		return cJSON_IsString(item);
	case RECORD_INT:
		*(int64_t *)at = is_integer(item) ? (int64_t)item->valuedouble : 0;
		return is_integer(item);
	case RECORD_BOOL:
		*(bool *)at = cJSON_IsTrue(item);
		return cJSON_IsBool(item);
	}
	return false;
}

static enum status read_config(struct record_file *file, const cJSON *config, struct error *err)
{
	const int count = cJSON_GetArraySize(config);
	const cJSON *item;
	int n = 0;

	if (!cJSON_IsObject(config))
		return fail(err, "\"config\" is not an object");
	file->symbols = calloc((size_t)count + 1, sizeof(*file->symbols));
	if (!file->symbols)
		return fail_memory(err, "config", (size_t)count * sizeof(*file->symbols));
	cJSON_ArrayForEach (item, config) {
		if (!is_symbol(item->string))
			return fail(err, "\"config\": '%s' is no symbol", item->string);
		if (!cJSON_IsString(item))
			return fail(err, "\"config\": %s is no text", item->string);
		file->symbols[n++] = (struct run_symbol){ item->string, item->valuestring };
	}
	file->record.config = file->symbols;
	file->record.symbols = n;
	return OK;
}

/* Names become paths and words of make: here is where a file's texts become names. */
static enum status check_names(const struct run_record *r, struct error *err)
{
	if (name_check("experiment", r->experiment, err) || step_check("step", r->step, err) ||
	    (r->baseline && step_check("baseline", r->baseline, err)))
		return FAIL;
	return identity_check(r->identity, err);
}

static enum status read_record(struct record_file *file, struct error *err)
{
	const cJSON *format = cJSON_GetObjectItemCaseSensitive(file->json, "format");

	if (!cJSON_IsObject(file->json))
		return fail(err, "not a JSON object");
	if (!cJSON_IsNumber(format) || format->valuedouble != FORMAT)
		return fail(err, "\"format\" is not %d", FORMAT);
	for (int i = 0; i < n_record_fields; i++) {
		const struct record_field *f = &record_fields[i];

		if (!read_field(&file->record, f,
				cJSON_GetObjectItemCaseSensitive(file->json, f->name)))
			return fail(err, "\"%s\" is missing or of the wrong type", f->name);
	}
	if (check_names(&file->record, err))
		return FAIL;
	return read_config(file, cJSON_GetObjectItemCaseSensitive(file->json, "config"), err);
}

enum status record_parse(struct record_file *file, const char *text, struct error *err)
{
	*file = (struct record_file){ .json = cJSON_ParseWithOpts(text, NULL, true) };
	if (read_record(file, err) == OK)
		return OK;
	record_free(file);
	return FAIL;
}

enum status record_read(struct record_file *file, const char *run_dir, struct error *err)
{
	enum status status;
	char *path, *text;
	size_t size;

	*file = (struct record_file){ 0 };
	if (path_below(run_dir, RUN_RECORD_FILE, &path, err))
		return FAIL;
	status = read_path(path, &text, &size, err);
	if (status == OK) {
		status = record_parse(file, text, err);
		free(text);
		if (status)
			fail_prefix(err, "%s", path);
	}
	free(path);
	return status;
}

void record_free(struct record_file *file)
{
	free(file->symbols);
	cJSON_Delete(file->json);
	*file = (struct record_file){ 0 };
}

static bool add_field(cJSON *json, const struct run_record *r, const struct record_field *f)
{
	if (f->type == RECORD_INT)
		return add_number(json, f->name, (double)record_number(r, f));
	if (f->type == RECORD_BOOL)
		return cJSON_AddBoolToObject(json, f->name, (cJSON_bool)record_number(r, f));
	return add_text(json, f->name, record_text(r, f));
}

static bool add_record(cJSON *json, const struct run_record *r)
{
	cJSON *config;

	if (!add_number(json, "format", FORMAT))
		return false;
	for (int i = 0; i < n_record_fields; i++)
		if (!add_field(json, r, &record_fields[i]))
			return false;
	config = cJSON_AddObjectToObject(json, "config");
	for (int i = 0; config && i < r->symbols; i++)
		if (!add_text(config, r->config[i].name, r->config[i].value))
			return false;
	return config;
}

char *record_json(const struct run_record *r)
{
	cJSON *json = cJSON_CreateObject();
	char *text = add_record(json, r) ? cJSON_Print(json) : NULL;

	cJSON_Delete(json);
	return text;
}

enum status record_write(const struct run_record *r, const char *run_dir, struct error *err)
{
	char *text = record_json(r), *path = NULL;
	enum status status = FAIL;
	struct replace file;

	if (!text) {
		fail_memory(err, RUN_RECORD_FILE, 0);
	} else if (path_below(run_dir, RUN_RECORD_FILE, &path, err) == OK &&
		   replace_begin(&file, path, err) == OK) {
		fprintf(file.stream, "%s\n", text);
		status = replace_commit(&file, err);
	}
	free(path);
	cJSON_free(text);
	return status;
}

bool record_environment_differs(const struct run_record *then, const struct run_record *now,
				struct error *how)
{
	const struct {
		const char *name, *then, *now; /* NULL: not known */
	} parts[] = {
		{ "compiler", then->compiler, now->compiler },
		{ "flags", then->flags, now->flags },
		{ "BLAS", then->blas, now->blas },
		{ "machine", then->machine, now->machine },
	};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (!parts[i].then || !parts[i].now || !strcmp(parts[i].then, parts[i].now))
			continue;
		fail(how, "%s '%s' then, '%s' now", parts[i].name, parts[i].then, parts[i].now);
		return true;
	}
	return false;
}

/* --------------------------------------------------------------- lines */

/* The keys of each kind; NULL: a member that the kind does not have. */
static const struct {
	const char *kind, *iteration, *name, *subject, *text, *number, *value, *run;
} keys[ENTRY_KINDS] = {
	[ENTRY_START] = { .kind = "start",
			  .iteration = "iteration",
			  .subject = "host",
			  .number = "pid",
			  .text = "process",
			  .run = "run" },
	[ENTRY_VALUE] = { .kind = "value",
			  .iteration = "iteration",
			  .name = "name",
			  .value = "value" },
	[ENTRY_EVENT] = { .kind = "event",
			  .iteration = "iteration",
			  .name = "name",
			  .text = "text" },
	[ENTRY_AUDIT] = { .kind = "audit",
			  .name = "name",
			  .subject = "subject",
			  .number = "passed",
			  .text = "detail" },
	[ENTRY_ARTIFACT] = { .kind = "artifact",
			     .name = "name",
			     .subject = "path",
			     .text = "sha256",
			     .number = "bytes" },
	[ENTRY_END] = { .kind = "end", .name = "state", .text = "reason" },
};

static bool get_number(const cJSON *item, double *value)
{
	const char *text = cJSON_GetStringValue(item);

	if (cJSON_IsNumber(item))
		*value = item->valuedouble;
	else if (text && !strcmp(text, "nan"))
		*value = NAN;
	else if (text && !strcmp(text, "inf"))
		*value = INFINITY;
	else if (text && !strcmp(text, "-inf"))
		*value = -INFINITY;
	else
		return false;
	return true;
}

static bool add_entry(cJSON *line, const struct entry *e)
{
	return add_text(line, "kind", keys[e->kind].kind) && add_number(line, "time", e->time) &&
	       add_number(line, keys[e->kind].iteration, (double)e->iteration) &&
	       add_text(line, keys[e->kind].name, e->name) &&
	       add_text(line, keys[e->kind].subject, e->subject) &&
	       add_number(line, keys[e->kind].number, (double)e->number) &&
	       add_number(line, keys[e->kind].value, e->value) &&
	       add_text(line, keys[e->kind].text, e->text) &&
	       add_text(line, keys[e->kind].run, e->run) &&
	       add_number(line, LINE_KEY, (double)e->line);
}

/* The line without its sum, brace and newline; NULL: out of memory. */
static char *print_entry(const struct entry *e)
{
	cJSON *line = cJSON_CreateObject();
	char *text = add_entry(line, e) ? cJSON_PrintUnformatted(line) : NULL;

	cJSON_Delete(line);
	if (text)
		text[strlen(text) - 1] = '\0'; /* drop the brace: a sum follows */
	return text;
}

static bool find_kind(const cJSON *line, enum entry_kind *kind)
{
	const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, "kind"));

	for (int i = 0; name && i < ENTRY_KINDS; i++)
		if (!strcmp(name, keys[i].kind)) {
			*kind = (enum entry_kind)i;
			return true;
		}
	return false;
}

static bool get_integer(const cJSON *line, const char *key, int64_t *value)
{
	const cJSON *item = key ? cJSON_GetObjectItemCaseSensitive(line, key) : NULL;

	if (!key)
		return true;
	*value = is_integer(item) ? (int64_t)item->valuedouble : 0;
	return is_integer(item);
}

static bool get_text(const cJSON *line, const char *key, bool required, const char **value)
{
	const cJSON *item = key ? cJSON_GetObjectItemCaseSensitive(line, key) : NULL;

	*value = cJSON_GetStringValue(item);
	return !key || (item ? cJSON_IsString(item) : !required);
}

static bool parse_entry(const cJSON *line, struct entry *e)
{
	const char *value;

	if (!find_kind(line, &e->kind) ||
	    !get_number(cJSON_GetObjectItemCaseSensitive(line, "time"), &e->time))
		return false;
	value = keys[e->kind].value;
	return get_integer(line, keys[e->kind].iteration, &e->iteration) &&
	       get_integer(line, keys[e->kind].number, &e->number) &&
	       get_text(line, keys[e->kind].name, true, &e->name) &&
	       get_text(line, keys[e->kind].subject, false, &e->subject) &&
	       get_text(line, keys[e->kind].text, false, &e->text) &&
	       get_text(line, keys[e->kind].run, false, &e->run) &&
	       (!value || get_number(cJSON_GetObjectItemCaseSensitive(line, value), &e->value));
}

static bool is_later(const struct entry *e, int64_t iteration)
{
	return keys[e->kind].iteration && e->iteration > iteration;
}

/* Reads a line without its newline.  The entry lives as long as *json, which the caller deletes. */
static bool read_line(const char *text, size_t size, struct entry *e, cJSON **json)
{
	const char *end = NULL;

	*json = memchr(text, '\0', size) ? NULL
					 : cJSON_ParseWithLengthOpts(text, size, &end, false);
	return *json && end == text + size && parse_entry(*json, e);
}

enum status journal_visit(const char *text, size_t size, int64_t first_line, entry_visitor visit,
			  void *context, struct error *err)
{
	struct entry e = { .line = first_line };
	enum status status = OK;
	const char *end;
	cJSON *json;

	for (size_t at = 0; at < size && status == OK; at = (size_t)(end - text) + 1, e.line++) {
		end = memchr(text + at, '\n', size - at);
		assert(end);
		if (read_line(text + at, (size_t)(end - (text + at)), &e, &json))
			status = visit(context, &e, err);
		else
			status = fail(err, "line %lld is damaged", (long long)e.line);
		cJSON_Delete(json);
	}
	return status;
}

struct soundness {
	size_t size;	     /* of the sound lines at the start */
	int64_t lines;	     /* their number */
	struct line_sum sum; /* of the last sound line */
	bool vouched;	     /* the last sound line states its sum */
	bool holds_mark;
	bool damaged; /* a crash does not explain what follows the sound lines */
};

/* Takes the line as the next one.  True: it states a sum, and the sum fits. */
static bool is_vouched(const struct soundness *s, const char *line, size_t size,
		       struct soundness *next)
{
	struct line_sum stated;
	const size_t covered = line_sum_covers(line, size, &stated);

	*next = *s;
	next->lines++;
	next->size += size + 1;
	next->vouched = stated.hex[0];
	line_sum_add(&next->sum, line, covered);
	return next->vouched && line_sum_equal(&next->sum, &stated);
}

static bool is_at(const struct soundness *s, const struct journal_mark *mark)
{
	return s->lines == mark->lines && line_sum_equal(&s->sum, &mark->sum);
}

/*
 * A line whose sum fits is sound, also if there is no memory to read it.  After the first line
 * with a sum, every line must have one.  A readable line that cannot follow the line before it is
 * damage; unreadable lines at the end are the remains of a crash.
 */
static struct soundness look_at_lines(const char *text, size_t size,
				      const struct journal_mark *mark)
{
	struct soundness s = { 0 }, next;
	bool sound = true;
	const char *end;

	for (const char *at = text; at < text + size && !s.damaged; at = end + 1) {
		const size_t room = (size_t)(text + size - at);
		cJSON *json = NULL;
		bool is_next;
		struct entry e;

		end = memchr(at, '\n', room);
		if (!end)
			break;
		is_next = sound && is_vouched(&s, at, (size_t)(end - at), &next);
		if (!is_next && read_line(at, (size_t)(end - at), &e, &json)) {
			is_next = sound && !next.vouched && !s.vouched;
			s.damaged = !is_next;
		}
		cJSON_Delete(json);
		sound = sound && is_next;
		if (is_next)
			s = next;
		s.holds_mark |= is_next && mark && is_at(&s, mark);
	}
	return s;
}

#define START "{\"kind\":\"start\"" /* how journal_add() begins such a line */

/* Visits the starts alone: there are few, and parsing takes time.  Stops after a FAIL. */
static enum status visit_starts(const char *text, size_t size, entry_visitor visit, void *context,
				struct error *err)
{
	struct entry e = { .line = 1 };
	enum status status = OK;
	const char *end;

	for (const char *at = text; status == OK && at < text + size; at = end + 1, e.line++) {
		const size_t room = (size_t)(text + size - at);
		cJSON *json = NULL;

		end = memchr(at, '\n', room);
		if (!end)
			break;
		if (room > strlen(START) && memcmp(at, START, strlen(START)) == 0 &&
		    read_line(at, (size_t)(end - at), &e, &json))
			status = visit(context, &e, err);
		cJSON_Delete(json);
	}
	return status;
}

struct owner {
	const char *path, *identity;
};

static enum status refuse_other_run(void *context, const struct entry *e, struct error *err)
{
	const struct owner *owner = context;

	if (!e->run || !strcmp(e->run, owner->identity))
		return OK;
	if (e->run[strspn(e->run, "0123456789abcdef")]) /* not for a terminal */
		return fail(err, "%s: line %lld does not name a run", owner->path,
			    (long long)e->line);
	return fail(err,
		    "%s is the journal of another run: line %lld is of %.12s, this run is %.12s",
		    owner->path, (long long)e->line, e->run, owner->identity);
}

static enum status check_owner(const char *path, const char *identity, const char *text,
			       size_t size, struct error *err)
{
	struct owner owner = { path, identity };

	return visit_starts(text, size, refuse_other_run, &owner, err);
}

static enum status note_bound(void *context, const struct entry *e, struct error *err)
{
	(void)err;
	*(bool *)context |= e->run != NULL;
	return OK;
}

bool journal_is_bound(const char *text, size_t size)
{
	bool is_bound = false;
	struct error ignored;

	return visit_starts(text, size, note_bound, &is_bound, &ignored) == OK && is_bound;
}

static enum status fail_damaged(const struct soundness *s, const char *path, struct error *err)
{
	return fail(err, "%s: line %lld is damaged, and other lines follow it", path,
		    (long long)s->lines + 1);
}

static enum status keep_sound_lines(const char *path, char *text, size_t *size, struct error *err)
{
	const struct soundness s = look_at_lines(text, *size, NULL);

	if (s.damaged)
		return fail_damaged(&s, path, err);
	*size = s.size;
	text[s.size] = '\0';
	return OK;
}

static enum status read_sound(int fd, const char *path, const char *identity, char **text,
			      size_t *size, struct error *err)
{
	if (read_all(fd, path, text, size, err))
		return FAIL;
	if (keep_sound_lines(path, *text, size, err) ||
	    check_owner(path, identity, *text, *size, err)) {
		free(*text);
		return FAIL;
	}
	return OK;
}

enum status journal_read(const char *run_dir, const char *identity, char **text, size_t *size,
			 struct error *err)
{
	enum status status = FAIL;
	char *path;
	int fd;

	if (path_below(run_dir, JOURNAL_FILE, &path, err))
		return FAIL;
	fd = open(path, READING);
	if (fd >= 0) {
		status = read_sound(fd, path, identity, text, size, err);
		close(fd);
	} else if (errno == ENOENT) {
		*size = 0;
		*text = calloc(1, 1);
		status = *text ? OK : fail_memory(err, path, 1);
	} else {
		fail_errno(err, "%s", path);
	}
	free(path);
	return status;
}

/* A missing journal has no lines. */
static enum status look_at_journal(const char *path, const struct journal_mark *mark,
				   struct soundness *s, struct error *err)
{
	char *text;
	size_t size;

	*s = (struct soundness){ 0 };
	if (access(path, F_OK) != 0)
		return OK;
	if (read_path(path, &text, &size, err))
		return FAIL;
	*s = look_at_lines(text, size, mark);
	free(text);
	return OK;
}

enum status journal_holds(const char *run_dir, const struct journal_mark *mark, struct error *err)
{
	enum status status = OK;
	struct soundness s;
	char *path;

	if (!mark->lines)
		return OK;
	if (path_below(run_dir, JOURNAL_FILE, &path, err))
		return FAIL;
	if (look_at_journal(path, mark, &s, err))
		status = FAIL;
	else if (!s.holds_mark && s.lines < mark->lines)
		status = fail(err, "%s has lost lines %lld to %lld", path, (long long)s.lines + 1,
			      (long long)mark->lines);
	else if (!s.holds_mark)
		status = fail(err, "%s was changed within its first %lld lines", path,
			      (long long)mark->lines);
	free(path);
	return status;
}

/* --------------------------------------------------------------- writing */

struct cut {
	int64_t resume_iteration, kept;
	bool found;
};

static enum status look_for_cut(void *context, const struct entry *e, struct error *err)
{
	struct cut *cut = context;

	(void)err;
	cut->found |= is_later(e, cut->resume_iteration);
	cut->kept += !cut->found;
	return OK;
}

static size_t length_of_lines(const char *text, int64_t lines)
{
	const char *at = text;

	while (lines-- > 0)
		at = strchr(at, '\n') + 1;
	return (size_t)(at - text);
}

/* Finds the last line that the checkpoint covers. */
static enum status look_for_end(struct journal *j, int64_t resume_iteration, const char *text,
				size_t size, struct error *err)
{
	struct cut cut = { .resume_iteration = resume_iteration };
	struct soundness s = look_at_lines(text, size, NULL);
	enum status status;

	if (s.damaged && !s.vouched)
		status = fail_damaged(&s, j->path, err);
	else
		status = journal_visit(text, s.size, 1, look_for_cut, &cut, err);
	if (status == OK && cut.kept == 0)
		status = fail(err, "%s: nothing is left of the run up to its checkpoint", j->path);
	if (status == OK) {
		s = look_at_lines(text, length_of_lines(text, cut.kept), NULL);
		j->size = (off_t)s.size;
		j->lines = s.lines;
		j->sum = s.sum;
	}
	return status;
}

static enum status cut_journal(struct journal *j, const char *identity, int64_t resume_iteration,
			       struct error *err)
{
	enum status status;
	size_t size;
	char *text;

	if (read_all(j->fd, j->path, &text, &size, err))
		return FAIL;
	status = check_owner(j->path, identity, text, size, err);
	if (status == OK && resume_iteration >= 0)
		status = look_for_end(j, resume_iteration, text, size, err);
	free(text);
	if (status == OK && ftruncate(j->fd, j->size))
		status = fail_errno(err, "%s", j->path);
	return status;
}

/* A file system without locks is accepted: the lock only guards against mistakes. */
static bool is_locked(int fd)
{
	return flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
}

bool journal_is_open(const char *run_dir)
{
	struct error err;
	bool locked;
	char *path;
	int fd;

	if (path_below(run_dir, JOURNAL_FILE, &path, &err))
		return false;
	fd = open(path, O_RDWR | O_CLOEXEC);
	free(path);
	if (fd < 0)
		return false;
	locked = is_locked(fd);
	close(fd);
	return locked;
}

enum status journal_open(struct journal *j, const char *run_dir, const char *identity,
			 int64_t resume_iteration, struct error *err)
{
	*j = (struct journal){ .fd = -1 };
	if (path_below(run_dir, JOURNAL_FILE, &j->path, err))
		return FAIL;
	j->fd = open(j->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (j->fd < 0)
		fail_errno(err, "%s", j->path);
	else if (is_locked(j->fd))
		fail(err, "%s: another process is working on this run", j->path);
	else if (cut_journal(j, identity, resume_iteration, err) == OK)
		return OK;
	journal_close(j);
	return FAIL;
}

void journal_close(struct journal *j)
{
	if (j->fd >= 0)
		close(j->fd);
	free(j->path);
	free(j->pending);
	*j = (struct journal){ .fd = -1 };
}

static bool make_room(struct journal *j, size_t more)
{
	const size_t room = 2 * (j->pending_size + more);
	char *grown;

	if (j->pending_size + more <= j->pending_room)
		return true;
	grown = realloc(j->pending, room);
	if (!grown)
		return false;
	j->pending = grown;
	j->pending_room = room;
	return true;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (double)t.tv_sec + 1e-3 * (double)(t.tv_nsec / 1000000);
}

void journal_add(struct journal *j, struct entry e)
{
	const size_t most = sizeof(LINE_SUM_FORMAT) + LINE_SUM_DIGITS + 1; /* sum and newline */
	char *text;
	size_t length;

	e.time = now();
	e.line = j->lines + j->pending_lines + 1;
	text = print_entry(&e);
	length = text ? strlen(text) : 0;
	if (text && make_room(j, length + most)) {
		line_sum_add(&j->sum, text, length);
		j->pending_size += (size_t)sprintf(j->pending + j->pending_size,
						   "%s" LINE_SUM_FORMAT "\n", text, j->sum.hex);
		j->pending_lines++;
	} else {
		j->out_of_memory = true;
	}
	cJSON_free(text);
}

static bool write_pending(const struct journal *j)
{
	for (size_t done = 0; done < j->pending_size;) {
		const ssize_t n = pwrite(j->fd, j->pending + done, j->pending_size - done,
					 j->size + (off_t)done);

		if (n < 0 && errno != EINTR)
			return false;
		done += n > 0 ? (size_t)n : 0;
	}
	return fdatasync(j->fd) == 0;
}

enum status journal_commit(struct journal *j, struct error *err)
{
	if (j->out_of_memory)
		return fail_memory(err, j->path, j->pending_room);
	if (!write_pending(j)) {
		fail_errno(err, "%s", j->path);
		if (ftruncate(j->fd, j->size))
			return fail_prefix(err, "half a line may be left");
		return FAIL;
	}
	j->size += (off_t)j->pending_size;
	j->lines += j->pending_lines;
	return OK;
}

struct journal_mark journal_mark(const struct journal *j)
{
	assert(j->pending_lines == 0);
	return (struct journal_mark){ .lines = j->lines, .sum = j->sum };
}

void journal_forget_pending(struct journal *j)
{
	j->pending_size = 0;
	j->pending_lines = 0;
}
