/*
 * config - what was chosen in Kconfig, by symbol name.
 *
 * builtin.c is the only file that includes the generated symbols.  Code asks
 * for a symbol by its name, without the CONFIG_ prefix.  config_check() returns
 * the first lookup that went wrong (no such symbol, wrong type, malformed
 * number), so code that reads many symbols stays short.
 * A choice is read through its string symbol: config_text(c, "ATTENTION")
 * is "mla" when CONFIG_ATTENTION_MLA is chosen.
 */
#ifndef CORE_UTIL_CONFIG_H
#define CORE_UTIL_CONFIG_H

#include <stdint.h>
#include <stdio.h>

#include "core/util/status.h"

enum config_type { CONFIG_BOOL, CONFIG_INT, CONFIG_TEXT };

struct config;

/* The configuration compiled into this program. */
enum status config_builtin(struct config **c, struct error *err) MUST_CHECK;

/* From lines as in a .config: CONFIG_X=y, CONFIG_N=3, CONFIG_S="text", "# CONFIG_X is not set". */
enum status config_parse(struct config **c, const char *text, struct error *err) MUST_CHECK;

/* The same values, none of them read yet; the original must outlive the copy. */
enum status config_copy(struct config **copy, const struct config *c, struct error *err) MUST_CHECK;

/*
 * The same, with the same symbols read, and with another value for one symbol that has one.  A
 * symbol that is read later in one of them is not read in the other.
 */
enum status config_vary(struct config **copy, const struct config *c, const char *name,
			const char *value, struct error *err) MUST_CHECK;

void config_free(struct config *c);

/* Replaces a value or adds a symbol: for tests, tools and audits. */
enum status config_set(struct config *c, const char *name, const char *value,
		       struct error *err) MUST_CHECK;

bool config_bool(struct config *c, const char *name);
int64_t config_int(struct config *c, const char *name);
const char *config_text(struct config *c, const char *name);

/* Kconfig has no float type: a string symbol, read strictly as one finite decimal number. */
double config_real(struct config *c, const char *name);

/* The place of a text symbol's value in a list that ends with NULL; an unknown value is an error.
 */
int config_choice(struct config *c, const char *name, const char *const *values);

/* The value as text, of any type, without marking it as read; NULL: inactive or unknown. */
const char *config_raw(const struct config *c, const char *name);

/* The first lookup that failed, if any. */
enum status config_check(const struct config *c, struct error *err) MUST_CHECK;

/* Calls `visit` for every symbol that was read so far, in the order of the table. */
void config_visit_read(const struct config *c,
		       void (*visit)(void *context, const char *name, const char *value),
		       void *context);

/* The symbols read so far are those that decide what a run computes: its identity has them. */
void config_seal(struct config *c);
void config_visit_sealed(const struct config *c,
			 void (*visit)(void *context, const char *name, const char *value),
			 void *context);

/* Prints the symbols that are on or have a value but were never read; returns their number. */
int config_unread(const struct config *c, FILE *file);

/* FAIL if there is such a symbol.  Call this when everything has been read. */
enum status config_check_read(const struct config *c, struct error *err) MUST_CHECK;

/* One strict parser for numbers, used by config_real() and by tools. */
enum status parse_real(const char *text, double *value, struct error *err) MUST_CHECK;

#endif
