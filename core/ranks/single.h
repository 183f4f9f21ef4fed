/*
 * single - the transport of a process that is alone; private to core/ranks.
 */
#ifndef CORE_RANKS_SINGLE_H
#define CORE_RANKS_SINGLE_H

#include "core/ranks/ranks.h"

extern const struct ranks_type ranks_single;

#endif
