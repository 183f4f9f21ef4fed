/* Fuzz entry: lines of a configuration are read or refused; every kind of lookup finds or reports.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/builtin.h"
#include "core/util/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

const struct builtin builtin[] = { { 0 } }; /* the configuration of a program without symbols */

static void look_up(struct config *c)
{
	static const char *const names[] = { "A", "B", "NAME_2" }, *const values[] = { "y", "x",
										       NULL };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		config_bool(c, names[i]);
		config_int(c, names[i]);
		config_real(c, names[i]);
		config_text(c, names[i]);
		config_choice(c, names[i], values);
		config_raw(c, names[i]);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	char *text = malloc(size + 1);
	struct config *c, *copy;
	struct error err = { "" };

	if (!text)
		return 0;
	memcpy(text, bytes, size);
	text[size] = '\0';
	if (config_parse(&c, text, &err) == OK) {
		look_up(c);
		if (config_check(c, &err) != OK && !err.text[0])
			abort();
		if (config_copy(&copy, c, &err) == OK)
			config_free(copy);
		config_free(c);
	} else if (!err.text[0]) {
		abort();
	}
	free(text);
	return 0;
}
