"""Turns the GGUF file of a Gemma 3 base model into a Hugging Face directory; its tokenizer.json comes apart.

The file holds the pieces of the tokenizer and not its merges, so the tokenizer is taken from elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atroposlib.demo.gguf_model import Metadata, read_gguf, special_ids, write_json
from atroposlib.errors import UsageError

if TYPE_CHECKING:
    from gguf import GGUFReader

NORMS = {
    "attn_norm": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LOCAL_LAYERS = 5
"""Layers with a sliding window before each that sees everything (Gemma 3 technical report, section 2)."""


def convert(gguf_file: Path, directory: Path) -> None:
    """Write config, bfloat16 safetensors and the special tokens of a GGUF Gemma 3 without a chat template.

    Args:
        gguf_file: The file to read; any of ggml's quantizations.
        directory: An existing directory to write into.

    Raises:
        UsageError: The file is of another architecture, or lacks a part (``usage.model``).
    """
    reader, metadata = read_gguf(gguf_file)
    metadata.expect("general.architecture", "gemma3")
    _write_weights(reader, metadata, directory / "model.safetensors")
    write_json(directory / "config.json", model_config(metadata))
    write_json(directory / "generation_config.json", special_ids(metadata))
    write_json(directory / "tokenizer_config.json", tokenizer_config(metadata))


def model_config(metadata: Metadata) -> dict[str, Any]:
    """The config.json of the model."""
    layers, head_dim = metadata["gemma3.block_count"], metadata["gemma3.attention.key_length"]
    kinds = [
        "full_attention" if (n + 1) % (LOCAL_LAYERS + 1) == 0 else "sliding_attention" for n in range(layers)
    ]
    theta = {"full_attention": metadata["gemma3.rope.freq_base"], "sliding_attention": 10_000.0}
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "bfloat16",
        "hidden_size": metadata["gemma3.embedding_length"],
        "intermediate_size": metadata["gemma3.feed_forward_length"],
        "num_hidden_layers": layers,
        "num_attention_heads": metadata["gemma3.attention.head_count"],
        "num_key_value_heads": metadata["gemma3.attention.head_count_kv"],
        "head_dim": head_dim,
        "query_pre_attn_scalar": head_dim,
        "layer_types": kinds,
        "sliding_window": metadata["gemma3.attention.sliding_window"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": value} for kind, value in theta.items()
        },
        "max_position_embeddings": metadata["gemma3.context_length"],
        "rms_norm_eps": metadata["gemma3.attention.layer_norm_rms_epsilon"],
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        **special_ids(metadata),
    }


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """The tokenizer_config.json of the base model: it has no chat template, and a text ends with its eos."""
    tokens, ids = metadata["tokenizer.ggml.tokens"], special_ids(metadata)
    return {
        # Any other class makes transformers 5 rebuild the tokenizer from that class, with other ids.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["gemma3.context_length"],
    }


def weight_name(name: str, where: str) -> tuple[str, bool]:
    """The Hugging Face name of a GGUF tensor, and whether it is a norm's.

    Raises:
        UsageError: A Gemma 3 has no such tensor (``usage.model``).
    """
    if name in ("token_embd.weight", "output_norm.weight"):
        is_norm = name.startswith("output_norm")
        return ("model.norm.weight" if is_norm else "model.embed_tokens.weight"), is_norm
    parts = name.split(".")
    known = NORMS | PROJECTIONS
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in known and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{known[parts[2]]}.weight", parts[2] in NORMS
    raise UsageError(
        "the GGUF file has a tensor that a Gemma 3 does not have",
        code="usage.model",
        where=where,
        got=name,
    )


def _write_weights(reader: GGUFReader, metadata: Metadata, file: Path) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    weights = {}
    for tensor in reader.tensors:
        name, is_norm = weight_name(tensor.name, metadata.where)
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        # ggml scales by the weight of a norm, transformers by one plus it.
        weights[name] = torch.from_numpy(values - 1 if is_norm else values).to(torch.bfloat16)
    save_file(weights, file, metadata={"format": "pt"})
