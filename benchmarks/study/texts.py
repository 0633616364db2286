"""The texts of the study: beginnings of questions, continued by the teacher or by the student itself."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from atroposlib.demo import heldout

COUNTS = {"train": 96, "val": 24, "test": 64}
MAX_NEW_TOKENS = 64
BATCH = 32
PREFIX = "Question: "
FIRST_SENTENCE = re.compile(r".*?[.?!](?=\s|$)", re.DOTALL)

NAMES = ("Anna", "Ben", "Carla", "Dmitri", "Elif", "Femi", "Grace", "Hiro", "Ines", "Jonas", "Kira", "Leo")
THINGS = ("pencils", "apples", "marbles", "stamps", "bottles of water", "chairs", "tickets", "cookies")
BEGINNINGS = (
    "{name} buys {count} {things} for ${price} each.",
    "{name} has {count} {things} and gives {few} of them to a friend.",
    "There are {count} {things} in a box, and {name} carries {few} boxes.",
    "Every day {name} sells {few} {things} at the market for ${price} a piece.",
    "{name} needs {few} hours to pack {count} {things}.",
)


@dataclass(frozen=True)
class Text:
    """A prompt and how a model continued it, as strings."""

    prompt: str
    continuation: str


def prompts_of(questions: Path | None, seed: int = 0) -> dict[str, list[str]]:
    """The prompts of every part; no prompt is in two of them.

    Args:
        questions: Folder with ``train.jsonl`` and ``test.jsonl``, a ``question`` a line (GSM8K's files);
            None makes questions up.
    """
    if questions is None:
        begun = _made_up(sum(COUNTS.values()), seed)
        learned, test = begun[: -COUNTS["test"]], begun[-COUNTS["test"] :]
    else:
        learned = _first_sentences(questions / "train.jsonl", COUNTS["train"] + COUNTS["val"], seed)
        test = _first_sentences(questions / "test.jsonl", COUNTS["test"], seed)
    return {"train": learned[: COUNTS["train"]], "val": learned[COUNTS["train"] :], "test": test}


def _first_sentences(file: Path, count: int, seed: int) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    random.Random(seed).shuffle(lines)
    questions = (json.loads(line)["question"].strip() for line in lines)
    firsts = dict.fromkeys(match[0] for one in questions if (match := FIRST_SENTENCE.match(one)))
    return [PREFIX + first for first in firsts][:count]


def _made_up(count: int, seed: int) -> list[str]:
    draw, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        few = draw.randrange(2, 12)
        said = draw.choice(BEGINNINGS).format(
            name=draw.choice(NAMES),
            things=draw.choice(THINGS),
            few=few,
            count=few + draw.randrange(1, 90),
            price=draw.randrange(1, 30),
        )
        found[PREFIX + said] = None
    return list(found)


def continued(model_dir: Path, prompts: Sequence[str], seed: int) -> list[Text]:
    """Continue each prompt by sampling at temperature 1 from the whole vocabulary."""
    model = heldout.load_model(model_dir, torch.device("cpu"))
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    texts: list[Text] = []
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        ids = [tokenizer.encode(prompt).ids for prompt in some]
        rows = heldout.continue_prompts(model, ids, MAX_NEW_TOKENS, seed=seed + start)
        texts += [Text(prompt, _whole(tokenizer.decode(row))) for prompt, row in zip(some, rows, strict=True)]
    return texts


def _whole(text: str) -> str:
    """The text without a character that the last token left unfinished."""
    return text.rstrip("\ufffd")


def kept_texts(file: Path, model_dir: Path, prompts: Sequence[str], seed: int) -> list[Text]:
    """What :func:`continued` gives, out of ``file`` when it was written before."""
    if not file.exists():
        lines = [json.dumps(asdict(text)) for text in continued(model_dir, prompts, seed)]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read = [Text(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return [text for text in read if text.continuation]
