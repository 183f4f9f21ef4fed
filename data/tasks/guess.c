#include "data/tasks/guess.h"

#include <math.h>

double guess_loss(const uint64_t *counts, size_t n)
{
	double loss = 0.0, total = 0.0;

	for (size_t i = 0; i < n; i++)
		total += (double)counts[i];
	for (size_t i = 0; i < n; i++)
		if (counts[i])
			loss -= (double)counts[i] / total * log((double)counts[i] / total);
	return loss;
}
