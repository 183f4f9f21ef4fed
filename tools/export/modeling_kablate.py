"""A kablate model for transformers: for use with trust_remote_code=True.

The computation is that of kablate_reference.py beside this file, the specification that kablate's own
programs are tested against.  Parameters have the names of the weights file.  There is no cache of
keys and values: every token is computed from the whole text so far.
"""
import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .kablate_reference import Config, forward, shapes


class KablateConfig(PretrainedConfig):
    model_type = "kablate"

    def __init__(self, reference=None, **others):
        self.reference = reference or {}
        others.setdefault("use_cache", False)
        super().__init__(**others)


class Names(torch.nn.Module):
    """A place in the tree of dotted names."""

    def add(self, name, parameter):
        head, _, rest = name.partition(".")
        if not rest:
            self.register_parameter(head, parameter)
            return
        if head not in self._modules:
            self.add_module(head, Names())
        self._modules[head].add(rest, parameter)


class KablateForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = KablateConfig
    base_model_prefix = ""
    _tied_weights_keys = {}

    def __init__(self, config):
        super().__init__(config)
        self.description = Config(**config.reference)
        tree = Names()
        for name, shape in shapes(self.description).items():
            tree.add(name, torch.nn.Parameter(torch.zeros(shape)))
        for name, child in tree.named_children():
            self.add_module(name, child)
        self.post_init()

    def _init_weights(self, module):
        """Weights come from the file."""

    def forward(self, input_ids, attention_mask=None, labels=None, **_others):
        if attention_mask is not None and not attention_mask[:, 0].all():
            raise ValueError("rows must be padded at their ends: positions count from the first token")
        length = input_ids.shape[1]
        if self.description.pos == "learned" and length > self.description.block:
            raise ValueError(f"{length} tokens; positions were learned for {self.description.block}")
        logits = forward(self.description, dict(self.named_parameters()), input_ids)["logits"]
        loss = None
        if labels is not None:
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_others):
        return {"input_ids": input_ids, "attention_mask": attention_mask}
