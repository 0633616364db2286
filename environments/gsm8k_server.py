"""Grade-school maths (GSM8K): the student boxes its answer, the reward is whether the number is right.

python environments/gsm8k_server.py serve --config environments/configs/gsm8k.yaml
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from pydantic import Field

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, Item, ScoredDataGroup
from atroposlib.errors import UsageError

SYSTEM_PROMPT = (
    "Solve the problem step by step. Keep it short, and end with the answer as a single number "
    "in this form: \\boxed{42}"
)
HUB_DATASET = "openai/gsm8k"
BOX = "\\boxed{"

Row = dict[str, str]


class GSM8kConfig(BaseEnvConfig):
    """Settings of the grade-school maths problems."""

    dataset_path: str | None = Field(
        None, description="JSON-lines file with question and answer; null loads openai/gsm8k from the hub."
    )
    eval_problems: int = Field(
        100, ge=1, description="Held-out problems of one evaluation (of a file: at most a tenth of it)."
    )
    max_completion_tokens: int = Field(512, ge=1, description="Longest answer that is sampled, in tokens.")
    data_seed: int = Field(42, description="Seed of the order of the problems.")


def read_rows(path: str | Path) -> list[Row]:
    """Rows of a JSON-lines file with ``question`` and ``answer``.

    Raises:
        UsageError: The file cannot be read, or a line lacks one of them.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(
            "the data set cannot be read", code="usage.file", where=str(path), got=error.strerror
        ) from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append({"question": str(row["question"]), "answer": str(row["answer"])})
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                "not a problem", where=f"{path}:{number}", expected='{"question": .., "answer": ..}'
            ) from error
    return rows


def load_rows(config: GSM8kConfig) -> tuple[list[Row], list[Row]]:
    """Problems to train on and held-out problems, in an order fixed by ``data_seed``."""
    shuffle = random.Random(config.data_seed).shuffle
    if config.dataset_path is not None:
        rows = read_rows(config.dataset_path)
        shuffle(rows)
        held_out = min(config.eval_problems, max(1, len(rows) // 10))
        if len(rows) <= held_out:
            raise UsageError(
                "the data set is too small", where=config.dataset_path, got=f"{len(rows)} problems"
            )
        return rows[held_out:], rows[:held_out]
    # Imported here: the package is an optional extra, and a file needs none of it.
    from datasets import load_dataset

    train, test = (list(load_dataset(HUB_DATASET, "main", split=split)) for split in ("train", "test"))
    shuffle(train)
    shuffle(test)
    return train, test[: config.eval_problems]


def number(text: str) -> Decimal | None:
    """The number a short text is, without currency, thousands and percent signs; None when it is none."""
    stripped = text.strip().rstrip(".").replace(",", "").replace("\\%", "").strip("$%\\ ")
    try:
        return Decimal(stripped)
    except InvalidOperation:
        return None


def gold_answer(answer: str) -> Decimal | None:
    """The number after ``####`` in a solution of the data set."""
    return number(answer.rpartition("####")[2])


def boxed(text: str) -> str | None:
    """Content of the last ``\\boxed{..}``, braces inside it included; None without a closed one."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth = 1
    begin = start + len(BOX)
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[begin:end]
    return None


def reward(text: str, gold: Decimal) -> float:
    """1.0 when the boxed answer is the right number, else -1.0."""
    content = boxed(text)
    return 1.0 if content is not None and number(content) == gold else -1.0


class GSM8kEnv(BaseEnv):
    """Rollouts of GSM8K problems, scored by the final number."""

    name = "gsm8k"
    env_config_cls = GSM8kConfig
    config: GSM8kConfig

    def __init__(self, config: Any, server_configs: Any, slurm: bool = False, testing: bool = False) -> None:
        super().__init__(config, server_configs, slurm, testing)
        self.correct: list[float] = []
        self.next_row = 0

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, list[APIServerConfig]]:
        """Defaults for a student on this machine."""
        config = cls.env_config_cls(
            tokenizer_name="Qwen/Qwen2.5-0.5B-Instruct",
            group_size=8,
            max_token_length=1024,
            use_wandb=False,
        )
        student = APIServerConfig(
            model_name="Qwen/Qwen2.5-0.5B-Instruct", base_url="http://localhost:9001/v1"
        )
        return config, [student]

    async def setup(self) -> None:
        """Load the problems."""
        self.train, self.test = await asyncio.to_thread(load_rows, self.config)

    async def get_next_item(self) -> Item:
        """The next problem; after the last the first again."""
        row = self.train[self.next_row % len(self.train)]
        self.next_row += 1
        return row

    def _messages(self, question: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]

    async def collect_trajectories(self, item: Item) -> tuple[ScoredDataGroup | None, list[Item]]:
        """``group_size`` answers to one problem, sampled at temperature 1."""
        gold = gold_answer(item["answer"])
        if gold is None:
            return None, []
        messages = self._messages(item["question"])
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            replies = await managed.chat_completion(
                messages=messages,
                n=self.config.group_size,
                max_tokens=self.config.max_completion_tokens,
                temperature=1.0,
            )
            nodes = managed.get_state()["nodes"]
        texts = [choice.message.content or "" for choice in replies.choices]
        scores = [reward(text, gold) for text in texts]
        self.correct.extend(max(score, 0.0) for score in scores)
        group = ScoredDataGroup(
            tokens=[node.tokens for node in nodes],
            masks=[node.masked_tokens for node in nodes],
            scores=scores,
            inference_logprobs=[node.logprobs for node in nodes],
            generation_params={"temperature": 1.0},
        )
        if self.config.include_messages:
            group["messages"] = [[*messages, {"role": "assistant", "content": text}] for text in texts]
        return group, []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Share of held-out problems that the student answers correctly at temperature 0."""
        start = time.time()
        samples = await asyncio.gather(*(self._evaluate_one(row) for row in self.test))
        metrics = {"eval/percent_correct": sum(sample["correct"] for sample in samples) / len(samples)}
        await self.evaluate_log(
            metrics, start_time=start, samples=list(samples), generation_parameters={"temperature": 0.0}
        )

    async def _evaluate_one(self, row: Row) -> dict[str, Any]:
        messages = self._messages(row["question"])
        reply = await self.server.chat_completion(
            messages=messages, max_tokens=self.config.max_completion_tokens, temperature=0.0, split="eval"
        )
        text = reply.choices[0].message.content or ""
        gold = gold_answer(row["answer"])
        return {
            "messages": [*messages, {"role": "assistant", "content": text}],
            "gold_answer": str(gold),
            "correct": gold is not None and reward(text, gold) > 0,
            "finish_reason": reply.choices[0].finish_reason,
        }

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Add the share of correct answers since the last call."""
        metrics = dict(wandb_metrics or {})
        if self.correct:
            metrics["train/percent_correct"] = sum(self.correct) / len(self.correct)
        self.correct = []
        await super().wandb_log(metrics)

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Keep where the sequence of problems stands."""
        super().save_checkpoint(step, {**(data or {}), "next_row": self.next_row})


if __name__ == "__main__":
    GSM8kEnv.cli()
