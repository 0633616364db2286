"""Squared error of a value model's predictions, clipped as in PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from atroposlib.losses.compatible.interfaces import Batch, Data, LossFunction, LossInputType, LossType
from atroposlib.losses.compatible.masked import extrema, masked_mean
from atroposlib.losses.compatible.settings import Settings
from atroposlib.losses.compatible.sharded import wide


class MseValueLossConfig(Settings):
    """Settings of :class:`MseValueLossFn`."""

    scale: float = Field(1.0, gt=0, description="Factor on the loss.")
    cliprange: float | None = Field(
        None, ge=0, description="How far a prediction may move from the old one; null or 0 for any way."
    )


class MseValueLossFn(LossFunction):
    """scale / 2 * mean of (prediction - return)^2, or of the larger of that and the clipped prediction's.

    Source of the clipping: Schulman et al.'s PPO baselines; see Engstrom et al. 2020,
    https://arxiv.org/abs/2005.12729, section 3.

    Args:
        cfg: Settings, or a mapping of them.

    Raises:
        ConfigError: Settings that are wrong.
    """

    loss_type = LossType.TOKEN_LEVEL
    input_type = LossInputType.LOGIT

    def __init__(self, cfg: MseValueLossConfig | Mapping[str, Any]) -> None:
        self.cfg = MseValueLossConfig.of(cfg)

    def __call__(
        self, logits: Tensor, data: Data, global_valid_seqs: Tensor, global_valid_toks: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss and its metrics.

        Args:
            logits: [B, T] or [B, T, 1] predicted values.
            data: ``returns`` [B, T], ``values`` [B, T] (the old predictions), ``token_mask`` [B, T] and
                ``sample_mask`` [B]; none of them shifted.
            global_valid_seqs: Not used.
            global_valid_toks: Trained tokens of the whole step, over all ranks.

        Returns:
            A scalar; means over the step's tokens (``residual_sq_mean``, ``values_mean``, ``returns_mean``,
            ``returns_sq_mean``, ``vf_clipfrac``), ``values_min`` and ``values_max`` (0 over no token),
            ``loss`` and ``num_valid_samples`` (sequences of the batch, trained or not), detached.
        """
        data = Batch(data)
        predicted = wide(logits.squeeze(-1) if logits.dim() == 3 else logits)
        mask = data["token_mask"].to(predicted.dtype) * data["sample_mask"].to(predicted.dtype)[:, None]

        def trained(values: Tensor) -> Tensor:
            return torch.where(mask != 0, values, 0.0)

        def mean(values: Tensor) -> Tensor:
            return masked_mean(values, mask, None, global_valid_toks)

        predicted, returns = trained(predicted), trained(data["returns"])
        plain = (predicted - returns).square()
        error, is_clipped = plain, torch.zeros_like(plain)
        if self.cfg.cliprange:
            clipped = (self._near(predicted, trained(data["values"])) - returns).square()
            error, is_clipped = torch.maximum(plain, clipped), (clipped > plain).to(plain.dtype)
        loss = self.cfg.scale / 2 * mean(error)
        least, most = extrema(predicted, mask)
        return loss, {
            "loss": loss.detach(),
            "residual_sq_mean": mean(plain).detach(),
            "values_mean": mean(predicted).detach(),
            "values_min": least,
            "values_max": most,
            "returns_mean": mean(returns),
            "returns_sq_mean": mean(returns.square()),
            "vf_clipfrac": mean(is_clipped),
            "num_valid_samples": mask.new_tensor(mask.shape[0]),
        }

    def _near(self, predicted: Tensor, old: Tensor) -> Tensor:
        """``predicted``, no further than ``cliprange`` from ``old``."""
        reach = self.cfg.cliprange or 0.0
        return predicted.clamp(old - reach, old + reach)
