"""The loss classes of the seed page: same names, call signatures, settings and metrics."""

from atroposlib.losses.compatible.clipped_pg import ClippedPGLossFn
from atroposlib.losses.compatible.clipped_pg_config import ClippedPGLossConfig, ClippedPGLossDataDict
from atroposlib.losses.compatible.cross_tokenizer import CrossTokenizerDistillationLossFn
from atroposlib.losses.compatible.cross_tokenizer_config import (
    CrossTokenizerDistillationLossConfig,
    CrossTokenizerDistillationLossDataDict,
)
from atroposlib.losses.compatible.distillation import (
    DistillationLossConfig,
    DistillationLossDataDict,
    DistillationLossFn,
)
from atroposlib.losses.compatible.dpo import DPOLossConfig, DPOLossDataDict, DPOLossFn
from atroposlib.losses.compatible.draft import (
    DraftCrossEntropyLossConfig,
    DraftCrossEntropyLossDataDict,
    DraftCrossEntropyLossFn,
)
from atroposlib.losses.compatible.interfaces import LossFunction, LossInputType, LossType
from atroposlib.losses.compatible.kl import calculate_kl
from atroposlib.losses.compatible.localized import LocalizedAlignment
from atroposlib.losses.compatible.masked import mask_out_neg_inf_logprobs, masked_mean
from atroposlib.losses.compatible.nll import NLLLossFn
from atroposlib.losses.compatible.preference import PreferenceLossDataDict, PreferenceLossFn
from atroposlib.losses.compatible.prepare import prepare_loss_input
from atroposlib.losses.compatible.value import MseValueLossConfig, MseValueLossFn

__all__ = [
    "ClippedPGLossConfig",
    "ClippedPGLossDataDict",
    "ClippedPGLossFn",
    "CrossTokenizerDistillationLossConfig",
    "CrossTokenizerDistillationLossDataDict",
    "CrossTokenizerDistillationLossFn",
    "DPOLossConfig",
    "DPOLossDataDict",
    "DPOLossFn",
    "DistillationLossConfig",
    "DistillationLossDataDict",
    "DistillationLossFn",
    "DraftCrossEntropyLossConfig",
    "DraftCrossEntropyLossDataDict",
    "DraftCrossEntropyLossFn",
    "LocalizedAlignment",
    "LossFunction",
    "LossInputType",
    "LossType",
    "MseValueLossConfig",
    "MseValueLossFn",
    "NLLLossFn",
    "PreferenceLossDataDict",
    "PreferenceLossFn",
    "calculate_kl",
    "mask_out_neg_inf_logprobs",
    "masked_mean",
    "prepare_loss_input",
]
