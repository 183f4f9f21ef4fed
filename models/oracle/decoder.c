/*
 * decoder - from tokens to losses: embeddings, blocks, norms, output head.
 *
 *     x = wte[token] (+ wpe[position])
 *     pre:   x += Attn(ln_1(x));  x += FFN(ln_2(x));  at the end x = ln_f(x)
 *     post:  x = ln_1(x + Attn(x));  x = ln_2(x + FFN(x))
 *     MODEL_DECODER: x[t] = x[T-1] + P[t], P sines and cosines; twice x = GELU(norm(x) W + b); x =
 * norm(x) logits = x W', W = wte or lm_head;  nll = logsumexp(logits) - logits[target] training
 * drops elements of the embedding, of the probabilities, and of both branches main = mean of nll
 * over scored targets;  logits_z = lambda mean of logsumexp^2 over tokens
 */
#include <stdlib.h>
#include <string.h>

#include "models/oracle/oracle.h"

/* -------------------------------------------------------------------- norms */

static void normalise(double *x, int64_t n, bool centred, double eps)
{
	double mean = 0, squares = 0;

	for (int64_t i = 0; centred && i < n; i++)
		mean += x[i] / (double)n;
	for (int64_t i = 0; i < n; i++)
		squares += (x[i] - mean) * (x[i] - mean) / (double)n;
	for (int64_t i = 0; i < n; i++)
		x[i] = (x[i] - mean) / sqrt(squares + eps);
}

/* y = norm(x) weight + bias; only LayerNorm has a mean and may have a bias. */
static double *norm(struct oracle *o, const char *name, const double *x, const char *kind,
		    bool bias)
{
	const int64_t rows = o->B * o->T, E = o->E;
	const double eps = config_real(o->config, "NORM_EPS");
	const bool layer = strcmp(kind, "layer") == 0;
	char weight[40], bias_name[40];
	const double *w, *b = NULL;
	double *y = oracle_array(o, rows * E);

	snprintf(weight, sizeof(weight), "%s.weight", name);
	snprintf(bias_name, sizeof(bias_name), "%s.bias", name);
	w = oracle_weights(o, weight, E);
	if (layer && bias)
		b = oracle_weights(o, bias_name, E);
	if (!x || o->failed)
		return NULL;
	memcpy(y, x, (size_t)(rows * E) * sizeof(*y));
	for (int64_t r = 0; r < rows; r++)
		normalise(y + r * E, E, layer, eps);
	for (int64_t i = 0; i < rows * E; i++)
		y[i] = y[i] * w[i % E] + (b ? b[i % E] : 0);
	return y;
}

static double *block_norm(struct oracle *o, const char *name, const double *x)
{
	o->part = "";
	return norm(o, name, x, config_text(o->config, "NORM"), o->bias);
}

/* A final LayerNorm that was chosen on its own always has a bias. */
static double *final_norm(struct oracle *o, const double *x)
{
	const char *kind = config_text(o->config, "FINAL_NORM");

	if (kind && strcmp(kind, "same") != 0)
		return norm(o, "ln_f", x, kind, true);
	return norm(o, "ln_f", x, config_text(o->config, "NORM"), o->bias);
}

/* ---------------------------------------------------------------- attention */

/* cap tanh(s / cap), or s where there is no cap */
static double capped(double s, double cap)
{
	return cap > 0 ? cap * tanh(s / cap) : s;
}

/*
 * Scores of the keys 0..i become probabilities.  With a window only the last keys, of which the
 * query's own is one, and the sinks get any.
 */
static void softmax_row(struct oracle *o, double *s, int64_t h, int64_t i)
{
	const double cap = config_real(o->config, "ATTENTION_SOFTCAP");
	const bool windowed = oracle_switch(o, "ATTENTION_WINDOWED");
	const int64_t first = windowed ? i - config_int(o->config, "ATTENTION_WINDOW") + 1 : 0;
	const int64_t sinks = windowed ? config_int(o->config, "ATTENTION_SINKS") : 0;
	double most = -INFINITY, sum = 0;

	for (int64_t j = 0; j < o->T; j++) {
		if (o->position && j <= i)
			s[j] += o->position->bias(o, h, i - j);
		s[j] = j <= i && (j >= first || j < sinks) ? capped(s[j], cap) : -INFINITY;
		most = fmax(most, s[j]);
	}
	for (int64_t j = 0; j <= i; j++)
		sum += exp(s[j] - most);
	for (int64_t j = 0; j < o->T; j++)
		s[j] = exp(s[j] - most) / sum;
}

static void softmax(struct oracle *o, double *s)
{
	for (int64_t r = 0; r < o->B * o->H * o->T; r++)
		softmax_row(o, s + r * o->T, r / o->T % o->H, r % o->T);
}

/* out[b,i,h] = sum over j of prob[b,h,i,j] v[b,j,h] */
static void mix_values(const struct oracle *o, const double *prob, const double *v, double *out)
{
	const int64_t T = o->T, H = o->H, D = o->D;

	for (int64_t b = 0; b < o->B; b++)
		for (int64_t h = 0; h < H; h++)
			for (int64_t i = 0; i < T; i++)
				for (int64_t j = 0; j <= i; j++)
					for (int64_t d = 0; d < D; d++)
						out[((b * T + i) * H + h) * D + d] +=
							prob[((b * H + h) * T + i) * T + j] *
							v[((b * T + j) * H + h) * D + d];
}

/* Heads times sigmoid(x Wg), per head or per channel. */
static void gate_outputs(struct oracle *o, const double *x, double *heads)
{
	const char *kind = config_text(o->config, "ATTENTION_OUT_GATE");
	const int64_t n = o->B * o->T * o->E;
	int64_t gates;
	double *g;

	if (!kind || strcmp(kind, "none") == 0)
		return;
	gates = strcmp(kind, "head") == 0 ? o->H : o->E;
	g = oracle_linear(o, "gate", x, o->E, gates, false);
	for (int64_t i = 0; g && i < n; i++)
		heads[i] *= oracle_sigmoid(g[i / (o->E / gates)]);
}

static void attend(struct oracle *o, const double *x, double *heads)
{
	const int64_t n = o->B * o->H * o->T * o->T;
	double *scores = oracle_array(o, n), *kept = oracle_array(o, n);
	double *values = oracle_array(o, o->B * o->T * o->E);

	if (o->failed)
		return;
	o->attention->attend(o, x, scores, values);
	softmax(o, scores);
	o->prob = scores;
	memcpy(kept, scores, (size_t)n * sizeof(*kept));
	oracle_drop(o, "heads", kept, n);
	mix_values(o, kept, values, heads);
}

/* The last product of a branch. */
static double *project(struct oracle *o, const double *x, int64_t in, bool bias)
{
	double *y = oracle_linear(o, "c_proj", x, in, o->E, o->bias && bias);

	oracle_drop(o, "dropped", y, o->B * o->T * o->E);
	return y;
}

static double *attention(struct oracle *o, const double *x)
{
	double *heads = oracle_array(o, o->B * o->T * o->E);

	o->part = "attn.";
	o->latent = NULL;
	if (!x || o->failed)
		return NULL;
	if (o->attention->mix)
		o->attention->mix(o, x, heads);
	else
		attend(o, x, heads);
	gate_outputs(o, x, heads);
	for (int i = 0; i < o->n_mechanisms; i++)
		if (o->mechanism[i]->heads && o->in[i].value)
			o->mechanism[i]->heads(o, &o->in[i], heads);
	return project(o, heads, o->E, o->attention->projection_bias);
}

void oracle_latent(struct oracle *o, double *latent, int64_t L)
{
	o->latent = latent;
	o->L = L;
	for (int i = 0; latent && i < o->n_mechanisms; i++)
		if (o->mechanism[i]->latent && o->in[i].value)
			o->mechanism[i]->latent(o, &o->in[i], latent);
}

/* ------------------------------------------------------------------- blocks */

static double *feed_forward(struct oracle *o, const double *x)
{
	double *h;

	o->part = "mlp.";
	h = x ? o->ffn->hidden(o, x) : NULL;
	for (int i = 0; h && i < o->n_mechanisms; i++)
		if (o->mechanism[i]->hidden)
			o->mechanism[i]->hidden(o, h, &o->out[i]);
	return project(o, h, o->F, o->ffn->projection_bias);
}

/* One branch of a block, with its norm before it or after the sum. */
static double *add_branch(struct oracle *o, const char *name, double *x,
			  double *(*branch)(struct oracle *o, const double *x))
{
	const bool post = oracle_is(o, "NORM_PLACE", "post");
	const double *y = branch(o, post ? x : block_norm(o, name, x));

	for (int64_t i = 0; y && i < o->B * o->T * o->E; i++)
		x[i] += y[i];
	return post ? block_norm(o, name, x) : x;
}

static double *embed(struct oracle *o)
{
	const int64_t E = o->E, block = config_int(o->config, "MODEL_BLOCK");
	const double *wte = oracle_weights(o, "wte.weight", o->V * E), *wpe = NULL;
	double *x = oracle_array(o, o->B * o->T * E);

	if (oracle_is(o, "POS", "learned"))
		wpe = oracle_weights(o, "wpe.weight", block * E);
	if (o->failed)
		return NULL;
	for (int64_t i = 0; i < o->B * o->T * E; i++)
		x[i] = wte[o->tokens[i / E] * E + i % E] + (wpe ? wpe[i % (o->T * E)] : 0);
	oracle_drop(o, "embedding_dropped", x, o->B * o->T * E);
	return x;
}

static void keep_begin(struct oracle *o, const double *x)
{
	struct oracle_begin *b = &o->begin[o->layer];

	b->x = oracle_keep(o, x, o->B * o->T * o->E);
	b->n_losses = o->n_losses;
	b->next_constant = o->next_constant;
	memcpy(b->loss, o->loss, sizeof(b->loss));
	memcpy(b->in, o->in, sizeof(b->in));
	for (int i = 0; i < o->n_mechanisms; i++) {
		if (o->in[i].value && o->in[i].count < 1)
			oracle_fail(o, "the oracle of %s sends a message without a count",
				    o->mechanism[i]->symbol);
		if (o->in[i].value)
			b->in[i].value = oracle_keep(o, o->in[i].value, o->in[i].count);
	}
}

/* A derivative begins with the layer whose weight moves. */
static double *first_layer(struct oracle *o)
{
	const struct oracle_begin *b = &o->begin[o->from > 0 ? o->from : 0];
	double *x;

	memset(o->in, 0, sizeof(o->in));
	if (o->from <= 0)
		return embed(o);
	x = oracle_array(o, o->B * o->T * o->E);
	if (!x)
		return NULL;
	memcpy(x, b->x, (size_t)(o->B * o->T * o->E) * sizeof(*x));
	memcpy(o->in, b->in, sizeof(o->in));
	memcpy(o->loss, b->loss, sizeof(o->loss));
	o->n_losses = b->n_losses;
	o->next_constant = b->next_constant;
	return x;
}

static double *layers(struct oracle *o)
{
	double *x = first_layer(o);

	for (o->layer = o->from > 0 ? o->from : 0; o->layer < o->N && x; o->layer++) {
		if (!o->differs)
			keep_begin(o, x);
		o->last = o->layer == o->N - 1;
		memset(o->out, 0, sizeof(o->out));
		x = add_branch(o, "ln_1", x, attention);
		x = x ? add_branch(o, "ln_2", x, feed_forward) : NULL;
		memcpy(o->in, o->out, sizeof(o->in));
	}
	o->layer = -1;
	return x && oracle_is(o, "NORM_PLACE", "pre") ? final_norm(o, x) : x;
}

/* --------------------------------------------------------------------- head */

static double logsumexp(const double *x, int64_t n)
{
	double most = -INFINITY, sum = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, x[i]);
	for (int64_t i = 0; i < n; i++)
		sum += exp(x[i] - most);
	return most + log(sum);
}

static void score(struct oracle *o)
{
	const int64_t rows = o->B * o->T;
	const double weight = config_real(o->config, "LOSS_LOGITS_Z");
	double sum = 0, squares = 0, scored = 0;

	for (int64_t r = 0; r < rows; r++) {
		const double *logits = o->logits + r * o->V, lse = logsumexp(logits, o->V);

		squares += lse * lse;
		if (o->targets[r] < 0)
			continue;
		o->nll[r] = lse - logits[o->targets[r]];
		sum += o->nll[r];
		scored++;
	}
	oracle_add_loss(o, "main", sum / scored);
	if (weight > 0)
		oracle_add_loss(o, "logits_z", weight * squares / (double)rows);
}

/* GELU(x W + b), the tanh form */
static double *decoder_layer(struct oracle *o, const char *norm_name, const char *name,
			     const double *x)
{
	double *y = oracle_linear(o, name, block_norm(o, norm_name, x), o->E, o->E, o->bias);

	for (int64_t i = 0; y && i < o->B * o->T * o->E; i++)
		y[i] *= 0.5 * (1 + tanh(sqrt(2 / M_PI) * (y[i] + 0.044715 * y[i] * y[i] * y[i])));
	return y;
}

/* Every place of a row from its last token. */
static double *decode_rows(struct oracle *o, const double *x)
{
	const int64_t T = o->T, E = o->E, half = (E + 1) / 2;
	double *y = oracle_array(o, o->B * T * E);

	for (int64_t i = 0; x && y && i < o->B * T * E; i++) {
		const int64_t b = i / (T * E), t = i / E % T, c = i % E;
		const double angle = (double)t / pow(10000, (double)(c % half) / (double)half);

		y[i] = x[(b * T + T - 1) * E + c] + (c < half ? sin(angle) : cos(angle));
	}
	y = decoder_layer(o, "decoder.ln_1", "decoder.fc_1", x ? y : NULL);
	y = decoder_layer(o, "decoder.ln_2", "decoder.fc_2", y);
	return block_norm(o, "decoder.ln_3", y);
}

void oracle_decode(struct oracle *o)
{
	const bool tied = config_bool(o->config, "MODEL_TIE_HEAD");
	const double *x, *w;

	o->layer = -1;
	x = layers(o);
	if (oracle_switch(o, "MODEL_DECODER"))
		x = decode_rows(o, x);
	w = oracle_weights(o, tied ? "wte.weight" : "lm_head.weight", o->V * o->E);
	o->logits = oracle_array(o, o->B * o->T * o->V);
	o->nll = oracle_array(o, o->B * o->T);
	if (!x || o->failed)
		return;
	for (int64_t r = 0; r < o->B * o->T; r++)
		for (int64_t v = 0; v < o->V; v++)
			for (int64_t e = 0; e < o->E; e++)
				o->logits[r * o->V + v] += x[r * o->E + e] * w[v * o->E + e];
	score(o);
}
