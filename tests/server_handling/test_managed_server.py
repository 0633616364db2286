"""ManagedServer: nodes hold exactly what was sent and sampled, over one turn and many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.managed_server import ManagedServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import UsageError
from atroposlib.types import Completion
from tests.support.fake_vllm import vllm_answer
from tests.support.scripted_server import scripted_server
from tests.support.tiny import CHAT_TEMPLATE
from tests.support.tokenizers import AB, END, merging_tokenizer

HELLO = [{"role": "user", "content": "Hello"}]
MORE = {"role": "user", "content": "More"}
TRIMMING = CHAT_TEMPLATE.replace("message['content'] }}", "message['content'] | trim }}")
FORGETFUL = CHAT_TEMPLATE.replace("message['content'] }}", "message['content'].split('</think>')[-1] }}")


class ScriptedSampler:
    """Samples what it is given beforehand; remembers the prompts."""

    def __init__(self, tokenizer: Any, *draws: Sequence[tuple[list[int], str]]) -> None:
        self.tokenizer = tokenizer
        self.draws = list(draws)
        self.prompts: list[list[int]] = []
        self.keywords: list[dict[str, Any]] = []

    async def sample(self, prompt: Sequence[int] | str, **kwargs: Any) -> Completion:
        assert not isinstance(prompt, str)
        self.prompts.append(list(prompt))
        self.keywords.append(kwargs)
        draw = self.draws.pop(0)
        await asyncio.sleep(0)
        return Completion(
            prompt_ids=list(prompt),
            token_ids=[ids for ids, _ in draw],
            logprobs=[[-0.125 * (i + 1) for i in range(len(ids))] for ids, _ in draw],
            texts=[self.tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in draw],
            finish_reasons=[reason for _, reason in draw],
        )

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokenizer of the tests; its template writes the end of a turn and a newline."""
    return merging_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def bytes_of(text: str) -> list[int]:
    """Ids of ``text`` byte by byte: what a model may sample, and no tokenizer writes where "ab" occurs."""
    return list(text.encode())


def stop(text: str) -> tuple[list[int], str]:
    return [*bytes_of(text), END], "stop"


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def managed_with(
    tokenizer: Any, *draws: Sequence[tuple[list[int], str]]
) -> tuple[ManagedServer, ScriptedSampler]:
    sampler = ScriptedSampler(tokenizer, *draws)
    return ManagedServer(sampler, tokenizer), sampler


async def test_a_node_is_prompt_ids_and_sampled_ids_with_the_end_of_turn(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [stop("cab")])
    reply = await managed.chat_completion(messages=HELLO, max_tokens=9, temperature=0.7, stop=["x"])
    prompt = tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=True)["input_ids"]
    [node] = managed.get_state()["nodes"]
    sampled = [*b"cab", END]
    assert sampler.prompts == [prompt]
    assert sampler.keywords == [{"max_tokens": 9, "temperature": 0.7, "stop": ["x"]}]
    assert node.tokens == prompt + sampled
    assert node.masked_tokens == [-100] * len(prompt) + sampled
    assert node.logprobs == [1.0] * len(prompt) + [-0.125, -0.25, -0.375, -0.5]
    assert node.metadata == {"finish_reason": "stop"}
    assert node.full_text.endswith("assistant\ncab")
    assert reply.choices[0].message.content == "cab"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 4


async def test_nodes_stand_in_the_order_of_choices(tokenizer: Any) -> None:
    managed, _ = managed_with(tokenizer, [stop("one"), stop("two"), stop("one")])
    reply = await managed.chat_completion(messages=HELLO, n=3)
    nodes = managed.get_state()["nodes"]
    assert [choice.message.content for choice in reply.choices] == ["one", "two", "one"]
    assert [node.full_text[-3:] for node in nodes] == ["one", "two", "one"]


async def test_the_next_turn_reuses_the_sampled_ids_and_ends_the_turn_once(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [stop("cab")], [stop("ok")])
    await managed.chat_completion(messages=HELLO)
    first = managed.get_state()["nodes"][0]
    conversation = [*HELLO, answer("cab"), MORE]
    await managed.chat_completion(messages=conversation)
    rendered = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(sampler.prompts[1]) == rendered
    assert sampler.prompts[1][: len(first.tokens)] == first.tokens
    assert AB not in sampler.prompts[1]
    assert sampler.prompts[1].count(END) == 3


async def test_the_extended_node_keeps_earlier_samples_trained(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [stop("cab")], [stop("ok")])
    await managed.chat_completion(messages=HELLO)
    await managed.chat_completion(messages=[*HELLO, answer("cab"), MORE])
    [node] = managed.get_state()["nodes"]
    trained = [token for token in node.masked_tokens if token != -100]
    assert trained == [*b"cab", END, *b"ok", END]
    assert [value for value in node.logprobs if value != 1.0] == [
        -0.125,
        -0.25,
        -0.375,
        -0.5,
        -0.125,
        -0.25,
        -0.375,
    ]
    assert node.tokens == sampler.prompts[1] + [*b"ok", END]
    assert len(node.tokens) == len(node.masked_tokens) == len(node.logprobs)


async def test_a_reply_cut_by_length_is_ended_by_the_template_untrained(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [(bytes_of("cab"), "length")], [stop("ok")])
    await managed.chat_completion(messages=HELLO)
    conversation = [*HELLO, answer("cab"), MORE]
    await managed.chat_completion(messages=conversation)
    rendered = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(sampler.prompts[1]) == rendered
    [node] = managed.get_state()["nodes"]
    assert [token for token in node.masked_tokens if token != -100] == [*b"cab", *b"ok", END]


async def test_a_template_that_trims_still_reuses_the_sampled_ids(tmp_path: Path) -> None:
    tokenizer = merging_tokenizer(tmp_path, TRIMMING)
    managed, sampler = managed_with(tokenizer, [stop(" cab \n")], [stop("ok")])
    reply = await managed.chat_completion(messages=HELLO)
    content = reply.choices[0].message.content
    assert content == " cab \n"
    await managed.chat_completion(messages=[*HELLO, answer(content), MORE])
    first = sampler.prompts[0] + [*b" cab \n", END]
    assert sampler.prompts[1][: len(first)] == first
    assert sampler.prompts[1].count(END) == 3


async def test_a_template_that_forgets_reasoning_starts_a_new_node(tmp_path: Path) -> None:
    tokenizer = merging_tokenizer(tmp_path, FORGETFUL)
    managed, sampler = managed_with(tokenizer, [stop("hm</think>cab")], [stop("ok")])
    await managed.chat_completion(messages=HELLO)
    conversation = [*HELLO, answer("hm</think>cab"), MORE]
    await managed.chat_completion(messages=conversation)
    rendered = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert sampler.prompts[1] == tokenizer.encode(rendered, add_special_tokens=False)
    first, second = managed.get_state()["nodes"]
    assert first.tokens == sampler.prompts[0] + [*b"hm</think>cab", END]
    assert [token for token in second.masked_tokens if token != -100] == [*b"ok", END]


@pytest.mark.parametrize(
    "conversation",
    [
        [*HELLO, answer("4"), MORE],
        [*HELLO, answer("422"), MORE],
        [{"role": "system", "content": "s"}, *HELLO, answer("42"), MORE],
        [{"role": "user", "content": "Hello "}, answer("42"), MORE],
    ],
)
async def test_another_conversation_is_another_node(
    tokenizer: Any, conversation: list[dict[str, str]]
) -> None:
    managed, sampler = managed_with(tokenizer, [stop("42")], [stop("ok")])
    await managed.chat_completion(messages=HELLO)
    await managed.chat_completion(messages=conversation)
    rendered = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert sampler.prompts[1] == tokenizer.encode(rendered, add_special_tokens=False)
    assert len(managed.get_state()["nodes"]) == 2


async def test_two_branches_of_one_reply_both_reuse_it(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [stop("cab")], [stop("left")], [stop("right")])
    await managed.chat_completion(messages=HELLO)
    for follow_up in ("x", "y"):
        await managed.chat_completion(
            messages=[*HELLO, answer("cab"), {"role": "user", "content": follow_up}]
        )
    assert all(AB not in prompt for prompt in sampler.prompts)
    assert [node.full_text.split("\n")[-1] for node in managed.get_state()["nodes"]] == ["left", "right"]


async def test_extending_one_of_several_nodes_keeps_their_order(tokenizer: Any) -> None:
    managed, _ = managed_with(tokenizer, [stop("one"), stop("two"), stop("six")], [stop("a"), stop("b")])
    await managed.chat_completion(messages=HELLO, n=3)
    await managed.chat_completion(messages=[*HELLO, answer("two"), MORE], n=2)
    last = [node.full_text.split("\n")[-1] for node in managed.get_state()["nodes"]]
    assert last == ["one", "a", "b", "six"]


async def test_equal_samples_are_extended_one_at_a_time(tokenizer: Any) -> None:
    managed, _ = managed_with(tokenizer, [stop("x"), stop("x")], [stop("a")])
    await managed.chat_completion(messages=HELLO, n=2)
    await managed.chat_completion(messages=[*HELLO, answer("x"), MORE])
    assert len(managed.get_state()["nodes"]) == 2


async def test_a_final_assistant_message_is_continued(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [stop("done")])
    await managed.chat_completion(messages=[*HELLO, answer("So far")])
    assert tokenizer.decode(sampler.prompts[0]).endswith("<|im_start|>assistant\nSo far")


async def test_a_reply_cut_by_length_can_be_continued(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [(bytes_of("cab"), "length")], [stop("s")])
    await managed.chat_completion(messages=HELLO)
    await managed.chat_completion(messages=[*HELLO, answer("cab")])
    assert sampler.prompts[1] == sampler.prompts[0] + bytes_of("cab")
    [node] = managed.get_state()["nodes"]
    assert [token for token in node.masked_tokens if token != -100] == [*b"cabs", END]


async def test_messages_changed_later_do_not_change_what_was_recorded(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [stop("cab")], [stop("ok")])
    messages = [dict(HELLO[0])]
    await managed.chat_completion(messages=messages)
    messages[0]["content"] = "Changed"
    await managed.chat_completion(messages=[*HELLO, answer("cab"), MORE])
    assert AB not in sampler.prompts[1]


async def test_text_that_continues_a_completion_reuses_it_and_keeps_it_trained(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [(bytes_of("ab"), "length")], [(bytes_of("z"), "length")])
    reply = await managed.completion(prompt="ab ")
    await managed.completion(prompt="ab " + reply.choices[0].text + " ab")
    assert sampler.prompts[1] == [AB, 32, 97, 98, 32, AB]
    [node] = managed.get_state()["nodes"]
    assert node.masked_tokens == [-100, -100, 97, 98, -100, -100, 122]
    assert node.logprobs == [1.0, 1.0, -0.125, -0.25, 1.0, 1.0, -0.125]
    assert node.full_text == "ab ab abz"


async def test_the_prompt_of_an_empty_reply_is_sampled_as_it_is_once_more(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [stop("")], [stop("z")])
    await managed.completion(prompt="ab ")
    await managed.completion(prompt="ab ")
    assert sampler.prompts == [[AB, 32], [AB, 32]]
    assert [node.tokens for node in managed.get_state()["nodes"]] == [[AB, 32, END], [AB, 32, 122, END]]


async def test_ids_that_continue_a_completion_keep_it_trained(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [(bytes_of("ab"), "length")], [stop("z")])
    await managed.completion(prompt=[AB])
    await managed.completion(prompt=[AB, 97, 98, 32])
    assert sampler.prompts == [[AB], [AB, 97, 98, 32]]
    assert managed.get_state()["nodes"][0].masked_tokens == [-100, 97, 98, -100, 122, END]


async def test_concurrent_calls_each_get_their_node(tokenizer: Any) -> None:
    managed, _ = managed_with(tokenizer, *[[stop(f"r{i}")] for i in range(5)])
    await asyncio.gather(*(managed.chat_completion(messages=HELLO) for _ in range(5)))
    assert sorted(node.full_text[-2:] for node in managed.get_state()["nodes"]) == [f"r{i}" for i in range(5)]


async def test_reset_forgets_nodes_and_turns(tokenizer: Any) -> None:
    managed, sampler = managed_with(tokenizer, [stop("cab")], [stop("ok")])
    await managed.chat_completion(messages=HELLO)
    managed.reset()
    assert managed.get_state() == {"nodes": []}
    await managed.chat_completion(messages=[*HELLO, answer("cab"), MORE])
    assert AB in sampler.prompts[1]


async def test_tools_and_template_options_go_to_the_template_only(tokenizer: Any, tmp_path: Path) -> None:
    template = "{{ tools[0] }}{{ flavour }}" + CHAT_TEMPLATE
    other = merging_tokenizer(tmp_path, template)
    managed, sampler = managed_with(other, [stop("x")])
    await managed.chat_completion(
        messages=HELLO, tools=[{"type": "function"}], chat_template_kwargs={"flavour": "F"}
    )
    assert other.decode(sampler.prompts[0]).startswith("{'type': 'function'}F")
    assert sampler.keywords == [{}]


async def test_managed_servers_of_one_manager_know_nothing_of_each_other(tmp_path: Path) -> None:
    merging_tokenizer(tmp_path)
    async with scripted_server() as server:
        server.answer = vllm_answer
        config = APIServerConfig(base_url=server.url, timeout=20, tokenizer_name=str(tmp_path))
        async with (
            ServerManager([config]) as manager,
            manager.managed_server() as one,
            manager.managed_server() as other,
        ):
            await asyncio.gather(
                one.chat_completion(messages=HELLO, n=2), other.chat_completion(messages=[MORE])
            )
            assert len(one.get_state()["nodes"]) == 2
            assert len(other.get_state()["nodes"]) == 1
            assert one.tokenizer is other.tokenizer
        sent = [request.body["prompt"] for request in server.requests]
    assert all(isinstance(token, int) for prompt in sent for token in prompt)


async def test_a_tokenizer_that_cannot_be_loaded_is_a_usage_error(tmp_path: Path) -> None:
    config = APIServerConfig(base_url="http://a", tokenizer_name=str(tmp_path / "missing"))
    async with ServerManager([config]) as manager:
        with pytest.raises(UsageError, match="tokenizer_name") as caught:
            async with manager.managed_server():
                pass
    assert caught.value.code == "usage.model"
