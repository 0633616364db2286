"""Word problems that the environment writes itself: teacher distillation that needs no data set.

python environments/arithmetic_distill.py serve --config environments/configs/arithmetic_distill.yaml
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from typing import Any

from pydantic import Field

from atroposlib.envs.base import APIServerConfig, Item, ScoredDataGroup
from atroposlib.envs.teacher_distillation_env import TeacherDistillationConfig, TeacherDistillationEnv

NAMES = str.split(
    "Ada Ben Chloe Dev Elif Farid Grace Hugo Ines Jonas Kofi Lena Mateo Nadia Omar Priya "
    "Quinn Rosa Sven Tara Umar Vera Wei Yara Zoe Anton Bianca Carlos Dina Emil"
)
THINGS = str.split(
    "apples books marbles stamps pencils cookies shells stickers coins cards buttons balloons "
    "carrots eggs flowers keys lemons magnets oranges peaches"
)
BOXES = str.split("boxes bags baskets drawers jars shelves crates bowls")
SHOPS = str.split("market fair bakery shop bazaar school kiosk museum")

HELD_OUT_FROM = 1_000_000_000
"""Seeds from here on are for evaluation; training never reaches them."""

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

Numbers = random.Random
Problem = tuple[str, int]


def _gain_then_loss(draw: Numbers) -> Problem:
    who, thing = draw.choice(NAMES), draw.choice(THINGS)
    has, gets = draw.randint(3, 60), draw.randint(2, 40)
    gives = draw.randint(1, has + gets - 1)
    text = f"{who} has {has} {thing}, finds {gets} more and gives {gives} away. How many {thing} are left?"
    return text, has + gets - gives


def _boxes_and_rest(draw: Numbers) -> Problem:
    who, thing, box = draw.choice(NAMES), draw.choice(THINGS), draw.choice(BOXES)
    boxes, each, loose = draw.randint(2, 12), draw.randint(2, 15), draw.randint(1, 20)
    text = (
        f"{who} fills {boxes} {box} with {each} {thing} each and keeps {loose} {thing} loose. "
        f"How many {thing} does {who} have in total?"
    )
    return text, boxes * each + loose


def _two_people(draw: Numbers) -> Problem:
    first, second = draw.sample(NAMES, 2)
    thing = draw.choice(THINGS)
    has, more = draw.randint(2, 50), draw.randint(1, 30)
    text = (
        f"{first} has {has} {thing}. {second} has {more} more {thing} than {first}. "
        f"How many {thing} do they have together?"
    )
    return text, 2 * has + more


def _times_as_many(draw: Numbers) -> Problem:
    first, second = draw.sample(NAMES, 2)
    thing = draw.choice(THINGS)
    has, times = draw.randint(2, 25), draw.randint(2, 6)
    text = f"{first} owns {has} {thing} and {second} owns {times} times as many. How many does {second} own?"
    return text, has * times


def _price(draw: Numbers) -> Problem:
    who, thing, shop = draw.choice(NAMES), draw.choice(THINGS), draw.choice(SHOPS)
    count, price = draw.randint(2, 12), draw.randint(1, 9)
    paid = count * price + draw.randint(1, 30)
    text = (
        f"At the {shop}, {who} buys {count} {thing} for {price} dollars each and pays with {paid} dollars. "
        f"How many dollars does {who} get back?"
    )
    return text, paid - count * price


def _shared_out(draw: Numbers) -> Problem:
    who, thing = draw.choice(NAMES), draw.choice(THINGS)
    friends, each, rest = draw.randint(2, 9), draw.randint(2, 12), draw.randint(0, 8)
    text = (
        f"{who} shares {friends * each + rest} {thing} among {friends} friends so that each gets {each}. "
        f"How many {thing} remain?"
    )
    return text, rest


def _days(draw: Numbers) -> Problem:
    who, thing = draw.choice(NAMES), draw.choice(THINGS)
    start, daily, days = draw.randint(2, 30), draw.randint(2, 12), draw.randint(2, 14)
    text = (
        f"{who} starts with {start} {thing} and collects {daily} {thing} every day for {days} days. "
        f"How many {thing} does {who} have then?"
    )
    return text, start + daily * days


TEMPLATES: tuple[Callable[[Numbers], Problem], ...] = (
    _gain_then_loss,
    _boxes_and_rest,
    _two_people,
    _times_as_many,
    _price,
    _shared_out,
    _days,
)


def word_problem(seed: int) -> Problem:
    """A word problem of one or two steps and its answer, always the same for a seed.

    Seeds from ``HELD_OUT_FROM`` on are held out for evaluation.
    """
    draw = random.Random(seed)
    return draw.choice(TEMPLATES)(draw)


def held_out_prompts(count: int) -> list[list[dict[str, str]]]:
    """The first held-out problems as chat messages; the demo's evaluator asks for them."""
    questions = [word_problem(HELD_OUT_FROM + index)[0] for index in range(count)]
    return [[{"role": "user", "content": question}] for question in questions]


def final_number(text: str) -> float | None:
    """The last number of a text, or None without one."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


class ArithmeticDistillConfig(TeacherDistillationConfig):
    """Settings of the word problems."""

    max_completion_tokens: int = Field(48, ge=1, description="Longest answer that is sampled, in tokens.")
    seed: int = Field(0, ge=0, description="First problem of the training sequence.")
    eval_problems: int = Field(64, ge=1, description="Held-out problems of one evaluation.")


class ArithmeticDistillEnv(TeacherDistillationEnv):
    """Word problems, answered by the student, scored by the final number and by the teacher's logprobs."""

    name = "arithmetic_distill"
    env_config_cls = ArithmeticDistillConfig
    config: ArithmeticDistillConfig

    @classmethod
    def config_init(cls) -> tuple[ArithmeticDistillConfig, list[APIServerConfig]]:
        """Defaults for a small student on this machine."""
        config = ArithmeticDistillConfig(
            tokenizer_name="HuggingFaceTB/SmolLM2-135M-Instruct",
            group_size=4,
            max_token_length=512,
            teacher_top_k=20,
            use_wandb=False,
            steps_per_eval=-1,
        )
        student = APIServerConfig(
            model_name="HuggingFaceTB/SmolLM2-135M-Instruct", base_url="http://localhost:9001/v1"
        )
        return config, [student]

    async def setup(self) -> None:
        """Start the sequence of problems at the configured seed."""
        self.next_seed = self.config.seed
        self.correct: list[float] = []

    async def get_next_item(self) -> Item:
        """The next problem: its seed, question and answer."""
        seed = self.next_seed % HELD_OUT_FROM
        self.next_seed += 1
        question, answer = word_problem(seed)
        return {"seed": seed, "question": question, "answer": answer}

    async def collect_trajectories(self, item: Item) -> tuple[ScoredDataGroup, list[Item]]:
        """``group_size`` answers to one problem, sampled at temperature 1."""
        messages = [{"role": "user", "content": item["question"]}]
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            replies = await managed.chat_completion(
                messages=messages,
                n=self.config.group_size,
                max_tokens=self.config.max_completion_tokens,
                temperature=1.0,
            )
            nodes = managed.get_state()["nodes"]
        texts = [choice.message.content or "" for choice in replies.choices]
        scores = [float(final_number(text) == item["answer"]) for text in texts]
        self.correct.extend(scores)
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
        problems = [word_problem(HELD_OUT_FROM + index) for index in range(self.config.eval_problems)]
        right = await asyncio.gather(*(self._is_right(*problem) for problem in problems))
        metrics = {"eval/percent_correct": sum(right) / len(right)}
        await self.evaluate_log(metrics, start_time=start, generation_parameters={"temperature": 0.0})

    async def _is_right(self, question: str, answer: int) -> bool:
        reply = await self.server.chat_completion(
            messages=[{"role": "user", "content": question}],
            max_tokens=self.config.max_completion_tokens,
            temperature=0.0,
            split="eval",
        )
        return final_number(reply.choices[0].message.content or "") == answer

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Add the share of correct answers since the last call."""
        metrics = dict(wandb_metrics or {})
        if self.correct:
            metrics["train/percent_correct"] = sum(self.correct) / len(self.correct)
        self.correct = []
        await super().wandb_log(metrics)

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Keep where the sequence of problems stands."""
        super().save_checkpoint(step, {**(data or {}), "next_seed": self.next_seed})


if __name__ == "__main__":
    ArithmeticDistillEnv.cli()
