"""Turns the GGUF file of a Llama model into a Hugging Face directory, weights and tokenizer.

transformers can read a GGUF file too, but leaves a quantization_config in the configuration that servers
refuse, and drops the splitting of digits from the tokenizer. Reading the file directly avoids both, and
takes neither transformers nor accelerate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import UsageError

if TYPE_CHECKING:
    from gguf import GGUFReader

CONTROL_TOKEN = 3
"""Value of ``tokenizer.ggml.token_type`` at a special token."""

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True, slots=True)
class Metadata:
    """The key-value part of a GGUF file."""

    values: dict[str, Any]
    where: str

    def __getitem__(self, key: str) -> Any:
        if key not in self.values:
            raise UsageError("the GGUF file lacks a key", code="usage.model", where=self.where, expected=key)
        return self.values[key]

    def expect(self, key: str, value: str) -> None:
        """Raises UsageError unless the key has this value."""
        if self[key] != value:
            raise UsageError(
                f"the GGUF file has a {key} that this converter does not know",
                code="usage.model",
                where=self.where,
                got=self[key],
                expected=value,
            )


def read_gguf(file: Path) -> tuple[GGUFReader, Metadata]:
    """The tensors of a GGUF file, and its key-value part."""
    from gguf import GGUFReader

    reader = GGUFReader(str(file))
    return reader, Metadata({key: field.contents() for key, field in reader.fields.items()}, file.name)


def convert(gguf_file: Path, directory: Path) -> None:
    """Write config, bfloat16 safetensors and tokenizer of a GGUF Llama with a SmolLM tokenizer.

    Args:
        gguf_file: The file to read; any of ggml's quantizations.
        directory: An existing directory to write into.

    Raises:
        UsageError: The file is of another architecture, or lacks a part.
    """
    reader, metadata = read_gguf(gguf_file)
    metadata.expect("general.architecture", "llama")
    metadata.expect("tokenizer.ggml.model", "gpt2")
    metadata.expect("tokenizer.ggml.pre", "smollm")
    _write_weights(reader, metadata, directory / "model.safetensors")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    write_json(directory / "config.json", model_config(metadata, tied=tied))
    write_json(directory / "generation_config.json", special_ids(metadata))
    write_json(directory / "tokenizer.json", tokenizer(metadata))
    write_json(directory / "tokenizer_config.json", tokenizer_config(metadata))


def model_config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    """The config.json of the model; ``tied`` when the head is the embedding."""
    heads = metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.embedding_length"] // heads,
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": metadata["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        **special_ids(metadata),
    }


def tokenizer(metadata: Metadata) -> dict[str, Any]:
    """The tokenizer.json: byte-level BPE that splits every digit off first."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    special = [index for index, kind in enumerate(kinds) if kind == CONTROL_TOKEN]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(index, tokens[index]) for index in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """The tokenizer_config.json."""
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = special_ids(metadata)
    return {
        # Any other class makes transformers 5 rebuild the tokenizer from that class, with other ids.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "chat_template": metadata["tokenizer.chat_template"],
    }


def special_ids(metadata: Metadata) -> dict[str, int]:
    """The ids that begin, end and fill up a text, as a config.json names them."""
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _added_token(index: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": content, **flags}


def _write_weights(reader: GGUFReader, metadata: Metadata, file: Path) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    weights = {}
    for tensor in reader.tensors:
        name = weight_name(tensor.name, metadata.where)
        values = dequantize(tensor.data, tensor.tensor_type)
        if ".q_proj." in name:
            values = half_split_rotary(values, metadata["llama.attention.head_count"])
        if ".k_proj." in name:
            values = half_split_rotary(values, metadata["llama.attention.head_count_kv"])
        # A copy, since torch wants writable memory and float32 tensors are views of the file.
        weights[name] = torch.from_numpy(np.array(values, dtype=np.float32)).to(torch.bfloat16)
    save_file(weights, file, metadata={"format": "pt"})


def weight_name(name: str, where: str) -> str:
    """The Hugging Face name of a GGUF tensor. Raises UsageError for one that a Llama does not have."""
    parts = name.split(".")
    if name in MODEL_TENSORS:
        return MODEL_TENSORS[name]
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_TENSORS and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.weight"
    raise UsageError(
        "the GGUF file has a tensor that a Llama does not have", code="usage.model", where=where, got=name
    )


def half_split_rotary(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder the rows of a query or key projection [heads * D, H] from ggml's rotary layout.

    ggml rotates neighbouring rows of a head (0 with 1, 2 with 3), Hugging Face row i with row i + D/2.
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
