"""Write a run as a directory for transformers: weights, configuration, tokenizer.

What transformers knows becomes a GPT-2 or a Llama; every other model comes with modeling_kablate.py
and the reference, and is loaded with trust_remote_code=True.
"""
import argparse
import ast
import json
import pathlib
import shutil
import subprocess
import sys

from tools.export import tokenizer, weights

HERE = pathlib.Path(__file__).parent
REFERENCE = HERE.parent / "reference/model.py"
TEMPERATURE = 0.8       # of generated text, as in kablate generate
TYPES = {"F32": "float32", "F64": "float64"}


class Unknown(Exception):
    """A variant that the exported code does not compute."""


# ---------------------------------------------------------------- architectures

def computed():
    """The table COMPUTED of the reference, read without PyTorch."""
    return next(ast.literal_eval(node.value) for node in ast.parse(REFERENCE.read_text()).body
                if isinstance(node, ast.Assign) and node.targets[0].id == "COMPUTED")


def refuse_unknown(told):
    """The exported model would compute something else."""
    known, c = computed(), told["config"]
    used = [("attn", "CONFIG_ATTENTION", c["attn"]), ("ffn", "CONFIG_FFN", c["ffn"]), ("pos", "CONFIG_POS", c["pos"]),
            *(("mechanisms", f"CONFIG_{symbol}", symbol) for symbol in told["mechanisms"])]
    for kind, symbol, name in used:
        if name not in known[kind]:
            raise Unknown(f"{symbol}={'y' if kind == 'mechanisms' else name}: the exported code does "
                          f"not compute it; add it to {REFERENCE.relative_to(HERE.parents[1])} first")
    if c.get("decoder"):
        raise Unknown("CONFIG_MODEL_DECODER=y: the model rebuilds rows and generates no text; nothing in transformers "
                      "calls it so")


def is_plain(c):
    """Dot-product attention and a feed-forward, with nothing between."""
    return c["attn"] == "dot" and c["out_gate"] == "none" and c["norm_place"] == "pre" \
        and not (c["windowed"] or c["softcap"] or c["attn_gate"] or c["cross_token"] or c["latent_recip"])


def is_gpt2(c):
    return is_plain(c) and c["pos"] == "learned" and c["norm"] == "layer" and c["ffn"] == "gelu" \
        and c["final_norm"] in ("same", "layer") and c["kv_heads"] in (0, c["heads"])


def is_llama(c):
    return is_plain(c) and c["pos"] == "rope" and c["norm"] == "rms" and c["ffn"] in ("swiglu", "ws") \
        and c["final_norm"] in ("same", "rms")


def hidden(c):
    return int(c["ffn_mult"] * c["embd"])


def gpt2(c, tensors):
    """GPT-2 has biases everywhere: where we have none, they are zero."""
    renamed = {name if name.startswith("lm_head") else "transformer." + name: t
               for name, t in tensors.items()}
    for name in [name for name in renamed if name.endswith(".weight")]:
        if ".ln_" in name or ".attn.c_" in name or ".mlp.c_" in name:
            renamed.setdefault(name.removesuffix("weight") + "bias",
                               weights.zeros(renamed[name], renamed[name].shape[-1]))
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": c["block"],
            "n_embd": c["embd"], "n_layer": c["layers"], "n_head": c["heads"],
            "n_inner": hidden(c), "activation_function": "gelu_new",
            "layer_norm_epsilon": c["norm_eps"], "resid_pdrop": 0.0, "embd_pdrop": 0.0,
            "attn_pdrop": 0.0}, renamed


def llama_layer(c, tensors, ours, theirs):
    keys = (c["kv_heads"] or c["heads"]) * c["embd"] // c["heads"]
    yield theirs + "input_layernorm.weight", tensors[ours + "ln_1.weight"]
    yield theirs + "post_attention_layernorm.weight", tensors[ours + "ln_2.weight"]
    for kind in ("weight", "bias"):
        if ours + "attn.c_attn." + kind not in tensors:
            continue
        parts = tensors[ours + "attn.c_attn." + kind].parts(c["embd"], keys, keys)
        for name, part in zip("qkv", parts):
            yield f"{theirs}self_attn.{name}_proj.{kind}", turned(part)
        yield f"{theirs}self_attn.o_proj.{kind}", turned(tensors[ours + "attn.c_proj." + kind])
    for name, own in (("gate_proj", "w3"), ("up_proj", "w1"), ("down_proj", "c_proj")):
        yield f"{theirs}mlp.{name}.weight", turned(tensors[f"{ours}mlp.{own}.weight"])


def turned(tensor):
    """Llama's matrices are [out, in]."""
    return tensor.transposed() if len(tensor.shape) == 2 else tensor


def llama(c, tensors):
    renamed = {"model.embed_tokens.weight": tensors["wte.weight"],
               "model.norm.weight": tensors["ln_f.weight"]}
    if not c["tie"]:
        renamed["lm_head.weight"] = tensors["lm_head.weight"]
    for layer in range(c["layers"]):
        renamed.update(llama_layer(c, tensors, f"h.{layer}.", f"model.layers.{layer}."))
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": c["embd"], "intermediate_size": hidden(c),
            "num_hidden_layers": c["layers"], "num_attention_heads": c["heads"],
            "num_key_value_heads": c["kv_heads"] or c["heads"],
            "head_dim": c["embd"] // c["heads"], "max_position_embeddings": c["block"],
            "hidden_act": "silu", "rms_norm_eps": c["norm_eps"], "rope_theta": c["rope_theta"],
            "rope_parameters": {"rope_type": "default", "rope_theta": c["rope_theta"]},
            "attention_bias": c["bias"], "mlp_bias": False}, renamed


def own(c, tensors):
    module = "modeling_kablate"
    return {"architectures": ["KablateForCausalLM"], "model_type": "kablate", "reference": c,
            "max_position_embeddings": c["block"], "num_hidden_layers": c["layers"],
            "num_attention_heads": c["heads"], "hidden_size": c["embd"], "use_cache": False,
            "auto_map": {"AutoConfig": f"{module}.KablateConfig",
                         "AutoModelForCausalLM": f"{module}.KablateForCausalLM"}}, tensors


# ---------------------------------------------------------------- files

def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(directory, vocabulary, block):
    """Returns the id of the end of text, or None."""
    told, end = tokenizer.convert(vocabulary)
    write_json(directory / "tokenizer.json", told)
    special = {"eos_token": tokenizer.END, "bos_token": tokenizer.END} if end is not None else {}
    write_json(directory / "tokenizer_config.json",
               {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": block,
                "clean_up_tokenization_spaces": False, **special})
    return end


def export(program, weights_path, directory):
    told = json.loads(subprocess.run([program, "reference", "--weights", weights_path], check=True,
                                     text=True, stdout=subprocess.PIPE).stdout)
    refuse_unknown(told)
    c = told["config"]
    tensors, about = weights.read(weights_path)
    tensors = {name: t for name, t in tensors.items() if ".z_proj" not in name or not is_llama(c)}
    form = gpt2 if is_gpt2(c) else llama if is_llama(c) else own
    config, renamed = form(c, tensors)
    directory.mkdir(parents=True, exist_ok=True)
    end = write_tokenizer(directory, told["vocabulary"], c["block"])
    ends = {"bos_token_id": end, "eos_token_id": end}
    dtype = TYPES[next(iter(tensors.values())).dtype]
    write_json(directory / "config.json",
               {**config, "vocab_size": c["vocab"], "tie_word_embeddings": c["tie"],
                "dtype": dtype, **ends})
    write_json(directory / "generation_config.json",
               {**ends, "do_sample": True, "temperature": TEMPERATURE, "top_k": 0,
                "max_new_tokens": max(1, c["block"] // 2), "use_cache": form is not own})
    about.pop(weights.HASH, None)       # of the file that was read
    weights.write(directory / "model.safetensors", renamed, {**about, "format": "pt"})
    if form is own:
        shutil.copy(HERE / "modeling_kablate.py", directory)
        shutil.copy(REFERENCE, directory / "kablate_reference.py")
    return config["architectures"][0]


def main(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: make export RUN=smoke/0 OUT=exported")
    parser.add_argument("program", help="the step's kablate")
    parser.add_argument("weights", help="its weights.safetensors")
    parser.add_argument("directory", type=pathlib.Path)
    args = parser.parse_args(argv)
    try:
        architecture = export(args.program, args.weights, args.directory)
    except (tokenizer.Unfit, weights.Damaged, Unknown) as problem:
        sys.exit(f"export: {problem}")
    except subprocess.CalledProcessError:
        sys.exit(1)     # the program named the reason
    except OSError as problem:
        sys.exit(f"export: {problem.filename or args.directory}: {problem.strerror}")
    own_code = ", trust_remote_code=True" if architecture.startswith("Kablate") else ""
    print(f"{args.directory}: {architecture}\n"
          f"    AutoModelForCausalLM.from_pretrained('{args.directory}'{own_code})")


if __name__ == "__main__":
    main(sys.argv[1:])
