"""The converter on a GGUF file made from a random Llama: the same weights, logits and tokens come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atroposlib.demo.gguf_model import convert, half_split_rotary, weight_name
from atroposlib.errors import UsageError

HEADS, KV_HEADS, HIDDEN, LAYERS = 4, 2, 32, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map(chr, range(33, 127)), "Ġ", "ĠĠ", "an"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def interleaved_rotary(weight: np.ndarray, heads: int) -> np.ndarray:
    """ggml's order, by its definition: row 2i of a head is Hugging Face's i, row 2i + 1 its i + D/2."""
    out = np.empty_like(weight)
    size = weight.shape[0] // heads
    for head in range(heads):
        for half in range(size // 2):
            out[head * size + 2 * half] = weight[head * size + half]
            out[head * size + 2 * half + 1] = weight[head * size + half + size // 2]
    return out


def write_gguf(file: Path, state: dict[str, np.ndarray], *, pre: str = "smollm") -> None:
    from gguf import GGUFWriter, TokenType

    from atroposlib.demo.gguf_model import LAYER_TENSORS, MODEL_TENSORS

    writer = GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["Ġ Ġ", "a n"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = {theirs: ours for ours, theirs in MODEL_TENSORS.items()}
    for layer in range(LAYERS):
        for ours, theirs in LAYER_TENSORS.items():
            names[f"model.layers.{layer}.{theirs}.weight"] = f"blk.{layer}.{ours}.weight"
    for name, values in state.items():
        if "q_proj" in name:
            values = interleaved_rotary(values, HEADS)
        if "k_proj" in name:
            values = interleaved_rotary(values, KV_HEADS)
        writer.add_tensor(names[name], values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def random_state() -> dict[str, np.ndarray]:
    """Weights of a random Llama, rounded to bfloat16 so that the conversion loses nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    state = LlamaForCausalLM(config).to(torch.bfloat16).float().state_dict()
    return {name: values.numpy() for name, values in state.items() if name != "lm_head.weight"}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, random_state: dict[str, np.ndarray]) -> Path:
    directory = tmp_path_factory.mktemp("gguf")
    write_gguf(directory / "model.gguf", random_state)
    (directory / "out").mkdir()
    convert(directory / "model.gguf", directory / "out")
    return directory / "out"


def test_weights_come_back(converted: Path, random_state: dict[str, np.ndarray]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    state = model.state_dict()
    assert model.config.num_key_value_heads == KV_HEADS
    assert model.config.rope_parameters["rope_theta"] == 50000.0
    assert state["lm_head.weight"] is not None
    for name, values in random_state.items():
        np.testing.assert_array_equal(state[name].numpy(), values, err_msg=name)


def test_tokens_come_back(converted: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.tokenize("an  12") == ["an", "ĠĠ", "1", "2"]
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2
    assert tokenizer.encode("<|im_start|>a")[0] == 1
    assert tokenizer.apply_chat_template([{"role": "user", "content": "an"}], tokenize=False) == "an"


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path, random_state: dict[str, np.ndarray]) -> None:
    write_gguf(tmp_path / "model.gguf", random_state, pre="llama-bpe")
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match=r"tokenizer\.ggml\.pre.*got llama-bpe"):
        convert(tmp_path / "model.gguf", tmp_path / "out")


def test_rotary_order_is_undone() -> None:
    weight = np.arange(HEADS * 8 * 3, dtype=np.float32).reshape(HEADS * 8, 3)
    np.testing.assert_array_equal(half_split_rotary(interleaved_rotary(weight, HEADS), HEADS), weight)


def test_an_unknown_tensor_is_refused() -> None:
    assert weight_name("blk.3.attn_q.weight", "x") == "model.layers.3.self_attn.q_proj.weight"
    with pytest.raises(UsageError, match=r"blk\.0\.attn_q\.bias"):
        weight_name("blk.0.attn_q.bias", "x")
