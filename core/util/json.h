/*
 * json - parses a text that is one JSON object and nothing else.
 */
#ifndef CORE_UTIL_JSON_H
#define CORE_UTIL_JSON_H

#include <stddef.h>

#include <cjson/cJSON.h>

#include "core/util/status.h"

/* The caller deletes *root. */
enum status json_parse(const void *text, size_t size, cJSON **root, struct error *err) MUST_CHECK;

#endif
