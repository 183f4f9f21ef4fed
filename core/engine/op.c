#include "core/engine/op.h"

#define X(name) extern const struct op op_desc_##name;
OP_LIST(X)
#undef X

const struct op *const op_table[OP_COUNT] = {
#define X(name) [OP_##name] = &op_desc_##name,
	OP_LIST(X)
#undef X
};

const char *pass_name(enum pass pass)
{
	static const char *const names[] = {
		[PASS_FORWARD] = "forward",
		[PASS_BACKWARD] = "backward",
		[PASS_RECOMPUTE] = "recompute",
		[PASS_LOSS] = "loss",
	};

	return names[pass];
}

bool op_takes(const struct op *op, int i, const struct tensor *t)
{
	if (tensor_contiguous(t))
		return true;
	if (op->strided_in & BIT(i) && t->row == tensor_dim(t, -1))
		return true;
	return op->strided_heads_in & BIT(i) && t->ndim > 1 &&
	       t->row == tensor_dim(t, -1) * tensor_dim(t, -2);
}
