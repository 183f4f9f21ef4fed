#include "models/function.h"

#include <string.h>

/*
 * Of the symbols that model_read() asks for, only these do not decide the function.  A new symbol
 * of a variant counts as deciding until it is added here.
 */
static const char *const ignored[] = {
	/* the shapes determine their values */
	"MODEL_VOCAB",
	"MODEL_BLOCK",
	"FFN_HIDDEN",
	"FFN_MULT",
	/* starting values */
	"INIT",
	"INIT_STD",
	/* training */
	"DROPOUT",
	"MERGE_LINEARS",
	"LOSS_LOGITS_Z",
	"RECIP_DETACH",
	"CROSS_GRADIENT",
	/* auxiliary losses; the shapes of their matrices determine them */
	"WS_AUX",
	"WS_HEADS",
	"WS_Z_BLOCKS",
	"WS_LAMBDA_Z",
	"WS_LAMBDA_C",
	"WS_TAU",
};

bool function_ignores(const char *symbol)
{
	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		if (strcmp(ignored[i], symbol) == 0)
			return true;
	return false;
}

struct visitor {
	void (*visit)(void *context, const char *name, const char *value);
	void *context;
};

static void pass_on(void *context, const char *name, const char *value)
{
	const struct visitor *v = context;

	if (!function_ignores(name))
		v->visit(v->context, name, value);
}

enum status model_function(const struct config *c, int64_t vocab,
			   void (*visit)(void *context, const char *name, const char *value),
			   void *context, struct error *err)
{
	const struct model_task task = { .vocab = vocab };
	struct visitor visitor = { visit, context };
	struct config *copy;
	struct model *m;

	if (config_copy(&copy, c, err) != OK)
		return FAIL;
	if (model_read(&m, copy, &task, err) != OK) {
		config_free(copy);
		return FAIL;
	}
	config_visit_read(copy, pass_on, &visitor);
	model_free(m);
	config_free(copy);
	return OK;
}
