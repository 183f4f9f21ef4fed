/* Fuzz entry: no bytes may crash the reader, and every file that it accepts must be readable. */
#include <stdint.h>
#include <stdlib.h>

#include "core/util/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct safetensors file;
	struct error err;

	if (safetensors_parse(&file, bytes, size, &err))
		return 0;
	if (safetensors_check(&file, &err) != OK && !safetensors_metadata(&file, SAFETENSORS_HASH))
		abort();
	for (int i = 0; i < file.count; i++) {
		const struct safetensors_tensor *t = &file.tensors[i];
		double *values = malloc((size_t)safetensors_elements(t) * sizeof(*values) + 1);

		if (!values || safetensors_find(&file, t->name) != t)
			abort();
		safetensors_read_double(t, values);
		free(values);
	}
	safetensors_close(&file);
	return 0;
}
