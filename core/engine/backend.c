#include "core/engine/backend.h"

const char *const precision_names[] = {
	[FLOAT32] = "float32", [FLOAT64] = "float64", [BFLOAT16] = "bfloat16", NULL
};

enum dtype precision_type(enum precision precision)
{
	return precision == FLOAT64 ? F64 : F32;
}
