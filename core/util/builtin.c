#include "core/util/builtin.h"

/* One line per symbol. */
const struct builtin builtin[] = {
#define SYMBOL(name, type, value) { name, type, value },
#define INACTIVE(name, type) { name, type, NULL },
#include "generated/config_table.h"
#undef SYMBOL
#undef INACTIVE
	{ NULL, CONFIG_TEXT, NULL },
};
