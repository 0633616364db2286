"""The student's output layer as losses take it: read from the model, checked against its own logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from atroposlib.errors import UsageError
from atroposlib.losses.head import Head
from atroposlib.losses.linear import logits_of

FACTORS = ("logit_scale", "lm_head_multiplier")
"""Names under which configurations tell a factor on all logits (Cohere; Falcon H1)."""

DIVISORS = ("logits_scaling",)
"""And a divisor (Granite)."""

SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""Names of the bound of a logit (Gemma; RecurrentGemma)."""


def head_layer(model: PreTrainedModel) -> nn.Linear:
    """The layer that makes logits of hidden states.

    Raises:
        UsageError: It is no plain linear layer, such as one with a LoRA adapter.
    """
    layer = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # has no annotations
    if type(layer) is not nn.Linear:
        raise UsageError(
            "the model's head is no plain linear layer, and losses would pass by what is wrapped around it",
            code="usage.model",
            where=model.name_or_path or type(model).__name__,
            got=type(layer).__name__,
            fix="train without an adapter on the head",
        )
    return layer


def head_of(model: PreTrainedModel, dtype: torch.dtype | None = None) -> Head:
    """The head with what the model's configuration says of its logits.

    Args:
        model: A causal language model.
        dtype: Type of the weight in the products; None for its own. The gradient reaches the weight itself.
    """
    layer, config = head_layer(model), model.config.get_text_config()
    scale = 1.0
    for name in FACTORS:
        scale *= getattr(config, name, None) or 1.0
    for name in DIVISORS:
        scale /= getattr(config, name, None) or 1.0
    weight = layer.weight if dtype is None else layer.weight.to(dtype)
    bias: Tensor | None = layer.bias
    caps = [cap for name in SOFT_CAPS if (cap := getattr(config, name, None))]
    return Head(weight, bias, scale, caps[0] if caps else None)


def hidden_states(model: PreTrainedModel, input_ids: Tensor) -> Tensor:
    """The last hidden states [B, T, H] of right-padded ids [B, T].

    No attention mask: padding stands on the right of a causal model, where no real token sees it, and
    without a mask the attention takes its fast path.
    """
    states: Tensor = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
    return states


@torch.no_grad()
def require_known_head(model: PreTrainedModel) -> None:
    """Compare the head's logits with the model's own.

    Raises:
        UsageError: The model does something to its logits that its configuration does not tell by a name
            that is known here.
    """
    ids = torch.arange(8).reshape(1, 8) % model.config.get_text_config().vocab_size
    was_training = model.training
    own: Tensor = model.train(False)(input_ids=ids, use_cache=False).logits[0]
    ours = logits_of(hidden_states(model, ids)[0], head_of(model))
    model.train(was_training)
    if not torch.allclose(ours, own, rtol=1e-4, atol=1e-4, equal_nan=True):
        raise UsageError(
            "the model changes the output of its head in a way that losses do not repeat",
            code="usage.model",
            where=model.name_or_path or type(model).__name__,
            got=f"logits up to {float((ours - own).abs().max()):.3g} apart",
        )
