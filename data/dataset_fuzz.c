/* Fuzz entry: reads or refuses any side file. */
#include "data/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct dataset d;
	struct error err;

	if (!dataset_parse(bytes, size, &d, &err))
		dataset_free(&d);
	return 0;
}
