#!/usr/bin/env python3
"""Faults that are planted on purpose: which audit of the program stops each of them?

A fault is a small patch of the sources, applied to a scratch tree.  The tree shares the objects
that are built already, so only what the fault touches is compiled.  Then the step in question is
trained as `make` trains it, for a few updates.  No unit test is asked: a user's own variant has none.

Faults that no audit can see are part of the catalogue, with the reason: they must pass, or the
documentation (docs/audits.md) is out of date.

PLANTED=WORDS,WORDS plants only the faults whose names begin so.
"""
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import tap
from tools.testing.as_user import BUILD, ROOT, environment

# Where a fault is planted: the steps of a small experiment.  The last step is trained, against the
# first one.
SMALL = {"SEEDS": "1", "ATTENTION": "mla", "MODEL_LAYERS": 3, "MODEL_HEADS": 2, "MODEL_EMBD": 32, "MODEL_BLOCK": 32,
         "RA_MLA_LATENT_DIM": 8, "RA_MLA_RA_WINDOW": 8, "GPT2_MAX_ITERS": 4, "TRAIN_BATCH": 4,
         "WARMUP_ITERS": 2, "EVAL_INTERVAL": 2, "EVAL_ROWS": 16, "LOG_INTERVAL": 2,
         "CHECKPOINT_INTERVAL": 2, "THREADS": 1}
PLACES = {
    "gate": ("mla mla+gate", {}),
    "cross": ("mla mla+cross", {}),
    "gradient": ("mla mla+cross+routing-gradient", {}),
    "latent": ("mla mla+latent", {}),
    "pool": ("mla+gate mla+gate+pool-token", {}),
    "long": ("mla mla+gate", {"MODEL_BLOCK": 256, "MODEL_EMBD": 16}),
    "dropout": ("mla mla+gate", {"DROPOUT": "0.1"}),
    "rope": ("mla mla+gate", {"POS": "rope"}),
    "alibi": ("mla mla+gate", {"POS": "alibi", "MODEL_HEADS": 4}),
    "groups": ("dot dot-kv2", {"MODEL_HEADS": 4}),
    "w2": ("dot w2", {}),
    "ws": ("swiglu ws", {}),
    "logits-z": ("mla mla+logits-z", {}),
    "score": ("mla mla+score-0.3", {}),
    "copy": ("mla mla+gate", {"TASK": "copy"}),
    "text": ("mla mla+gate", {"TASK": "text"}),
    "same-text": ("mla mla+gate", {"TASK": "text"}),
    "clip": ("mla mla+gate", {"GRAD_CLIP": "0.05"}),
    "micro": ("mla mla+gate", {"TRAIN_ACCUMULATE": 3}),
    "sgd": ("mla mla+gate", {"OPTIMIZER": "sgd", "LEARNING_RATE": "0.1", "MIN_LEARNING_RATE": "0.01"}),
    "muon": ("mla mla+gate", {"OPTIMIZER": "muon"}),
    "spam": ("mla mla+gate", {"OPTIMIZER": "adamwspam", "SPAM_INTERVAL": 3, "SPAM_WARMUP": 2}),
    "later": ("mla mla+gate", {"GPT2_MAX_ITERS": 8}),
    "orthogonal": ("mla mla+gate", {"INIT": "orthogonal"}),
    "unasked": ("mla mla+gate", {"DROPOUT": "0.1", "AUDIT_ORACLE": "n"}),
    "untied": ("mla mla+gate", {"MODEL_TIE_HEAD": "n", "AUDIT_ORACLE": "n"}),
    "seeds": ("mla mla+gate", {"SEEDS": "1,3"}),
    "blind": ("mla mla+gate", {f"AUDIT_{name}": "n" for name in ("ORACLE", "WIRING", "CAUSALITY")}),
    "threads": ("mla mla+gate", {"THREADS": 2}),
    "long-window": ("mla mla+gate", {"ATTENTION_WINDOWED": "y", "ATTENTION_WINDOW": 40, "MODEL_BLOCK": 64}),
    "narrow": ("mla mla+latent-dim-16+gate+lr-5e-3", {}),
    "control": ("mla mla+gate mla+parameters-of-1", {}),
    "lazy": ("mla mla+gate", {"LEARNING_RATE": "1e-9", "MIN_LEARNING_RATE": "1e-10"}),
    "budget": ("mla mla+gate+TRAIN_TOKENS_BUDGET=1024", {"GPT2_MAX_ITERS": 12}),
    "grid": ("mla mla+gate mla+latent mla+gate+latent", {"GPT2_MAX_ITERS": 8}),
    "gla": ("dot ATTENTION=gla", {}),
    "deepseek": ("dot ATTENTION=deepseek", {"POS": "rope"}),
    "differential": ("dot ATTENTION=differential", {}),
    "w2cov": ("dot ATTENTION=w2cov", {}),
    "t5": ("mla mla+gate", {"POS": "t5"}),
    "softcap": ("mla mla+gate", {"ATTENTION_SOFTCAP": "5"}),
    "window": ("mla mla+gate", {"ATTENTION_WINDOWED": "y", "ATTENTION_WINDOW": 8}),
    "quiet": ("mla mla+gate", {"GPT2_MAX_ITERS": 8, "LOG_INTERVAL": 8, "EVAL_INTERVAL": 8, "CHECKPOINT_INTERVAL": 4}),
    "ws-micro": ("swiglu ws", {"TRAIN_ACCUMULATE": 3}),
    "rows": ("mla mla+gate", {"GPT2_MAX_ITERS": 16, "EVAL_ROWS": 64}),
    "prune": ("mla mla+gate", {"PRUNE": "magnitude", "PRUNE_START": 0, "PRUNE_END": 75, "PRUNE_INTERVAL": 1}),
    "fours": ("mla mla+gate", {"PRUNE": "movement", "PRUNE_SCOPE": "2of4", "PRUNE_START": 0, "PRUNE_END": 75,
                               "PRUNE_INTERVAL": 1}),
    "plain": ("mla mla+gate+cross", {"PLANNER": "n", "RECOMPUTE": "n", "MERGE_LINEARS": "n"}),
}
TEXT = 40000    # characters of the text

Fault = collections.namedtuple("Fault", "name place path old new stops why")


def fault(name, place, path, old, new, stops, why=None):
    """`stops`: the audit that must name it and a part of what it says; None: it passes, `why`."""
    return Fault(name, place, path, old, new, stops, why)


GATE, CROSS = "models/reciprocal/gate.c", "models/reciprocal/cross.c"
WIRING = "models/transformer.c"
ATTENTION = "core/backend/cpu/kernels/attention.c"
DROPOUT = "core/backend/cpu/kernels/dropout.c"
LOOP, PASSES, VALIDATION = "core/train/train.c", "core/train/update.c", "core/train/evaluate.c"
PRUNING = "core/train/prune.c"
OPTIMIZER, UPDATES = "core/optim/optim.c", "core/backend/cpu/kernels/optim.c"
IN_THE_ARM = '(params_find(t->params, "h.0.mlp.gate_proj.weight") >= 0)'
HEAD = 'return table(m, g, m->tied ? "wte.weight" : "lm_head.weight", m->vocab, m->embd);'
RATE = "t->rates[i] = schedule_rate(&t->replicas[i].run->options.schedule, t->iteration);"
RUN = "if (update_run(&t->update, t->iteration, where) != OK)\n\t\treturn FAIL;\n"
FEED = "\ttoken_program_feed(&u->training, u->tokens + at, u->targets + at);"
SAVED = "\tr->saved = *iteration = found ? r->state.iteration : -1;"
LAST_KEY = "const int64_t n = row_keys(t, s, r);\n\t\treal *restrict row"

EVALUATE = "\tenum status status = evaluate(t->evaluator, t->evaluations, &where);\n"
ROW = "source_train(&setup->source, iteration, row, &out);"
BETWEEN = "\tif (t->audited && audit_gradient(t, where) != OK)\n"


def scaled(what, factor):
    """All entries of the arm's parameters: their data or their gradients."""
    return (f"\tfor (int64_t k = 0; {IN_THE_ARM} && k < t->params->total; k++)\n"
            f"\t\t((float *)t->params->{what})[k] *= {factor};\n")


FAULTS = [
    # ---------------------------------------------------------- what is linked and read
    fault("a misspelt symbol in models/Makefile", "gate", "models/Makefile",
          "CONFIG_RA_MLA_MLP_ATTN_GATE", "CONFIG_RA_MLA_MLP_ATTN_GTAE",
          ("plan", "Kconfig has no symbol RA_MLA_MLP_ATTN_GTAE")),
    fault("another symbol in models/Makefile", "gate", "models/Makefile",
          "obj-$(CONFIG_RA_MLA_MLP_ATTN_GATE)", "obj-$(CONFIG_RA_MLA_MLP_CROSS_TOKEN)",
          ("reading", "CONFIG_RA_MLA_MLP_ATTN_GATE=y is set, but no code")),
    fault("a mechanism that names another symbol", "gate", GATE,
          '.symbol = "RA_MLA_MLP_ATTN_GATE"', '.symbol = "RECIP_LEARN_ALPHA"',
          ("reading", "CONFIG_RA_MLA_MLP_ATTN_GATE=y is set, but no code")),
    # ---------------------------------------------------------- what the plan says
    fault("a fragment that another one undoes", "narrow", "defconfigs/fragments/gate",
          "ATTN_GATE=y", "ATTN_GATE=y\nCONFIG_RA_MLA_LATENT_DIM=32",
          ("plan", "gate undoes latent-dim-16: CONFIG_RA_MLA_LATENT_DIM is 32, not 16")),
    fault("a width that is not in the name", "narrow", "defconfigs/fragments/latent-dim-16", "DIM=16", "DIM=32",
          ("plan", "CONFIG_RA_MLA_LATENT_DIM=32: the name of the fragment says something else")),
    fault("a rate that is not in the name", "narrow", "defconfigs/fragments/lr-5e-3", '"5e-3"', '"5e-2"',
          ("plan", "CONFIG_LEARNING_RATE=5e-2: the name of the fragment says something else")),
    fault("a mechanism's name without the mechanism", "gate", "defconfigs/fragments/gate",
          "CONFIG_RA_MLA_MLP_ATTN_GATE=y", "CONFIG_MODEL_LAYERS=2",
          ("plan", "gate says CONFIG_RA_MLA_MLP_ATTN_GATE=y, but it does not set that")),
    fault("a control of another size", "control", "tools/plan/match_width.c",
          "\treturn check_near(s, &low, found, err);",
          "\tif (count(s, high.width + 3 * s->unit, found, err) != OK)\n\t\treturn FAIL;\n"
          "\treturn check_near(s, &low, found, err);", ("plan", "is off by")),
    fault("an option that is read nowhere", "gate", GATE,
          'config_int(c, "GATE_DIM")', "64", ("reading", "CONFIG_GATE_DIM=64 is set, but no code")),
    fault("an option that is read and not used", "pool", GATE,
          "case POOL_TOKEN:\n\t\tbreak;", "case POOL_TOKEN:\n\t\treturn op_running_mean(b->g, "
          '"gate_pooled", x);', ("oracle", "logits in double")),
    fault("a mechanism that is left out of the list", "gate", WIRING,
          "if (config_bool(c, (*v)->symbol) && insert", "if (config_bool(c, (*v)->symbol) && "
          "m->layers < 0 && insert", ("reading", "CONFIG_GATE_ALPHA=0.1 is set, but no code")),
    fault("a mechanism that is read and not built", "gate", WIRING,
          "return b->m->muted != i + 1 || b->m->muted_layer != b->layer;",
          "return b->m->muted != i + 1 && i < 0;", ("mechanism", "changes no logit")),
    # ---------------------------------------------------------- mechanisms that do not act
    fault("a factor of 0", "gate", GATE, "in->value, options_->alpha, in->alpha",
          "in->value, 0 * options_->alpha, in->alpha", ("mechanism", "changes no logit")),
    fault("a factor of 1e-6", "gate", GATE, "in->value, options_->alpha, in->alpha",
          "in->value, 1e-6 * options_->alpha, in->alpha", ("mechanism", "less than 1e-05")),
    fault("only in the first layer", "cross", CROSS, "if (is_folded(b, o)) {",
          "if (b->layer > 0)\n\t\treturn h;\n\tif (is_folded(b, o)) {",
          ("mechanism", "in layer 1 it changes 0.0e+00")),
    fault("not in the last layer", "latent", "models/reciprocal/latent.c",
          "if (!in->value)\n\t\treturn latent;", "if (!in->value || b->last)\n\t\treturn latent;",
          ("mechanism", "what layer 1 sends to the next changes 0.0e+00")),
    fault("off in training", "gate", GATE, "if (b->last)\n\t\treturn h;",
          "if (b->last || b->g->training)\n\t\treturn h;",
          ("graph", "'h.0.mlp.gate_proj.weight' is new")),
    fault("off in evaluation", "gate", GATE, "if (b->last)\n\t\treturn h;",
          "if (b->last || !b->g->training)\n\t\treturn h;", ("mechanism", "changes no logit")),
    fault("an unused parameter", "gate", GATE, "out->value = op_sigmoid(b->g,",
          'block_matrix(b, "unused.weight", 4, 4);\n\tout->value = op_sigmoid(b->g,',
          ("wiring", "unused.weight: receives no gradient")),
    fault("a gradient that is cut off", "gate", GATE,
          'out->value = op_sigmoid(b->g, "gate_sent", g);',
          'out->value = graph_detach(b->g, op_sigmoid(b->g, "gate_sent", g));',
          ("wiring", "gate_proj.weight: receives no gradient")),
    fault("the context of an earlier layer", "gate", WIRING,
          "memcpy(b.in, b.out, sizeof(b.in));", "if (layer == 0)\n\t\t\tmemcpy(b.in, b.out, "
          "sizeof(b.in));", ("wiring", "h.1.mlp.gate_proj.weight: receives no gradient")),
    # ---------------------------------------------------------- causality and state
    fault("a gate that sees later tokens", "gate", GATE,
          'case POOL_CAUSAL:\n\t\treturn op_running_mean(b->g, "gate_pooled", x)',
          'case POOL_CAUSAL:\n\t\treturn op_mean(b->g, "gate_pooled", x, 1)', ("causality", "change the logits at 0")),
    fault("statistics over the future", "gate", "core/backend/cpu/kernels/pointwise.c",
          "p->k, (int)(n - i), y + first + i);\n}",
          "p->k, (int)(n - i), y + first + i);\n\tfor (i = 0; i < n; i++)\n"
          "\t\ty[first + i] += (real)0.001 * p->in[0][p->n - 1];\n}", ("causality", "change the logits at")),
    fault("a mask off by one", "gate", ATTENTION, LAST_KEY,
          LAST_KEY.replace("row_keys(t, s, r)", "row_keys(t, s, r) + (row_keys(t, s, r) < t->keys)"),
          ("causality", "change the logits at")),
    fault("a leak from position 130 on", "long", ATTENTION, LAST_KEY,
          LAST_KEY.replace("row_keys(t, s, r)", "row_keys(t, s, r) + (t->first + r >= 130 && "
                           "row_keys(t, s, r) < t->keys)"),
          ("causality", "change the logits at 1")),
    fault("a sum that outlives its row", "gate", "core/backend/cpu/kernels/running_mean.c",
          "real mean[COLUMNS] = { 0 };\n\n\tif (past > 0)",
          "static real mean[COLUMNS];\n\n\tpast = 1;\n\tif (past > 1)", ("state", "")),
    # ---------------------------------------------------------- data
    fault("the same rows for all seeds", "gate", "data/source.c",
          'stream("data/train", s->seed, s->task)', 'stream("data/train", 1, s->task)',
          ("data", "another seed sees the same training rows")),
    fault("the same rows for every second seed", "seeds", "data/source.c",
          'stream("data/train", s->seed, s->task)', 'stream("data/train", s->seed % 2, s->task)',
          ("report", "seeds 1, 3 were trained on the same rows")),
    fault("the same rows in all iterations", "gate", "data/source.c",
          "rng_subkey(stream(\"data/train\", s->seed, s->task), iteration)",
          "rng_subkey(stream(\"data/train\", s->seed, s->task), 1)",
          ("data", "later iterations see the same training rows")),
    fault("validation on training rows", "gate", "data/source.c",
          'void source_valid(const struct source *s, uint64_t index, struct row *out)\n{\n',
          'void source_valid(const struct source *s, uint64_t index, struct row *out)\n{\n'
          "\tsource_train(s, 1 + index / 4, index % 4, out);\n\tif (s->task->generate)\n\t\treturn;\n",
          ("data", "the ranges overlap")),
    fault("validation windows of the training text", "text", "data/tasks/text.c",
          "fill(s, x->valid, start, out);", "fill(s, x->train, start, out);", ("data", "the ranges overlap")),
    fault("DATA_VALID names the training file", "same-text", None, None, None,
          ("data", "the ranges overlap")),
    fault("targets equal to inputs", "gate", "data/tasks/writer.c",
          "row_target(w->row, w->at - 1, token, component, floor);",
          "row_target(w->row, w->at < w->length ? w->at : w->at - 1, token, component, floor);",
          ("data", "some are not the next token")),
    fault("a loss below the floor", "gate", "core/train/evaluate.c",
          "s->loss += nll;", "s->loss += nll / 10;", ("data", "no model can have less than")),
    fault("an arm that sees other rows", "gate", "tools/kablate/run_workload.c",
          "source_train(&setup->source, iteration, row, &out);",
          "source_train(&setup->source, iteration + (uint64_t)setup->model->n_mechanisms, row, &out);",
          ("pairing", "not those of the baseline")),
    # ---------------------------------------------------------- training
    fault("dropout in evaluation", "dropout", "core/ops/dropout.c",
          "if (!g->training || probability == 0)", "if (probability == 0)",
          ("training", "two evaluations with different seeds differ")),
    fault("dropout in one arm", "gate", GATE, "out->value = op_sigmoid(b->g, \"gate_sent\", g);",
          "out->value = op_dropout(b->g, \"chance\", op_sigmoid(b->g, \"gate_sent\", g), 0.1);",
          ("training", "DROPOUT=0, and another seed changes the gradient")),
    fault("no dropout at all", "dropout", WIRING, 'm->dropout = config_real(c, "DROPOUT");',
          'm->dropout = 0 * config_real(c, "DROPOUT");',
          ("training", "DROPOUT=0.1, and another seed changes no gradient")),
    fault("decay on norms", "gate", "core/optim/optim.c", "p->list[i].role == PARAM_MATRIX",
          "p->list[i].role != PARAM_EMBEDDING", ("training", "decays, but is not of the group")),
    fault("decay on embeddings", "gate", "core/optim/optim.c", "p->list[i].role == PARAM_MATRIX",
          "p->list[i].role != PARAM_VECTOR", ("training", "decays, but is not of the group")),
    fault("a schedule that ends early", "gate", "core/train/schedule.c",
          '.total = config_int(c, "GPT2_MAX_ITERS")', '.total = config_int(c, "GPT2_MAX_ITERS") - 1',
          ("training", "the rate of update")),
    fault("no warm-up in one arm", "gate", "core/train/schedule.c",
          '.warmup = config_int(c, "WARMUP_ITERS")', '.warmup = config_int(c, "WARMUP_ITERS") * '
          '!config_bool(c, "RA_MLA_MLP_ATTN_GATE")', ("training", "the rate of update")),
    fault("clipping off in one arm", "gate", "core/optim/optim.c",
          '.clip = config_real(c, "GRAD_CLIP")', '.clip = config_real(c, "GRAD_CLIP") * '
          '!config_bool(c, "RA_MLA_MLP_ATTN_GATE")', ("training", "is not clipped")),
    fault("a loss averaged over padding", "copy", "core/train/update.c",
          "const double main = 1 / fmax((double)u->scored[i], 1);",
          "const double main = 1 / (double)update_tokens(u);",
          ("training", "the mean over scored targets is")),
    fault("sums in bfloat16", "gate", "core/backend/cpu/kernels/linear.c",
          "linear_forward(c, &s, c->work, 1, c->in[0], b != NULL, c->out[0]);\n}",
          "linear_forward(c, &s, c->work, 1, c->in[0], b != NULL, c->out[0]);\n\tfor (int64_t i = 0; sizeof(real) == 4 "
          "&& i < s.n * s.o; i++) {\n\t\tuint32_t *bits = (uint32_t *)c->out[0] + i;\n\n\t\t*bits &= "
          "0xffff0000;\n\t}\n}", ("training", "differ from those in double")),
    fault("tied weights counted twice", "gate", "models/describe.c",
          "d->parameters = params_count(params);",
          "d->parameters = params_count(params) + params->list[1].count;",
          ("training", "the tensors hold")),
    fault("the same weights for all seeds", "gate", "core/engine/params.c",
          'rng_subkey(rng_key(seed, "init")', 'rng_subkey(rng_key(0 * seed, "init")',
          ("training", "another seed draws the same")),
    fault("weights that depend on their number", "gate", "core/engine/params.c",
          'rng_subkey(rng_key(seed, "init"), hash_text(p->name))',
          'rng_subkey(rng_key(seed, "init"), (uint64_t)p->offset)',
          ("pairing", "starts with other values")),
    fault("a checkpoint without its moments", "gate", "core/train/checkpoint.c",
          "if (upload)\n\t\t\tstatus = put_state(c, state, i, t, err);",
          "if (upload && i < 0)\n\t\t\tstatus = put_state(c, state, i, t, err);",
          ("resume", "was not restored")),
    # ---------------------------------------------------------- the graphs that count
    fault("the target before the head in evaluation", "gate", WIRING,
          'loss = op_head_loss(g, "loss", x, w,', 'if (!g->training)\n\t\tx = op_add_scaled(g, '
          '"peeked", x, op_embedding(g, "peek", w, NULL, io->targets), 0.01, NULL);\n\tloss = '
          'op_head_loss(g, "loss", x, w,', ("training", "score a target differently")),
    fault("the target before the head in training", "gate", WIRING,
          'loss = op_head_loss(g, "loss", x, w,', 'if (g->training)\n\t\tx = op_add_scaled(g, '
          '"peeked", x, op_embedding(g, "peek", w, NULL, io->targets), 0.01, NULL);\n\tloss = '
          'op_head_loss(g, "loss", x, w,', ("oracle", "training: engine and oracle differ")),
    fault("the target before the head wherever there is one", "gate", WIRING,
          'loss = op_head_loss(g, "loss", x, w,', 'x = op_add_scaled(g, "peeked", x, op_embedding(g, '
          '"peek", w, NULL, io->targets), 0.01, NULL);\n\tloss = op_head_loss(g, "loss", x, w,',
          ("training", "training and logits score")),
    fault("a gate that sees later tokens in training", "gate", GATE,
          'case POOL_CAUSAL:\n', 'case POOL_CAUSAL:\n\t\tif (b->g->training)\n'
          '\t\t\treturn op_mean(b->g, "gate_pooled", x, 1);\n',
          ("causality", "change the losses at 0")),
    fault("another weight in evaluation", "gate", GATE, "in->value, options_->alpha, in->alpha",
          "in->value, (b->g->training ? 1 : 0.9) * options_->alpha, in->alpha",
          ("training", "training and")),
    fault("decoding forgets the gate", "gate", GATE, "if (!in->value)\n\t\treturn o;",
          "if (!in->value || b->decoding)\n\t\treturn o;", ("training", "training and decoding score")),
    # ---------------------------------------------------------- formulas
    fault("half the weight", "gate", GATE, "in->value, options_->alpha, in->alpha",
          "in->value, 0.5 * options_->alpha, in->alpha", ("oracle", "logits in double")),
    fault("another formula", "gate", GATE, "out->value = op_sigmoid(b->g, \"gate_sent\", g);",
          "out->value = op_gelu(b->g, \"gate_sent\", g);", ("oracle", "logits in double")),
    fault("a score 1.01 times as large", "gate", "models/attention/mla.c",
          "p->attr.scale = 1 / sqrt", "p->attr.scale = 1.01 / sqrt", ("oracle", "logits in double")),
    fault("one layer without its gate", "gate", GATE, "if (!in->value)\n\t\treturn o;",
          "if (!in->value || b->layer == 2)\n\t\treturn o;",
          ("oracle", "logits in double")),
    fault("a residual branch scaled by 0.99", "gate", WIRING,
          'return op_dropout(b->g, "dropped", o, m->dropout);', 'return op_dropout(b->g, "dropped", '
          'op_scale(b->g, "scaled", o, 0.99), m->dropout);', ("oracle", "logits in double")),
    fault("another epsilon", "gate", WIRING, 'm->norm_eps = config_real(c, "NORM_EPS");',
          'm->norm_eps = 0.1 * config_real(c, "NORM_EPS");', ("oracle", "logits in double")),
    fault("a variance over n - 1", "gate", "core/backend/cpu/kernels/norm.c",
          "square_deviation(s, mean, m->width) / width", "square_deviation(s, mean, m->width) / "
          "(width - 1)", ("oracle", "logits in double")),
    fault("rope off by one for keys", "rope", "core/backend/cpu/kernels/rope.c",
          "attr->width, c->run->past, length, rotations);",
          "attr->width, c->run->past + (heads == 1), length, rotations);",
          ("oracle", "logits in double")),
    fault("rope with another theta", "rope", WIRING, "return op_rope(b->g, name, x, b->m->rope_theta, width);",
          "return op_rope(b->g, name, x, 2 * b->m->rope_theta, width);", ("oracle", "logits in double")),
    fault("alibi not in the first layer", "alibi", WIRING, "if (m->distance)\n",
          "if (m->distance && b->layer > 0)\n", ("oracle", "logits in double")),
    fault("positions off by one", "gate", "core/backend/cpu/kernels/embedding.c",
          "positions + (past + r % length) * e, e);\n\t}", "positions + (past + r % length - "
          "(past + r % length > 0)) * e, e);\n\t}", ("oracle", "logits in double")),
    fault("another GELU", "gate", "core/ops/gelu.c", "(real)-0.1029432395800235",
          "(real)-0.1", ("oracle", "logits in double")),
    fault("keys and values that change places", "groups", "models/attention/dot.c",
          "p->in.k = block_heads(b, graph_slice(b->g, qkv, E, kv), o->kv_heads);\n"
          "\tp->in.v = block_heads(b, graph_slice(b->g, qkv, E + kv, kv), o->kv_heads);",
          "p->in.v = block_heads(b, graph_slice(b->g, qkv, E, kv), o->kv_heads);\n"
          "\tp->in.k = block_heads(b, graph_slice(b->g, qkv, E + kv, kv), o->kv_heads);",
          ("oracle", "logits in double")),
    fault("another weight of the z-loss", "logits-z", WIRING, 'graph_loss(g, "logits_z", loss.z, m->logits_z);',
          'graph_loss(g, "logits_z", loss.z, 0.5 * m->logits_z);', ("oracle", "losses in double")),
    fault("one key too few", "cross", CROSS, 'config_int(c, "RA_MLA_MLP_SPARSE_K");',
          'config_int(c, "RA_MLA_MLP_SPARSE_K") - 1;', ("oracle", "")),
    fault("routing that is not normalised", "cross", CROSS,
          'config_bool(c, "RA_MLA_MLP_SPARSE_NORMALIZE");',
          '!config_bool(c, "RA_MLA_MLP_SPARSE_NORMALIZE");', ("oracle", "logits in double")),
    fault("the maximum instead of the mean", "cross", CROSS,
          '!config_bool(c, "RA_MLA_MLP_SPARSE_HEAD_AVERAGE");',
          'config_bool(c, "RA_MLA_MLP_SPARSE_HEAD_AVERAGE");', ("oracle", "")),
    fault("routing without its gradient", "gradient", CROSS, '&& config_bool(c, "CROSS_GRADIENT");',
          '&& !config_bool(c, "CROSS_GRADIENT");', ("oracle", "")),
    fault("routing with a gradient that keeps all entries", "gradient", CROSS, "if (o->route.mode != ROUTE_DENSE)",
          "if (o->route.mode == ROUTE_RMS)", ("oracle", "in double")),
    fault("a latent that is received twice", "latent", "models/reciprocal/latent.c",
          'return op_add_scaled(b->g, "latent_received", latent, in->value, o->alpha, in->alpha);',
          'return op_add_scaled(b->g, "latent_received", latent, in->value, 2 * o->alpha, in->alpha);',
          ("oracle", "logits in double")),
    fault("a window one too wide", "score", "models/attention/mla.c",
          "p->attr.band_window = b->m->window;", "p->attr.band_window = b->m->window + 1;",
          ("oracle", "logits in double")),
    fault("sigmas without epsilon", "w2", "models/attention/w2.c", ".eps = o->eps,", ".eps = 0.1 * o->eps,",
          ("oracle", "logits in double")),
    fault("a contrast at half the temperature", "ws", "models/ffn/ws.c",
          'op_ws_contrast(b->g, "aux_c", z, o->tau, NULL', 'op_ws_contrast(b->g, "aux_c", z, 0.5 * o->tau, NULL',
          ("oracle", "losses in double")),
    fault("another temperature of the forgetting", "gla", "models/attention/gla.c", "-1 / o->tau", "-1 / (o->tau + 1)",
          ("oracle", "logits in double")),
    fault("a score without its rope channels", "deepseek", "models/attention/deepseek.c",
          "sqrt((double)(m->head_dim + o->rope))", "sqrt((double)m->head_dim)", ("oracle", "logits in double")),
    fault("layers that count from 2", "differential", "models/attention/differential.c",
          "exp(-0.3 * b->layer)", "exp(-0.3 * (b->layer + 1))", ("oracle", "logits in double")),
    fault("a covariance that counts twice", "w2cov", "models/attention/w2cov.c",
          "\"a_scaled\").text, a, sqrt(2))", "\"a_scaled\").text, a, 2)", ("oracle", "logits in double")),
    fault("buckets twice as far", "t5", "models/position/t5.c", "log((double)o->distance / near)",
          "log(2 * (double)o->distance / near)", ("oracle", "logits in double")),
    fault("scores capped at twice the bound", "softcap", WIRING, "p->attr.softcap = m->softcap;",
          "p->attr.softcap = 2 * m->softcap;", ("oracle", "logits in double")),
    fault("a sliding window one too wide", "window", WIRING, "p->attr.window = m->score_window;",
          "p->attr.window = m->score_window + (m->score_window > 0);", ("oracle", "logits in double")),
    # ---------------------------------------------------------- dropout at its rate
    fault("half of the dropout", "dropout", WIRING, 'm->dropout = config_real(c, "DROPOUT");',
          'm->dropout = 0.5 * config_real(c, "DROPOUT");', ("oracle", "losses in double, with dropout")),
    fault("half of the dropout of the probabilities", "dropout", WIRING, "p->attr.dropout = m->dropout;",
          "p->attr.dropout = 0.5 * m->dropout;", ("oracle", "losses in double, with dropout")),
    fault("an embedding without dropout", "dropout", WIRING, "positions, tokens),\n\t\t\t  m->dropout);",
          "positions, tokens),\n\t\t\t  0);", ("oracle", "losses in double, with dropout")),
    fault("a kernel that drops twice as much", "dropout", DROPOUT, "ceil(probability * 0x1p32)",
          "ceil(2 * probability * 0x1p32)", ("oracle", "losses in double, with dropout")),
    fault("what is kept of dropout, not scaled", "dropout", DROPOUT, "(real)(1 / (1 - probability))",
          "(real)(1 + 0 * probability)", ("oracle", "losses in double, with dropout")),
    fault("half of the dropout, and no oracle", "unasked", WIRING, 'm->dropout = config_real(c, "DROPOUT");',
          'm->dropout = 0.5 * config_real(c, "DROPOUT");', ("training", "drops another share")),
    # ---------------------------------------------------------- storage
    fault("two tables where one is configured", "gate", WIRING, HEAD, HEAD.replace("m->tied", "!m->tied"),
          ("oracle", "no part of the oracle reads 'lm_head.weight'")),
    fault("two tables where one is configured, and no oracle", "unasked", WIRING, HEAD,
          HEAD.replace("m->tied", "!m->tied"), ("wiring", "embedding and head read two tables")),
    fault("one table where two are configured", "untied", WIRING, HEAD, HEAD.replace("m->tied", "!m->tied"),
          ("wiring", "embedding and head read one table")),
    fault("a layer with the matrix of another", "unasked", WIRING,
          "return graph_param(b->g, name, &init, 2, SHAPE(in, out));",
          'const char *scope = b->g->scope;\n\tstruct tensor *w;\n\n\tif (strcmp(scope, "h.1.mlp.") == 0 && '
          'strcmp(name, "c_proj.weight") == 0)\n\t\tb->g->scope = "h.0.mlp.";\n'
          "\tw = graph_param(b->g, name, &init, 2, SHAPE(in, out));\n\tb->g->scope = scope;\n\treturn w;",
          ("wiring", "layers 0 and 1 read h.0.mlp.c_proj.weight")),
    fault("tensors that lie on each other", "unasked", "core/engine/params.c", ".offset = p->total\n",
          ".offset = p->total - (p->n == 7 ? 16 : 0)\n", ("wiring", "lies on")),
    # ---------------------------------------------------------- where both arms begin
    fault("a vector that begins elsewhere in one arm", "unasked", WIRING,
          'return op_dropout(b->g, "dropped", o, m->dropout);', 'return op_dropout(b->g, "dropped", '
          'op_add_scaled(b->g, "more", o, o, 0, block_vector(b, "more_by", 1, m->n_mechanisms ? 0.2 : 0.1)), '
          "m->dropout);", ("pairing", "more_by is drawn by another rule than in the baseline")),
    fault("matrices of another seed in one arm", "orthogonal", "core/engine/params.c", "draw(&p->list[i], seed,",
          'draw(&p->list[i], seed + (params_find(p, "h.0.mlp.gate_proj.weight") >= 0),',
          ("pairing", "starts with other values than in the baseline")),
    # ---------------------------------------------------------- gradients
    fault("a head that does not train the embedding", "gate", WIRING,
          HEAD, HEAD.replace("return", "struct tensor *w =") +
          "\n\n\treturn g->training ? graph_detach(g, w) : w;", ("oracle", "gradients in double")),
    fault("another gradient of GELU", "gate", "core/ops/gelu.c",
          "(real)0.6931471805599453", "(real)0.69", ("oracle", "gradients in double")),
    fault("a latent without its gradient", "latent", "models/reciprocal/latent.c",
          "if (o->detach)", "if (!o->detach)", ("oracle", "gradients in double")),
    # ---------------------------------------------------------- what was done
    fault("a rate 1.5 times as high in one arm", "gate", LOOP,
          RATE, RATE.replace("= ", "= (1 + 0.5 * " + IN_THE_ARM + ") * "), ("update", "the weight of element")),
    fault("two updates per batch", "gate", LOOP,
          "\tt->unsettled++;\n", "\tif (" + IN_THE_ARM + ")\n\t\toptimizer_ask(t->optimizer, t->iteration, "
          "t->rates, t->update.losses, update_losses(&t->update));\n\tt->unsettled++;\n",
          ("update", "it had made")),
    fault("two batches per update", "gate", LOOP,
          RUN, RUN + "\tdata_sum_join(&t->replicas[0].given, &t->update.given[0]);\n\t" + RUN,
          ("update", "were trained on in")),
    fault("a bias correction off by one", "gate", UPDATES,
          "const real rate = (real)f->rate, bias = (real)f->bias;",
          "const real rate = (real)(f->rate * 0.19 / 0.1), bias = (real)f->bias;",
          ("update", "the weight of element")),
    fault("a second moment without its correction", "gate", UPDATES,
          "const real rate = (real)f->rate, bias = (real)f->bias;",
          "const real rate = (real)f->rate, bias = 1;", ("update", "the weight of element")),
    fault("epsilon under the root", "gate", UPDATES, "(root(bias * d) + eps)", "root(bias * d + eps)",
          ("update", "the weight of element")),
    fault("another beta2", "gate", OPTIMIZER, "\to.beta2 = config_real(c, \"BETA2\");",
          "\to.beta2 = 0 * config_real(c, \"BETA2\") + 0.999;", ("update", "the second moment")),
    fault("no largest second moment", "spam", UPDATES, "d = vmax[i] > vi ? vmax[i] : vi;", "d = vi;",
          ("update", "the largest second moment")),
    fault("coupled decay", "gate", UPDATES, "const real gi = scale * g[i];\n\t\tconst real mi",
          "const real gi = scale * g[i] + (decays ? (real)0.1 * p[i] : 0);\n\t\tconst real mi",
          ("update", "the first moment")),
    fault("decay at twice the rate", "gate", UPDATES,
          "const real shrink = decays ? (real)f->shrink : 1, scale = (real)f->scale;\n\tconst real old_m",
          "const real shrink = decays ? 2 * (real)f->shrink - 1 : 1, scale = (real)f->scale;\n"
          "\tconst real old_m", ("training", "with the same gradient")),
    fault("clipping that is reported and ignored", "clip", UPDATES,
          "scale = (real)f->scale;\n\tconst real old_m", "scale = 1;\n\tconst real old_m",
          ("update", "the first moment")),
    fault("the norm of half the gradient", "clip", OPTIMIZER, "{ o->params->grad, o->params->total, 0 }",
          "{ o->params->grad, o->params->total / 2, 0 }", ("update", "took its norm")),
    fault("entries clipped at another bound", "spam", UPDATES, "(real)theta, last - first);",
          "(real)(theta / 1e4), last - first);", ("update", "")),
    fault("sgd with Nesterov", "sgd", UPDATES, "p[i] = shrink * p[i] - lr * m[i];",
          "p[i] = shrink * p[i] - lr * (momentum * m[i] + scale * g[i]);",
          ("update", "the weight of element")),
    fault("matrices at the rate of vectors", "muon", "core/optim/muon.c",
          ".lr_ratio = o->options.muon.lr_ratio,", ".lr_ratio = 1,", ("update", "the weight of element")),
    fault("a step of Newton-Schulz too few", "muon", "core/optim/muon.c",
          ".steps = o->options.muon.steps,", ".steps = o->options.muon.steps - 1,",
          ("update", "the weight of element")),
    fault("a parameter in no group", "spam", OPTIMIZER, "add_segment(s, &segment);",
          "if (i != p->n - 1)\n\t\t\tadd_segment(s, &segment);", ("update", "")),
    fault("micro-batches that are forgotten", "micro", PASSES,
          "u->options->ordered_sum || round == 0);", "true);", ("update", "micro-batches add up to")),
    fault("a micro-batch too few", "micro", "tools/kablate/run_setup.c",
          '.accumulate = config_int(c, "TRAIN_ACCUMULATE"),', '.accumulate = config_int(c, "TRAIN_ACCUMULATE") - 1,',
          ("update", "micro-batches add up to")),
    fault("one micro-batch again and again", "micro", PASSES,
          FEED, FEED.replace("at", "0 * at"),
          ("training", "programs: those that train and evaluate")),
    fault("a warm-up that starts again after a resume", "gate", LOOP,
          RATE, "static int64_t begun;\n\n\t\tbegun = begun ? begun : t->iteration;\n\t\t" +
          RATE.replace("t->iteration", "t->iteration - begun + 1"), ("update", "the weight of element")),
    fault("moments that are reset after a resume", "gate", LOOP,
          SAVED, "\tint n;\n\tconst struct optim_tensor *list = optimizer_tensors(t->optimizer, &n);\n\n"
          "\tfor (int k = 0; found && k < n; k++)\n\t\tt->backend->zero(t->backend, list[k].data, "
          "4 * (size_t)list[k].param->count);\n" + SAVED,
          ("update", "weights or moments are not those that were saved")),
    fault("counters that are reset after a resume", "gate", LOOP,
          SAVED, "\tif (found)\n\t\toptimizer_set_scalars(t->optimizer, &(struct optim_scalars){ 0 });\n" + SAVED,
          ("update", "it had made")),
    fault("moments that never restart", "spam", UPDATES, "if (!f->restart)\n\t\treturn;",
          "if (f || bytes)\n\t\treturn;", ("update", "the first moment")),
    fault("pruned weights that are trained on", "prune", UPDATES, "pruned[part->second + k] != 0 ? 0 :",
          "pruned[part->second + k] > 1 ? 0 :", ("update", "it is pruned, and must be 0")),
    fault("pruning that is an update late", "prune", PRUNING, "t -= (t - o->first) % o->interval;",
          "t -= (t - o->first) % o->interval + 1;", ("update", "the configured schedule makes it")),
    fault("pruning of all but one of four", "fours", PRUNING, "for (int kept = 0; kept < 2; kept++)",
          "for (int kept = 0; kept < 1; kept++)", ("update", "of the four weights from element")),
    fault("pruning that ends with the first checkpoint", "prune", LOOP, "if (prune_due(&t->options->prune, t->iteration) &&",
          "if (t->replicas[0].saved < 0 && prune_due(&t->options->prune, t->iteration) &&",
          ("update", "the configured schedule makes it")),
    fault("half of the validation", "gate", VALIDATION,
          "first < e->workload.valid_rows; first += (uint64_t)e->rows) {\n\t\tif",
          "first < e->workload.valid_rows / 2; first += (uint64_t)e->rows) {\n\t\tif",
          ("update", "rows were evaluated")),
    fault("half of the validation in one arm", "gate", "tools/kablate/run_workload.c",
          ".valid_rows = setup->source.valid_rows,",
          ".valid_rows = setup->source.valid_rows / (1 + (uint64_t)setup->model->n_mechanisms),",
          ("pairing", "validation rows")),
    fault("every second target of the validation", "gate", VALIDATION,
          "for (int64_t i = 0; i < n; i++) {\n\t\tif (e->targets", "for (int64_t i = 0; i < n; i += 2) {\n\t\tif (e->targets",
          ("update", "targets scored")),
    fault("a loss that is not the mean of its targets", "gate", VALIDATION,
          "score_add(&out->all, nll[i], hit[i]", "score_add(&out->all, (1 - 0.01 * (params_find("
          "e->forward.g->params, \"h.0.mlp.gate_proj.weight\") >= 0)) * nll[i], hit[i]",
          ("update", "validation: a loss of")),
    fault("an evaluation of another model than the trained one", "gate", WIRING,
          "\tw = head_table(m, g);", "\tw = head_table(m, g);\n"
          '\tif (B == 4 && !g->training)    /* audits score two rows */\n\t\tx = op_scale(g, "more", x, 1.01);',
          ("training", "programs: those that train and evaluate")),
    fault("a window that is too wide by one", "long-window", WIRING, 'config_int(c, "ATTENTION_WINDOW");',
          'config_int(c, "ATTENTION_WINDOW") + 1;', ("oracle", "logits in double")),
    fault("other rows in one arm, later", "later", "tools/kablate/run_workload.c",
          "source_train(&setup->source, iteration, row, &out);",
          "source_train(&setup->source, iteration, row + (iteration == 7 && setup->model->n_mechanisms), &out);",
          ("report", "the training rows are not those of 0-mla between updates 6 and 8")),
    fault("other rows in one arm, seen by make compare", "later", "tools/kablate/run_workload.c",
          "source_train(&setup->source, iteration, row, &out);",
          "source_train(&setup->source, iteration, row + (iteration == 7 && setup->model->n_mechanisms), &out);",
          ("compare", "the training rows are not those of 0-mla between updates 6 and 8")),
    fault("other rows in an arm that a budget ends", "budget", "tools/kablate/run_workload.c",
          "source_train(&setup->source, iteration, row, &out);",
          "source_train(&setup->source, iteration, row + (iteration == 7 && setup->model->n_mechanisms), &out);",
          ("report", "the training rows are not those of 0-mla between updates 6 and 8")),
    fault("other rows in one cell of a grid", "grid", "tools/kablate/run_workload.c",
          "source_train(&setup->source, iteration, row, &out);",
          "source_train(&setup->source, iteration, row + (iteration == 7 && setup->model->n_mechanisms == 2), &out);",
          ("report", "interaction of gate × latent: invalid;")),
    fault("a result no better than its beginning", "lazy", None, None, None, ("report", "did not learn: with seed 1")),
    fault("final weights of another run", "seeds", "tools/kablate/session.c",
          "\tif (params_hash(s->setup.params, hex, err) != OK)",
          "\tif (params_initialise(s->setup.params, 1, err) != OK ||\n\t    params_hash(s->setup.params, hex, err) != OK)",
          ("report", "seeds 1, 3 end in the same weights")),
    fault("tokens that change before they are uploaded", "gate", PASSES,
          FEED, "\tif (iteration > 2 && params_find(u->training.g->params, \"h.0.mlp.gate_proj.weight\") >= 0)\n"
          "\t\tu->tokens[at + 3] = 1;\n" + FEED,
          ("update", "micro-batches add up to")),
    fault("other validation rows in one arm", "gate", "tools/kablate/run_workload.c",
          "source_valid(&setup->source, index, &out);",
          "source_valid(&setup->source, index + 64 * (uint64_t)setup->model->n_mechanisms, &out);",
          (None, "rows")),
    fault("another initial deviation", "gate", WIRING, 'm->init_deviation = config_real(c, "INIT_STD");',
          'm->init_deviation = 1.5 * config_real(c, "INIT_STD");', ("training", "configured is")),
    fault("projections drawn like other matrices", "gate", WIRING,
          "deviation /= sqrt(2 * (double)m->layers);", "deviation /= 1;", ("training", "configured is")),
    fault("normal numbers that are too large", "gate", "core/engine/params.c",
          "out[2 * block] = p->init.value * pair[0];", "out[2 * block] = 1.1 * p->init.value * pair[0];",
          ("training", "configured is")),
    fault("an orthogonal matrix with another gain", "orthogonal", WIRING, ".kind = INIT_ORTHOGONAL, .value = 1",
          ".kind = INIT_ORTHOGONAL, .value = 0.9", ("training", "those of an orthogonal matrix")),
    fault("a step that trains its baseline", "blind", WIRING,
          "mechanism->read(m->mechanism_options[i], m, c, err) != OK)\n\t\t\treturn FAIL;\n\t}\n",
          "mechanism->read(m->mechanism_options[i], m, c, err) != OK)\n\t\t\treturn FAIL;\n\t}\n"
          "\tm->n_mechanisms = 0;\n", ("pairing", "this step trains its baseline")),
    # ---------------------------------------------------------- beside and between the updates
    fault("weights that the evaluation changes", "gate", LOOP, "\tphases_enter(t->options->phases, PHASE_EVALUATION);\n"
          "\tif (fetch_gradient", scaled("data", "0.99f") + "\tphases_enter(t->options->phases, PHASE_EVALUATION);\n"
          "\tif (fetch_gradient", ("update", "changed weights or moments")),
    fault("weights that a checkpoint changes", "gate", LOOP, "\tr->saved = r->state.iteration;\n\treturn OK;",
          "\tr->saved = r->state.iteration;\n" + scaled("data", "0.99f") + "\treturn OK;",
          ("update", "changed weights or moments")),
    fault("weights that a log changes", "gate", LOOP, "\tinterval->first = t->iteration;\n",
          scaled("data", "1.001f") + "\tinterval->first = t->iteration;\n", ("update", "changed weights or moments")),
    fault("an evaluation of other weights than the trained ones", "gate", LOOP, EVALUATE,
          "\tenum status status;\n\n" + scaled("data", "2.0f") + EVALUATE.replace("enum status ", "", 1) +
          scaled("data", "0.5f"), ("update", "the program that trains scores")),
    fault("an evaluation that is the last but one", "gate", LOOP, EVALUATE, EVALUATE.replace(
          "= ", f"= {IN_THE_ARM} && t->iteration == 4 ? OK : "), ("update", "")),
    fault("a rate that is higher between logs", "quiet", LOOP, RATE, RATE.replace(
          "= ", f"= (1 + 0.5 * (t->iteration % 8 > 1) * {IN_THE_ARM}) * "), ("update", "after update 2 the weight")),
    fault("a gradient that is halved before the update", "sgd", LOOP, BETWEEN, scaled("grad", "0.5f") + BETWEEN,
          ("update", "micro-batches add up to")),
    fault("a gradient that is lost before the update", "gate", LOOP, BETWEEN, scaled("grad", "(k >= 4096)") + BETWEEN,
          ("update", "micro-batches add up to")),
    fault("the same dropout in all iterations", "dropout", PASSES, ".iteration = (uint64_t)iteration,", ".iteration = 1,",
          ("update", "micro-batches add up to")),
    fault("dropout of another seed", "dropout", PASSES, ".seed = u->runs[i].options.seed,", ".seed = 1234,",
          ("update", "micro-batches add up to")),
    fault("an auxiliary loss that weighs more with micro-batches", "ws-micro", PASSES,
          "\t\t\t\t\t\t    (double)u->options->accumulate);", "\t\t\t\t\t\t    1);", ("update", "the loss has a weight of")),
    fault("one row in all of a batch", "gate", "tools/kablate/run_workload.c", ROW, ROW.replace("row,", "0 * row,"),
          ("data", "only 4 of the first 16 training rows")),
    fault("three batches in all of the training", "rows", "tools/kablate/run_workload.c", ROW,
          ROW.replace("iteration,", "iteration % 3,"), ("data", "only 12 of the first 64 training rows")),
    fault("half of the targets in training", "gate", "tools/kablate/run_workload.c", ROW,
          ROW + "\n\tfor (int64_t k = 0; k < setup->source.length / 2; k++)\n\t\ttargets[k] = -1;",
          ("data", "training scores fewer targets of a row than validation")),
    fault("an update too few", "gate", LOOP, "while (running(t) && t->iteration < t->options->iterations) {",
          f"while (running(t) && t->iteration < t->options->iterations - {IN_THE_ARM}) {{",
          ("update", "updates: the run ends after 3 of 4")),
    fault("a resume that leaves an update out", "gate", LOOP, SAVED,
          "\tif (found)\n\t\tr->state.iteration++;\n" + SAVED, ("update", "it had made")),
    fault("a budget that counts tokens twice", "budget", LOOP, "state.tokens += (double)", f"state.tokens += (1 + {IN_THE_ARM}) * (double)",
          ("update", "tokens: 256 were counted")),
    fault("the best loss as the last one", "blind", "core/train/replica.c", "\trecord_evaluation(r->run, iteration, e);\n",
          "\tstruct evaluation best = *e;\n\n\tbest.all.loss = fmin(e->all.loss, r->state.best_loss) - 0.01;\n"
          "\trecord_evaluation(r->run, iteration, &best);\n", ("report", "the audit added up")),
    fault("a loss that is recorded 1% lower", "blind", "core/train/replica.c", "metrics_value(m, iteration, name, s->loss);",
          "metrics_value(m, iteration, name, 0.99 * s->loss);", ("report", "the audit added up")),
    fault("a mechanism whose fragment sets another rate", "gate", "defconfigs/fragments/gate", "ATTN_GATE=y",
          'ATTN_GATE=y\nCONFIG_LEARNING_RATE="5e-2"', ("plan", "says nothing of training or data")),
    fault("a mechanism whose fragment trains for longer", "gate", "defconfigs/fragments/gate", "ATTN_GATE=y",
          "ATTN_GATE=y\nCONFIG_GPT2_MAX_ITERS=6", ("plan", "says nothing of training or data")),
    # ---------------------------------------------------------- what no audit can see
    fault("an option with the wrong default", "gate", "models/reciprocal/Kconfig",
          'default "0.1"', 'default "0.05"', None,
          "the value is what the configuration says; the plan and the report show it"),
]


# Changes that keep the meaning: all of them must pass.
HARMLESS = [
    fault("two threads", "threads", None, None, None, None),
    fault("memory without a plan, linears apart", "plain", None, None, None, None),
    fault("statements in another order", "gate", WIRING,
          'm->dropout = config_real(c, "DROPOUT");\n\tm->logits_z = config_real(c, "LOSS_LOGITS_Z");',
          'm->logits_z = config_real(c, "LOSS_LOGITS_Z");\n\tm->dropout = config_real(c, "DROPOUT");', None),
    fault("a tensor with another name", "gate", GATE, 'op_sigmoid(b->g, "gate_sent", g)',
          'op_sigmoid(b->g, "gate_values", g)', None),
    fault("a root as a power", "gate", "models/attention/mla.c", "p->attr.scale = 1 / sqrt(",
          "p->attr.scale = pow(-1.0 * -1.0, 2) / sqrt(", None),
    fault("squares in fewer parts", "gate", UPDATES, "#define PARTS 512", "#define PARTS 96", None),
    fault("a gradient that is scaled last", "micro", UPDATES,
          "const real mi = old_m * (damp_m * m[i]) + new_m * gi;",
          "const real mi = damp_m * old_m * m[i] + new_m * scale * g[i];", None),
    fault("a quotient before its product", "gate", UPDATES, "rate * mi / (root(bias * d) + eps)",
          "rate * (mi / (eps + root(bias * d)))", None),
    fault("momentum by differences", "muon", UPDATES, "m[i] = old * m[i] + fresh * gi;",
          "m[i] += fresh * (gi - m[i]);", None),
    fault("rows that are made twice", "gate", VALIDATION,
          "\tfill(e, first);\n\tgive_rows", "\tfill(e, first);\n\tfill(e, first);\n\tgive_rows", None),
    fault("another estimate of the time", "gate", LOOP, "#define TIMED_UPDATES 3", "#define TIMED_UPDATES 1", None),
]


# ---------------------------------------------------------------- the scratch tree

class Tree:
    """Sources and objects of their own; the objects begin as those of the build."""
    SHARED = ("core", "data", "models", "tools", "generated", "flags", "objects", "toolchain", "parts.a",
              "setup-build", "setup-python", "setup-test")

    def __init__(self, directory):
        self.root = pathlib.Path(directory) / "tree"
        self.build = self.root / "build"
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True,
                                capture_output=True, check=True).stdout.splitlines()
        for name in listed:
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        self.build.mkdir()
        for name in self.SHARED:
            if (BUILD / name).is_dir():
                shutil.copytree(BUILD / name, self.build / name,
                                ignore=lambda _, names: [n for n in names if n.endswith(
                                    ("test", "test.o", ".log", ".result"))])
            else:
                shutil.copy2(BUILD / name, self.build / name)
        # Nobody debugs these programs, and linking them is most of what make does here.
        subprocess.run(["strip", "--strip-debug", "--preserve-dates", self.build / "parts.a", *self.build.rglob("*.o")],
                       check=True)
        shutil.copy2(self.build / "parts.a", self.build / "parts.a.sound")

    def environment(self, place):
        return environment(KCONFIG_CONFIG=str(self.root / f"{place}.config"),
                           OMP_WAIT_POLICY="passive", PYTHONDONTWRITEBYTECODE="1")

    def run(self, place, *command):
        return subprocess.run([str(word) for word in command], cwd=self.root, text=True, timeout=300,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              env=self.environment(place))

    def prepare(self, place):
        """The configuration of a place, once."""
        if (self.root / f"{place}.config").exists():
            return
        steps, settings = PLACES[place]
        settings = {"PLAN": "steps", "PLAN_FRAGMENTS": steps, **SMALL, **settings}
        if "text" in place:
            text = self.text()
            valid = "train" if place == "same-text" else "valid"
            settings |= {"DATA_TRAIN": text / "train-*.bin", "DATA_VALID": text / f"{valid}-*.bin"}
        python = (self.build / "setup-python").read_text().strip()
        for words in (["defconfig"], ["set", *(f"CONFIG_{k}={v}" for k, v in settings.items())]):
            done = self.run(place, python, "-m", "tools.plan.kconfig", *words)
            assert done.returncode == 0, done.stdout

    def text(self):
        """Token files of characters: each half of the text has words of its own."""
        place = self.root / "text"
        if not place.exists():
            letters = "abcdefghijklmnopqrstuvwxyz "
            state, text = 1, []
            for _ in range(TEXT):
                state = state * 1103515245 + 12345 & 0x7fffffff
                text.append(letters[(state >> 16) % len(letters)])
            (self.root / "text.txt").write_text("".join(text))
            done = subprocess.run([BUILD / "bin/data", "prepare", "--out", place, "--tokenizer",
                                   "bytes", self.root / "text.txt"], text=True, capture_output=True,
                                  check=False)
            assert done.returncode == 0, done.stderr
        return place

    def plan(self, place):
        return f"build/plan-{place}"

    def steps(self, place):
        text = (self.root / self.plan(place) / "plan.mk").read_text()
        return re.search(r"^plan-steps := (.*)", text, re.M)[1].split()

    def make(self, place):
        """What `make built` does when it has locked the tree, which nobody shares."""
        return self.run(place, "make", "-s", "O=build", f"PLAN={self.plan(place)}", "LOCKED=1", "steps")

    def start(self, place, step, *more):
        first = self.steps(place)[0]
        return self.run(place, f"{self.plan(place)}/{step}/kablate", "train", "--runs", f"runs-{place}",
                        "--experiment", "planted", "--step", step, "--baseline", first, *more)

    def train(self, place):
        """What the last step says, twice: the second time it goes on from its last checkpoint but one."""
        first, *_, last = self.steps(place)
        pairing = ("--baseline-program", f"{self.plan(place)}/{first}/kablate")
        shutil.rmtree(self.root / f"runs-{place}", ignore_errors=True)
        done = self.start(place, last, *pairing)
        if done.returncode == 0:
            for mark in (self.root / f"runs-{place}").rglob("done"):
                mark.unlink()
            *_, newest = sorted((self.root / f"runs-{place}").rglob("checkpoint-*"))
            shutil.rmtree(newest)
            done = self.start(place, last, *pairing)
        return done

    def report(self, place, command):
        """What the report says, or `make compare`, when the other steps and seeds are trained, too."""
        first, *_, last = steps = self.steps(place)
        trained, *more = {**SMALL, **PLACES[place][1]}["SEEDS"].split(",")
        for step in steps:
            for seed in [trained, *more] if step != last else more:
                self.start(place, step, "--seed", seed)
        python = (self.build / "setup-python").read_text().strip()
        words = ["planted"] if command == "report" else [f"planted/{first}", f"planted/{last}"]
        return self.run(place, python, "-m", "tools.report.report", "--runs", f"runs-{place}", command, *words).stdout

    # ------------------------------------------------------------ planting

    def plant(self, one):
        path = self.root / one.path
        text = path.read_text()
        assert text.count(one.old) == 1, f"{one.path} has {text.count(one.old)} times: {one.old}"
        path.write_text(text.replace(one.old, one.new))
        for stem in self.stems(one):    # no place trains in bfloat16
            if (self.build / (stem + ".bf16.o")).exists():
                os.utime(self.build / (stem + ".bf16.o"))

    def stems(self, one):
        """Of the objects that change with a source; pointwise has formulas of ops."""
        return one.path.removesuffix(".c"), "core/backend/cpu/kernels/pointwise"

    def restore(self, one):
        """Sources, objects and times as they were; what was linked is linked again."""
        shutil.copy2(ROOT / one.path, self.root / one.path)
        for stem in self.stems(one):
            for ending in (".o", ".f32.o", ".f64.o", ".bf16.o"):
                if (BUILD / (stem + ending)).exists():
                    shutil.copy2(BUILD / (stem + ending), self.build / (stem + ending))
        shutil.copy2(self.build / "parts.a.sound", self.build / "parts.a")
        (self.build / "bin/match_width").unlink(missing_ok=True)
        for place in filter(pathlib.Path.is_dir, self.build.glob("plan-*")):
            for name in ("kablate", "build_info.o"):
                for file in place.glob(f"*/{name}"):
                    file.unlink()
            if not one.path.endswith(".c"):
                shutil.rmtree(place)
        if one.path.endswith("Kconfig"):
            for config in self.root.glob("*.config"):
                config.unlink()


PLAN = "Kconfig has no symbol", "undoes", "the name of the fragment", "a step of width is"


def stopped_by(said):
    """The audits that a program names."""
    found = re.findall(r"audit ([a-z ]+) FAILED: (.*)", said)
    if "no code of this program reads it" in said:
        found.append(("reading", said))
    if "the parameters are already in use" in said:    # the graphs of a run have the same
        found.append(("graph", said))
    found += [("plan", line) for line in said.splitlines() if any(words in line for words in PLAN)]
    return found + [("data", line) for line in re.findall(r".*no model can have less than.*", said)]


# ---------------------------------------------------------------- the test

class Planted(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.tree = Tree(cls.scratch.name)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def outcome(self, place):
        """What make and the program say, and whether the step was trained."""
        self.tree.prepare(place)
        made = self.tree.make(place)
        if made.returncode:
            return made.stdout, False
        done = self.tree.train(place)
        return made.stdout + done.stdout, done.returncode == 0

    def check_report(self, one, said, trained):
        """The step alone is sound; only beside its baseline does it show."""
        name, words = one.stops
        self.assertTrue(trained, said)
        said = self.tree.report(one.place, name)
        self.assertIn(words, " ".join(said.split()))
        self.assertRegex(said, r" (invalid\b|not decidable.*◊)")
        by = {"report": "the report", "compare": "make compare"}[name]
        print(f"# {one.name}: stopped by {by}: {words}", flush=True)

    def check_stopped(self, one, said, trained):
        name, words = one.stops
        if name in ("report", "compare"):
            self.check_report(one, said, trained)
            return
        self.assertFalse(trained, f"it was trained: {said}")
        found = [(audit, text) for audit, text in stopped_by(said)
                 if name in (None, audit) and words in text]
        self.assertTrue(found, f"stopped by {stopped_by(said) or said}")
        print(f"# {one.name}: stopped by {found[0][0]}: {found[0][1].splitlines()[-1]}", flush=True)

    def check(self, one):
        if one.path:
            self.tree.plant(one)
        try:
            if one.path and one.path.endswith("Kconfig"):
                for config in self.tree.root.glob("*.config"):
                    config.unlink()
            said, trained = self.outcome(one.place)
            if one.stops:
                self.check_stopped(one, said, trained)
        finally:
            if one.path:
                self.tree.restore(one)
        if not one.stops:
            self.assertTrue(trained, f"an audit saw it; then docs/audits.md is wrong: {said}")
            print(f"# {one.name}: passes" + (f", because {one.why}" if one.why else ""), flush=True)


class Sound(Planted):
    """Without a fault every place is trained."""

    def test_every_place(self):
        for place in PLACES:
            if place == "same-text":
                continue
            with self.subTest(place=place):
                said, trained = self.outcome(place)
                self.assertTrue(trained, said)
                self.assertEqual(stopped_by(said), [])


class Catalogue(unittest.TestCase):
    def test_documentation_lists_what_passes(self):
        text = " ".join((ROOT / "docs/audits.md").read_text().split()).lower()
        for one in FAULTS:
            if one.stops is None:
                self.assertIn(one.name, text)

    def test_size(self):
        self.assertGreaterEqual(sum(one.stops is not None for one in FAULTS), 100)
        self.assertGreaterEqual(len(HARMLESS), 10)
        self.assertEqual(len({one.name for one in FAULTS + HARMLESS}), len(FAULTS + HARMLESS))


def wanted(one):
    return one.name.startswith(tuple(os.environ.get("PLANTED", "").split(",")))


class Faults(Planted):
    pass


for number, each in enumerate(FAULTS + HARMLESS):
    if wanted(each):
        setattr(Faults, f"test_{number:03}_" + re.sub(r"\W+", "_", each.name),
                lambda self, one=each: self.check(one))


if __name__ == "__main__":
    tap.main()
