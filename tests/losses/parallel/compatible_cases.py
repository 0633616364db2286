"""The compatibility classes under a mesh: every class that reads logits, every mode of several teachers."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from atroposlib.losses.compatible.clipped_pg import ClippedPGLossFn
from atroposlib.losses.compatible.cross_tokenizer import CrossTokenizerDistillationLossFn
from atroposlib.losses.compatible.distillation import DistillationLossFn
from atroposlib.losses.compatible.dpo import DPOLossFn
from atroposlib.losses.compatible.nll import NLLLossFn
from tests.losses.parallel.compatible_batch import How, batch, computed, projection, with_teachers
from tests.losses.parallel.mesh import Case, Mesh
from tests.support.projections import written

CROSS, SAME = 0, 1
"""Numbers of the batch's teachers: the one with another tokenizer, and the first with the student's."""

DISTILLATION: dict[str, dict[str, Any]] = {
    "forward": {"kl_type": "forward"},
    "mixed": {"kl_type": "mixed", "mixed_kl_weight": 0.3},
    "reverse, zero_outside_topk": {"kl_type": "reverse", "zero_outside_topk": True},
}
CLIPPED: dict[str, dict[str, Any]] = {
    "GRPO": {"use_importance_sampling_correction": True, "positive_example_nll_weight": 0.3},
    "GSPO": {"sequence_level_importance_ratios": True, "token_level_loss": False, "ratio_clip_c": 3.0},
}
ONE_TEACHER: dict[str, tuple[int, dict[str, Any]]] = {
    "P-KL": (CROSS, {}),
    "P-KL, dynamic scaling": (CROSS, {"dynamic_loss_scaling": True, "exact_token_match_only": True}),
    "P-KL, sound": (CROSS, {"columns_per_row": True, "proper_divergence": True}),
    "gold": (CROSS, {"gold_loss": True, "temperature": 2.0}),
    "x-token": (CROSS, {"gold_loss": True, "xtoken_loss": True, "reverse_kl": True}),
    "same vocabulary": (SAME, {"temperature": 2.0}),
    "same vocabulary, sound": (SAME, {"columns_per_row": True, "reverse_kl": True}),
}
SEVERAL: dict[str, tuple[list[int], dict[str, Any]]] = {
    "sum": ([0, 1], {"teacher_weights": [0.7, 0.3]}),
    "dynamic weights": ([0, 1, 2], {"sum_weights_metric": "entropy", "alpha": 2.0}),
    "weights of each row": ([1, 2], {"sum_weights_metric": "ce", "scores_per_sequence": True}),
    "averaged_logits": ([1, 2], {"kd_loss_mode": "averaged_logits", "teacher_weights": [0.6, 0.4]}),
    "select_teacher": ([1, 2], {"kd_loss_mode": "select_teacher"}),
}


def compatible_cases() -> dict[str, Case]:
    """One case for each entry of the tables above, and for each way the inputs come."""
    cases: dict[str, Case] = {}
    for name, settings in DISTILLATION.items():
        loss = partial(DistillationLossFn, settings)
        cases[f"DistillationLossFn: {name}"] = partial(_class, loss, How())
    cases["DistillationLossFn: hidden states"] = partial(_class, loss, How(hidden=True))
    for name, settings in CLIPPED.items():
        clipped = partial(ClippedPGLossFn, settings)
        cases[f"ClippedPGLossFn: {name}"] = partial(_class, clipped, How())
        cases[f"ClippedPGLossFn: {name}, hidden states"] = partial(_class, clipped, How(hidden=True))
    cases["NLLLossFn: zigzag"] = partial(_class, NLLLossFn, How(hidden=True, zigzag=True))
    cases["DPOLossFn"] = partial(_class, partial(DPOLossFn, {"sft_loss_weight": 0.5}), How())
    for name, (teacher, settings) in ONE_TEACHER.items():
        cases[f"cross-tokenizer: {name}"] = partial(_teachers, [teacher], settings, How(), False)
        cases[f"cross-tokenizer: {name}, sparse"] = partial(
            _teachers, [teacher], settings | {"temperature": 1.0}, How(), True
        )
    for name, (teachers, settings) in SEVERAL.items():
        cases[f"cross-tokenizer: {name}"] = partial(_teachers, teachers, settings, How(), False)
    for name, how in (("zigzag", How(zigzag=True)), ("hidden states", How(hidden=True))):
        cases[f"cross-tokenizer: {name}"] = partial(_teachers, [0, 1], {}, how, False)
    return cases


def _class(make: Any, how: How, mesh: Mesh) -> dict[str, Tensor]:
    return computed(mesh, make(), batch(), how)


def _teachers(
    teachers: list[int], settings: dict[str, Any], how: How, sparse: bool, mesh: Mesh
) -> dict[str, Tensor]:
    data = with_teachers(teachers, sparse=sparse)
    with tempfile.TemporaryDirectory() as folder:
        path = written(projection(), Path(folder) / "projection")
        fixed = {"dynamic_loss_scaling": False, "vocab_topk": 7, "uncommon_topk": 5, "ce_loss_scale": 0.4}
        paths = [path if teacher == CROSS else None for teacher in teachers]
        loss_fn = CrossTokenizerDistillationLossFn(fixed | settings | {"projection_matrix_paths": paths})
    return computed(mesh, loss_fn, data, how, tp_group=mesh.groups.tensor, cp_group=mesh.groups.context)
