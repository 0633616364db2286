"""The head as losses take it makes the model's own logits, and heads that they cannot repeat are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HyperCLOVAXConfig,
    HyperCLOVAXForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)

from atroposlib.errors import UsageError
from atroposlib.losses.linear import logits_of
from atroposlib.trainer.heads import head_layer, head_of, hidden_states, require_known_head

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def phi() -> PreTrainedModel:
    model = PhiForCausalLM(PhiConfig(**SMALL))
    nn.init.normal_(model.lm_head.bias, std=3.0)
    return model


KNOWN: dict[str, Callable[[], PreTrainedModel]] = {
    "bias": phi,
    "logit_scale": lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.25)),
    "logits_scaling": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=7.0)),
    "soft cap": lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=0.05)),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_what_a_configuration_says_of_logits_is_done_to_them(kind: str) -> None:
    model = KNOWN[kind]().eval()
    nn.init.normal_(head_layer(model).weight)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        own: Tensor = model(ids).logits
        ours = logits_of(hidden_states(model, ids), head_of(model))
        plain = nn.functional.linear(hidden_states(model, ids), head_layer(model).weight)
    torch.testing.assert_close(ours, own)
    assert not torch.allclose(plain, own, atol=1e-3)
    require_known_head(model)


def test_a_model_that_multiplies_by_what_others_divide_by_is_refused() -> None:
    model = HyperCLOVAXForCausalLM(HyperCLOVAXConfig(**SMALL, logits_scaling=3.0))
    with pytest.raises(UsageError, match="head") as caught:
        require_known_head(model)
    assert caught.value.code == "usage.model"


class Adapter(nn.Module):
    """As a LoRA library wraps a layer."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer


def test_a_wrapped_head_is_refused() -> None:
    model = phi()
    model.set_output_embeddings(Adapter(head_layer(model)))
    with pytest.raises(UsageError, match="plain linear layer") as caught:
        head_of(model)
    assert caught.value.code == "usage.model"
