"""Requests whose replies of a real vLLM are recorded, and that the model server must answer alike.

One function a file of recordings. The requests are made for a server's limits, so the same case can be sent
to a real vLLM with a real model and to the model server with a tiny one: ids below 256 exist in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Whole characters both in SmolLM2's vocabulary and in the tiny byte-level one.
IDS = [72, 101, 108, 108, 44, 98, 97, 100, 33]
TEXT = "Naïve 🙂 cafés"
STOP: dict[str, Any] = {
    "prompt": "The capital of France is",
    "max_tokens": 12,
    "stop": ["nowhere", "er is"],
    "logprobs": 0,
    "return_token_ids": True,
}
CHAT = [{"role": "user", "content": "Say hi."}]


@dataclass(frozen=True)
class Limits:
    """What a server serves: model name, longest sequence, vocabulary and most logprobs."""

    model: str
    max_model_len: int
    vocab_size: int
    max_logprobs: int = 20


@dataclass(frozen=True)
class Case:
    """One request; ``json`` is sent as JSON unless ``content`` gives the raw body."""

    name: str
    method: str
    path: str
    json: Any = None
    content: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def completion(name: str, **body: Any) -> Case:
    """A completion request: 2 greedy tokens after ``IDS`` unless ``body`` says otherwise."""
    defaults = {"prompt": IDS, "max_tokens": 2, "temperature": 0.0}
    return Case(name, "POST", "/v1/completions", {**defaults, **body})


def chat(name: str, **body: Any) -> Case:
    """A chat request: 2 greedy tokens unless ``body`` says otherwise."""
    defaults = {"messages": CHAT, "max_tokens": 2, "temperature": 0.0}
    return Case(name, "POST", "/v1/chat/completions", {**defaults, **body})


def generate(name: str, ids: list[int] = IDS, **params: Any) -> Case:
    """A request of token ids for one token without text unless ``params`` say otherwise."""
    defaults = {"max_tokens": 1, "temperature": 0.0, "detokenize": False}
    body = {"token_ids": ids, "sampling_params": {**defaults, **params}}
    return Case(name, "POST", "/inference/v1/generate", body)


def info_cases(limits: Limits) -> Iterator[Case]:
    """Routes that tell about the server, and tokenization."""
    yield Case("health", "GET", "/health")
    yield Case("version", "GET", "/version")
    yield Case("models", "GET", "/v1/models")
    yield Case("tokenize_text", "POST", "/tokenize", {"prompt": "Hello"})
    yield Case("tokenize_strings", "POST", "/tokenize", {"prompt": "Hello", "return_token_strs": True})
    yield Case("tokenize_chat", "POST", "/tokenize", {"messages": CHAT, "model": limits.model})
    no_prompt = {"messages": CHAT, "add_generation_prompt": False}
    yield Case("tokenize_chat_no_generation_prompt", "POST", "/tokenize", no_prompt)
    yield Case("tokenize_empty", "POST", "/tokenize", {"prompt": ""})
    yield Case("detokenize", "POST", "/detokenize", {"tokens": IDS})
    yield Case("not_found", "GET", "/nowhere")
    yield Case("not_allowed", "GET", "/v1/completions")
    yield Case("tokenize_neither", "POST", "/tokenize", {})
    yield Case("tokenize_unknown_model", "POST", "/tokenize", {"prompt": "Hi", "model": "nobody"})
    yield Case("detokenize_out_of_vocabulary", "POST", "/detokenize", {"tokens": [limits.vocab_size]})


def completion_cases(limits: Limits) -> Iterator[Case]:
    """Completions that succeed."""
    yield completion("ids")
    yield completion("named_model", model=limits.model)
    yield completion("text", prompt="Hello")
    yield completion("texts", prompt=["Hello", "Good day"])
    yield completion("id_lists", prompt=[IDS, IDS[:4]])
    yield completion("n", n=3, temperature=1.0, seed=1)
    yield completion("id_lists_n", prompt=[IDS, IDS[:4]], n=2, temperature=1.0, seed=1)
    yield completion("logprobs_0", logprobs=0)
    yield completion("logprobs_3", logprobs=3)
    yield completion("logprobs_sampled", logprobs=2, temperature=2.0, seed=3, max_tokens=6)
    yield completion("logprobs_token_ids", logprobs=1, return_tokens_as_token_ids=True)
    yield completion("token_ids", return_token_ids=True)
    yield completion("rollout", logprobs=0, return_token_ids=True, n=2, temperature=1.0, seed=7)
    yield completion("prompt_logprobs_0", prompt_logprobs=0, max_tokens=1)
    yield completion("prompt_logprobs_4", prompt_logprobs=4, max_tokens=1)
    yield completion("prompt_logprobs_true", prompt_logprobs=True, max_tokens=1)
    yield completion("prompt_logprobs_one_token", prompt=IDS[:1], prompt_logprobs=2, max_tokens=1)
    yield completion("prompt_logprobs_id_lists", prompt=[IDS, IDS[:4]], prompt_logprobs=2, max_tokens=1)
    yield completion("prompt_logprobs_n", prompt_logprobs=1, n=2, temperature=1.0, seed=1)
    yield completion("prompt_logprobs_logprobs", prompt_logprobs=1, logprobs=1, return_token_ids=True)
    yield completion("echo", prompt="Hello", echo=True)
    yield completion("echo_ids", echo=True)
    yield completion("echo_logprobs", echo=True, logprobs=2)
    yield completion("echo_token_ids", echo=True, logprobs=1, return_token_ids=True)
    yield completion("echo_only", echo=True, logprobs=2, max_tokens=0)
    yield completion("echo_only_plain", echo=True, max_tokens=0)
    yield completion(
        "echo_only_token_ids", echo=True, logprobs=1, max_tokens=0, return_tokens_as_token_ids=True
    )
    yield completion("default_max_tokens", max_tokens=None, ignore_eos=True)
    yield completion("unknown_field", no_such_field=1)
    yield completion("text_logprobs", prompt=TEXT, logprobs=2, max_tokens=6)
    yield completion("text_prompt_logprobs", prompt=TEXT, prompt_logprobs=2, max_tokens=1)
    yield completion("text_echo_logprobs", prompt=TEXT, echo=True, logprobs=1, max_tokens=1)
    yield completion("min_tokens", min_tokens=2)
    yield completion("min_tokens_stop", **STOP, min_tokens=8)
    yield completion("stop", **STOP)
    yield completion("stop_included", **STOP, include_stop_str_in_output=True)
    yield completion("stop_token", prompt="The capital of France is", max_tokens=8, stop_token_ids=[30])
    turn = {"prompt": "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n", "max_tokens": 40}
    yield completion("end_of_turn", **turn, return_token_ids=True)
    yield completion("end_of_turn_shown", **turn, logprobs=0, skip_special_tokens=False)
    yield completion("temperature_logprobs", logprobs=1, temperature=0.5, top_p=0.9, seed=5, max_tokens=4)
    yield completion("seed_minus_one", seed=-1, temperature=1.0)
    yield completion("fills_context", prompt=[65] * (limits.max_model_len - 1), max_tokens=5)


def chat_cases(limits: Limits) -> Iterator[Case]:
    """Chat completions that succeed."""
    yield chat("plain", model=limits.model)
    yield chat("n", n=2, temperature=1.0, seed=1)
    yield chat("logprobs", logprobs=True)
    yield chat("top_logprobs", logprobs=True, top_logprobs=3)
    yield chat("logprobs_token_ids", logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)
    yield chat("token_ids", return_token_ids=True)
    yield chat("prompt_logprobs", prompt_logprobs=1, max_tokens=1)
    yield chat("max_completion_tokens", max_tokens=None, max_completion_tokens=3, ignore_eos=True)
    yield chat("text_parts", messages=[{"role": "user", "content": [{"type": "text", "text": "Say hi."}]}])
    final = [*CHAT, {"role": "assistant", "content": "Hi"}]
    yield chat("continue_final", messages=final, add_generation_prompt=False, continue_final_message=True)
    yield chat("empty_messages", messages=[])


def refusal_cases(limits: Limits) -> Iterator[Case]:
    """Requests that a completion route refuses."""
    k, length, vocabulary = limits.max_logprobs, limits.max_model_len, limits.vocab_size
    yield completion("prompt_logprobs_too_many", prompt_logprobs=k + 1)
    yield completion("prompt_logprobs_all", prompt_logprobs=-1)
    yield completion("prompt_logprobs_negative", prompt_logprobs=-2)
    yield completion("prompt_logprobs_text", prompt_logprobs="many")
    yield completion("prompt_logprobs_fraction", prompt_logprobs=1.5)
    yield completion("prompt_logprobs_stream", prompt_logprobs=1, stream=True)
    yield completion("logprobs_too_many", logprobs=k + 1)
    yield completion("logprobs_negative", logprobs=-2)
    yield completion("prompt_too_long", prompt=[65] * (length + 1))
    yield completion("prompt_far_too_long", prompt=[65] * (length + 100))
    yield completion("prompt_fills_context", prompt=[65] * length)
    yield completion("prompt_text_too_long", prompt="\u00e9" * (2 * length))
    yield completion("max_tokens_too_many", max_tokens=length + 1)
    yield completion("max_tokens_zero", max_tokens=0)
    yield completion("max_tokens_negative", max_tokens=-3)
    yield completion("max_tokens_text", max_tokens="many")
    yield completion("id_out_of_vocabulary", prompt=[1, vocabulary])
    yield completion("id_negative", prompt=[1, -1])
    yield completion("id_list_out_of_vocabulary", prompt=[[1, 2], [vocabulary + 5]])
    yield completion("prompt_number", prompt=7)
    yield completion("prompt_object", prompt={"ids": [1]})
    yield completion("prompt_mixed", prompt=["a", 1])
    yield completion("prompt_too_deep", prompt=[[[1]]])
    yield completion("prompt_empty_text", prompt="")
    yield completion("prompt_empty_list", prompt=[])
    yield completion("prompt_empty_id_list", prompt=[[]])
    yield completion("prompt_one_of_two_empty", prompt=[IDS, []])
    yield completion("prompt_list_of_empty_text", prompt=[""])
    yield completion("prompt_null", prompt=None)
    yield completion("unknown_model", model="nobody")
    yield completion("n_zero", n=0, temperature=1.0)
    yield completion("n_greedy", n=2)
    yield completion("temperature_negative", temperature=-0.5)
    yield completion("temperature_too_high", temperature=2.5)
    yield completion("top_p_zero", top_p=0.0, temperature=1.0)
    yield completion("top_p_too_high", top_p=1.5, temperature=1.0)
    yield completion("top_k_negative", top_k=-2, temperature=1.0)
    yield completion("min_p_too_high", min_p=1.5, temperature=1.0)
    yield completion("stop_empty", stop="")
    yield completion("stop_too_many", stop=["a", "b", "c", "d", "e"])
    yield completion("stop_number", stop=3)
    yield completion("stop_token_out_of_vocabulary", stop_token_ids=[vocabulary])
    yield completion("min_tokens_negative", min_tokens=-1)
    yield completion("min_tokens_above_max", min_tokens=3)
    yield completion("seed_text", seed="lucky")
    yield completion("seed_too_large", seed=2**63)
    yield completion("stream_options", stream_options={"include_usage": True})
    yield completion("suffix", suffix="!")
    yield chat("chat_unknown_model", model="nobody")
    yield chat("chat_no_messages", messages=None)
    yield chat("chat_top_logprobs_alone", top_logprobs=2)
    yield chat("chat_top_logprobs_too_many", logprobs=True, top_logprobs=k + 1)
    yield chat("chat_top_logprobs_negative", logprobs=True, top_logprobs=-2)
    yield chat("chat_prompt_logprobs_too_many", prompt_logprobs=k + 1)
    yield chat("chat_prompt_logprobs_negative", prompt_logprobs=-2)
    yield chat("chat_prompt_logprobs_stream", prompt_logprobs=1, stream=True)
    yield chat("chat_max_tokens_zero", max_tokens=0)
    yield chat("chat_max_tokens_too_many", max_tokens=length + 1)
    yield chat("chat_max_completion_tokens_too_many", max_tokens=None, max_completion_tokens=length + 1)
    yield chat("chat_prompt_too_long", messages=[{"role": "user", "content": "a b " * length}])
    yield chat("chat_n_greedy", n=2)
    yield chat("chat_continue_and_prompt", add_generation_prompt=True, continue_final_message=True)
    yield chat("chat_template", chat_template="{{ messages }}")
    yield Case(
        "wrong_content_type", "POST", "/v1/completions", content="{}", headers={"content-type": "text/plain"}
    )
    json_type = {"content-type": "application/json"}
    yield Case("broken_json", "POST", "/v1/completions", content="{", headers=json_type)
    yield Case("body_is_list", "POST", "/v1/completions", [1])
    yield Case("no_body", "POST", "/v1/completions", content="", headers=json_type)


def refresh_cases(limits: Limits) -> Iterator[Case]:
    """The weight refresh routes, in this order, on a server that was just started."""
    del limits
    yield Case("weight_info_at_start", "GET", "/weight_info")
    yield Case("is_paused_at_start", "GET", "/is_paused")
    yield Case("resume_while_running", "POST", "/resume")
    yield Case("pause_unknown_mode", "POST", "/pause?mode=later")
    yield Case("pause_keep", "POST", "/pause?mode=keep")
    yield Case("is_paused", "GET", "/is_paused")
    yield Case("pause_again", "POST", "/pause?mode=keep")
    yield Case("reset_prefix_cache", "POST", "/reset_prefix_cache")
    yield Case("update_weight_version", "POST", "/update_weight_version", {"new_version": "step-1"})
    yield Case("weight_info", "GET", "/weight_info")
    yield Case("update_weight_version_missing", "POST", "/update_weight_version", {})
    yield Case("update_weight_version_number", "POST", "/update_weight_version", {"new_version": 3})
    yield Case("resume", "POST", "/resume")
    yield Case("pause_wait", "POST", "/pause?mode=wait")
    yield Case("resume_after_wait", "POST", "/resume")
    yield Case("pause_default", "POST", "/pause")
    yield Case("resume_after_abort", "POST", "/resume")
    yield Case("rpc_no_method", "POST", "/collective_rpc", {})
    yield Case("rpc_list", "POST", "/collective_rpc", [1])
    yield Case("rpc_broken_json", "POST", "/collective_rpc", content="{")
    yield Case("rpc_unknown_method", "POST", "/collective_rpc", {"method": "no_such_method"})
    yield Case("reload_weights", "POST", "/collective_rpc", {"method": "reload_weights"})


def generate_cases(limits: Limits) -> Iterator[Case]:
    """Scoring over the route of ``--enable-scale-out``, which the model server does not have."""
    yield generate("prompt_logprobs_0", prompt_logprobs=0)
    yield generate("prompt_logprobs_4", prompt_logprobs=4)
    yield generate("prompt_logprobs_text", prompt_logprobs=1, detokenize=True)
    yield generate("one_token", IDS[:1], prompt_logprobs=2)
    yield generate("named_ids", IDS[:2], prompt_logprobs=1, prompt_logprob_token_ids=[[7]])
    yield generate("prompt_logprobs_too_many", prompt_logprobs=limits.max_logprobs + 1)
    yield generate("too_long", [5] * (limits.max_model_len + 1), prompt_logprobs=1)
    yield generate("one_too_long", [5] * limits.max_model_len, prompt_logprobs=1)
    yield generate("out_of_vocabulary", [5, limits.vocab_size], prompt_logprobs=1)


CASES: dict[str, Callable[[Limits], Iterator[Case]]] = {
    "info": info_cases,
    "completions": completion_cases,
    "chat": chat_cases,
    "refusals": refusal_cases,
    "refresh": refresh_cases,
    "generate": generate_cases,
}
