#include "core/op.h"

#define X(name) extern const struct op op_desc_##name;
OP_LIST(X)
#undef X

const struct op *const op_table[OP_COUNT] = {
#define X(name) [OP_##name] = &op_desc_##name,
	OP_LIST(X)
#undef X
};
