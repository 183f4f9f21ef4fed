#include "data/tasks/option.h"

enum status option_int(struct config *c, const char *name, int64_t least, int64_t most,
		       int64_t *value, struct error *err)
{
	*value = config_int(c, name);
	if (config_check(c, err))
		return FAIL;
	if (*value < least || *value > most)
		return fail(err, "%s=%lld: must be %lld to %lld", name, (long long)*value,
			    (long long)least, (long long)most);
	return OK;
}

enum status option_real(struct config *c, const char *name, double least, double most,
			double *value, struct error *err)
{
	*value = config_real(c, name);
	if (config_check(c, err))
		return FAIL;
	if (!(*value >= least && *value <= most))
		return fail(err, "%s=%g: must be %g to %g", name, *value, least, most);
	return OK;
}
