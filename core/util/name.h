/*
 * name - what files say and programs use as a name: of an experiment, a step, a run, a symbol.
 *
 * Names become paths, words of make and of a shell.  So a name has only what means nothing to any
 * of these.  tools/results/names.py has the same rules.
 */
#ifndef CORE_UTIL_NAME_H
#define CORE_UTIL_NAME_H

#include "core/util/status.h"

/* Of an experiment: letters, digits and ._+-, of which neither . nor - comes first. */
bool is_name(const char *text);

/* Of a step: a name, and maybe @ and the rate that it tries. */
bool is_step(const char *text);

/* A SHA-256 sum: 64 hexadecimal digits, in small letters. */
bool is_identity(const char *text);

/* Of Kconfig: capital letters, small letters, digits and _. */
bool is_symbol(const char *text);

/* FAIL: it is none, and err says what it is and what a name has. */
enum status name_check(const char *what, const char *text, struct error *err) MUST_CHECK;
enum status step_check(const char *what, const char *text, struct error *err) MUST_CHECK;
enum status identity_check(const char *text, struct error *err) MUST_CHECK;

#endif
