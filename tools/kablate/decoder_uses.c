#include "tools/kablate/decoder_uses.h"

#include <errno.h>
#include <stdlib.h>

struct decoder_use sample_use(const struct model *model, int64_t context)
{
	const int64_t capacity = context > 0 ? context : model->length;

	return (struct decoder_use){ MODEL_NEXT, 1, capacity, decoder_largest_rest(capacity) };
}

enum status next_length(const char **list, int64_t *length, struct error *err)
{
	char *end;

	errno = 0;
	*length = strtoll(*list, &end, 10);
	if (errno || end == *list || (*end && (*end != ',' || !end[1])) || *length < 2 ||
	    *length > MAX_LENGTH)
		return fail(err, "'%s' does not begin with a length from 2 to %d", *list,
			    MAX_LENGTH);
	*list = *end ? end + 1 : end;
	return OK;
}

enum status next_length_use(const char **list, struct decoder_use *use, struct error *err)
{
	int64_t length;

	if (next_length(list, &length, err) != OK)
		return FAIL;
	*use = (struct decoder_use){ MODEL_EVAL, 1, length, length % DECODER_CHUNK_TOKENS };
	return OK;
}

enum status rows_of_length(const struct source *source, int64_t length, uint64_t *rows,
			   struct error *err)
{
	*rows = source->valid_rows * (uint64_t)source->length / (uint64_t)length;
	if (*rows == 0)
		return fail(err, "a row of %lld tokens is longer than all validation rows together",
			    (long long)length);
	return OK;
}

enum status check_lengths(const char *list, const struct model *model, const struct source *source,
			  struct error *err)
{
	int64_t length;
	uint64_t rows;

	while (list[0])
		if (next_length(&list, &length, err) != OK ||
		    rows_of_length(source, length, &rows, err) != OK ||
		    decoder_check(model, length, err) != OK)
			return FAIL;
	return OK;
}
