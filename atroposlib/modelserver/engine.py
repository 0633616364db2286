"""The model itself: prompts in one padded forward pass, then one token a step for every running sequence.

Not thread-safe: everything here runs on the worker's thread.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atroposlib.errors import UsageError
from atroposlib.modelserver.cache import Row, new_cache, stack_rows
from atroposlib.modelserver.progress import advance
from atroposlib.modelserver.prompt_scoring import score_prompts
from atroposlib.modelserver.sampling import choose
from atroposlib.modelserver.scoring import NotFiniteError, finite_rows, score_logits
from atroposlib.modelserver.work import EndTokens, Sequence, TokenScores

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache


@dataclass(slots=True)
class RunningBatch:
    """Sequences that are being generated, with their cache.

    Attributes:
        sequences: B sequences, none of them finished.
        cache: Keys and values, B rows of the same padded length, aligned to the right.
        lengths: How many positions of each row are tokens.
    """

    sequences: list[Sequence]
    cache: Cache
    lengths: list[int]

    @property
    def width(self) -> int:
        """Padded length of the cache."""
        return max(self.lengths)

    def rows(self) -> list[Row]:
        """Every row without its padding."""
        width = self.width
        return [Row(self.cache, row, width - length, width) for row, length in enumerate(self.lengths)]


class Engine:
    """A causal language model with an exact head, its end tokens and its longest sequence."""

    def __init__(self, model: PreTrainedModel, ends: EndTokens, max_model_len: int) -> None:
        self.model = model
        self.ends = ends
        self.max_model_len = max_model_len
        self._base = model.base_model
        self._head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers
        self.vocab_size: int = self._head.weight.shape[0]
        self._check_head()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 (float64 for a float64 model) logits [N, V] of hidden states [N, H]."""
        config = self.model.config.get_text_config(decoder=True)
        logits: torch.Tensor = self._head(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if scale := getattr(config, "logit_scale", None):
            logits = logits * scale
        if scaling := getattr(config, "logits_scaling", None):
            logits = logits / scaling
        if cap := getattr(config, "final_logit_softcapping", None):
            logits = torch.tanh(logits / cap) * cap
        return logits

    @torch.inference_mode()
    def prefill(self, sequences: Many[Sequence]) -> RunningBatch | None:
        """Run the prompts of ``sequences``, score them, and sample every sequence's first token.

        Prompts are padded on the right and the attention is causal, so no token sees padding and none needs a
        mask. Returns the sequences that go on, or None when one token was all they wanted.
        """
        jobs = list(dict.fromkeys(sequence.job for sequence in sequences))
        place = {job: row for row, job in enumerate(jobs)}
        lengths = [len(job.prompt_ids) for job in jobs]
        width = max(lengths)
        padded = [job.prompt_ids + [0] * (width - len(job.prompt_ids)) for job in jobs]
        goes_on = any(sequence.job.options.max_tokens > 1 for sequence in sequences)
        cache = new_cache() if goes_on else None
        hidden = self._base(
            input_ids=torch.tensor(padded, device=self.model.device), past_key_values=cache, use_cache=goes_on
        ).last_hidden_state
        score_prompts(jobs, hidden, self.logits, self.vocab_size)
        last = torch.stack([hidden[row, length - 1] for row, length in enumerate(lengths)])
        owner = torch.tensor([place[sequence.job] for sequence in sequences], device=last.device)
        self._accept(sequences, self.logits(last)[owner])
        running = [sequence for sequence in sequences if not sequence.finished]
        if cache is None or not running:
            return None
        rows = [place[sequence.job] for sequence in running]
        stacked = stack_rows([Row(cache, row, 0, lengths[row]) for row in rows])
        return RunningBatch(running, stacked, [lengths[row] for row in rows])

    @torch.inference_mode()
    def decode(self, batch: RunningBatch) -> None:
        """Add one token to every sequence of ``batch``, some of which may finish by it."""
        device = self.model.device
        width = batch.width + 1
        lengths = torch.tensor(batch.lengths, device=device)[:, None]
        padding = width - 1 - lengths
        hidden = self._base(
            input_ids=torch.tensor([[sequence.ids[-1]] for sequence in batch.sequences], device=device),
            attention_mask=(torch.arange(width, device=device) >= padding).long(),
            position_ids=lengths,
            past_key_values=batch.cache,
            use_cache=True,
        ).last_hidden_state
        batch.lengths = [length + 1 for length in batch.lengths]
        self._accept(batch.sequences, self.logits(hidden[:, -1]))

    @torch.inference_mode()
    def merge(self, batches: Many[RunningBatch | None]) -> RunningBatch | None:
        """One batch of what is unfinished in ``batches``; one that needs no change is returned as it is."""
        alive = [batch for batch in batches if batch is not None]
        kept = [
            (sequence, row)
            for batch in alive
            for sequence, row in zip(batch.sequences, batch.rows(), strict=True)
            if not sequence.finished
        ]
        if not kept:
            return None
        if len(alive) == 1 and len(kept) == len(alive[0].sequences):
            return alive[0]
        rows = [row for _, row in kept]
        return RunningBatch(
            [sequence for sequence, _ in kept], stack_rows(rows), [row.stop - row.start for row in rows]
        )

    def _accept(self, sequences: Many[Sequence], logits: torch.Tensor) -> None:
        """Choose, score and append the next token of every sequence, from its logits [B, V]."""
        chosen = choose(logits, sequences, self.ends.all)
        wanted = [sequence.job.options.logprobs or 0 for sequence in sequences]
        ids, logprobs, ranks = score_logits(logits, chosen[:, None], max(wanted))
        finite = finite_rows(logprobs).tolist()
        rows = zip(sequences, wanted, ids.tolist(), logprobs.tolist(), ranks.tolist(), finite, strict=True)
        for sequence, k, row_ids, row_logprobs, rank, is_finite in rows:
            if not is_finite:
                sequence.job.error = NotFiniteError("the model's logits are not finite")
                continue
            scores = TokenScores(row_ids[: k + 1], row_logprobs[: k + 1], rank)
            advance(sequence, row_ids[0], scores, self.ends, self.max_model_len)

    @torch.inference_mode()
    def _check_head(self) -> None:
        """Refuse a model whose head does more to the hidden states than :meth:`logits` knows."""
        ids = torch.tensor([[0, 1, 2]], device=self.model.device)
        hidden = self._base(input_ids=ids, use_cache=False).last_hidden_state
        expected = self.model(input_ids=ids, use_cache=False).logits[0]
        ours = self.logits(hidden[0])
        if ours.shape != expected.shape or not torch.allclose(
            ours, expected.to(ours.dtype), atol=1e-2, rtol=1e-2
        ):
            raise UsageError(
                "the head of this architecture is not supported",
                code="usage.model",
                where=self.model.config.model_type,
                fix="serve this model with vLLM",
            )
