#include "data/tasks/writer.h"

struct writer writer_start(const struct source *s, struct row *row)
{
	return (struct writer){ .row = row, .length = s->length, .at = 0 };
}

bool writer_full(const struct writer *w)
{
	return w->at > w->length;
}

void writer_put(struct writer *w, int32_t token)
{
	if (w->at < w->length)
		w->row->tokens[w->at] = token;
	if (w->at <= w->length)
		w->at++;
}

void writer_put_target(struct writer *w, int32_t token, uint8_t component, double floor)
{
	if (w->at > 0 && w->at <= w->length)
		row_target(w->row, w->at - 1, token, component, floor);
	writer_put(w, token);
}

void row_target(struct row *row, int64_t place, int32_t token, uint8_t component, double floor)
{
	row->targets[place] = token;
	if (row->component)
		row->component[place] = component;
	if (row->floor)
		row->floor[place] = (float)floor;
}
