/*
 * test_vector - compare a model with a test vector of tools/reference/golden.py.
 *
 * The file's metadata holds the configuration; fields that are absent take
 * the reference's defaults.  Tolerances: in double 1e-9 of the tensor's
 * largest entry; in float 2e-4 of it, or 1e-5 of the file's largest gradient
 * if that is more; in bfloat16 5e-2 and 5e-3; with activations stored in
 * bfloat16 7e-2 and 5e-3.  Those of bfloat16 only find mistakes, for such a
 * small model's worst entry is a matter of luck: how accurate bfloat16 is,
 * models/autocast_test.c tests.  A model that can be computed in two forms
 * (CROSS_FOLDED) is compared in both.
 */
#ifndef MODELS_TEST_VECTOR_H
#define MODELS_TEST_VECTOR_H

#include "core/engine/backend.h"
#include "core/util/safetensors.h"
#include "models/model.h"

enum vector_kind { VECTOR_LOGITS, VECTOR_LOSS, VECTOR_GRADIENT, VECTOR_KINDS };
extern const char *const vector_kind_names[VECTOR_KINDS];

/* The worst tensor of one kind: its error as a multiple of what is allowed. */
struct vector_worst {
	char name[128];
	double error, allowed;
};

struct vector_report {
	struct vector_worst worst[VECTOR_KINDS];
	/* A routing choice is so nearly tied that float may decide otherwise: only double counts.
	 */
	bool near_tie;
};

/* The configuration in a vector's metadata; fails if our symbols cannot express it. */
enum status vector_config(const struct safetensors *file, struct config **c,
			  struct error *err) MUST_CHECK;

/* A configuration as the reference's Config, a JSON object. */
void vector_describe(const struct config *c, const struct model *m, FILE *out);

/* The configuration of the reference's defaults. */
enum status vector_defaults(struct config **c, struct error *err) MUST_CHECK;

/*
 * FAIL with a text when the file is unusable; a failed comparison is in the
 * report.  `backend` is "cpu" or "cuda".  `weights` is NULL, or a file whose
 * parameters replace the vector's: one of ours, or a public GPT-2.
 */
enum status vector_compare(const struct safetensors *file, const char *weights, const char *backend,
			   enum precision precision, struct vector_report *report,
			   struct error *err) MUST_CHECK;

bool vector_passed(const struct vector_report *report);

/* Load every "param.NAME" of the file; names and shapes must be exactly the model's. */
enum status vector_load(const struct safetensors *file, struct params *params,
			struct error *err) MUST_CHECK;

/* Write the vector's parameters as a run writes its weights, in float. */
enum status vector_export(const struct safetensors *file, const char *path,
			  struct error *err) MUST_CHECK;

#endif
