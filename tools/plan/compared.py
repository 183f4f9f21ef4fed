"""One line that says what the steps of an experiment are, from their configurations.

    dot or MLA attention, learned positions, LayerNorm, GELU, 4 x 64, AdamW 3e-3, language

A value that steps do not share is an alternative; a part that no step has is left out.  Symbols that
no part names follow if steps differ in them: "MODEL_HEADS 2, 8 or 16".
"""

# Values of choices by the names that papers use; any other value stands for itself.
NAMES = {"mla": "MLA", "w2": "W2", "w2cov": "W2 with covariances", "gla": "GLA", "delta": "gated delta rule", "deepseek": "DeepSeek's MLA", "layer": "LayerNorm", "rms": "RMSNorm", "gelu": "GELU",
         "swiglu": "SwiGLU", "ws": "WsFFN", "soft_moe": "Soft MoE", "adamw": "AdamW", "adamwspam": "AdamWSPAM", "sgd": "SGD",
         "muon": "Muon"}
POSITIONS = {"learned": "learned positions", "alibi": "ALiBi", "t5": "T5's biases", "none": "no positions"}
# Switches by name, with the values that switch them off; None: the symbol is inactive.
SWITCHES = {"ATTENTION_OUT_GATE": "output gates", "RA_MLA_MLP_ATTN_GATE": "head gating",
            "ATTENTION_WINDOWED": "a sliding window", "ATTENTION_SOFTCAP": "capped scores",
            "RA_MLA_MLP_CROSS_TOKEN": "cross-token aggregation",
            "RA_MLA_MLP_LATENT_RECIP": "latent reciprocity"}
OFF = (None, "n", "none", "0")
# The lowest rate follows the rate.  Of a scale, its symbols are named; TUNE_RATES are the candidates of LEARNING_RATE.
NAMED = {"ATTENTION", "POS", "NORM", "NORM_PLACE", "FFN", *SWITCHES, "MODEL_LAYERS", "MODEL_EMBD", "OPTIMIZER",
         "LEARNING_RATE", "MUON_LEARNING_RATE", "MIN_LEARNING_RATE", "TASK", "SCALE", "TUNE_RATES"}
MOST_OTHERS = 4


def either(words):
    """The words without duplicates, as alternatives; empty: there are none."""
    *most, last = dict.fromkeys(word for word in words if word) or [""]
    return f"{', '.join(most)} or {last}" if most else last


def named(config, symbol):
    value = config.get(symbol)
    return NAMES.get(value, value)


def norm(config):
    name = named(config, "NORM")
    return f"post-{name}" if name and config.get("NORM_PLACE") == "post" else name


def size(config):
    sizes = [config.get("MODEL_LAYERS"), config.get("MODEL_EMBD")]
    return None if None in sizes else " x ".join(sizes)


def rate(config):
    """The rate that most parameters have."""
    matrices = config.get("MUON_LEARNING_RATE") if config.get("OPTIMIZER") == "muon" else None
    return matrices or config.get("LEARNING_RATE")


def optimizer(configs):
    names = either(named(config, "OPTIMIZER") for config in configs)
    if " " not in names:
        return f"{names} {either(map(rate, configs))}".strip()
    return either(f"{named(config, 'OPTIMIZER')} {rate(config)}" for config in configs)


def switches(configs):
    """Those of all steps, and those of some."""
    found = {name: [config.get(symbol) not in OFF for config in configs]
             for symbol, name in SWITCHES.items()}
    yield from (name for name, on in found.items() if on and all(on))
    some = [name for name, on in found.items() if any(on) and not all(on)]
    if some:
        yield f"with or without {', '.join(some)}"


def others(configs):
    found = []
    for symbol in dict.fromkeys(symbol for config in configs for symbol in config if symbol not in NAMED):
        values = dict.fromkeys(config[symbol] for config in configs if config.get(symbol) is not None)
        if len(values) > 1:
            found.append(f"{symbol} {either(values)}")
    left = len(found) - MOST_OTHERS
    return found if left <= 0 else [*found[:MOST_OTHERS], f"{left} more symbol{'s' * (left > 1)}"]


def line(configs):
    """Of the steps' configurations, in their order: dictionaries from symbols to values."""
    attention = either(named(config, "ATTENTION") for config in configs)
    parts = [attention and f"{attention} attention",
             either(POSITIONS.get(config.get("POS"), config.get("POS")) for config in configs),
             either(map(norm, configs)), either(named(config, "FFN") for config in configs),
             *switches(configs), either(map(size, configs)), optimizer(configs),
             either(config.get("TASK") for config in configs), *others(configs)]
    return ", ".join(part for part in parts if part)
