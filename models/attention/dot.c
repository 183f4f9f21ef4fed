/*
 * dot - scaled dot-product attention.
 *
 * score = q_i . k_j / sqrt(D).  With kv_heads = G < H, H/G heads share each
 * key and value (J. Ainslie et al., "GQA", 2023; G = 1: N. Shazeer, "Fast
 * transformer decoding", 2019).  c_attn holds queries | keys | values.
 * Decoding keeps 2 G D numbers per token and layer.
 */
#include <math.h>

#include "models/model.h"

struct dot_options {
	int64_t kv_heads;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	struct dot_options *o = options;

	o->kv_heads = config_int(c, "ATTENTION_KV_HEADS");
	if (o->kv_heads == 0)
		o->kv_heads = m->heads;
	if (o->kv_heads < 0 || m->heads % o->kv_heads)
		return fail(err, "MODEL_HEADS=%lld is not divisible by ATTENTION_KV_HEADS=%lld",
			    (long long)m->heads, (long long)o->kv_heads);
	if (m->position == POS_ROPE && m->head_dim % 2)
		return fail(err, "rope needs an even head width, not %lld", (long long)m->head_dim);
	return OK;
}

static void project(struct block *b, struct tensor *x, struct projection *p)
{
	const struct dot_options *o = b->m->attention_options;
	const int64_t E = b->m->embd, D = b->m->head_dim, kv = o->kv_heads * D;
	struct tensor *qkv = block_linear(b, "c_attn", x, E + 2 * kv, b->m->bias);

	p->in.q = block_heads(b, graph_slice(b->g, qkv, 0, E), b->m->heads);
	p->in.k = block_heads(b, graph_slice(b->g, qkv, E, kv), o->kv_heads);
	p->in.v = block_heads(b, graph_slice(b->g, qkv, E + kv, kv), o->kv_heads);
	p->in.q = block_rope(b, "q_rotated", p->in.q, D);
	p->in.k = block_rope(b, "k_rotated", p->in.k, D);
	p->attr.scale = 1 / sqrt((double)D);
}

static const struct attention_variant dot = {
	.name = "dot",
	.options_size = sizeof(struct dot_options),
	.read = read,
	.project = project,
	.projection_bias = true,
};
ATTENTION(dot);
