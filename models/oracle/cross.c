/*
 * cross, mechanism 2: h += alpha (R h) Wc, or h += alpha (R (h Wd)) Wc through r channels.
 * R is the mean (or maximum) over heads of the softmax, sparse per row:
 * topk keeps the k largest (ties: smaller key), rms those >= tau rms of the row, none all.
 * Normalised: divided by max(row sum, 1e-8).  It has no gradient; with CROSS_GRADIENT only the
 * choice has none.
 */
#include "models/oracle/oracle.h"

static double *pooled_heads(struct oracle *o)
{
	const bool average = config_bool(o->config, "RA_MLA_MLP_SPARSE_HEAD_AVERAGE");
	const int64_t square = o->T * o->T;
	double *r = oracle_array(o, o->B * square);

	for (int64_t i = 0; r && i < o->B * o->H * square; i++) {
		double *to = r + i / (o->H * square) * square + i % square;

		*to = average ? *to + o->prob[i] / (double)o->H : fmax(*to, o->prob[i]);
	}
	return r;
}

/* How many keys precede key j in the order of topk? */
static int64_t rank(const double *row, int64_t n, int64_t j)
{
	int64_t before = 0;

	for (int64_t i = 0; i < n; i++)
		before += row[i] > row[j] || (i < j && row[i] == row[j]);
	return before;
}

static void keep_largest(const double *row, int64_t n, int64_t k, double *out)
{
	for (int64_t j = 0; j < n; j++)
		out[j] = rank(row, n, j) < k ? row[j] : 0;
}

/* Keeps what was chosen elsewhere; returns by what share another key outweighs one of these. */
static double keep_chosen(const double *row, int64_t n, const int32_t *chosen, int64_t k,
			  double *out)
{
	double least = INFINITY, most = 0;
	int64_t kept = 0;

	for (int64_t j = 0; j < n; j++) {
		bool is_chosen = false;

		for (int64_t i = 0; i < k; i++)
			is_chosen = is_chosen || chosen[i] == j;
		out[j] = is_chosen ? row[j] : 0;
		kept += is_chosen;
		least = is_chosen ? fmin(least, row[j]) : least;
		most = is_chosen ? most : fmax(most, row[j]);
	}
	return kept != (k < n ? k : n) ? INFINITY : most > least ? (most - least) / most : 0;
}

static void keep_large(const double *row, int64_t n, double tau, double *out)
{
	double squares = 0;

	for (int64_t j = 0; j < n; j++)
		squares += row[j] * row[j];
	for (int64_t j = 0; j < n; j++)
		out[j] = row[j] >= tau * sqrt(squares / (double)n) ? row[j] : 0;
}

static void normalise(double *row, int64_t n)
{
	double sum = 0;

	for (int64_t j = 0; j < n; j++)
		sum += row[j];
	for (int64_t j = 0; j < n; j++)
		row[j] /= fmax(sum, 1e-8);
}

/* The entries that are kept, [B,T,T] */
static double *sparse_entries(struct oracle *o, const double *all)
{
	const bool topk = oracle_is(o, "RA_MLA_MLP_SPARSE_MODE", "topk");
	const bool rms = oracle_is(o, "RA_MLA_MLP_SPARSE_MODE", "rms");
	const int64_t T = o->T, wanted = config_int(o->config, "RA_MLA_MLP_SPARSE_K");
	const int64_t k = wanted < T ? wanted : T;
	const double tau = config_real(o->config, "RA_MLA_MLP_SPARSE_RMS_THRESHOLD");
	const int32_t *chosen = o->routes && o->routed == k ? o->routes[o->layer] : NULL;
	double *sparse = oracle_array(o, o->B * T * T);

	if (o->routes && !chosen)
		o->route_gap = INFINITY; /* another k, or none in this layer */
	for (int64_t r = 0; sparse && r < o->B * T; r++) {
		const int64_t n = r % T + 1;
		const double *row = all + r * T;
		double *out = sparse + r * T;

		if (topk && chosen)
			o->route_gap =
				fmax(o->route_gap, keep_chosen(row, n, chosen + r * k, k, out));
		else if (topk)
			keep_largest(row, n, k, out);
		else
			keep_large(row, n, rms ? tau : 0, out);
	}
	return sparse;
}

/* Entries that a change of the weights leaves out, or lets in, stay as they were chosen. */
static void freeze_choice(struct oracle *o, const double *all, double *sparse)
{
	const int64_t n = o->B * o->T * o->T;
	double *kept = oracle_array(o, n);

	for (int64_t i = 0; kept && i < n; i++)
		kept[i] = sparse[i] > 0;
	kept = oracle_constant(o, kept, n);
	for (int64_t i = 0; kept && i < n; i++)
		sparse[i] = kept[i] * all[i];
}

/* R [B,T,T] */
static double *routing(struct oracle *o)
{
	const bool gradient =
		config_raw(o->config, "CROSS_GRADIENT") && config_bool(o->config, "CROSS_GRADIENT");
	const double *all = pooled_heads(o);
	double *sparse = all ? sparse_entries(o, all) : NULL;

	if (!sparse)
		return NULL;
	if (gradient)
		freeze_choice(o, all, sparse);
	for (int64_t r = 0; r < o->B * o->T; r++)
		if (config_bool(o->config, "RA_MLA_MLP_SPARSE_NORMALIZE"))
			normalise(sparse + r * o->T, o->T);
	return gradient ? sparse : oracle_constant(o, sparse, o->B * o->T * o->T);
}

static void hidden(struct oracle *o, double *h, struct oracle_message *out)
{
	const int64_t T = o->T, rank = config_int(o->config, "CROSS_RANK");
	const int64_t width = rank ? rank : o->F;
	const double alpha = oracle_alpha(o, "cross_alpha", "CROSS_ALPHA"), *r = routing(o), *added;
	const double *m = rank ? oracle_linear(o, "cross_down", h, o->F, rank, false) : h;
	double *mixed = oracle_array(o, o->B * T * width);

	(void)out;
	for (int64_t b = 0; r && m && mixed && b < o->B; b++)
		oracle_product(r + b * T * T, T, T, m + b * T * width, width,
			       mixed + b * T * width);
	added = oracle_linear(o, "cross_proj", mixed, width, o->F, false);
	for (int64_t i = 0; added && i < o->B * T * o->F; i++)
		h[i] += alpha * added[i];
}

static const struct oracle_mechanism cross = {
	.symbol = "RA_MLA_MLP_CROSS_TOKEN",
	.order = 2,
	.hidden = hidden,
};
ORACLE_MECHANISM(cross);
