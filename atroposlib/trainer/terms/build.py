"""The losses of a run out of its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from atroposlib.collate.across import TokenizerPair
from atroposlib.collate.sources import Wanted
from atroposlib.config.losses.across import ChunkLikelihood, QuotientDistillation
from atroposlib.config.losses.base import LossSettings
from atroposlib.config.losses.choice import Auto
from atroposlib.config.losses.compatible import (
    CrossTokenizerDistillation,
    Distillation,
    GeneralizedKl,
    TeacherRenormalizedKl,
    TruncatedKl,
)
from atroposlib.config.losses.policy import DPO, NLL, ClippedPG, KlEstimator, PolicyGradient
from atroposlib.config.losses.same_tokenizer import TopKDistillation
from atroposlib.config.trainer import TrainerSettings
from atroposlib.trainer.terms.across import likelihood_term, quotient_term
from atroposlib.trainer.terms.cross_tokenizer import cross_tokenizer_term
from atroposlib.trainer.terms.distillation import distillation_term
from atroposlib.trainer.terms.rows import migrated_term, topk_term
from atroposlib.trainer.terms.seed import clipped_pg_term, dpo_term, nll_term
from atroposlib.trainer.terms.term import Term, distinct
from atroposlib.trainer.terms.tokens import EstimatorTerm, PolicyTerm

_MADE: dict[type[LossSettings], Callable[[Any], Term]] = {
    TopKDistillation: topk_term,
    QuotientDistillation: quotient_term,
    ChunkLikelihood: likelihood_term,
    PolicyGradient: PolicyTerm,
    KlEstimator: EstimatorTerm,
    ClippedPG: clipped_pg_term,
    NLL: nll_term,
    DPO: dpo_term,
    TruncatedKl: migrated_term,
    GeneralizedKl: migrated_term,
    TeacherRenormalizedKl: migrated_term,
    Distillation: distillation_term,
}


def build_terms(settings: TrainerSettings, vocab_size: int) -> list[Term]:
    """The terms of a run's losses.

    Args:
        settings: Of the run.
        vocab_size: Rows of the student's head.

    Raises:
        ConfigError: Settings that do not fit together.
    """
    return [term for one in settings.loss for term in _terms(one, settings, vocab_size)]


def _terms(loss: LossSettings, settings: TrainerSettings, vocab_size: int) -> Iterator[Term]:
    if isinstance(loss, Auto):
        shared = loss.model_dump(include={"weight", "teachers"})
        # What was projected is the same teacher's words, which the quotient reads whole.
        yield topk_term(TopKDistillation(**shared), projected=False)
        yield quotient_term(QuotientDistillation(**shared))
    elif isinstance(loss, CrossTokenizerDistillation):
        yield cross_tokenizer_term(loss, settings.teachers, vocab_size)
    else:
        yield _MADE[type(loss)](loss)


def wanted_by(
    terms: Sequence[Term],
    settings: TrainerSettings,
    pair_of: Callable[[str, str], TokenizerPair],
    newest: Callable[[], int],
) -> Wanted:
    """What the terms read of groups.

    Args:
        terms: Of the run.
        settings: Of the run.
        pair_of: See :class:`Wanted`.
        newest: The step that the student is at.
    """
    weights = {name: one.weight for name, one in settings.teachers.items() if one.weight is not None}
    readers = {
        kind: [term for term in terms if getattr(term.reads, kind)] for kind in ("rows", "chunks", "aligned")
    }
    trained = [term for term in terms if term.weight]
    paired = next((term.reads.signals for term in terms if term.reads.pairs), None)
    return Wanted(
        rows=lambda source: any(term.learns_from(source) for term in readers["rows"]),
        chunks=lambda source: any(term.learns_from(source) for term in readers["chunks"]),
        aligned=lambda source: any(term.learns_from(source) for term in readers["aligned"]),
        pair_of=pair_of,
        minimal_chunks=any(term.reads.minimal_chunks for term in terms),
        weights=weights,
        newest=newest,
        signals=tuple(
            term.reads.signals for term in trained if term.reads.signals is not None and not term.reads.pairs
        ),
        with_rows=next((term.reads.with_rows for term in trained if term.reads.with_rows), ()),
        learned=lambda sequence: distinct([term.learned(sequence) for term in trained]),
        pairs=paired is not None,
        pair_signals=paired or (),
    )
