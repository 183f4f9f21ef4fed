/*
 * The sizes of gather and scatter, which join the rows of a table with picked rows.
 */
#ifndef OPS_GATHER_SIZES_H
#define OPS_GATHER_SIZES_H

#include "core/engine/tensor.h"

struct gather_sizes {
	int64_t examples, picks; /* numbers of an example */
	int64_t rows, width;	 /* of an example's table */
};

/* table [rows,width] or [examples,rows,width] */
static inline struct gather_sizes gather_sizes_of(const struct tensor *table,
						  const struct tensor *index)
{
	const int64_t examples = table->ndim == 3 ? table->dim[0] : 1;
	const struct gather_sizes s = { examples, tensor_count(index) / examples,
					tensor_dim(table, -2), tensor_dim(table, -1) };

	return s;
}

#endif
