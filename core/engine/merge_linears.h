/*
 * siblings - nodes that read the same tensor, done as one.
 *
 * Several linear maps of one activation are one product with a wider matrix: the activation is read
 * once, and so is its gradient written.  The op makes that node (op.h: beside); its output holds
 * theirs beside each other, and the tensors that they wrote become slices of it.  Nobody else
 * notices.
 */
#ifndef CORE_ENGINE_MERGE_LINEARS_H
#define CORE_ENGINE_MERGE_LINEARS_H

#include "core/engine/graph.h"

/*
 * Joins what it can: nodes of one op and attribute with the same input 0, whose other inputs are
 * made of parameters alone, and whose output only ops read that take slices.  The order of nodes
 * changes where it must.
 */
void merge_linears(struct graph *g);

#endif
