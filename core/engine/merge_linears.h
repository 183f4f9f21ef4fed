/*
 * Merges linear maps of the same activation into one.
 *
 * Several products with one input are one product with a wider matrix: the activation is read once,
 * and its gradient written once.  The op builds the merged node (op.h: merge).  Its output holds
 * the outputs of the merged nodes side by side; the tensors that they wrote become slices of it, so
 * other nodes do not change.
 */
#ifndef CORE_ENGINE_MERGE_LINEARS_H
#define CORE_ENGINE_MERGE_LINEARS_H

#include "core/engine/graph.h"

/*
 * Merges nodes of the same op and attribute with the same input 0, if their other inputs depend
 * only on parameters, and if all readers of their outputs accept slices.  It reorders nodes where
 * it must.
 */
void merge_linears(struct graph *g);

#endif
