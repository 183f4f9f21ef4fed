/*
 * measure - numbers about a trained model, on a fixed sample.
 *
 *   attention/entropy/h.N, attention/reciprocity/h.N   see enum probe_metric
 *   routing/kept/h.N, routing/mass/h.N                 with cross-token aggregation
 *   gate/mean/h.N                                      mean of the gate sent by layer N
 *   ws/similarity/h.N    mean cosine similarity between the heads of an example
 *   ws/outside/h.N       share of |Wz|^2 outside its diagonal blocks
 *   alpha/NAME           learned mixing weights
 */
#ifndef MODELS_MEASURE_H
#define MODELS_MEASURE_H

#include "core/engine/backend.h"
#include "models/model.h"

struct measurer;

/* The sample is `rows` rows of the model's length. */
enum status measurer_create(struct measurer **s, const struct model *m, struct params *params,
			    const struct backend *backend, int64_t rows, const int32_t *tokens,
			    struct error *err) MUST_CHECK;
void measurer_destroy(struct measurer *s);

/* Runs the sample through the model, or all replicas of it. */
enum status measurer_run(struct measurer *s, struct error *err) MUST_CHECK;

/* What that run shows of the chosen replica. */
enum status measure(struct measurer *s,
		    void (*value)(void *context, const char *name, double value), void *context,
		    struct error *err) MUST_CHECK;

/* Share of the squared entries of w [n,n] outside `blocks` diagonal blocks. */
double share_outside_blocks(const double *w, int64_t n, int64_t blocks);

#endif
