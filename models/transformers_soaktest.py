#!/usr/bin/env python3
"""A real client: transformers' GPT2LMHeadModel and our dot configuration hold each other's weights.

Makes an environment of its own with torch, transformers and safetensors: several gigabytes, unless
pip's own settings name a place with builds of torch for the CPU alone.  The C side is check_vector,
which compares logits, loss and every gradient with those of the client.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv

CHECK = pathlib.Path(os.environ.get("O", "build"), "bin/check_vector").absolute()
PACKAGES = ["torch", "transformers", "safetensors", "numpy"]
SIZES = dict(vocab=61, block=16, layers=3, heads=4, embd=24)
LARGEST_LOGIT_ERROR = 1e-4   # of the largest logit, in float


def in_environment(directory):
    """Run this file again with an interpreter that has the packages."""
    venv.create(directory, with_pip=True)
    python = pathlib.Path(directory, "bin/python")
    install = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "--no-compile"]
    subprocess.run(install + PACKAGES, check=True)
    return subprocess.run([python, __file__, "inside"]).returncode


def random_model(torch, transformers):
    """Weights so large that errors would show; the biases and norms off their special values."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=SIZES["vocab"], n_positions=SIZES["block"], n_layer=SIZES["layers"],
        n_head=SIZES["heads"], n_embd=SIZES["embd"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.15 if p.dim() > 1 else 0.1))
    return model


def write_vector(torch, safetensors, model, path):
    """What the client computes in double, in the form that check_vector reads."""
    model = model.double()
    tokens = torch.randint(0, SIZES["vocab"], (3, SIZES["block"]))
    targets = torch.randint(0, SIZES["vocab"], tokens.shape)
    targets[1, :4] = -1
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(),
                                             ignore_index=-1)
    loss.backward()
    tensors = dict(tokens=tokens, targets=targets, logits=logits.detach())
    tensors |= {name: loss.detach().reshape(1).clone() for name in ("loss", "main")}
    tensors |= {name: torch.zeros(1, dtype=torch.float64) for name in ("aux", "z")}
    for name, p in model.named_parameters():
        plain = name.removeprefix("transformer.")
        tensors |= {"param." + plain: p.detach().clone(), "grad." + plain: p.grad.clone()}
    safetensors.torch.save_file(tensors, path, {"config": json.dumps(SIZES)})
    model.float()
    return tokens


def check(*arguments):
    done = subprocess.run([CHECK, *arguments], capture_output=True, text=True)
    for line in (done.stdout + done.stderr).splitlines():
        print("#", line)
    return done.returncode == 0


def loads_old_checkpoint(torch, safetensors, saved, vector, path):
    """As public checkpoints are: no prefix, with buffers, and the head written out."""
    tensors = {name.removeprefix("transformer."): t
               for name, t in safetensors.torch.load_file(saved).items()}
    for layer in range(SIZES["layers"]):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, SIZES["block"], SIZES["block"])
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    safetensors.torch.save_file(tensors, path)
    return check("--weights", path, vector)


def client_loads_ours(torch, transformers, directory, vector, tokens):
    """What we export, read by the client: nothing missing, nothing left over, the same logits."""
    ours = pathlib.Path(directory, "ours")
    ours.mkdir()
    shutil.copy(pathlib.Path(directory, "saved/config.json"), ours)
    if not check("--export", ours / "model.safetensors", vector):
        return False, False
    model, info = transformers.GPT2LMHeadModel.from_pretrained(ours, output_loading_info=True)
    expected = transformers.GPT2LMHeadModel.from_pretrained(pathlib.Path(directory, "saved"))
    with torch.no_grad():
        logits, wanted = model.eval()(tokens).logits, expected.eval()(tokens).logits
    error = ((logits - wanted).abs().max() / wanted.abs().max()).item()
    print(f"# logits of the exported weights: error {error:.2e} of the largest")
    return not any(info.values()), error < LARGEST_LOGIT_ERROR


def compare():
    import safetensors.torch
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as directory:
        vector, saved = f"{directory}/vector", f"{directory}/saved/model.safetensors"
        model = random_model(torch, transformers)
        model.save_pretrained(f"{directory}/saved")
        tokens = write_vector(torch, safetensors, model, vector)
        results = {
            "logits, loss and gradients are the client's": check(vector),
            "its file loads": check("--weights", saved, vector),
            "a file as the public ones loads": loads_old_checkpoint(
                torch, safetensors, saved, vector, f"{directory}/old"),
        }
        complete, same = client_loads_ours(torch, transformers, directory, vector, tokens)
    return results | {"the client finds every weight in our export": complete,
                      "and computes the same logits": same}


def main():
    if sys.argv[1:] != ["inside"]:
        with tempfile.TemporaryDirectory() as directory:
            return in_environment(directory)
    results = compare()
    for name, good in results.items():
        print("ok" if good else "not ok", name)
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
