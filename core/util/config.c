#include "core/util/config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/builtin.h"
#include "core/util/pool.h"

struct symbol {
	struct symbol *next;
	const char *name;
	const char *value; /* NULL: inactive */
	enum config_type type;
	bool read, sealed;
};

struct config {
	struct pool memory;
	struct symbol *first, **end; /* in the order of the table */
	bool failed;
	struct error error; /* of the first lookup that failed */
};

static const char *const type_names[] = { "y or n", "an integer", "text" };

/* ---------------------------------------------------------------- numbers */

enum status parse_real(const char *text, double *value, struct error *err)
{
	char *end;

	errno = 0;
	*value = strtod(text, &end);
	/* strtod() would also take white space, hexadecimal, infinity and not-a-number. */
	if (end == text || *end || strspn(text, "+-.0123456789eE") != strlen(text))
		return fail(err, "'%s' is not a decimal number", text);
	if (errno == ERANGE || !isfinite(*value))
		return fail(err, "'%s' is too large or too small for a double", text);
	return OK;
}

static bool parse_integer(const char *text, int64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoimax(text, &end, 10);
	return end != text && !*end && !errno && strspn(text, "-0123456789") == strlen(text);
}

static bool fits(enum config_type type, const char *value)
{
	int64_t ignored;

	switch (type) {
	case CONFIG_BOOL:
		return !strcmp(value, "y") || !strcmp(value, "n");
	case CONFIG_INT:
		return parse_integer(value, &ignored);
	case CONFIG_TEXT:
		return true;
	}
	return false;
}

static enum config_type type_of(const char *value)
{
	if (fits(CONFIG_BOOL, value))
		return CONFIG_BOOL;
	return fits(CONFIG_INT, value) ? CONFIG_INT : CONFIG_TEXT;
}

/* ---------------------------------------------------------------- the list of symbols */

static struct symbol *find(const struct config *c, const char *name)
{
	for (struct symbol *s = c->first; s; s = s->next)
		if (!strcmp(s->name, name))
			return s;
	return NULL;
}

static enum status new_config(struct config **c, struct error *err)
{
	*c = calloc(1, sizeof(**c));
	if (!*c)
		return fail_memory(err, "configuration", sizeof(**c));
	(*c)->end = &(*c)->first;
	return OK;
}

void config_free(struct config *c)
{
	if (!c)
		return;
	pool_free(&c->memory);
	free(c);
}

/* Names and values must outlive the configuration. */
static enum status add(struct config *c, const char *name, enum config_type type, const char *value,
		       struct error *err)
{
	struct symbol *s = pool_alloc(&c->memory, sizeof(*s));

	if (!s)
		return fail_memory(err, name, sizeof(*s));
	*s = (struct symbol){ .name = name, .type = type, .value = value };
	*c->end = s;
	c->end = &s->next;
	return OK;
}

enum status config_builtin(struct config **c, struct error *err)
{
	if (new_config(c, err))
		return FAIL;
	for (int i = 0; builtin[i].name; i++) {
		if (add(*c, builtin[i].name, builtin[i].type, builtin[i].value, err)) {
			config_free(*c);
			*c = NULL;
			return FAIL;
		}
	}
	return OK;
}

enum status config_copy(struct config **copy, const struct config *c, struct error *err)
{
	if (new_config(copy, err))
		return FAIL;
	for (const struct symbol *s = c->first; s; s = s->next) {
		if (add(*copy, s->name, s->type, s->value, err)) {
			config_free(*copy);
			*copy = NULL;
			return FAIL;
		}
	}
	return OK;
}

enum status config_vary(struct config **copy, const struct config *c, const char *name,
			const char *value, struct error *err)
{
	if (config_copy(copy, c, err))
		return FAIL;
	for (struct symbol *s = (*copy)->first, *from = c->first; s;
	     s = s->next, from = from->next) {
		s->read = from->read;
		s->sealed = from->sealed;
	}
	if (config_raw(c, name) ? config_set(*copy, name, value, err)
				: fail(err, "CONFIG_%s has no value to replace", name)) {
		config_free(*copy);
		*copy = NULL;
		return FAIL;
	}
	return OK;
}

enum status config_set(struct config *c, const char *name, const char *value, struct error *err)
{
	struct symbol *s = find(c, name);
	char *copy;

	if (s && !fits(s->type, value))
		return fail(err, "CONFIG_%s takes %s, not '%s'", name, type_names[s->type], value);
	copy = pool_printf(&c->memory, "%s", value);
	if (!copy)
		return fail_memory(err, name, strlen(value) + 1);
	if (s) {
		s->value = copy;
		return OK;
	}
	name = pool_printf(&c->memory, "%s", name);
	if (!name)
		return fail_memory(err, "symbol", strlen(value) + 1);
	return add(c, name, type_of(copy), copy, err);
}

/* ---------------------------------------------------------------- the text of a .config */

/* "a \"b\" \\c" becomes a "b" \c, in place; false when the quotes do not end the text. */
static bool unquote(char *text)
{
	char *to = text;

	for (const char *from = text + 1; *from; from++) {
		if (*from == '"') {
			*to = '\0';
			return !from[1];
		}
		if (*from == '\\' && !*++from)
			return false;
		*to++ = *from;
	}
	return false;
}

static enum status parse_assignment(struct config *c, char *name, struct error *err)
{
	size_t length = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
	char *value = name + length + 1;
	enum config_type type;
	double real;

	if (!length || name[length] != '=' || !*value)
		return fail(err, "expected CONFIG_NAME=value");
	name[length] = '\0';
	if (find(c, name))
		return fail(err, "CONFIG_%s is assigned twice", name);
	type = type_of(value);
	if (*value == '"' ? !unquote(value) : type == CONFIG_TEXT && parse_real(value, &real, err))
		return fail(err, "CONFIG_%s: text must stand between double quotes", name);
	return add(c, name, type, value, err);
}

static enum status parse_line(struct config *c, char *line, struct error *err)
{
	static const char prefix[] = "CONFIG_", unset_prefix[] = "# CONFIG_",
			  unset_suffix[] = " is not set";
	char *suffix = strstr(line, unset_suffix);

	if (!strncmp(line, prefix, strlen(prefix)))
		return parse_assignment(c, line + strlen(prefix), err);
	if (!strncmp(line, unset_prefix, strlen(unset_prefix)) && suffix &&
	    !suffix[strlen(unset_suffix)]) {
		strcpy(suffix, "=n");
		return parse_assignment(c, line + strlen(unset_prefix), err);
	}
	if (*line && *line != '#')
		return fail(err, "expected CONFIG_NAME=value or a comment");
	return OK;
}

static enum status parse_lines(struct config *c, const char *text, struct error *err)
{
	char *line = pool_printf(&c->memory, "%s", text);
	char *next;
	int number = 1;

	if (!line)
		return fail_memory(err, "configuration", strlen(text) + 1);
	for (; line; line = next, number++) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (parse_line(c, line, err))
			return fail_prefix(err, "line %d", number);
	}
	return OK;
}

enum status config_parse(struct config **c, const char *text, struct error *err)
{
	if (new_config(c, err))
		return FAIL;
	if (parse_lines(*c, text, err)) {
		config_free(*c);
		*c = NULL;
		return FAIL;
	}
	return OK;
}

/* ---------------------------------------------------------------- lookups */

static void remember(struct config *c, const struct error *err)
{
	if (!c->failed)
		c->error = *err;
	c->failed = true;
}

/* The symbol, or NULL; the configuration remembers the reason. */
static struct symbol *look_up(struct config *c, const char *name, enum config_type type)
{
	struct symbol *s = find(c, name);
	struct error err;

	if (s)
		s->read = true;
	if (s && s->type == type)
		return s;
	if (s)
		fail(&err, "CONFIG_%s is %s, but %s is requested", name, type_names[s->type],
		     type_names[type]);
	else
		fail(&err, "there is no symbol CONFIG_%s", name);
	remember(c, &err);
	return NULL;
}

/* The symbol's value, or NULL; the configuration remembers the reason. */
static const char *value_of(struct config *c, const char *name, enum config_type type)
{
	struct symbol *s = look_up(c, name, type);
	struct error err;

	if (s && !s->value) {
		fail(&err, "CONFIG_%s is inactive: something it depends on is off", name);
		remember(c, &err);
	}
	return s ? s->value : NULL;
}

/* An unmet dependency switches a symbol off, so an inactive bool is false and no error. */
bool config_bool(struct config *c, const char *name)
{
	struct symbol *s = look_up(c, name, CONFIG_BOOL);

	return s && s->value && !strcmp(s->value, "y");
}

int64_t config_int(struct config *c, const char *name)
{
	const char *text = value_of(c, name, CONFIG_INT);
	struct error err;
	int64_t value;

	if (!text)
		return 0;
	if (parse_integer(text, &value))
		return value;
	fail(&err, "CONFIG_%s: '%s' is not a 64-bit integer", name, text);
	remember(c, &err);
	return 0;
}

const char *config_raw(const struct config *c, const char *name)
{
	const struct symbol *s = find(c, name);

	return s ? s->value : NULL;
}

const char *config_text(struct config *c, const char *name)
{
	const char *text = value_of(c, name, CONFIG_TEXT);

	return text ? text : "";
}

/* An integer is a number too: a text such as CONFIG_GRAD_CLIP=1 parses as one. */
double config_real(struct config *c, const char *name)
{
	const struct symbol *s = find(c, name);
	bool integer = s && s->type == CONFIG_INT;
	const char *text = value_of(c, name, integer ? CONFIG_INT : CONFIG_TEXT);
	struct error err;
	double value;

	if (!text)
		return 0;
	if (parse_real(text, &value, &err) == OK)
		return value;
	fail_prefix(&err, "CONFIG_%s", name);
	remember(c, &err);
	return 0;
}

int config_choice(struct config *c, const char *name, const char *const *values)
{
	const char *text = value_of(c, name, CONFIG_TEXT);
	struct error err;

	if (!text)
		return 0;
	for (int i = 0; values[i]; i++)
		if (!strcmp(values[i], text))
			return i;
	fail(&err, "CONFIG_%s: '%s' is not known to this program", name, text);
	remember(c, &err);
	return 0;
}

enum status config_check(const struct config *c, struct error *err)
{
	if (!c->failed)
		return OK;
	*err = c->error;
	return FAIL;
}

void config_visit_read(const struct config *c,
		       void (*visit)(void *context, const char *name, const char *value),
		       void *context)
{
	for (const struct symbol *s = c->first; s; s = s->next)
		if (s->read && s->value)
			visit(context, s->name, s->value);
}

void config_seal(struct config *c)
{
	for (struct symbol *s = c->first; s; s = s->next)
		s->sealed = s->read;
}

void config_visit_sealed(const struct config *c,
			 void (*visit)(void *context, const char *name, const char *value),
			 void *context)
{
	for (const struct symbol *s = c->first; s; s = s->next)
		if (s->sealed && s->value)
			visit(context, s->name, s->value);
}

/* The next symbol, from `s` on, that is on or has a value but was never read; or NULL. */
static const struct symbol *next_unread(const struct symbol *s)
{
	for (; s; s = s->next) {
		bool off = s->type == CONFIG_BOOL && strcmp(s->value ? s->value : "n", "n") == 0;

		if (!s->read && s->value && !off)
			return s;
	}
	return NULL;
}

int config_unread(const struct config *c, FILE *file)
{
	int unread = 0;

	for (const struct symbol *s = next_unread(c->first); s; s = next_unread(s->next)) {
		fprintf(file, "%s\n", s->name);
		unread++;
	}
	return unread;
}

enum status config_check_read(const struct config *c, struct error *err)
{
	const struct symbol *s = next_unread(c->first);

	if (!s)
		return OK;
	return fail(
		err,
		"CONFIG_%s=%s is set, but no code of this program reads it: either its object is "
		"not linked (see models/Makefile and data/Makefile), or its name is misspelt "
		"where it is read",
		s->name, s->value);
}
