/*
 * measure - numbers about a trained model, on a fixed sample.
 *
 *   attention/entropy/h.N, attention/reciprocity/h.N   see enum probe_metric
 *   routing/kept/h.N, routing/mass/h.N                 with cross-token aggregation
 *   routing/spread/h.N   standard deviation of the kept entries over tokens
 *   routing/layers       the same of their mean over layers
 *   gate/mean/h.N                                      mean of the gate sent by layer N
 *   ws/similarity/h.N    mean cosine similarity between the heads of an example
 *   ws/outside/h.N       share of |Wz|^2 outside its diagonal blocks
 *   heads/information/h.N    mutual information, in nats, of a token's class and the head of WsFFN
 *                            (or expert) that is most active there, as a multiple of its own mean
 *   heads/shuffled/h.N       the same with shuffled classes: what chance alone gives
 *   alpha/NAME           learned mixing weights
 */
#ifndef MODELS_MEASURE_H
#define MODELS_MEASURE_H

#include "core/engine/backend.h"
#include "models/model.h"

struct measurer;

/* `rows` rows of the model's length, and a class 0 .. n_classes-1 of each token; or NULL. */
struct measure_sample {
	int64_t rows;
	const int32_t *tokens, *classes;
	int64_t n_classes;
};

enum status measurer_create(struct measurer **s, const struct model *m, struct params *params,
			    const struct backend *backend, const struct measure_sample *sample,
			    struct error *err) MUST_CHECK;
void measurer_destroy(struct measurer *s);

/* Runs the sample through the model, or all replicas of it. */
enum status measurer_run(struct measurer *s, struct error *err) MUST_CHECK;

/* What that run shows of the chosen replica. */
enum status measure(struct measurer *s,
		    void (*value)(void *context, const char *name, double value), void *context,
		    struct error *err) MUST_CHECK;

/* Of `count` pairs of numbers below `as` and `bs`, in nats; `table` has room for as * bs. */
double mutual_information(const int32_t *a, int64_t as, const int32_t *b, int64_t bs, int64_t count,
			  double *table);

/* Share of the squared entries of w [n,n] outside `blocks` diagonal blocks. */
double share_outside_blocks(const double *w, int64_t n, int64_t blocks);

#endif
