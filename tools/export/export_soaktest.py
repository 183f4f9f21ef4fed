#!/usr/bin/env python3
"""Real clients: transformers loads what `make export` writes and finds our numbers; so does lm-eval.

Trains small models on a text, exports them, and makes an environment of its own with torch,
transformers and lm-eval: several gigabytes, unless pip's own settings name a place with builds of
torch for the CPU alone.  One model is a user's: docs/add-a-variant.md is followed in a copy of the
tree, and VARIANT is what its author adds to the reference.
"""
import dataclasses
import json
import logging
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import venv
import warnings
from unittest import mock

PACKAGES = ["torch", "transformers", "lm-eval", "accelerate"]
LARGEST_ERROR = 2e-5    # of a loss, in nats; seen: 1.0e-6 (float32, sums in another order)
BLOCK = 32
TEXT = "".join(f"{number} and {number + 7} make {2 * number + 7}; is it so? Yes, naïve reader!\n"
               for number in range(600))

# What each model is, and the architecture that it becomes.
GPT2, LLAMA, OWN = "GPT2LMHeadModel", "LlamaForCausalLM", "KablateForCausalLM"
LLAMA_LIKE = {"POS": "rope", "NORM": "rms", "FFN": "swiglu"}
MODELS = {
    "gpt2": ("smoke+dot", {}, GPT2),
    "gpt2-bare": ("smoke+dot", {"MODEL_BIAS": "n", "MODEL_TIE_HEAD": "n", "FFN_HIDDEN": 40}, GPT2),
    "llama": ("smoke+dot", LLAMA_LIKE, LLAMA),
    "llama-grouped": ("smoke+dot", {**LLAMA_LIKE, "MODEL_HEADS": 4, "ATTENTION_KV_HEADS": 2,
                                    "ROPE_THETA": "500", "MODEL_BIAS": "n", "MODEL_TIE_HEAD": "n",
                                    "NORM_EPS": "1e-3"}, LLAMA),
    "dot-alibi": ("smoke+dot", {"POS": "alibi"}, OWN),
    "dot-post": ("smoke+dot", {"NORM_PLACE": "post"}, OWN),
    "mla": ("smoke+mla", {}, OWN),
    "study": ("smoke+mla+gate+cross+latent", {}, OWN),
    "study-learned": ("smoke+mla+gate+cross+latent",
                      {"RECIP_LEARN_ALPHA": "y", "RA_MLA_RA_ALPHA": "0.3", "POS": "rope"}, OWN),
    "w2": ("smoke+w2", {"POS": "rope"}, OWN),
    "w2cov": ("smoke+dot", {"ATTENTION": "w2cov", "POS": "rope"}, OWN),
    "ws": ("smoke+dot+ws", {}, OWN),
    "differential": ("smoke+dot", {"ATTENTION": "differential", "POS": "rope"}, OWN),
    "gla": ("smoke+dot", {"ATTENTION": "gla", "POS": "none"}, OWN),
    "delta": ("smoke+dot", {"ATTENTION": "delta", "POS": "none"}, OWN),
    "t5": ("smoke+dot", {"POS": "t5"}, OWN),
}
USERS = ("smoke+dot", {"ATTENTION": "cos", "POS": "rope"}, OWN)
FOLLOW = "page=docs/add-a-variant.md; . tools/testing/follow_page.sh; tree=$1; " \
    "copy_tree && { read_page </dev/null >/dev/null; follow_page; }"
# What goes before which words of tools/reference/model.py.
VARIANT = {
    '"deepseek"),': '"cos", ',
    '    window: int =': '    cos_scale: float = symbol("COS_SCALE", 10.0)\n',
    '        elif c.attn == "w2":\n            linear(p': '''        elif c.attn == "cos":
            for name in ("q_proj", "k_proj", "v_proj", "c_proj"):
                linear(p + "attn." + name, E, E, False)
            s[p + "attn.q_norm.weight"] = s[p + "attn.k_norm.weight"] = (D,)
''',
    '    elif c.attn == "gla":\n        o, prob': '''    elif c.attn == "cos":
        def unit(name):
            t = linear(p, pre + f"{name}_proj", x).view(B, T, H, D)
            t = p[pre + f"{name}_norm.weight"] * t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + c.norm_eps)
            return rope(c, t) if c.pos == "rope" else t
        o, prob = attend(c, p, unit("q") * c.cos_scale / D, unit("k"), linear(p, pre + "v_proj", x).view(B, T, H, D))
'''}
TOKENIZERS = {"byte": {}, "char": {}, "trained": {"TOKENIZER_SIZE": 300}}


# ---------------------------------------------------------------- outside

def export_all(place):
    """Train, evaluate and export; what to expect goes to PLACE/expected.json."""
    from tools.kablate import train_test
    from tools.kablate.train_test import ENVIRONMENT, SETTINGS, Tree

    text = place / "text.txt"
    text.write_text(TEXT)

    def run(name, defconfig, settings, tokenizer="char", **more):
        data = place / f"data-{tokenizer}"
        tree = Tree(place / name, defconfig,
                    {**SETTINGS, "GPT2_MAX_ITERS": 20, "MODEL_BLOCK": BLOCK, "TASK": "text",
                     "TOKENIZER": tokenizer, "DATA_TEXT": text, "EVAL_ROWS": 0,
                     "DATA_TRAIN": f"{data}/train-*.bin", "DATA_VALID": f"{data}/valid-*.bin",
                     **settings, **more})
        if not data.exists():
            tree.make("data")
        tree.make("runs")
        directory, = (path.parent for path in tree.runs.glob("*/*/done"))
        here, output = train_test.TREE, train_test.OUTPUT
        said = subprocess.run(["make", f"O={output}", f"RUNS={tree.runs}", "export",
                               f"RUN={directory}", f"OUT={place}/export/{name}"], cwd=here, check=True,
                              env=ENVIRONMENT, text=True, stdout=subprocess.PIPE).stdout
        program = tree.plan / "0-baseline/kablate"
        ask = [program, "--weights", directory / "weights.safetensors"]
        told = subprocess.run([ask[0], "evaluate", "--json", *ask[1:]], check=True, text=True,
                              stdout=subprocess.PIPE, cwd=here).stdout
        sample = subprocess.run([ask[0], "generate", *ask[1:], "--temperature", "0", "--tokens", "12",
                                 "--prompt", "7 and 14 make"], check=True, text=True, cwd=here,
                                stdout=subprocess.PIPE).stdout
        return {"said": said, "loss": json.loads(told)["lengths"][0]["loss"], "sample": sample,
                "data": str(data), "weights": str(directory / "weights.safetensors"),
                "check": str(output / "bin/check_vector")}

    expected = {name: {**run(name, defconfig, settings), "architecture": architecture}
                for name, (defconfig, settings, architecture) in MODELS.items()}
    for tokenizer, more in TOKENIZERS.items():
        expected[f"tokens-{tokenizer}"] = {
            **run(f"tokens-{tokenizer}", "smoke+dot", {}, tokenizer, **more), "architecture": GPT2}
    copy = users_tree(place)
    with mock.patch.multiple(train_test, TREE=copy, OUTPUT=copy / "build"):
        expected["users"] = {**run("users", *USERS[:2]), "architecture": USERS[2]}
    (place / "expected.json").write_text(json.dumps(expected))


def users_tree(place):
    """A copy of the tree with a variant of somebody else."""
    from tools.kablate.train_test import ENVIRONMENT, OUTPUT, TREE

    tree = place / "tree"
    subprocess.run(["bash", "-c", FOLLOW, "follow", tree], cwd=TREE, env=ENVIRONMENT | {"O": str(OUTPUT)}, check=True)
    reference = tree / "tools/reference/model.py"
    text = reference.read_text()
    for place_of, words in VARIANT.items():
        if text.count(place_of) != 1:
            raise ValueError(f"{reference}: {text.count(place_of)} times {place_of!r}")
        text = text.replace(place_of, words + place_of)
    reference.write_text(text)
    subprocess.run(["make", f"O={tree}/build", f"{tree}/build/bin/check_vector"], cwd=tree, env=ENVIRONMENT, check=True)
    return tree


def in_environment(place):
    """Run this file again with an interpreter that has the packages."""
    venv.create(place / "venv", with_pip=True)
    python = place / "venv/bin/python"
    install = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "--no-compile"]
    subprocess.run(install + PACKAGES, check=True)
    return subprocess.run([python, __file__, "inside", place]).returncode


# ---------------------------------------------------------------- inside

def token_ids(data):
    """The validation tokens: llm.c's form, 256 numbers of header."""
    import torch
    words = b"".join(path.read_bytes()[1024:] for path in sorted(data.glob("valid-*.bin")))
    return torch.frombuffer(bytearray(words), dtype=torch.uint16).long()


def loss_of(torch, model, ids):
    """The mean over all whole windows, as kablate evaluates them."""
    count = (len(ids) - 1) // BLOCK
    total = 0.0
    with torch.no_grad():
        for first in range(0, count, 64):
            starts = range(first, min(first + 64, count))
            rows = torch.stack([ids[i * BLOCK:(i + 1) * BLOCK] for i in starts])
            targets = torch.stack([ids[i * BLOCK + 1:(i + 1) * BLOCK + 1] for i in starts])
            logits = model(rows).logits.double()
            total += torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
    return total / (count * BLOCK)


class Said(logging.Handler):
    """What transformers and Python warn of."""

    def __enter__(self):
        self.lines = []
        logging.getLogger("transformers").addHandler(self)
        self.caught = warnings.catch_warnings(record=True)
        self.warned = self.caught.__enter__()
        return self

    def emit(self, record):
        if record.levelno >= logging.WARNING:
            self.lines.append(record.getMessage())

    def __exit__(self, *error):
        self.caught.__exit__(*error)
        self.lines += [str(warning.message) for warning in self.warned]
        logging.getLogger("transformers").removeHandler(self)
        for line in self.lines:
            print("# warning:", line)


def write_vector(torch, model, path):
    """What transformers computes in double, in the form that check_vector reads."""
    import safetensors.torch

    code, c = sys.modules[type(model).__module__], model.description
    parameters = dict(model.named_parameters())
    torch.manual_seed(1)
    tokens, targets = torch.randint(0, c.vocab, (2, 3, c.block))
    targets[1, :4] = -1
    found = code.forward(c, parameters, tokens, targets)
    found["loss"].backward()
    tensors = dict(tokens=tokens, targets=targets, logits=model(tokens).logits.detach())
    tensors |= {name: found[name].detach().reshape(1).clone() for name in ("loss", "main", "aux", "z")}
    tensors |= {f"grad.{name}": p.grad for name, p in parameters.items()}
    safetensors.torch.save_file({name: t.contiguous() for name, t in tensors.items()}, path,
                                {"config": json.dumps(dataclasses.asdict(c))})


def check_logits(torch, model, directory, expected):
    """kablate computes the same logits, losses and gradients from the weights that its run wrote."""
    path = directory / "vector"
    write_vector(torch, model.double(), path)
    done = subprocess.run([expected["check"], "--weights", expected["weights"], path], text=True, capture_output=True)
    for line in (done.stdout + done.stderr).splitlines():
        print("#", line)
    return done.returncode == 0


def check_model(torch, transformers, directory, expected):
    own = {"trust_remote_code": expected["architecture"] == OWN}
    with Said() as said:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory, output_loading_info=True, **own)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **own)
    model.eval()
    loss = loss_of(torch, model, token_ids(pathlib.Path(expected["data"])))
    print(f"# {directory.name}: loss {loss:.6f}, ours {expected['loss']:.6f}")
    prompt = tokenizer("7 and 14 make", return_tensors="pt")
    text = tokenizer.decode(model.generate(**prompt, do_sample=False, max_new_tokens=12)[0])
    if text != expected["sample"].rstrip("\n"):
        print(f"# {text!r} is not {expected['sample']!r}")
    logits = {"logits, losses and gradients": check_logits(torch, model, directory, expected)} \
        if own["trust_remote_code"] else {}
    return {**logits, "architecture": type(model).__name__ == expected["architecture"],
            "no warning": not said.lines, "every weight is found": not any(info.values()),
            "loss": abs(loss - expected["loss"]) < LARGEST_ERROR,
            "the same greedy text": text == expected["sample"].rstrip("\n")}


def check_tokenizer(transformers, directory, expected):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    ids = token_ids(pathlib.Path(expected["data"])).tolist()
    text = tokenizer.decode(ids)
    return {"decodes our tokens": text and TEXT.endswith(text.removesuffix("<|endoftext|>")),
            "encodes the text as we do": tokenizer(text)["input_ids"] == ids}


def check_lm_eval(place, expected):
    """A task on a local file: the perplexity of words in documents of one line."""
    import lm_eval
    import lm_eval.tasks
    documents = place / "documents.jsonl"
    documents.write_text("".join(json.dumps({"text": line}) + "\n"
                                 for line in TEXT.splitlines()[-8:]))
    tasks = place / "tasks"
    tasks.mkdir()
    (tasks / "local.yaml").write_text(
        "task: kablate_local\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {documents}}}}}\n"
        "output_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ''\n"
        "doc_to_target: '{{text}}'\nmetric_list: [{metric: byte_perplexity}]\n")
    manager = lm_eval.tasks.TaskManager(include_path=str(tasks))
    for name in ("tokens-byte", "study"):
        # Where no token ends a text, lm-eval needs a token before the first one.
        own = ",trust_remote_code=True,prefix_token_id=0" \
            if expected[name]["architecture"] == OWN else ""
        found = lm_eval.simple_evaluate(
            model="hf", model_args=f"pretrained={place}/export/{name}{own}", device="cpu",
            tasks=["kablate_local"], task_manager=manager, batch_size=1)
        value = found["results"]["kablate_local"]["byte_perplexity,none"]
        print(f"# lm-eval, {name}: byte perplexity {value:.3f}")
        yield f"lm-eval runs on {name}", math.isfinite(value) and value > 1


def inside(place):
    import torch
    import transformers

    expected = json.loads((place / "expected.json").read_text())
    results = {}
    for name, entry in expected.items():
        directory = place / "export" / name
        found = check_model(torch, transformers, directory, entry)
        if name.startswith("tokens-"):
            found |= check_tokenizer(transformers, directory, entry)
        results |= {f"{name}: {what}": good for what, good in found.items()}
    results |= dict(check_lm_eval(place, expected))
    for name, good in results.items():
        print("ok" if good else "not ok", name)
    return 0 if all(results.values()) else 1


def main():
    if sys.argv[1:2] == ["inside"]:
        return inside(pathlib.Path(sys.argv[2]))
    with tempfile.TemporaryDirectory(prefix="kablate-export-") as directory:
        export_all(pathlib.Path(directory))
        return in_environment(pathlib.Path(directory))


if __name__ == "__main__":
    sys.exit(main())
