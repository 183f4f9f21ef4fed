/*
 * origin - the part of a model to which a node, a parameter or an output belongs.
 *
 * The builder of a graph says it (graph_origin()) and gives the numbers their
 * meaning; the engine only carries them.
 */
#ifndef CORE_ENGINE_ORIGIN_H
#define CORE_ENGINE_ORIGIN_H

struct origin {
	int layer;  /* -1: none */
	int module; /* a number of the builder's own */
};

#define NO_ORIGIN ((struct origin){ .layer = -1 })

#endif
